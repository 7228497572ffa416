"""PGD: exact on linear models, inside its box, and moved where cross-entropy has no gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench.testing import arena, memoriser, tiny_split
from privbench.toolbox import pgd as module
from privbench.toolbox.pgd import PGD, of_network, of_oracle, pgd
from privbench_plugins.attacks.adversarial_mia import AdversarialMIA

if TYPE_CHECKING:
    from torch import Tensor

EPS = 8 / 255


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def margin(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Logit of y less the other one's, of two classes."""
    z = (x @ w.T).double()
    return z.gather(1, y[:, None]).squeeze(1) - z.gather(1, 1 - y[:, None]).squeeze(1)


@pytest.mark.parametrize("targeted", [False, True])
@given(seed=st.integers(0, 2**20), eps=st.floats(0.01, 0.1))
@settings(max_examples=20, deadline=None)
def test_binary_linear_margin_moves_by_eps_times_l1(seed: int, eps: float, targeted: bool) -> None:
    w = draw(2, 7, seed=seed) - 0.5
    x, y = 0.2 + 0.6 * draw(9, 7, seed=seed + 1), torch.arange(9) % 2
    made = pgd(
        x, y, of_network(lambda x: x @ w.T), eps=eps, step_size=eps / 4, steps=6,
        targeted=targeted,
    )  # fmt: skip
    worst = eps * float((w[0] - w[1]).abs().sum())
    change = margin(made, w, y) - margin(x, w, y)
    expected = torch.full_like(change, worst if targeted else -worst)
    torch.testing.assert_close(change, expected, atol=1e-5, rtol=1e-4)


