"""All numbers of a board as csv: one line for each cell, with means and intervals over seeds."""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from typing import TYPE_CHECKING

from privbench.ground.text import terminal
from privbench.results import audits
from privbench.results.audits import MISSING, Bound
from privbench.results.record import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.board import Leaderboard
    from privbench.results.record import Record
    from privbench.results.seeds import Seeds, Series

Value = str | float | Bound | None
"""Text, a number, a bound, or nothing."""
#: Significant digits: more would not be the same on another machine.
DIGITS = 6


def table(board: Leaderboard) -> str:
    """Return the csv file; equal results give identical bytes.

    A metric has three columns: its mean over seeds and the ends of Student's 95 % interval, which
    one seed does not have. ``refused`` stands for a metric that cannot be measured. Audits have the
    guesses of all seeds together, and bounds that hold one by one their smallest, never a mean.
    """
    return written(rows(board).values())


def written(named: Iterable[Mapping[str, Value]]) -> str:
    """Return the csv file of these lines of ``rows``."""
    named = list(named)
    fixed = list(dict.fromkeys(name for row in named for name in row if name in FIRST))
    moving = sorted({name for row in named for name in row} - {*fixed})
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(map(_harmless, [*fixed, *moving]))
    empty = dict.fromkeys([*fixed, *moving], "")
    for row in named:
        told = {name: _cell(value) for name, value in row.items() if value is not None}
        writer.writerow((empty | told).values())
    return made.getvalue()


def _cell(value: str | float | Bound) -> str:
    return text(value) if isinstance(value, float) else _harmless(text(value))


def text(value: Value) -> str:
    """Return a value as it stands in the file."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value.text if isinstance(value, Bound) else value or ""


def rows(board: Leaderboard) -> dict[str, dict[str, Value]]:
    """Return cell -> its line of the table: heading -> value, ``FIRST`` and then the numbers."""
    cells = sorted(board.cells.items(), key=lambda item: (*_place(item[1].first), item[0]))
    return {
        cell: _named(board, cell, of) | _compared(board, cell, of) | _measured(of)
        for cell, of in cells
    }


#: What names a cell and says how it did.
FIRST = (
    "dataset", "protocol", "target", "defense", "attack", "needs", "game", "sensitive", "phase",
    "adversary", "planted leak", "status", "reason", "seeds", "mark", "why marked",
    "outside the claim", "decides at",
)  # fmt: skip


def _place(record: Record) -> tuple[str, ...]:
    cell = record.cell
    first = (cell.dataset.label, str(cell.protocol.get("name")), cell.target.label, cell.game,
             cell.attack.label)  # fmt: skip
    return *first, "" if cell.defense == "none" else cell.defense


def _named(board: Leaderboard, cell: str, of: Seeds) -> dict[str, Value]:
    first, ran = of.first, of.first.cell
    mark, doubt = board.mark(first), board.doubtful.get(cell, "")
    return {
        "dataset": ran.dataset.label, "protocol": str(ran.protocol.get("name", "default")),
        "target": ran.target.label, "defense": ran.defense, "attack": ran.attack.label,
        "needs": ran.needs, "game": ran.game,
        "sensitive": " ".join(ran.sensitive), "phase": first.phase, "adversary": ran.adversary,
        "planted leak": "yes" if ran.control else "no",
        "status": " ".join(sorted({record.status for record in of.records})),
        "reason": "; ".join(dict.fromkeys(r.reason for r in of.records if r.reason)),
        "seeds": " ".join(str(record.seed) for record in of.ok), "mark": mark,
        "why marked": doubt or ("it missed a planted leak" if mark else ""),
        "outside the claim": "yes" if of.outside else "no",
        "decides at": ran.decides_at,
    }  # fmt: skip


def _compared(board: Leaderboard, cell: str, of: Seeds) -> dict[str, Value]:
    """The differences to no defense and to the null victim."""
    row: dict[str, Value] = {}
    if (difference := board.minus_none.get(cell)) is not None:
        row |= _spread("minus none", difference.mean, difference.low, difference.high)
        row["minus none, p"] = difference.p
        row["differs from none"] = "yes" if cell in board.certain else "no"
    if (difference := of.minus_null) is not None:
        row |= _spread("minus null", difference.mean, difference.low, difference.high)
    return row


def _measured(of: Seeds) -> dict[str, Value]:
    """Every metric, control and baseline, the utility and the costs."""
    bounds = _bounds(of)
    row: dict[str, Value] = {}
    for (part, metric), found in of.numbers.items():
        if part not in _AFTER and metric not in audits.NAMES and metric not in bounds:
            row |= _over_seeds(named(part, metric), found)
    row |= bounds
    for part, names in _AFTER.items():
        mine = sorted(name for at, name in of.numbers if at == part)
        for name in sorted(mine, key=names.index) if names else mine:
            found = of.number(part, name)
            row |= (
                _over_seeds(name, found) if part == "utility" else {named(part, name): found.mean}
            )
    return row


def named(part: str, name: str) -> str:
    """Return the heading of a number: ``auc``, ``null auc``, ``updates encoder``.

    Args:
        part: of a result, as in ``Seeds.numbers``.
        name: of the number there.
    """
    before = part.rpartition(".")[2]
    return name if before in ("metrics", "utility") else f"{before} {name}"


def _over_seeds(name: str, found: Series) -> dict[str, Value]:
    if len(found.numbers) == 1 and not found.refused:
        return {name: found.numbers[0]}
    if found.refused or (made := found.estimate) is None:
        return {name: "refused"}
    return _spread(name, made.value, made.low, made.high)


#: Parts of a result that come last, with the order of their names, if that is not theirs.
_AFTER: Mapping[str, Sequence[str]] = {
    "utility": (), "updates": (), "cost": (*Cost.model_fields,),
}  # fmt: skip


def _bounds(of: Seeds) -> dict[str, Value]:
    """Numbers of which a mean over seeds means nothing."""
    boards = {record.board for record in of.ok if record.board is not None}
    columns = {c.name: c.seeds for board in boards for c in board.columns if c.part == "metrics"}
    named = {name for record in of.ok for name in record.metrics}
    row: dict[str, Value] = {
        name: of.smallest("metrics", name)
        for name, seeds in columns.items()
        if name in named and seeds == "smallest"
    }
    if named & {*audits.NAMES}:
        row |= {name: one for name, one in of.bounds.items() if one != MISSING}
    return row


def _spread(name: str, value: float, low: float | None, high: float | None) -> dict[str, Value]:
    ends = {"low": low, "high": high}
    known = {f"{name}, {end}": at for end, at in ends.items() if at is not None}
    return {name: value, **known}


@lru_cache(10_000)
def _harmless(text: str) -> str:
    """The text in one line, for a spreadsheet, which would run what starts like a formula.

    >>> _harmless("=1+1"), _harmless("-0.5"), _harmless("-a")
    ("'=1+1", '-0.5', "'-a")
    """
    told = terminal(" ".join(text.split()))
    try:
        float(told)
    except ValueError:
        return f"'{told}" if told.startswith(("=", "+", "-", "@")) else told
    return told
