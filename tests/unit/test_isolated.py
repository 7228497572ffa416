"""With --isolate the process of an attack holds neither the truth nor the victim's members."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pytest

from privbench.boards.board import Leaderboard
from privbench.boards.page import page
from privbench.grid.executors import Serial
from privbench.grid.here import PlannedHere
from privbench.grid.plan import plan
from privbench.grid.processes import Processes
from privbench.grid.run import execute
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.plugins.registry import load
from privbench.testing import CPU

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.results.record import Record

SNOOPS = """
import gc, os, sys, threading, time
from dataclasses import dataclass
from typing import ClassVar
from privbench import Access, Membership, MembershipAttack, Shadows, hookimpl

@dataclass(frozen=True)
class Snoop(MembershipAttack):
    '''Looks for the truth in the memory of its process.'''
    name: ClassVar[str] = "snoop"
    needs: ClassVar[Access] = Access.POSTERIORS

    @property
    def shadows(self):
        return Shadows(2, "online")

    def answer(self, oracle, question, ctx):
        rows, found = question.examples, []
        scores = oracle.posteriors(rows).amax(1)
        frame = sys._getframe()
        while frame:
            found += [type(value).__name__ for value in frame.f_locals.values()]
            frame = frame.f_back
        for thing in gc.get_objects():
            if not str(type(thing).__module__).startswith("privbench."):
                continue  # others have classes of these names, too
            kind = type(thing).__name__
            if kind == "Split" and len(thing.candidates) == len(rows):
                scores = thing.member.double()
            if kind == "World" and thing.origin == "victim":
                scores = thing.contains(rows).double()
        for shadow in ctx.shadows:
            assert shadow.world.contains(rows).any()
        ctx.note(split="Split" in found, pid=os.getpid())
        return Membership(scores)

@dataclass(frozen=True)
class Trains(MembershipAttack):
    '''Trains a model of its own.'''
    name: ClassVar[str] = "trains"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        model = ctx.train(ctx.auxiliary)
        rows = question.examples
        own = model.logits(model.encode(rows.x)).double().softmax(1).amax(1)
        return Membership(oracle.posteriors(rows).amax(1) - own)

@dataclass(frozen=True)
class Ends(MembershipAttack):
    '''Ends in one way or another.'''
    name: ClassVar[str] = "ends"
    needs: ClassVar[Access] = Access.NONE
    how: str = "exit"

    def answer(self, oracle, question, ctx):
        if self.how == "exit":
            os._exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), 9)
        class Local(Exception):
            pass
        raise Local("cannot be sent") if self.how == "local" else ValueError("a plain error")

@dataclass(frozen=True)
class Sure(MembershipAttack):
    '''Calls a row a member if the model is sure of it, and leaves something behind.'''
    name: ClassVar[str] = "sure"
    needs: ClassVar[Access] = Access.POSTERIORS
    leaves: str = "nothing"
    sign: int = 1

    def answer(self, oracle, question, ctx):
        rows = question.examples
        found = self.sign * oracle.posteriors(rows).amax(1)

        def asks():
            while True:
                oracle.posteriors(rows)

        if self.leaves == "thread":
            threading.Thread(target=asks, daemon=True).start()
            time.sleep(0.2)
        if self.leaves == "fork" and os.fork():
            time.sleep(0.5)
        if self.leaves == "forked question" and os.fork() == 0:
            oracle.posteriors(rows)
        if self.leaves == "closed output":
            sys.stdout.close()
        return Membership(found)

@hookimpl
def privbench_attacks():
    return [Snoop(), Trains(), Ends(), Sure()]
