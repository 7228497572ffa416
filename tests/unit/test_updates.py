"""Targets are sized in updates, and a victim whose encoder learnt nothing is marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.unit.test_suites import SUITES

from privbench import Examples, Release
from privbench.boards.board import Leaderboard
from privbench.boards.verdicts import idle_encoder
from privbench.grid.plan import plan
from privbench.grid.suite import read_suite
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.methods.context import TargetContext
from privbench.measure.victims.play import gain, probe
from privbench.measure.victims.served import Victim
from privbench.results.record import Record
from privbench.results.seeds import Seeds
from privbench.testing import CPU, memoriser, tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.targets.autoencoder import Autoencoder
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

#: Of 80 members, in batches of 40: two updates an epoch.
SMALL = [
    SimCLR(epochs=2, batch=40, classifier_epochs=1),
    MoCo(epochs=2, batch=40, classifier_epochs=1),
    Autoencoder(epochs=2, batch=40, classifier_epochs=1),
    Supervised(epochs=2, batch=40),
]


def _epochs(target: Any, tmp_path: Path) -> dict[str, int]:
    draft = tiny_builder(str(tmp_path)).draft(tiny_spec(target))
    return {phase.name: phase.epochs for phase in draft.phases}


@pytest.mark.parametrize("target", SMALL, ids=lambda t: t.name)
def test_a_floor_of_updates_adds_epochs_only_where_they_are_missing(
    target: Any, tmp_path: Path
) -> None:
    assert _epochs(target, tmp_path)["encoder"] == 2
    assert _epochs(target.replace(updates=4), tmp_path)["encoder"] == 2  # reached already
    assert _epochs(target.replace(updates=7), tmp_path)["encoder"] == 4  # 8 updates
    assert _epochs(target.replace(epochs=0, updates=7), tmp_path)["encoder"] == 0
    if target.classifier_apart(tiny_split().protocol):
        size = 40 if target.name == "autoencoder" else 80  # 512, but there are 80 members
        apart = _epochs(target.replace(classifier_updates=6), tmp_path)
        assert apart["classifier"] == 6 * size // 80
        assert apart["encoder"] == 2


def test_the_loop_makes_as_many_updates(tmp_path: Path) -> None:
    served = tiny_builder(str(tmp_path)).victim(tiny_spec(SMALL[0].replace(updates=7)))
    updates = {f["phase"]: f["updates"] for f in served.facts["phases"]}
    assert updates["encoder"] == {"encoder": 8, "head": 8}


def test_a_batch_of_all_rows_is_said(tmp_path: Path) -> None:
    builder = tiny_builder(str(tmp_path))
    notes = builder.draft(tiny_spec(SMALL[0].replace(batch=512))).notes
    assert notes["encoder: batch"] == "all 80 rows (batch 512): one update an epoch"
    assert "encoder: batch" not in builder.draft(tiny_spec(SMALL[0].replace(batch=80))).notes


@pytest.mark.parametrize(
    "path", [p for p in SUITES if p.stem in ("utkface", "utkface-defenses")], ids=lambda p: p.stem
)
def test_encoders_of_faces_get_two_thousand_updates(path: Path, registry: Any) -> None:
    planned = plan(read_suite(path), registry, root=None, device="cpu")
    cells = {item.trial.cell.target.label: item.trial.cell for item in planned}
    assert cells
    for cell in cells.values():
        n = cell.protocol.parts()["members"].count(cell.card)
        world = tiny_split().victim()
        x = torch.zeros((n, *cell.card.shape), dtype=torch.uint8)
        rows = Examples.of(x, torch.zeros(n, dtype=torch.long), {}, scale=cell.card.scale)
        ctx = TargetContext(
            card=cell.card, protocol=cell.protocol, sensitive=(), device=CPU, store=None, seed=0,
            scope="",
        )  # fmt: skip
        model = cell.target.build(cell.card, ctx)
        phases = cell.target.phases(model, world.replace(members=rows, downstream=rows), ctx)
        (encoder,) = [phase for phase in phases if phase.trains("encoder")]
        assert encoder.epochs * encoder.batch.steps(n) >= 2000
        assert 4 * encoder.batch.size <= n + encoder.batch.size  # several updates an epoch


# ---- what training gave the encoder --------------------------------------------------------------


def test_the_gain_is_a_sign_test_over_rows_where_the_probes_differ() -> None:
    trained = torch.tensor([1, 1, 1, 1, 1, 0, 1, 0]).bool()
    untrained = torch.tensor([0, 0, 0, 0, 0, 1, 1, 0]).bool()
    found = gain(trained, untrained)
    assert found["probe_accuracy"] == 6 / 8
    assert found["untrained_accuracy"] == 2 / 8
    assert found["probe_p_value"] == pytest.approx((6 + 1) / 2**6)  # 5 or 6 heads of 6
    assert gain(trained, trained)["probe_p_value"] == 1.0
    assert gain(trained[:0], trained[:0]) == {}


def test_the_probe_finds_what_embeddings_tell_about_labels() -> None:
    """Labels of the kit are random: only an encoder that holds the test rows can tell them."""
    split = tiny_split()
    world = split.victim()
    both = Examples.of(
        torch.cat([world.members.x, split.test.x]), torch.cat([world.members.y, split.test.y]), {},
        scale=split.card.scale,
    )  # fmt: skip
    assert probe(memoriser(world.replace(members=both)), split).double().mean() > 0.9
    assert probe(memoriser(world), split).double().mean() < 0.4  # chance .1 ± .14 of 80 rows


class Nothing(Release):
    """Releases zeros."""

    of = "embedding"

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Answer 0 whatever the value is."""
        del x, u
        return torch.zeros_like(value)


