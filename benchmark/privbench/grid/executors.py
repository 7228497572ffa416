"""Executors: run trials in this process, or split them into nodes that workers make."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from privbench.grid.graph import graph
from privbench.grid.messages import Begun, Done, Lost, PhaseProgress, Setup
from privbench.grid.outcome import failed_record
from privbench.grid.schedule import Schedule
from privbench.plugins.plugin_file import loaded_files
from privbench.results.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privbench.grid.cell import Trial
    from privbench.grid.messages import Message, Node
    from privbench.grid.trial import TrialRunner


class Watch(Protocol):
    """Shows the progress of a grid."""

    def trial(self, record: Record, was_there: bool) -> None:
        """A trial is finished; ``was_there`` if its result was kept."""

    def epoch(self, phase: str, done: float, total: int, rows: int, worker: int = 0) -> None:
        """A worker trains; see ``training.phase.Progress``."""

    def idle(self, worker: int) -> None:
        """A worker finished its node."""

    def left(self, seconds: float | None) -> None:
        """The rest of the grid takes about so many seconds; None if unknown."""


class Executor(Protocol):
    """Runs trials here, in processes or on a cluster. Results may come in any order."""

    def run(
        self, trials: Sequence[Trial], runner: TrialRunner, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield the record of every trial as soon as it is finished."""


class Serial:
    """Runs one trial after the other, in this process."""

    def run(
        self, trials: Sequence[Trial], runner: TrialRunner, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield a record for every trial, in order; the runner itself reports training."""
        begun = time.monotonic()
        for i, trial in enumerate(trials, start=1):
            yield runner.run(trial)
            if watch:
                watch.idle(0)
                each = (time.monotonic() - begun) / i
                watch.left(each * (len(trials) - i))


class Workers(ABC):
    """Lets workers make the nodes of the graph.

    Workers never decide what to make, so no two make the same thing and none waits for another. If
    a worker dies, its node is tried once more, if ``alone`` after all others that are ready and
    with none beside it; if it dies again, the node's trials fail.
    Everything finished is in the store, so an interrupted run can continue.

    Attributes:
        timeout: maximum seconds of a trial after its victims are trained; None for no limit.
        alone: whether all workers share one machine's memory, so that a second try needs all of it.
    """

    timeout: float | None
    alone: bool = True

    def run(
        self, trials: Sequence[Trial], runner: TrialRunner, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield the record of every trial as soon as it is finished."""
        if not trials:
            return
        try:
            self.start(
                Setup(runner.store.root, str(runner.device), runner.root, runner.builder.numerics,
                      plugins=loaded_files())
            )  # fmt: skip
            yield from self.work_off(Schedule(graph(trials, runner)), runner, watch)
        finally:
            self.stop()

    def work_off(
        self, schedule: Schedule, runner: TrialRunner, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Let started workers make all nodes of a schedule; yield records as they come."""
        while not schedule.over:
            while self.free() > 0 and (node := schedule.next(self.busy(), alone=self.alone)):
                if not self.fits(node):
                    schedule.wait(node)
                    break
                if node.name in schedule.suspected:
                    self.rest()
                self.give(node)
            for node, worker, message in self.listen():
                if isinstance(message, PhaseProgress) and watch:
                    watch.epoch(message.phase, message.done, message.total, message.rows, worker)
                if isinstance(message, Begun | PhaseProgress):
                    continue
                runner.builder.trained_phases += message.trained_phases
                yield from _settled(schedule, node, message, runner)
                if watch:
                    watch.idle(worker)
                    watch.left(schedule.seconds_left(max(self.free() + self.busy(), 1)))

    def overdue(self, node: Node, begun: float | None) -> bool:
        """Return whether a trial that began at ``begun`` (``time.monotonic``) exceeds the limit."""
        if self.timeout is None or begun is None or node.role is not None:
            return False
        return time.monotonic() - begun > self.timeout

    def stopped(self) -> Lost:
        """Return the message for a trial that was stopped at the limit."""
        return Lost(f"stopped after {self.timeout:g} s, the limit of --timeout", again=False)

    @abstractmethod
    def start(self, setup: Setup) -> None:
        """Prepare; called once, before anything else."""

    @abstractmethod
    def free(self) -> int:
        """Return how many more nodes can be made at the same time."""

    @abstractmethod
    def busy(self) -> int:
        """Return how many nodes are being made."""

    def fits(self, node: Node) -> bool:
        """Whether there is memory for the node now; if not, it waits until another is over."""
        del node
        return True

    def rest(self) -> None:
        """Free the memory of idle workers: the next node needs all of it."""
        return

    @abstractmethod
    def give(self, node: Node) -> None:
        """Give a node to a worker."""

    @abstractmethod
    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """Wait briefly; yield messages of workers: node, number of the worker from 0, message."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers at once, even busy ones."""


def _settled(
    schedule: Schedule, node: Node, message: Done | Lost, runner: TrialRunner
) -> Iterator[Record]:
    """Yield the records of the trials that a finished node decides."""
    if isinstance(message, Lost):
        lost = schedule.died(node, again=message.again)
        for trial in lost:
            yield failed_record(trial, message.how, runner.device, message.traceback)
    elif message.error:
        for trial in schedule.given_up(node):
            yield failed_record(trial, message.error, runner.device, message.traceback)
    else:
        schedule.done(node, message.seconds)
        if message.record:
            record = Record.model_validate_json(message.record)
            if message.samples:
                record.attach(message.samples)
            yield record
