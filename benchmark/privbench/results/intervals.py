"""Figures of a membership attack with intervals at any level, also of a larger audit like this one.

The formulas are those of ``measure.games.metrics``, whose intervals are 95 %. Several attacks need
narrower errors, and "how many rows would decide" needs the interval of rows that nobody has: those
of a sample of another size with the same distribution of scores.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from privbench.measure.games.metrics import Estimate, Refused, clopper_pearson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from privbench.results.samples import Columns

#: Where ``epsilon`` is read off the ROC curve, and its delta.
EPSILON_FPR, DELTA = 0.01, 1e-5
_ROUNDING = 1e-9  # .29 * 100 is 28.999999999999996 in floating point, but should count as 29


@dataclass(frozen=True)
class Answers:
    """What an attack answered about members and nonmembers.

    Attributes:
        inside: (m,) scores of the members, decreasing; higher means more likely a member.
        outside: (n,) scores of the nonmembers, decreasing.
        called: how many members and how many nonmembers were called members; None without
            decisions.
    """

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    called: tuple[int, int] | None = None

    @classmethod
    def of(cls, columns: Columns) -> Answers:
        """Take them from the per-sample scores of a result."""
        member = columns["truth.member"].astype(bool)
        scores = columns["victim.scores"].astype(np.float64)
        called = None
        if "victim.decisions" in columns:
            decided = columns["victim.decisions"].astype(bool)
            called = int(decided[member].sum()), int(decided[~member].sum())
        return cls(np.sort(scores[member])[::-1], np.sort(scores[~member])[::-1], called)

    @classmethod
    def of_no_leak(cls, rows: int = 100_000) -> Answers:
        """Those of an attack that learns nothing: both sides have the same scores."""
        scores = np.arange(rows, 0.0, -1.0)
        half = round(rows / 2)
        return cls(scores, scores, (half, half))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of members and nonmembers."""
        return self.inside.size, self.outside.size

    @cached_property
    def placed(self) -> tuple[float, float, float]:
        """The AUC, and the variances of members' and nonmembers' placements (DeLong)."""
        inside = _placements(self.inside, self.outside)
        outside = _placements(self.outside, self.inside)
        few = min(self.sizes) < 2  # noqa: PLR2004 - one value has no variance
        spread = (0.0, 0.0) if few else (float(inside.var(ddof=1)), float(outside.var(ddof=1)))
        return float(inside.mean()), *spread


class Measure(Protocol):
    """How a figure is computed."""

    def __call__(self, of: Answers, error: float, rows: tuple[int, int]) -> Estimate | Refused:
        """Return it with a two-sided interval.

        Args:
            of: what the attack answered.
            error: probability that the interval misses the truth, both sides together, in (0, 1).
            rows: numbers of members and nonmembers that the interval is for.
        """


def auc(of: Answers, error: float, rows: tuple[int, int]) -> Estimate:
    """See ``metrics.auc``."""
    from scipy.special import ndtri

    value, inside, outside = of.placed
    spread = math.sqrt(inside / rows[0] + outside / rows[1])
    if spread == 0:
        return _within(value, *clopper_pearson(value * min(rows), min(rows), 1 - error))
    odds = value / (1 - value)
    factor = math.exp(-float(ndtri(1 - error / 2)) * spread / (value * (1 - value)))
    return _within(value, odds * factor / (1 + odds * factor), odds / (odds + factor))


def tpr_at_fpr(
    of: Answers, error: float, rows: tuple[int, int], *, fpr: float
) -> Estimate | Refused:
    """See ``metrics.tpr_at_fpr``."""
    from scipy.special import bdtr, bdtrc

    members, n = rows
    tolerated = math.floor(fpr * n + _ROUNDING)
    if tolerated < 1:
        needed = math.ceil(1 / fpr - _ROUNDING)
        return Refused(f"TPR at FPR {fpr:g} needs at least {needed} nonmembers, got {n}.")
    tail = error / 4
    few = bisect.bisect_right(range(n), tail, key=lambda k: float(bdtr(k, n, fpr)))
    many = 1 + bisect.bisect_left(range(n), -tail, key=lambda k: -float(bdtrc(k, n, fpr)))
    share = members / of.inside.size

    def threshold(place: int) -> float:
        return float(of.outside[int((place + 0.5) * of.outside.size / n)])

    def beyond(limit: float, *, ties: bool = False) -> float:
        hits = of.inside >= limit if ties else of.inside > limit
        return float(hits.sum()) * share

    hits = beyond(threshold(tolerated))
    low, _ = clopper_pearson(beyond(threshold(few - 1)) if few else 0, members, 1 - 2 * tail)
    possible = beyond(threshold(many - 1), ties=True) if many <= n else float(members)
    _, high = clopper_pearson(possible, members, 1 - 2 * tail)
    return _within(hits / members, low, high)


