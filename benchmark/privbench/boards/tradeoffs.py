"""Utility against the worst leak: curves over the strength of defenses, and operating points."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from privbench.boards.operating import accuracy, choices, groups, leaks, seen_by
from privbench.boards.records import POINTS
from privbench.boards.verdicts import judged
from privbench.errors import BadInputError
from privbench.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from privbench.boards.operating import Choice, Family, Group
    from privbench.boards.records import Record


@dataclass(frozen=True)
class Line:
    """One point of a curve: a defense with one setting for each seed.

    Attributes:
        defense: its name.
        strength: hyperparameter that makes it stronger; "" for none.
        value: of that hyperparameter, as text.
        records: of one adversary.
    """

    defense: str
    strength: str
    value: str
    records: Sequence[Record]

    def accuracies(self, rows: str) -> dict[int, float]:
        """Return the accuracy on ``test`` or ``reference`` rows by seed, where it is known."""
        seeds = sorted({record.seed for record in self.records})
        found = {seed: accuracy(self.records, seed, rows) for seed in seeds}
        return {seed: value for seed, value in found.items() if value is not None}


def told(records: Sequence[Record], bound: float | None) -> list[str]:
    """Return one sentence for each defense: its operating point; none if there is no bound."""
    if bound is None:
        return []
    return [
        f"{group.dataset}, {group.target}: {_told(family, choices(group, family, bound))}"
        for group in groups(records)
        for family in group.families
    ]


def data(records: Sequence[Record], bound: float | None) -> dict[str, Any]:
    """Return operating points and curves as plain values.

    Args:
        records: all of a board, of any status and game.
        bound: largest loss of accuracy on reference rows; None for no operating points.
    """
    points: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    counts = judged(records)
    for group in groups(records):
        where = {"dataset": group.dataset, "target": group.target}
        for family in group.families if bound is not None else ():
            what = {**where, "defense": family.name, "strength": family.strength}
            points += [
                {**what, "seed": one.seed, "value": one.value or None, "loss": one.loss,
                 "chosen": one.rank is not None, "reason": one.reason}
                for one in choices(group, family, bound or 0.0)
            ]  # fmt: skip
        for adversary, seen in _adversaries(group):
            curves += [
                {**where, "adversary": adversary, "defense": line.defense,
                 "strength": line.strength, "value": line.value or None,
                 "reference_accuracy": line.accuracies("reference"),
                 "test_accuracy": line.accuracies("test"),
                 "worst": [asdict(leak) for leak in leaks(line.records, counts)]}
                for line in curve(group, seen)
            ]  # fmt: skip
    return {"match_utility": bound, "points": points, "curves": curves}


def dumped(records: Sequence[Record], bound: float | None) -> str:
    """Return ``data`` as JSON; "" if there is neither a bound nor a sweep."""
    swept = any(len(f.settings) > 1 for group in groups(records) for f in group.families)
    return json.dumps(data(records, bound), indent=1) + "\n" if swept or bound is not None else ""


def curve(group: Group, seen: Sequence[Record]) -> list[Line]:
    """Return ``none`` and each setting of each defense, from the weakest to the strongest.

    Args:
        group: of results.
        seen: those of one adversary, from ``seen_by``.
    """
    lines = [Line("none", "", "", _among(seen, group.undefended))]
    for family in group.families:
        lines += [
            Line(family.name, family.strength, family.values[rank],
                 _among(seen, family.settings[rank]))
            for rank in sorted(family.settings)
        ]  # fmt: skip
    return [line for line in lines if line.records]


def _told(family: Family, made: Sequence[Choice]) -> str:
    """Say which setting was chosen, and for which seeds: ``talos: weight=3 (seeds 0, 2)``."""
    seeds: dict[str, list[Choice]] = {}
    for one in made:
        setting = family.named(one.rank) if one.rank is not None else one.reason
        seeds.setdefault(setting if family.strength or one.rank is None else "its only setting",
                         []).append(one)  # fmt: skip
    parts = []
    for text, mine in seeds.items():
        numbers = ", ".join(str(one.seed) for one in mine)
        losses = [one.loss for one in mine if one.loss is not None]
        short = mine[0].rank is None and losses
        tail = f", the best loses {min(losses):.3f} or more" if short else ""
        parts.append(f"{text} (seed{'s' * (len(mine) > 1)} {numbers}{tail})")
    return f"operating point of {family.name}: {'; '.join(parts)}"


def _adversaries(group: Group) -> list[tuple[str, list[Record]]]:
    """Labels of the adversaries of a group, each with the results that hold for it."""
    names = sorted({record.cell.adversary for record in group.records})
    return [(name, seen_by(group, name)) for name in names]


def _among(seen: Sequence[Record], records: Iterable[Record]) -> list[Record]:
    trials = {record.trial for record in seen}
    return [record for record in records if record.trial in trials]


def stored_bound(folders: Iterable[Path]) -> float | None:
    """Return the bound that the runs in these folders were given; None if they had none.

    Raises:
        BadInputError: if a file of a run says something else, or if the runs had several bounds.
    """
    bounds: set[float] = set()
    for path in (folder / POINTS for folder in folders):
        try:
            values = from_json(path.read_bytes(), allow_inf_nan=False)
        except (FileNotFoundError, NotADirectoryError):
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
