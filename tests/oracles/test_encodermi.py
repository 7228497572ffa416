"""EncoderMI against brute force and planted similarities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench.measure.games.membership import MembershipQuestion
from privbench.measure.methods.context import AttackContext, Shadow, seeded
from privbench.measure.methods.oracle import Oracle, Views
from privbench.testing import arena, memoriser, tiny_split
from privbench_plugins.attacks.encodermi import (
    DeepSet,
    EncoderMISet,
    EncoderMIThreshold,
    EncoderMIVector,
    pairwise,
)

if TYPE_CHECKING:
    from privbench import Examples

VARIANTS = [
    EncoderMIThreshold(), EncoderMIVector(epochs=100, steps=300),
    EncoderMISet(epochs=30, steps=150, hidden=16),
]  # fmt: skip


def _arena(attack: Any) -> tuple[Oracle, AttackContext, MembershipQuestion]:
    split = tiny_split()
    oracle, ctx = arena(attack, memoriser(split.victim()))
    return oracle, ctx, MembershipQuestion(split.candidates.without_attributes(), "encoder")


def test_ten_views_give_forty_five_cosines_of_distinct_pairs() -> None:
    h = torch.randn(4, 10, 6, generator=torch.Generator().manual_seed(0))
    found = pairwise(h)
    assert found.shape == (4, 45)
    pairs = [(i, j) for i in range(10) for j in range(i + 1, 10)]
    direct = [
        [float(torch.cosine_similarity(h[r, i], h[r, j], dim=0)) for i, j in pairs]
        for r in range(4)
    ]
    assert torch.allclose(found, torch.tensor(direct), atol=1e-6)
    assert pairwise(h[:, :2]).shape == (4, 1)


def test_equal_views_have_similarity_one_whatever_their_length() -> None:
    h = torch.randn(3, 1, 5).expand(3, 4, 5) * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]
    assert torch.allclose(pairwise(h), torch.ones(3, 6), atol=1e-6)


def test_correlation_and_distance_agree_with_numpy() -> None:
    h = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    rows = h.double().numpy()
    correlation = [[np.corrcoef(row[i], row[j])[0, 1] for i, j in pairs] for row in rows]
    distance = [[-np.linalg.norm(row[i] - row[j]) for i, j in pairs] for row in rows]
    assert np.allclose(pairwise(h, "correlation").numpy(), correlation, atol=1e-5)
    assert np.allclose(pairwise(h, "euclidean").numpy(), distance, atol=1e-5)


def test_distance_of_close_views_is_not_lost_in_rounding() -> None:
    h = torch.full((1, 2, 512), 100.0)
    h[0, 1, 0] += 0.01
    assert torch.allclose(pairwise(h, "euclidean"), torch.tensor([[-0.01]]), rtol=1e-2)


@pytest.mark.parametrize("similarity", ["correlation", "euclidean"])
def test_other_similarities_also_find_members(similarity: Any) -> None:
    attack = EncoderMIThreshold(similarity=similarity)
    oracle, ctx, question = _arena(attack)
    answer = attack.answer(oracle, question, ctx)
    split = tiny_split()
    member = split.victim().contains(split.candidates).numpy()
    assert answer.scores.numpy()[member].mean() > answer.scores.numpy()[~member].mean()


def _shadow_errors(inside: np.ndarray[Any, Any], outside: np.ndarray[Any, Any], t: float) -> int:
    """alpha + beta of section 4.2: members below the threshold, nonmembers at or above it."""
    return int((inside < t).sum() + (outside >= t).sum())


@given(
    st.lists(st.integers(-9, 9), min_size=3, max_size=12),
    st.lists(st.integers(-9, 9), min_size=3, max_size=12),
)
def test_threshold_is_the_brute_force_optimum(members: list[int], others: list[int]) -> None:
    size = min(len(members), len(others))
    inside, outside = np.array(members[:size]) / 9, np.array(others[:size]) / 9
    known = torch.tensor(np.concatenate([inside, outside])).repeat(2, 1).T  # two equal similarities
    answer = EncoderMIThreshold()._compare(known, known, size, None)  # type: ignore[arg-type]
    theta = float(answer.notes["threshold"])
    values = np.unique(np.concatenate([inside, outside]))
    tried = [*values, *((values[1:] + values[:-1]) / 2), np.inf, -np.inf]
    best = min(_shadow_errors(inside, outside, t) for t in tried)
    assert _shadow_errors(inside, outside, theta) == best


def test_a_row_at_the_threshold_is_a_member() -> None:
    known = torch.tensor([0.75, 0.9, 0.1, 0.25])[:, None]
    answer = EncoderMIThreshold()._compare(torch.tensor([[0.5], [0.49]]), known, 2, None)  # type: ignore[arg-type]
    assert answer.notes["threshold"] == 0.5
    assert answer.decisions is not None
    assert answer.decisions.tolist() == [True, False]


@pytest.mark.parametrize("attack", VARIANTS, ids=lambda a: a.name)
def test_views_in_another_order_change_nothing(attack: Any) -> None:
    """V sorts, S pools, T averages."""
    g = torch.Generator().manual_seed(0)
    asked, known = torch.rand(20, 45, generator=g), torch.rand(40, 45, generator=g)
    known[:20] += 0.3
    _, ctx = arena(attack, memoriser(tiny_split().victim()))
    order = torch.randperm(45, generator=g)
    plain = attack._compare(asked, known, 20, ctx).scores
    moved = attack._compare(asked[:, order], known, 20, ctx).scores
    assert torch.allclose(plain, moved, atol=1e-4)


def test_the_set_network_is_invariant_and_sees_the_level() -> None:
    network = seeded(lambda: DeepSet(16, 0.5), 0).eval()
    x = torch.rand(5, 45)
    assert torch.allclose(network(x), network(x[:, torch.randperm(45)]), atol=1e-5)
    level = network(torch.full((1, 45), 0.9)) - network(torch.full((1, 45), 0.6))
    assert level.abs().max() > 1e-3  # standardising each set would make these equal


@pytest.mark.parametrize("attack", VARIANTS, ids=lambda a: a.name)
def test_levels_of_similarity_are_told_apart(attack: Any) -> None:
    g = torch.Generator().manual_seed(1)

    def sets(mean: float) -> torch.Tensor:
        return (mean + 0.05 * torch.randn(60, 45, generator=g)).clamp(-1, 1)

    known, asked = torch.cat([sets(0.9), sets(0.6)]), torch.cat([sets(0.9), sets(0.6)])
    _, ctx = arena(attack, memoriser(tiny_split().victim()))
    answer = attack._compare(asked, known, 60, ctx)
    assert answer.decisions is not None
    assert answer.decisions[:60].float().mean() > 0.95
    assert answer.decisions[60:].float().mean() < 0.05


def test_the_threshold_comes_from_the_shadow_alone() -> None:
    attack = EncoderMIThreshold()
    oracle, ctx, question = _arena(attack)
    whole = attack.answer(oracle, question, ctx)
    few = MembershipQuestion(question.examples.select(slice(0, 7)), "encoder")
    assert attack.answer(oracle, few, ctx).notes == whole.notes
    (shadow,) = ctx.shadows
    swapped = Shadow(
        replace(shadow.world, parts={**shadow.world.parts, "members": shadow.nonmembers}),
        shadow.world.members, shadow.oracle, shadow.model,
    )  # fmt: skip
    ctx.shadows = (swapped,)
    wrong = attack.answer(oracle, question, ctx)
    assert wrong.notes != whole.notes
    assert torch.equal(wrong.scores, whole.scores)


def test_queries_are_views_of_the_question() -> None:
    attack = EncoderMIThreshold(n=5)
    oracle, ctx, question = _arena(attack)
    attack.answer(oracle, question, ctx)
    assert oracle.queries == 5 * len(question.examples)


def test_every_row_has_its_own_views_and_they_follow_the_row() -> None:
    split = tiny_split()
    rows: Examples = split.candidates.select(slice(0, 6))
    augmentation = EncoderMIThreshold().augmentation.within(split.card.limits)  # type: ignore[arg-type]
    views = Views(rows, augmentation, 3, 11).make(0, 6).view(6, 3, 1, 8, 8)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    moved = Views(rows.select(order), augmentation, 3, 11).make(0, 6).view(6, 3, 1, 8, 8)
    assert torch.equal(views[order], moved)
    assert not torch.equal(views[:, 0], views[:, 1])
    other = Views(rows, augmentation, 3, 12).make(0, 6).view(6, 3, 1, 8, 8)
    assert not torch.equal(views, other)
