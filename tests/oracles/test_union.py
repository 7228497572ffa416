"""The union: its pieces by hand, its choice on made scores, and victims."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from privbench import Access, MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox.likelihood import Evidence
from privbench_plugins.attacks.metric import MetricModifiedEntropy
from privbench_plugins.attacks.union import (
    Union,
    calibrated,
    certainty,
    chosen,
    found,
    in_place,
    prior,
    regression,
    scored,
    takes_part,
    trials,
)

if TYPE_CHECKING:
    from privbench import Membership

QUICK = Union(k=8, queries=60)
POSTERIORS = Union(k=8, components=("lira", "rmia", "metric-modified-entropy"))


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- pieces --------------------------------------------------------------------------------------


def test_ranks_become_normal_quantiles() -> None:
    scores = double([[5.0], [1.0], [1.0], [math.nan], [9.0]])
    known = torch.tensor([1, 1, 1, 1, 0]).bool()
    # of three: 1 and 1 share the places 0 to 2, so 1/3; 5 is at 5/6; NaN is the middle
    assert calibrated(scores, known)[:, 0].tolist() == pytest.approx(
        [0.967422, -0.430727, -0.430727, 0.0, 0.0], abs=1e-6
    )
    moved = calibrated(torch.exp(scores), known)
    torch.testing.assert_close(moved, calibrated(scores, known))


def test_prior_and_certainty_by_hand() -> None:
    one = Evidence(double([[0.0]]), double([[[0.8]], [[0.4]], [[0.1]]]).log(),
                   torch.tensor([[1], [1], [0]]).bool())  # fmt: skip
    assert prior(one).exp().item() == pytest.approx((0.6 + 0.1) / 2)
    none = Evidence(one.asked, one.known, one.inside & False)
    assert prior(none).exp().item() == pytest.approx(1.3 / 3)
    log_p = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double().log_softmax(1)
    y = torch.arange(50) % 4
    torch.testing.assert_close(certainty(log_p, y), MetricModifiedEntropy().measure(log_p, y))
    assert certainty(log_p[:1], torch.tensor([-1])).isnan().all()
    sure = double([[0.0, -math.inf, -math.inf]])
    assert certainty(sure, torch.tensor([0])).item() == pytest.approx(0.0, abs=1e-6)
    assert certainty(sure, torch.tensor([1])).isfinite()


def test_scores_rise_with_membership_whatever_the_component() -> None:
    # two rows, two shadows with them at 4 and two without at 0; the victim answers 4 and 0
    known = double([[4.0, 4.0], [4.2, 4.2], [0.0, 0.0], [0.2, 0.2]]).unsqueeze(-1) - 5
    inside = torch.tensor([[1, 1], [1, 1], [0, 0], [0, 0]]).bool()
    one = Evidence(double([[4.1], [0.1]]) - 5, known, inside)
    scores = scored(dict.fromkeys(Union().components, one))
    assert (scores[0] > scores[1]).all()
    usual = ((math.exp(-1) + math.exp(-0.8)) / 2 + (math.exp(-5) + math.exp(-4.8)) / 2) / 2
    assert scores[0, 1].item() == pytest.approx(-0.9 - math.log(usual))


def test_share_found_at_a_rate_by_hand() -> None:
    scores = double([9, 8, 7, 6, 5, 4, 3, 2])
    member = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1]).bool()
    # nonmembers 8 5 4 3: none of them may be above at 0.2, one at 0.25, two at 0.5
    assert [found(scores, member, r) for r in (0.2, 0.25, 0.5)] == [0.25, 0.75, 0.75]
    assert found(torch.ones(8), member, 0.5) == 0  # what is alike finds nothing


def test_the_regression_is_finite_where_scores_separate() -> None:
    apart = regression(double([[-1.0], [1.0]] * 9), torch.tensor([0, 1] * 9).bool())
    assert apart.isfinite().all()
    assert apart.item() > 1


# ---- the choice ----------------------------------------------------------------------------------


def made(strengths: list[float], seed: int = 0, shadows: int = 8, n: int = 2000) -> Any:
    """Calibrated scores: normal, with members shifted by each strength."""
    generator = torch.Generator().manual_seed(seed)
    members = [torch.arange(n) % 2 == 0] * shadows
    tables = []
    for member in members:
        noise = torch.randn(n, len(strengths), generator=generator, dtype=torch.float64)
        scores = noise + member[:, None] * double(strengths)
        tables.append(calibrated(scores, torch.ones(n).bool()))
    return tables, members


def test_independent_components_add_up() -> None:
    tables, members = made([1.0, 1.0])
    weights, shares = chosen(tables, members, 0.01)
    assert weights[0].item() == pytest.approx(weights[1].item(), rel=0.2)
    # a normal of shift 1 finds Φ(1 - 2.326) = .092 at 1 %; the sum has shift √2: Φ(-.912) = .181
    assert shares[:2] == pytest.approx([0.092, 0.092], abs=0.03)
    assert shares[2] == pytest.approx(0.181, abs=0.04)


def test_useless_components_cost_next_to_nothing() -> None:
    tables, members = made([1.5, 0.0, 0.0, 0.0])
    weights, shares = chosen(tables, members, 0.01)
    assert max(shares) >= shares[0] > 0.15
    assert (weights[1:].abs() < 0.1 * weights[0]).all()


def test_the_regression_is_compared_on_shadows_that_it_did_not_see() -> None:
    # 25 columns of noise: fitted on the same 240 rows, the regression would find .45 of members
    tables, members = made([0.0] * 25, n=60)
    _, shares = chosen(tables, members, 0.2)
    assert shares[-1] == pytest.approx(0.2, abs=0.1)


def test_worlds_that_may_be_complements_are_both_fitted_on_or_both_compared_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from privbench_plugins.attacks import union

    fits: list[set[int]] = []

    def regressed(x: Tensor, member: Tensor) -> Tensor:
        del member
        fits.append(set(x.int().flatten().tolist()))  # the numbers of the shadows
        return double([1.0])

    monkeypatch.setattr(union, "regression", regressed)
    member = torch.arange(4) % 2 == 0
    chosen([torch.full((4, 1), i).double() for i in range(8)], [member] * 8, 0.01)
    *compared, last = fits
    assert last == set(range(8))
    assert len(compared) == 8
    for shadow, fitted in enumerate(compared):
        assert fitted
        assert shadow not in fitted
        assert fitted == {other ^ 1 for other in fitted}


def test_a_component_alone_is_taken_where_the_regression_finds_less() -> None:
    # the first finds a tenth of the members for sure and knows nothing else; the second ranks well
    tables, members = [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        member = torch.arange(2000) % 2 == 0
        tail = torch.randn(2000, generator=generator, dtype=torch.float64)
        tail[member & (torch.rand(2000, generator=generator) < 0.1)] += 20
        rank = torch.randn(2000, generator=generator, dtype=torch.float64) + 0.8 * member
        rank = torch.where(tail > 10, rank - 6, rank)
        tables.append(calibrated(torch.stack([tail, rank], 1), torch.ones(2000).bool()))
        members.append(member)
    weights, shares = chosen(tables, members, 0.01)
    assert shares[0] > shares[2]
    assert weights.tolist() == [1.0, 0.0]


# ---- shadows in the victim's place ---------------------------------------------------------------


def test_no_complement_judges_and_each_shadow_is_compared_with_its_own_truth() -> None:
    split = tiny_split()
    _, ctx = arena(POSTERIORS, memoriser(split.victim()))
    held = torch.stack([s.world.contains(split.candidates) for s in ctx.shadows])
    drawn = trials(ctx.shadows, split.candidates)
    assert [index for index, _ in drawn] == list(range(8))
    for index, judges in drawn:
        assert index not in judges
        assert len(judges) == 6
        assert (held[index] & held[judges]).any(1).all()
    one = Evidence(double([0.0, 0.0]), double([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
                   torch.tensor([[1, 0], [0, 1], [1, 1]]).bool())  # fmt: skip
    placed = in_place(one, 1, [0, 2])
    assert placed.asked.tolist() == [3.0, 4.0]
    assert placed.known.tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert placed.inside.tolist() == [[True, False], [True, True]]


def test_components_that_are_not_granted_are_left_out() -> None:
    every = Union().components
    assert takes_part(every, Access.LABELS) == ["label-lira"]
    assert takes_part(every, Access.POSTERIORS) == ["lira", "rmia", "metric-modified-entropy"]
    assert takes_part(every, Access.EMBEDDINGS) == ["lira-encoder"]
    assert takes_part(["lira", "lira"], Access.POSTERIORS) == ["lira"]
    cell: Any = SimpleNamespace(access=Access.LABELS)
    assert Union().incompatible(cell) is None
    assert "LABELS" in str(POSTERIORS.incompatible(cell))


def play(attack: Any, served: Any, examples: Any = None) -> Membership:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer: Membership = attack.answer(oracle, question, ctx)
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("attack", [QUICK, POSTERIORS, Union(k=4, components=("lira",))], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    assert answer.decisions is not None
    assert not answer.decisions[~split.member].double().mean() > 0.1
    assert answer.decisions[split.member].double().mean() > 0.3
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


def test_rows_without_a_label_get_a_neutral_score() -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer = play(POSTERIORS, memoriser(split.victim()), some)
    assert (answer.scores[blank] == 0).all()
    assert answer.decisions is not None
    assert not answer.decisions[blank].any()
    assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.95
