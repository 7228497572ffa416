"""Shokri: partition by true class, fallback for others, and the right side of the question."""

from __future__ import annotations

from typing import Any

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
from privbench.testing import rate_band
from privbench.toolbox.classifiers import (
    fit,
    logits,
    rows_by,
    slots,
    stacked_logits,
    stacked_mlp,
)
from privbench_plugins.attacks.shokri import Shokri, records

K = 3
CARD = Card(name="toy", kind="real", shape=(K,), classes=K, scale=1.0, sources={"all": 400})
QUICK = Shokri(k=2, steps=400)


class Parrot:
    """Answers every row with itself: the rows of these tests are posteriors."""

    card = CARD
    grants = Access.POSTERIORS
    key = None

    def log_posteriors(self, x: Tensor) -> Tensor:
        return x.double().clamp_min(1e-12).log()


def rows(p: Tensor, y: Tensor) -> Examples:
    return Examples.of(p.float(), y, scale=1.0)


def noisy(p: list[float], n: int, seed: int) -> Tensor:
    """Posteriors (n, k) close to p."""
    generator = torch.Generator().manual_seed(seed)
    near = torch.tensor(p) + 0.02 * torch.rand(n, K, generator=generator)
    return near / near.sum(1, keepdim=True)


def oracle() -> Oracle:
    return Oracle(Parrot(), Access.POSTERIORS, asker="test")  # type: ignore[arg-type]


def shadow(members: Examples, nonmembers: Examples) -> Shadow:
    return Shadow(World({"members": members}, "offline", 0, 0), nonmembers, oracle(), None)  # type: ignore[arg-type]


def play(attack: Any, shadows: tuple[Shadow, ...], asked: Examples) -> Membership:
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=shadows,
        auxiliary=asked, auxiliary_oracle=oracle(), data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    answer: Membership = attack.answer(oracle(), MembershipQuestion(asked, "encoder"), ctx)
    return answer


def separable(n: int, seed: int) -> tuple[Examples, Examples]:
    """Members with one-hot, nonmembers with uniform posteriors, of random classes."""
    y = torch.randint(K, (n,), generator=torch.Generator().manual_seed(seed))
    sure = noisy([0.0, 0.0, 0.0], n, seed) * 0.05 + torch.nn.functional.one_hot(y, K) * 0.95
    return rows(sure, y), rows(noisy([1 / 3] * 3, n, seed + 1), y)


def opposed(n: int, seed: int) -> tuple[Examples, Examples]:
    """Predictions are class 0 throughout; high means member for true class 0, nonmember for 1."""
    high, low = noisy([0.9, 0.05, 0.05], n, seed), noisy([0.5, 0.25, 0.25], n, seed + 1)
    y = torch.arange(n) % 2
    first = (y == 0)[:, None]
    return rows(torch.where(first, high, low), y), rows(torch.where(first, low, high), y)


def accuracy(answer: Membership, members: int) -> float:
    assert answer.decisions is not None
    truth = torch.arange(len(answer.decisions)) < members
    return float((answer.decisions == truth).float().mean())


def both(pair: tuple[Examples, Examples]) -> Examples:
    from privbench.measure.data.examples import join

    return join(pair)


def test_separable_answers_are_told_apart() -> None:
    shadows = tuple(shadow(*separable(60, seed)) for seed in (0, 10))
    assert accuracy(play(QUICK, shadows, both(separable(60, 20))), 60) == 1
    swapped = tuple(shadow(*separable(60, seed)[::-1]) for seed in (0, 10))
    assert accuracy(play(QUICK, swapped, both(separable(60, 20))), 60) == 0


def test_equal_answers_leave_chance() -> None:
    def pair(seed: int) -> tuple[Examples, Examples]:
        y = torch.arange(400) % K
        return rows(noisy([0.5, 0.3, 0.2], 400, seed), y), rows(
            noisy([0.5, 0.3, 0.2], 400, seed + 1), y
        )

    answer = play(QUICK, (shadow(*pair(0)), shadow(*pair(10))), both(pair(20)))
    assert accuracy(answer, 400) == pytest.approx(0.5, abs=rate_band(800))


def test_partition_is_by_true_class_not_by_predicted() -> None:
    shadows = tuple(shadow(*opposed(80, seed)) for seed in (0, 10))
    asked = both(opposed(80, 20))
    assert (asked.x.argmax(1) == 0).all()
    assert accuracy(play(QUICK, shadows, asked), 80) == 1


