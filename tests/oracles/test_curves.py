"""Trade-off curves: the test of guesses against a linear program, and summaries in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from privbench.measure.games import curves


def _largest_tail(coins: int, made: int, right: int, profile: list[tuple[float, float]]) -> float:
    """The largest chance of ``right`` or more, over all distributions that the theorem allows."""
    counts = np.arange(made + 1)
    rows, limits = [], []
    for c in range(made + 1):
        a = np.where(counts >= c, counts, 0) / coins
        b = np.where(counts >= c - 1, made - counts, 0) / coins
        for epsilon, delta in profile:  # A <= 1 - f(B), and 1 - f is the least of these lines
            rows += [a - math.exp(epsilon) * b, a - math.exp(-epsilon) * b]
            limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    found = linprog(
        -(counts >= right).astype(float), A_ub=rows, b_ub=limits,
        A_eq=[np.ones(made + 1)], b_eq=[1.0], bounds=(0, 1),
    )  # fmt: skip
    return -float(found.fun or 0)


@pytest.mark.parametrize("coins", [8, 12, 40])
@pytest.mark.parametrize("right", [5, 6, 8])
@pytest.mark.parametrize(
    "profile",
    [[(0.0, 0.0)], [(1.0, 0.0)], [(0.5, 0.05)], [(2.0, 0.01), (1.0, 0.1), (0.2, 0.3)]],
)
def test_the_greedy_p_value_is_that_of_the_linear_program(
    coins: int, right: int, profile: list[tuple[float, float]]
) -> None:
    found = curves.p_value(coins, 8, right, curves.lines(profile))
    assert found == pytest.approx(_largest_tail(coins, 8, right, profile), rel=1e-5, abs=1e-9)


def test_pure_epsilon_is_close_to_the_binomial_and_never_below() -> None:
    for made, right, epsilon in ((40, 33, 0.5), (134, 110, 1.0), (300, 190, 0.1)):
        exact = float(binom.sf(right - 1, made, 1 / (1 + math.exp(-epsilon))))
        found = curves.p_value(300, made, right, curves.lines([(epsilon, 0.0)]))
        assert exact * (1 - 1e-6) <= found <= 1.2 * exact


def test_a_gaussian_is_the_envelope_of_its_profile() -> None:
    mu = 1.3
    epsilons = np.linspace(0, 8, 400)
    profile = [(float(e), curves.gaussian_delta(float(e), mu)) for e in epsilons]
    exact, polygon = curves.gaussian(mu), curves.lines(profile)
    for y in (0.05, 0.3, 0.6, 0.95):
        assert polygon(y) == pytest.approx(exact(y), abs=1e-4)
    assert curves.summarised(profile) == pytest.approx(mu, abs=1e-6)
    assert curves.regret(profile, exact) < 1e-3


def test_delta_of_a_gaussian() -> None:
    assert curves.gaussian_delta(4.377178, 1.0) == pytest.approx(1e-5, rel=1e-4)  # Balle & Wang
    assert curves.gaussian_delta(0.0, 0.0) == 0.0


def test_one_pair_exaggerates_a_gaussian_and_its_mu_does_not() -> None:
    mu = curves.summarised([(4.377178, 1e-5)])
    assert mu == pytest.approx(1.0, abs=1e-5)
    profile = [(e, curves.gaussian_delta(e, 1.0)) for e in (0.2, 1.0, 2.0, 3.0, 4.377178)]
    assert curves.regret(profile, curves.gaussian(1.0)) < 0.01
    # the curve of the pair alone has both errors at 1 / (1 + e^epsilon), the Gaussian at Phi(-1/2)
    wide = 0.3085 - 1 / (1 + math.exp(4.377178))
    assert curves.regret(profile, curves.lines(profile[-1:])) == pytest.approx(wide, abs=0.01)


def test_the_bound_on_mu_holds_and_says_something() -> None:
    rng, mu, runs, error = np.random.default_rng(0), 1.0, 400, 0.025
    found = []
    for _ in range(runs):
        member = rng.random(400) < 0.5
        scores = mu * member + rng.standard_normal(400)
        order = np.argsort(scores)
        right = int(member[order[-50:]].sum() + (~member[order[:50]]).sum())
        found.append(curves.mu_bound(400, 100, right, error))
    over = int((np.array(found) > mu).sum())
    assert binom.sf(over - 1, runs, error) > 1e-4
    assert np.median(found) > 0.4


def test_flipping_the_guesses_refutes_nothing() -> None:
    assert curves.mu_bound(400, 100, 0, 0.025) == 0.0
    assert curves.mu_bound(400, 100, 50, 0.025) == 0.0
    assert curves.p_value(400, 100, 0, curves.gaussian(0.0)) == 1.0
