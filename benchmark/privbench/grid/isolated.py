"""An attack in a process of its own, which holds neither the truth nor the victim."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass, fields, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import TYPE_CHECKING, Any

from privbench.grid.line import Answering, Line, RemoteOracle, RemoteSiblings, receive, send
from privbench.grid.origins import code_of, of_others, others_in
from privbench.grid.outcome import reason
from privbench.grid.sealed import SealedAttack
from privbench.grid.server import begin
from privbench.ground.errors import AnswerError
from privbench.ground.store.canonical import canonical
from privbench.ground.store.machine import peak_memory
from privbench.ground.store.store import Store
from privbench.measure.training.process_state import threads
from privbench.measure.victims.play import Match
from privbench.plugins.canary import refuse_changed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.grid.messages import Setup
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.context import Shadow


_PDEATHSIG = 1  # PR_SET_PDEATHSIG of prctl(2)


class RemoteTraceback(Exception):  # noqa: N818 - as in multiprocessing and concurrent.futures
    """The traceback of an error in the attack's process."""

    def __str__(self) -> str:
        """Return the text of the traceback."""
        return str(self.args[0])


class IsolatedAttack:
    """The process that starts one for each answer, as the worker sees it.

    Attributes:
        peak: most bytes of memory that an answer took so far.
    """

    def __init__(self, pipe: Connection, every: bool) -> None:
        """``pipe`` leads to the process.

        It takes ``every`` attack, or else those of other packages.
        """
        self.pipe, self._every = pipe, every
        self.peak = 0

    def takes(self, attack: Attack) -> bool:
        """Whether the attack answers there."""
        return self._every or of_others(attack)

    def answer(
        self, match: Match, shadows: tuple[Shadow, ...]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Let the attack of a match answer; return what ``match.answer`` returns.

        The process gets the question and the adversary's rows and models. The victim stays here:
        the attack asks it over a line of its own, so nothing that another attack left behind can
        speak on it. What comes back is data, never code. If the process ends, so does this one: the
        parent then tries the node once more.

        Raises:
            AnswerError: what went wrong in the process.
        """
        # A new instance: whatever the attack has noted on itself here stays here.
        cell = replace(match.cell, attack=match.cell.attack.replace())
        answering = Answering(match)
        absent: Any = None
        asks = replace(match, cell=cell, served=absent, auxiliary_served=absent)
        code, who = code_of(cell, with_sealed=True), others_in(cell)
        try:
            sent = pickle.dumps((code, who, asks, shadows, answering.described))
        except Exception as error:
            raise AnswerError(
                f"what {cell.attack.name} needs cannot be sent to its process: {error}; let models "
                "hold what pickle can write, or run it with --executor serial"
            ) from error
        try:
            told, tensors = self._answered(sent, answering)
        except BaseException:  # noqa: BLE001 - it ended, or who speaks next is unknown
            os._exit(1)
        self.peak = max(self.peak, told["peak"])
        match.train.builder.trained_phases += told["trained"]
        if told["error"]:
            raise AnswerError(told["error"]) from RemoteTraceback(told["trace"])
        given = getattr(match.question, "embeddings", None)
        asked, *own = answering.queries
        return tensors, {
            "notes": told["facts"]["notes"],
            "queries": asked + (0 if given is None else len(given)),
            "queries_own": sum(own),
        }

    def _answered(
        self, sent: bytes, answering: Answering
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Start the process of an answer, reply to what it asks, and return its last word.

        Raises:
            EOFError, OSError: if it ends before.
        """
        ours, theirs = Pipe()
        with ours, theirs:
            self.pipe.send_bytes(sent)
            send_handle(self.pipe, theirs.fileno(), None)
            theirs.close()
            while ours in wait([ours, self.pipe]):  # the other one is ready when it ends
                told, tensors = receive(ours)
                if "ask" not in told:
                    return told, tensors
                send(ours, *answering.reply(told, tensors))
        raise EOFError


@dataclass(frozen=True)
class _RemoteMatch(Match):
    """A match whose victim stays with the worker."""

    line: Any = None
    described: Any = None

    def oracles(self) -> Any:
        """What the attack asks, over the line."""
        card, access, own = self.described
        return RemoteOracle(self.line, 0, card, access), RemoteSiblings(self.line, card, own)


def answer_isolated(pipe: Connection, lifeline: Connection, setup: Setup) -> None:
    """Start a process for each answer, until the pipe closes or the parent ends.

    So no attack finds what an earlier answer left in memory. This process computes nothing. What an
    attack starts ends with it, unless it begins a session of its own.

    Args:
        pipe: from the worker.
        lifeline: ends with the parent of all workers.
        setup: number of threads, and plugin files.
    """
    os.setpgid(0, 0)
    begin(lifeline, partial(os.killpg, 0, signal.SIGKILL))
    while True:
        try:
            work = pipe.recv_bytes()
            line = Connection(recv_handle(pipe))
        except (EOFError, OSError):
            return
        said = mmap.mmap(-1, 1)  # shared: whether the child has answered
        child = os.fork()
        if child == 0:
            pipe.close()
            with contextlib.suppress(BaseException):
                os.setpgid(0, 0)
                begin(lifeline, partial(os.killpg, 0, signal.SIGKILL))
                _end_with_parent()
                _answer_once(Line(line), setup, work)
                said[0] = 1
                sys.stdout.flush()
            os._exit(0)
        line.close()
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        if not said[0]:
            if os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            os._exit(os.WEXITSTATUS(status) or 1)


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, whatever code runs here; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def _answer_once(line: Line, setup: Setup, work: bytes) -> None:
    """Let one attack answer."""
    told: dict[str, Any] = {"error": "", "trace": "", "facts": {}, "trained": 0}
    tensors: Mapping[str, Tensor] = {}
    try:
        setup.load_plugins()
        Store.code, who, match, shadows, described = pickle.loads(work)  # noqa: S301 - from the worker
        attack = match.cell.attack
        if isinstance(attack, SealedAttack):
            match = replace(match, cell=replace(match.cell, attack=attack.opened()))
        given = {field.name: getattr(match, field.name) for field in fields(match)}
        match = _RemoteMatch(**given, line=line, described=described)
        refuse_changed(who)
        with threads(setup.threads):
            tensors, told["facts"] = match.answer(shadows)
        refuse_changed(who)
        told["trained"] = match.train.builder.trained_phases
        canonical(told["facts"]["notes"])  # names what JSON cannot hold
    except BaseException as error:  # noqa: BLE001 - failure is data
        told |= {"facts": {}, "error": reason(error), "trace": traceback.format_exc()}
        tensors = {}
    told["peak"] = peak_memory()
    line.end(told, tensors)
