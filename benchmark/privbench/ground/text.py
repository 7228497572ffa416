"""Text that users and plugins wrote, made harmless for where it is shown."""

from __future__ import annotations

import html
import re
import reprlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters of a value that a message repeats.
LONGEST = 80
_BITS = 256  # of a whole number that is still written out


def shown(text: object, longest: int = LONGEST) -> str:
    r"""A name or value for a message: short, in one line, nothing that a terminal obeys.

    >>> shown("x" * 90)[-3:], shown("a\x1b[31m"), shown({"k": [1, 2]})
    ('xx…', 'a\\x1b[31m', "{'k': [1, 2]}")
    """
    told = text if isinstance(text, str) else _short.repr(text)
    told = _neutral(told[: longest + 1])
    return told if len(told) <= longest else f"{told[: longest - 1]}…"


def quoted(value: object) -> str:
    """As ``shown``, with text in quotes.

    >>> quoted("5"), quoted(5)
    ("'5'", '5')
    """
    return shown(_short.repr(value))


def terminal(text: str) -> str:
    r"""The text for a terminal: line ends stay, other invisible characters are written as escapes.

    >>> terminal("\x1b]0;title\x07 and \u202e")
    '\\x1b]0;title\\x07 and \\u202e'
    """
    return "\n".join(map(_neutral, text.split("\n")))


def markdown(text: str) -> str:
    r"""The text in one line of markdown, also in a table, that renders as itself and does nothing.

    >>> markdown("<b> | [a](b) :x: *c* snake_case")
    '&lt;b&gt; \\| [a\\](b) : x: \\*c\\* snake_case'
    """
    line = html.escape(_neutral(" ".join(text.split())), quote=False)
    return _EMOJI.sub(": ", _MARKS.sub(r"\\\g<0>", line))


def several(count: int, what: str) -> str:
    """Return a count with its noun, with an s unless there is one.

    >>> several(1, "trial"), several(0, "trial"), several(2000, "phase")
    ('1 trial', '0 trials', '2000 phases')
    """
    return f"{count} {what}{'s' * (count != 1)}"


def listed(values: Mapping[Any, Any]) -> str:
    """Names and values in one line.

    >>> listed({"rows": 3, "kind": "image"})
    'rows 3, kind image'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items())


#: What markdown reads as a mark; an underscore inside a word and a bracket without a link are none.
_MARKS = re.compile(r"[\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|!(?=\[)")
#: The first colon of an emoji's code: sites replace those even where they are escaped.
_EMOJI = re.compile(r":(?=[a-z+-][\w+-]*:)")


def _neutral(text: str) -> str:
    """Write characters that cannot be seen (control, direction, half a pair) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Short(reprlib.Repr):
    """A ``repr`` that stays short however long or deep the value is."""

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write out very long numbers."""
        del level
        bits = x.bit_length()
        return repr(x) if bits <= _BITS else f"<a whole number of {bits} bits>"


_short = _Short()
_short.maxstring = _short.maxother = _short.maxlong = LONGEST
_short.maxlevel = 3
