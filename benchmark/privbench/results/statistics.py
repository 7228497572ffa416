"""Statistics of boards: differences by seed, corrections for many comparisons, the worst case.

Values come by seed. Runs of one seed share the split, so differences between them are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from privbench.measure.games.metrics import Estimate, clopper_pearson

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Name = TypeVar("_Name")

#: A board with fewer seeds is a draft.
FEWEST_SEEDS = 5
#: Probability of any wrong mark among all that are compared.
ERROR = 0.05
#: Differences of fewer seeds are not tested, and a terminal shows no interval of them: Student's of
#: two is 13 times their standard error on each side.
FEWEST_TESTED = 3
#: Differences of metrics, which are about 1, are equal if they are this close.
_ROUNDING = 1e-12
#: Results keep six decimals: a mean difference of two such numbers is off by so much at most.
_SIX_DECIMALS = 1e-6


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

    def at_most(self, limit: float) -> bool:
        """Whether the mean is not above a limit, but for the rounding of results.

        >>> [Difference(mean, None, None, None, 1).at_most(0.3) for mean in (0.3000004, 0.30001)]
        [True, False]
        """
        return self.mean <= limit + _SIX_DECIMALS

    def best_of(self, k: int) -> Difference:
        """Return it as the one that was selected from k: interval and p by Bonferroni.

        The intervals of all k hold their truths together with 95 % probability, so this one holds
        however it was selected.

        >>> one = Difference(-0.1, -0.2, 0.0, 0.05, 5)
        >>> one.best_of(1) == one, one.best_of(4).low < one.low, one.best_of(4).p
        (True, True, 0.2)
        """
        if self.low is None or self.high is None:
            return self
        half = (self.high - self.low) / 2 * _wider(self.seeds, k)
        p = None if self.p is None else min(1.0, k * self.p)
        return replace(self, low=self.mean - half, high=self.mean + half, p=p)


def _wider(seeds: int, k: int) -> float:
    """By how much Student's interval grows if it is that of the best of k (Bonferroni)."""
    return _quantile(seeds, k) / _quantile(seeds)


@cache
def _quantile(seeds: int, k: int = 1) -> float:
    """Half of Student's 95 % interval, in standard errors; that of the best of k."""
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, 1 - ERROR / 2 / k))


