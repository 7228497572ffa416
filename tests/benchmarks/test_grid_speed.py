"""The grid itself: several workers, a finished grid, planning, and what one node costs.

``uv run python tests/benchmarks/table.py`` runs these and writes leaderboards/speed.md. Each checks
its results: every trial of the plan is there and ok, and equal where both sides compute in the same
way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from privbench.grid.executors import Serial
from privbench.grid.here import PlannedHere
from privbench.grid.plan import PlannedTrial, plan
from privbench.grid.processes import Processes
from privbench.grid.run import execute
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.training.numerics import Numerics
from privbench.plugins.registry import load
from privbench.results.files import read_all
from privbench.testing import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable

    from privbench.results.record import Record

SUITE = {
    "datasets": ["digits"],
    "targets": ["supervised"],
    "defenses": [
        "confidence-masking", "label-smoothing", "early-stopping", "hamp", "relaxloss",
        "mixup-mmd", "adversarial-regularization",
    ],
    "attacks": [
        "shokri", "nn-mia", "posterior-label-mia", "metric-confidence",
        "metric-modified-entropy", "metric-loss", {"lira": {"k": 8}}, {"rmia": {"k": 8}},
        "quantile", "label-only-augment",
    ],
}  # fmt: skip
#: An attack that does nothing but sleep.
SLEEPER = """
import time
from dataclasses import dataclass
from typing import ClassVar
from privbench import Access, Membership, MembershipAttack, hookimpl

@dataclass(frozen=True)
class Sleeper(MembershipAttack):
    '''Sleeps.'''
    name: ClassVar[str] = "sleeper"
    needs: ClassVar[Access] = Access.NONE
    seconds: float = 0.0
    number: int = 0

    def answer(self, oracle, question, ctx):
        time.sleep(self.seconds)
        return Membership(question.examples.keys.double())

@hookimpl
def privbench_attacks():
    return [Sleeper()]
