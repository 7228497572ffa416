"""An attack in a process of its own, which holds neither the truth nor the victim's members."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import traceback
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from privbench.grid.outcome import reason
from privbench.grid.plugins import strangers
from privbench.grid.server import begin
from privbench.ground.errors import AnswerError
from privbench.measure.training.process_state import threads
from privbench.plugins.canary import refuse_changed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from torch import Tensor

    from privbench.grid.messages import Setup
    from privbench.measure.methods.context import Shadow
    from privbench.measure.victims.play import Match


class RemoteTraceback(Exception):  # noqa: N818 - as in multiprocessing and concurrent.futures
    """The traceback of an error in the attack's process."""

    def __str__(self) -> str:
        """Return the text of the traceback."""
        return str(self.args[0])


class IsolatedAttack:
    """The process in which the attacks of a worker answer, as the worker sees it.

    Attributes:
        peak: most bytes of memory that it took so far.
    """

    def __init__(self, pipe: Connection, pid: int) -> None:
        """``pipe`` leads to the process with that number."""
        self.pipe = pipe
        self.peak = 0
        self._ended = os.pidfd_open(pid)

    def answer(
        self, match: Match, shadows: tuple[Shadow, ...]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Let the attack of a match answer; return what ``match.answer`` returns.

        The process gets the question, the adversary's rows and models, and the victim without its
        world. What comes back is data, never code. If the process ends, so does this one: the
        parent then tries the node once more.

        Raises:
            AnswerError: what went wrong in the process.
        """
        from safetensors.torch import load

        # A new instance: whatever the attack has noted on itself here stays here.
        cell = replace(match.cell, attack=match.cell.attack.replace())
        try:
            self.pipe.send_bytes(pickle.dumps((replace(match, cell=cell), shadows)))
            if self.pipe not in wait([self.pipe, self._ended]):
                os._exit(1)
            told = json.loads(self.pipe.recv_bytes())
            tensors = load(self.pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
        self.peak = max(self.peak, told["peak"])
        match.train.builder.trained_phases += told["trained"]
        if told["error"]:
            raise AnswerError(told["error"]) from RemoteTraceback(told["trace"])
        return tensors, told["facts"]


def answer_isolated(pipe: Connection, lifeline: Connection, setup: Setup) -> None:
    """Be the process in which attacks answer: until the pipe closes or the parent ends.

    Args:
        pipe: from the worker.
        lifeline: ends with the parent of all workers.
        setup: number of threads, and plugin files.
    """
    from safetensors.torch import save

    os.setpgid(0, 0)  # what an attack starts ends with it
    begin(lifeline, partial(os.killpg, 0, signal.SIGKILL))
    setup.load_plugins()
    while True:
        try:
            work = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        told: dict[str, Any] = {"error": "", "trace": "", "facts": {}, "trained": 0}
        tensors: Mapping[str, Tensor] = {}
        try:
            match, shadows = pickle.loads(work)  # noqa: S301 - from the worker
            refuse_changed()
            with threads(setup.threads):
                tensors, told["facts"] = match.answer(shadows)
            refuse_changed(strangers(match.cell))
            told["trained"] = match.train.builder.trained_phases
            json.dumps(told)
        except BaseException as error:  # noqa: BLE001 - failure is data
            told |= {"facts": {}, "error": reason(error), "trace": traceback.format_exc()}
            tensors = {}
        told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        pipe.send_bytes(json.dumps(told).encode())
        pipe.send_bytes(save({name: t.cpu().contiguous() for name, t in tensors.items()}))
