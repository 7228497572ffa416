"""Figures of a membership attack with intervals at any level, also of a larger audit like this one.

Intervals of results are 95 %. An audit of several attacks needs smaller errors. How many rows would
decide follows from the interval of a larger sample with the same distribution of scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privbench.measure.games import metrics
from privbench.measure.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from privbench.results.samples import Columns

#: Where ``epsilon`` is read off the ROC curve, and its delta.
EPSILON_FPR, DELTA = 0.01, 1e-5
#: Of each side, that stand for an attack that learns nothing.
_ROWS = 100_000


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
    def of_no_leak(cls) -> Answers:
        """Those of an attack that learns nothing: both sides have the same scores."""
        scores = np.arange(_ROWS, 0.0, -1.0)
        return cls(scores, scores, (_ROWS // 2, _ROWS // 2))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of members and nonmembers."""
        return self.inside.size, self.outside.size

    @cached_property
    def placed(self) -> tuple[float, float, float]:
        """See ``metrics.placed``."""
        return metrics.placed(self.inside, self.outside)


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
    return metrics.placed_auc(of.placed, rows, error)


def tpr_at_fpr(
    of: Answers, error: float, rows: tuple[int, int], *, fpr: float
) -> Estimate | Refused:
    """See ``metrics.tpr_at_fpr``."""
    return metrics.sorted_tpr(of.inside, of.outside, fpr, rows, error)


def balanced_accuracy(of: Answers, error: float, rows: tuple[int, int]) -> Estimate | Refused:
    """See ``metrics.balanced_accuracy``; refused if the attack decides nothing."""
    if of.called is None:
        return Refused("the attack decides nothing")
    right, trials = np.array(of.called), np.array(rows)
    right[1] = of.outside.size - right[1]
    return metrics.mean_rate(right / np.array(of.sizes) * trials, trials, error)


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
