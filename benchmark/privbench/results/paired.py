"""Two models under one attack, compared by their scores of the same rows.

Equal rows make scores of two models depend on each other, so intervals that overlap say little.
Both tests here use the pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.measure.games.metrics import placements

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Draws behind a p-value of ``tpr_change``: the least that it can be is 1 in 2,000.
DRAWS = 1999
_MOST = 4_000_000  # numbers that are drawn at once
_Z = 1.959963984540054  # standard normal quantile at 97.5 %
_ROUNDING = 1e-9


@dataclass(frozen=True)
class VersionChange:
    """A metric of an old and a new version of a model.

    Attributes:
        old, new: values, in [0, 1].
        p: two-sided p-value of "no change".
        low, high: 95 % interval of new minus old; None if there is none.
    """

    old: float
    new: float
    p: float
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float:
        """New minus old."""
        return self.new - self.old


def auc_change(
    old: NDArray[np.float64], new: NDArray[np.float64], member: NDArray[np.bool_]
) -> VersionChange:
    """Compare two AUCs of the same rows (DeLong, DeLong, Clarke-Pearson, Biometrics 1988).

    The difference of AUCs is a mean over members, and also over nonmembers, of the differences of
    a row's placements; its variance is the sum of the variances of these two means. Where all
    differences are equal there is no variance, and p is that of min(members, nonmembers) disjoint
    pairs that all favour one model.

    Args:
        old: (n,) scores, higher for members; infinite ones are allowed.
        new: likewise, of the other model.
        member: (n,) the truth; at least two on each side.

    >>> member = np.arange(6) < 3
    >>> change = auc_change(np.array([3., 1, 5, 2, 4, 0]), np.array([6., 4, 5, 2, 3, 0]), member)
    >>> round(change.old, 3), change.new, round(change.p, 3)
    (0.667, 1.0, 0.221)
    """
    old_in, new_in = (placements(of[member], of[~member]) for of in (old, new))
    old_out, new_out = (placements(of[~member], of[member]) for of in (old, new))
    value = float(new_in.mean() - old_in.mean())
    apart = new_in - old_in, new_out - old_out
    variance = sum(float(one.var(ddof=1)) / len(one) for one in apart)
    made = float(old_in.mean()), float(new_in.mean())
    if variance < _ROUNDING**2:
        few = min(len(one) for one in apart)
        return VersionChange(*made, 1.0 if abs(value) < _ROUNDING else min(1.0, 2.0 ** (1 - few)))
    error = math.sqrt(variance)
    p = math.erfc(abs(value) / error / math.sqrt(2))
    return VersionChange(*made, p, value - _Z * error, value + _Z * error)


def tpr_change(
    old: NDArray[np.float64], new: NDArray[np.float64], member: NDArray[np.bool_], fpr: float,
    draws: int = DRAWS,
) -> VersionChange | None:  # fmt: skip
    """Compare two TPRs at an FPR by a paired bootstrap.

    Members, and nonmembers, are drawn with replacement, the same for both models, and each draw has
    thresholds of its own. p is the share of draws, the given rows among them, whose difference is
    as far from that of the given rows as that is from 0. (Exchanging the two scores of a row would
    test that the whole ROC curves are equal: with equal TPRs and other curves it rejects too
    often.) In simulations of equal TPRs p is below .05 in at most 5 % of cases, whether the curves
    are equal or not, with 100 to 1,000 rows on each side.

    Args:
        old: (n,) scores, higher for members.
        new: likewise, of the other model.
        member: (n,) the truth.
        fpr: in (0, 1).
        draws: number of draws.

    Returns:
        None if there are fewer than 1 / fpr nonmembers.
    """
    tolerated = math.floor(fpr * int((~member).sum()) + _ROUNDING)
    if tolerated < 1:
        return None
    inside, outside = member.nonzero()[0], (~member).nonzero()[0]
    first, second = (_tpr(of[inside], of[outside], tolerated) for of in (old, new))
    difference = float(second - first)
    random, beyond, left = np.random.default_rng(0), 0, draws
    while left:
        block = min(left, max(1, _MOST // len(member)))
        some, others = (random.choice(of, (block, len(of))) for of in (inside, outside))
        before, after = (_tpr(of[some], of[others], tolerated) for of in (old, new))
        away = np.abs(after - before - difference)
        beyond += int((away >= abs(difference) - _ROUNDING).sum())
        left -= block
    return VersionChange(float(first), float(second), (1 + beyond) / (1 + draws))


def _tpr(
    inside: NDArray[np.float64], outside: NDArray[np.float64], tolerated: int
) -> NDArray[np.float64]:
    """Return the share of members (..., m) above all but so many nonmembers (..., n)."""
    at = outside.shape[-1] - 1 - tolerated
    threshold = np.partition(outside, at, axis=-1)[..., at]
    return np.asarray((inside > threshold[..., None]).mean(-1))
