"""Errors a user can act on: one sentence, saying what is wrong, where, and what to do.

Everything here ends a command with exit status 2 and no traceback; a failing *cell* is not an
error but a result (see ``records``).
"""

import difflib
from collections.abc import Iterable


class PrivbenchError(Exception):
    """Base of all errors whose message is meant for the user as it stands."""


class BadInputError(PrivbenchError):
    """A value, name or file that the user gave does not fit."""


class PluginError(PrivbenchError):
    """A plugin is broken and the run names one of its methods."""


class AccessDeniedError(PrivbenchError):
    """An attack asked its oracle for more than it declared."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if none is near.

    >>> nearest("lirra", ["lira", "rmia"])
    'lira'
    """
    near = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.5)
    return near[0] if near else None


class UnknownNameError(BadInputError):
    """A name that nothing goes by; the message suggests the nearest."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Compose the sentence: ``unknown attack 'lirra': did you mean 'lira'?``."""
        self.name = name
        names = sorted(known)
        near = nearest(name, names)
        if near:
            tail = f"did you mean '{near}'?"
        else:
            tail = f"known are {', '.join(names)}" if names else "none is known"
        super().__init__(f"unknown {what} '{name}': {tail}{hint}")
