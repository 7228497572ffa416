"""The grid as a graph, and worker processes that make its nodes."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from privbench.api.options import shard
from privbench.api.session import _executor
from privbench.grid import worker
from privbench.grid.executors import Serial
from privbench.grid.graph import graph
from privbench.grid.here import PlannedHere
from privbench.grid.messages import Node, Role, Setup
from privbench.grid.plan import plan
from privbench.grid.processes import Processes
from privbench.grid.run import execute
from privbench.grid.schedule import Schedule, depths
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import BadInputError, PluginError
from privbench.ground.store.store import Store
from privbench.plugins.registry import load
from privbench.results.files import read_all
from privbench.testing import CPU

if TYPE_CHECKING:
    from privbench.grid.plan import PlannedTrial

SIZES = {"members": 40, "nonmembers": 40, "reference": 20, "pool": 300, "test": 40}
GRID = {
    "datasets": ["digits"],
    "protocols": [{"name": "small", **SIZES}],
    "targets": [{"supervised": {"epochs": 2}}],
    "defenses": [{"selena": {"models": 3, "held_out": 1}}, "early-stopping"],
    "attacks": ["metric-loss", {"lira": {"k": 2}}],
}
_TINY_MEMGUARD = {"epochs": 1, "updates": 2, "iterations": 2}
#: Attacks that misbehave, each in its own way.
ROGUES = """
import os, time
from dataclasses import dataclass
from typing import ClassVar
from privbench import Access, Membership, MembershipAttack, hookimpl

class Rogue(MembershipAttack):
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        self.misbehave()
        return Membership(oracle.posteriors(question.examples).amax(1))

@dataclass(frozen=True)
class Exits(Rogue):
    '''Ends the process.'''
    name: ClassVar[str] = "exits"
    def misbehave(self): os._exit(3)

@dataclass(frozen=True)
class Hangs(Rogue):
    '''Never ends.'''
    name: ClassVar[str] = "hangs"
    def misbehave(self): time.sleep(600)

@dataclass(frozen=True)
class Shouts(Rogue):
    '''Prints megabytes.'''
    name: ClassVar[str] = "shouts"
    def misbehave(self): print("x" * 3_000_000)

@dataclass(frozen=True)
class Hoards(Rogue):
    '''Is killed for its memory, as the kernel does it.'''
    name: ClassVar[str] = "hoards"
    def misbehave(self): os.kill(os.getpid(), 9)

@dataclass(frozen=True)
class Starves(Rogue):
    '''Finds no memory, the first time it runs.'''
    name: ClassVar[str] = "starves"
    def misbehave(self):
        tried = os.path.join(os.path.dirname(__file__), "tried")
        if not os.path.exists(tried):
            open(tried, "w").close()
            raise MemoryError("no room")

@hookimpl
def privbench_attacks():
    return [Exits(), Hangs(), Shouts(), Hoards(), Starves()]
