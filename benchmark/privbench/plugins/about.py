"""What a method says about itself, for cards: threat model, source, deviations."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.ground.errors import BadInputError
from privbench.ground.text import listed
from privbench.plugins.requirements import required

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from privbench.measure.methods.method import Method


@dataclass(frozen=True)
class About:
    """A card without hyperparameters.

    Attributes:
        texts: what it does, in paragraphs.
        paper: its source; "" if it names none.
        facts: name -> text, threat model first.
        deviations: from the paper; "" for none.
    """

    texts: tuple[str, ...]
    paper: str
    facts: Mapping[str, str]
    deviations: str


def about(kind: str, method: Method, root: Path | None = None) -> About:
    """Return what a method says about itself.

    Args:
        kind: ``attack``, ``defense``, ``target`` or ``dataset``.
        method: of that kind.
        root: folder of datasets, for one that only its files describe.
    """
    documented = type(method), sys.modules.get(type(method).__module__)
    given = [vars(one).get("__doc__") for one in documented if one]
    made_up = f"{type(method).__name__}("  # dataclass writes such a text where there is none
    texts = tuple(inspect.cleandoc(text) for text in given if text and not text.startswith(made_up))
    paper = str(method.paper) if method.paper else ""
    return About(texts, paper, dict(_facts(kind, method, root)), method.deviations)


def _facts(kind: str, method: Any, root: Path | None) -> Iterator[tuple[str, str]]:
    if required(method):
        yield "Requires", ", ".join(required(method))
    if kind == "attack":
        wanted = f", uses {method.wants} if granted" if method.wants else ""
        yield "Game", f"{method.game}; needs {method.needs}{wanted}"
        if method.decides_at:
            yield "Decides at", f"{method.decides_at} (balanced accuracy is not comparable)"
        if method.shadows.count:
            yield "Shadows", f"{method.shadows.count}, {method.shadows.origin}"
    elif kind == "defense":
        yield "Acts at", ", ".join(sorted(method.stages())) or "no stage"
        yield "Claims to protect", ", ".join(method.protects) or "nothing"
        yield "Strength", str(method.strength or "one setting only")
    elif kind == "target":
        yield "Grants", str(method.grants)
    elif kind == "dataset" and method.reads_given_files:
        yield "Data", "in the files that its hyperparameters name"
    elif kind == "dataset":
        try:
            card = method.card(root)
        except BadInputError as error:  # a plugin's data, which only its files describe
            yield "Data", str(error)
            return
        yield "Data", f"{card.kind} {card.shape}, {card.rows} rows ({listed(card.sources)})"
        told = listed(card.attributes) or "none"
        yield "Classes", f"{card.classes}; attributes: {told}"
        yield "Own protocols", ", ".join(method.protocols)
