"""All cells of a board: a line of a table each, and what is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.boards import csv_table, game_columns
from privbench.boards.html import words
from privbench.boards.rows import over_seeds, summary, tested
from privbench.ground.text import listed, shown
from privbench.results.seeds import Seeds, measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.csv_table import Value
    from privbench.ground.columns import Column
    from privbench.results.record import Record
    from privbench.results.statistics import Difference

#: Characters of one fact, and of a traceback's end.
_LONG, _TRACE = 600, 4_000
#: Numbers that compare cells.
_APART = ("minus ", "differs ")


@dataclass(frozen=True)
class PageTable:
    """A table as text, without the columns in which nothing stands."""

    heads: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Trouble:
    """Why seeds have no number."""

    seeds: str
    status: str
    reason: str
    traceback: str


@dataclass
class PageCell:
    """All seeds of one cell.

    Attributes:
        anchor: id of its details.
        over: its results.
        row: its line of the csv file.
        attack: its name, with hyperparameters only where the name alone is ambiguous.
        metric: name of its headline.
        value: of its headline, as tables show it; "" for none.
        difference: of the headline to no defense; "" for none.
    """

    anchor: str
    over: Seeds
    row: Mapping[str, Value]
    attack: str
    metric: str
    value: str
    difference: str

    @property
    def records(self) -> Sequence[Record]:
        """All results, by seed."""
        return self.over.records

    @property
    def accuracy(self) -> str:
        """That of the victim on test rows; "" without a result."""
        return tested(self.over) if self.metric else ""

    @property
    def first(self) -> Record:
        """A result of the cell."""
        return self.over.first

    @property
    def title(self) -> str:
        """What the cell is."""
        cell = self.first.cell
        return f"{cell.attack.label} against {cell.defense} ({cell.adversary} adversary)"

    @property
    def place(self) -> str:
        """Where it was measured."""
        row = self.row
        protocol = "" if row["protocol"] == "default" else f", protocol {row['protocol']}"
        of = f" of {row['sensitive']}" if self._tells("sensitive") else ""
        return f"{row['game']}{of}: {row['target']} on {row['dataset']}{protocol}"

    @property
    def sortable(self) -> str:
        """The headline, to sort by."""
        return csv_table.text(self.row.get(self.columns[0].name)) if self.columns else ""

    @property
    def columns(self) -> Sequence[Column]:
        """Columns of the game's table; () without a result."""
        return next((one.board.columns for one in self.records if one.board is not None), ())

    @property
    def numbers(self) -> PageTable:
        """All that was measured: metrics, controls, baselines, utility, costs, differences.

        Names are words. One seed has its intervals over rows, several have Student's over seeds;
        they are cut to the range of their number.
        """
        given = {name: of for name, of in self.row.items() if name not in csv_table.FIRST}
        ends = {f"{name}, {end}": of for name in given for end in ("low", "high")
                if isinstance(of := given.get(f"{name}, {end}"), float)}  # fmt: skip
        alone = len(self.over.ok) == 1
        if alone:
            ends |= _over_rows(self.over)
        heads = ["one seed, over its rows" if alone else "over seeds",
                 "value" if alone else "mean", "low", "high"]  # fmt: skip
        told = sorted((name for name in given if name not in ends),
                      key=lambda name: name.startswith(_APART))  # fmt: skip
        return _filled(heads, [
            [words.words(name, self.columns), csv_table.text(given[name]), *(
                _within(ends.get(f"{name}, {end}"), words.ends(name, self.columns))
                for end in ("low", "high")
            )]
            for name in told
        ])  # fmt: skip

    @property
    def seeds(self) -> PageTable:
        """Each result alone: its headline with the interval over rows, what it cost, what made it.

        The first column names the seed.
        """
        heads = ["seed", f"{self.metric or 'number'} [over rows]", "null victim", "test accuracy",
                 "seconds", "code", "trial"]  # fmt: skip
        return _filled(heads, [_seed(record) for record in self.records])

    @property
    def troubles(self) -> list[Trouble]:
        """Reasons of seeds without a number, each once."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for one in self.records:
            if one.reason or one.traceback:
                found.setdefault((one.status, one.reason, one.traceback), []).append(one.seed)
        return [
            Trouble(", ".join(map(str, seeds)), status, reason, _end(traceback))
            for (status, reason, traceback), seeds in found.items()
        ]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Threat model, protocol, claims, provenance."""
        one, cell = self.first, self.first.cell
        told = [
            ("doubt", csv_table.text(self.row["why marked"])),
            ("refused", "; ".join(dict.fromkeys(map(_refused, self.records)))),
            ("the victim grants", cell.access.lower().replace("+", ", ")),
            ("the attack reads", cell.needs.lower().replace("+", ", ")),
            ("adversary", cell.adversary),
            ("the defense claims to protect", ", ".join(cell.protects)),
            ("decides at", cell.decides_at),
            ("phase in question", one.phase),
            ("protocol", _plain(cell.protocol)),
            ("rows", _plain(one.sizes)),
            ("claims", "; ".join(map(_plain, one.claims))),
            ("notes", _plain(one.notes)),
            ("preset", cell.preset),
            ("made by", _plain(one.provenance)),
        ]
        return [(name, shown(" ".join(text.split()), _LONG)) for name, text in told if text]

    def _tells(self, what: str) -> bool:
        return any(what in one.board.tells for one in self.records if one.board is not None)


