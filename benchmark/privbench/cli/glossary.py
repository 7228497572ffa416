"""The words of the glossary, which the page of the docs and ``privbench doc`` share."""

from __future__ import annotations

import re
import textwrap
from importlib.resources import files


def glossary() -> dict[str, list[str]]:
    """Return every name in the glossary, in lower case, -> lines that explain it.

    >>> glossary()["tpr"][0]
    'TPR at 1 % FPR, TPR, FPR'
    """
    found: dict[str, list[str]] = {}
    text = (files("privbench.cli") / "glossary.md").read_text("utf-8")
    for paragraph in text.split("\n\n"):
        told = re.fullmatch(r"\*\*(.+?)\.\*\* (.+)", " ".join(paragraph.split()))
        if told:
            plain = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", told[2]).replace("*", "").replace("`", "")
            lines = [told[1], "", *textwrap.wrap(plain, 98)]
            found |= {one.lower(): lines for one in told[1].split(", ")}
    return found
