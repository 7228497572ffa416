"""A worker process: makes the nodes that the parent sends, and stores the results."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.grid.cell import Trial
from privbench.grid.trial import reason

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from privbench.grid.graph import Node
    from privbench.grid.trial import TrialRunner


@dataclass(frozen=True)
class Setup:
    """All that a worker needs to begin.

    Attributes:
        store: folder of artifacts.
        device: where it computes.
        root: folder of data sets.
        compiled: whether encoders go through torch.compile.
        threads: of torch.
    """

    store: Path
    device: str
    root: Path | None
    compiled: bool
    threads: int


@dataclass(frozen=True)
class Done:
    """A node is made. ``record`` is JSON for a trial; ``error`` says why it could not be made."""

    name: str
    trained_phases: int = 0
    record: str = ""
    error: str = ""


@dataclass(frozen=True)
class Begun:
    """The worker is up and begins with its node."""


@dataclass(frozen=True)
class Step:
    """How far a phase of training is."""

    phase: str
    done: int
    total: int


def work(pipe: Connection, lifeline: Connection, setup: Setup) -> None:
    """Make nodes until the pipe closes.

    ``lifeline`` is never written to: it ends with the parent, and then so does this process, also
    in the middle of a training.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    import torch

    from privbench.grid.trial import TrialRunner
    from privbench.store.store import Store

    torch.set_num_threads(setup.threads)
    runner = TrialRunner(
        Store(setup.store), torch.device(setup.device), root=setup.root,
        progress=_Reporter(pipe), compiled=setup.compiled,
    )  # fmt: skip
    while True:
        try:
            node: Node | None = pipe.recv()
        except EOFError:
            return
        if node is None:
            return
        pipe.send(Begun())
        before = runner.builder.trained_phases
        done = make(node, runner)
        pipe.send(Done(done.name, runner.builder.trained_phases - before, done.record, done.error))


def make(node: Node, runner: TrialRunner) -> Done:
    """Make a node; what goes wrong comes back as text."""
    given = node.trial
    if Trial(given.cell, given.seed, given.device).digest != given.digest:
        return Done(node.name, error="the code changed during the run: run the command again")
    try:
        if node.role is None:
            return Done(node.name, record=runner.run(given).model_dump_json())
        runner.make(given, node.role, node.name)
    except BaseException as error:  # noqa: BLE001 - failure is data
        return Done(node.name, error=reason(error))
    return Done(node.name)


def _die_with_parent(lifeline: Connection) -> None:
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)


class _Reporter:
    """Sends progress, a few times a second at most."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.said = 0.0

    def epoch(self, phase: str, done: int, total: int) -> None:
        """``done`` of ``total`` epochs of that phase are over."""
        now = time.monotonic()
        if done == total or now - self.said > 0.3:  # noqa: PLR2004 - a person reads it
            self.said = now
            self.pipe.send(Step(phase, done, total))


__all__ = ["Begun", "Done", "Setup", "Step", "make", "work"]
