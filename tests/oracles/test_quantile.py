"""Quantile regression: losses, places and limits by hand; calibration; planted victims."""

from __future__ import annotations

import math
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench_plugins.attacks.quantile import (
    HEADS,
    TOP,
    Quantile,
    gaussian_limit,
    gaussian_loss,
    gaussian_place,
    pinball,
    pinball_limit,
    pinball_loss,
    pinball_place,
)

if TYPE_CHECKING:
    from privbench import Examples

QUICK = Quantile(hidden=32)
LEVELS = [1 - 10 ** (-i / 10) for i in range(TOP + 1)]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_pinball_loss_is_least_at_the_quantile() -> None:
    s = torch.arange(1, 11).double()
    tried = torch.linspace(0, 12, 241, dtype=torch.float64)
    losses = pinball(tried[:, None], s, double(0.9)).mean(1)
    best = tried[losses <= losses.min() + 1e-9]
    assert [best.min().item(), best.max().item()] == pytest.approx([9, 10])


def test_pinball_loss_is_the_mean_over_the_levels_of_the_paper() -> None:
    paper = [1 - 10.0**e for e in torch.linspace(0, -4, 41).tolist()]
    assert paper == pytest.approx(LEVELS)
    made, s = torch.randn(3, TOP + 1, generator=torch.Generator().manual_seed(0)), double([0, 1, 2])
    expected = [
        sum(
            level * max(y - q, 0) + (1 - level) * max(q - y, 0)
            for q, level in zip(row, LEVELS, strict=True)
        )
        / len(LEVELS)
        for row, y in zip(made.tolist(), s.tolist(), strict=True)
    ]
    assert pinball_loss(made.double(), s).tolist() == pytest.approx(expected, rel=1e-5)


def test_gaussian_head_by_hand() -> None:
    made, s = double([[1.0, math.log(2.0)]]), double([5.0])
    assert gaussian_place(made, s).item() == pytest.approx(2.0)
    density = -math.log(NormalDist(1, 2).pdf(5.0)) - 0.5 * math.log(2 * math.pi)
    assert gaussian_loss(made, s).item() == pytest.approx(density)
    assert gaussian_limit(0.05) == pytest.approx(1.644853627)


def test_a_place_is_the_level_that_the_score_reaches() -> None:
    q = torch.arange(TOP + 1).double()[None] * 3  # quantile i is 3 i
    at = double([0.0, 3.0, 4.5, 60.0, 120.0, -2.0, 121.5])
    places = pinball_place(q.expand(len(at), -1), at)
    assert places.tolist() == pytest.approx([0, 1, 1.5, 20, 40, -2, 41.5])
    assert pinball_limit(0.01) == pytest.approx(20)  # level 0.99 = 1 - 10 ** (-20 / 10)
    assert LEVELS[20] == pytest.approx(0.99)
    # the order in which a network crosses its quantiles does not matter
    torch.testing.assert_close(pinball_place(q.flip(1).expand(len(at), -1), at), places)


def test_a_score_at_equal_quantiles_reaches_the_highest_of_them() -> None:
    q = torch.arange(TOP + 1).double()
    q[5:8] = 5.0
    at = double([5.0, 4.0])
    assert pinball_place(q.expand(2, -1), at).tolist() == [7, 4]


@given(
    st.lists(st.integers(-6, 6), min_size=TOP + 1, max_size=TOP + 1),
    st.lists(st.integers(-40, 40), min_size=2, max_size=12),
    st.integers(0, TOP),
)
def test_places_rise_with_the_score_and_decide_as_the_quantile(
    quantiles: list[int], scores: list[int], level: int
) -> None:
    q = double(sorted(quantiles))
    s = (double(scores) / 5).sort().values
    places = pinball_place(q.expand(len(s), -1), s)
    assert ((places.diff() > 0) == (s.diff() > 0)).all()
    assert torch.equal(places >= level, s >= q[level])


@pytest.mark.parametrize("head", ["gaussian", "pinball"])
def test_realised_rate_is_the_rate_asked_for(head: str) -> None:
    s = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if head == "gaussian":
        made = double([[0.0, 0.0]])
    else:
        bounded = double([1e-6, *LEVELS[1:]])
        made = torch.special.ndtri(bounded)[None]
    for alpha in (0.05, 0.01, 0.001):
        called = HEADS[head].place(made.expand(len(s), -1), s) >= HEADS[head].limit(alpha)
        tolerance = 4 * math.sqrt(alpha / len(s)) + 0.05 * alpha  # quantiles are joined by lines
        assert called.double().mean().item() == pytest.approx(alpha, abs=tolerance)


