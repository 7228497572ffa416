"""Errors of the functions in Python name arguments where those of the command name options."""

from __future__ import annotations

import inspect
import re
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from privbench.ground.errors import PrivbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")
_OPTION = re.compile(r"(`[^`]*`)|(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?![\w/-])")
#: Options that have another name in Python: repeated ones are lists, `--set` is a mapping.
_OTHERS = {"attack": "attacks", "defense": "defenses", "plugin": "plugins", "set": "settings"}


def named_as_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Rewrite the errors of privbench that a function raises."""
    known = frozenset(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except PrivbenchError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (as_arguments(error.args[0], known), *error.args[1:])
            raise

    return called


def as_arguments(message: str, known: Iterable[str]) -> str:
    """Return a message with arguments in place of options.

    Commands stay, and so do options that are no argument; those of a suite are its keys.

    Args:
        message: of an error.
        known: names of arguments.

    >>> as_arguments("--data-root x: see `privbench run --help`, or leave out --jobs", ["jobs"])
    '--data-root x: see `privbench run --help`, or leave out `jobs`'
    >>> as_arguments("give --set csv.path=FILE", ["suite"])
    'give `set` of the suite csv.path=FILE'
    """
    names = {*known}

    def argument(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        name = _OTHERS.get(found[2], found[2]).replace("-", "_")
        if name in names:
            return f"`{name}`"
        if "suite" in names and found[2] in {"attack", "defense", "set"}:
            return f"`{'set' if found[2] == 'set' else name}` of the suite"
        return found[0]

    return _OPTION.sub(argument, message)
