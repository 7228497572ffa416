"""A release with state outside its stored tensors fails its cell, whatever ran before."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.grid.executors import Serial
from privbench.grid.here import PlannedHere
from privbench.grid.messages import Role
from privbench.grid.plan import plan
from privbench.grid.processes import Processes
from privbench.grid.run import execute
from privbench.grid.same_answers import _difference, _loaded
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store
from privbench.plugins.registry import load
from privbench.testing import CPU

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.grid.plan import PlannedTrial
    from privbench.results.record import Record

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from torch import nn
from privbench import Defense, Release, hookimpl
from privbench.testing import TinyTarget

ROWS, CALLS, LATE = [], [0], [0]

class Softens(Release):
    '''Makes all posteriors softer.'''
    of: ClassVar = "posterior"

    def forward(self, x, value, u):
        return self.half(value, torch.ones(len(value), 1, dtype=bool))

    def half(self, value, where):
        return torch.where(where, 0.5 * value + 0.5 / value.shape[1], value)

class Seen(Softens):
    '''Makes those of rows in a list of the module softer.'''
    def fit(self, model, world, ctx):
        ROWS.extend(round(float(row.double().mean()) / world.members.scale, 6)
                    for row in world.members.x)

    def forward(self, x, value, u):
        known = torch.tensor([round(float(row.double().mean()), 6) in ROWS for row in x])
        return self.half(value, known[:, None])

class Counts(Softens):
    '''Answers worse with every call.'''
    def forward(self, x, value, u):
        CALLS[0] += 1
        return value.roll(CALLS[0], 1)

class CountsTo(Counts):
    '''Answers otherwise after some calls.'''
    def forward(self, x, value, u):
        LATE[0] += 1
        return value.roll(int(LATE[0] > 7), 1)

class Centres(Softens):
    '''Answers by the mean of all rows of a query.'''
    def forward(self, x, value, u):
        return (value + value.mean(0)) / 2

class Draws(Softens):
    '''Takes its noise from a global generator.'''
    def forward(self, x, value, u):
        return (value + 0.1 * torch.rand(value.shape)).softmax(1)

class Noisy(Softens):
    '''Draws new noise for each query, as it declares.'''
    fresh, uniforms = True, 10
    def forward(self, x, value, u):
        return (value + 0.1 * u).softmax(1)

def made(of):
    @dataclass(frozen=True)
    class Of(Defense):
        '''Has that release.'''
        name: ClassVar[str] = "a-" + of.__name__.lower()
        protects: ClassVar[tuple[str, ...]] = ("membership",)
        release_class: ClassVar[type] = of
        def release(self, card, model, ctx):
            return of()
    Of.__qualname__ = Of.__name__ = of.__name__ + "Of"
    globals()[Of.__name__] = Of
    return Of()

MADE = [made(of) for of in (Softens, Seen, Counts, CountsTo, Centres, Draws, Noisy)]

@dataclass(frozen=True)
class Drops(Defense):
    '''Trains nothing.'''
    name: ClassVar[str] = "a-drops"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    def on_phases(self, phases, model, world, ctx):
        return []

class Warm(nn.Module):
    '''Adds to embeddings once it has been trained.'''
    warm = False

    def forward(self, h):
        self.warm = self.warm or self.training
        return h + self.warm

@dataclass(frozen=True)
class Warms(TinyTarget):
    '''Has such an encoder.'''
    name: ClassVar[str] = "warms"

    def build(self, card, ctx):
        model = super().build(card, ctx)
        model["encoder"].append(Warm())
        return model

@hookimpl
def privbench_defenses():
    @dataclass(frozen=True)
    class Local(type(MADE[0])):
        '''Cannot be imported elsewhere.'''
        name: ClassVar[str] = "a-local"

    return [*MADE, Local(), Drops()]

@hookimpl
def privbench_targets():
    return [Warms()]
"""
SIZES = {"members": 40, "nonmembers": 40, "reference": 20, "pool": 300, "test": 40}
#: Defense -> where its answers differ.
HOSTILE = {
    "a-seen": "in a fresh process that only loads its victim",
    "a-counts": "when asked twice in a row",
    "a-countsto": "after other queries",
    "a-centres": "when asked in parts",
    "a-draws": "in a fresh process that only loads its victim",
}
HONEST = ["a-softens", "a-noisy"]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "stateful.py").write_text(PLUGIN)

    def planned(defenses: list[str], target: Any = None) -> list[PlannedTrial]:
        monkeypatch.delitem(sys.modules, "privbench_file_stateful", raising=False)
        suite = {
            "datasets": ["digits"], "protocols": [{"name": "small", **SIZES}],
            "targets": [target or {"supervised": {"epochs": 2}}], "attacks": ["metric-loss"],
            "defenses": defenses,
        }  # fmt: skip
        registry = load([tmp_path / "stateful.py"])
        return plan(suite_from(suite, "x"), registry, root=None, device="cpu")

    return planned


