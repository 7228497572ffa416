"""Executors: run trials in this process, or split them into nodes that workers make."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from privbench.grid.messages import CHANGED, Begun, Done, Lost, PhaseProgress
from privbench.grid.schedule import Schedule
from privbench.grid.undone import failed
from privbench.results.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privbench.grid.messages import Message, Node, Setup
    from privbench.grid.planned import Planned


#: Nodes that a worker makes before it is replaced by a fresh one, which bounds its memory.
NODES_PER_WORKER = 500


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
        self, planned: Planned, todo: Sequence[str], watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield the record of each trial as soon as it is finished.

        Args:
            planned: the trials.
            todo: digests of those that are to run.
            watch: shows progress.
        """


class Serial:
    """Runs one trial after the other, in this process, which has planned them."""

    def run(
        self, planned: Planned, todo: Sequence[str], watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield a record for every trial, in order; the runner itself reports training."""
        here: Any = planned  # a ``PlannedHere``
        begun = time.monotonic()
        for i, digest in enumerate(todo, start=1):
            yield here.run(digest)
            if watch:
                watch.idle(0)
                each = (time.monotonic() - begun) / i
                watch.left(each * (len(todo) - i))


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
        self, planned: Planned, todo: Sequence[str], watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield the record of each trial as soon as it is finished; see ``Executor``."""
        if not todo:
            return
        try:
            self.start(planned.setup)
            yield from self.work_off(Schedule(planned.nodes(todo)), planned, watch)
        finally:
            self.stop()

    def work_off(
        self, schedule: Schedule, planned: Planned, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Let started workers make all nodes of a schedule; yield records as they come."""
        while not schedule.over:
            while self.free() > 0 and (node := schedule.next(self.busy(), alone=self.alone)):
                if not self.fits(node):
                    schedule.wait(node)
                    break
                if node.name in schedule.suspected:
                    self.rest()
                self.give(node, planned)
            for node, worker, message in self.listen():
                if isinstance(message, PhaseProgress) and watch:
                    watch.epoch(message.phase, message.done, message.total, message.rows, worker)
                if isinstance(message, Begun | PhaseProgress):
                    continue
                planned.trained_phases += message.trained_phases
                yield from _settled(schedule, node, message, planned)
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
    def give(self, node: Node, planned: Planned) -> None:
        """Give a node to a worker, as the plan packs it."""

    @abstractmethod
    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """Wait briefly; yield messages of workers: node, number of the worker from 0, message."""

    @abstractmethod
    def stop(self) -> None:
        """End all workers at once, even busy ones."""


def _settled(
    schedule: Schedule, node: Node, message: Done | Lost, planned: Planned
) -> Iterator[Record]:
    """Yield the records of the trials that a finished node decides."""
    if isinstance(message, Lost):
        for digest in schedule.died(node, again=message.again):
            yield failed(planned.blank(digest), message.how, message.traceback)
    elif message.error:
        for digest in schedule.given_up(node):
            yield failed(planned.blank(digest), message.error, message.traceback)
    else:
        schedule.done(node, message.seconds)
        if message.record:
            record = Record.model_validate_json(message.record)
            if record.trial != node.trial:
                record = failed(planned.blank(node.trial), CHANGED)
            elif message.samples:
                record.attach(message.samples)
            yield record
