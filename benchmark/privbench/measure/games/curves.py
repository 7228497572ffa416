"""Trade-off curves: f-DP and Gaussian DP, beside a single pair (epsilon, delta).

A mechanism is f-DP if every test between "in" and "out" with false positive rate x has a true
positive rate of at most 1 - f(x), in both directions (Dong, Roth, Su: Gaussian Differential
Privacy. JRSS B 2022). mu-GDP is f-DP with the curve of N(0, 1) against N(mu, 1). A *privacy
profile* is a list of pairs (epsilon, delta) that all hold for one mechanism; it says more than each
pair alone.

A curve is given here as the function ``needed``: y -> the smallest x with 1 - f(x) >= y, that is
the false positive rate that a true positive rate of y costs.

``p_value`` is the test of Mahloujifar, Melis, Chaudhuri: Auditing f-Differential Privacy in One
Run. ICML 2025, for guesses of members (their k = 2). Why it holds: let C of ``made`` guesses on
``coins`` coins be right, A(c) = E[C; C >= c] / coins and B(c) = E[made - C; C >= c] / coins. Take
one coin and one value of all coins. The outputs with "this guess is right and C >= c" are, once
this one coin is flipped, outputs with "this guess is wrong and C >= c - 1". f-DP relates their
chances under the two values; 1 - f is concave, so the mean over coins and values (Jensen) gives for
every c

    A(c) <= 1 - f(B(c - 1)).

Let the chance of C >= right be p. Going down from c = right, the smallest possible mass is forced
at each step: all of p at C = right itself, then B(i) = max(B(i + 1), needed(A(i + 1))) and
A(i) = A(i + 1) + i / (made - i) (B(i) - B(i + 1)). Any other distribution with that p has a total
A(i) + B(i) that is no smaller, at every i: its excess of A is at least i / made times its excess of
the total, and the step keeps both. So p is impossible as soon as A(i) + B(i) exceeds made / coins.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Needed = Callable[[float], float]
    Profile = Sequence[tuple[float, float]]

#: The largest mu and epsilon that are looked for.
LARGEST = 64.0
_STEPS = 60  # of a bisection: 64 / 2**60 is below float64's resolution
_ROUNDING = 1e-12
_GRID = 2_001


def gaussian(mu: float) -> Needed:
    """Return the curve of mu-GDP.

    >>> round(gaussian(1.0)(0.5), 6)  # half of the members at the cost of Phi(-1)
    0.158655
    """
    from scipy.special import ndtr, ndtri

    return lambda y: float(ndtr(ndtri(y) - mu))


def lines(profile: Profile) -> Needed:
    """Return the curve of a mechanism for which all these pairs (epsilon, delta) hold.

    >>> round(lines([(math.log(3), 0.0)])(0.3), 6)
    0.1
    """
    pairs = [(math.exp(epsilon), -math.expm1(epsilon) - delta, delta) for epsilon, delta in profile]
    return lambda y: max(0.0, *(max((y - delta) / e, start + e * y) for e, start, delta in pairs))


def p_value(coins: int, made: int, right: int, needed: Needed) -> float:
    """Bound the chance of at least this many right guesses on a mechanism within the curve.

    Args:
        coins: number of fair coins.
        made: number of guesses, fixed beforehand.
        right: number of right guesses.
        needed: the curve.
    """
    low, high = -700.0, 0.0  # of the logarithm
    if right == 0 or not _impossible(coins, made, right, 1.0, needed):
        return 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _impossible(coins, made, right, math.exp(middle), needed):
            high = middle
        else:
            low = middle
    return math.exp(high)


@lru_cache(maxsize=4096)
def mu_bound(coins: int, made: int, right: int, error: float) -> float:
    """Return the largest mu that the guesses refute with that error; 0 if they refute none."""
    low, high = 0.0, LARGEST
    if right == 0 or not _impossible(coins, made, right, error, gaussian(low)):
        return 0.0
    for _ in range(_STEPS // 2):
        middle = (low + high) / 2
        if _impossible(coins, made, right, error, gaussian(middle)):
            low = middle
        else:
            high = middle
    return low


def _impossible(coins: int, made: int, right: int, chance: float, needed: Needed) -> bool:
    """Return whether the curve forbids ``right`` or more right guesses with that chance."""
    a, b = chance * right / coins, chance * (made - right) / coins
    most = made / coins + _ROUNDING
    for i in range(right - 1, -1, -1):
        wanted = needed(min(a, 1.0))
        if wanted > b:
            a += i / (made - i) * (wanted - b)
            b = wanted
        if a + b > most:
            return True
    return False


# ---- one number for a curve ----------------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the delta of mu-GDP at that epsilon (Dong et al., corollary 1).

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    from scipy.special import log_ndtr, ndtr

    if mu == 0:
        return 0.0
    first = float(ndtr(mu / 2 - epsilon / mu))
    return first - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))


def summarised(profile: Profile) -> float:
    """Return the smallest mu whose own profile is nowhere below this one at its epsilons.

    The mu-GDP guarantee of a profile, as far as the profile goes: Gomez, Kulynych, Kaissis, du Pin
    Calmon, Hayes, Balle, Honkela: Gaussian DP for Reporting Differential Privacy Guarantees in
    Machine Learning. SaTML 2026 (arXiv 2503.10945).

    >>> round(summarised([(0.5, gaussian_delta(0.5, 0.7)), (2.0, gaussian_delta(2.0, 0.7))]), 6)
    0.7
    """
    largest = 0.0
    for epsilon, delta in profile:
        if gaussian_delta(epsilon, LARGEST) <= delta:
            return LARGEST
        low, high = 0.0, LARGEST
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if gaussian_delta(epsilon, middle) < delta else (low, middle)
        largest = max(largest, high)
    return largest


def regret(profile: Profile, summary: Needed) -> float:
    """Return how much a summary exaggerates the risk, between 0 and 1.

    The smallest d with f(x + d) - d <= g(x) for all x, where f is the curve of the profile and g
    the curve of the summary (the divergence of Kaissis, Kolek, Balle, Hayes, Rueckert: Beyond the
    Calibration Point. ICML 2024): an attack is believed to reach error rates that are smaller by up
    to d than any attack can reach. Computed on a grid of 2,001 false positive rates.

    >>> pair = [(1.0, 1e-5)]
    >>> regret(pair, lines(pair)) < 1e-9
    True
    """
    x = np.linspace(0, 1, _GRID)
    f = _errors(lines(profile), x)
    g = _errors(summary, x)
    low, high = 0.0, 1.0
    for _ in range(_STEPS // 2):
        middle = (low + high) / 2
        if (np.interp(np.minimum(x + middle, 1), x, f) - middle <= g + _ROUNDING).all():
            high = middle
        else:
            low = middle
    return low


def _errors(needed: Needed, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return f at x: curves are symmetric, so f is its own inverse, and needed(y) = f(1 - y)."""
    return np.array([needed(1 - float(one)) for one in x])
