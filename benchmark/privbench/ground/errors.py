"""Errors that a user can act on: one sentence that says what is wrong, where, and what to do.

These errors end a command with exit status 2 and no traceback. A failing *cell* is not an error
but a result (see ``results.record``).
"""

import difflib
from collections.abc import Iterable

from privbench.ground.text import shown


class PrivbenchError(Exception):
    """Base of all errors whose message is shown to the user unchanged.

    >>> issubclass(BadInputError, PrivbenchError)
    True
    """


class BadInputError(PrivbenchError):
    """A value, name or file given by the user is invalid.

    >>> from privbench.testing import TinyImages
    >>> TinyImages().replace(real="yes")
    Traceback (most recent call last):
        ...
    privbench.ground.errors.BadInputError: tiny-images.real: ...
    """


class WriteError(PrivbenchError, OSError):
    """A file cannot be written, for example because the disk is full."""

    def __str__(self) -> str:
        """Which file, why, and what to do."""
        return (
            f"cannot write {self.filename} ({self.strerror}): "
            "once it can be written, the same command goes on"
        )


class AnswerError(Exception):
    """An attack failed in a process of its own; the message says how, with the error's type."""


class PluginError(PrivbenchError):
    """A plugin is broken and the run uses one of its methods."""


class AccessDeniedError(PrivbenchError):
    """An attack asked its oracle for something that it did not declare."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if none is similar.

    >>> nearest("lirra", ["lira", "rmia"])
    'lira'
    """
    near = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.5)
    return near[0] if near else None


def no_choice(what: str, value: object, choices: Iterable[str]) -> str | None:
    """The sentence for a value that is none of the choices; None if it is one.

    >>> no_choice("kind", "Adam", ["adam", "sgd"])
    "kind is 'Adam': write 'adam' or 'sgd'"
    """
    *others, last = known = [repr(choice) for choice in choices]
    if isinstance(value, str) and repr(value) in known:
        return None
    return f"{what} is {value!r}: write {', '.join(others)} or {last}"


class UnknownNameError(BadInputError):
    """A name that does not exist; the message suggests the nearest."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Compose the message: ``unknown attack 'lirra': did you mean 'lira'?``."""
        self.name = name
        names = sorted(known)
        near = nearest(name, names)
        if near:
            tail = f"did you mean '{near}'?"
        else:
            tail = f"choose from {', '.join(names)}" if names else "there are none"
        super().__init__(f"unknown {what} '{shown(name)}': {tail}{hint}")
