"""Dual coefficients: the kernel against a wide network, by hand, and members that they find."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from privbench import Access, Examples, MembershipQuestion
from privbench.measure.games.metrics import auc
from privbench.toolbox import duals as of_duals
from privbench.toolbox.duals import (
    LAYERS,
    MIDDLE,
    SHORTEST,
    STRENGTHS,
    Duals,
    arc_cosines,
    of_embeddings,
    of_logits,
    tangent,
)
from privbench.toolbox.traces import Axes
from privbench_plugins.attacks.dual_cmia import DualCMIA
from privbench_plugins.attacks.dual_lira import DualEncoder, DualHead, DualLiRA
from privbench_plugins.attacks.lira import LiRA

if TYPE_CHECKING:
    from privbench import MembershipAttack

N, CLASSES, SHADOWS, INPUTS = 120, 4, 16, 12


def rows(seed: int, n: int = N) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(n, INPUTS, generator=draw)
    return Examples.of(x, torch.randint(CLASSES, (n,), generator=draw), scale=1.0)


def test_the_kernel_is_that_of_a_wide_network() -> None:
    """Inner products of all gradients, with weights drawn from N(0, 2 / inputs)."""
    draw = torch.Generator().manual_seed(0)
    x, width = torch.randn(4, 6, generator=draw).double(), 3000
    sizes = [6, *[width] * LAYERS, 1]
    weights = [torch.randn(o, i, generator=draw).double() for i, o in pairwise(sizes)]
    gradients = []
    for row in x:
        copies = [w.clone().requires_grad_() for w in weights]
        h = row
        for i, w in enumerate(copies):
            h = w @ h / w.shape[1] ** 0.5
            h = h if i == LAYERS else 2**0.5 * h.relu()
        made = torch.autograd.grad(h.sum(), copies)
        gradients.append(torch.cat([one.flatten() for one in made]))
    g = torch.stack(gradients)
    torch.testing.assert_close(arc_cosines(x), g @ g.T, rtol=0.08, atol=0.05)


def test_coefficients_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    every = rows(0, 30)
    values = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    y = values.double() - values.double().mean(0)
    kernel, one = tangent(every.x), torch.eye(30).double()
    for strength in STRENGTHS:
        expected = torch.linalg.solve(kernel + strength * one, y)
        torch.testing.assert_close(Duals.of(every).coefficients(values, strength), expected)
    assert kernel.diagonal().mean() == pytest.approx(1)
    monkeypatch.setattr(of_duals, "BLOCK", 20)  # two blocks of 15 rows, by their keys
    made = Duals.of(every).coefficients(values, 0.1)
    for part in every.keys.argsort().chunk(2):
        alone = torch.linalg.solve(tangent(every.x[part]) + 0.1 * torch.eye(15).double(), y[part])
        torch.testing.assert_close(made[part], alone)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    moved = Duals.of(every.select(order)).coefficients(values[order], 0.1)
    torch.testing.assert_close(moved, made[order])


def test_signals_of_logits_by_hand() -> None:
    every, draw = rows(2, 25), torch.Generator().manual_seed(3)
    log_p = torch.randn(25, CLASSES, generator=draw).double().log_softmax(1)
    pull = nn.functional.normalize(torch.randn(25, CLASSES, generator=draw).double(), dim=1)
    unlabelled = pull.masked_fill((torch.arange(25) == 3)[:, None], torch.nan)
    duals, y = Duals.of(every), every.y.clone()
    y[3] = -1
    found = of_logits(duals, log_p, y, unlabelled).view(25, len(STRENGTHS), 5)
    a = duals.coefficients(log_p - log_p.mean(1, keepdim=True), STRENGTHS[2])
    assert found[3].isnan().any()
    for i in (0, 7):
        along = float(a[i] @ pull[i])
        of_p = duals.coefficients(log_p.exp(), STRENGTHS[2])[i]
        expected = [along, float(a[i, y[i]]), float(of_p @ pull[i]),
                    float((a[i].square().sum() + SHORTEST).log()),
                    float(((a[i] - along * pull[i]).square().sum() + SHORTEST).log())]  # fmt: skip
        assert found[i, 2].tolist() == pytest.approx(expected)
    broken = log_p.clone()
    broken[8] = torch.nan  # one row spoils no other
    assert of_logits(duals, broken, every.y, pull)[:8].isfinite().all()
    hidden = torch.where(log_p < -2, -1e4, log_p)  # a release that sets them to 0
    assert of_logits(duals, hidden, every.y, pull).isfinite().all()


def test_signals_of_embeddings_by_hand() -> None:
    every, draw = rows(4, 25), torch.Generator().manual_seed(5)
    h = torch.randn(25, 6, generator=draw).double()
    truth = nn.functional.one_hot(every.y, CLASSES).double()
    duals, axes = Duals.of(every), Axes.of(h)
    found = of_embeddings(duals, axes, truth)
    centred = h - h.mean(0)
    unit = centred / centred.square().sum(1).mean().sqrt()
    for i, strength in enumerate(STRENGTHS):
        length = duals.coefficients(unit, strength).square().sum(1)
        torch.testing.assert_close(found[:, i], (length + SHORTEST).log())
    along = nn.functional.normalize(truth - truth.mean(0), dim=1)
    said = (truth - truth.mean(0)) - axes.left(truth)[:, 3]  # by the fourth regression
    expected = (duals.coefficients(said, MIDDLE[1]) * along).sum(1)
    torch.testing.assert_close(found[:, len(STRENGTHS) + 5 + 3], expected)


@given(st.integers(0, 10_000), st.floats(0.1, 50))
def test_signals_know_no_order_of_rows_and_no_unit_of_embeddings(seed: int, unit: float) -> None:
    every, draw = rows(seed, 24), torch.Generator().manual_seed(seed)
    h = torch.randn(24, 5, generator=draw)
    truth = nn.functional.one_hot(every.y, CLASSES).double()
    found = of_embeddings(Duals.of(every), Axes.of(h), truth)
    order = torch.randperm(24, generator=draw)
    turn, _ = torch.linalg.qr(torch.randn(5, 5, generator=draw))
    shifted = Axes.of((unit * h @ turn + 3)[order])
    moved = of_embeddings(Duals.of(every.select(order)), shifted, truth[order])
    torch.testing.assert_close(moved, found[order], rtol=1e-3, atol=1e-3)
    assert found.shape[1] == len(STRENGTHS) + 5 * len(MIDDLE)
    assert of_embeddings(Duals.of(every), Axes.of(h), None).shape[1] == len(STRENGTHS)


class Kernel:
    """A model that is its start plus one kernel function for each member, whose push is hidden."""

    grants = Access.POSTERIORS | Access.EMBEDDINGS

    def __init__(self, every: Examples, held: Tensor, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        x = every.x.double()
        start = 0.3 * x @ torch.randn(INPUTS, CLASSES, generator=draw).double()
        push = nn.functional.one_hot(every.y, CLASSES).double() - 1 / CLASSES
        z = start + tangent(every.x) @ (push * held[:, None])
        self.log_p: Tensor = z.log_softmax(1)
        self.h = torch.cat([z, x], 1)

    def log_posteriors(self, rows: Any) -> Tensor:
        del rows
        return self.log_p

    def posteriors(self, rows: Any) -> Tensor:
        return self.log_posteriors(rows).exp()

    def embeddings(self, rows: Any) -> Tensor:
        del rows
        return self.h


def found(
    attack: MembershipAttack,
    every: Examples,
    sets: Tensor,
    seed: int,
    asked: Examples | None = None,
) -> Any:
    models: list[Any] = [Kernel(every, held, 100 * seed + i) for i, held in enumerate(sets)]
    worlds = [SimpleNamespace(contains=lambda _, held=held: held) for held in sets]
    shadows = [SimpleNamespace(oracle=one, world=world)
               for one, world in zip(models[1:], worlds[1:], strict=True)]  # fmt: skip

    def train_shadow(members: Examples, number: int) -> Any:
        held = torch.isin(every.index, members.index)
        return SimpleNamespace(oracle=Kernel(every, held, 100 * seed + SHADOWS + 1 + number),
                               world=SimpleNamespace(contains=lambda _: held))  # fmt: skip

    ctx: Any = SimpleNamespace(
        shadows=shadows, card=SimpleNamespace(kind="table", classes=CLASSES, limits=None),
        train_shadow=train_shadow, salt=lambda *_: seed,
    )  # fmt: skip
    return attack.answer(models[0], MembershipQuestion(asked or every, "encoder"), ctx)


def half(draw: torch.Generator) -> Tensor:
    return torch.randperm(N, generator=draw) < N // 2


def test_shadows_that_are_close_to_the_victim_find_more() -> None:
    """With as many shadows in all."""
    gained = []
    for seed in range(3):
        every, draw = rows(seed), torch.Generator().manual_seed(seed)
        first = [half(draw) for _ in range(SHADOWS // 2 + 1)]
        sets = torch.stack([first[0], *(one for h in first[1:] for one in (h, ~h))])
        answer = found(DualCMIA(), every, sets, seed)
        more = [half(draw) for _ in range(3 * SHADOWS // 2)]
        once = torch.stack([*sets, *(one for h in more for one in (h, ~h))])
        plain = found(DualLiRA(variance="bayes"), every, once, seed)
        assert answer.notes["shadows"] == len(once) - 1
        member = sets[0].numpy()
        gained += [auc(one.scores.numpy(), member).value for one in (answer, plain)]
    assert sum(gained[::2]) > sum(gained[1::2]) + 0.1, gained


@pytest.mark.parametrize("attack", [DualLiRA(), DualHead(), DualEncoder()], ids=lambda a: a.name)
def test_members_of_a_kernel_machine_are_found(attack: MembershipAttack) -> None:
    """What a row adds says more than what its neighbours make of it."""
    values, plain = [], []
    for seed in range(3):
        every, draw = rows(seed), torch.Generator().manual_seed(seed)
        sets = torch.stack([torch.randperm(N, generator=draw) < N // 2 for _ in range(SHADOWS + 1)])
        answer = found(attack, every, sets, seed)
        member = sets[0].numpy()
        values.append(auc(answer.scores.numpy(), member).value)
        plain.append(auc(found(LiRA(views=0), every, sets, seed).scores.numpy(), member).value)
        blank = every.with_y(torch.where(torch.arange(N) < 9, -1, every.y))
        part = found(attack, every, sets, seed, blank)
        assert part.scores.isfinite().all()
        if Access.POSTERIORS in attack.needs:
            assert part.scores[:9].tolist() == [0.0] * 9
    floor = {"dual-lira": 0.75, "dual-encoder": 0.7, "dual-head": 0.9}[attack.name]
    assert min(values) > floor, (values, plain)
    if Access.POSTERIORS in attack.needs:
        assert sum(values) > sum(plain) + 0.5, (values, plain)