@pytest.mark.parametrize("head", ["gaussian", "pinball"])
@pytest.mark.slow
def test_a_network_learns_what_depends_on_the_row(head: str) -> None:
    """Scores with mean 4 x and deviation 0.5: a global threshold sees x, the attack the rest.

    One fit on 800 rows of 65 columns leaves an AUC of .53 with a standard deviation of .044 over
    20 draws (both heads), so five draws are averaged: 0.63 is then five deviations away.
    """
    raw, placed = [], []
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(1200, 65, generator=generator)
        x[:, 64] = 1.0
        s = 4 * x[:, 0].double() + 0.5 * torch.randn(1200, generator=generator).double()
        attack = Quantile(head=head, hidden=32, epochs=60, patience=10)  # type: ignore[arg-type]
        _, ctx = arena(attack, memoriser(tiny_split().victim()))
        ctx.card = _one_class(ctx.card)
        network = ctx.init(partial(attack._build, ctx), "test", seed)
        s = (s - s.mean()) / s.std()
        cut = 800
        attack._fit(network, (x[:cut], s[:cut]), (x[cut:], s[cut:]), ctx.generator("test", seed))
        place = HEADS[head].place(network(x[cut:]).detach().double(), s[cut:])
        high = (x[cut:, 0] >= 0.5).numpy()
        raw.append(auc(s[cut:].numpy(), high).value)
        placed.append(auc(place.numpy(), high).value)
    # places do not tell small x from large x, where scores themselves do so nearly always
    assert min(raw) > 0.94
    assert sum(placed) / len(placed) == pytest.approx(0.5, abs=0.13)


def _one_class(card: Any) -> Any:
    from dataclasses import replace

    return replace(card, classes=1)


# ---- victims -------------------------------------------------------------------------------------


def play(attack: Quantile, served: Any, examples: Examples | None = None) -> Any:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    asked = question.examples if examples is None else examples
    oracle, ctx = arena(attack, served)
    answer = attack.answer(oracle, MembershipQuestion(asked, "encoder"), ctx)
    assert oracle.queries == len(asked) + len(ctx.auxiliary)
    return answer


def test_it_wants_no_shadows() -> None:
    assert Quantile().shadows.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gaussian", "pinball"])
def test_planted_and_null_victim(head: str) -> None:
    split = tiny_split()
    attack = QUICK.replace(head=head)
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    assert answer.decisions[split.member].double().mean() > 0.9
    assert answer.decisions[~split.member].double().mean() < 0.1
    assert 0 <= answer.notes["realised FPR at 0.01"] < 0.1
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


def test_decisions_are_those_of_alpha() -> None:
    served = memoriser(tiny_split().victim())
    strict, loose = (play(QUICK.replace(alpha=alpha), served) for alpha in (0.001, 0.2))
    torch.testing.assert_close(strict.scores, loose.scores)
    for answer in (strict, loose):
        assert torch.equal(answer.decisions, answer.scores >= answer.notes["threshold"])
    assert strict.decisions.sum() < loose.decisions.sum()


def test_rows_without_a_label_get_a_neutral_score() -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer = play(QUICK, memoriser(split.victim()), some)
    assert (answer.scores[blank] == 0).all()
    assert not answer.decisions[blank].any()
    assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.95


def test_a_convolutional_network_wants_pictures() -> None:
    split = tiny_split()
    answer = play(QUICK.replace(network="convnet", epochs=3), memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.9


def test_what_it_decides_at_is_in_the_record() -> None:
    from privbench import Adversary, Attack, Cell
    from privbench.grid.trial import cell_record
    from privbench.testing.fixtures import TinyImages, TinyTarget
    from privbench_plugins.attacks.lira import LiRA
    from privbench_plugins.attacks.metric import MetricLoss

    def point(attack: Attack) -> str:
        data, split = TinyImages(), tiny_split()
        return cell_record(
            Cell(
                split.card, split.protocol, TinyTarget(), (), Adversary(), attack, (),
                dataset=data,
            )
        ).decides_at  # fmt: skip

    assert point(Quantile()) == "FPR 0.01"
    assert point(Quantile(alpha=0.05)) == "FPR 0.05"
    assert point(MetricLoss()) == "mean training loss"
    assert point(LiRA()) == ""
