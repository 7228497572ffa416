"""CMIA: limits and deals by hand, and signals on which sure rows tell others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privbench import Examples, Membership, MembershipQuestion, Shadow
from privbench.ground.errors import PluginError
from privbench.measure.games.metrics import auc
from privbench.measure.methods.access import Access
from privbench.measure.methods.oracle import Oracle
from privbench.measure.victims.play import ShadowTrainer
from privbench.testing import AnyAttack, arena, memoriser, tiny_builder, tiny_spec, tiny_split
from privbench_plugins.attacks.cmia import CMIA, beyond, deal
from privbench_plugins.attacks.lira import LiRA
from privbench_plugins.attacks.lira_joint import LiRAJoint
from privbench_plugins.targets.supervised import Supervised

N = 200


# ---- limits and deals ----------------------------------------------------------------------------


def test_limits_by_hand() -> None:
    scores = torch.tensor([5.0, 1.0, 2.0, math.nan, 4.0, 3.0, 6.0])
    member = torch.tensor([True, False, False, True, False, True, True])
    assert beyond(scores, member, 0) == (2.0, 5.0)  # from below: out out IN; from above: in in OUT
    assert beyond(scores, member, 1) == (4.0, 3.0)  # one mistake of each sort
    assert beyond(scores, member, 3) == (6.0, 1.0)
    assert beyond(-scores, member, 0) == (-math.inf, math.inf)


def test_equal_scores_pass_together_or_not_at_all() -> None:
    scores, member = torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([False, False, True, True])
    assert beyond(scores, member, 0) == (1.0, 3.0)
    assert beyond(scores, member, 1) == (2.0, 2.0)


def test_a_deal_has_no_row_twice_and_every_class_evenly() -> None:
    rows = tiny_split().candidates
    free = torch.rand(len(rows), generator=torch.Generator().manual_seed(0)) < 0.8
    _, ctx = arena(AnyAttack(), memoriser(tiny_split().victim()))
    need = int(free.sum()) // 3 - 1
    hands = list(itertools.islice(deal(rows, free, need, ctx, 1), 6))
    for hand in hands:
        assert int(hand.sum()) == need
        assert not (hand & ~free).any()
        counts = rows.y[hand].bincount(minlength=10) / (rows.y[free].bincount(minlength=10) / 3)
        assert (counts - 1).abs().max() < 0.4  # one row more or less
    for first, second in itertools.combinations(hands[:3], 2):
        assert not (first & second).any()
    assert (hands[0] & hands[3]).any()
    assert not hands[0].equal(hands[3])
    assert next(deal(rows, free, need, ctx, 1)).equal(hands[0])
    assert not next(deal(rows, free, need, ctx, 2)).equal(hands[0])


# ---- the attack, on signals that are known -------------------------------------------------------


class _Signals:
    """Answers (n, 2) log-posteriors whose scaled logit is the row's signal; y is 0."""

    access = Access.POSTERIORS

    def __init__(self, signals: np.ndarray) -> None:
        self.signals = torch.from_numpy(signals)

    def log_posteriors(self, rows: Examples) -> Tensor:
        signal = self.signals[rows.index]
        return torch.stack([signal, -signal], dim=1).div(2).log_softmax(1)


class _World:
    def __init__(self, index: Tensor) -> None:
        self.index = index

    def contains(self, rows: Examples) -> Tensor:
        return torch.isin(rows.index, self.index)


