"""Two results of one trial, number by number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privbench.ground.text import shown
from privbench.results.record import Number
from privbench.results.statistics import accuracy_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from privbench.results.record import Record


#: What a claim promises.
_PROMISED = ("epsilon", "delta", "adjacency", "phase", "guarantee")
#: A published interval counts up to that many times the width of ours, and up to that width.
_WIDER, _LEAST = 1.5, 0.01


@dataclass(frozen=True)
class SameNumber:
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
) -> list[SameNumber]:
    """Compare all numbers that a published result has with those of another.

    These are the metrics of the attack on the victim, on the controls and of the baselines, and the
    accuracies with their binomial intervals, of as many rows as ours have. A number that only ours
    has differs if both are of one trial, or if it is the first of the board; other code may have
    more of them.
    """
    rows = ours.utility.get("test_rows")
    found, other = dict(_numbers(published, rows)), dict(_numbers(ours, rows))
    first = ours.board.columns[0].name if ours.board else ""
    made = []
    for name in found | other:
        theirs, mine = found.get(name), other.get(name)
        if theirs is not None or name == first or published.trial == ours.trial:
            agrees = theirs is not None and mine is not None and agree(theirs, mine)
            made.append(SameNumber(name, theirs, mine, agrees))
    return made


def unlike(published: Record, ours: Record) -> list[str]:
    """Return what two results of one trial say differently about themselves.

    What training decides is left out: another processor gives other numbers, also in notes of a
    claim, such as a sampled sensitivity.
    """
    there, here = (
        {
            **one.model_dump(mode="json", include={"cell", "phase", "sizes", "strengths"}),
            "claims": [{name: claim.get(name) for name in _PROMISED} for claim in one.claims],
        }
        for one in (published, ours)
    )
    return sorted(_unlike("", there, here))


def _unlike(at: str, there: Any, here: Any) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there | here:
            inside = f"{at}.{name}" if at else str(name)
            yield from _unlike(inside, there.get(name), here.get(name))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, pair in enumerate(zip(there, here, strict=True)):
            yield from _unlike(f"{at}[{i}]", *pair)
    elif isinstance(there, float) and isinstance(here, int | float):  # published: six digits
        if not math.isclose(there, here, rel_tol=1e-5, abs_tol=1e-9):
            yield at
    elif there != here:
        yield at


def _numbers(record: Record, rows: float | None) -> Iterator[tuple[str, Number]]:
    yield from record.metrics.items()
    for part in (record.controls, record.baselines):
        for who, metrics in part.items():
            yield from ((f"{who} {name}", number) for name, number in metrics.items())
    for kind in ("test", "train", "reference", "probe", "untrained"):
        accuracy = record.utility.get(f"{kind}_accuracy")
        if accuracy is not None:
            share = 0 <= accuracy <= 1
            made = accuracy_interval([accuracy], int(rows)) if rows and share else None
            yield f"{kind} accuracy", Number.of(made) if made else Number(value=accuracy)


def within_intervals(theirs: Number, mine: Number) -> bool:
    """Whether one of the values lies in the other's interval, or both were refused.

    The published interval counts only if it is not much wider than ours.
    """
    if theirs.value is None or mine.value is None:
        return theirs.value is None and mine.value is None
    if same(theirs, mine) or _holds(mine, theirs.value):
        return True
    return _holds(theirs, mine.value) and _width(theirs) <= max(_WIDER * _width(mine), _LEAST)


def _width(number: Number) -> float:
    return 0.0 if number.low is None or number.high is None else number.high - number.low


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


def table(rows: Sequence[SameNumber]) -> str:
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
