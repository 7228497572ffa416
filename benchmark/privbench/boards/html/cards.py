"""Cards of the methods of a board: threat model and paper, and with what settings they ran."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.ground.text import listed, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from privbench.plugins.about import About
    from privbench.plugins.registry import Registry
    from privbench.results.record import MethodRecord, Record

#: Characters of the settings of one method, and how many different ones are listed.
_LONG, _MOST = 2_000, 12
#: Lines that begin like those of a list.
_LIST = r"^( +|[*-] |[0-9]+\. )"
KINDS = ("attack", "defense", "target", "dataset")


@dataclass(frozen=True)
class MethodCard:
    """A method of the results.

    Attributes:
        kind: of ``KINDS``.
        name: of the method.
        versions: as in the results.
        told: what the installed method of this name says about itself; None if there is none.
        note: where the installed method is not the one of the results; "" otherwise.
        facts: what the results say: access that attacks read, games that defenses protect.
        settings: label and hyperparameters, each once.
        more: settings that are left out.
    """

    kind: str
    name: str
    versions: str
    told: About | None
    note: str
    facts: Mapping[str, str]
    settings: Sequence[tuple[str, str]]
    more: int

    @property
    def paragraphs(self) -> list[tuple[str, bool]]:
        """What the method does, and whether the lines of a paragraph must stay lines: of a list."""
        texts = self.told.texts if self.told else ()
        blocks = [block for text in texts for block in text.replace("``", "").split("\n\n")]
        return [
            (block, True)
            if re.search(_LIST, block, re.MULTILINE)
            else (" ".join(block.split()), False)
            for block in blocks
        ]


def cards(records: Iterable[Record], registry: Registry | None) -> dict[str, list[MethodCard]]:
    """Return kind -> cards by name.

    Args:
        records: of any status.
        registry: of installed methods; None for none.
    """
    met: dict[tuple[str, str], dict[str, MethodRecord]] = {}
    facts: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for record in records:
        for kind, method in _methods(record):
            at = kind, method.name
            met.setdefault(at, {}).setdefault(f"{method.label} v{method.version}", method)
            for name, text in _facts(kind, record):
                facts.setdefault(at, {}).setdefault(name, {})[text] = None
    made: dict[str, list[MethodCard]] = {kind: [] for kind in KINDS}
    for (kind, name), found in sorted(met.items()):
        versions = sorted({method.version for method in found.values()})
        told, note = _told(registry, kind, name, versions)
        listed_facts = {
            fact: ", ".join(sorted(texts)) for fact, texts in facts.get((kind, name), {}).items()
        }
        settings = [
            (one.label, shown(listed(one.fields), _LONG)) for _, one in sorted(found.items())
        ]
        made[kind].append(MethodCard(
            kind, name, ", ".join(map(str, versions)), told, note, listed_facts, settings[:_MOST],
            max(0, len(settings) - _MOST),
        ))  # fmt: skip
    return {kind: of for kind, of in made.items() if of}


def _methods(record: Record) -> Iterator[tuple[str, MethodRecord]]:
    cell = record.cell
    yield "dataset", cell.dataset
    yield "target", cell.target
    yield "attack", cell.attack
    for defense in cell.defenses:
        yield "defense", defense


def _facts(kind: str, record: Record) -> Iterator[tuple[str, str]]:
    cell = record.cell
    if kind == "attack":
        yield "plays", cell.game
        if cell.needs:
            yield "reads", cell.needs.lower().replace("+", ", ")
    elif kind == "defense" and len(cell.defenses) == 1:
        yield "claims to protect", ", ".join(cell.protects) or "nothing"


def _told(
    registry: Registry | None, kind: str, name: str, versions: Sequence[int]
) -> tuple[About | None, str]:
    method = next((m for m in registry.all(kind) if m.name == name), None) if registry else None
    if method is None:
        return None, "Not installed here, so only what the results say is shown."
    from privbench.plugins.about import about  # which imports torch

    differs = [one for one in versions if one != method.version]
    note = f"The text is of version {method.version}, which is installed here." if differs else ""
    return about(kind, method), note
