"""LpLA against densities of scipy, and on victims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from scipy import stats
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench_plugins.attacks.lpla import LpLA, log_ratio

if TYPE_CHECKING:
    from privbench import Membership, Oracle


def test_the_ratio_is_that_of_two_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    members = 3 + 2 * torch.randn(50, generator=generator, dtype=torch.float64)
    others = torch.randn(70, generator=generator, dtype=torch.float64)
    asked = torch.linspace(-5, 8, 27, dtype=torch.float64)
    expected = [
        stats.norm.logpdf(asked.numpy(), drawn.numpy().mean(), drawn.numpy().std(ddof=1))
        for drawn in (members, others)
    ]
    assert log_ratio(asked, members, others).numpy() == pytest.approx(expected[0] - expected[1])


@pytest.mark.parametrize(("p", "norm"), [(1.0, 7.0), (2.0, 5.0), (100.0, 4.0)])
def test_norms_by_hand(p: float, norm: float) -> None:
    class Fixed:
        def embeddings(self, rows: Any) -> Tensor:
            return torch.tensor([[3.0, -4.0]]).expand(len(rows), 2)

    found = LpLA(p=p)._norms(cast("Oracle", Fixed()), tiny_split().test)
    assert found.tolist() == pytest.approx([norm] * 80)


def play(attack: Any, served: Any) -> Membership:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    oracle, ctx = arena(attack, served)
    answer: Membership = attack.answer(oracle, question, ctx)
    assert oracle.queries == len(question.examples)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("attack", [LpLA(), LpLA(k=3), LpLA(p=1.0)], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    assert answer.decisions is not None
    assert (answer.decisions == split.member).double().mean() > 0.9
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


def test_it_needs_no_labels() -> None:
    split = tiny_split()
    oracle, ctx = arena(LpLA(), memoriser(split.victim()))
    blank = split.candidates.with_y(torch.full_like(split.candidates.y, -1))
    answers = [
        LpLA().answer(oracle, MembershipQuestion(rows, "encoder"), ctx).scores
        for rows in (split.candidates, blank)
    ]
    assert torch.equal(*answers)
