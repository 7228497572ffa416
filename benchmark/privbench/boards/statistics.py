"""Statistics of boards: differences by seed, corrections for many comparisons, held-out maxima.

Values come by seed. Runs of one seed share the split, so differences between them are paired.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from privbench.games.metrics import Estimate, clopper_pearson, mean_over_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_Name = TypeVar("_Name")

#: A board with fewer seeds is a draft.
FEWEST_SEEDS = 5
#: Probability of any wrong mark among all that are compared.
ERROR = 0.05
#: Differences of fewer seeds are not tested.
FEWEST_TESTED = 3
#: Differences of metrics, which are about 1, are equal if they are this close.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds.

    Attributes:
        mean: of the differences.
        low: lower end of Student's 95 % interval; None where ``paired`` gives none.
        high: upper end.
        p: two-sided p-value of "no difference"; None where ``paired`` gives none.
        seeds: number of seeds.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    seeds: int


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Return the mean of ours minus theirs over the seeds that both have; None if there is none.

    Student's test reads its doubt from the spread of the differences. So there is no p under three
    seeds (a spread of two differences, which can be equal by chance, says next to nothing). Where
    all differences are the same number up to rounding there is no spread to read: then there is
    neither a p nor an interval, unless all are 0. In that case nothing differs, and p is 1.

    >>> found = paired({0: 0.6, 1: 0.7, 2: 0.9}, {0: 0.5, 1: 0.6, 3: 0.9})
    >>> round(found.mean, 9), found.seeds
    (0.1, 2)
    """
    from scipy.special import stdtr

    seeds = sorted({*ours} & {*theirs})
    found = [ours[seed] - theirs[seed] for seed in seeds]
    if not found:
        return None
    n = len(found)
    if n == 1:
        return Difference(found[0], None, None, None, 1)
    mean = mean_over_seeds(found)
    if max(found) - min(found) <= _ROUNDING:
        if abs(mean.value) > _ROUNDING:
            return Difference(mean.value, None, None, None, n)
        return Difference(mean.value, mean.low, mean.high, 1.0 if n >= FEWEST_TESTED else None, n)
    if n < FEWEST_TESTED:
        return Difference(mean.value, mean.low, mean.high, None, n)
    error = math.sqrt(sum((one - mean.value) ** 2 for one in found) / (n - 1) / n)
    p = 2 * float(stdtr(n - 1, -abs(mean.value) / error))
    return Difference(mean.value, mean.low, mean.high, p, n)


def holm(p_values: Mapping[_Name, float]) -> dict[_Name, float]:
    """Return p-values adjusted for all comparisons (Holm, Scandinavian J. of Statistics 1979).

    Whoever rejects where the adjusted value is below .05 rejects any true hypothesis with
    probability at most .05, however the comparisons depend on each other.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    adjusted: dict[_Name, float] = {}
    largest, left = 0.0, len(p_values)
    for name, p in sorted(p_values.items(), key=lambda item: item[1]):
        largest = max(largest, min(1.0, p * left))
        adjusted[name] = largest
        left -= 1
    return adjusted


def null_p(nulls: Iterable[tuple[float, int, int]]) -> float:
    """Return the two-sided p-value of "the attack cannot tell apart what its victim never saw".

    The AUC of a null victim is a Mann-Whitney statistic of exchangeable rows, so its deviation is
    known, ``sqrt((m + n + 1) / (12 m n))``. Ties make it smaller, and so do splits that hold every
    class in equal shares, for scores that depend on the class: the p-value is then too large, never
    too small. The mean over seeds is compared with 0.5.

    Args:
        nulls: AUC on the null victim, number of members, number of nonmembers; one per seed.

    >>> round(null_p([(0.5 + 1.96 * 0.0323, 100, 400)]), 2)
    0.05
    """
    given = list(nulls)
    variance = sum((m + n + 1) / (12 * m * n) for _, m, n in given)
    away = abs(sum(auc - 0.5 for auc, _, _ in given))
    return math.erfc(away / math.sqrt(2 * variance))


def accuracy_interval(values: Sequence[float], rows: int | None = None) -> Estimate | None:
    """Return the mean of accuracies with its interval; None if there is not enough to tell.

    Args:
        values: one per seed. Several have Student's interval, cut at 0 and 1; one has the binomial
            interval of Clopper and Pearson.
        rows: number of rows that an accuracy is a share of.
    """
    if len(values) > 1:
        mean = mean_over_seeds(values)
        return Estimate(
            mean.value, min(max(mean.low, 0.0), mean.value), max(min(mean.high, 1.0), mean.value)
        )
    if not values or not rows:
        return None
    right = min(max(values[0], 0.0), 1.0) * rows
    low, high = clopper_pearson(right, rows)
    return Estimate(right / rows, min(low, right / rows), max(high, right / rows))


@dataclass(frozen=True)
class HeldOut:
    """The strongest attack, chosen on some seeds and reported on the others.

    Attributes:
        estimate: mean over seeds, with Student's interval.
        chosen: attack -> number of seeds for which it was chosen.
    """

    estimate: Estimate
    chosen: Mapping[str, int]


def held_out(attacks: Mapping[str, Mapping[int, float]], *, higher: bool = True) -> HeldOut | None:
    """Return what the strongest attack reaches on seeds that did not choose it.

    Leave one seed out: for each seed, the attack with the best mean over all *other* seeds is
    chosen (the first by name in a tie), and its value on this seed is reported. So no seed both
    chooses an attack and reports it, and the mean is not the maximum of noisy means. It can be
    lower than the best attack's mean if attacks are about equally strong. Seeds share nothing but
    choices, so the interval is approximate.

    Args:
        attacks: attack -> value by seed. Attacks that lack a seed of another are left out.
        higher: whether a higher value is a stronger attack.

    Returns:
        None with fewer than two seeds or without a complete attack.

    >>> held_out({"a": {0: 0.9, 1: 0.5, 2: 0.5}, "b": {0: 0.6, 1: 0.6, 2: 0.6}}).estimate.value
    0.5333333333333333
    """
    seeds = sorted({seed for values in attacks.values() for seed in values})
    complete = {name: attacks[name] for name in sorted(attacks) if {*attacks[name]} == {*seeds}}
    if len(seeds) < 2 or not complete:  # noqa: PLR2004
        return None
    sign = 1 if higher else -1
    chosen: dict[str, int] = {}
    reported = []
    for out in seeds:
        best = max(complete, key=lambda name: _others(complete[name], out) * sign)
        chosen[best] = chosen.get(best, 0) + 1
        reported.append(complete[best][out])
    return HeldOut(mean_over_seeds(reported), chosen)


def _others(values: Mapping[int, float], out: int) -> float:
    return math.fsum(value for seed, value in values.items() if seed != out)
