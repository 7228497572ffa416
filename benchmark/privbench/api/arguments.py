"""Errors of the functions in Python name arguments where those of the command name options."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from privbench.ground.errors import PrivbenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTION = re.compile(r"(`[^`]*`)|(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
#: Options that may be repeated -> the argument, a list.
_LISTS = {"attack": "attacks", "defense": "defenses", "plugin": "plugins"}


@contextmanager
def named_as_arguments() -> Iterator[None]:
    """Rewrite the message of an error of privbench; decorates the functions of Python."""
    try:
        yield
    except PrivbenchError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (as_arguments(error.args[0]), *error.args[1:])
        raise


def as_arguments(message: str) -> str:
    """Return a message with arguments of Python in place of options; commands stay.

    >>> as_arguments("--data-root x: see `privbench run --help`, or leave out --attack")
    '`data_root` x: see `privbench run --help`, or leave out `attacks`'
    """

    def argument(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        return f"`{_LISTS.get(found[2], found[2].replace('-', '_'))}`"

    return _OPTION.sub(argument, message)
