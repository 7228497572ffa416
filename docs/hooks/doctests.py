# ruff: noqa: INP001 - an extension of mkdocstrings, not a module of a package
"""Shows the examples of docstrings as code: a paragraph that begins with ``>>>``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator


class Doctests(griffe.Extension):
    """Puts a fence around each example before a docstring is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = "\n".join(_fenced(obj.docstring.value.split("\n")))


def _fenced(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if not inside and re.match(r"\s*>>>", line):
            inside = True
            yield "\n```python"
        elif inside and not line.strip():
            inside = False
            yield "```\n"
        yield line
    if inside:
        yield "```"
