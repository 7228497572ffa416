"""Metrics of an attack's answers, each with a confidence interval.

All functions follow the same rules:

* `scores` is ``(n,)``, **higher means more likely a member**; infinite is allowed, NaN is not;
  the rule is ``score >= threshold``. `member` and `decisions` are ``(n,)`` booleans or 0/1.
* Unequal lengths, NaN, or a side (member, nonmember) without samples raise `ValueError`.
* Values are in [0, 1]. Intervals are two-sided, 95 %, over the evaluated samples. They do not cover
  the variation between training runs.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)

_ERROR = 0.05  # error of every interval, both sides together
_Z = 1.959963984540054  # standard normal quantile at 1 - _ERROR / 2
#: Numbers of members and nonmembers.
Sizes: TypeAlias = tuple[int, int]
#: Members and nonmembers that a group needs for a threshold of its own.
FEWEST_ROWS = 30
_ROUNDING = 1e-9  # .29 * 100 is 28.999999999999996 in floating point, but should count as 29


@dataclass(frozen=True)
class Estimate:
    """A number with a two-sided 95 % interval: ``low <= value <= high``, none of them NaN.

    >>> Estimate(0.71, 0.66, 0.76).value
    0.71
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Reject an interval that does not contain its own estimate."""
        if not self.low <= self.value <= self.high:
            given = f"{self.low}, {self.value}, {self.high}"
            raise ValueError(f"low <= value <= high must hold, got {given}; check for NaN inputs.")


@dataclass(frozen=True)
class Refused:
    """A metric that cannot be computed from this data, with the reason in one sentence.

    >>> tpr_at_fpr([0.3, 0.9], [False, True], 0.01)  # one nonmember cannot show a rate of 1 %
    Refused(reason=...)
    """

    reason: str


@dataclass(frozen=True)
class Thresholds:
    """Decision thresholds chosen on shadow data, to be applied to the victim.

    Attributes:
        overall: Threshold for samples without a known group; no finite score reaches ``inf``.
        by_group: One threshold per group that had enough members and nonmembers.
    """

    overall: float
    by_group: Mapping[int, float] = field(default_factory=dict)

    def decide(self, scores: ArrayLike, groups: ArrayLike | None = None) -> Bools:
        """Predict "member" for every sample whose score reaches the threshold of its group.

        Returns:
            ``(n,)`` booleans, true for "member"; uses `overall` only if `groups` is ``None``.

        >>> Thresholds(0.5, {7: 0.9}).decide([0.5, 0.6, 0.6], [1, 1, 7]).tolist()
        [True, True, False]
        """
        values = _scores(scores)
        if groups is None:
            return values >= self.overall
        names, rows = np.unique(_labels(groups, "groups", values.size), return_inverse=True)
        limits = np.array([self.by_group.get(int(name), self.overall) for name in names])
        return values >= limits[rows]


def auc(scores: ArrayLike, member: ArrayLike) -> Estimate:
    """Return the probability that a random member outscores a random nonmember; ties count half.

    The variance is that of DeLong, DeLong & Clarke-Pearson (Biometrics 1988), from each score's
    placement among the scores of the other side, ``O(n log n)``. The interval is computed on the
    logit scale, so it stays within (0, 1). In simulations with Gaussian scores its coverage is
    94-97 %, and 92 % at AUC .99 with 100 samples per side. If the variance is 0 or undefined (AUC 0
    or 1, constant scores, a side with one sample), the interval is Clopper-Pearson's on
    ``m = min(members, nonmembers)`` trials: ``m`` disjoint pairs are independent, all concordant
    with probability at most ``AUC ** m``.

    >>> round(auc([.9, .8, .3, .7, .2, .1, .05], [1, 1, 1, 0, 0, 0, 0]).value * 12, 9)
    11.0
    """
    inside, outside = _sides(scores, member)
    return placed_auc(placed(inside, outside), (inside.size, outside.size))


def placed(inside: Floats, outside: Floats) -> tuple[float, float, float]:
    """Return the AUC, and the variances of members' and nonmembers' placements (DeLong).

    The variances are 0 if a side has one sample only.

    >>> placed(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
    (0.75, 0.125, 0.125)
    """
    placed_in = placements(inside, outside)  # share of nonmembers below each member
    placed_out = placements(outside, inside)  # share of members below each nonmember
    value = float(placed_in.mean())
    if min(inside.size, outside.size) == 1:
        return value, 0.0, 0.0
    return value, float(placed_in.var(ddof=1)), float(placed_out.var(ddof=1))


def placed_auc(of: tuple[float, float, float], sizes: Sizes, error: float = _ERROR) -> Estimate:
    """Return an AUC with the interval of ``auc`` at another error or for other sizes.

    Args:
        of: what ``placed`` returns.
        sizes: numbers of members and nonmembers that the interval is for.
        error: probability that the interval misses the truth, both sides together, in (0, 1).
    """
    value, inside, outside = of
    spread = math.sqrt(inside / sizes[0] + outside / sizes[1])
    if spread == 0:
        fewest = min(sizes)
        return _estimate(value, *clopper_pearson(value * fewest, fewest, 1 - error))
    z = _Z if error == _ERROR else NormalDist().inv_cdf(1 - error / 2)
    odds, factor = value / (1 - value), math.exp(-z * spread / (value * (1 - value)))
    return _estimate(value, odds * factor / (1 + odds * factor), odds / (odds + factor))


def auc_band(members: int, nonmembers: int, chance: float = 1e-4) -> float:
    """Return the deviation from 0.5 that an AUC without signal exceeds with probability ``chance``.

    For scores without signal the AUC is a Mann-Whitney statistic with standard deviation
    ``sqrt((m + n + 1) / (12 m n))``; smaller with ties, and where splits hold every class in equal
    shares and scores depend on the class. Then the band is too wide, never too narrow.

    >>> round(auc_band(80, 80), 3)
    0.178
    """
    m, n = members, nonmembers
    return NormalDist().inv_cdf(1 - chance / 2) * math.sqrt((m + n + 1) / (12 * m * n))


def tpr_at_fpr(scores: ArrayLike, member: ArrayLike, fpr: float) -> Estimate | Refused:
    """Return the largest TPR of a threshold whose FPR is at most `fpr`, in (0, 1).

    The interval accounts for the estimated threshold. The threshold is estimated from the evaluated
    nonmembers, so Clopper-Pearson on the TPR alone has a coverage of only 25-60 %. Here the error
    is split in two: order statistics of the nonmembers enclose the true threshold (the count beyond
    it is binomial) at 97.5 %, and at both ends Clopper-Pearson encloses the TPR at 97.5 %. Coverage
    is at least 95 % for any distribution, including ties. With few nonmembers beyond the threshold
    the interval is wide, as it should be.

    In simulations (binormal and heavy-tailed scores, 2,000 draws each) its coverage is .995 to 1 at
    100 members, 400 nonmembers and FPR 1 %, and .984 to 1 at 1,000 and 10,000 and FPR 1 % or .1 %.
    The bootstrap whose resamples choose their own thresholds covers
    .89 to .97, .95 to .97 and .81 to .97, at about two thirds of the width. Results hold the
    interval that always covers. See ``leaderboards/experiments/tpr_intervals.md``.

    Returns:
        `Refused` if fewer than ``1 / fpr`` nonmembers were evaluated: one false positive would
        already exceed `fpr`.

    >>> tpr_at_fpr([.9, .8, .3, .7, .2, .1, .05], [1, 1, 1, 0, 0, 0, 0], .25).value
    1.0
    """
    inside, outside = _sides(scores, member)
    if not 0 < fpr < 1:
        raise ValueError(f"fpr must be strictly between 0 and 1, got {fpr}.")
    return sorted_tpr(inside, np.sort(outside)[::-1], fpr, (inside.size, outside.size))


def sorted_tpr(
    inside: Floats, falling: Floats, fpr: float, sizes: Sizes, error: float = _ERROR
) -> Estimate | Refused:
    """Return a TPR with the interval of ``tpr_at_fpr`` at another error or for other sizes.

    For other sizes it is that of samples whose scores are distributed as the given ones.

    Args:
        inside: (m,) scores of the members.
        falling: (n,) scores of the nonmembers, decreasing.
        fpr: in (0, 1).
        sizes: numbers of members and nonmembers that the interval is for.
        error: probability that the interval misses the truth, both sides together, in (0, 1).
    """
    from scipy.special import bdtr, bdtrc

    members, n = sizes
    tolerated = math.floor(fpr * n + _ROUNDING)
    if tolerated < 1:
        needed = math.ceil(1 / fpr - _ROUNDING)
        return Refused(f"TPR at FPR {fpr:g} needs at least {needed} nonmembers, got {n}.")
    tail = error / 4
    # P(count < few) <= tail and P(count >= many) <= tail, where count ~ Binomial(n, fpr)
    few = bisect.bisect_right(range(n), tail, key=lambda k: float(bdtr(k, n, fpr)))
    many = 1 + bisect.bisect_left(range(n), -tail, key=lambda k: -float(bdtrc(k, n, fpr)))
    share = members / inside.size

    def limit(place: int) -> float:
        return float(falling[int((place + 0.5) * falling.size / n)])

    hits = share * float((inside > limit(tolerated)).sum())
    sure = share * float((inside > limit(few - 1)).sum()) if few else 0.0
    possible = share * float((inside >= limit(many - 1)).sum()) if many <= n else float(members)
    low, _ = clopper_pearson(sure, members, 1 - 2 * tail)
    _, high = clopper_pearson(possible, members, 1 - 2 * tail)
    return _estimate(hits / members, low, high)


def balanced_accuracy(decisions: ArrayLike, member: ArrayLike) -> Estimate:
    """Return the mean of the true positive and true negative rates; .5 for constant answers.

    This is `balanced_class_accuracy` for two classes, with the same interval.

    >>> round(balanced_accuracy([1, 1, 0, 0, 0], [1, 1, 1, 0, 0]).value, 6)  # (2/3 + 1) / 2
    0.833333
    """
    hits, trials = _calls(decisions, member)
    return mean_rate(np.array([hits[0], trials[1] - hits[1]]), trials)


def precision(decisions: ArrayLike, member: ArrayLike) -> Estimate | Refused:
    """Return the precision *at equal priors*: TPR / (TPR + FPR).

    The papers evaluate equal numbers of members and nonmembers; written with rates, the metric
    keeps that meaning for sides of different size. The interval uses both rates at the ends of
    their 97.5 % Clopper-Pearson intervals, so its coverage is at least 95 %. `Refused` if no sample
    was called a member.

    >>> round(precision([1, 0, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]).value, 6)  # .5 / (.5 + .25)
    0.666667
    """
    hits, trials = _calls(decisions, member)
    if not hits.any():
        return Refused("Precision needs at least one sample called a member, got none.")
    tpr, fpr = hits / trials
    low, high = _bounds(hits, trials, 1 - _ERROR / 2)
    return _estimate(tpr / (tpr + fpr), low[0] / (low[0] + high[1]), high[0] / (high[0] + low[1]))


def recall(decisions: ArrayLike, member: ArrayLike) -> Estimate:
    """Return the share of members that were called members (TPR), with Clopper-Pearson's interval.

    >>> recall([1, 0, 1, 0], [1, 1, 0, 0]).value
    0.5
    """
    hits, trials = _calls(decisions, member)
    return mean_rate(hits[:1], trials[:1])


def clopper_pearson(
    successes: float, trials: int, confidence: float = 1 - _ERROR
) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial rate (Clopper & Pearson, Biometrika 1934).

    Args:
        successes: Number of successes in [0, trials]; a tie may count half.
        trials: Number of trials, at least 1.
        confidence: Confidence level in (0, 1); the error is split evenly between the sides.

    >>> low, high = clopper_pearson(0, 1000)
    >>> low, round(high, 7)  # 1 - .025 ** (1 / 1000)
    (0.0, 0.0036821)
    """
    if not (trials >= 1 and 0 <= successes <= trials and 0 < confidence < 1):
        raise ValueError(
            "0 <= successes <= trials, trials >= 1 and 0 < confidence < 1 must hold, "
            f"got {successes}, {trials}, {confidence}."
        )
    low, high = _bounds(np.array([successes]), np.array([trials]), confidence)
    return float(low[0]), float(high[0])


def accuracy(predicted: ArrayLike, truth: ArrayLike) -> Estimate:
    """Return the share of correct classes (integers), with Clopper-Pearson's interval.

    >>> accuracy([0, 1, 2, 2], [0, 1, 1, 2]).value
    0.75
    """
    right, _ = _answers(predicted, truth)
    return mean_rate(np.array([right.sum()]), np.array([right.size]))


def balanced_class_accuracy(predicted: ArrayLike, truth: ArrayLike) -> Estimate:
    """Return the mean recall over the classes (integers) that occur in `truth`.

    The interval combines the classes' Clopper-Pearson bounds by variance recovery (MOVER; Zou &
    Donner, Statistics in Medicine 2008): the distance to each end is the root sum of squares of the
    classes' distances. Unlike the delta method's interval, it does not vanish if all recalls are 0
    or 1.

    >>> balanced_class_accuracy([0, 0, 0, 1], [0, 0, 0, 2]).value
    0.5
    """
    right, classes = _answers(predicted, truth)
    _, rows, trials = np.unique(classes, return_inverse=True, return_counts=True)
    return mean_rate(np.bincount(rows[right], minlength=trials.size), trials)


def mean(values: ArrayLike) -> Estimate:
    """Return the mean over rows, with the normal interval; for numbers of any range.

    >>> mean([1.0, 1.0, 1.0])
    Estimate(value=1.0, low=1.0, high=1.0)
    """
    numbers = np.asarray(values, dtype=np.float64)
    value = float(numbers.mean())
    error = _Z * float(numbers.std(ddof=1)) / math.sqrt(numbers.size) if numbers.size > 1 else 0.0
    return Estimate(value, value - error, value + error)


def best_threshold(
    scores: ArrayLike,
    member: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    fewest: int = FEWEST_ROWS,
) -> Thresholds:
    """Return the thresholds of highest balanced accuracy on data with known membership.

    Maximises ``(mean(score >= t | in) + mean(score < t | out)) / 2`` (Song & Mittal, USENIX
    Security 2021). Of equal ones the highest interval between observed values wins, because it
    calls the fewest samples members, and its middle is the threshold. The paper's is its upper end,
    the score of the weakest member called so: another model that scores a little lower would lose
    most of its members. Use it on *shadow* scores; on the evaluated scores it would use the truth
    and be biased upward.

    `groups`, ``(n,)`` integers (such as the true class), requests one threshold per group. A group
    with less than `fewest` members or nonmembers, at least 1, gets none and uses the overall
    threshold: the best threshold of few rows is one of chance
    (``leaderboards/experiments/thresholds.md``).

    >>> best_threshold([.9, .8, .3, .7, .2, .1, .05], [1, 1, 1, 0, 0, 0, 0]).overall
    0.25
    """
    overall = _best(*_sides(scores, member))
    if groups is None:
        return Thresholds(overall)
    values = _scores(scores)
    flags, labels = _flags(member, "member"), _labels(groups, "groups", values.size)
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    by_group = {
        int(name): _best(values[rows][flags[rows]], values[rows][~flags[rows]])
        for name, rows in zip(names, np.split(order, starts[1:]), strict=True)
        if min(flags[rows].sum(), (~flags[rows]).sum()) >= max(fewest, 1)
    }
    return Thresholds(overall, by_group)


def _best(inside: Floats, outside: Floats) -> float:
    """Return the middle of the best interval; integer comparison makes ties exact."""
    thresholds, true_hits, false_hits = _hits(inside, outside)
    gain = true_hits * outside.size - false_hits * inside.size
    best = int(np.argmax(gain))  # argmax returns the first of equals, and thresholds decrease
    if gain[best] <= 0 and thresholds[0] < math.inf:  # an infinite score reaches even `inf`
        return math.inf
    upper = float(thresholds[best])
    lower = float(thresholds[best + 1]) if best + 1 < thresholds.size else upper
    middle = upper / 2 + lower / 2  # their sum may overflow
    return middle if lower < middle <= upper else upper


def _hits(inside: Floats, outside: Floats) -> tuple[Floats, Ints, Ints]:
    """Return the distinct scores, decreasing, and the members and nonmembers that reach each."""
    thresholds = np.unique(np.concatenate((inside, outside)))[::-1]
    true_hits = inside.size - np.searchsorted(np.sort(inside), thresholds)
    false_hits = outside.size - np.searchsorted(np.sort(outside), thresholds)
    return thresholds, true_hits, false_hits


def placements(values: Floats, others: Floats) -> Floats:
    """Return the share of `others` below each value; equal ones count half.

    >>> placements(np.array([2.0, 1.0]), np.array([1.0, 0.0])).tolist()
    [1.0, 0.75]
    """
    ranked = np.sort(others)
    doubled = np.searchsorted(ranked, values, "left") + np.searchsorted(ranked, values, "right")
    return doubled / (2 * others.size)


def _bounds(
    successes: NDArray[np.number], trials: NDArray[np.number], confidence: float
) -> tuple[Floats, Floats]:
    """Return Clopper-Pearson bounds for each pair: beta quantiles, exactly 0 and 1 at the edges."""
    from scipy.special import betaincinv

    hits, misses = successes.astype(np.float64), (trials - successes).astype(np.float64)
    tail = (1 - confidence) / 2
    low = np.where(hits > 0, betaincinv(np.where(hits > 0, hits, 1), misses + 1, tail), 0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.where(misses > 0, misses, 1), 1 - tail), 1)
    return low, high


