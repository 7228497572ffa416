"""The process that worker processes are forked from: it has imported what they need.

torch is not imported here, so the server can begin to import it before this process does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from privbench.grid.messages import Setup

#: What workers find imported. All but the first are imported late, at the first training, dataset
#: or attack, and would otherwise be imported once in each worker.
PRELOADED = (
    "privbench.grid.worker", "torch._dynamo", "safetensors.torch", "sklearn.datasets",
    "sklearn.decomposition", "sklearn.linear_model",
)  # fmt: skip
#: Seconds that a worker has to write a checkpoint after SIGTERM.
PATIENCE = 10.0


def start_server(threads: int, preloaded: Sequence[str] = PRELOADED) -> Any:
    """Start the server, unless it runs; return the context that starts processes.

    A process that came from the server uses the same server. Ctrl-C is left to this process, also
    while the server imports.

    Args:
        threads: number of threads of each worker.
        preloaded: modules that it imports, unless it runs.
    """
    if sys.platform != "linux":  # where a fork is not safe
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    if forkserver.get_inherited_fds() is None:
        resource_tracker.ensure_running()  # it would let Ctrl-C through again
        with as_child(threads):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                forkserver.ensure_running()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    elif sys.version_info < (3, 14):  # Python would start another one; later versions want a key
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]  # noqa: SLF001
    return context


def start(context: Any, threads: int, function: str, *args: Any) -> Any:
    """Start a process, and return it; what it runs is not imported here.

    Args:
        context: of ``start_server``.
        threads: of the process.
        function: as ``module:name``.
        args: of the function.
    """
    process = context.Process(target=_run, args=(function, *args))
    with as_child(threads):
        process.start()
    return process


def _run(function: str, *args: Any) -> None:
    named_function(function)(*args)


def named_function(name: str) -> Any:
    """Return what ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def start_isolated(context: Any, setup: Setup, lifeline: Connection) -> tuple[Connection, Any]:
    """Start the process that starts one for each answer; return the pipe to it, and it.

    Args:
        context: of ``start_server``.
        setup: number of threads, and plugin files.
        lifeline: ends with the parent of all workers.
    """
    ours, theirs = context.Pipe()
    answers = "privbench.grid.isolated:answer_isolated"
    process = start(context, setup.threads, answers, theirs, lifeline, setup)
    theirs.close()
    return ours, process


def begin(lifeline: Connection, end: Callable[[], object]) -> None:
    """Prepare a process that was started here.

    Ctrl-C is left to the parent. When memory runs out, the kernel takes this process first.

    Args:
        lifeline: never written to: it ends with the parent.
        end: ends this process, also in the middle of its work; called when the lifeline ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(lifeline, end), daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _watch(lifeline: Connection, end: Callable[[], object]) -> None:
    try:
        lifeline.recv()
    except (EOFError, OSError):
        end()


@contextlib.contextmanager
def as_child(threads: int) -> Iterator[None]:
    """What a child inherits: its number of threads, and no script to run again.

    Started processes import the script that started the run. Workers need nothing of it, and a
    script without a guard would start the run again in each of them.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    script = sys.modules["__main__"]
    try:
        os.environ.update(dict.fromkeys(names, str(threads)))
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = script
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
