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
from privbench.measure.victims.play import ShadowTrainer, as_shadow
from privbench.testing import AnyAttack, arena, memoriser, tiny_builder, tiny_spec, tiny_split
from privbench.toolbox.cascade import beyond, deal
from privbench_plugins.attacks.cmia import CMIA, LabelCMIA
from privbench_plugins.attacks.dual_cmia import DualCMIA, DualCMIAEncoder, DualCMIAHead
from privbench_plugins.attacks.dual_lira import DualEncoder, DualHead, DualLiRA
from privbench_plugins.attacks.label_lira import LabelLiRA
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
    need = int(free.sum()) // 3 - 1
    hands = list(itertools.islice(deal(rows, free, need, 1), 6))
    for hand in hands:
        assert int(hand.sum()) == need
        assert not (hand & ~free).any()
        counts = rows.y[hand].bincount(minlength=10) / (rows.y[free].bincount(minlength=10) / 3)
        assert (counts - 1).abs().max() < 0.4  # one row more or less
    for first, second in itertools.combinations(hands[:3], 2):
        assert not (first & second).any()
    assert (hands[0] & hands[3]).any()
    assert not hands[0].equal(hands[3])
    assert next(deal(rows, free, need, 1)).equal(hands[0])
    assert not next(deal(rows, free, need, 2)).equal(hands[0])


@pytest.mark.parametrize("classes", [1, 2, 40, 200])
def test_every_free_row_is_drawn_as_often(classes: int) -> None:
    """Also where a deal is one hand, and where classes have one row."""
    x = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    rows = Examples.of(x, torch.arange(N) % classes, scale=1.0)
    for need in (40, 110):
        drawn = torch.stack([*itertools.islice(deal(rows, torch.ones(N) > 0, need, 3), 200)])
        share = drawn.double().mean(0)
        assert (share - need / N).abs().max() < 4 * math.sqrt(0.25 / 200)
        assert len({tuple(one) for one in drawn.tolist()}) == 200