def mean_rate(
    hits: NDArray[np.number], trials: NDArray[np.number], error: float = _ERROR
) -> Estimate:
    """Return the mean of independent binomial rates, with an interval by variance recovery.

    Args:
        hits: (k,) of each rate.
        trials: (k,) likewise.
        error: probability that the interval misses the truth, both sides together, in (0, 1).

    >>> mean_rate(np.array([1, 3]), np.array([2, 4])).value
    0.625
    """
    rates = hits / trials
    low, high = _bounds(hits, trials, 1 - error)
    value, count = float(rates.mean()), rates.size
    below, above = math.hypot(*(rates - low)), math.hypot(*(high - rates))
    return _estimate(value, value - below / count, value + above / count)


def _estimate(value: float, low: float, high: float) -> Estimate:
    """Convert numpy types, and correct bounds that rounding put out of order or range."""
    return Estimate(
        float(value), max(float(min(low, value)), 0.0), min(float(max(high, value)), 1.0)
    )


def _calls(decisions: ArrayLike, member: ArrayLike) -> tuple[Ints, Ints]:
    """Return the samples called members and all samples, each as (members, nonmembers)."""
    called = _flags(decisions, "decisions")
    flags = _membership(member, called.size)
    return np.bincount(~flags[called], minlength=2), np.bincount(~flags)


