"""MemGuard: both phases against hand cases, and what must hold for every query."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.memguard import (
    Guard,
    MembershipClassifier,
    MemGuard,
    phase_one,
    probability,
)
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FAST = MemGuard(epochs=1, updates=500, iterations=80)


def _linear(zero: float) -> object:
    """h that is linear in the largest posterior."""
    return lambda p: 20 * (p.amax(1) - zero)


def test_two_classes_by_hand() -> None:
    p = torch.tensor([[0.95, 0.05]]).double()
    noise = phase_one(p, _linear(0.8), 300, 0)  # type: ignore[arg-type]
    d = float(noise.abs().sum())
    # the last step moves the difference of logits by .14, the posterior by .02
    assert 0.3 <= d < 0.36
    h = _linear(0.8)(p), _linear(0.8)(p + noise)  # type: ignore[operator]
    assert float(h[1]) < 0 < float(h[0])
    kept = probability(torch.tensor([0.3]), h[0], h[1], 0.2)
    assert float(kept) == pytest.approx(2 / 3)


def test_the_last_step_ends_at_the_boundary() -> None:
    """The smallest noise that turns g is .3 long: .15 from each of two classes."""
    p = torch.tensor([[0.95, 0.05]] * 3).double()
    for h in (_linear(0.8), lambda p: 1e6 * (p.amax(1) - 0.8)):
        noise = phase_one(p, h, 300, 20)  # type: ignore[arg-type]
        assert noise.abs().sum(1).tolist() == pytest.approx([0.3] * 3, abs=1e-6)
        assert bool((h(p + noise) < 0).all())  # type: ignore[operator]


def test_a_steep_classifier_keeps_its_noise() -> None:
    """A whole step ends where it is surer than before, so that phase II would reject it."""

    def steep(p: Tensor) -> Tensor:
        away = p.amax(1) - 0.8
        return torch.where(away > 0, 1 + away, 1e6 * away)

    p = torch.tensor([[0.95, 0.05]]).double()
    kept = []
    for bisections in (0, 40):
        noise = phase_one(p, steep, 300, bisections)
        kept.append(float(probability(noise.abs().sum(1), steep(p), steep(p + noise), 1.0)))
    assert kept == [0.0, 1.0]


def test_no_noise_where_none_turns_g_without_the_label() -> None:
    p = torch.tensor([[0.6, 0.4], [0.51, 0.49]]).double()
    # g would turn only below .4 of the largest posterior, which two classes cannot reach
    assert not phase_one(p, _linear(0.4), 300, 20).any()  # type: ignore[arg-type]


def test_the_classifier_starts_from_glorots_weights() -> None:
    """As the authors': uniform to sqrt(6 / (inputs + outputs)), and biases of 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # noqa: TID251 - any weights, the same each time
        layers = MembershipClassifier(30).layers
    for layer in layers[::2]:
        assert isinstance(layer, torch.nn.Linear)
        edge = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert not layer.bias.any()
        assert 0.9 * edge < float(layer.weight.detach().abs().max()) <= edge


def test_undecided_queries_are_left_alone() -> None:
    p = torch.tensor([[0.8, 0.2]]).double()
    assert not phase_one(p, _linear(0.8), 300, 20).any()  # type: ignore[arg-type]


def _guard(seed: int, distortion: float = 1.0) -> Guard:
    guard = Guard(FAST.replace(distortion=distortion), 6)
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 - some classifier, the same each time
        for parameter in guard.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return guard.eval().requires_grad_(False)


def _release(guard: Guard, p: Tensor, u: Tensor) -> Tensor:
    made: Tensor = guard(torch.zeros(len(p), 1), p, u)
    return made


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000), distortion=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_what_holds_for_every_query(seed: int, distortion: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    p = (4 * torch.randn(20, 6, generator=generator).double()).softmax(1)
    guard = _guard(seed % 7, distortion)
    with torch.no_grad():
        noisy = _release(guard, p, torch.zeros(20, 1))  # the coin that adds noise if p > 0
    r = noisy - p
    assert torch.equal(noisy.argmax(1), p.argmax(1))
    assert float(noisy.min()) >= 0
    assert torch.allclose(noisy.sum(1), torch.ones(20).double(), atol=1e-6)
    if distortion == 0:
        assert torch.equal(noisy, p)
    h = guard.log_odds(p), guard.log_odds(noisy)
    added = r.abs().sum(1) > 0
    assert bool((h[0].sign() != h[1].sign())[added].all())


def test_what_is_released_spends_the_budget_and_no_more() -> None:
    """Over a grid of coins: noise of length d as often as min(budget / d, 1)."""
    p = (4 * torch.randn(12, 6, generator=torch.Generator().manual_seed(5)).double()).softmax(1)
    coins = (torch.arange(200).double() + 0.5) / 200
    for distortion in (0.1, 0.5, 2.0):
        guard = _guard(2, distortion)
        guard.log_odds = _linear(0.7)  # type: ignore[assignment]
        with torch.no_grad():
            d = (_release(guard, p, torch.zeros(12, 1)) - p).abs().sum(1)
            asked = p.repeat_interleave(200, 0), coins.repeat(12)[:, None]
            lengths = (_release(guard, *asked) - asked[0]).abs().sum(1).reshape(12, 200)
        noisy = d > 0
        assert int(noisy.sum()) > 3
        wanted = (distortion / d[noisy]).clamp(max=1)
        often = (lengths[noisy] > 0).double().mean(1)
        torch.testing.assert_close(often, wanted, atol=0.006, rtol=0)
        assert float(lengths.mean(1).max()) <= distortion * 1.06  # the grid's own rounding
        assert not lengths[~noisy].any()


def test_a_row_does_not_depend_on_what_is_asked_beside() -> None:
    generator = torch.Generator().manual_seed(1)
    p = (3 * torch.randn(40, 6, generator=generator).double()).softmax(1)
    guard, order = _guard(3), torch.randperm(40, generator=generator)
    u = torch.rand(40, 1, generator=generator)
    with torch.no_grad():
        plain, moved = _release(guard, p, u), _release(guard, p[order], u[order])
        classes = torch.randperm(6, generator=generator)
        permuted = _release(guard, p[:, classes], u)
    assert torch.allclose(moved, plain[order], atol=1e-9)
    assert torch.allclose(permuted, plain[:, classes], atol=1e-9)  # unsorted again rightly


def test_the_classifier_learns_members_from_reference_rows(tmp_path: Path) -> None:
    shop = Builder(Store(tmp_path), CPU)
    target = Supervised(backbone="mlp", epochs=15)
    victim, plain = shop.victim(tiny_spec(target, (FAST,))), shop.victim(tiny_spec(target))
    world, x = tiny_split().victim(), tiny_split().candidates.x
    (guard,) = victim.releases
    assert isinstance(guard, Guard)
    h = [guard.log_odds(plain.log_posteriors(rows.x).exp()) for rows in
         (world.members, world.reference)]  # fmt: skip
    assert float(h[0].mean()) > float(h[1].mean())
    before, after = plain.log_posteriors(x), victim.log_posteriors(x)
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert torch.equal(victim.embeddings(x), plain.embeddings(x))
    assert torch.equal(after, victim.log_posteriors(x))  # asking twice
    assert not torch.equal(before, after)


def test_it_needs_reference_rows() -> None:
    protocol = Protocol(members=80, nonmembers=80, pool=400)
    data = TinyImages()
    cell = Cell(
        data.card(None), protocol, TinyTarget(), (MemGuard(),), Adversary(), AnyAttack(), (),
    )  # fmt: skip
    assert "reference rows" in (reason_to_skip(MemGuard(), cell) or "")
