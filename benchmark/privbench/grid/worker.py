"""A worker, in a process or on a cluster: it makes the nodes that it is given."""

from __future__ import annotations

import io
import os
import pickle
import signal
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid.isolated import IsolatedAttack
from privbench.grid.messages import CHANGED, Begun, Done, Lost, PhaseProgress
from privbench.grid.origins import is_of_others
from privbench.grid.outcome import encodable, reason
from privbench.grid.server import PATIENCE, begin
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from privbench.grid.messages import Node, Setup
    from privbench.grid.trial import Trial
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


def make(node: Node, trial: Trial, runner: TrialRunner) -> Done | Lost:
    """Make a node for a trial; errors are returned as text."""
    if replace(trial).digest != node.trial:
        return Done(error=CHANGED)
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
    peak = torch.cuda.max_memory_reserved(runner.device) if cuda else 0
    if cuda:
        torch.cuda.empty_cache()  # others share the device
    seconds = time.perf_counter() - begun
    # A trial's failure is in its record.
    return Done(seconds, trained, record, samples, "" if record else error, trace, peak)


class Reporter:
    """Sends progress, at most a few times per second."""

    def __init__(self, send: Callable[[PhaseProgress], object], device: str = "cpu") -> None:
        """``send`` passes it on to the display; on CUDA with the memory that was taken."""
        self.send = send
        self.said = 0.0
        self.cuda = device if device.startswith("cuda") else None

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """See ``Progress``."""
        now = time.monotonic()
        if now - self.said > 0.3:  # noqa: PLR2004 - a person reads it
            self.said = now
            known = self.cuda and done > 1  # an epoch, and what is measured after it
            peak = torch.cuda.max_memory_reserved(self.cuda) if known else None
            self.send(PhaseProgress(phase, done, total, rows, peak))


def work(
    pipe: Connection,
    lifeline: Connection,
    setup: Setup,
    attack_process: tuple[Connection, bool] | None,
) -> None:
    """Be a worker: make nodes until the pipe closes.

    ``attack_process`` holds the arguments of ``IsolatedAttack``.

    The lifeline ends with the parent, and then so does this process, also in the middle of a
    training. When memory runs out, the kernel is told to take a worker rather than the parent.
    """
    begin(lifeline, _leave)
    setup.load_plugins()
    isolated = IsolatedAttack(*attack_process) if attack_process else None
    runner = runner_of(setup, Reporter(pipe.send, setup.device), isolated)
    while True:
        try:
            sent = pipe.recv_bytes()
        except EOFError:
            return
        try:
            node, trial = _Unpickler(sent, setup.code).load()
        except Exception as error:  # noqa: BLE001 - a class that is not found here, for example
            pipe.send(Lost(reason(error), again=False))
            continue
        pipe.send(Begun())
        pipe.send(make(node, trial, runner))


class _Unpickler(pickle.Unpickler):
    """Reads a node; a worker that shall load no code of others refuses to."""

    def __init__(self, sent: bytes, code: str) -> None:
        super().__init__(io.BytesIO(sent))
        self.code = code

    def find_class(self, module: str, name: str) -> Any:
        if not self.code and is_of_others(module):
            raise PluginError(
                f"a method of privbench holds {module}.{name}, which is code of others: give it "
                "plain values"
            )
        return super().find_class(module, name)


def _leave() -> None:
    """End this process, which may write a checkpoint first."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)
