"""Operating points in words, and the bound by which they were chosen as a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic_core import from_json

from privbench.ground.errors import BadInputError
from privbench.ground.store.files import write
from privbench.ground.text import shown
from privbench.results.files import POINTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from privbench.boards.board import Leaderboard
    from privbench.boards.operating import Family, OperatingPoint
    from privbench.results.record import Record


def told(board: Leaderboard) -> list[str]:
    """Return one sentence for each defense: its operating point; none if there is no bound."""
    made = []
    for group in board.groups if board.choices else ():
        seeds = _ran(group.none)
        for family in group.families:
            if mine := _ran(one for of in family.settings.values() for one in of):
                points = [one for one in board.choices[id(family)] if one.seed in seeds | mine]
                made.append(f"{group.dataset}, {group.target}: {_told(family, points)}")
    return made


def _ran(records: Iterable[Record]) -> set[int]:
    """Seeds of results that were not skipped."""
    return {record.seed for record in records if record.status != "skipped"}


def store_bound(bound: float | None, folder: Path) -> None:
    """Write the bound of a run beside its results, if it has one, for ``stored_bound``."""
    if bound is not None:
        write(folder / POINTS, json.dumps({"match_utility": bound}) + "\n")


def _told(family: Family, made: Sequence[OperatingPoint]) -> str:
    """Say which setting was chosen, and for which seeds: ``talos: weight=3 (seeds 0, 2)``."""
    seeds: dict[str, list[OperatingPoint]] = {}
    for one in made:
        setting = family.named(one.rank) if one.rank is not None else one.reason
        alone = not family.strength_field and one.rank is not None
        seeds.setdefault("its only setting" if alone else setting, []).append(one)
    parts = []
    for text, mine in seeds.items():
        numbers = ", ".join(str(one.seed) for one in mine)
        losses = [one.loss for one in mine if one.loss is not None]
        short = mine[0].rank is None and losses
        tail = f", the best loses {min(losses):.3f} or more" if short else ""
        parts.append(f"{text} (seed{'s' * (len(mine) > 1)} {numbers}{tail})")
    return f"operating point of {family.name}: {'; '.join(parts)}"


def stored_bound(folders: Iterable[Path]) -> float | None:
    """Return the bound that the runs in these folders were given; None if they had none.

    Raises:
        BadInputError: if a file of a run says something else, or if the runs had several bounds.
    """
    bounds: set[float] = set()
    for path in sorted(path for folder in folders for path in folder.rglob(POINTS)):
        try:
            values = from_json(path.read_bytes(), allow_inf_nan=False)
        except FileNotFoundError:
            continue
        except ValueError:
            values = None
        bound = values.get("match_utility", values) if isinstance(values, dict) else values
        if bound is None and isinstance(values, dict):
            continue
        if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 <= bound <= 1:
            raise BadInputError(f"{shown(str(path), 200)} holds no operating points: remove it")
        bounds.add(float(bound))
    if len(bounds) > 1:
        listed = ", ".join(f"{bound:g}" for bound in sorted(bounds))
        raise BadInputError(f"these results match utility within {listed}: give --match-utility")
    return bounds.pop() if bounds else None
