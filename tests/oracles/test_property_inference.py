"""The property game and its attack: shares and coins, divergences by hand, planted victims."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from privbench import BadAnswerError, BadInputError, Property, PropertyAttack
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import Estimate
from privbench.measure.games.property import VICTIMS, PropertyGame, PropertyQuestion
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.testing import (
    CPU,
    TinyImages,
    TinyTarget,
    arena,
    memoriser,
    rate_band,
    tiny_split,
)
from privbench_plugins.attacks.property_inference import (
    PropertyInference,
    _apart,
    compared,
    divergence,
)
from privbench_plugins.defenses.none import NoDefense

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Examples, Oracle, Shadow, World
    from privbench.measure.data.split import Split

GAME = cast("PropertyGame", GAMES["property"])
BRIGHT = ("bright",)


def posed(split: Split, sensitive: tuple[str, ...] = BRIGHT) -> tuple[PropertyQuestion, Any]:
    """Return question and truth; the game asks the victim nothing."""
    return GAME.pose(split, cast("Any", None), max_rows=None, sensitive=sensitive)


# ---- the game ------------------------------------------------------------------------------------


def test_victims_are_members_at_one_of_both_shares() -> None:
    split = tiny_split()
    question, truth = posed(split)
    worlds = GAME.victims(split, BRIGHT)
    assert len(worlds) == VICTIMS
    assert truth.sum() == VICTIMS // 2
    share = float((split.pool.attributes["bright"] == question.value).double().mean())
    odds = share / (1 - share)
    low, high = question.shares
    assert low / (1 - low) == pytest.approx(odds / 3)
    assert high / (1 - high) == pytest.approx(odds * 3)
    members = split.victim().members.index
    for world, is_high in zip(worlds, truth, strict=True):
        assert len(set(world.members.index.tolist())) == question.rows
        assert torch.isin(world.members.index, members).all()
        has = int((world.members.attributes["bright"] == question.value).sum())
        assert has == round(question.shares[int(is_high)] * question.rows)
    assert len({tuple(world.members.index.tolist()) for world in worlds}) == VICTIMS
    assert len({world.salt("init") for world in worlds}) == VICTIMS


def test_victims_train_on_as_many_members_as_both_shares_allow() -> None:
    split = tiny_split()
    question, _ = posed(split)
    having = int((split.victim().members.attributes["bright"] == question.value).sum())
    lacking = len(split.victim().members) - having
    low, high = question.shares
    assert question.rows * high <= having
    assert question.rows * (1 - low) <= lacking
    more = question.rows + 1
    assert more * high > having or more * (1 - low) > lacking


def test_null_victims_are_strangers_at_the_population_s_share() -> None:
    split = tiny_split()
    question, _ = posed(split)
    share = question.share(split.pool)
    for world in GAME.nulls(split, BRIGHT):
        assert not split.candidates.select(world.contains(split.candidates)).index.numel()
        assert not world.contains(split.pool).any()
        assert len(world.members) == question.rows
        assert question.share(world.members) == pytest.approx(share, abs=0.5 / question.rows)


def test_shadows_are_pool_rows_at_alternating_shares() -> None:
    split = tiny_split()
    question, _ = posed(split)
    for index in range(4):
        world, others = GAME.offline(split, index, BRIGHT)
        assert world.contains(split.pool).sum() == len(world.members) == question.rows
        assert len(others) == question.rows
        assert not world.contains(others).any()
        assert not torch.isin(world.reference.index, world.members.index).any()
        wanted = question.shares[index % 2]
        assert question.share(world.members) == pytest.approx(wanted, abs=0.5 / question.rows)


def test_coins_are_fair() -> None:
    seeds = 50
    first = np.concatenate([posed(tiny_split(seed))[1][::2] for seed in range(seeds)])
    assert abs(first.mean() - 0.5) < rate_band(len(first))


def test_without_an_attribute_the_question_is_about_the_most_frequent_class() -> None:
    split = tiny_split()
    question, _ = posed(split, ())
    assert question.attribute == ""
    assert question.value == int(split.pool.y.bincount().argmax())
    world = GAME.victims(split, ())[0]
    assert question.share(world.members) == pytest.approx(
        question.shares[int(posed(split, ())[1][0])], abs=0.5 / question.rows
    )


def test_unknown_values_train_no_victim() -> None:
    split = tiny_split()
    bright = split.candidates.attributes["bright"].clone()
    bright[::3] = -1
    some = replace(split.candidates, attributes={"bright": bright})
    for world in GAME.victims(replace(split, candidates=some), BRIGHT):
        assert (world.members.attributes["bright"] >= 0).all()


def _with_pool(bright: int) -> Split:
    split = tiny_split()
    pool = replace(split.pool, attributes={"bright": torch.full_like(split.pool.y, bright)})
    return replace(split, pool=pool)


@pytest.mark.parametrize(
    ("split", "sensitive", "says"),
    [
        (tiny_split(), ("age",), "has no attribute 'age'"),
        (_with_pool(1), BRIGHT, "fewer than two values"),
        (_with_pool(-1), BRIGHT, "fewer than two values"),
        (replace(tiny_split(), member=torch.arange(160) == 0), BRIGHT, "too few members"),
    ],
)
def test_rows_that_allow_no_question_are_refused(
    split: Split, sensitive: tuple[str, ...], says: str
) -> None:
    with pytest.raises(BadInputError, match=says):
        posed(split, sensitive)


@pytest.mark.parametrize(
    "answer",
    [
        0.5,
        Property(torch.zeros(2), torch.zeros(1)),
        Property(torch.zeros(1), torch.zeros(())),
        Property(torch.zeros(1), torch.tensor([0.5])),
        Property(torch.zeros(1, dtype=torch.complex64), torch.zeros(1)),
    ],
)
def test_answers_that_are_none_are_refused(answer: Any) -> None:
    with pytest.raises(BadAnswerError):
        GAME.pack(answer)


@pytest.mark.parametrize("scores", [torch.zeros(3), torch.tensor([0.0, math.nan])])
def test_every_victim_needs_a_finite_score(scores: torch.Tensor) -> None:
    with pytest.raises(BadAnswerError, match="2 victims"):
        GAME.score(Property(scores, scores > 0), np.array([True, False]))


def test_baselines_by_hand() -> None:
    question = PropertyQuestion("bright", 1, (0.25, 0.75), 40, "encoder")
    truth = np.array([True, False] * 8)
    made = GAME.baselines(tiny_split(), question, truth)
    values = {name: one["auc"] for name, one in made.items()}
    assert isinstance(values["guess"], Estimate)
    assert values["guess"].value == 0.5
    # A row of each: .75 * .75 of pairs are right, 2 * .75 * .25 are tied.
    assert isinstance(values["one_row"], Estimate)
    assert values["one_row"].value == 0.75**2 + 0.5 * (2 * 0.75 * 0.25)


def test_an_attack_needs_something_to_ask_about() -> None:
    data = TinyImages()
    cell = _trial(PropertyInference()).cell
    assert PropertyInference().incompatible(cell) is None
    assert PropertyInference().incompatible(replace(cell, sensitive=())) is None
    assert "no attribute" in str(PropertyInference().incompatible(replace(cell, sensitive=("a",))))
    bare = replace(data.card(None), classes=None)
    assert "neither" in str(
        PropertyInference().incompatible(replace(cell, sensitive=(), card=bare))
    )


# ---- the attack ----------------------------------------------------------------------------------


def test_divergence_is_that_of_scipy() -> None:
    drawn = torch.rand(2, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, q = (drawn + 0.01) / (drawn + 0.01).sum(2, keepdim=True)
    expected = entropy(p.numpy(), q.numpy(), axis=1).mean()
    assert float(divergence(p.log(), q.log())) == pytest.approx(expected)
    assert float(divergence(p.log(), p.log())) == 0
    sure = torch.tensor([[0.0, -800.0]])
    assert float(divergence(sure, sure.flip(1))) == pytest.approx(6 * math.log(10), rel=1e-4)


def test_divergence_is_of_the_victim_from_the_shadow_on_rows_new_to_it() -> None:
    split = tiny_split()
    world = split.victim()
    inside = world.contains(split.candidates).int().argsort(stable=True)
    rows = split.candidates.select(inside[[0, -1, 1, -2]])  # the shadow holds every second
    shadow = np.array([[0.5, 0.5], [0.1, 0.9], [0.2, 0.8], [0.9, 0.1]])
    victim = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    oracle = SimpleNamespace(log_posteriors=lambda _: torch.from_numpy(shadow).log())
    made: Any = SimpleNamespace(world=world, oracle=oracle)
    found = float(_apart(made, rows, torch.from_numpy(victim).log()))
    expected = (shadow * np.log(shadow / victim)).sum(1)[[0, 2]].mean()
    assert found == pytest.approx(expected)


def test_the_closer_kind_of_shadow_wins() -> None:
    near, far = torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.5])
    assert compared(far, near)[0] > 0
    assert compared(far, near)[1] == 1
    assert compared(near, far)[0] < 0
    assert compared(near, far)[1] == 0
    assert [float(x) for x in compared(near, near)] == [0, 0.5]
    assert [float(x) for x in compared(0 * near, 0 * near)] == [0, 0.5]


class Told:
    """Posteriors that say one number about any row."""

    def __init__(self, share: float) -> None:
        self.share = share

    def log_posteriors(self, rows: Examples) -> torch.Tensor:
        return torch.tensor([self.share, 1 - self.share]).log().expand(len(rows), 2)


def auc(worlds: tuple[World, ...], share: Any, split: Split) -> float:
    """Return the AUC over victims whose posteriors are a number, as the shadows' are."""
    attack = PropertyInference(pairs=2)
    question, truth = posed(split)
    _, ctx = arena(attack, memoriser(split.victim()))

    def of(shadow: Shadow) -> Shadow:
        return replace(shadow, oracle=cast("Oracle", Told(share(shadow.world.members))))

    ctx.shadows = tuple(of(shadow) for shadow in ctx.shadows)
    answers = [
        GAME.pack(attack.answer(cast("Oracle", Told(share(world.members))), question, ctx))
        for world in worlds
    ]
    joined = {name: torch.cat([one[name] for one in answers]) for name in answers[0]}
    made = GAME.score(GAME.unpack(joined), truth)
    assert isinstance(made["auc"], Estimate)
    assert isinstance(made["balanced_accuracy"], Estimate)
    assert made["balanced_accuracy"].value == made["auc"].value
    return made["auc"].value


