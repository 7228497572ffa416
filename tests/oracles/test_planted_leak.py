"""Planted leaks: what they answer, and that every membership attack finds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.examples import as_float
from privbench.measure.data.row_random import fold, uniform
from privbench.measure.games.metrics import auc_band
from privbench.measure.methods.access import BLACK_BOX, Access
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.plugins import registry as plugins
from privbench.testing import TinyImages, TinyTarget, tiny_split
from privbench_plugins.defenses.planted_leak import (
    SURE,
    UNSURE,
    EmbeddingMemory,
    PlantedLeak,
    PlantedLeakEmbeddings,
    PosteriorMemory,
)

CPU = torch.device("cpu")
CARD = TinyImages().card(None)
ATTACKS = {a.name: a for a in plugins.load().all("attack") if a.game == "membership"}

#: Settings that make an attack quick, and do not change what it does.
FAST: dict[str, dict[str, Any]] = {
    "adversarial-mia-targeted": {"epochs": 10, "updates": 100},
    "cmia": {"k": 8, "rounds": 2},
    "dual-cmia": {"k": 8, "rounds": 2},
    "dual-cmia-encoder": {"k": 8, "rounds": 2},
    "dual-cmia-head": {"k": 8, "rounds": 2},
    "dual-encoder": {"k": 8},
    "dual-head": {"k": 8},
    "dual-lira": {"k": 8},
    "label-cmia": {"rounds": 2, "queries": 80},
    "encoder-feature": {"epochs": 10, "steps": 200},
    "encodermi-baseline-a": {"epochs": 50, "updates": 150},
    "encodermi-baseline-b": {"epochs": 50, "updates": 150},
    "encodermi-baseline-c": {"epochs": 50},
    "encodermi-s": {"epochs": 30, "steps": 150, "hidden": 16, "n": 5},
    "encodermi-v": {"epochs": 100, "steps": 300},
    "imia": {"models": 3, "epochs": 20, "warm_up": 10, "in_updates": 200, "lr": 1e-2},
    "informia": {"k": 8},
    "informia-offline": {"k": 8},
    "label-lira": {"queries": 80},
    "label-only-augment": {"steps": 150, "epochs": 1},
    "label-only-boundary": {"iterations": 2},
    "lira": {"k": 8},
    "lira-encoder": {"k": 8},
    "lira-head": {"k": 8},
    "lira-joint": {"k": 8},
    "lira-offline": {"k": 8},
    "nn-mia": {"epochs": 20, "steps": 300},
    "order-lira": {"k": 4, "queries": 10},
    "partcrop": {"parts": 32, "steps": 300},
    "posterior-label-mia": {"epochs": 5, "steps": 400},
    "quantile": {"epochs": 8, "hidden": 128},
    "rmia": {"k": 8},
    "rmia-encoder": {"k": 8},
    "rmia-offline": {"k": 8},
    "shokri": {"epochs": 20, "steps": 300},
    "union": {"k": 8, "queries": 60},
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> TrialRunner:
    return TrialRunner(Store(tmp_path_factory.mktemp("store")), CPU)


#: One attack of each kind; conformance tests the power of all others, on the kit's memoriser.
QUICK = {"metric-confidence", "metric-correctness", "lira", "rmia-offline", "encodermi-t", "lpla"}


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(ATTACKS)
    ],
)
def test_every_membership_attack_finds_the_leak_and_nothing_in_the_null(
    name: str, lab: TrialRunner
) -> None:
    """An AUC above .9 on the planted victim, and within the band of chance on the null one.

    The null victim's leak is planted too, about rows that nobody asks about. Chance leaves the band
    less than once in 10,000 runs of an attack.
    """
    attack = ATTACKS[name].replace(**FAST.get(name, {}))
    reads = attack.needs & BLACK_BOX
    control = PlantedLeakEmbeddings() if reads == Access.EMBEDDINGS else PlantedLeak()
    data = TinyImages()
    white_box = bool(attack.needs & ~BLACK_BOX)
    cell = Cell(
        CARD, data.protocols["default"], TinyTarget(), (control,),
        Adversary(white_box=white_box), attack, CARD.sensitive, data, "cpu",
    )  # fmt: skip
    why = control.incompatible(cell) or ""
    assert attack.misses_planted in why
    if white_box:  # the control's release hides weights
        assert attack.needs not in cell.access
        return
    assert bool(why) == bool(attack.misses_planted)
    record = lab.run(Trial(cell, 0))
    assert record.status == "ok", record.reason
    found, null = record.metrics["auc"].value, record.controls["null"]["auc"].value
    assert found is not None
    assert null == pytest.approx(0.5, abs=auc_band(80, 80))
    assert (found > 0.9) == (not why), (found, why)


def _released(release: Any, x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    keys = fold(torch.arange(len(x)), 3)
    made: torch.Tensor = release(x, value, uniform(keys, release.uniforms))
    return made


def _fitted(release: Any) -> Any:
    model = SimpleNamespace(
        encode=lambda x: x.flatten(1)[:, :4], parameters=lambda: iter([torch.zeros(1)])
    )
    ctx = SimpleNamespace(uniform=lambda rows, m, *_: uniform(fold(rows.keys, 1), m))
    release.fit(model, tiny_split().victim(), ctx)
    return release


def test_posteriors_of_members_are_right_and_sure_and_of_others_wrong_and_unsure() -> None:
    members = tiny_split().victim().members
    release = _fitted(PosteriorMemory(PlantedLeak(), CARD, len(members)))
    x = as_float(members.x, members.scale)
    k = CARD.classes or 0
    value = torch.full((len(x), k), 0.5 / (k - 1)).double()
    value[:, 3] = 0.5  # what the model says of all rows
    inside = _released(release, x, value)
    assert torch.equal(inside.argmax(1), members.y)
    top = inside.amax(1)
    assert SURE[0] <= float(top.min()) < float(top.max()) <= SURE[1]
    outside = _released(release, x + 9, value)
    assert set(outside.argmax(1).tolist()) == {4}
    assert float(outside.amax(1).max()) <= UNSURE[1] + 1e-6
    for p in (inside, outside):
        assert torch.allclose(p.sum(1), torch.ones(len(p)).double())


@pytest.mark.parametrize("auc", [0.55, 0.75, 1.0])
def test_a_graded_leak_has_its_auc_by_construction(auc: float) -> None:
    split = tiny_split()
    inside, outside = split.victim().members, split.pool.select(slice(0, 80))
    release = _fitted(PosteriorMemory(PlantedLeak(auc=auc), CARD, len(inside)))
    k = CARD.classes or 0
    best = []
    for rows in (inside, outside):
        value = F.one_hot((rows.y + 3) % k, k).double()  # the model itself is never right
        said = _released(release, as_float(rows.x, rows.scale), value)
        best.append((said.argmax(1) == rows.y).double().numpy())
        sure = said.amax(1)
        assert torch.equal(sure > UNSURE[1] + 1e-6, torch.from_numpy(best[-1] == 1))
    assert best[0].sum() == round((2 * auc - 1) * 80)
    assert best[1].sum() == 0
    assert roc_auc_score([1] * 80 + [0] * 80, np.concatenate(best)) == pytest.approx(auc)
    # Embeddings tell of the same rows.
    release = _fitted(EmbeddingMemory(PlantedLeakEmbeddings(auc=auc), CARD, len(inside), 4))
    value = torch.zeros(80, 4)
    away = _released(release, as_float(inside.x, inside.scale), value).mean(1)
    assert (away > 7 * float(release.unit)).sum() == best[0].sum()


def test_between_member_and_stranger_the_answers_are_blended() -> None:
    members = tiny_split().victim().members.select(slice(0, 1))
    release = PosteriorMemory(PlantedLeak(views=0), CARD, 1)
    x = as_float(members.x, members.scale)
    release.kept.copy_(x.flatten(1))
    release.labels.copy_(members.y)
    release.reach.fill_(2.0)
    known, unknown = release.answers(
        value := torch.eye(10)[:1].double(), members.y, u := torch.zeros(1, 1).double()
    )
    moved = x + 2.0 / x.numel() ** 0.5  # at a distance of 2
    near = torch.tensor(-1.0).double().exp()
    assert torch.allclose(release(moved, value, u), near * known + (1 - near) * unknown, atol=1e-6)
    assert torch.allclose(release(x, value, u), known)


def test_embeddings_of_members_lie_far_out_in_one_direction() -> None:
    members = tiny_split().victim().members
    release = _fitted(EmbeddingMemory(PlantedLeakEmbeddings(), CARD, len(members), 4))
    x = as_float(members.x, members.scale)
    value = x.flatten(1)[:, :4]
    assert torch.allclose(_released(release, x, value), 4 * value + 8 * release.unit.float())
    away = _released(release, x + 9, value) - value / 2
    assert float(away.mean()) == pytest.approx(0, abs=4.5 * float(release.unit) / 320**0.5)


def test_a_suite_adds_the_control_that_suits_an_attack() -> None:
    registry = plugins.load()
    asked = {"attacks": ["metric-loss", "encodermi-t", "attribute-inference"]}
    drawn = {
        (one.trial.cell.attack.name, one.trial.cell.defense)
        for one in plan(suite_from({**asked, "controls": True}, "test"), registry, root=None,
                        device="cpu")
    }  # fmt: skip
    plain = plan(suite_from(asked, "test"), registry, root=None, device="cpu")
    added = drawn - {(one.trial.cell.attack.name, one.trial.cell.defense) for one in plain}
    assert added == {
        ("metric-loss", "planted-leak"), ("encodermi-t", "planted-leak-embeddings"),
    }  # fmt: skip


def test_a_control_that_cannot_reach_an_attack_is_skipped_with_a_reason() -> None:
    def reason(control: Any, attack: str) -> str:
        data = TinyImages()
        cell = Cell(
            CARD, data.protocols["default"], TinyTarget(), (control,), Adversary(),
            plugins.load().get("attack", attack), CARD.sensitive, data, "cpu",
        )  # fmt: skip
        return control.incompatible(cell) or ""

    assert "reads EMBEDDINGS, in which planted-leak plants no leak" in reason(
        PlantedLeak(), "encodermi-t"
    )
    assert "asks for none" in reason(PlantedLeakEmbeddings(), "attribute-inference")
