"""Trials in several processes: the parent plans and schedules, workers make nodes.

Workers never decide what to make, so no two make the same thing. A worker that dies takes one node
with it: that node is tried once more, alone, and then fails as data. What is finished is in the
store, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from types import ModuleType
from typing import TYPE_CHECKING, Any

from privbench.boards.records import Record
from privbench.grid.graph import Node, depths, graph
from privbench.grid.trial import failed_record
from privbench.grid.worker import Begun, Done, Setup, Step, work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from privbench.grid.cell import Trial
    from privbench.grid.trial import TrialRunner

#: Nodes that a worker makes before it is replaced by a fresh one, which bounds its memory.
NODES_PER_WORKER = 500


@dataclass
class _Worker:
    """A process and what it is making."""

    process: Any
    pipe: Connection
    lifeline: Connection
    node: Node | None = None
    begun: float = math.inf
    made: int = 0


@dataclass
class Processes:
    """Runs trials in worker processes on this machine.

    Attributes:
        jobs: how many workers.
        timeout: seconds that one trial may take once its victims are trained; None for no limit.
    """

    jobs: int
    timeout: float | None = None
    _workers: list[_Worker] = field(default_factory=list)
    _unsent: list[tuple[Node, str]] = field(default_factory=list)

    def run(self, trials: Sequence[Trial], runner: TrialRunner) -> Iterator[Record]:
        """Yield a record for every trial as it is done."""
        if not trials:
            return
        schedule = _Schedule(graph(trials, runner))
        setup = Setup(
            runner.store.root, str(runner.device), runner.root, runner.builder.compiled, threads=1,
        )  # fmt: skip
        try:
            while not schedule.over:
                self._hand_out(schedule, setup)
                for lost, why in self._unsent:
                    yield from _failed(schedule.given_up(lost), why, runner)
                self._unsent.clear()
                for worker, message in self._listen():
                    yield from self._settle(schedule, worker, message, runner)
        finally:
            self._stop()

    def _settle(
        self, schedule: _Schedule, worker: _Worker, message: Any, runner: TrialRunner
    ) -> Iterator[Record]:
        """Take note of what a worker says, or of how it ended; yield the records that follow."""
        progress = runner.builder.progress
        if isinstance(message, Begun):
            worker.begun = time.monotonic()
            return
        if isinstance(message, Step):
            if progress:
                progress.epoch(message.phase, message.done, message.total)
            return
        node, worker.node = worker.node, None
        assert node is not None  # noqa: S101 - a worker speaks of what it was given
        if not isinstance(message, Done):
            yield from _failed(schedule.died(node, message), message, runner)
            return
        runner.builder.trained_phases += message.trained_phases
        worker.made += 1
        if message.error:
            yield from _failed(schedule.given_up(node), message.error, runner)
            return
        schedule.done(node)
        if message.record:
            yield Record.model_validate_json(message.record)

    def _hand_out(self, schedule: _Schedule, setup: Setup) -> None:
        """Give ready nodes to idle workers; a node that killed a worker runs alone."""
        self._workers = [w for w in self._workers if w.process.is_alive() or w.node]
        for worker in [w for w in self._workers if not w.node and w.made >= NODES_PER_WORKER]:
            self._end(worker)
        busy = sum(worker.node is not None for worker in self._workers)
        while node := schedule.next(busy):
            idle = next((worker for worker in self._workers if worker.node is None), None)
            if idle is None and len(self._workers) >= self.jobs:
                schedule.put_back(node)
                return
            worker = idle or self._start(setup)
            worker.node, worker.begun = node, math.inf
            busy += 1
            try:
                worker.pipe.send(node)
            except OSError:
                continue  # it died while idle: _listen hears of it
            except Exception as error:  # noqa: BLE001 - whatever pickling a plugin's class raises
                worker.node = None
                busy -= 1
                self._unsent.append((node, f"it cannot be sent to a worker process: {error}"))

    def _start(self, setup: Setup) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        life_ours, life_theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, life_theirs, setup), daemon=True)
        with _as_child(setup.threads):
            process.start()
        theirs.close()
        life_theirs.close()
        worker = _Worker(process, ours, life_ours)
        self._workers.append(worker)
        return worker

    def _listen(self) -> Iterator[tuple[_Worker, Any]]:
        """Messages of busy workers: what they say, or in words how they ended."""
        busy = [worker for worker in self._workers if worker.node]
        told: list[Any] = [worker.pipe for worker in busy]
        told += [worker.process.sentinel for worker in busy]
        ready = set(wait(told, timeout=1.0))
        for worker in busy:
            ended = worker.process.sentinel in ready
            try:
                while worker.node and worker.pipe.poll():
                    yield worker, worker.pipe.recv()
            except (EOFError, OSError):
                ended = True
            if worker.node and ended:
                worker.process.join(5)
                if worker.process.exitcode is None:  # its pipe closed, and yet it goes on
                    worker.process.kill()
                    worker.process.join()
                yield worker, _how(worker.process.exitcode)
            elif worker.node and worker.node.role is None and self._late(worker):
                self._end(worker)
                yield worker, f"stopped after {self.timeout:g} s, the limit of --timeout"

    def _late(self, worker: _Worker) -> bool:
        return self.timeout is not None and time.monotonic() - worker.begun > self.timeout

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.lifeline.close()
        if worker in self._workers:
            self._workers.remove(worker)

    def _stop(self) -> None:
        for worker in list(self._workers):
            self._end(worker)


class _Schedule:
    """Which node is next: longest path first; once more, alone, for one that killed a worker."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.left = {name: set(node.needs) for name, node in nodes.items()}
        self.needed_by: dict[str, list[str]] = {}
        for node in nodes.values():
            for needed in node.needs:
                self.needed_by.setdefault(needed, []).append(node.name)
        depth, order = depths(nodes), {name: i for i, name in enumerate(nodes)}
        self.rank = {name: (-depth[name], order[name]) for name in nodes}
        self.ready = {name for name, needs in self.left.items() if not needs}
        self.pending = set(nodes)
        self.suspects: set[str] = set()  # killed a worker once

    @property
    def over(self) -> bool:
        """Whether every node is made or given up."""
        return not self.pending

    def next(self, busy: int) -> Node | None:
        """The node to make now, if any; suspects wait until all other workers are idle."""
        alone = [name for name in self.ready if name in self.suspects]
        open_to_all = self.ready - self.suspects
        if open_to_all:
            chosen = min(open_to_all, key=self.rank.__getitem__)
        elif alone and not busy:
            chosen = alone[0]
        else:
            return None
        self.ready.discard(chosen)
        return self.nodes[chosen]

    def put_back(self, node: Node) -> None:
        """Return a node to the queue: no worker was free."""
        self.ready.add(node.name)

    def done(self, node: Node) -> None:
        """A node is made."""
        self.pending.discard(node.name)
        for name in self.needed_by.get(node.name, ()):
            self.left[name].discard(node.name)
            if not self.left[name] and name in self.pending:
                self.ready.add(name)

    def died(self, node: Node, how: str) -> list[Trial]:
        """A worker died over a node. Try once more, then give up the trials that need it."""
        if node.name not in self.suspects and "--timeout" not in how:
            self.suspects.add(node.name)
            self.ready.add(node.name)
            return []
        return self.given_up(node)

    def given_up(self, node: Node) -> list[Trial]:
        """Give up a node and all that needs it; the trials among them."""
        lost, todo = set[str](), [node.name]
        while todo:
            name = todo.pop()
            if name in self.pending:
                lost.add(name)
                self.pending.discard(name)
                self.ready.discard(name)
                todo += self.needed_by.get(name, ())
        return [self.nodes[name].trial for name in self.nodes
                if name in lost and self.nodes[name].role is None]  # fmt: skip


@contextlib.contextmanager
def _as_child(threads: int) -> Iterator[None]:
    """What a child inherits: its number of threads, and no script to run again.

    Spawned processes import the script that started the run. Workers need nothing of it, and a
    script without a guard would start the run again in each of them.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    script = sys.modules["__main__"]
    try:
        os.environ.update(dict.fromkeys(names, str(threads)))
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = script
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _failed(trials: Sequence[Trial], why: str, runner: TrialRunner) -> Iterator[Record]:
    return (failed_record(trial, why, runner.device) for trial in trials)


def _how(status: int | None) -> str:
    """How a worker ended, twice, in words."""
    if status is not None and status < 0:
        killed = f"by signal {-status}"
        memory = " (often: out of memory)" if status == -9 else ""  # noqa: PLR2004 - SIGKILL
        return f"its worker process was killed {killed}{memory}, twice"
    return f"its worker process ended with status {status}, twice"