def _sides(scores: ArrayLike, member: ArrayLike) -> tuple[Floats, Floats]:
    """Return the scores of the members and the scores of the nonmembers."""
    values = _scores(scores)
    flags = _membership(member, values.size)
    return values[flags], values[~flags]


def _answers(predicted: ArrayLike, truth: ArrayLike) -> tuple[Bools, Ints]:
    """Return whether each answer is correct, and the true classes."""
    classes = _labels(truth, "truth", np.size(predicted))
    if not classes.size:
        raise ValueError("accuracy needs at least one sample, got none; check the split.")
    return _labels(predicted, "predicted", classes.size) == classes, classes


def _scores(scores: ArrayLike) -> Floats:
    values = _flat(np.asarray(scores, np.float64), "scores")
    if np.isnan(values).any():
        raise ValueError("scores must not be NaN; give every sample a number.")
    return values


def _membership(member: ArrayLike, size: int) -> Bools:
    flags = _flags(member, "member", size)
    if flags.all() or not flags.any():
        raise ValueError("member needs at least one member and one nonmember; evaluate both sides.")
    return flags


def _flags(flags: ArrayLike, name: str, size: int | None = None) -> Bools:
    values = _flat(np.asarray(flags), name, size)
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must hold booleans or 0 and 1 only; apply a threshold first.")
    return values.astype(np.bool_)


def _labels(labels: ArrayLike, name: str, size: int) -> Ints:
    values = _flat(np.asarray(labels), name, size)
    if values.size and values.dtype.kind not in "iub":
        raise ValueError(f"{name} must hold integers, got {values.dtype}; pass class indices.")
    return values.astype(np.int64)


def _flat(values: NDArray[_T], name: str, size: int | None = None) -> NDArray[_T]:
    expected = (values.size if size is None else size,)
    if values.shape != expected:
        raise ValueError(
            f"{name} must have shape {expected}, got {values.shape}; pass one value per sample."
        )
    return values
