"""Attacks on regressions, against cases that are done by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privbench import Examples, MembershipQuestion
from privbench.toolbox.likelihood import Evidence
from privbench.toolbox.likelihood_ratio import log_ratio
from privbench_plugins.attacks.regression import LiRAResidual, SquaredError, unit


class Answers:
    """An oracle whose embedding of a row is the residual that is kept for its index."""

    def __init__(self, answers: list[float]) -> None:
        self.answers = torch.tensor(answers)

    def embeddings(self, rows: Examples) -> Tensor:
        return self.answers[rows.index][:, None]


def asked(
    form: Any, victim: list[float], shadows: list[list[float]], inside: list[list[int]]
) -> Any:
    held = [torch.tensor(one).bool() for one in inside]
    known = [
        SimpleNamespace(oracle=Answers(one), world=SimpleNamespace(contains=lambda _, i=i: held[i]))
        for i, one in enumerate(shadows)
    ]
    rows = Examples.of(torch.zeros(len(victim), 1), torch.full((len(victim),), -1), scale=1.0)
    question = MembershipQuestion(rows, "encoder")
    return form.answer(Answers(victim), question, SimpleNamespace(shadows=known))


def test_squared_errors_by_hand() -> None:
    found = asked(SquaredError(), [0.25, 0.0, -1.0], [], [])
    assert found.scores.tolist() == [-0.0625, 0.0, -1.0]
    assert found.decisions is None


def test_the_ratio_by_hand() -> None:
    """Two rows, four shadows; residuals in units of the median error, .5.

    With the row 0 or .2 (after division 0, .4), without it .4 or .6 (.8, 1.2): means .2 and 1, and
    residuals of .2 each, so the pooled variance is 8 × .04 / (8 - 4) = .08 for both sorts.
    """
    shadows = [[0.0, 0.4], [0.2, 0.6], [0.4, 0.0], [0.6, 0.2]]
    inside = [[1, 0], [1, 0], [0, 1], [0, 1]]
    form = LiRAResidual(k=4, variance="pooled")
    found = asked(form, [0.1, 0.5], shadows, inside)
    member = (1.0 - 0.2) ** 2 / (2 * 0.08)  # the victim answers the second row by .5, that is 1
    nonmember = (0.2 - 1.0) ** 2 / (2 * 0.08)
    assert found.scores.tolist() == pytest.approx([nonmember, -member], rel=1e-5)
    assert found.decisions.tolist() == [True, False]
    assert math.isclose(member, 4.0)


def test_the_sign_of_a_residual_counts() -> None:
    """Without the row, shadows answer too much; a victim that answers too little has seen it."""
    shadows = [[0.0, 0.4], [0.1, 0.3], [0.4, 0.0], [0.3, 0.1]]
    inside = [[1, 0], [1, 0], [0, 1], [0, 1]]
    found = asked(LiRAResidual(k=4), [-0.1, 0.1], shadows, inside)
    assert found.scores[0] > found.scores[1] > 0


@given(st.floats(1e-3, 1e3), st.integers(0, 2**16))
def test_the_unit_of_the_truth_does_not_count(scale: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    known = torch.randn(8, 20, 1, generator=draw, dtype=torch.float64)
    mine = torch.randn(20, 1, generator=draw, dtype=torch.float64)
    inside = torch.arange(8)[:, None].add(torch.arange(20)) % 2 == 0
    one = log_ratio(unit(Evidence(mine, known, inside)), kind="bayes")
    other = log_ratio(unit(Evidence(scale * mine, scale * known, inside)), kind="bayes")
    torch.testing.assert_close(one, other)


def test_shadows_without_an_error_leave_residuals_as_they_are() -> None:
    known, inside = torch.zeros(2, 2, 1), torch.eye(2).bool()
    assert unit(Evidence(torch.ones(2, 1), known, inside)).asked.tolist() == [[1.0], [1.0]]
