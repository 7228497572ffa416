"""Leave-one-out attacks on canaries: who judges, and what a planted leak shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from privbench import Access, Membership, MembershipAttack, Shadows
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.canaries import Canaries
from privbench.measure.data.protocol import Protocol
from privbench.measure.games.left_out import judges, left_out
from privbench.measure.games.metrics import Estimate, Refused, auc, tpr_at_fpr
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.testing import CPU, TinyImages, TinyTarget, auc_band
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.results.record import Record

SEEN: list[tuple[int, ...]] = []


@dataclass(frozen=True)
class Nosy(MembershipAttack):
    """Scores by the loss, and remembers the worlds of its shadows."""

    name: ClassVar[str] = "nosy"
    needs: ClassVar[Access] = Access.POSTERIORS

    @property
    def shadows(self) -> Shadows:
        return Shadows(6, "online")

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        SEEN.append(tuple(shadow.world.index for shadow in ctx.shadows))
        rows = question.examples
        return Membership(oracle.log_posteriors(rows).gather(1, rows.y[:, None])[:, 0])


def run(tmp_path: Path, canaries: Canaries | None, target: Any = None) -> Record:
    data = TinyImages()
    protocol = Protocol(members=60, nonmembers=60, pool=300, test=60, canaries=canaries)
    cell = Cell(
        card=data.card(None), protocol=protocol, target=target or TinyTarget(), defenses=(),
        adversary=Adversary(), attack=Nosy(), sensitive=(), dataset=data,
    )  # fmt: skip
    record = TrialRunner(Store(tmp_path), CPU).run(Trial(cell, 0, "cpu"))
    assert record.status == "ok", record.traceback
    return record


def test_the_other_half_of_a_round_does_not_judge(tmp_path: Path) -> None:
    SEEN.clear()
    record = run(tmp_path, Canaries(kind="mislabelled", count=40))
    assert SEEN[0] == (0, 1, 2, 3, 4, 5)  # about the victim
    assert sorted(SEEN)[-2:] == [(2, 3, 4, 5), (2, 3, 4, 5)]
    for pair in ((0, 1), (2, 3), (4, 5)):
        others = tuple(i for i in range(6) if i not in pair)
        assert SEEN.count(others) == 2
    assert [judges(i, 6) for i in (0, 1)] == [[2, 3, 4, 5]] * 2
    assert record.sizes == {"members": 20, "nonmembers": 20}
    assert record.metrics["loo_auc"].value is not None
    assert "needs at least 1000 nonmembers, got 120" in (
        record.metrics["loo_tpr_at_fpr_0.001"].refused or ""
    )
    assert record.cell.protocol["canaries"]["kind"] == "mislabelled"


def test_without_canaries_nothing_is_left_out(tmp_path: Path) -> None:
    SEEN.clear()
    record = run(tmp_path, None)
    assert not any(name.startswith("loo") for name in record.metrics)
    assert set(SEEN) == {(0, 1, 2, 3, 4, 5)}


@pytest.mark.slow
def test_an_overfitted_victim_leaks_its_canaries_and_an_untrained_one_does_not(
    tmp_path: Path,
) -> None:
    canaries = Canaries(kind="mislabelled", count=40)
    leaky, fresh = (run(tmp_path, canaries, Supervised(epochs=n)) for n in (60, 0))
    assert (leaky.metrics["loo_auc"].low or 0) > 0.7
    assert abs((fresh.metrics["loo_auc"].value or 0) - 0.5) < auc_band(120, 120)


def test_pooled_scores_are_scored_together() -> None:
    rng = np.random.default_rng(0)
    member = rng.random((20, 200)) < 0.5
    scores = 2.0 * member + rng.standard_normal(member.shape)
    made = left_out(scores, member)
    for name, want in {
        "loo_auc": auc(scores.ravel(), member.ravel()),
        "loo_tpr_at_fpr_0.01": tpr_at_fpr(scores.ravel(), member.ravel(), 0.01),
        "loo_tpr_at_fpr_0.001": tpr_at_fpr(scores.ravel(), member.ravel(), 0.001),
    }.items():
        found = made[name]
        assert isinstance(found, Estimate)
        assert isinstance(want, Estimate)
        assert found.value == want.value
        assert found.low <= found.value <= found.high
    few = left_out(scores[:4], member[:4])
    assert isinstance(few["loo_tpr_at_fpr_0.001"], Refused)


def test_the_interval_keeps_the_worlds_of_a_canary_together() -> None:
    # canaries that are exposed in all worlds or in none: the interval is that of 40 canaries, not
    # of 2,000 scores, which would be seven times narrower
    rng = np.random.default_rng(1)
    member = rng.random((50, 40)) < 0.5
    scores = 3.0 * member * (np.arange(40) % 2) + rng.standard_normal(member.shape)
    found = left_out(scores, member)["loo_auc"]
    alone = auc(scores.ravel(), member.ravel())
    assert isinstance(found, Estimate)
    assert found.high - found.low > 2 * (alone.high - alone.low)


def test_a_refused_resample_widens_the_interval_at_both_ends() -> None:
    # Half of the canaries are never members: many resamples have too few nonmembers for 1 % FPR.
    member = np.tile(np.arange(100) < 50, (2, 1))
    found = left_out((1.0 - member).astype(np.float64), member)["loo_tpr_at_fpr_0.01"]
    assert isinstance(found, Estimate)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 1.0)