def balanced_accuracy(of: Answers, error: float, rows: tuple[int, int]) -> Estimate | Refused:
    """See ``metrics.balanced_accuracy``; refused if the attack decides nothing."""
    if of.called is None:
        return Refused("the attack decides nothing")
    right = of.called[0], of.outside.size - of.called[1]
    rates = [hits / size for hits, size in zip(right, of.sizes, strict=True)]
    ends = [clopper_pearson(p * n, n, 1 - error) for p, n in zip(rates, rows, strict=True)]
    below = math.hypot(*(p - low for p, (low, _) in zip(rates, ends, strict=True)))
    above = math.hypot(*(high - p for p, (_, high) in zip(rates, ends, strict=True)))
    value = sum(rates) / 2
    return _within(value, value - below / 2, value + above / 2)


def epsilon(of: Answers, error: float, rows: tuple[int, int]) -> Estimate | Refused:
    """Return the epsilon that an attack shows at 1 % of false alarms, with delta 1e-5.

    If a training is (epsilon, delta)-DP, then TPR <= e^epsilon FPR + delta at every threshold
    (Kairouz, Oh, Viswanath: The Composition Theorem for Differential Privacy. ICML 2015). So
    ln((TPR - delta) / FPR) is a lower bound of epsilon, at FPR 1 % at most 4.605. The interval is
    that of the TPR: it allows for the estimated threshold.
    """
    found = tpr_at_fpr(of, error, rows, fpr=EPSILON_FPR)
    if isinstance(found, Refused):
        return found
    return Estimate(*map(shown_epsilon, (found.value, found.low, found.high)))


def shown_epsilon(tpr: float) -> float:
    """Return the epsilon of a TPR at 1 % of false alarms.

    >>> round(shown_epsilon(0.0739), 2), shown_epsilon(0.01)
    (2.0, 0.0)
    """
    return math.log(max((tpr - DELTA) / EPSILON_FPR, 1.0))


@dataclass(frozen=True)
class Figure:
    """A number of an attack that can be compared with a threshold.

    Attributes:
        measure: how it is computed.
        chance: what an attack that learns nothing reaches.
        most: what a perfect attack reaches.
        form: how it is written.
        note: what words add; "" for nothing.
    """

    measure: Measure
    chance: float
    most: float
    form: str = "{:.3f}"
    note: str = ""


#: Name -> figure.
FIGURES: Mapping[str, Figure] = {
    "auc": Figure(auc, 0.5, 1.0),
    "balanced_accuracy": Figure(balanced_accuracy, 0.5, 1.0),
    "epsilon": Figure(
        epsilon, 0.0, shown_epsilon(1.0), "{:.2f}",
        f"epsilon is ln((TPR - {DELTA:g}) / FPR) at {EPSILON_FPR:.0%} false alarms: what attacks "
        "show, a lower bound of what differential privacy would need.",
    ),
    "tpr@0.1%": Figure(partial(tpr_at_fpr, fpr=0.001), 0.001, 1.0, "{:.2%}"),
    "tpr@1%": Figure(partial(tpr_at_fpr, fpr=0.01), 0.01, 1.0, "{:.1%}"),
}  # fmt: skip

#: More rows than anybody has.
MOST_ROWS = 10_000_000


def rows_that_decide(
    name: str, of: Answers, threshold: float, error: float, fewest: int
) -> int | None:
    """Return how many members, and as many nonmembers, would put the interval beside a threshold.

    The smallest number from ``fewest`` on, to one part in a hundred, if these rows had the same
    distribution of scores.

    Returns:
        None if ten million of each would not.
    """

    def decides(rows: int) -> bool:
        made = FIGURES[name].measure(of, error, (rows, rows))
        return isinstance(made, Estimate) and not made.low <= threshold <= made.high

    low = high = fewest
    while not decides(high):
        low, high = high, 2 * high
        if high > MOST_ROWS:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _placements(values: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of ``others`` below each value; equal ones count half."""
    ranked = others[::-1]
    doubled = np.searchsorted(ranked, values, "left") + np.searchsorted(ranked, values, "right")
    return doubled / (2 * others.size)


def _within(value: float, low: float, high: float) -> Estimate:
    """Return an interval that holds its value and lies in [0, 1], whatever rounding did."""
    return Estimate(value, max(min(low, value), 0.0), min(max(high, value), 1.0))