"""


def _planned(grid: dict[str, Any], registry: Any = None) -> list[PlannedTrial]:
    return plan(suite_from(grid, "test"), registry or load(), root=None, device="cpu")


def _runner(folder: Path) -> TrialRunner:
    return TrialRunner(Store(folder), CPU)


def test_the_graph_names_everything_once_and_needs_come_first(tmp_path: Path) -> None:
    trials = [item.trial for item in _planned(GRID) if not item.skip]
    runner = _runner(tmp_path)
    nodes = graph(trials, runner)
    seen: set[str] = set()
    for name, node in nodes.items():
        assert node.name == name
        assert node.needs <= seen
        seen.add(name)
    assert runner.builder.trained_phases == 0
    assert list(graph(trials, runner)) == list(nodes), "planning twice gives the same keys"
    stages = [node for node in nodes.values() if node.role and node.role.name != "baselines"]
    inner = [node for node in stages if node.role and node.role.inner is not None]
    # selena trains 3 for each of victim, null, an offline shadow and two online ones
    assert len(inner) == 3 * 5
    assert len({node.name for node in stages}) == len(stages)
    depth = depths(nodes)
    # lira asks the victim and the null after metric-loss, which leaves their posteriors
    assert {t.cell.attack.name: depth[t.digest] for t in trials} == {"metric-loss": 2, "lira": 1}
    of_victims = [node for node in inner if node.role and node.role.name in ("victim", "null")]
    assert min(depth[node.name] for node in of_victims) == 4
    assert sum(node.kind == "baselines" for node in nodes.values()) == 1


def test_answers_about_victims_that_are_not_there_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [item.trial for item in _planned({**GRID, "defenses": []}) if not item.skip]
    runner = _runner(tmp_path)
    origins: list[str] = []
    keyed = runner.builder.keys

    def noted(spec: Any) -> Any:
        origins.append(spec.world.origin)
        return keyed(spec)

    monkeypatch.setattr(runner.builder, "keys", noted)
    graph(trials, runner)
    assert "victim" in origins
    assert not {"offline", "online"} & set(origins), "their keys would take longest"


def test_attacks_that_draw_the_same_views_wait_for_the_first_of_them(tmp_path: Path) -> None:
    grid = {**GRID, "targets": [{"simclr": {"backbone": "mlp", "epochs": 1}}], "defenses": [],
            "attacks": ["nn-mia", "encodermi-v", "encodermi-s", "encodermi-t"]}  # fmt: skip
    trials = {i.trial.cell.attack.name: i.trial for i in _planned(grid) if not i.skip}
    nodes = graph(list(trials.values()), _runner(tmp_path))
    first = trials["encodermi-v"].digest
    assert first in nodes[trials["encodermi-s"].digest].after
    assert first in nodes[trials["encodermi-t"].digest].after
    assert first not in nodes[trials["nn-mia"].digest].after


def test_a_failure_takes_what_needs_it_and_frees_what_waits_for_it() -> None:
    trial = "digest"
    role = Role("victim")
    nodes = {
        "a": Node("a", trial, role, "x"),
        "b": Node("b", trial, role, "x", needs={"a"}),
        "needs": Node("needs", trial, None, "y", needs={"b"}),
        "waits": Node("waits", trial, None, "y", after={"a"}),
    }
    schedule = Schedule(nodes)
    a = schedule.next(0)
    assert a is nodes["a"]
    assert schedule.next(1) is None
    assert schedule.died(a, again=True) == []
    assert schedule.next(1) is None, "it runs once more, but alone"
    assert schedule.next(0) is a
    assert schedule.died(a, again=True) == ["needs"], "of the two trials, one needs it"
    waits = schedule.next(0)
    assert waits is nodes["waits"]
    assert schedule.seconds_left(1) is None
    schedule.done(waits, 3.0)
    assert schedule.over
    assert schedule.next(0) is None


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"executor": "procesess"}, "unknown executor 'procesess'.*processes"),
        ({"executor": "serial", "jobs": 2}, "leave out --jobs"),
        ({"executor": "ray", "jobs": 2}, "leave out --jobs"),
        ({"address": "auto"}, "give both"),
        ({"devices": "0;1"}, "write numbers"),
    ],
)
def test_bad_executors(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(BadInputError, match=wrong):
        _executor(options, (), apart=False)


def test_what_the_store_holds_is_no_node(tmp_path: Path) -> None:
    trials = [item.trial for item in _planned(GRID) if not item.skip]
    runner = _runner(tmp_path)
    first = next(node for node in graph(trials, runner).values() if node.role)
    assert first.role is not None
    trial = next(one for one in trials if one.digest == first.trial)
    runner.make(trial, first.role, first.name)
    assert first.name not in graph(trials, _runner(tmp_path))


def test_a_finished_answer_needs_no_shadow(tmp_path: Path) -> None:
    attacks = [{"lira": {"k": 2}}, {"encodermi-v": {"epochs": 1, "steps": 1}}]
    suites = [
        {**GRID, "attacks": attacks[:1], "defenses": [{"memguard": _TINY_MEMGUARD}]},
        {**GRID, "attacks": attacks[1:], "targets": [{"simclr": {"epochs": 1, "backbone": "mlp"}}],
         "defenses": ["uniform-noise"], "adversaries": ["adaptive", "naive"]},
    ]  # fmt: skip
    for grid in suites:
        trials = [item.trial for item in _planned(grid) if not item.skip]
        assert trials
        runner = _runner(tmp_path)
        with_shadows = [t for t in trials if any("shadow" in n for n in runner.specs(t))]
        assert {runner.run(trial).reason for trial in trials} == {""}
        assert with_shadows
        for trial in trials:
            assert not any("shadow" in name for name in runner.specs(trial))


@pytest.mark.end_to_end
@pytest.mark.skipif(
    "PRIVBENCH_TEST_ROUNDING" in os.environ, reason="workers do not inject rounding errors"
)
def test_workers_give_the_results_of_a_serial_run(tmp_path: Path) -> None:
    planned = _planned(GRID)
    runners = _runner(tmp_path / "a"), _runner(tmp_path / "b")
    serial = execute(PlannedHere(planned, runners[0]), tmp_path / "x", executor=Serial())
    split = execute(PlannedHere(planned, runners[1]), tmp_path / "y", executor=Processes(2))
    assert [record.digest for record in split] == [record.digest for record in serial]
    assert {record.status for record in split} == {"ok"}
    assert runners[1].builder.trained_phases == runners[0].builder.trained_phases


@pytest.mark.end_to_end
def test_an_attack_that_ends_hangs_or_shouts_costs_its_own_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rogues.py").write_text(ROGUES)
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib.metadata import EntryPoint, entry_points

    ours = [*entry_points(group="privbench"), EntryPoint("rogues", "rogues", "privbench")]
    names = ["exits", "hangs", "shouts", "hoards", "starves", "metric-loss"]
    grid = {**GRID, "defenses": [], "attacks": names}
    planned = _planned(grid, load(entry_points=ours))
    records = execute(
        PlannedHere(planned, _runner(tmp_path / "s")),
        tmp_path / "out",
        executor=Processes(2, timeout=15.0),
    )
    found = {record.cell.attack.name: record for record in records}
    assert {name: found[name].status for name in names} == {
        "exits": "failed", "hangs": "failed", "shouts": "ok", "hoards": "failed",
        "starves": "ok", "metric-loss": "ok",
    }  # fmt: skip
    assert "status 3" in found["exits"].reason
    assert "15 s" in found["hangs"].reason
    assert "signal 9" in found["hoards"].reason
    assert len(read_all([tmp_path / "out"])) == len(names)


@pytest.mark.end_to_end
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store")}
    script = str(Path(sys.executable).parent / "privbench")
    long = ["--set", "supervised.epochs=100000", "--target", "supervised", "--attack", "lira"]
    parent = subprocess.Popen(
        [script, "run", *long, "--jobs", "2", "--out", str(tmp_path / "out")],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    workers: list[int] = []
    deadline = time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
        servers = [pid for pid in _children(parent.pid) if "forkserver" in _command(pid)]
        workers = [pid for server in servers for pid in _children(server)]
    time.sleep(8)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(_command(pid) for pid in workers) and time.monotonic() < deadline + 30:
        time.sleep(0.5)
    assert len(workers) == 2
    assert not any(_command(pid) for pid in workers)


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_shards_are_disjoint_and_cover_the_grid() -> None:
    planned = _planned(GRID)
    parts = [planned[shard(f"{i}/4")] for i in range(1, 5)]
    together = [item.trial.digest for part in parts for item in part]
    assert sorted(together) == sorted(item.trial.digest for item in planned)
    for wrong in ("0/4", "5/4", "4", "a/b", "1/0"):
        with pytest.raises(BadInputError, match="write I/N"):
            shard(wrong)


@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no server starts workers")
def test_ctrl_c_while_workers_are_prepared_says_one_line(tmp_path: Path) -> None:
    code = ("import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from privbench.cli.main import main; main()")  # fmt: skip
    grid = ["run", "--attack", "metric-loss", "--target", "supervised", "--jobs", "2"]
    run = subprocess.Popen(
        [sys.executable, "-c", code, *grid],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store")}, start_new_session=True,
    )  # fmt: skip
    while run.poll() is None and not any("forkserver" in _command(p) for p in _children(run.pid)):
        time.sleep(0.01)
    time.sleep(0.5)  # it imports torch
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert said.splitlines() == [said.strip()], "a traceback of the server"
    assert "interrupted" in said


@pytest.mark.end_to_end
def test_four_runs_at_once_on_one_store_train_each_thing_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    script = str(Path(sys.executable).parent / "privbench")
    grid = ["--target", "supervised", "--attack", "lira", "--set", "lira.k=2",
            "--set", "supervised.epochs=20"]  # fmt: skip
    running = [
        subprocess.Popen(
            [script, "run", *grid, "--out", str(tmp_path / str(i))],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for i in range(4)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    trained = [int(re.findall(r"(\d+) phases? trained", text)[0]) for text in said]
    there = len(list((tmp_path / "store").glob("phase/*/*/manifest.json")))
    assert sum(trained) == there == 4  # victim, null, two shadows
    digests = {record.digest for record in read_all([tmp_path / str(i) for i in range(4)])}
    assert len(digests) == 1


def test_a_worker_without_code_of_others_refuses_to_load_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "is_of_others", lambda module: module == "decimal")
    sent = pickle.dumps(Decimal(1))
    assert worker._Unpickler(sent, "some code").load() == 1
    with pytest.raises(PluginError, match=r"holds decimal.Decimal, which is code of others"):
        worker._Unpickler(sent, "").load()


def test_a_worker_that_cannot_read_its_node_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "begin", lambda *_: None)  # which is for a process of its own
    ours, theirs = Pipe()
    life, lifeline = Pipe()
    setup = Setup(tmp_path, "cpu", None)
    thread = threading.Thread(target=worker.work, args=(theirs, lifeline, setup, None), daemon=True)
    thread.start()
    for _ in range(2):
        ours.send_bytes(b"cnowhere\nNothing\n.")
        told = ours.recv()
        assert (told.how, told.again) == ("ModuleNotFoundError: No module named 'nowhere'", False)
    ours.close()
    thread.join(10)
    assert not thread.is_alive()
    life.close()