def test_equal_rows_are_drawn_apart_from_each_other() -> None:
    x = torch.rand(N // 2, 2, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    rows = Examples.of(x, torch.zeros(N, dtype=torch.int64), scale=1.0)
    drawn = torch.stack([*itertools.islice(deal(rows, torch.ones(N) > 0, N // 2, 3), 100)])
    together = (drawn[:, : N // 2] & drawn[:, N // 2 :]).double().mean()
    assert together == pytest.approx(0.25, abs=0.03)


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
        x = torch.rand(N, 2, generator=torch.Generator().manual_seed(seed))
        self.rows = Examples.of(x, torch.zeros(N, dtype=torch.int64), scale=1.0)
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

    def play(self, attack: CMIA, shadows: int = 0) -> Membership:
        halves = [self._half() for _ in range((shadows or attack.k) // 2)]
        _, kit = arena(AnyAttack(), memoriser(tiny_split().victim()))
        ctx: Any = SimpleNamespace(
            shadows=[self.shadow(one) for half in halves for one in (half, ~half)],
            card=SimpleNamespace(kind="table", limits=None), salt=kit.salt,
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
    assert np.mean(cascade) > np.mean(at_once) + 0.06
    independent = [_Game(seed, pull=0.0) for seed in range(3)]
    assert [one.found(four) for one in independent] == pytest.approx(
        [_Game(seed, pull=0.0).found(CMIA(k=64, rounds=1, neighbours=0)) for seed in range(3)],
        abs=0.02,
    )


def test_new_shadows_hold_the_sure_members_and_no_sure_nonmember() -> None:
    game = _Game(0)
    answer = game.play(CMIA(k=8, rounds=3, share=0.1, tolerance=0, neighbours=0))
    assert [number for _, number in game.trained] == list(range(16))
    assert len({tuple(index.tolist()) for index, _ in game.trained}) == 16
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
        (
            LabelCMIA(k=4, rounds=1, neighbours=0, queries=30),
            LabelLiRA(k=4, queries=30),
        ),
        (DualCMIA(k=4, rounds=1, variance="auto"), DualLiRA(k=4)),
        (DualCMIAEncoder(k=4, rounds=1, variance="auto"), DualEncoder(k=4)),
        (DualCMIAHead(k=4, rounds=1, variance="auto"), DualHead(k=4)),
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


def test_with_fewer_shadows_than_it_declared_each_stands_in_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the leave-one-out metrics on canaries."""
    seen: list[int] = []

    def counted(scores: Tensor, member: Tensor, tolerance: int) -> tuple[float, float]:
        seen.append(int(member.sum()))
        return beyond(scores, member, tolerance)

    monkeypatch.setattr("privbench.toolbox.cascade.beyond", counted)
    game = _Game(0)
    game.play(CMIA(k=16, rounds=2, neighbours=0), shadows=14)
    assert len(seen) == 14
    assert len(game.trained) == 16


def test_without_labels_all_rows_score_nothing() -> None:
    game = _Game(0)
    game.rows = game.rows.with_y(torch.full((N,), -1))
    answer = game.play(CMIA(k=8, neighbours=0))
    assert not answer.scores.any()
    assert answer.decisions is not None
    assert not answer.decisions.any()
    assert game.trained == []


# ---- shadows on chosen rows ----------------------------------------------------------------------


def trainer(tmp: Any) -> tuple[ShadowTrainer, Any]:
    split, like = tiny_split(), tiny_spec(Supervised(epochs=2))
    drawn = []
    for i in range(2):
        world, others = split.online(i)
        drawn.append((replace(like, world=world), others))
    return ShadowTrainer(tiny_builder(str(tmp)), drawn, split.candidates, CMIA(k=2)), split


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
    fewer = replace(train, drawn=train.drawn[:1])  # one is in the victim's place
    salts = {one.world.salt("init") for one in (fewer(chosen, 0), fewer(chosen, 1))}
    assert not salts & {spec.world.salt("init") for spec, _ in train.drawn}


def test_what_an_attack_does_to_its_shadow_stays_there(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    before = train.drawn[0][0].world.reference.x.clone()
    train(split.candidates.select(torch.arange(160) < 80), 0).world.reference.x.fill_(0)
    assert train.drawn[0][0].world.reference.x.equal(before)


def test_shadows_show_no_label_where_some_candidates_have_none(tmp_path: Any) -> None:
    """A label would tell members from nonmembers, so the question shows none either."""
    train, _ = trainer(tmp_path)
    served = train.builder.victim(train.drawn[0][0])
    world, others = train.drawn[0][0].world, train.drawn[0][1]
    mixed = others.with_y(others.y.masked_fill(torch.arange(len(others)) == 0, -1))
    shadow = as_shadow(served, world, mixed, asker="mine", store=train.builder.store, models=1)
    assert (shadow.world.members.y == -1).all()
    assert (shadow.nonmembers.y == -1).all()
    assert (world.members.y >= 0).all()


def test_rows_that_every_world_holds_are_added(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    some = split.candidates.select(torch.arange(len(split.candidates)) < 100)
    fewer = replace(train, candidates=some)
    held = train.drawn[0][0].world.members
    always = held.index[~torch.isin(held.index, some.index)]
    made = fewer(some.select(torch.arange(100) < 5), 0).world.members
    assert sorted(made.index.tolist()) == sorted([*always.tolist(), *some.index[:5].tolist()])


def test_other_rows_are_refused(tmp_path: Any) -> None:
    train, split = trainer(tmp_path)
    for rows in (split.pool, split.candidates.select(torch.zeros(160, dtype=torch.bool))):
        with pytest.raises(PluginError, match="attack 'cmia' trains a shadow: its members must be"):
            train(rows, 0)


def test_an_attack_without_online_shadows_trains_none() -> None:
    _, ctx = arena(AnyAttack(), memoriser(tiny_split().victim()))
    with pytest.raises(PluginError, match="declares some"):
        ctx.train_shadow(tiny_split().candidates, 0)
