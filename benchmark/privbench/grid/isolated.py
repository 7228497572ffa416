"""An attack in a process of its own, which holds neither the truth nor the victim's members."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

from privbench.training.process_state import threads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from torch import Tensor

    from privbench.methods.context import Shadow
    from privbench.victims.play import Match


class RemoteTraceback(Exception):  # noqa: N818 - as in multiprocessing and concurrent.futures
    """The traceback of an error in the attack's process."""

    def __str__(self) -> str:
        """Return the text of the traceback."""
        return str(self.args[0])


def answer_apart(
    match: Match, shadows: tuple[Shadow, ...]
) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Let the attack of a match answer in a new process; return what ``match.answer`` returns.

    The process gets the question, the adversary's rows and models, and the victim without its
    world. It ends when it has answered, or with this process.

    Raises:
        MemoryError: if it was killed, as the kernel does when memory runs out.
        ChildProcessError: if it ended in another way before it answered.
        Exception: what the attack raises.
    """
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    life_ours, life_theirs = context.Pipe()
    work = pickle.dumps((match, shadows))
    builder = match.train.builder
    process = context.Process(target=_answer, args=(theirs, life_theirs, builder.threads))
    process.start()
    theirs.close()
    life_theirs.close()
    try:
        ours.send_bytes(work)
        error, trace, made, trained = pickle.loads(ours.recv_bytes())  # noqa: S301 - of our child
    except (EOFError, OSError):
        process.join(5)
        raise _ended(process.exitcode) from None
    finally:
        life_ours.close()
        process.kill()
        process.join()
    builder.trained_phases += trained
    if error is not None:
        raise error from RemoteTraceback(trace)
    return made  # type: ignore[no-any-return]


def _ended(status: int | None) -> BaseException:
    if status == -signal.SIGKILL:
        return MemoryError("the attack's process was killed by signal 9 (often: out of memory)")
    return ChildProcessError(f"the attack's process ended with status {status}")


def _answer(pipe: Connection, lifeline: Connection, count: int) -> None:
    """Answer once, in the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    error: BaseException | None = None
    trace, made, trained = "", None, 0
    try:
        match, shadows = pickle.loads(pipe.recv_bytes())  # noqa: S301 - of our parent
        with threads(count):
            made = match.answer(shadows)
        trained = match.train.builder.trained_phases
    except BaseException as raised:  # noqa: BLE001 - it is raised again in the parent
        error, trace = raised, traceback.format_exc()
    try:
        pipe.send_bytes(pickle.dumps((error, trace, made, trained)))
    except Exception:  # noqa: BLE001 - an error that cannot be sent as it is
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        pipe.send_bytes(pickle.dumps((plain, trace, None, trained)))


def _die_with_parent(lifeline: Connection) -> None:
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)