def mean_over_seeds(values: Sequence[float]) -> Estimate:
    """Return the mean over training runs, with Student's t interval.

    Takes at least two finite values of any range.

    >>> mean_over_seeds([0.0, 1.0]).value
    0.5
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):  # noqa: PLR2004
        raise ValueError(
            f"an interval over seeds needs at least two finite values, got {[*values]}; "
            "run another seed."
        )
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (n - 1) / n)
    half = _quantile(n) * error
    return Estimate(mean, mean - half, mean + half)


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


def significant(differences: Mapping[_Name, Difference]) -> set[_Name]:
    """Return what differs beyond chance: not 0 after Holm's correction for all that have a p.

    >>> significant({"a": Difference(0.1, 0.0, 0.2, 0.01, 5)})
    {'a'}
    """
    tested = {name: one.p for name, one in differences.items() if one.p is not None}
    return {name for name, p in holm(tested).items() if p < ERROR}


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


def estimate(numbers: Sequence[float]) -> Estimate | None:
    """Return the mean over seeds with Student's interval; that of one seed is the number itself.

    >>> estimate([0.5]), estimate([])
    (Estimate(value=0.5, low=0.5, high=0.5), None)
    """
    if len(numbers) > 1:
        return mean_over_seeds(numbers)
    return Estimate(numbers[0], numbers[0], numbers[0]) if numbers else None


def clipped(made: Estimate, low: float | None = None, high: float | None = None) -> Estimate:
    """Return an estimate with its interval clipped to a range; None is no end.

    >>> clipped(Estimate(0.9, 0.7, 1.1), 0, 1)
    Estimate(value=0.9, low=0.7, high=1)
    """
    least = made.low if low is None else min(max(made.low, low), made.value)
    most = made.high if high is None else max(min(made.high, high), made.value)
    return Estimate(made.value, least, most)


def accuracy_interval(values: Sequence[float], rows: int | None = None) -> Estimate | None:
    """Return the mean of accuracies with its interval; None if there is not enough to tell.

    Args:
        values: one per seed. Several have Student's interval, cut at 0 and 1; one has the binomial
            interval of Clopper and Pearson.
        rows: number of rows that an accuracy is a share of.
    """
    if len(values) > 1:
        return clipped(mean_over_seeds(values), 0.0, 1.0)
    if not values or not rows:
        return None
    right = min(max(values[0], 0.0), 1.0) * rows
    low, high = clopper_pearson(right, rows)
    return Estimate(right / rows, min(low, right / rows), max(high, right / rows))


Attacks = Mapping[str, Mapping[int, float]]
"""Attack -> value by seed."""


@dataclass(frozen=True)
class Worst:
    """What the strongest attack reaches.

    Attributes:
        attack: its name.
        estimate: its mean over seeds, with an interval; see ``worst_case``.
        seeds: number of its seeds.
    """

    attack: str
    estimate: Estimate
    seeds: int


def worst_case(
    attacks: Attacks, *, higher: bool = True, low: float | None = None, high: float | None = None
) -> Worst | None:
    """Return the attack with the best mean over its seeds; the first by name in a tie.

    So no attack of a page has a stronger mean than its worst case. Reporting on each seed the
    attack that is strongest on the others can only give less: on the other seeds the chosen one is
    at least as strong as the best fixed one, over all seeds it is not, so on this seed it is not
    stronger.

    The best of k noisy means leans to the strong side, which for a leak is the safe one. The end of
    the interval on the weak side makes up for it: it is that of the best of k (Bonferroni), and
    lies beyond what the strongest attack truly reaches in 2.5 % of boards at most. The other end
    falls short of that in 2.5 % at most: it is the strongest of all attacks' Student's ends, since
    another attack may truly be the strongest. (Attacks of fewer than three seeds do not count
    there, unless the best has no more.) One seed has no interval.

    Args:
        attacks: attack -> value by seed.
        higher: whether a higher value is a stronger attack.
        low: the smallest value that there can be, to which the interval is cut; None for no end.
        high: the largest one.

    Returns:
        None without values.

    >>> worst_case({"a": {0: 0.75, 1: 0.75}, "b": {0: 0.5, 1: 0.5}})
    Worst(attack='a', estimate=Estimate(value=0.75, low=0.75, high=0.75), seeds=2)
    """
    sign = 1 if higher else -1
    means = {name: _mean(values) for name, values in sorted(attacks.items()) if values}
    if not means:
        return None
    best = max(means, key=lambda name: sign * means[name])
    values = [*attacks[best].values()]
    if len(values) == 1:
        return Worst(best, Estimate(values[0], values[0], values[0]), 1)
    made = mean_over_seeds(values)
    weak = (made.value - made.low) * _wider(len(values), len(means))
    fewest = min(len(values), FEWEST_TESTED)
    every = [mean_over_seeds([*of.values()]) for of in attacks.values() if len(of) >= fewest]
    ends = (
        (made.value - weak, max(one.high for one in every))
        if higher
        else (min(one.low for one in every), made.value + weak)
    )
    return Worst(best, clipped(Estimate(made.value, *ends), low, high), len(values))


class Change(NamedTuple):
    """What a defense changes.

    Attributes:
        difference: to no defense, paired by seed.
        attacks: that were compared, sorted by name.
    """

    difference: Difference
    attacks: list[str]


def compared(ours: Attacks, theirs: Attacks, *, higher: bool = True) -> Change | None:
    """Return ours minus theirs for the attack that is strongest on both together, on other seeds.

    Chosen by theirs on the same seeds, an attack would be strong there by luck, and any other
    results would look like less of a leak. Chosen by theirs on other seeds, it still is: the seeds
    of an attack that leads on all of them are all lucky. The sum of both sides says nothing of
    their difference where the defense does nothing, so there the test keeps its rate
    (``leaderboards/experiments/selection.md`` has all three). A single seed has no other one: it
    chooses for itself, and has neither interval nor p.

    Args:
        ours: attack -> value by seed.
        theirs: the same without a defense.
        higher: whether a higher value is a stronger attack.

    Returns:
        None if no attack has a seed in both.

    >>> none = {"a": {0: 0.9, 1: 0.5, 2: 0.5}, "b": {0: 0.6, 1: 0.6, 2: 0.6}}
    >>> compared(none, none)
    Change(difference=Difference(mean=0.0, low=0.0, high=0.0, p=1.0, seeds=3), attacks=['a', 'b'])
    """
    sign = 1 if higher else -1
    both = {
        name: {
            seed: ours[name][seed] + theirs[name][seed] for seed in {*ours[name]} & {*theirs[name]}
        }
        for name in sorted({*ours} & {*theirs})
    }
    seeds = sorted({seed for of in both.values() for seed in of})
    chosen: dict[int, str] = {}
    for seed in seeds:
        out = seed if len(seeds) > 1 else None
        known = {
            name: sign * _mean(of, out)
            for name, of in both.items()
            if seed in of and (out is None or len(of) > 1)
        }
        if known:
            chosen[seed] = max(known, key=lambda name: known[name])
    found = paired(
        {seed: ours[name][seed] for seed, name in chosen.items()},
        {seed: theirs[name][seed] for seed, name in chosen.items()},
    )
    return None if found is None else Change(found, sorted({*chosen.values()}))


def _mean(values: Mapping[int, float], without: int | None = None) -> float:
    """Mean over all seeds but one."""
    kept = [value for seed, value in values.items() if seed != without]
    return math.fsum(kept) / len(kept)