class _Game:
    """Rows whose signal falls where the row before is a member, which only training tells."""

    def __init__(self, seed: int, *, pull: float = 3.0) -> None:
        self.draw, self.pull = np.random.default_rng(seed), pull
        self.rows = Examples.of(torch.zeros(N, 1), torch.zeros(N, dtype=torch.int64), scale=1.0)
        self.member = self._half()
        self.trained: list[tuple[Tensor, int]] = []

    def _half(self) -> np.ndarray:
        return np.asarray(self.draw.permutation(N) < N // 2)

    def model(self, held: np.ndarray) -> _Signals:
        noise = 0.6 * self.draw.normal(size=N)
        return _Signals(2.0 * held - self.pull * np.roll(held, 1) + noise)

    def shadow(self, held: np.ndarray) -> Any:
        world = _World(torch.from_numpy(held).nonzero()[:, 0])
        return SimpleNamespace(world=world, oracle=self.model(held))

    def train_shadow(self, members: Examples, number: int) -> Any:
        self.trained.append((members.index, number))
        return self.shadow(np.isin(np.arange(N), members.index.numpy()))

    def play(self, attack: CMIA) -> Membership:
        halves = [self._half() for _ in range(attack.k // 2)]
        _, kit = arena(AnyAttack(), memoriser(tiny_split().victim()))
        ctx: Any = SimpleNamespace(
            shadows=[self.shadow(one) for half in halves for one in (half, ~half)],
            card=SimpleNamespace(kind="table", limits=None), uniform=kit.uniform,
            train_shadow=self.train_shadow,
        )  # fmt: skip
        oracle: Any = self.model(self.member)
        return attack.answer(oracle, MembershipQuestion(self.rows, ""), ctx)

    def found(self, attack: CMIA) -> float:
        return auc(self.play(attack).scores.numpy(), self.member).value


def test_sure_rows_tell_others() -> None:
    """With as many shadows in all, rounds find more than one round of all."""
    four = CMIA(k=16, rounds=4, neighbours=0)
    cascade = [_Game(seed).found(four) for seed in range(3)]
    at_once = [_Game(seed).found(CMIA(k=64, rounds=1, neighbours=0)) for seed in range(3)]
    assert np.mean(cascade) > np.mean(at_once) + 0.03
    independent = [_Game(seed, pull=0.0) for seed in range(3)]
    assert [one.found(four) for one in independent] == pytest.approx(
        [_Game(seed, pull=0.0).found(CMIA(k=64, rounds=1, neighbours=0)) for seed in range(3)],
        abs=0.02,
    )


def test_new_shadows_hold_the_sure_members_and_no_sure_nonmember() -> None:
    game = _Game(0)
    answer = game.play(CMIA(k=8, rounds=3, share=0.1, tolerance=0, neighbours=0))
    assert [number for _, number in game.trained] == list(range(16))
    held = torch.zeros(16, N, dtype=torch.bool)
    for i, (index, _) in enumerate(game.trained):
        assert len(index) == N // 2
        held[i, index] = True
    member = torch.from_numpy(game.member)
    for these in (held[:8], held[8:]):
        always, never = these.all(0), ~these.any(0)
        assert 5 <= always.sum() <= 50
        assert 5 <= never.sum() <= 50
        assert (always & ~member).sum() <= 0.15 * always.sum()
        assert (never & member).sum() <= 0.15 * never.sum()
    assert held[8:].all(0)[held[:8].all(0)].all()  # who is sure stays sure
    assert answer.notes["shadows"] == 24
    assert answer.notes["sure members"] == float(held[8:].all(0).sum())
    assert 10 < float(answer.notes["sure nonmembers"]) <= float((~held[8:].any(0)).sum())


def test_a_round_takes_at_most_its_share() -> None:
    game = _Game(1, pull=0.0)
    answer = game.play(CMIA(k=8, rounds=2, share=0.03, tolerance=5, neighbours=0))
    assert answer.notes["sure members"] == answer.notes["sure nonmembers"] == 6


def test_without_anyone_sure_it_ends() -> None:
    game = _Game(2)
    answer = game.play(CMIA(k=2, neighbours=0))  # complementary: none may judge the other
    assert game.trained == []
    assert answer.notes["shadows"] == 2


@pytest.mark.parametrize(
    ("attack", "same"),
    [
        (CMIA(k=4, rounds=1, neighbours=0, views=0, variance="auto"), LiRA(k=4, views=0)),
        (CMIA(k=4, rounds=1, views=0), LiRAJoint(k=4)),
    ],
)
def test_one_round_is_the_attack_that_scores(attack: Any, same: Any) -> None:
    split = tiny_split()
    served = memoriser(split.victim())
    question = MembershipQuestion(split.candidates, "")
    answers = []
    for one in (attack, same):
        oracle, ctx = arena(one, served)
        answers.append(one.answer(oracle, question, ctx))
    assert torch.allclose(answers[0].scores, answers[1].scores.cpu())
    assert answers[0].decisions.equal(answers[1].decisions.cpu())


def test_rows_without_a_label_score_nothing_and_are_never_sure() -> None:
    game = _Game(0)
    blank = torch.arange(N) % 4 == 0
    game.rows = game.rows.with_y(game.rows.y.masked_fill(blank, -1))
    answer = game.play(CMIA(k=8, rounds=2, neighbours=0))
    assert (answer.scores[blank] == 0).all()
    assert answer.decisions is not None
    assert not answer.decisions[blank].any()
    held = torch.stack([torch.isin(torch.arange(N), index) for index, _ in game.trained])
    assert not held.all(0)[blank].any()
    assert held.any(0)[blank].all()
    game.rows = game.rows.with_y(torch.full((N,), -1))
    assert not game.play(CMIA(k=8, neighbours=0)).scores.any()


# ---- shadows on chosen rows ----------------------------------------------------------------------


def trainer(tmp: Any) -> tuple[ShadowTrainer, Any]:
    split, like = tiny_split(), tiny_spec(Supervised(epochs=2))
    drawn = []
    for i in range(2):
        world, others = split.online(i)
        drawn.append((replace(like, world=world), others))
    return ShadowTrainer(tiny_builder(str(tmp)), drawn, split.candidates, "mine"), split


def test_a_shadow_is_trained_on_the_chosen_rows_and_is_served_as_others(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    chosen = split.candidates.select(torch.arange(len(split.candidates)) % 3 == 0)
    shadow = train(chosen, 0)
    assert isinstance(shadow, Shadow)
    assert shadow.world.contains(split.candidates).equal(
        torch.arange(len(split.candidates)) % 3 == 0
    )
    assert shadow.world.origin == "online"
    assert len(shadow.nonmembers) + len(chosen) == len(split.candidates)
    reference = train.drawn[0][0].world.reference
    assert shadow.world.reference.index.equal(reference.index)
    first = shadow.oracle.posteriors(chosen)
    moved = train(chosen.select(torch.arange(len(chosen)).flip(0)), 0)
    assert moved.oracle.posteriors(chosen).equal(first)  # the order is no matter
    other = train(chosen, 1).oracle.posteriors(chosen)
    assert not torch.allclose(other, first)  # another number, other weights
    assert isinstance(shadow.oracle, Oracle)


def test_rows_that_every_world_holds_are_added(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    some = split.candidates.select(torch.arange(len(split.candidates)) < 100)
    fewer = ShadowTrainer(train.builder, train.drawn, some, "mine")
    held = train.drawn[0][0].world.members
    always = held.index[~torch.isin(held.index, some.index)]
    made = fewer(some.select(torch.arange(100) < 5), 0).world.members
    assert sorted(made.index.tolist()) == sorted([*always.tolist(), *some.index[:5].tolist()])


def test_other_rows_are_refused(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    for rows in (split.pool, split.candidates.select(torch.zeros(160, dtype=torch.bool))):
        with pytest.raises(PluginError, match="attack 'mine' trains a shadow: its members must be"):
            train(rows, 0)


def test_an_attack_without_online_shadows_trains_none() -> None:
    _, ctx = arena(AnyAttack(), memoriser(tiny_split().victim()))
    with pytest.raises(PluginError, match="declares some"):
        ctx.train_shadow(tiny_split().candidates, 0)
