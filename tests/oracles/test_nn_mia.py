"""NN-MIA: the three features, and one network that learns from the shadow only."""

from __future__ import annotations

import pytest
import torch
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
from privbench.measure.data.examples import join
from privbench.testing import rate_band
from privbench_plugins.attacks.nn_mia import NNMIA, talos_features

K = 4
CARD = Card(name="toy", kind="real", shape=(K,), classes=K, scale=1.0, sources={"all": 400})


class Parrot:
    """Answers every row with itself: the rows of these tests are posteriors."""

    card = CARD
    grants = Access.POSTERIORS
    key = None

    def log_posteriors(self, x: Tensor) -> Tensor:
        return x.double().clamp_min(1e-12).log()


def oracle() -> Oracle:
    return Oracle(Parrot(), Access.POSTERIORS, asker="test")  # type: ignore[arg-type]


def play(attack: NNMIA, members: Examples, nonmembers: Examples, asked: Examples) -> Membership:
    shadow = Shadow(World({"members": members}, "offline", 0, 0), nonmembers, oracle(), None)  # type: ignore[arg-type]
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(shadow,),
        auxiliary=asked, auxiliary_oracle=oracle(), data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    return attack.answer(oracle(), MembershipQuestion(asked, "encoder"), ctx)


def cloud(n: int, seed: int, sharpness: float) -> Examples:
    """Rows of random classes, the sharper the surer and the more correct."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=generator)
    noise = torch.randn(n, K, generator=generator)
    p = (noise * 0.3 + sharpness * torch.nn.functional.one_hot(y, K)).softmax(1)
    return Examples.of(p, y, scale=1.0)


def accuracy(answer: Membership, members: int) -> float:
    assert answer.decisions is not None
    truth = torch.arange(len(answer.decisions)) < members
    return float((answer.decisions == truth).float().mean())


def test_features_by_hand() -> None:
    p = torch.tensor([[0.1, 0.6, 0.3]]).repeat(3, 1)
    features = talos_features(p, torch.tensor([1, 0, -1]))
    torch.testing.assert_close(
        features, torch.tensor([[0.6, 0.3, 1.0], [0.6, 0.3, 0.0], [0.6, 0.3, 0.0]])
    )


def test_features_do_not_depend_on_the_order_of_other_classes() -> None:
    p = torch.tensor([[0.1, 0.6, 0.25, 0.05]])
    y = torch.tensor([1])
    for order in ([2, 1, 0, 3], [3, 1, 2, 0], [0, 1, 3, 2]):
        assert torch.equal(talos_features(p[:, order], y), talos_features(p, y))


@pytest.mark.slow
def test_separable_answers_are_told_apart_even_from_a_small_shadow() -> None:
    known = cloud(60, 0, 8.0), cloud(60, 1, 1.5)
    asked = join([cloud(80, 2, 8.0), cloud(80, 3, 1.5)])
    assert accuracy(play(NNMIA(), *known, asked), 80) == 1
    assert accuracy(play(NNMIA(), *known[::-1], asked), 80) == 0  # roles swapped
    # the paper's 100 epochs alone are 100 updates here
    rushed = play(NNMIA(epochs=1, steps=0), *known, asked)
    assert accuracy(rushed, 80) < 1


def test_equal_answers_leave_chance() -> None:
    asked = join([cloud(400, 2, 2.0), cloud(400, 3, 2.0)])
    answer = play(NNMIA(), cloud(400, 0, 2.0), cloud(400, 1, 2.0), asked)
    assert accuracy(answer, 400) == pytest.approx(0.5, abs=rate_band(800))


def test_correctness_is_by_the_true_label() -> None:
    def wrong(rows: Examples) -> Examples:
        return rows.with_y((rows.y + 1) % K)

    known = cloud(100, 0, 8.0), wrong(cloud(100, 1, 8.0))
    asked = join([cloud(50, 2, 8.0), wrong(cloud(50, 3, 8.0))])
    assert accuracy(play(NNMIA(), *known, asked), 50) == 1


def test_permuted_question_and_global_generator() -> None:
    attack = NNMIA(epochs=1, steps=50)
    known = cloud(40, 0, 4.0), cloud(40, 1, 2.0)
    asked = join([cloud(30, 2, 4.0), cloud(30, 3, 2.0)])
    scores = play(attack, *known, asked).scores
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(99)  # noqa: TID251 - nothing may depend on it
        before = torch.get_rng_state()
        moved = play(attack, *known, asked.select(order)).scores
        assert torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(moved, scores[order])
