"""A worker, in a process or on a cluster: it makes the nodes that it is given."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from privbench.grid.outcome import encodable, reason
from privbench.grid.trial import TrialRunner
from privbench.ground.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from privbench.grid.graph import Node
    from privbench.grid.isolated import Apart
    from privbench.measure.training.phase import Progress
    from privbench.plugins.plugin_file import PluginFile


@dataclass(frozen=True)
class Setup:
    """Everything that a worker needs to start.

    Attributes:
        store: folder of artifacts.
        device: device on which it computes.
        root: folder of datasets.
        compiled: whether encoders are compiled by torch.compile.
        threads: number of threads of each node.
        plugins: plugins that are single files, and loaded before anything is unpickled.
    """

    store: Path
    device: str
    root: Path | None
    compiled: bool
    threads: int = 1
    plugins: tuple[PluginFile, ...] = ()

    def load_plugins(self) -> None:
        """Load plugin files, so that what names their classes can be unpickled."""
        for file in self.plugins:
            file.load()

    def runner(self, progress: Progress, apart: Apart | None = None) -> TrialRunner:
        """Return a runner with this setup."""
        return TrialRunner(
            Store(self.store), torch.device(self.device), root=self.root, progress=progress,
            compiled=self.compiled, threads=self.threads, apart=apart,
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
        samples: its per-sample scores; b"" for none.
        error: why the node could not be made; "" if it was made.
        traceback: traceback of the error.
        peak_bytes: most memory that it took on a CUDA device; 0 on the CPU.
    """

    seconds: float = 0.0
    trained_phases: int = 0
    record: str = ""
    samples: bytes = b""
    error: str = ""
    traceback: str = ""
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Lost:
    """The worker died or ran out of memory before it finished its node.

    ``again`` says whether to try once more; the rest as in ``Done``.
    """

    how: str
    again: bool = True
    trained_phases: int = 0
    traceback: str = ""
    peak_bytes: int | None = None


#: Errors of memory: a second try, alone, may succeed.
_NO_MEMORY = ("MemoryError", "OutOfMemoryError")

Message: TypeAlias = "Begun | Step | Done | Lost"


def make(node: Node, runner: TrialRunner) -> Done | Lost:
    """Make a node; errors are returned as text."""
    given = node.trial
    if replace(given).digest != given.digest:
        return Done(error="the code changed during the run: run the command again")
    cuda = runner.device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(runner.device)
    before, begun = runner.builder.trained_phases, time.perf_counter()
    record = error = trace = ""
    samples = b""
    try:
        if node.role is None:
            result = runner.run(given)
            record, error, trace = result.model_dump_json(), result.reason, result.traceback
            samples = result.unwritten_samples
        else:
            runner.make(given, node.role, node.name)
    except BaseException as raised:  # noqa: BLE001 - failure is data
        error, trace = reason(raised), encodable(traceback.format_exc())
    trained = runner.builder.trained_phases - before
    if error.startswith(_NO_MEMORY):
        return Lost(error, trained_phases=trained, traceback=trace)
    # A trial's failure is in its record.
    peak = torch.cuda.max_memory_reserved(runner.device) if cuda else 0
    if cuda:
        torch.cuda.empty_cache()  # others share the device
    seconds = time.perf_counter() - begun
    return Done(seconds, trained, record, samples, "" if record else error, trace, peak)


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
