"""Encoder feature: learns a direction of the shadow's embeddings, and scales by the shadow only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from privbench import (
    Access,
    AttackContext,
    BadInputError,
    Card,
    Examples,
    Membership,
    MembershipQuestion,
    Oracle,
    Protocol,
    Shadow,
    World,
)
from privbench.measure.data.examples import join
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench_plugins.attacks.encoder_feature import EncoderFeature

D = 8
CARD = Card(name="toy", kind="real", shape=(D,), classes=2, scale=1.0, sources={"all": 400})
QUICK = EncoderFeature(epochs=1, steps=300, lr=1e-3)


class Turn:
    """Embeds every row as itself, turned."""

    card = CARD
    grants = Access.EMBEDDINGS
    key = None

    def __init__(self, turn: Tensor) -> None:
        self.turn = turn

    def embeddings(self, x: Tensor) -> Tensor:
        return x.float() @ self.turn


def oracle(turn: Tensor) -> Oracle:
    return Oracle(Turn(turn), Access.EMBEDDINGS, asker="test")  # type: ignore[arg-type]


def play(
    known: tuple[Examples, Examples],
    asked: Examples,
    attack: EncoderFeature = QUICK,
    turn: Tensor | None = None,
) -> Membership:
    """The answer about a victim whose embeddings are turned; the shadow's are not."""
    world, straight = World({"members": known[0]}, "offline", 0, 0), torch.eye(D)
    shadow = Shadow(world, known[1], oracle(straight), None)  # type: ignore[arg-type]
    asking = oracle(straight if turn is None else turn)
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(shadow,),
        auxiliary=asked, auxiliary_oracle=asking, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    answer = attack.answer(asking, MembershipQuestion(asked, "encoder"), ctx)
    assert asking.queries == len(asked)
    assert shadow.oracle.queries == len(known[0]) + len(known[1])
    return answer


def cloud(n: int, seed: int, *, told: float, scale: float = 1.0) -> Examples:
    """Rows whose coordinate 2 says membership; coordinate 0 is large and 7 constant."""
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed))
    x[:, 2] = scale * (0.3 * x[:, 2] + told)
    x[:, 0] *= 100
    x[:, 7] = 5
    return Examples.of(x, torch.zeros(n, dtype=torch.int64), scale=1.0)


def asked(n: int = 100, scale: float = 1.0) -> Examples:
    return join([cloud(n, 2, told=1, scale=scale), cloud(n, 3, told=-1, scale=scale)])


def truth(answer: Membership) -> Tensor:
    return torch.arange(len(answer.scores)) < len(answer.scores) // 2


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_coordinate_that_says_membership_is_found_at_any_scale(scale: float) -> None:
    known = cloud(100, 0, told=1, scale=scale), cloud(100, 1, told=-1, scale=scale)
    answer = play(known, asked(scale=scale))
    assert auc(answer.scores, truth(answer)).value > 0.98
    assert answer.decisions is not None
    assert float((answer.decisions == truth(answer)).double().mean()) > 0.95
    swapped = play(known[::-1], asked(scale=scale))
    assert auc(swapped.scores, truth(swapped)).value < 0.02


def test_the_victims_rows_are_not_standardised_by_themselves() -> None:
    known = cloud(100, 0, told=1), cloud(100, 1, told=-1)
    answer = play(known, cloud(100, 2, told=1))  # members only: all of them shifted alike
    assert answer.decisions is not None
    assert answer.decisions.double().mean() > 0.9


def test_what_is_learned_does_not_carry_over_to_other_axes() -> None:
    known = cloud(100, 0, told=1), cloud(100, 1, told=-1)
    other = torch.eye(D)[[0, 1, 5, 3, 4, 2, 6, 7]]  # the victim keeps it in coordinate 5
    answer = play(known, asked(400), turn=other)
    # over 20 draws of the rows: mean .523, standard deviation .027
    assert auc(answer.scores, truth(answer)).value == pytest.approx(0.5, abs=0.15)


def test_a_shadow_of_another_width_is_refused() -> None:
    known = cloud(9, 0, told=1), cloud(9, 1, told=-1)
    with pytest.raises(BadInputError, match="as wide"):
        play(known, asked(9), turn=torch.eye(D)[:, :3])


def test_few_rows_get_enough_updates() -> None:
    known = cloud(20, 0, told=1), cloud(20, 1, told=-1)
    rushed = EncoderFeature(epochs=1, steps=0)
    enough = auc(play(known, asked()).scores, truth(play(known, asked()))).value
    few = play(known, asked(), rushed)
    assert enough > auc(few.scores, truth(few)).value
    assert enough > 0.9


def test_permuted_question_and_global_generator() -> None:
    known, rows = (cloud(40, 0, told=1), cloud(40, 1, told=-1)), asked(30)
    attack = QUICK.replace(steps=50)
    scores = play(known, rows, attack).scores
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(99)  # noqa: TID251 - nothing may depend on it
        before = torch.get_rng_state()
        moved = play(known, rows.select(order), attack).scores
        assert torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(moved, scores[order])


def test_members_of_a_memoriser_are_found_and_those_of_a_null_victim_not() -> None:
    split = tiny_split()
    found = []
    for world in (split.victim(), split.null()):
        asking, ctx = arena(QUICK, memoriser(world))
        question = MembershipQuestion(split.candidates, "encoder")
        found.append(auc(QUICK.answer(asking, question, ctx).scores, split.member))
    assert found[0].value > 0.9
    assert found[1].value == pytest.approx(0.5, abs=auc_band(80, 80))
