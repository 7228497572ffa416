"""What a board claims where nothing differs; experiments/selection.md has more runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.scripts import script

from privbench.results.statistics import compared
from privbench.testing import rate_band


@pytest.fixture(scope="module")
def selection() -> Any:
    return script("experiments/selection.py")


@pytest.mark.parametrize(("defenses", "attacks"), [(16, 1), (1, 9)])
@pytest.mark.slow
def test_a_board_without_a_difference_rarely_claims_one(
    selection: Any, defenses: int, attacks: int
) -> None:
    """Without correction it is 22 % of boards with 16 defenses, 10 % of those with 9 attacks."""
    found = selection.false_claims(defenses, attacks, 300, seed=3)
    assert found.lowers <= 0.025 + rate_band(300, 0.025)
    assert found.marked <= 0.05 + rate_band(300, 0.05)


def test_the_simulated_rule_is_that_of_boards() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        none, other = rng.normal(size=(2, 4, 5))
        both = none + other
        chosen = (both.sum(1, keepdims=True) - both).argmax(0)
        want = np.mean([other[a, s] - none[a, s] for s, a in enumerate(chosen)])
        sides = [{str(a): dict(enumerate(row)) for a, row in enumerate(of)} for of in (other, none)]
        found = compared(*sides)
        assert found is not None
        assert found[0].mean == pytest.approx(want)


def test_the_rule_for_the_compared_attack_keeps_its_rate(selection: Any) -> None:
    same, others, both = selection.rules(9, 20_000)
    band = rate_band(20_000, 0.025)
    assert same[0] > 0.08
    assert max(others) > 0.025 + band
    assert max(both) <= 0.025 + band
