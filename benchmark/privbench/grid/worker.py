"""A worker, in a process or on a cluster: it makes the nodes that it is given."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from privbench.grid.cell import Trial
from privbench.grid.trial import TrialRunner, reason
from privbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from privbench.grid.graph import Node
    from privbench.training.phase import Progress


@dataclass(frozen=True)
class Setup:
    """Everything that a worker needs to start.

    Attributes:
        store: folder of artifacts.
        device: device on which it computes.
        root: folder of datasets.
        compiled: whether encoders are compiled by torch.compile.
        threads: number of torch's threads.
    """

    store: Path
    device: str
    root: Path | None
    compiled: bool
    threads: int = 1

    def runner(self, progress: Progress) -> TrialRunner:
        """Return a runner with this setup; sets torch's number of threads."""
        import torch

        torch.set_num_threads(self.threads)
        return TrialRunner(
            Store(self.store), torch.device(self.device), root=self.root, progress=progress,
            compiled=self.compiled,
        )  # fmt: skip


@dataclass(frozen=True)
class Begun:
    """The worker has started and begins its node."""


@dataclass(frozen=True)
class Step:
    """Progress of a training phase; see ``Progress``."""

    phase: str
    done: float
    total: int
    rows: int


@dataclass(frozen=True)
class Done:
    """The worker finished its node.

    Attributes:
        seconds: seconds that it took.
        trained_phases: number of phases that it trained.
        record: the record of a trial, as JSON.
        error: why the node could not be made; "" if it was made.
        traceback: traceback of the error.
    """

    seconds: float = 0.0
    trained_phases: int = 0
    record: str = ""
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Lost:
    """The worker died or ran out of memory before it finished its node.

    ``again`` says whether to try once more; the rest as in ``Done``.
    """

    how: str
    again: bool = True
    trained_phases: int = 0
    traceback: str = ""


#: Errors of memory: a second try, alone, may succeed.
_NO_MEMORY = ("MemoryError", "OutOfMemoryError")

Message: TypeAlias = "Begun | Step | Done | Lost"


def make(node: Node, runner: TrialRunner) -> Done | Lost:
    """Make a node; errors are returned as text."""
    given = node.trial
    if Trial(given.cell, given.seed, given.device).digest != given.digest:
        return Done(error="the code changed during the run: run the command again")
    before, begun = runner.builder.trained_phases, time.perf_counter()
    record = error = trace = ""
    try:
        if node.role is None:
            result = runner.run(given)
            record, error, trace = result.model_dump_json(), result.reason, result.traceback
        else:
            runner.make(given, node.role, node.name)
    except BaseException as raised:  # noqa: BLE001 - failure is data
        error, trace = reason(raised), traceback.format_exc()
    trained = runner.builder.trained_phases - before
    if error.startswith(_NO_MEMORY):
        return Lost(error, trained_phases=trained, traceback=trace)
    # A trial's failure is in its record.
    return Done(time.perf_counter() - begun, trained, record, "" if record else error, trace)


class Reporter:
    """Sends progress, at most a few times per second."""

    def __init__(self, send: Callable[[Step], object]) -> None:
        """``send`` passes it on to the display."""
        self.send = send
        self.said = 0.0

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """See ``Progress``."""
        now = time.monotonic()
        if now - self.said > 0.3:  # noqa: PLR2004 - a person reads it
            self.said = now
            self.send(Step(phase, done, total, rows))