def test_the_probe_reads_embeddings_before_any_release() -> None:
    split = tiny_split()
    bare = memoriser(split.victim())
    served = Victim(bare.card, bare.model, key="zeros", grants=bare.grants, releases=(Nothing(),))
    assert not served.embeddings(split.test.x).any()
    assert torch.equal(probe(served, split), probe(bare, split))


def _result(seed: int, utility: dict[str, float]) -> Record:
    return Record.model_construct(seed=seed, status="ok", utility=utility)


def idle(records: Sequence[Record]) -> str:
    return idle_encoder(Seeds(records))


def _probed(*gains: float) -> list[Record]:
    return [
        _result(seed, {
            "probe_wins": 9, "probe_losses": 4, "probe_accuracy": 0.6 + gain,
            "untrained_accuracy": 0.6,
        })
        for seed, gain in enumerate(gains)
    ]  # fmt: skip


def test_an_encoder_must_be_ahead_of_an_untrained_one_beyond_the_spread_of_seeds() -> None:
    """Seeds are the unit: rows of several seeds are rows of one dataset."""
    spread = _probed(0.01, 0.06, -0.03, 0.05, -0.04)  # t = .51 of 4 degrees: p = .32, one-sided
    told = idle(spread)
    assert "is not shown to tell more than an untrained one (p = 0.32 over 5 seeds)" in told
    assert "accuracy 0.610 on it and 0.600 untrained" in told
    assert idle(_probed(0.01, 0.04, 0.02, 0.05, 0.08)) == ""
    assert idle(spread * 2) == told  # other cells of the same victims add nothing
    assert idle(_probed(0.01)) == ""  # one seed cannot show more than that it is ahead
    assert idle(_probed(0.05, -0.04)) == ""
    assert idle(_probed(0.0)) != ""
    assert idle(_probed(-0.01, -0.04, -0.02, -0.05, -0.08)) != ""  # worse is not better
    assert "(p = 1 over 1 seed)" in idle(_probed(0.0))
    assert idle([_result(0, {"test_accuracy": 0.1})]) == ""


@pytest.mark.slow
def test_records_hold_both_probes_and_the_flag(registry: Any, tmp_path: Path) -> None:
    """An encoder of no epochs is the untrained one; one defense changes nothing about that."""
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: x\ndatasets: [digits]\n"
        "targets: [simclr: {epochs: 0, classifier_epochs: 2}, supervised: {epochs: 0}]\n"
        "attacks: [encodermi-t]\ndefenses: [confidence-masking]\n"
    )
    runner = TrialRunner(Store(tmp_path), CPU)
    planned = plan(read_suite(suite), registry, root=None, device="cpu")
    records = [runner.run(item.trial) for item in planned]
    assert len(records) == 4
    for record in records[2:]:
        assert record.cell.target.name == "supervised"
        assert "probe_accuracy" in record.utility
        assert "probe_wins" not in record.utility
    for record in records[:2]:
        assert record.status == "ok", record.traceback
        found = record.utility
        assert found["probe_accuracy"] == found["untrained_accuracy"] > 0.5
        assert found["probe_wins"] == found["probe_losses"] == 0
        assert record.flags == []
    doubts = Leaderboard(records).doubtful
    assert all("not shown to tell more than an untrained" in why for why in doubts.values())
    assert set(doubts) == {record.cell.model_dump_json() for record in records[:2]}
    probes = list((tmp_path / "probe").glob("??/*"))
    # Of the encoders of all victims, and one untrained one for both victims of a target.
    assert len(probes) == 6
