"""A plan in a process of its own: methods of other packages are imported there, and not here.

This process schedules, scores nothing, and writes the results. What it hears from the other one is
numbers and text, never objects of its classes and never code.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import os
import pickle
import sys
import traceback
import warnings
from dataclasses import fields, is_dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from privbench.grid.messages import Node, Packed, Role, Setup
from privbench.grid.planned import Item
from privbench.grid.server import begin, named_function, start, start_server
from privbench.ground.errors import (
    AccessDeniedError,
    BadInputError,
    PluginError,
    PrivbenchError,
    UnknownNameError,
    WriteError,
)
from privbench.ground.judges import Wanted
from privbench.plugins import registry
from privbench.plugins.plugin_file import PluginFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from multiprocessing.connection import Connection

    from privbench.plugins.registry import Choice

#: What is made here of the values of their fields.
_KINDS = {kind.__name__: kind for kind in (Item, Node, Packed, PluginFile, Role, Setup, Wanted)}
#: Errors that keep their class, the special ones first.
_ERRORS = (UnknownNameError, BadInputError, PluginError, AccessDeniedError)
_PATIENCE = 2.0  # seconds until the process has ended by itself


def is_planned_apart(
    names: Iterable[tuple[str, str]] | None, chosen: Sequence[Choice], executor: str | None
) -> bool:
    """Whether a plan may import code of other packages, so that it is made in another process.

    Args:
        names: kind and name of all methods, "" for any kind; None if all are needed.
        chosen: plugins: files are imported whatever is named, and another package may stand in for
            one that is switched off.
        executor: that was asked for: ``serial`` runs all in this process.
    """
    if executor == "serial" or not registry.others(chosen):
        return False
    if chosen or names is None or os.environ.get("PRIVBENCH_DISABLE_PLUGINS"):
        return True
    ours = registry.names_in_tree()
    anywhere = {name for _, name in ours}
    return not all((kind, name) in ours if kind else name in anywhere for kind, name in names)


class PlannedApart:
    """Trials that another process has planned; see ``Planned``. Close it in the end.

    Attributes:
        items: all trials, in order.
        setup: what workers need to start.
        trained_phases: how many phases were trained for them so far.
    """

    def __init__(self, threads: int, make: str, *args: Any) -> None:
        """Plan.

        Args:
            threads: of the process.
            make: function of the process that returns a ``PlannedHere``, as ``module:name``.
            args: its arguments.

        Raises:
            PrivbenchError: what the function raises.
        """
        context = start_server(threads)
        self._pipe, theirs = context.Pipe()
        self._lifeline, lifeline = context.Pipe()
        self._process = start(
            context, threads, f"{__name__}:plan_apart", theirs, lifeline, dict(os.environ),
            make, args,
        )  # fmt: skip
        atexit.register(self.close)  # before this process waits for the other one
        theirs.close()
        lifeline.close()
        self.trained_phases = 0
        try:
            self._heard()
            self.items: list[Item] = self.ask("items")
            self.setup: Setup = self.ask("setup")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, *args: Any) -> Any:
        """Return an attribute of the plan, or what its method returns for the arguments.

        Raises:
            PrivbenchError: what it raises there, or if the process has ended.
        """
        try:
            self._pipe.send((what, args))
        except OSError:
            self._ended()
        return self._heard()

    def blank(self, digest: str) -> str:
        """Return the record of a trial without results, as JSON."""
        return str(self.ask("blank", digest))

    def nodes(self, digests: Sequence[str]) -> dict[str, Node]:
        """Return the graph of some of the trials."""
        found: dict[str, Node] = self.ask("nodes", digests)
        return found

    def packed(self, name: str, writer: str = "pickle") -> Packed:
        """Return a node of that graph with its trial, for a worker; see ``Planned``."""
        found: Packed = self.ask("packed", name, writer)
        return found

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._pipe.close()
        self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join()
        self._lifeline.close()

    def _heard(self) -> Any:
        try:
            # What a plugin has forked may hold the other end of the pipe.
            if self._pipe not in wait([self._pipe, self._process.sentinel]):
                self._ended()
            status, value, warned = _Unpickler(io.BytesIO(self._pipe.recv_bytes())).load()
        except (EOFError, OSError):
            self._ended()
        for kind, text, file, line in warned:
            warnings.warn_explicit(text, _category(kind), file, line)
        if status == "done":
            return _made(value)
        if status == "write":
            raise WriteError(*value)
        if status == "os":
            raise OSError(*value)
        if status == "bug":
            raise RuntimeError(f"the process that plans failed:\n{value}")
        kind = next((one for one in _ERRORS if one.__name__ == status), BadInputError)
        error = kind.__new__(kind)  # its message is composed already
        error.args = (value,)
        raise error

    def _ended(self) -> NoReturn:
        self._process.join(_PATIENCE)
        raise PluginError(
            f"the process that plans ended with status {self._process.exitcode}: a plugin ended "
            "it, or memory ran out; leave the plugin out, or see `privbench list plugins --errors`"
        ) from None


def _category(name: str) -> type[Warning]:
    kind = getattr(builtins, name, UserWarning)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning


class _Unpickler(pickle.Unpickler):
    """Reads numbers, text, and lists, sets and dictionaries of them."""

    def find_class(self, module: str, name: str) -> Any:
        raise PluginError(
            f"the process that plans answered with {module}.{name}, which is no plain value: "
            "leave out the plugin whose method gives it"
        )


def _plain(value: Any) -> Any:
    """A value that ``_made`` understands; objects become dictionaries with their kind at None."""
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass, too
    if isinstance(value, list | tuple | set | frozenset):
        made = [_plain(one) for one in value]
        return (
            made
            if isinstance(value, list)
            else tuple(made)
            if isinstance(value, tuple)
            else {*made}
        )
    if isinstance(value, dict):
        return {_plain(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Path):
        return {None: "Path", "text": str(value)}
    if is_dataclass(value) and type(value).__name__ in _KINDS:
        told = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {None: type(value).__name__, **told}
    return value


def _made(value: Any) -> Any:
    """What ``_plain`` was given."""
    if isinstance(value, list | tuple):
        return type(value)(_made(one) for one in value)
    if not isinstance(value, dict):
        return value
    of = {name: _made(one) for name, one in value.items()}
    if None not in of:
        return of
    kind = of.pop(None)
    return Path(of["text"]) if kind == "Path" else _KINDS[kind](**of)


def plan_apart(
    pipe: Connection, lifeline: Connection, environment: Mapping[str, str], make: str, args: Any
) -> None:
    """Be the process that plans: make the plan and answer, until the pipe closes.

    Args:
        pipe: of ``PlannedApart``.
        lifeline: ends with the parent, and then so does this process.
        environment: of the parent; the server began with an older one.
        make: see ``PlannedApart``.
        args: likewise.
    """
    begin(lifeline, lambda: os._exit(1))
    os.environ.clear()
    os.environ.update(environment)
    planned: Any = None
    what: str | None = None
    while True:
        status, value = "done", None
        with warnings.catch_warnings(record=True) as caught:
            try:
                if what is None:
                    planned = named_function(make)(*args)
                else:
                    value = _plain(planned.ask(what, *args))
            except WriteError as error:
                status, value = "write", (error.errno, error.strerror, error.filename)
            except PrivbenchError as error:
                known = (kind.__name__ for kind in _ERRORS if isinstance(error, kind))
                status, value = next(known, ""), str(error)
            except OSError as error:
                status, value = "os", (error.errno, error.strerror or str(error), error.filename)
            except BaseException:  # noqa: BLE001 - told there
                status, value = "bug", traceback.format_exc()
        told = [(one.category.__name__, str(one.message), one.filename, one.lineno)
                for one in caught]  # fmt: skip
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        try:
            pipe.send_bytes(pickle.dumps((status, value, told)))
            what, args = pipe.recv()
        except (EOFError, OSError):
            return