def test_victims_that_tell_their_share_are_told_apart_and_null_ones_are_not() -> None:
    split = tiny_split()
    question, _ = posed(split)
    assert auc(GAME.victims(split, BRIGHT), question.share, split) == 1
    assert auc(GAME.nulls(split, BRIGHT), question.share, split) == 0.5
    assert auc(GAME.victims(split, BRIGHT), lambda _: 0.3, split) == 0.5


# ---- a whole trial -------------------------------------------------------------------------------


def _trial(attack: PropertyAttack) -> Trial:
    data = TinyImages()
    return Trial(
        Cell(
            data.card(None), data.protocols["default"], TinyTarget(), (NoDefense(),), Adversary(),
            attack, BRIGHT, data,
        ),
        0,
    )  # fmt: skip


@pytest.mark.slow
def test_a_trial_asks_about_all_victims_and_trains_nothing_twice(tmp_path: Path) -> None:
    lab = TrialRunner(Store(tmp_path), CPU)
    trial = _trial(PropertyInference(pairs=2))
    roles = lab.specs(trial)
    assert len(roles) == 2 * VICTIMS + 4
    assert {"victim", "victim 1", "null 15", "shadow 3"} < set(roles)
    record = lab.run(trial)
    assert record.status == "ok", record.traceback
    assert lab.builder.trained_phases == 2 * VICTIMS + 4
    assert record.sizes == {"high": VICTIMS // 2, "low": VICTIMS // 2}
    assert set(record.metrics) == {"auc", "balanced_accuracy"}
    assert set(record.controls) == {"null"}
    assert record.cost.queries_per_sample == len(tiny_split().pool)
    assert record.utility["test_rows"] == 80
    again = TrialRunner(Store(tmp_path), CPU)
    assert set(again.specs(trial)) == {role for role in roles if "shadow" not in role}
    assert again.run(trial).metrics == record.metrics
    assert again.builder.trained_phases == 0
