"""TPR at a fixed FPR: its bootstrap against actual resampling, its true FPR."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privbench.games.fixed_fpr import tpr_bootstrap, true_fpr
from privbench.games.metrics import Estimate, Refused, tpr_at_fpr


def ends(scores: object, member: object, fpr: float) -> Estimate:
    made = tpr_bootstrap(scores, member, fpr)  # type: ignore[arg-type]
    assert isinstance(made, Estimate)
    return made


@pytest.mark.parametrize("levels", [0, 2])
def test_the_limit_of_many_resamples(levels: int) -> None:
    """20,000 resamples leave 2.5 % below the low end; six standard errors of that are .0066."""
    rng = np.random.default_rng(3)
    member = np.arange(300) < 60
    scores = rng.normal(size=300) + 1.5 * member
    scores = np.round(scores * levels) / levels if levels else scores
    inside, outside, tolerated = scores[member], scores[~member], 12  # 5 % of 240
    seen = np.empty(20_000)
    for i in range(seen.size):
        threshold = np.sort(rng.choice(outside, 240))[::-1][tolerated]
        seen[i] = (rng.choice(inside, 60) > threshold).mean()
    got = ends(scores, member, 0.05)
    step = 1 / 60
    assert (seen <= got.low + step / 2).mean() >= 0.025 - 0.0066
    assert (seen <= got.low - step / 2).mean() <= 0.025 + 0.0066
    assert (seen <= got.high + step / 2).mean() >= 0.975 - 0.0066
    assert (seen <= got.high - step / 2).mean() <= 0.975 + 0.0066


def test_by_hand() -> None:
    """Two nonmembers, 3 and 1; one tolerated: the threshold is the smaller of two draws.

    It is 3 with probability 1/4. One member at 2: the TPR is 0 with probability 1/4.
    """
    got = ends([2, 3, 1], [1, 0, 0], 0.5)
    assert got == Estimate(1, 0, 1)
    # four tolerated of eight; all members beat all nonmembers: no resample differs
    assert ends([9, 9, *range(8)], [1, 1] + [0] * 8, 0.5) == Estimate(1, 1, 1)


def test_too_few_nonmembers_are_refused_alike() -> None:
    scores, member = np.arange(60.0), np.arange(60) < 5
    assert isinstance(tpr_bootstrap(scores, member, 0.01), Refused)
    assert tpr_bootstrap(scores, member, 0.01) == tpr_at_fpr(scores, member, 0.01)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.lists(st.integers(0, 9), min_size=4, max_size=12),
    st.sampled_from([0.25, 0.3, 0.5]),
)
def test_order_and_monotone_maps_change_nothing(
    inside: list[int], outside: list[int], fpr: float
) -> None:
    member = np.array([1] * len(inside) + [0] * len(outside))
    scores = np.array([*inside, *outside], np.float64)
    got = ends(scores, member, fpr)
    assert 0 <= got.low <= got.value <= got.high <= 1
    assert got == ends(scores**3 - 5, member, fpr)
    assert got == ends(scores[::-1], member[::-1], fpr)
    assert got.value == getattr(tpr_at_fpr(scores, member, fpr), "value")  # noqa: B009


def test_the_fifth_largest_of_400() -> None:
    got = true_fpr(400, 0.01)
    assert got.mean == pytest.approx(5 / 401)
    assert got.mean == pytest.approx(0.0125, abs=5e-5)
    assert got.deviation == pytest.approx(0.0055, abs=5e-5)
    beta = stats.beta(5, 396)
    assert got.mean == pytest.approx(beta.mean())
    assert got.deviation == pytest.approx(beta.std())


def test_the_true_fpr_is_that_of_drawn_thresholds() -> None:
    """The mean of 4,000 draws is within five standard errors: once in two million runs."""
    rng, want = np.random.default_rng(5), true_fpr(1000, 0.01)
    drawn = np.sort(rng.random((4000, 1000)), 1)[:, -11]  # uniform: the FPR above u is 1 - u
    assert abs((1 - drawn).mean() - want.mean) < 5 * want.deviation / math.sqrt(4000)