"""
SIZES = {"members": 40, "nonmembers": 40, "reference": 20, "pool": 300, "test": 40}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "snoops.py").write_text(SNOOPS)
    monkeypatch.syspath_prepend(tmp_path)
    points = [*entry_points(group="privbench"), EntryPoint("snoops", "snoops", "privbench")]
    registry = load(entry_points=points)

    def go(attacks: list[Any], executor: Any) -> dict[str, Record]:
        suite = {
            "datasets": ["digits"], "protocols": [{"name": "small", **SIZES}],
            "targets": [{"supervised": {"epochs": 2}}], "attacks": attacks,
        }  # fmt: skip
        planned = plan(suite_from(suite, "x"), registry, root=None, device="cpu")
        kind = "a" if isinstance(executor, Serial) else "b"
        runner = TrialRunner(Store(tmp_path / kind), CPU)
        records = execute(PlannedHere(planned, runner), tmp_path / f"out-{kind}", executor=executor)
        return {record.cell.attack.label: record for record in records}

    return go


@pytest.mark.slow
def test_the_truth_is_found_only_where_the_attack_shares_a_process(run: Any) -> None:
    (open_,) = run(["snoop"], Serial()).values()
    (apart,) = run(["snoop"], Processes(1, isolate=True)).values()
    assert open_.status == apart.status == "ok", open_.traceback + apart.traceback
    assert open_.metrics["auc"].value == 1.0, "by introspection the truth can be found"
    assert open_.notes["split"]
    assert "its AUC is 1.000 on a victim that saw none of these samples" in open_.flags[0]
    board = page(Leaderboard([open_]), "t")
    assert "1.000 ‡ |" in board
    assert "‡ 1 cells: its AUC is 1.000 on a victim that saw none" in board
    assert apart.flags == []
    assert "‡ |" not in page(Leaderboard([apart]), "t")
    assert apart.metrics["auc"].value < 0.9
    assert not apart.notes["split"]
    assert open_.notes["pid"] != apart.notes["pid"]


@pytest.mark.skipif(
    "PRIVBENCH_TEST_ROUNDING" in os.environ, reason="workers do not inject rounding errors"
)
@pytest.mark.slow
def test_results_are_equal(run: Any) -> None:
    attacks = ["trains", {"lira": {"k": 2}}, {"cmia": {"k": 4, "rounds": 2}}]
    serial, apart = run(attacks, Serial()), run(attacks, Processes(2, isolate=True))
    assert not [record.traceback for record in apart.values() if record.status != "ok"]
    assert [r.notes["shadows"] for r in apart.values() if "shadows" in r.notes] == [8.0]
    assert [r.digest for r in serial.values()] == [r.digest for r in apart.values()]


@pytest.mark.end_to_end
def test_an_attack_that_ends_its_process_costs_its_cell(run: Any) -> None:
    hows = {
        "exit": "the process of its attack ended with status 3, twice",
        "kill": "the process of its attack was killed by signal 9 (often: out of memory), twice",
        "local": "Local: cannot be sent",
        "plain": "ValueError: a plain error",
    }
    attacks = ["metric-loss", *({"ends": {"how": how}} for how in hows)]
    records = run(attacks, Processes(2, isolate=True))
    assert records.pop("metric-loss").status == "ok"
    for record, reason in zip(records.values(), hows.values(), strict=True):
        assert record.status == "failed"
        assert reason in record.reason, record.reason
    plain = list(records.values())[-1]
    assert "in answer" in plain.traceback


@pytest.mark.end_to_end
def test_nothing_that_an_attack_leaves_behind_speaks_for_another(
    run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = ["thread", "fork", "forked question", "closed output"]
    attacks = [*({"sure": {"leaves": kind}} for kind in kinds), {"sure": {"sign": -1}}]
    records = list(run(attacks, Processes(1)).values())
    assert [one.reason for one in records if one.status != "ok"] == []
    (alone,) = run(["sure"], Serial()).values()
    pairs = [(alone.metrics["auc"], alone.controls["null"]["auc"])] * len(kinds)
    *found, turned = [(one.metrics["auc"], one.controls["null"]["auc"]) for one in records]
    assert found == pairs
    assert [one.value for one in turned] == [pytest.approx(1 - one.value) for one in pairs[0]]
    assert records[-1].cost.queries_per_sample == alone.cost.queries_per_sample
    assert "Traceback" not in capfd.readouterr().err