"""


def _command(folder: Path, jobs: int, threads: int) -> None:
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump(SUITE))
    script = str(Path(sys.executable).parent / "privbench")
    environment = {**os.environ, "PRIVBENCH_CACHE": str(folder / "store")}
    subprocess.run(
        [script, "run", str(suite), "--jobs", str(jobs), "--threads", str(threads),
         "--out", str(folder / "out")],
        check=True, env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def _complete(folder: Path, threads: int) -> None:
    """Check that there is a result for every trial of the suite."""
    wanted = plan(suite_from(SUITE, "x"), load(), root=None, device="cpu",
                  numerics=Numerics(threads))  # fmt: skip
    records = read_all([folder / "out"])
    assert {record.trial for record in records} == {item.trial.digest for item in wanted}
    assert len(records) == 80
    _ok(records)


def _ok(records: Iterable[Record]) -> None:
    assert {(record.status, record.reason) for record in records} == {("ok", "")}


@cache
def _finished() -> Path:
    folder = Path(mkdtemp())
    _command(folder, 1, 2)
    return folder


def _once(benchmark: Any, work: Any, units: float) -> Any:
    benchmark.extra_info["units"] = units
    return benchmark.pedantic(work, rounds=1)


JOBS = "10 attacks x 8 defenses, digits, supervised: --jobs 2 | one job with two threads | 1.6"


@pytest.mark.benchmark(group=JOBS)
def test_grid_two_jobs(benchmark: Any, tmp_path: Path) -> None:
    _once(benchmark, lambda: _command(tmp_path, 2, 1), 1)
    _complete(tmp_path, 1)


@pytest.mark.benchmark(group=JOBS)
def test_grid_two_threads(benchmark: Any, tmp_path: Path) -> None:
    _once(benchmark, lambda: _command(tmp_path, 1, 2), 1)
    _complete(tmp_path, 2)


AGAIN = "the finished grid again | its first run | 100"


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = (folder / "out").glob("*.json")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


@pytest.mark.benchmark(group=AGAIN)
def test_finished_again(benchmark: Any) -> None:
    folder = _finished()
    before = _files(folder)
    _once(benchmark, lambda: _command(folder, 1, 2), 1)
    _complete(folder, 2)
    assert _files(folder) == before


@pytest.mark.benchmark(group=AGAIN)
def test_finished_first(benchmark: Any, tmp_path: Path) -> None:
    _once(benchmark, lambda: _command(tmp_path, 1, 2), 1)
    _complete(tmp_path, 2)


def _planned(attacks: list[Any], **more: Any) -> list[PlannedTrial]:
    folder = Path(mkdtemp())
    (folder / "sleeper.py").write_text(SLEEPER)
    if str(folder) not in sys.path and "sleeper" not in sys.modules:
        sys.path.insert(0, str(folder))
    points = [*entry_points(group="privbench"), EntryPoint("sleeper", "sleeper", "privbench")]
    suite = {"datasets": ["digits"], "targets": [{"supervised": {"epochs": 1}}], **more}
    return plan(
        suite_from({**suite, "attacks": attacks}, "x"), load(entry_points=points), root=None,
        device="cpu",
    )  # fmt: skip


SLEEP = "8 workers on 320 nodes that sleep 6 s | one job | 7.2"


@pytest.mark.benchmark(group=SLEEP)
def test_sleep_workers(benchmark: Any, tmp_path: Path) -> None:
    planned = _planned([{"sleeper": {"seconds": 3.0, "number": i}} for i in range(320)])
    work = lambda: execute(  # noqa: E731
        PlannedHere(planned, TrialRunner(Store(tmp_path / "s"), CPU)),
        tmp_path / "o",
        executor=Processes(8),
    )
    records = _once(benchmark, work, len(planned))
    _ok(records)
    here = execute(
        PlannedHere(planned[:1], TrialRunner(Store(tmp_path / "t"), CPU)), tmp_path / "p"
    )
    assert [record.trial for record in records] == [item.trial.digest for item in planned]
    assert records[0].digest == here[0].digest


@pytest.mark.benchmark(group=SLEEP)
def test_sleep_serial(benchmark: Any, tmp_path: Path) -> None:
    planned = _planned([{"sleeper": {"seconds": 3.0, "number": i}} for i in range(6)])
    work = lambda: execute(  # noqa: E731
        PlannedHere(planned, TrialRunner(Store(tmp_path / "s"), CPU)),
        tmp_path / "o",
        executor=Serial(),
    )
    records = _once(benchmark, work, len(planned))
    _ok(records)
    assert [record.trial for record in records] == [item.trial.digest for item in planned]


@pytest.mark.benchmark(group="a trial that computes nothing: question, two answers, score, record")
def test_trial_overhead(benchmark: Any, tmp_path: Path) -> None:
    planned = _planned([{"sleeper": {"number": i}} for i in range(101)])
    runner = TrialRunner(Store(tmp_path / "s"), CPU)
    (first,) = execute(PlannedHere(planned[:1], runner), tmp_path / "o")
    records = _once(
        benchmark, lambda: execute(PlannedHere(planned[1:], runner), tmp_path / "o"), 100
    )
    _ok(records)
    assert all(record.metrics == first.metrics for record in records)


@pytest.mark.benchmark(group="a kept cell")
def test_kept_cell(benchmark: Any, tmp_path: Path) -> None:
    planned = _planned([{"sleeper": {"number": i}} for i in range(100)])
    runner = TrialRunner(Store(tmp_path / "s"), CPU)
    first = execute(PlannedHere(planned, runner), tmp_path / "o")
    assert (
        _once(benchmark, lambda: execute(PlannedHere(planned, runner), tmp_path / "o"), 100)
        == first
    )
    _ok(first)


@pytest.mark.benchmark(group="planning a cell, of more than 100,000")
def test_planning(benchmark: Any) -> None:
    registry = load()
    names = [d.name for d in registry.all("defense") if d.name != "none"]

    def planned(seeds: int) -> int:
        suite = suite_from({
            "datasets": ["digits"], "targets": ["simclr", "supervised", "moco", "autoencoder"],
            "defenses": names, "attacks": [a.name for a in registry.all("attack")],
            "adversaries": ["adaptive", "naive"], "seeds": seeds,
        }, "x")  # fmt: skip
        return len(plan(suite, registry, root=None, device="cpu"))

    cells = planned(1)
    seeds = 110_000 // cells  # as many as stay below the largest grid
    assert cells * seeds > 100_000
    assert _once(benchmark, lambda: planned(seeds), cells * seeds) == cells * seeds
