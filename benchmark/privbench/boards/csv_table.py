"""All numbers of a board as csv: one line for each cell, with means and intervals over seeds."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from privbench.boards import audits, verdicts
from privbench.ground.text import terminal
from privbench.results.statistics import mean_over_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.results.record import Number, Record

#: Significant digits: more would not be the same on another machine.
DIGITS = 6


def table(records: Sequence[Record]) -> str:
    """Return the csv file; equal results give identical bytes.

    A metric has three columns: its mean over seeds and the ends of Student's 95 % interval, which
    one seed does not have. ``refused`` stands for a metric that cannot be measured. Audits have the
    guesses of all seeds together, and bounds that hold one by one their smallest, never a mean.

    Args:
        records: all of a board, of any status, with positive controls.
    """
    return written(rows(records).values())


def written(named: Iterable[Mapping[str, str]]) -> str:
    """Return the csv file of these lines of ``rows``."""
    named = list(named)
    fixed = list(dict.fromkeys(name for row in named for name in row if name in FIRST))
    moving = sorted({name for row in named for name in row} - {*fixed})
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    names = [*fixed, *moving]
    for line in (names, *([row.get(name, "") for name in names] for row in named)):
        writer.writerow(map(_harmless, line))
    return made.getvalue()


def rows(records: Sequence[Record]) -> dict[str, dict[str, str]]:
    """Return cell -> its line of the table: heading -> text, ``FIRST`` and then the numbers.

    Args:
        records: all of a board, of any status, with positive controls.
    """
    doubts, judged = verdicts.doubtful(records), verdicts.judged(records)
    apart = verdicts.to_undefended([r for r in records if not verdicts.is_control(r)])
    certain = verdicts.significant(apart)
    cells = verdicts.by_cell(records)
    made: dict[str, dict[str, str]] = {}
    for cell, found in sorted(cells.items(), key=lambda item: _place(item[1][0])):
        row = _named(found, judged.mark(found[0]), doubts.get(cell, ""))
        if (difference := apart.get(cell)) is not None:
            row |= _spread("minus none", difference.mean, difference.low, difference.high)
            row["minus none, p"] = "" if difference.p is None else _text(difference.p)
            row["differs from none"] = "yes" if cell in certain else "no"
        if (difference := verdicts.to_null(found)) is not None:
            row |= _spread("minus null", difference.mean, difference.low, difference.high)
        made[cell] = row | _measured(found)
    return made


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
    return *first, "" if cell.defense == "none" else cell.defense, cell.model_dump_json()


def _named(found: Sequence[Record], mark: str, doubt: str) -> dict[str, str]:
    first = found[0]
    cell = first.cell
    ok = [record for record in found if record.status == "ok"]
    statuses = sorted({record.status for record in found})
    return {
        "dataset": cell.dataset.label, "protocol": str(cell.protocol.get("name", "default")),
        "target": cell.target.label, "defense": cell.defense, "attack": cell.attack.label,
        "needs": cell.needs, "game": cell.game,
        "sensitive": " ".join(cell.sensitive), "phase": first.phase, "adversary": cell.adversary,
        "planted leak": "yes" if cell.control else "no", "status": " ".join(statuses),
        "reason": "; ".join(dict.fromkeys(r.reason for r in found if r.reason)),
        "seeds": " ".join(str(record.seed) for record in ok), "mark": mark,
        "why marked": doubt or ("it missed a planted leak" if mark else ""),
        "outside the claim": "yes" if cell.protects and cell.game not in cell.protects else "no",
        "decides at": cell.decides_at,
    }  # fmt: skip


def _measured(found: Sequence[Record]) -> dict[str, str]:
    """Every metric, control and baseline, the utility and the costs."""
    ok = [record for record in found if record.status == "ok"]
    row: dict[str, str] = {}
    parts: dict[str, list[Number]] = {}
    for record in ok:
        groups = {"": record.metrics}
        groups |= {f"{name} ": numbers for name, numbers in record.controls.items()}
        groups |= {f"{name} ": numbers for name, numbers in record.baselines.items()}
        for prefix, numbers in groups.items():
            for name, number in numbers.items():
                parts.setdefault(prefix + name, []).append(number)
    bounds = _bounds(ok)
    for name, found_numbers in parts.items():
        if name in bounds or name in audits.NAMES:
            continue
        values = [number.value for number in found_numbers if number.value is not None]
        row |= _mean(name, values) if len(values) == len(found_numbers) else {name: "refused"}
    row |= bounds
    for name in sorted({name for record in ok for name in record.utility}):
        row |= _mean(name, [r.utility[name] for r in ok if name in r.utility])
    for name in sorted({name for record in ok for name in record.updates}):
        values = [float(r.updates[name]) for r in ok if name in r.updates]
        row[f"updates {name}"] = _text(sum(values) / len(values))
    for name in type(found[0].cost).model_fields:
        given = [value for r in ok if (value := getattr(r.cost, name)) is not None]
        if given:
            row[f"cost {name}"] = _text(sum(given) / len(given))
    return row


def _bounds(ok: Sequence[Record]) -> dict[str, str]:
    """Numbers of which a mean over seeds means nothing."""
    boards = {record.board for record in ok if record.board is not None}
    columns = {c.name: c.seeds for board in boards for c in board.columns if c.part == "metrics"}
    named = {name for record in ok for name in record.metrics}
    row = {
        name: audits.smallest([record.metrics.get(name) for record in ok])
        for name, seeds in columns.items()
        if name in named and seeds == "smallest"
    }
    if named & {*audits.NAMES}:
        row |= {name: text for name, text in audits.texts(ok).items() if text != "–"}
    return row


def _mean(name: str, values: Sequence[float]) -> dict[str, str]:
    if len(values) == 1:
        return {name: _text(values[0])}
    made = mean_over_seeds(list(values))
    return _spread(name, made.value, made.low, made.high)


def _spread(name: str, value: float, low: float | None, high: float | None) -> dict[str, str]:
    ends = {"low": low, "high": high}
    return {name: _text(value)} | {
        f"{name}, {end}": _text(at) for end, at in ends.items() if at is not None
    }


def _text(value: float) -> str:
    return f"{value:.{DIGITS}g}"


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
