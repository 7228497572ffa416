# ruff: noqa: INP001 - a script
"""How often audited bounds exceed the truth, and how far below it they stay.

    uv run python leaderboards/experiments/audit_coverage.py --audits 2000

Simulates audits of mechanisms whose privacy is known exactly. Each of n coins is included with
probability 1/2; scores are the mechanism's outputs, and the guesses are those of
``measure.games.audit``. The n coins are those of three runs together. For each mechanism and n,
prints the share of audits whose bound exceeds the truth (at most 5 %, by the theorems 2.5 %), the
median bound, and how many times the truth exceeds it. The true mu is the smallest one that holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import click
import numpy as np
from scipy.stats import norm

from privbench.measure.games import audit, curves

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Scores = Callable[[np.random.Generator, NDArray[np.bool_]], NDArray[np.float64]]

SIZES = (150, 600, 2400)
RUNS = 3
DELTA = 1e-5
#: Of the subsampled Gaussian: chance that a row is used, and noise.
Q, SIGMA = 0.5, 0.5
#: Smaller numbers count as 0.
LEAST = 1e-12
#: How often the last mechanism reveals everything.
REVEALED = 0.02


@dataclass(frozen=True)
class Mechanism:
    """A mechanism of known privacy.

    Attributes:
        scores: (generator, coins (n,) bool) -> scores (n,) of one run.
        delta: where epsilon is bounded.
        profile: epsilon -> the exact delta.
    """

    scores: Scores
    delta: float
    profile: Callable[[float], float]

    @property
    def epsilon(self) -> float:
        """The true epsilon at that delta."""
        low, high = 0.0, curves.LARGEST
        for _ in range(60):
            middle = (low + high) / 2
            above = self.profile(middle) > self.delta + 1e-15
            low, high = (middle, high) if above else (low, middle)
        return high

    @property
    def mu(self) -> float:
        """The smallest mu for which the mechanism is mu-GDP, from 1,000 points of the profile."""
        points = [(float(e), self.profile(float(e))) for e in np.linspace(1e-6, 12, 1_000)]
        return curves.summarised([(e, delta) for e, delta in points if delta > LEAST])


def response(epsilon: float) -> Mechanism:
    """Tell each coin truly with probability e^epsilon / (1 + e^epsilon)."""
    honest = 1 / (1 + math.exp(-epsilon))

    def scores(rng: np.random.Generator, u: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(rng.random(len(u)) < honest, u, ~u) + 1e-3 * rng.random(len(u))

    return Mechanism(scores, 0.0, lambda e: max(honest - math.exp(e) * (1 - honest), 0.0))


def laplace(epsilon: float) -> Mechanism:
    """Add Laplace noise of scale 1 / epsilon to each coin."""
    return Mechanism(
        lambda rng, u: u + rng.laplace(0, 1 / epsilon, len(u)),
        0.0,
        lambda e: max(-math.expm1((e - epsilon) / 2), 0.0),
    )


def gaussian(mu: float) -> Mechanism:
    """Add Gaussian noise of standard deviation 1 / mu to each coin."""
    return Mechanism(
        lambda rng, u: u + rng.standard_normal(len(u)) / mu,
        DELTA,
        lambda e: curves.gaussian_delta(e, mu),
    )


def subsampled() -> Mechanism:
    """Use each row with probability Q and add Gaussian noise SIGMA."""

    def scores(rng: np.random.Generator, u: NDArray[np.bool_]) -> NDArray[np.float64]:
        return u * (rng.random(len(u)) < Q) + SIGMA * rng.standard_normal(len(u))

    def mixture(x: float, law: Callable[[float], float]) -> float:
        return (1 - Q) * law(x / SIGMA) + Q * law((x - 1) / SIGMA)

    def where(ratio: float) -> float:
        """Where the density with the row is that many times the one without."""
        return SIGMA**2 * math.log((ratio - 1 + Q) / Q) + 0.5

    def profile(epsilon: float) -> float:
        e, deltas = math.exp(epsilon), [0.0]
        at = where(e)
        deltas.append(mixture(at, norm.sf) - e * norm.sf(at / SIGMA))
        if 1 / e > 1 - Q:
            at = where(1 / e)
            deltas.append(norm.cdf(at / SIGMA) - e * mixture(at, norm.cdf))
        return float(max(deltas))

    return Mechanism(scores, DELTA, profile)


def revealing() -> Mechanism:
    """Reveal all coins of a run with probability REVEALED, otherwise none."""
    return Mechanism(
        lambda rng, u: u.astype(float) if rng.random() < REVEALED else rng.random(len(u)),
        REVEALED,
        lambda _: REVEALED,
    )


MECHANISMS = {
    "randomised response, ε 0.5": response(0.5),
    "randomised response, ε 1": response(1.0),
    "randomised response, ε 2": response(2.0),
    "Laplace, ε 1": laplace(1.0),
    "Laplace, ε 4": laplace(4.0),
    "Gaussian, μ 0.5": gaussian(0.5),
    "Gaussian, μ 1": gaussian(1.0),
    "Gaussian, μ 2": gaussian(2.0),
    f"Gaussian of deviation {SIGMA} on a sample of {Q}": subsampled(),
    f"reveals all coins with probability {REVEALED}": revealing(),
}


@cache
def bounds(runs: tuple[tuple[int, int, int], ...], delta: float) -> tuple[float, float]:
    """The bounds on epsilon and mu, from (coins, made, right) of each share."""
    first, *_ = runs
    found = [curves.mu_bound(*one, audit.ERROR / len(runs)) for one in runs]
    return audit.bound(audit.Guesses(*first), delta), max(found)


def simulated(
    mechanism: Mechanism, n: int, audits: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Bounds (audits, 2) on epsilon and mu."""
    made = []
    for _ in range(audits):
        runs = []
        for _ in range(RUNS):
            member = rng.random(n // RUNS) < 0.5  # noqa: PLR2004 - a fair coin
            scores = mechanism.scores(rng, member)
            runs.append([audit.guesses(scores, member, share) for share in audit.SHARES])
        total = [audit.pooled(one) for one in zip(*runs, strict=True)]
        counts = tuple((one.coins, one.made, one.right) for one in total)
        made.append(bounds(counts, mechanism.delta))
    return np.array(made)


def compared(bound: NDArray[np.float64], truth: float) -> str:
    """Cells of the table: truth, share of bounds above it, median bound and its factor."""
    middle = float(np.median(bound))
    factor = f"{truth / middle:.1f}" if middle and truth else "–"
    above = (bound > truth + 1e-5).mean()
    return f"{truth:.2f} | {100 * above:.2f} % | {middle:.2f} | {factor}"


@click.command()
@click.option("--audits", default=2_000, show_default=True, help="Audits of each row.")
@click.option("--seed", default=0, show_default=True)
def main(audits: int, seed: int) -> None:
    """Print the table."""
    click.echo("| mechanism | coins | true ε | above | median bound | factor "
               "| true μ | above | median bound | factor |")  # fmt: skip
    click.echo("|---|---" + "|---" * 8 + "|")
    for name, mechanism in MECHANISMS.items():
        for n in SIZES:
            rng = np.random.default_rng([seed, n, list(MECHANISMS).index(name)])
            found = simulated(mechanism, n, audits, rng)
            mu = "– | – | – | –"
            if mechanism.epsilon > LEAST:  # revealing everything sometimes is no mu-GDP
                mu = compared(found[:, 1], mechanism.mu)
            told = compared(found[:, 0], mechanism.epsilon)
            click.echo(f"| {name} | {n} | {told} | {mu} |")


if __name__ == "__main__":
    main()
