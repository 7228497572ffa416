"""How large a result may be. Readers refuse a larger one, and no run writes one."""

from __future__ import annotations

from typing import Any

#: Bytes of a result as JSON.
MOST_BYTES = 2**22
#: Bytes of the per-sample scores of a result, where they are part of its line.
MOST_SCORES = 2**24
#: Results in one file.
MOST_RECORDS = 120_000
#: Lists and mappings inside each other.
DEEPEST = 32
#: Characters of the name of a method, a metric or anything else, and of any other text.
LONGEST_NAME, LONGEST_TEXT = 1_000, 200_000


def excess(values: Any, depth: int = DEEPEST) -> str:
    """Return why nested plain values are too large for a result, in a few words; "" if not.

    Args:
        values: as parsed from JSON.
        depth: lists and mappings that may still be inside each other.

    >>> excess({"notes": "x" * 200_001})
    'it holds text of more than 200,000 characters'
    """
    if isinstance(values, str):
        return _long("text", LONGEST_TEXT) if len(values) > LONGEST_TEXT else ""
    if not isinstance(values, dict | list):
        return ""
    if not depth:
        return f"it nests lists and mappings more than {DEEPEST} deep"
    inside = values
    if isinstance(values, dict):
        if any(len(name) > LONGEST_NAME for name in values):
            return _long("a name", LONGEST_NAME)
        inside = list(values.values())
    return next((told for one in inside if (told := excess(one, depth - 1))), "")


def _long(what: str, most: int) -> str:
    return f"it holds {what} of more than {most:,} characters"


def shortened_text(text: str) -> str:
    """Return text that fits into a result: the end of a longer one is left out.

    >>> len(shortened_text("x" * 300_000)), shortened_text("short")
    (200000, 'short')
    """
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