def test_rows_of_a_class_without_records_go_to_the_classifier_of_all() -> None:
    known = separable(90, 0)
    only = tuple(part.select(part.y != 2) for part in known)
    asked = both(separable(60, 20))
    answer = play(QUICK.replace(k=1), (shadow(*only),), asked)
    assert answer.scores.isfinite().all()
    assert answer.notes["attack models"] == 2
    # what the fallback says of class 2 is what it says of rows whose label is unknown
    unknown = play(QUICK.replace(k=1), (shadow(*only),), asked.with_y(torch.full((120,), -1)))
    third = asked.y == 2
    torch.testing.assert_close(answer.scores[third], unknown.scores[third])
    assert not torch.allclose(answer.scores[~third], unknown.scores[~third])


def test_one_sided_class_and_no_label_at_all_are_no_error() -> None:
    members, others = separable(60, 0)
    one_sided = shadow(members, others.select(others.y != 1))
    assert play(QUICK.replace(k=1), (one_sided,), both(separable(9, 20))).scores.isfinite().all()
    blank = torch.full((60,), -1)
    unlabelled = shadow(members.with_y(blank), others.with_y(blank))
    assert play(QUICK.replace(k=1), (unlabelled,), both(separable(9, 20))).scores.isfinite().all()


@pytest.mark.parametrize("hidden", [0, 8])
def test_permuted_question_and_global_generator(hidden: int) -> None:
    attack = QUICK.replace(hidden=hidden, steps=50)
    shadows = tuple(shadow(*separable(30, seed)) for seed in (0, 10))
    asked = both(separable(30, 20))
    scores = play(attack, shadows, asked).scores
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(99)  # noqa: TID251 - nothing may depend on it
        before = torch.get_rng_state()
        moved = play(attack, shadows, asked.select(order)).scores
        assert torch.equal(before, torch.get_rng_state())
    torch.testing.assert_close(moved, scores[order])


def test_records_and_slots() -> None:
    members, others = separable(20, 0)
    known = records((shadow(members, others), shadow(others, members)))
    assert known.inside.tolist() == [1] * 20 + [0] * 20 + [1] * 20 + [0] * 20
    assert int(known.inside.sum()) * 2 == len(known.y)
    assert known.x.dtype == torch.float32
    assert slots(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 1, 0]), 4).tolist() == [
        1, 0, 2, 0, 0,
    ]  # fmt: skip


def test_classifiers_side_by_side_are_trained_as_if_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=generator), torch.arange(60) % 2
    groups = torch.arange(60) % 3
    index = rows_by(groups)

    def train(network: Any, chosen: Tensor) -> Any:
        # one batch holds all rows, so that shuffling does not matter
        return fit(network, x, y, lr=0.1, batch=20, steps=30, weight_decay=0.1, rows=chosen,
                   generator=torch.Generator().manual_seed(3))  # fmt: skip

    together = stacked_mlp(3, [4, 5, 2], torch.nn.Tanh)
    alone = stacked_mlp(1, [4, 5, 2], torch.nn.Tanh)
    with torch.no_grad():
        for one, all_ in zip(alone.parameters(), together.parameters(), strict=True):
            one.copy_(all_[1:2])
    train(together, index)
    train(alone, index[1:2])
    torch.testing.assert_close(
        stacked_logits(together, x)[1:2], stacked_logits(alone, x), rtol=1e-4, atol=1e-4
    )


def test_fit_counts_updates_and_seeds_dropout() -> None:
    def trained(noise: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(noise)  # noqa: TID251 - nothing may depend on it
            network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
            torch.nn.init.ones_(network[0].weight)  # type: ignore[arg-type]
            torch.nn.init.zeros_(network[0].bias)  # type: ignore[arg-type]
            x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
            fit(network, x, torch.tensor([0, 1, 0]), lr=0.1, batch=2, epochs=3, steps=7,
                optimizer="sgd", clip=1.0, generator=torch.Generator().manual_seed(0))  # fmt: skip
            assert not network.training
            return logits(network, x)

    assert torch.equal(trained(1), trained(2))
    steps: list[int] = []
    network = torch.nn.Linear(2, 2)
    network.register_forward_hook(lambda *_: steps.append(1))
    fit(network, torch.zeros(5, 2), torch.zeros(5).long(), lr=0.1, batch=2, epochs=2, steps=8,
        generator=torch.Generator().manual_seed(0))  # fmt: skip
    assert len(steps) == 8  # two epochs are six