@pytest.fixture
def run(planned: Any, tmp_path: Path) -> Any:
    def go(defenses: list[str], executor: Any, target: Any = None) -> dict[str, Record]:
        runner = TrialRunner(Store(tmp_path / "store"), CPU)
        records = execute(
            PlannedHere(planned(defenses, target), runner), tmp_path / "out", executor=executor
        )
        return {record.cell.defense: record for record in records}

    return go


@pytest.mark.parametrize("jobs", [0, pytest.param(2, marks=pytest.mark.end_to_end)])
def test_hidden_state_fails_its_cells_only_and_stays_found(jobs: int, run: Any) -> None:
    found = run([*HOSTILE, *HONEST], Processes(jobs) if jobs else Serial())
    for name, where in HOSTILE.items():
        told = f"PluginError: defense {name} answers the same 64 rows differently {where} (post"
        assert found[name].reason.startswith(told)
        assert "by up to 0." in found[name].reason
        assert "keep what is learned in parameters and buffers" in found[name].reason
    for name in ("none", *HONEST):
        assert found[name].reason == ""
        assert "fresh process" not in found[name].notes
    again = run(list(HOSTILE), Processes(jobs) if jobs else Serial())
    assert {name: again[name].reason for name in HOSTILE} == {
        name: found[name].reason for name in HOSTILE
    }


def test_a_defense_that_trains_nothing_is_refused(run: Any) -> None:
    """Nobody is a member of what was not trained: it would be the best of all."""
    assert run(["a-drops"], Serial())["a-drops"].reason.startswith(
        "PluginError: on_phases() of defense a-drops returned no phase with epochs, so that"
    )


def test_a_target_that_keeps_state_fails_too(run: Any) -> None:
    told = run([], Serial(), "warms")["none"].reason
    where = "once its victim is loaded from the store again (embeddings of 64 rows, by up to 1)"
    assert told.startswith(
        f"PluginError: target warms answers the same 64 rows differently {where}: an answer may"
    )


def test_what_no_fresh_process_can_import_is_asked_here_and_says_so(run: Any) -> None:
    found = run(["a-local"], Serial())["a-local"]
    assert found.reason == ""
    assert found.notes["fresh process"].startswith("not asked: ")


def test_the_process_that_trains_is_compared_too(planned: Any, tmp_path: Path) -> None:
    """Another process runs the trial; it knows none of the rows."""
    none, trial = (item.trial for item in planned(["a-seen"]))
    assert none.cell.defenses != trial.cell.defenses
    runner = TrialRunner(Store(tmp_path / "store"), CPU)
    last = runner.builder.keys(runner.specs(trial)["victim"]).stages[-1].digest
    with pytest.raises(PluginError, match="a-seen answers the same 64 rows differently in a fresh"):
        runner.make(trial, Role("victim"), last)


def test_a_builder_in_another_process_finds_its_own_keys(planned: Any, tmp_path: Path) -> None:
    (_, trial) = (item.trial for item in planned(["a-seen"]))
    runner = TrialRunner(Store(tmp_path / "store"), CPU)
    spec = runner.specs(trial)["victim"]
    key = runner.builder.keys(spec).key
    there = copy(runner.builder)
    with pytest.raises(PluginError, match="there it has another key"):
        _loaded(there, spec, key + "0", torch.zeros(1))
    vars(there.keys(spec))["key"] = "0"
    assert copy(there).keys(spec).key == key


def test_answers_that_differ_by_rounding_are_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    one = torch.rand(64, 10, generator=draw)
    assert _difference({"posteriors": one}, {"posteriors": one * (1 + 1e-6)}) == ""
    other = one.clone()
    other[3, 4] += 0.25
    assert _difference({"posteriors": one}, {"posteriors": other}).startswith(
        "posteriors of 1 rows, by up to 0.25"
    )
    assert "shape" in _difference({"posteriors": one}, {"posteriors": one[:, :9]})
    undefined = {"posteriors": torch.full((2, 2), torch.nan)}
    assert _difference(undefined, undefined) == ""
