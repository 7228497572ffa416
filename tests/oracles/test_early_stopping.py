"""Early stopping: by epochs for encoders, by patience for what reads labels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.early_stopping import EarlyStopping
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

SUPERVISED = Supervised(backbone="mlp", epochs=60)


@pytest.mark.parametrize(
    "target",
    [Supervised(epochs=9), SimCLR(epochs=9), MoCo(backbone="mlp", epochs=9, queue=32)],
    ids=lambda target: target.name,
)
def test_epochs_shorten_the_phase_of_the_encoder_only(tmp_path: Path, target: Any) -> None:
    making = Builder(Store(tmp_path), CPU).draft(tiny_spec(target, (EarlyStopping(epochs=4),)))
    epochs = {phase.name: phase.epochs for phase in making.phases}
    assert epochs.pop("encoder") == 4
    assert set(epochs.values()) <= {100}


def test_epochs_are_what_a_shorter_target_has(tmp_path: Path) -> None:
    shop, x = Builder(Store(tmp_path), CPU), tiny_split().pool.x[:20]
    stopped = shop.victim(tiny_spec(SimCLR(epochs=6), (EarlyStopping(epochs=2),)))
    short = shop.victim(tiny_spec(SimCLR(epochs=2)))
    long = shop.victim(tiny_spec(SimCLR(epochs=6)))
    assert torch.equal(stopped.embeddings(x), short.embeddings(x))
    assert not torch.equal(stopped.embeddings(x), long.embeddings(x))


def test_more_epochs_than_there_are_change_nothing(tmp_path: Path) -> None:
    shop = Builder(Store(tmp_path), CPU)
    keys = [
        shop.planned(tiny_spec(SUPERVISED, d))
        for d in ((), (EarlyStopping(epochs=60, patience=None),))
    ]
    assert keys[0].keys() == keys[1].keys()  # the phase is the same object, hence shared


def test_patience_brings_the_best_state_back(tmp_path: Path) -> None:
    shop, world = Builder(Store(tmp_path), CPU), tiny_split().victim()
    served = shop.victim(tiny_spec(SUPERVISED, (EarlyStopping(patience=3),)))
    (phase,) = [f for f in served.facts["phases"] if f["phase"] == "encoder"]
    rows = world.reference

    def loss(epochs: int) -> float:
        made = shop.victim(tiny_spec(replace(SUPERVISED, epochs=epochs)))
        return float(F.nll_loss(made.log_posteriors(rows.x), rows.y))

    curve = [loss(epoch) for epoch in range(1, phase["epochs"] + 1)]
    best = min(range(len(curve)), key=curve.__getitem__)
    assert phase["epochs"] == best + 1 + 3 < 60
    ours = float(F.nll_loss(served.log_posteriors(rows.x), rows.y))
    assert ours == pytest.approx(curve[best], abs=1e-5)


def test_patience_leaves_a_contrastive_encoder_alone(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), SimCLR(epochs=2, classifier_epochs=20)
    served = shop.victim(tiny_spec(target, (EarlyStopping(epochs=None, patience=1),)))
    x = tiny_split().pool.x[:20]
    assert torch.equal(served.embeddings(x), shop.victim(tiny_spec(target)).embeddings(x))
    assert "classifier only" in served.facts["notes"]["early-stopping"]
    phases = {f["phase"]: f for f in served.facts["phases"]}
    assert phases["encoder"]["epochs"] == 2


@pytest.mark.parametrize(
    ("defense", "protocol", "words"),
    [
        (EarlyStopping(), {}, ""),
        (EarlyStopping(epochs=None), {}, "reference rows"),
        (EarlyStopping(epochs=None, patience=None), {}, "neither epochs nor patience"),
        (EarlyStopping(epochs=3), {}, ""),
        (EarlyStopping(), {"reference": 40}, ""),
        (
            EarlyStopping(epochs=3),
            {"public": 40, "encoder": ("public",)},
            "shows the encoder none",
        ),
        (EarlyStopping(), {"reference": 40, "public": 40, "encoder": ("public",)}, ""),
        (
            EarlyStopping(epochs=None),
            {"reference": 40, "downstream": 40, "classifier": "downstream"},
            "members' labels",
        ),
    ],
)
def test_unfit(defense: EarlyStopping, protocol: Any, words: str) -> None:
    parts = Protocol(members=80, nonmembers=80, pool=400, **protocol)
    target = SimCLR()
    cell = Cell(
        TinyImages().card(None), parts, target, (defense,), Adversary(), AnyAttack(), (),
    )  # fmt: skip
    assert words in (reason_to_skip(defense, cell) or "")
    assert bool(reason_to_skip(defense, cell)) == bool(words)


def test_by_default_it_stops_a_contrastive_encoder_and_watches_the_classifier(
    tmp_path: Path,
) -> None:
    """Today's default target trains for 400 epochs; the encoder reads no labels."""
    shop, target = Builder(Store(tmp_path), CPU), SimCLR(classifier_epochs=20)
    draft = shop.draft(tiny_spec(target, (EarlyStopping(),)))
    phases = {phase.name: phase for phase in draft.phases}
    assert phases["encoder"].epochs == 100 < target.epochs
    assert phases["encoder"].monitor is None
    assert phases["classifier"].epochs == 20
    watch = phases["classifier"].monitor
    assert watch is not None
    assert watch.patience == 5
    assert draft.notes["early-stopping"] == "ends 'encoder' after 100 of 400 epochs"
    short = shop.draft(tiny_spec(target.replace(epochs=100), (EarlyStopping(),)))
    assert short.notes["early-stopping"] == "no phase is so long"
