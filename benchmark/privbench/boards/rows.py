"""Rows of a game's table as text, one for each cell: what a terminal shows of a board."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privbench.boards import audits, verdicts
from privbench.boards import shown as show
from privbench.results.statistics import FEWEST_SEEDS, mean_over_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.ground.columns import Column
    from privbench.results.record import Number, Record
    from privbench.results.statistics import Difference


@dataclass
class Row:
    """One cell over its seeds; ``apart`` distinguishes rows that would look the same.

    ``marks`` follow the attack's name, ``differences`` are the texts of the paired columns.
    """

    key: tuple[str, ...]
    apart: str = ""
    records: list[Record] = field(default_factory=list)
    marks: str = ""
    differences: list[str] = field(default_factory=list)


def headings(game: str, records: Sequence[Record]) -> list[str]:
    """Column headings of a game's table."""
    fixed = ["dataset", "target", "attack"]
    if show.tells(game, records, "phase"):
        fixed.append("phase")
    fixed += ["defense", "adversary", "seeds"]
    moving = [column.heading for column in show.columns(game, records)]
    return [*fixed, *moving, *differing(game, records), "test accuracy", "train/test gap",
            "encoder updates",
            "queries per sample", "seconds", "peak MiB"]  # fmt: skip


def ranked(records: Iterable[Record]) -> list[Record]:
    """The results without positive controls."""
    return [record for record in records if not verdicts.is_control(record)]


def differing(game: str, records: Sequence[Record]) -> list[str]:
    """Headings of the columns of paired differences."""
    heading = show.headline(game, records)[0].heading
    nulls = [f"{heading} minus null"] if _nulls(records) else []
    return [f"{heading} minus none", *nulls, "test accuracy minus none"]


def cells(
    game: str, records: Iterable[Record], board: Sequence[Record] | None = None
) -> list[list[str]]:
    """Rows of a game's table, as text, ordered by the names of the cells.

    Args:
        game: name of the game.
        records: of that game, all ok, without positive controls.
        board: all records, which decide what is doubtful; by default these.
    """
    rows: dict[str, Row] = {}
    records = list(records)
    shown = show.columns(game, records)
    phase = show.tells(game, records, "phase")
    for record in records:
        identity = verdicts.cell_of(record)
        rows.setdefault(identity, Row(_key(record))).records.append(record)
    _tell_apart(list(rows.values()))
    _judge(rows, board or records)
    ordered = sorted(rows.values(), key=lambda row: (_order(row.key), row.apart))
    return [_cells(row, shown, phase=phase) for row in ordered]


def _judge(rows: Mapping[str, Row], board: Sequence[Record]) -> None:
    """Fill in the marks and differences of rows, given by their cells."""
    judged = verdicts.judged(board)
    shown = [record for row in rows.values() for record in row.records]
    apart = verdicts.to_undefended(shown)
    useful = verdicts.to_undefended(shown, verdicts.accuracy)
    certain = verdicts.significant(apart)
    nulls = _nulls(shown)
    for cell, row in rows.items():
        first = row.records[0]
        if cell in judged.doubtful:
            row.marks += " ‡"
        if judged.blind(first):
            row.marks += " ¶"
        row.differences = [_signed(apart.get(cell)) + (" †" if cell in certain else "")]
        if nulls:
            row.differences.append(_signed(verdicts.to_null(row.records)))
        row.differences.append(_signed(useful.get(cell)))


def _nulls(records: Iterable[Record]) -> bool:
    """Whether any result has the game's main number on a null victim."""
    return any(verdicts.null(record) is not None for record in records)


def _signed(difference: Difference | None) -> str:
    """A difference with its interval over seeds; ``–`` if there is none."""
    if difference is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def _tell_apart(rows: Sequence[Row]) -> None:
    """Label rows that look the same although their cells differ with the differing fields."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(row.key, []).append(row)
    for group in alike.values():
        told = show.differing([row.records[0].cell.model_dump(mode="json") for row in group])
        for row, text in zip(group, told, strict=True):
            row.apart = text


def _order(key: tuple[str, ...]) -> tuple[tuple[bool, str], ...]:
    """Sort by name, with the baseline ``none`` before all defenses."""
    return tuple((part != "none", part) for part in key)


def _key(record: Record) -> tuple[str, ...]:
    cell = record.cell
    dataset = cell.dataset.label
    if (protocol := cell.protocol.get("name", "default")) != "default":
        dataset += f" ({protocol})"
    attack = cell.attack.label
    if record.board and "sensitive" in record.board.tells:
        attack += f" [{', '.join(cell.sensitive)}]"
    return (dataset, cell.target.label, attack, record.phase, cell.defense, cell.adversary)


def _cells(row: Row, shown: Iterable[Column], *, phase: bool) -> list[str]:
    dataset, target, attack, trained, defense, adversary = row.key
    records = sorted(row.records, key=lambda record: record.seed)
    first = records[0]
    outside = bool(first.cell.protects) and first.cell.game not in first.cell.protects
    attack += row.marks
    fixed = [f"{dataset} ({row.apart})" if row.apart else dataset, target, attack]
    if phase:
        fixed.append(trained)
    draft = " (draft)" if len(records) < FEWEST_SEEDS else ""
    draft = " (draft, no interval)" if len(records) == 1 else draft
    fixed += [defense + (" °" if outside else ""), adversary, f"{len(records)}{draft}"]
    moving = [over_seeds(column, records) for column in shown]
    return [
        *fixed,
        *moving,
        *row.differences,
        verdicts.tested(records),
        _mean(records, lambda r: r.utility.get("gap")),
        _mean(records, lambda r: float(r.updates["encoder"]) if "encoder" in r.updates else None,
              "{:.0f}"),
        _mean(records, lambda r: r.cost.queries_per_sample, "{:.0f}"),
        _mean(records, lambda r: r.cost.seconds_training + r.cost.seconds, "{:.1f}"),
        _mean(records, lambda r: r.cost.peak_bytes / 2**20, "{:.0f}"),
    ]  # fmt: skip


def over_seeds(column: Column, records: Sequence[Record]) -> str:
    """Return what a column shows of the seeds of one cell."""
    if column.seeds == "pooled":
        return audits.texts(records).get(column.name, "–")
    numbers = [show.number(record, column) for record in records]
    if column.seeds == "smallest":
        return audits.smallest(numbers)
    low = -math.inf if column.low is None else column.low
    bounds = low, math.inf if column.high is None else column.high
    return summary(numbers, bounds)


def summary(numbers: Sequence[Number | None], bounds: tuple[float, float] = (0.0, 1.0)) -> str:
    """Mean with its interval over seeds; ``–`` if not measured, ``refused`` if that is impossible.

    One seed has no interval.

    Args:
        numbers: one per seed.
        bounds: range of the metric; an interval over seeds is clipped to it.
    """
    given = [n for n in numbers if n is not None]
    if not given:
        return "–"
    values = [n.value for n in given if n.value is not None]
    if len(values) < len(given):
        return "refused"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    mean = mean_over_seeds(values)
    low, high = max(mean.low, bounds[0]), min(mean.high, bounds[1])
    return f"{mean.value:.3f} [{low:.3f}, {high:.3f}]"


def _mean(
    records: Sequence[Record], read: Callable[[Record], float | None], form: str = "{:.3f}"
) -> str:
    values = [value for value in map(read, records) if value is not None]
    return form.format(sum(values) / len(values)) if values else "–"