def test_the_range_binds_before_the_box_where_a_value_is_near_its_end() -> None:
    w = torch.tensor([[1.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
    x = torch.tensor([[0.01, 0.99, 0.5]])
    made = pgd(
        x, torch.tensor([0]), of_network(lambda x: x @ w.T), eps=0.1, step_size=0.03, steps=9,
        targeted=False,
    )  # fmt: skip
    torch.testing.assert_close(made, torch.tensor([[0.0, 1.0, 0.4]]))


@given(
    seed=st.integers(0, 2**20), eps=st.floats(0, 0.6), step=st.floats(0.001, 1),
    targeted=st.booleans(), start=st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_gradient_stays_in_the_ball_and_in_the_range(
    seed: int, eps: float, step: float, targeted: bool, start: bool
) -> None:
    noise = torch.Generator().manual_seed(seed)
    x = draw(6, 1, 2, 3, seed=seed).mul(1.4).sub(0.2).clamp(0, 1)  # the ends themselves, too
    made = pgd(
        x, torch.zeros(6).long(), lambda x, _: torch.randn(x.shape, generator=noise), eps=eps,
        step_size=step, steps=7, targeted=targeted,
        u=draw(6, 1, 2, 3, seed=seed + 1) if start else None,
    )  # fmt: skip
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert float((made - x).abs().max()) <= eps + 1e-6


def test_nothing_moves_without_room_or_steps() -> None:
    x, y, u = draw(5, 4), torch.zeros(5).long(), draw(5, 4, seed=1)
    gradient = of_network(lambda x: x @ draw(4, 3, seed=2))

    def made(eps: float, steps: int, u: Tensor | None) -> Tensor:
        return pgd(x, y, gradient, eps=eps, step_size=0.1, steps=steps, targeted=True, u=u)

    assert torch.equal(made(0.0, 9, None), x)
    assert torch.equal(made(0.0, 9, u), x)
    assert torch.equal(made(0.3, 0, None), x)
    torch.testing.assert_close(made(0.3, 0, u), (x + 0.3 * (2 * u - 1)).clamp(0, 1))


def test_targeted_raises_the_posterior_of_every_target() -> None:
    w = draw(12, 5, seed=3) - 0.5
    hidden = draw(5, 5, seed=4) - 0.5

    def logits(x: Tensor) -> Tensor:
        return 4 * torch.tanh(x @ w) @ hidden

    x = draw(30, 12, seed=5)
    for target in range(5):
        y = torch.full((30,), target)
        settings = {"eps": EPS, "step_size": EPS / 10, "steps": 20}
        up = pgd(x, y, of_network(logits), **settings, targeted=True)  # type: ignore[arg-type]
        down = pgd(x, y, of_network(logits), **settings, targeted=False)  # type: ignore[arg-type]
        p, low, high = (logits(v).softmax(1)[:, target] for v in (x, down, up))
        assert (high > p).all()
        assert (low < p).all()


def test_a_sure_model_is_left_as_well() -> None:
    """Its cross-entropy has no gradient in float64 either: the other class rounds to nothing."""
    w = torch.tensor([[4000.0, -4000.0], [0.0, 0.0]])
    x, y = torch.tensor([[0.8, 0.2]]), torch.tensor([0])
    probe = x.clone().requires_grad_()
    (flat,) = torch.autograd.grad(F.cross_entropy((probe @ w.T).double(), y), probe)
    assert float(flat.abs().max()) == 0
    made = pgd(
        x, y, of_network(lambda x: x @ w.T), eps=0.1, step_size=0.05, steps=3, targeted=False
    )
    torch.testing.assert_close(made, torch.tensor([[0.7, 0.3]]))


def test_signs_are_those_of_the_cross_entropy() -> None:
    w = draw(6, 4, seed=6) - 0.5
    x, y = draw(20, 6, seed=7), torch.arange(20) % 4
    probe = x.clone().requires_grad_()
    loss = F.cross_entropy((probe @ w).double(), y, reduction="sum")
    (falling,) = torch.autograd.grad(loss, probe)
    assert torch.equal(of_network(lambda x: x @ w)(x, y).sign(), -falling.sign())


def test_the_victim_and_the_model_at_hand_agree() -> None:
    """And the gradient is that of each row's own class."""
    split = tiny_split()
    served = memoriser(split.victim())
    oracle, _ = arena(AdversarialMIA(), served)
    x, y = draw(12, 1, 8, 8), torch.arange(12) % 10
    theirs = of_oracle(oracle)(x, y)
    mine = of_network(lambda x: served.model.logits(served.model.encode(x)))(x, y)
    torch.testing.assert_close(theirs, mine)
    assert float(theirs.abs().max()) > 0
    assert oracle.queries == 12
    alone = torch.cat([of_oracle(oracle)(x[i : i + 1], y[i : i + 1]) for i in range(12)])
    torch.testing.assert_close(theirs, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("start", [False, True])
def test_blocks_and_order_of_rows_change_nothing(
    start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ctx = arena(AdversarialMIA(), memoriser(tiny_split().victim()))
    rows = tiny_split().candidates.select(slice(0, 7))
    w = draw(64, 3, seed=8) - 0.5
    gradient = of_network(lambda x: x.flatten(1) @ w)
    seen: list[Tensor] = []

    def ask(x: Tensor) -> Tensor:
        seen.append(x)
        return (x.flatten(1) @ w).double().log_softmax(1)

    classes = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0], [2, 1], [0, 1]])
    attack = PGD(random_start=start)
    whole = attack.answers(ask, rows, classes, gradient, ctx, targeted=True)
    assert whole.shape == (7, 2, 3)
    made = seen[0].view(7, 2, 1, 8, 8)
    plain = ask(rows.x / 255)
    rise = whole.exp().gather(2, classes[..., None]).squeeze(2) - plain.exp().gather(1, classes)
    assert (rise > 0).all()  # each example leads to its own class
    monkeypatch.setattr(module, "ROWS", 5)
    seen.clear()
    torch.testing.assert_close(
        attack.answers(ask, rows, classes, gradient, ctx, targeted=True), whole
    )
    assert [len(x) for x in seen] == [4, 4, 4, 2]
    monkeypatch.setattr(module, "ROWS", 1)  # a row is never split
    seen.clear()
    attack.answers(ask, rows, classes, gradient, ctx, targeted=True)
    assert [len(x) for x in seen] == [2] * 7
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    moved = attack.answers(ask, rows.select(order), classes[order], gradient, ctx, targeted=True)
    torch.testing.assert_close(moved, whole[order])
    still = PGD(random_start=start, steps=0)
    seen.clear()
    still.answers(ask, rows, classes, gradient, ctx, targeted=True)
    starts = torch.cat(seen).view_as(made) - (rows.x / 255)[:, None]
    assert (float(starts.abs().max()) > 0) == start
    if start:  # every example has its own, over the whole box
        assert not torch.equal(starts[:, 0], starts[:, 1])
        assert not torch.equal(starts[0], starts[1])
        assert float(starts.abs().max()) == pytest.approx(EPS, rel=0.05)
