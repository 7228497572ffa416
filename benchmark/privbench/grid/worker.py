"""A worker, in a process or on a cluster: it makes the nodes that it is given."""

from __future__ import annotations

import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from privbench.grid.messages import Done, Lost, PhaseProgress
from privbench.grid.outcome import encodable, reason
from privbench.grid.trial import TrialRunner
from privbench.ground.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.grid.isolated import IsolatedAttack
    from privbench.grid.messages import Node, Setup
    from privbench.measure.training.phase import Progress


def runner_of(
    setup: Setup, progress: Progress, isolated: IsolatedAttack | None = None
) -> TrialRunner:
    """Return a runner with that setup."""
    return TrialRunner(
        Store(setup.store), torch.device(setup.device), root=setup.root, progress=progress,
        numerics=setup.numerics, isolated=isolated,
    )  # fmt: skip


#: Errors of memory: a second try, alone, may succeed.
_NO_MEMORY = ("MemoryError", "OutOfMemoryError")


def make(node: Node, runner: TrialRunner) -> Done | Lost:
    """Make a node; errors are returned as text."""
    trial = node.trial
    if replace(trial).digest != trial.digest:
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
            result = runner.run(trial)
            record, error, trace = result.model_dump_json(), result.reason, result.traceback
            samples = result.unwritten_samples
        else:
            runner.make(trial, node.role, node.name)
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

    def __init__(self, send: Callable[[PhaseProgress], object]) -> None:
        """``send`` passes it on to the display."""
        self.send = send
        self.said = 0.0

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """See ``Progress``."""
        now = time.monotonic()
        if now - self.said > 0.3:  # noqa: PLR2004 - a person reads it
            self.said = now
            self.send(PhaseProgress(phase, done, total, rows))
