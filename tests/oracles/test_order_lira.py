"""LiRA on the order of wrong classes: odds by hand, what changes nothing, and a planted order."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.toy_cell import toy_cell
from torch import Tensor

from privbench import (
    Access,
    AttackContext,
    Card,
    Examples,
    Membership,
    MembershipQuestion,
    Oracle,
    Protocol,
    Shadow,
    World,
)
from privbench.measure.games.metrics import auc
from privbench_plugins.attacks import order_lira
from privbench_plugins.attacks.order_lira import OrderLiRA, firmness

N, CLASSES, SHADOWS = 60, 5, 8


def asked(p: Tensor, y: list[int], classes: Any = None) -> Tensor:
    """Return how firm the order is if copies (n, m) get posteriors p (n, m, classes)."""
    oracle: Any = SimpleNamespace(posteriors=lambda x: p[: len(x)].flatten(0, 1))
    examples = Examples.of(torch.zeros(len(p), 2), torch.tensor(y), scale=1.0)
    every = torch.arange(p.shape[2]) if classes is None else torch.tensor(classes)
    copies = [lambda x: x[:, None].expand(-1, p.shape[1], -1)]
    return firmness(oracle, examples, copies, every)[:, 0]


def test_odds_of_three_copies_by_hand() -> None:
    """Of the classes 1 and 2, 2 is ahead twice and behind once, or always, or never apart."""
    mixed = [[0.5, 0.2, 0.3], [0.1, 0.4, 0.5], [0.5, 0.3, 0.2]]
    always = [[0.2, 0.3, 0.5]] * 3
    even = [[0.6, 0.2, 0.2]] * 3
    p = torch.tensor([mixed, always, even]).double()
    expected = [math.log(2.5 / 1.5), math.log(3.5 / 0.5), 0.0]
    assert asked(p, [0, 0, 0]).tolist() == pytest.approx(expected)
    # Class 0 is ahead of class 1 twice and of class 2 once more than not: all pairs of a row
    # without a label.
    pairs = [math.log(2.5 / 1.5), math.log(2.5 / 1.5), math.log(2.5 / 1.5)]
    assert asked(p[:1], [-1]).item() == pytest.approx(sum(pairs) / 3)
    assert asked(p, [0, 0, 0], classes=[0, 1]).tolist() == [0, 0, 0]  # one wrong class is no pair


@given(st.integers(0, 10_000), st.floats(0.1, 5))
def test_only_the_order_of_wrong_classes_counts(seed: int, power: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    p = torch.randn(4, 6, CLASSES, generator=draw).double().softmax(2)
    y = torch.randint(CLASSES, (4,), generator=draw)
    found = asked(p, y.tolist())
    turn = torch.randperm(CLASSES, generator=draw)
    assert torch.allclose(asked(p[:, :, turn], turn.argsort()[y].tolist()), found)
    assert torch.equal(asked(p**power, y.tolist()), found)  # other values, in the same order
    louder = p.clone()
    louder.scatter_(2, y[:, None, None].expand(-1, 6, 1), 2.0)  # the right class, first everywhere
    assert torch.allclose(asked(louder, y.tolist()), found)
    assert (found >= 0).all()
    assert (found <= math.log(13)).all()  # 6.5 of .5


class Soft:
    """Wrong classes of rows that it holds are equally likely; those of others differ."""

    grants = Access.POSTERIORS
    key = None

    def __init__(self, every: Examples, held: Tensor) -> None:
        self.every, self.held = every, held
        self.card = Card(name="toy", kind="real", shape=(8,), classes=CLASSES, scale=1.0,
                         sources={"all": 400})  # fmt: skip

    def log_posteriors(self, x: Tensor) -> Tensor:
        row = torch.cdist(x.float(), self.every.x).argmin(1)
        apart = torch.where(self.held[row], 0.01, 1.0).double()[:, None]
        logits = apart * torch.arange(CLASSES) + x.double()[:, :CLASSES]
        logits[torch.arange(len(x)), self.every.y[row]] += 9
        ranks = logits.argsort(1).argsort(1).double()  # a release that keeps the order only
        return ranks.log_softmax(1)


def answer(attack: OrderLiRA, every: Examples, inside: Tensor) -> tuple[Membership, Oracle]:
    """Put the question about the first model of inside (k + 1, n); the others are shadows."""
    victim, *shadows = (
        Oracle(Soft(every, held), Access.POSTERIORS, asker="test")  # type: ignore[arg-type]
        for held in inside
    )
    parts = [(every.select(held.nonzero()[:, 0]), every.select((~held).nonzero()[:, 0]))
             for held in inside[1:]]  # fmt: skip
    untrained: Any = None
    ctx = AttackContext(
        card=Soft(every, inside[0]).card,
        protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1),
        sensitive=(), device=torch.device("cpu"), store=None, seed=0, scope="test",
        shadows=tuple(
            Shadow(World({"members": mine}, "online", i, 0), others, shadow, None)  # type: ignore[arg-type]
            for i, ((mine, others), shadow) in enumerate(zip(parts, shadows, strict=True))
        ),
        auxiliary=every, auxiliary_oracle=victim, data_seed=0, train=untrained,
    )  # fmt: skip
    return attack.answer(victim, MembershipQuestion(every, "encoder"), ctx), victim


def dealt(seed: int) -> tuple[Examples, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(N, 8, generator=draw)
    every = Examples.of(x, torch.randint(CLASSES, (N,), generator=draw), scale=1.0)
    inside = torch.stack([(torch.arange(N) + i // 2) % 2 == i % 2 for i in range(SHADOWS + 1)])
    return every, inside


def test_it_finds_members_whose_wrong_classes_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    every, inside = dealt(1)
    attack = OrderLiRA(k=SHADOWS, levels=(0.02, 0.05), queries=60)
    found, victim = answer(attack, every, inside)
    assert auc(found.scores.numpy(), inside[0].numpy()).value > 0.98
    assert victim.queries == 60 * N
    swapped, _ = answer(attack, every, torch.cat([~inside[:1], inside[1:]]))
    assert auc(swapped.scores.numpy(), inside[0].numpy()).value < 0.02
    monkeypatch.setattr(order_lira, "BLOCK", 1)  # a row at a time
    assert torch.equal(answer(attack, every, inside)[0].scores, found.scores)
    blank = every.with_y(torch.where(torch.arange(N) < 10, -1, every.y))
    part, _ = answer(attack, blank, inside)
    assert part.scores.isfinite().all()


def test_two_classes_have_no_wrong_ones_to_compare() -> None:
    told = [OrderLiRA().incompatible(toy_cell(card=SimpleNamespace(classes=classes)))
            for classes in (None, 2, 3)]  # fmt: skip
    assert told[2] is None
    assert told[0] == told[1]
    assert "three classes are needed" in str(told[1])
