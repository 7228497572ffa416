"""All cells of a board: a line of a table each, and what is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.boards import csv_table, verdicts
from privbench.boards import shown as show
from privbench.boards.html import words
from privbench.boards.rows import over_seeds, summary
from privbench.ground.text import listed, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privbench.ground.columns import Column
    from privbench.results.record import Number, Record

#: Characters of one fact, and of a traceback's end.
_LONG, _TRACE = 600, 4_000
#: Numbers that compare cells.
_APART = ("minus ", "differs ")


@dataclass(frozen=True)
class Table:
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
class Cell:
    """All seeds of one cell.

    Attributes:
        anchor: id of its details.
        records: of all seeds, of any status.
        row: its line of the csv file.
        attack: its name, with hyperparameters only where the name alone is ambiguous.
        metric: name of its headline.
        value: of its headline, as tables show it; "" for none.
        difference: of the headline to no defense; "" for none.
        accuracy: of the victim on test rows.
    """

    anchor: str
    records: Sequence[Record]
    row: Mapping[str, str]
    attack: str
    metric: str
    value: str
    difference: str
    accuracy: str

    @property
    def first(self) -> Record:
        """A result of the cell."""
        return self.records[0]

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
        return self.row.get(self.columns[0].name, "") if self.columns else ""

    @property
    def columns(self) -> Sequence[Column]:
        """Columns of the game's table; () without a result."""
        return next((one.board.columns for one in self.records if one.board is not None), ())

    @property
    def alone(self) -> Record | None:
        """The one result with numbers; None if there are several."""
        ok = [one for one in self.records if one.status == "ok"]
        return ok[0] if len(ok) == 1 else None

    @property
    def numbers(self) -> Table:
        """All that was measured: metrics, controls, baselines, utility, costs, differences.

        Names are words. One seed has its intervals over rows, several have Student's over seeds;
        they are cut to the range of their number.
        """
        given = {name: text for name, text in self.row.items() if name not in csv_table.FIRST}
        ends = {f"{name}, {end}": text for name in given for end in ("low", "high")
                if (text := given.get(f"{name}, {end}"))}  # fmt: skip
        if self.alone is not None:
            ends |= _over_rows(self.alone)

        heads = ["one seed, over its rows" if self.alone else "over seeds",
                 "value" if self.alone else "mean", "low", "high"]  # fmt: skip
        told = sorted((name for name in given if name not in ends),
                      key=lambda name: name.startswith(_APART))  # fmt: skip
        return _filled(heads, [
            [words.words(name, self.columns), given[name], *(
                _within(ends.get(f"{name}, {end}", ""), words.ends(name, self.columns))
                for end in ("low", "high")
            )]
            for name in told
        ])  # fmt: skip

    @property
    def seeds(self) -> Table:
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
            ("doubt", self.row["why marked"]),
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


def cells(records: Sequence[Record]) -> list[Cell]:
    """Return the cells of a board in the order of its csv file.

    Args:
        records: all of a board, of any status, with positive controls.
    """
    found = verdicts.by_cell(records)
    labels: dict[str, set[str]] = {}
    for record in records:
        labels.setdefault(record.cell.attack.name, set()).add(record.cell.attack.label)
    made = []
    for i, (cell, row) in enumerate(csv_table.rows(records).items()):
        mine = found[cell]
        ok = [one for one in mine if one.status == "ok" and one.board is not None]
        attack = mine[0].cell.attack
        alone = len(labels[attack.name]) == 1
        column = show.headline(ok[0].cell.game, ok)[0] if ok else None
        made.append(Cell(
            f"cell-{i}", mine, row, attack.name if alone else attack.label,
            column.heading if column else "",
            over_seeds(column, ok) if column else "", _difference(row),
            verdicts.tested(ok) if ok else "",
        ))  # fmt: skip
    return made


def _difference(row: Mapping[str, str]) -> str:
    if "minus none" not in row:
        return ""
    mark = " †" if row.get("differs from none") == "yes" else ""
    return f"{float(row['minus none']):+.3f}{mark}"


def _filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    return Table([heads[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _seed(record: Record) -> list[str]:
    column = record.board.columns[0] if record.board else None
    number = show.number(record, column) if column else None
    null = verdicts.null(record)
    told = summary([number]) if number else ""
    if column and number is not None and number.low is not None and number.high is not None:
        low, high = words.ends(column.name, [column])
        told += f" [{max(number.low, low):.3f}, {min(number.high, high):.3f}]"
    seconds = record.cost.seconds_training + record.cost.seconds
    return [
        str(record.seed), told or record.status, summary([null]) if null else "",
        verdicts.tested([record]) if record.utility else "", f"{seconds:.1f}" if seconds else "",
        shown(str(record.provenance.get("commit") or "unknown code")), record.trial,
    ]  # fmt: skip


def _groups(record: Record) -> Iterator[tuple[str, Number]]:
    """Numbers of a result, under the names of the csv file."""
    for prefix, numbers in (
        ("", record.metrics),
        *((f"{name} ", numbers) for name, numbers in record.controls.items()),
        *((f"{name} ", numbers) for name, numbers in record.baselines.items()),
    ):
        for name, number in numbers.items():
            yield prefix + name, number


def _over_rows(record: Record) -> dict[str, str]:
    return {
        f"{name}, {end}": f"{at:.{csv_table.DIGITS}g}"
        for name, number in _groups(record)
        for end, at in (("low", number.low), ("high", number.high)) if at is not None
    }  # fmt: skip


def _within(text: str, ends: tuple[float, float]) -> str:
    """An end of an interval, cut to the range of its number."""
    if not text or ends[0] <= float(text) <= ends[1]:
        return text
    return f"{min(max(float(text), ends[0]), ends[1]):g}"


def _refused(record: Record) -> str:
    given = dict.fromkeys(number.refused for _, number in _groups(record) if number.refused)
    return "; ".join(given)


def _plain(values: Mapping[str, Any]) -> str:
    return listed({
        words.spaced(str(name)):
        f"({_plain(value)})" if isinstance(value, Mapping) else shown(value)
        for name, value in values.items()
    })  # fmt: skip


def _end(traceback: str) -> str:
    return traceback if len(traceback) <= _TRACE else f"…{traceback[-_TRACE:]}"
