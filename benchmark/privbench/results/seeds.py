"""Results over their seeds. Every number of a board is reduced here, once; all others format it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from privbench.results import audits
from privbench.results.audits import MISSING, REFUSED, bound
from privbench.results.record import Number
from privbench.results.statistics import accuracy_interval, clipped, estimate, paired

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from privbench.measure.games.metrics import Estimate
    from privbench.results.audits import Bound
    from privbench.results.record import Record
    from privbench.results.statistics import Difference


@dataclass(frozen=True)
class Series:
    """A number in each of the seeds that have it, the smallest seed first.

    Attributes:
        seeds: that have it.
        numbers: in these seeds.
        row_intervals: ends of the intervals over the rows of each seed; None where there are none.
        refused: whether it cannot be measured in some seed.
    """

    seeds: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    row_intervals: tuple[tuple[float | None, float | None], ...] = ()
    refused: bool = False

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed -> number."""
        return dict(zip(self.seeds, self.numbers, strict=True))

    @cached_property
    def mean(self) -> float:
        """Mean over seeds, of which there is at least one."""
        return sum(self.numbers) / len(self.numbers)

    @cached_property
    def estimate(self) -> Estimate | None:
        """Mean with Student's 95 % interval; that of one seed is the number; None without any."""
        return estimate(self.numbers)

    def within(self, low: float | None, high: float | None) -> Estimate | None:
        """``estimate`` with its interval clipped to a range; None is no end."""
        return None if self.estimate is None else clipped(self.estimate, low, high)


_NONE = Series()


class Seeds:
    """Results that differ in their seed: of a cell, or of a defense at its operating points.

    Attributes:
        records: of any status, by seed.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """Take the results; nothing is reduced before it is asked for."""
        self.records = sorted(records, key=lambda one: one.seed)

    @property
    def first(self) -> Record:
        """One of the results."""
        return self.records[0]

    @cached_property
    def ok(self) -> list[Record]:
        """Those with numbers."""
        return [one for one in self.records if one.status == "ok"]

    @property
    def outside(self) -> bool:
        """Whether the defense claims nothing about this game."""
        cell = self.first.cell
        return bool(cell.protects) and cell.game not in cell.protects

    @cached_property
    def numbers(self) -> dict[tuple[str, str], Series]:
        """All that was measured: part of the result, as a ``Column`` names it, and name -> seeds.

        Other parts are ``utility``, ``updates`` and ``cost``.
        """
        found: dict[tuple[str, str], list[tuple[int, Number]]] = {}
        for record in self.ok:
            for at, number in measured(record):
                found.setdefault(at, []).append((record.seed, number))
        return {at: series(of) for at, of in found.items()}

    def number(self, part: str, name: str) -> Series:
        """Return a number; one that no seed has is empty."""
        return self.numbers.get((part, name), _NONE)

    @cached_property
    def headline(self) -> Series:
        """The main number of the game."""
        return self.main("")

    @cached_property
    def null(self) -> Series:
        """The same on the null victim."""
        return self.main("controls.null")

    def main(self, part: str) -> Series:
        """Return the main number of the game in a part of the result; "" for the game's own."""
        mains = (one.board.columns[0] for one in self.ok if one.board is not None)
        found = [self.number(*at) for at in dict.fromkeys((part or c.part, c.name) for c in mains)]
        if len(found) < 2:  # noqa: PLR2004 - versions of a game may have several
            return found[0] if found else _NONE
        made = sorted(
            of
            for one in found
            for of in zip(one.seeds, one.numbers, one.row_intervals, strict=True)
        )
        seeds, numbers, rows = zip(*made, strict=True) if made else ((), (), ())
        return Series(seeds, numbers, rows)

    @cached_property
    def minus_null(self) -> Difference | None:
        """The main number minus that on the null victim, paired by seed."""
        return paired(self.headline.by_seed, self.null.by_seed)

    @cached_property
    def bounds(self) -> Mapping[str, Bound]:
        """What an audit of an epsilon finds in all seeds together, by the names of its metrics."""
        return audits.bounds(self.ok)

    def smallest(self, part: str, name: str) -> Bound:
        """Return the smallest of several bounds: each holds alone, but their mean is no bound."""
        found = self.number(part, name)
        if found.refused:
            return REFUSED
        return bound(min(found.numbers)) if found.numbers else MISSING

    @cached_property
    def tested(self) -> Estimate | None:
        """Test accuracy, in [0, 1]: several seeds have Student's interval, one a binomial one.

        None if there is none, or if results of one seed differ.
        """
        found = self.number("utility", "test_accuracy")
        values = dict.fromkeys(zip(found.seeds, found.numbers, strict=True))
        if not values or len(values) > len({*found.seeds}):
            return None
        rows = self.number("utility", "test_rows").numbers
        numbers = [number for _, number in values]
        return accuracy_interval(numbers, int(min(rows, default=0))) or estimate(numbers)


def headline(record: Record) -> Number | None:
    """Return the main number of the game; None if it was not measured."""
    return None if record.board is None else record.metrics.get(record.board.columns[0].name)


def null(record: Record) -> Number | None:
    """Return the main number of the game on the null victim; None if it was not measured."""
    if record.board is None:
        return None
    return record.controls.get("null", {}).get(record.board.columns[0].name)


def measured(record: Record) -> Iterator[tuple[tuple[str, str], Number]]:
    """Each number of a result, with its part and name."""
    for name, number in record.metrics.items():
        yield ("metrics", name), number
    for part in ("controls", "baselines"):
        for of, numbers in getattr(record, part).items():
            for name, number in numbers.items():
                yield (f"{part}.{of}", name), number
    spent = {name: getattr(record.cost, name) for name in type(record.cost).model_fields}
    for part, values in (("utility", record.utility), ("updates", record.updates), ("cost", spent)):
        for name, value in values.items():
            if value is not None:
                yield (part, name), Number(value=value)


def series(numbers: Iterable[tuple[int, Number | None]]) -> Series:
    """Return a number in its seeds, in their order; None where a seed does not have it."""
    found = [(seed, number) for seed, number in numbers if number is not None]
    known = [(seed, float(n.value), (n.low, n.high)) for seed, n in found if n.value is not None]
    seeds, values, rows = zip(*known, strict=True) if known else ((), (), ())
    return Series(seeds, values, rows, refused=len(known) < len(found))
