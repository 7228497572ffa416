"""Epsilons that private defenses claim, against the books of Opacus and dp_accounting.

Opacus (Meta) does the books of dp-sgd. Its ``prv`` rounds up by its error of .01. dp_accounting
(Google) is skipped where it is not installed (``uv sync --group peers``). What was measured with
Opacus 1.6.0 and dp_accounting 0.6.0 stands above each test.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from privbench.ground.store.store import Store
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyPairs, TinyTarget
from privbench.testing.fixtures import tiny_spec
from privbench.toolbox.noise import analytic_sigma
from privbench.toolbox.private_training import least_noise, spent_epsilon
from privbench_plugins.defenses import pate
from privbench_plugins.defenses.dp_gcl import DPGCL
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.defenses.logit_dp import LogitDP

if TYPE_CHECKING:
    from pathlib import Path

accountants = pytest.importorskip("opacus.accountants")

#: (noise multiplier, (sample rate, steps) of each phase, delta).
BOOKS = [
    (0.7, ((0.05, 40),), 1e-5),
    (1.0, ((0.01, 1000),), 1e-5),
    (1.2, ((0.5, 6),), 1e-3),
    (2.0, ((0.1, 500), (0.02, 300)), 1e-6),
    (5.0, ((1.0, 50),), 1e-5),
    (20.0, ((0.3, 100), (1.0, 10)), 1e-8),
]
#: How much Opacus's ``prv`` adds to the exact epsilon: its error, plus what discretising costs.
PRV = 0.0125


@pytest.fixture
def google() -> Any:
    """Its package."""
    return pytest.importorskip("dp_accounting")


@pytest.mark.parametrize(("sigma", "runs", "delta"), BOOKS)
@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_books_are_those_of_opacus_step_by_step(
    name: str, sigma: float, runs: tuple[tuple[float, int], ...], delta: float
) -> None:
    books = accountants.create_accountant(name)
    for rate, steps in runs:
        for _ in range(steps):
            books.step(noise_multiplier=sigma, sample_rate=rate)
    assert spent_epsilon(sigma, delta, runs, name) == pytest.approx(_read(books, delta))


# Measured: prv is .0100 to .0105 above their accountant of privacy losses; rdp is theirs to 1e-4.
@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "runs", "delta"), BOOKS)
def test_books_are_those_of_dp_accounting(
    google: Any, sigma: float, runs: tuple[tuple[float, int], ...], delta: float
) -> None:
    exact = _booked(google, google.pld.PLDAccountant(), sigma, runs).get_epsilon(delta)
    renyi = _booked(google, google.rdp.RdpAccountant(), sigma, runs).get_epsilon(delta)
    prv, rdp = (spent_epsilon(sigma, delta, runs, name) for name in ("prv", "rdp"))
    print(f"prv {prv - exact:+.4f}, rdp {rdp / renyi - 1:+.4%}")
    assert exact <= prv <= exact + PRV
    assert exact < rdp == pytest.approx(renyi, rel=1e-3)


def test_a_claim_and_its_profile_hold(google: Any, tmp_path: Path) -> None:
    """80 members in batches of 40 for three epochs."""
    victim = Builder(Store(tmp_path), CPU).victim(
        tiny_spec(TinyTarget(), (DPSGD(noise_multiplier=1.3),))
    )
    (claim,) = victim.facts["claims"]
    books = _booked(google, google.pld.PLDAccountant(), 1.3, ((0.5, 6),))
    assert len(claim["profile"]) > 5
    for epsilon, delta in [(claim["epsilon"], claim["delta"]), *claim["profile"]]:
        exact = books.get_epsilon(delta)
        assert exact <= epsilon <= exact + PRV


@pytest.mark.parametrize("defense", [
    LogitDP(noise_multiplier=1.3, batch=20), DPGCL(noise_multiplier=1.3, batch=20),
], ids=lambda d: d.name)  # fmt: skip
def test_the_claim_of_two_private_phases_holds(google: Any, tmp_path: Path, defense: Any) -> None:
    """80 members, an encoder and its classifier in batches of 20 for three epochs."""
    victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(TinyPairs(), (defense,)))
    (claim,) = victim.facts["claims"]
    runs = tuple(zip(claim["sample_rate"], claim["steps"], strict=True))
    assert runs == ((0.25, 12), (0.25, 12))
    books = _booked(google, google.pld.PLDAccountant(), 1.3, runs)
    assert len(claim["profile"]) > 5
    for epsilon, delta in [(claim["epsilon"], claim["delta"]), *claim["profile"]]:
        exact = books.get_epsilon(delta)
        assert exact <= epsilon <= exact + PRV


def test_noise_for_an_epsilon_is_just_enough(google: Any) -> None:
    """Our search is to 1 %, of what ``prv`` says."""
    wanted, delta, runs = 2.0, 1e-5, ((0.1, 50),)
    sigma = least_noise(wanted, delta, runs, "prv")
    enough, less = (
        _booked(google, google.pld.PLDAccountant(), sigma * share, runs).get_epsilon(delta)
        for share in (1, 0.98)
    )
    assert enough <= wanted <= less + PRV


@pytest.mark.parametrize("queries", [1, 100, 500])
@pytest.mark.parametrize("scale", [3.0, 8.5, 40.0])
def test_the_gaussian_mechanism_is_theirs(google: Any, scale: float, queries: int) -> None:
    """PATE's votes: noise of standard deviation ``scale``, and an L2 sensitivity of √2 each."""
    delta, alone = 1e-5, scale / math.sqrt(2)
    ours = pate.spent_epsilon(scale, queries, delta)
    exact = google.get_epsilon_gaussian(alone / math.sqrt(queries), delta)
    assert ours == pytest.approx(exact, rel=1e-6)
    needed = google.get_sigma_gaussian(exact, delta) * math.sqrt(2 * queries)
    assert analytic_sigma(math.sqrt(2 * queries), ours, delta) == pytest.approx(needed, rel=1e-6)
    for name, most in (("rdp", math.inf), ("prv", PRV)):
        books = accountants.create_accountant(name)
        books.history = [(alone, 1.0, queries)]
        assert ours <= _read(books, delta) <= ours + most


def _read(books: Any, delta: float) -> float:
    with warnings.catch_warnings(), np.errstate(divide="ignore"):  # of log(1 - q) at q = 1
        warnings.filterwarnings("ignore", "Optimal order is")
        return float(books.get_epsilon(delta))


def _booked(google: Any, books: Any, sigma: float, runs: tuple[tuple[float, int], ...]) -> Any:
    for rate, steps in runs:
        books.compose(google.PoissonSampledDpEvent(rate, google.GaussianDpEvent(sigma)), steps)
    return books
