"""Names of the user's and errors of libraries, as they stand in messages."""

from __future__ import annotations


def plain(text: object) -> str:
    """Return a name of the user's for a message: at most 200 characters, in one line, all visible.

    >>> plain("a.csv"), len(plain("a" * 300))
    ('a.csv', 200)
    """
    name = str(text)
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= 200 else f"{name[:199]}…"  # noqa: PLR2004


def one_line(error: BaseException) -> str:
    """Return an error of a library, with its type, for a message.

    >>> one_line(ValueError("no such file"))
    'ValueError: no such file'
    """
    return plain(" ".join(f"{type(error).__name__}: {error}".split()))
