"""Posterior-label MIA: the record, how many of them, and that it learns from the shadow only."""

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
from privbench.measure.games.metrics import auc, balanced_accuracy
from privbench.testing import arena, auc_band, memoriser, rate_band, tiny_split
from privbench_plugins.attacks.posterior_label_mia import PosteriorLabelMIA, _network, paired

K = 3
CARD = Card(name="toy", kind="real", shape=(K,), classes=K, scale=1.0, sources={"all": 400})
QUICK = PosteriorLabelMIA(epochs=1, steps=400)


class Parrot:
    """Answers every row with itself: the rows of these tests are posteriors."""

    card = CARD
    grants = Access.POSTERIORS
    key = None

    def log_posteriors(self, x: Tensor) -> Tensor:
        return x.double().clamp_min(1e-12).log()


def oracle() -> Oracle:
    return Oracle(Parrot(), Access.POSTERIORS, asker="test")  # type: ignore[arg-type]


def play(
    attack: PosteriorLabelMIA, known: tuple[Examples, Examples], asked: Examples
) -> tuple[Membership, int]:
    """The answer, and how many queries the shadow got."""
    shadow = Shadow(World({"members": known[0]}, "offline", 0, 0), known[1], oracle(), None)  # type: ignore[arg-type]
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=(shadow,),
        auxiliary=asked, auxiliary_oracle=oracle(), data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    asking = oracle()
    answer = attack.answer(asking, MembershipQuestion(asked, "encoder"), ctx)
    assert asking.queries == len(asked)
    return answer, shadow.oracle.queries


def cloud(n: int, seed: int, *, right: bool) -> Examples:
    """Sure answers, all of them right or all of them wrong: posteriors alone say nothing."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=generator)
    noise = torch.randn(n, K, generator=generator)
    p = (noise * 0.3 + 4 * torch.nn.functional.one_hot(y, K)).softmax(1)
    return Examples.of(p, y if right else (y + 1) % K, scale=1e6)  # so that rows have keys apart


def accuracy(answer: Membership) -> float:
    assert answer.decisions is not None
    n = len(answer.decisions)
    return balanced_accuracy(answer.decisions, torch.arange(n) < n // 2).value


def test_record_by_hand() -> None:
    p = torch.tensor([[0.1, 0.6, 0.3]]).repeat(2, 1)
    expected = torch.tensor([[0.1, 0.6, 0.3, 0.0, 1.0, 0.0], [0.1, 0.6, 0.3, 0.0, 0.0, 0.0]])
    assert torch.equal(paired(p, torch.tensor([1, -1])), expected)


def test_five_hidden_relu_layers_between_records_and_two_logits() -> None:
    attack = PosteriorLabelMIA()
    network = _network([2 * K, *[attack.hidden] * attack.depth, 2])
    kinds = [type(layer).__name__ for layer in network.children()]
    assert kinds == ["Linear", "ReLU"] * 5 + ["Linear"]
    last = list(network.parameters())[-2:]
    assert [tuple(part.shape) for part in last] == [(2, 64), (2,)]
    assert not last[1].any()
    assert float(last[0].detach().abs().max()) <= (6 / (64 + 2)) ** 0.5  # Glorot's bound
    assert (attack.pairs, attack.lr) == (2000, 1e-3)


def test_it_learns_whether_posterior_and_label_go_together() -> None:
    known = cloud(80, 0, right=True), cloud(80, 1, right=False)
    asked = join([cloud(80, 2, right=True), cloud(80, 3, right=False)])
    assert accuracy(play(QUICK, known, asked)[0]) == 1
    assert accuracy(play(QUICK, known[::-1], asked)[0]) == 0  # roles swapped
    # one epoch, Keras' default, is five updates here: it has hardly begun
    rushed = play(PosteriorLabelMIA(epochs=1, steps=0), known, asked)[0].scores
    assert float(rushed.abs().max()) < 0.5
    assert float(play(QUICK, known, asked)[0].scores.abs().min()) > 0.5


def test_equal_answers_leave_chance() -> None:
    known = cloud(200, 0, right=True), cloud(200, 1, right=True)
    asked = join([cloud(400, 2, right=True), cloud(400, 3, right=True)])
    assert accuracy(play(QUICK, known, asked)[0]) == pytest.approx(0.5, abs=rate_band(800))


@pytest.mark.parametrize(("pairs", "used"), [(2000, 60), (41, 40), (2, 2)])
def test_half_of_the_pairs_are_members_and_no_more_are_asked(pairs: int, used: int) -> None:
    known = cloud(50, 0, right=True), cloud(30, 1, right=False)  # the smaller side limits both
    answer, queries = play(QUICK.replace(pairs=pairs, steps=5), known, cloud(4, 2, right=True))
    assert answer.notes["pairs"] == queries == used


def test_the_records_do_not_depend_on_the_order_of_the_shadows_rows() -> None:
    known, asked = (cloud(50, 0, right=True), cloud(50, 1, right=False)), cloud(9, 2, right=True)
    attack = PosteriorLabelMIA(pairs=20, epochs=1, steps=20)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    moved = known[0].select(order), known[1].select(order)
    first, second = (play(attack, k, asked)[0].scores for k in (known, moved))
    assert torch.equal(first, second)


def test_rows_without_a_label_are_answered() -> None:
    known = cloud(50, 0, right=True), cloud(50, 1, right=False)
    blank = cloud(20, 2, right=True).with_y(torch.full((20,), -1))
    assert play(QUICK.replace(steps=20), known, blank)[0].scores.isfinite().all()


def test_permuted_question_and_global_generator() -> None:
    known = cloud(40, 0, right=True), cloud(40, 1, right=False)
    asked, attack = cloud(60, 2, right=True), QUICK.replace(steps=50)
    scores = play(attack, known, asked)[0].scores
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(99)  # noqa: TID251 - nothing may depend on it
        before = torch.get_rng_state()
        moved = play(attack, known, asked.select(order))[0].scores
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
