"""Names of the user's and errors of libraries, as they stand in messages."""

from __future__ import annotations


def plain(text: object) -> str:
    """Return a name of the user's for a message: short, in one line, all of it visible."""
    told = str(text)
    told = told if told.isprintable() else ascii(told)[1:-1]
    return told if len(told) <= 200 else f"{told[:199]}…"  # noqa: PLR2004


def one_line(error: BaseException) -> str:
    """Return an error of a library, with its type, for a message."""
    return plain(" ".join(f"{type(error).__name__}: {error}".split()))
