"""Two results of one trial, number by number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.ground.text import shown
from privbench.results.record import Number
from privbench.results.statistics import accuracy_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from privbench.results.record import Record


@dataclass(frozen=True)
class Compared:
    """A number of a result, and the same of another.

    Attributes:
        name: of the number; that of a control or baseline begins with the name of this one.
        published, ours: the numbers; None where there is none.
        agrees: whether they agree.
    """

    name: str
    published: Number | None
    ours: Number | None
    agrees: bool


def compared(
    published: Record, ours: Record, agree: Callable[[Number, Number], bool]
) -> list[Compared]:
    """Compare all numbers that a published result has with those of another.

    These are the metrics of the attack on the victim, on the controls and of the baselines, and the
    test accuracy with its binomial interval. A number that only the other result has is left out.
    """
    found, other = dict(_numbers(published)), dict(_numbers(ours))
    made = []
    for name, theirs in found.items():
        mine = other.get(name)
        made.append(Compared(name, theirs, mine, mine is not None and agree(theirs, mine)))
    return made


def _numbers(record: Record) -> Iterator[tuple[str, Number]]:
    yield from record.metrics.items()
    for part in (record.controls, record.baselines):
        for who, metrics in part.items():
            yield from ((f"{who} {name}", number) for name, number in metrics.items())
    accuracy, rows = (record.utility.get(name) for name in ("test_accuracy", "test_rows"))
    if accuracy is not None and 0 <= accuracy <= 1:
        made = accuracy_interval([accuracy], int(rows) if rows and rows > 0 else None)
        yield "test accuracy", Number.of(made) if made else Number(value=accuracy)


def within_intervals(theirs: Number, mine: Number) -> bool:
    """Whether one of the values lies in the other's interval, or both were refused."""
    if theirs.value is None or mine.value is None:
        return theirs.value is None and mine.value is None
    return same(theirs, mine) or _holds(theirs, mine.value) or _holds(mine, theirs.value)


def _holds(number: Number, value: float) -> bool:
    """Whether the number's interval holds the value."""
    return number.low is not None and number.high is not None and number.low <= value <= number.high


def same(theirs: Number, mine: Number) -> bool:
    """Whether values and intervals are equal to one part in 100,000, or both were refused."""
    pairs = ((theirs.value, mine.value), (theirs.low, mine.low), (theirs.high, mine.high))
    return all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
        for a, b in pairs
    )


def table(rows: Sequence[Compared]) -> str:
    """Return the numbers as a table for a terminal: a line each."""
    heads = ("number", "published", "ours", "")
    lines = [heads, *(
        (shown(one.name), told(one.published), told(one.ours),
         "agrees" if one.agrees else "differs")
        for one in rows
    )]  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join("  ".join([*map(str.ljust, line, widths), line[3]]).rstrip() for line in lines)


def told(number: Number | None) -> str:
    """Return a number with its interval, in three digits."""
    if number is None:
        return "none"
    if number.value is None:
        return "refused"
    if number.low is None or number.high is None or number.low == number.high:
        return f"{number.value:.3g}"
    return f"{number.value:.3g} [{number.low:.3g}, {number.high:.3g}]"
