"""What one training run shows about a claim: our bounds against jax_privacy's (Google DeepMind).

Skipped where jax_privacy is not installed (``uv sync --group peers``). What was measured with
jax_privacy 2.0.0 stands above each test; ``pytest -rP`` prints the figures of a run.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from privbench.measure.games import curves
from privbench.measure.games.audit import ERROR, Guesses, bound

#: Shares of the coins that are guessed, and of the guesses that are right.
MADE, RIGHT = (0.25, 0.5, 0.8, 0.95), (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@pytest.fixture
def auditing() -> Any:
    """Its module of audits."""
    return pytest.importorskip("jax_privacy.auditing")


# Measured: 273 of 480 positive, largest difference 1.1e-06; both search to a millionth.
@pytest.mark.slow
def test_the_epsilon_of_one_run_is_theirs(auditing: Any) -> None:
    cases = list(product(_cases(40, 200, 1000, 4000), (0.0, 1e-8, 1e-5, 1e-3, 0.01)))
    ours = [bound(of, delta) for of, delta in cases]
    # Their delta must be positive.
    theirs = [_theirs(auditing, "epsilon_one_run", of, delta or 1e-15) for of, delta in cases]
    assert len(cases) == 480
    _compare(ours, theirs)


# Measured: 38 of 48 positive, largest difference 6.4e-07.
@pytest.mark.slow
def test_the_mu_of_one_run_is_theirs(auditing: Any) -> None:
    """They report mu as the epsilon of mu-GDP at a delta."""
    epsilon = pytest.importorskip("dp_accounting").get_epsilon_gaussian
    cases, delta = _cases(200, 1000), 1e-5
    mus = [curves.mu_bound(of.coins, of.made, of.right, ERROR) for of in cases]
    ours = [epsilon(1 / mu, delta) if mu else 0.0 for mu in mus]
    theirs = [_theirs(auditing, "epsilon_one_run_fdp", of, delta) for of in cases]
    assert len(cases) == 48
    _compare(ours, theirs)


def _cases(*coins: int) -> list[Guesses]:
    made = [(n, round(n * share)) for n, share in product(coins, MADE)]
    return [Guesses(n, m, round(m * share)) for (n, m), share in product(made, RIGHT)]


def _theirs(auditing: Any, method: str, of: Guesses, delta: float) -> float:
    """Give the guesses as scores, 1 for a coin that is guessed and 0 for one that is not."""
    outside = np.repeat([1, 0], [of.made - of.right, of.coins - of.made])
    auditor = auditing.CanaryScoreAuditor(np.ones(of.right), outside)
    between = auditing.Explicit(0.5)
    return float(getattr(auditor, method)(ERROR, delta, threshold_strategy=between))


def _compare(ours: list[float], theirs: list[float]) -> None:
    positive, apart = int(np.count_nonzero(ours)), np.abs(np.subtract(ours, theirs)).max()
    print(f"{positive} of {len(ours)} positive, largest difference {apart:.2g}")
    assert apart < 2e-6
    assert 0.5 < positive / len(ours) < 0.9
