"""The true FPR of a threshold that was chosen on n nonmembers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privbench.results.fixed_fpr import true_fpr


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
