"""Dual coefficients of votes: counts and signals by hand, and members that labels alone tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from privbench import Examples, MembershipQuestion
from privbench.measure.games.metrics import auc
from privbench.toolbox.copies import kept, noisy
from privbench.toolbox.duals import Duals, of_logits
from privbench.toolbox.votes import of_labels, votes
from privbench_plugins.attacks.dual_label import DualLabel
from privbench_plugins.attacks.label_lira import LabelLiRA

N, CLASSES, SHADOWS, INPUTS = 120, 4, 16, 6
LEVELS = (0.1, 0.2, 0.4)


def rows(seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(N, INPUTS, generator=draw)
    return Examples.of(x, torch.randint(CLASSES, (N,), generator=draw), scale=1.0)


class Machine:
    """Labels of a start plus one bell around each member, which pushes towards its class."""

    def __init__(self, every: Examples, held: Tensor, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.start = 2 * torch.randn(INPUTS, CLASSES, generator=draw)
        self.at, self.push = every.x[held], F.one_hot(every.y[held], CLASSES) - 1 / CLASSES

    def labels(self, rows: Any) -> Tensor:
        x = rows.x if isinstance(rows, Examples) else rows
        bells = (-torch.cdist(x, self.at).square() / 0.2).exp()
        return (0.3 * (x - 0.5) @ self.start + bells @ self.push).argmax(1)


def half(draw: torch.Generator) -> Tensor:
    return torch.randperm(N, generator=draw) < N // 2


def context(every: Examples, sets: list[Tensor], seed: int) -> Any:
    """Return a context whose shadows have these members."""

    def shadow(held: Tensor, number: int) -> Any:
        return SimpleNamespace(oracle=Machine(every, held, 100 * seed + number),
                               world=SimpleNamespace(contains=lambda _: held))  # fmt: skip

    return SimpleNamespace(
        shadows=[shadow(held, 1 + i) for i, held in enumerate(sets)],
        card=SimpleNamespace(kind="table", classes=CLASSES, limits=None, shape=(INPUTS,)),
        generator=lambda _: torch.Generator().manual_seed(seed),
    )  # fmt: skip


def test_votes_and_signals_by_hand() -> None:
    every, draw = rows(0), torch.Generator().manual_seed(0)
    ctx: Any = context(every, [half(draw) for _ in range(4)], 0)
    oracle: Any = Machine(every, half(draw), 99)
    count = votes(oracle, every, ctx, LEVELS, 30)
    assert count.shape == (N, 3, CLASSES)
    assert (count.sum(-1) == 10).all()
    for i in (0, 7):
        copies = noisy(ctx, 10)(LEVELS[1])(every.x[i : i + 1])[0]
        assert count[i, 1].tolist() == oracle.labels(copies).bincount(minlength=CLASSES).tolist()
    found = of_labels(ctx, every, LEVELS, 30)(oracle, every)
    assert torch.equal(found[:, -1:], kept(oracle, every, ctx, LEVELS, 30))
    shares = (count + 0.5) / (10 + CLASSES / 2)
    product = shares.log().mean(1).exp()
    log_p = (product / product.sum(1, keepdim=True)).log()
    wrong = torch.stack([
        F.one_hot(every.y, CLASSES) - F.one_hot(one.oracle.labels(every), CLASSES)
        for one in ctx.shadows
    ]).double().sum(0) + F.one_hot(every.y, CLASSES) - 1 / CLASSES  # fmt: skip
    expected = of_logits(Duals.of(every), log_p, every.y, F.normalize(wrong, dim=1))
    torch.testing.assert_close(found[:, :-1], expected)


def test_members_are_found_better_than_by_odds() -> None:
    sums = dict.fromkeys(("duals", "odds", "null"), 0.0)
    for seed in range(3):
        every, draw = rows(seed), torch.Generator().manual_seed(seed)
        member, *deals = (half(draw) for _ in range(SHADOWS // 2 + 1))
        ctx: Any = context(every, [one for held in deals for one in (held, ~held)], seed)
        asked = MembershipQuestion(every, "classifier")
        for name, attack, held in (
            ("duals", DualLabel(queries=60, levels=LEVELS), member),
            ("odds", LabelLiRA(queries=60, levels=LEVELS), member),
            ("null", DualLabel(queries=60, levels=LEVELS), half(draw)),
        ):
            oracle: Any = Machine(every, held, 100 * seed)
            answer = attack.answer(oracle, asked, ctx)
            sums[name] += auc(answer.scores.numpy(), member.numpy()).value / 3
    assert sums["duals"] > sums["odds"] + 0.08, sums
    assert abs(sums["null"] - 0.5) < 0.08, sums


def test_a_row_without_a_label_is_not_called_a_member() -> None:
    every, draw = rows(0), torch.Generator().manual_seed(0)
    ctx: Any = context(every, [half(draw) for _ in range(4)], 0)
    blank = every.with_y(torch.where(torch.arange(N) < 9, -1, every.y))
    oracle: Any = Machine(every, half(draw), 99)
    asked = MembershipQuestion(blank, "classifier")
    answer = DualLabel(levels=LEVELS, queries=60).answer(oracle, asked, ctx)
    assert answer.decisions is not None
    assert answer.scores[:9].tolist() == [0.0] * 9
    assert not answer.decisions[:9].any()
    assert answer.scores[9:].all()