def cells(board: Leaderboard) -> list[PageCell]:
    """Return the cells of a board in the order of its csv file."""
    labels: dict[str, set[str]] = {}
    for record in board.records:
        labels.setdefault(record.cell.attack.name, set()).add(record.cell.attack.label)
    made = []
    for i, (cell, row) in enumerate(csv_table.rows(board).items()):
        of = board.cells[cell]
        known = [one for one in of.ok if one.board is not None]
        attack = of.first.cell.attack
        alone = len(labels[attack.name]) == 1
        column = game_columns.headline_column(of.first.cell.game, known)[0] if known else None
        made.append(PageCell(
            f"cell-{i}", of, row, attack.name if alone else attack.label,
            column.heading if column else "", over_seeds(column, of) if column else "",
            _difference(board.minus_none.get(cell), certain=cell in board.certain),
        ))  # fmt: skip
    return made


def _difference(found: Difference | None, *, certain: bool) -> str:
    return "" if found is None else f"{found.mean:+.3f}{' †' if certain else ''}"


def _filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> PageTable:
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    return PageTable([heads[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _seed(record: Record) -> list[str]:
    of = Seeds([record])
    main, columns = of.headline, record.board.columns if record.board else ()
    told = summary(main) if main.numbers or main.refused else ""
    low, high = main.row_intervals[0] if main.numbers else (None, None)
    if low is not None and high is not None:
        ends = words.ends(columns[0].name, columns[:1])
        low, high = _cut(low, ends), _cut(high, ends)
        told += f" [{low:.3f}, {high:.3f}]"
    null = of.null
    seconds = record.cost.seconds_training + record.cost.seconds
    return [
        str(record.seed), told or record.status,
        summary(null) if null.numbers or null.refused else "",
        tested(of) if record.utility else "", f"{seconds:.1f}" if seconds else "",
        shown(str(record.provenance.get("commit") or "unknown code")), record.trial,
    ]  # fmt: skip


def _over_rows(of: Seeds) -> dict[str, float]:
    """Ends of the intervals over the rows of the one seed, under the names of the csv file."""
    return {
        f"{csv_table.named(*at)}, {end}": number
        for at, series in of.numbers.items() if series.row_intervals
        for end, number in zip(("low", "high"), series.row_intervals[0], strict=True)
        if number is not None
    }  # fmt: skip


def _within(end: float | None, ends: tuple[float, float]) -> str:
    """An end of an interval, cut to the range of its number."""
    return "" if end is None else csv_table.text(_cut(end, ends))


def _cut(end: float, ends: tuple[float, float]) -> float:
    return min(max(end, ends[0]), ends[1])


def _refused(record: Record) -> str:
    given = dict.fromkeys(number.refused for _, number in measured(record) if number.refused)
    return "; ".join(given)


def _plain(values: Mapping[str, Any]) -> str:
    return listed({
        words.spaced(str(name)):
        f"({_plain(value)})" if isinstance(value, Mapping) else shown(value)
        for name, value in values.items()
    })  # fmt: skip


def _end(traceback: str) -> str:
    return traceback if len(traceback) <= _TRACE else f"…{traceback[-_TRACE:]}"
