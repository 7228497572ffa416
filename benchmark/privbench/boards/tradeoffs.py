"""Utility against the worst leak: curves over the strength of defenses, and operating points."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from privbench.boards import shown as show
from privbench.boards.operating import accuracy, choices, groups, seen_by, worst
from privbench.boards.records import POINTS
from privbench.boards.verdicts import judged
from privbench.errors import BadInputError
from privbench.games.metrics import mean_over_seeds
from privbench.text import markdown, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from privbench.boards.operating import Choice, Family, Group, Leak
    from privbench.boards.records import Record
    from privbench.boards.verdicts import Judged

POINTS_LEGEND = """\
An operating point is the strongest setting of a defense that loses at most {bound:g} of accuracy
against `none`. It is chosen for each seed, on reference rows only: no attack and no test row has a
say. Test accuracy and leaks are means over seeds at these points. Rows marked § are of defenses
that also learn from the reference rows, so that their loss there is optimistic: judge their cost by
the test accuracy.
"""

CURVES_LEGEND = """\
Every setting of every defense, from the weakest to the strongest: accuracy against the attack with
the highest mean leak of each game, named in parentheses. A maximum over attacks is biased upward.
Cells marked ‡ in the tables do not count, with any of their seeds, nor do attacks marked ¶.
"""


@dataclass(frozen=True)
class Line:
    """One line of a table: a defense with one setting for each seed.

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


def page(records: Sequence[Record], bound: float | None) -> list[str]:
    """Return markdown lines: operating points if there is a bound, and curves if there are sweeps.

    Args:
        records: all of a board, of any status and game.
        bound: largest loss of accuracy on reference rows; None for no operating points.
    """
    found = [group for group in groups(records) if group.families]
    counts = judged(records)
    lines: list[str] = []
    if bound is not None and found:
        lines += ["## Operating points", ""]
        for group in found:
            lines += _points(group, bound, counts)
        lines += [*POINTS_LEGEND.format(bound=bound).splitlines(), ""]
    swept = [g for g in found if any(len(family.settings) > 1 for family in g.families)]
    if swept:
        lines += ["## Utility against the worst leak", ""]
        for group in swept:
            for adversary, seen in _adversaries(group):
                lines += [_heading(group, adversary), ""]
                lines += [*_table(curve(group, seen), _setting, counts), ""]
        lines += [*CURVES_LEGEND.splitlines(), ""]
    return lines


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
                 "worst": [asdict(leak) for leak in worst(line.records, counts)]}
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


def _points(group: Group, bound: float, counts: Judged) -> Iterator[str]:
    """The choices for each defense, and a table for each adversary."""
    made = {id(family): choices(group, family, bound) for family in group.families}
    yield from (_heading(group), "")
    if isinstance(rows := group.reference, int) and rows:
        yield from (f"{rows:,} reference rows: one of them is {1 / rows:.4f} of accuracy.", "")
    for family in group.families:
        yield f"- {markdown(_told(family, made[id(family)]))}"
    for adversary, seen in _adversaries(group):
        lines = [Line("none", "", "", _among(seen, group.undefended))]
        for family in group.families:
            at = [
                record
                for one in made[id(family)]
                if one.rank is not None
                for record in family.settings[one.rank]
                if record.seed == one.seed
            ]
            if mine := _among(seen, at):
                lines.append(Line(family.name, "", "", mine))
        yield from ("", f"{markdown(adversary)} adversary:", "", *_table(lines, _defense, counts))
    yield ""


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


def _table(lines: Sequence[Line], name: Callable[[Line], str], counts: Judged) -> list[str]:
    """Accuracies and worst leaks of some lines, compared with the first, which is ``none``."""
    leaks = [worst(line.records, counts) for line in lines]
    games = show.games(record for line in lines for record in line.records)
    metrics = {(leak.game, leak.guessed): leak.metric for mine in leaks for leak in mine}
    aims = sorted(metrics, key=lambda aim: (games.index(aim[0]), aim[1]))
    heads = ["defense", "seeds", "reference accuracy", "loss", "test accuracy", "loss",
             *(_aim(*aim, metrics[aim]) for aim in aims)]  # fmt: skip
    made = ["| " + " | ".join(map(markdown, heads)) + " |", "|" + "---|" * len(heads)]
    undefended = lines[0] if lines[0].defense == "none" else None
    for line, mine in zip(lines, leaks, strict=True):
        seeds = len({record.seed for record in line.records})
        by_aim = {(leak.game, leak.guessed): leak for leak in mine}
        row = [name(line), str(seeds)]
        for rows in ("reference", "test"):
            now = line.accuracies(rows)
            before = undefended.accuracies(rows) if undefended else {}
            lost = [before[seed] - now[seed] for seed in sorted(now) if seed in before]
            row += [_mean(now.values()), "–" if line is undefended else _mean(lost, -1.0)]
        row += [_leak(by_aim.get(aim), seeds) for aim in aims]
        made.append("| " + " | ".join(map(markdown, row)) + " |")
    return made


def _defense(line: Line) -> str:
    return line.defense + (" §" if any(map(_optimistic, line.records)) else "")


def _setting(line: Line) -> str:
    return _defense(line) + (f", {line.strength}={line.value}" if line.strength else "")


def _optimistic(record: Record) -> bool:
    return "reference accuracy" in record.notes


def _aim(game: str, guessed: str, metric: str) -> str:
    return f"{game}{f' [{guessed}]' if guessed else ''}: worst {metric}"


def _leak(leak: Leak | None, seeds: int) -> str:
    if leak is None:
        return "–"
    few = "" if len(leak.values) == seeds else f", {len(leak.values)} of {seeds} seeds"
    return f"{_mean(leak.values.values())} ({leak.attack}{few})"


def _mean(values: Iterable[float], least: float = 0.0) -> str:
    """Mean over seeds, with its interval within [least, 1] if there are several."""
    runs = list(values)
    if not runs:
        return "–"
    if len(runs) == 1:
        return f"{runs[0]:.3f}"
    mean = mean_over_seeds(runs)
    return f"{mean.value:.3f} [{max(mean.low, least):.3f}, {min(mean.high, 1.0):.3f}]"


def _heading(group: Group, adversary: str = "") -> str:
    tail = f", {adversary} adversary" if adversary else ""
    return f"### {markdown(f'{group.dataset}, {group.target}{tail}')}"


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
