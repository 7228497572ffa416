"""Metric attacks: numbers by hand, exact at p = 1, thresholds from the shadow only."""

from __future__ import annotations

import math
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
from privbench.measure.data.examples import join
from privbench.measure.games.metrics import auc, balanced_accuracy
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench_plugins.attacks.metric import (
    NOTHING,
    MetricConfidence,
    MetricCorrectness,
    MetricEntropy,
    MetricLoss,
    MetricModifiedEntropy,
    logs,
    privbench_attacks,
)

K = 3
CARD = Card(name="toy", kind="real", shape=(K,), classes=K, scale=1.0, sources={"all": 400})
THRESHOLDED = [MetricConfidence(), MetricEntropy(), MetricModifiedEntropy()]
HAND = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)


class Parrot:
    """Answers every row with itself: the rows of these tests are log posteriors."""

    card = CARD
    grants = Access.LABELS | Access.POSTERIORS
    key = None

    def log_posteriors(self, x: Tensor) -> Tensor:
        return x.double()


def oracle(access: Access = Parrot.grants) -> Oracle:
    return Oracle(Parrot(), access, asker="test")  # type: ignore[arg-type]


def play(attack: Any, known: tuple[Examples, Examples] | None, asked: Examples) -> Membership:
    shadows: list[Shadow] = []
    if known is not None:
        world = World({"members": known[0]}, "offline", 0, 0)
        shadows.append(Shadow(world, known[1], oracle(), None))  # type: ignore[arg-type]
    assert len(shadows) == attack.shadows.count
    ctx = AttackContext(
        card=CARD, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1), sensitive=(),
        device=torch.device("cpu"), store=None, seed=0, scope="test", shadows=tuple(shadows),
        auxiliary=asked, auxiliary_oracle=oracle(), data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    asking = oracle(attack.needs)
    answer: Membership = attack.answer(asking, MembershipQuestion(asked, "encoder"), ctx)
    assert asking.queries == len(asked)
    return answer


def rows(logits: Tensor, y: Tensor) -> Examples:
    return Examples.of(logits.double().log_softmax(1), y, scale=1.0)


def cloud(n: int, seed: int, sharpness: float) -> Examples:
    """Rows of random classes, the sharper the surer and the more correct."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=generator)
    noise = torch.randn(n, K, generator=generator)
    return rows(noise + sharpness * torch.nn.functional.one_hot(y, K), y)


def one(attack: Any, p: Tensor, y: int) -> float:
    return float(attack.measure(p.double().log()[None], torch.tensor([y])))


@pytest.mark.parametrize(
    ("attack", "y", "expected"),
    [
        (MetricModifiedEntropy(), 0, -0.16216724501),
        (MetricModifiedEntropy(), 1, -2.14086734454),
        (MetricEntropy(), 0, -0.80181855254),
        (MetricEntropy(), 2, -0.80181855254),
        (MetricConfidence(), 0, 0.84729786039),
        (MetricConfidence(), 1, math.log(0.2 / 0.8)),
        (MetricLoss(), 0, -0.35667494394),
        (MetricLoss(), 2, math.log(0.1)),
    ],
)
def test_numbers_by_hand(attack: Any, y: int, expected: float) -> None:
    assert one(attack, HAND, y) == pytest.approx(expected, abs=1e-11)


def test_modified_entropy_of_two_classes_has_a_closed_form() -> None:
    p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    pairs = torch.stack([p, 1 - p], dim=1).log()
    got = -MetricModifiedEntropy().measure(pairs, torch.zeros(99, dtype=torch.int64))
    torch.testing.assert_close(got, -2 * (1 - p) * p.log(), rtol=1e-12, atol=1e-14)
    assert (got.diff() < 0).all()
    half, nine = (one(MetricModifiedEntropy(), torch.tensor([q, 1 - q]), 0) for q in (0.5, 0.9))
    assert half == pytest.approx(-math.log(2), abs=1e-7)
    assert nine == pytest.approx(-0.02107210, abs=1e-7)


@pytest.mark.parametrize("attack", [*THRESHOLDED, MetricLoss()])
def test_a_released_one_hot_vector_is_finite_and_in_order(attack: Any) -> None:
    sure = torch.tensor([1.0, 0.0, 0.0])
    right, wrong, hand = one(attack, sure, 0), one(attack, sure, 1), one(attack, HAND, 0)
    assert all(map(math.isfinite, (right, wrong)))
    assert right > hand
    if isinstance(attack, MetricEntropy):
        assert right == wrong == 0
    else:
        assert wrong < -1e6
    if isinstance(attack, MetricModifiedEntropy | MetricLoss):
        assert right == 0


@pytest.mark.parametrize("attack", [MetricConfidence(), MetricEntropy(), MetricLoss()])
def test_sure_answers_do_not_tie_where_p_rounds_to_one(attack: Any) -> None:
    logits = torch.tensor([[gap, 0.0, 0.0] for gap in (50.0, 60.0, 200.0, 700.0)])
    log_posteriors = logits.double().log_softmax(1)
    assert (log_posteriors.exp()[:, 0] == 1).all()
    scores = attack.measure(log_posteriors, torch.zeros(4, dtype=torch.int64))
    assert (scores.diff() > 0).all()


def test_logs_are_exact_next_to_one() -> None:
    gaps = torch.tensor([1.0, 20.0, 50.0, 700.0], dtype=torch.float64)
    log_p, rest = logs(torch.stack([gaps, 0 * gaps], dim=1).log_softmax(1))
    torch.testing.assert_close(log_p[:, 0], -torch.log1p((-gaps).exp()), rtol=1e-14, atol=0)
    torch.testing.assert_close(rest[:, 0], log_p[:, 1], rtol=1e-14, atol=0)
    # a lost digit: 1 - p has none left at a gap of 50
    assert float(1 - log_p[2, 0].exp()) == 0
    nothing = logs(torch.tensor([[0.0, -torch.inf]], dtype=torch.float64))
    assert [part.tolist() for part in nothing] == [[[0.0, NOTHING]], [[NOTHING, 0.0]]]


def test_confidence_decides_as_p_does() -> None:
    """On the rows that choose the thresholds; between them log-odds have other middles."""
    known = cloud(200, 0, 3.0), cloud(200, 1, 1.0)

    def p(part: Examples) -> Tensor:
        return part.x.double().gather(1, part.y[:, None])[:, 0].exp()

    threshold = by_class(known, p)
    for part in known:
        answer = play(MetricConfidence(), known, part)
        assert answer.decisions is not None
        assert torch.equal(answer.decisions, p(part) >= threshold[part.y])


def by_class(known: tuple[Examples, Examples], score: Any) -> Tensor:
    """The best threshold of each class, in the middle below the best value of all observed."""
    best = []
    for c in range(K):
        inside, outside = (score(part)[part.y == c] for part in known)
        tries = torch.cat([inside, outside, torch.tensor([torch.inf])])
        gains = [
            ((inside >= t).double().mean() + (outside < t).double().mean(), float(t)) for t in tries
        ]
        upper = max(gains)[1]
        below = [float(t) for t in tries if t < upper]
        best.append((upper + max(below)) / 2 if upper < torch.inf and below else upper)
    return torch.tensor(best, dtype=torch.float64)


@pytest.mark.parametrize("attack", THRESHOLDED, ids=lambda a: a.name)
def test_thresholds_are_brute_force_over_the_shadow(attack: Any) -> None:
    known, asked = (cloud(180, 0, 3.0), cloud(180, 1, 1.0)), cloud(200, 2, 2.0)
    answer = play(attack, known, asked)
    limits = by_class(known, lambda part: attack.measure(part.x.double(), part.y))
    scores = attack.measure(asked.x.double(), asked.y)
    assert torch.equal(answer.scores, scores)
    assert answer.decisions is not None
    assert torch.equal(answer.decisions, scores >= limits[asked.y])
    assert answer.notes["classes with their own"] == K


@pytest.mark.parametrize("attack", THRESHOLDED, ids=lambda a: a.name)
def test_one_class_has_the_global_threshold(attack: Any) -> None:
    known, asked = (cloud(90, 0, 3.0), cloud(90, 1, 1.0)), cloud(200, 2, 2.0)
    single = known[0].select(known[0].y == 1), known[1].select(known[1].y == 1)
    alone = asked.select(asked.y == 1)
    each, overall = (play(attack.replace(per_class=c), single, alone) for c in (True, False))
    assert each.decisions is not None
    assert overall.decisions is not None
    assert torch.equal(each.decisions, overall.decisions)
    assert overall.notes["classes with their own"] == 0


def test_a_class_that_the_shadow_lacks_takes_the_threshold_of_all() -> None:
    known, asked = (cloud(180, 0, 3.0), cloud(180, 1, 1.0)), cloud(200, 2, 2.0)
    lacking = known[0].select(known[0].y != 2), known[1].select(known[1].y != 2)
    each, overall = (
        play(MetricConfidence(per_class=c), lacking, asked).decisions for c in (True, False)
    )
    assert each is not None
    assert overall is not None
    third = asked.y == 2
    assert torch.equal(each[third], overall[third])


def test_the_shadow_sets_the_rule_and_not_the_rows_asked_about() -> None:
    high, low = cloud(80, 0, 6.0), cloud(80, 1, 1.0)
    asked = join([cloud(100, 2, 6.0), cloud(100, 3, 1.0)])
    truth = torch.arange(200) < 100
    for attack in THRESHOLDED:
        made = play(attack, (high, low), asked).decisions
        assert made is not None
        assert balanced_accuracy(made, truth).value > 0.8
        swapped = play(attack, (low, high), asked)  # the shadow's members are the unsure ones
        assert torch.equal(swapped.scores, play(attack, (high, low), asked).scores)
        assert swapped.decisions is not None
        assert balanced_accuracy(swapped.decisions, truth).value < 0.6


def test_loss_rule_is_the_confidence_rule_at_exp_of_minus_the_mean_loss() -> None:
    members, others, asked = cloud(150, 0, 3.0), cloud(150, 1, 1.0), cloud(300, 2, 2.0)
    answer = play(MetricLoss(), (members, others), asked)
    tau = torch.nn.functional.nll_loss(members.x.double(), members.y)
    assert answer.notes["mean training loss"] == pytest.approx(float(tau), rel=1e-12)
    p = asked.x.gather(1, asked.y[:, None])[:, 0].exp()
    assert answer.decisions is not None
    assert torch.equal(answer.decisions, p >= math.exp(-float(tau)))
    assert 0 < int(answer.decisions.sum()) < 300
    # nonmembers of the shadow have no say
    again = play(MetricLoss(), (members, cloud(9, 9, 0.0)), asked)
    assert again.decisions is not None
    assert torch.equal(again.decisions, answer.decisions)


def test_loss_of_a_victim_that_releases_one_hot_vectors_is_the_correctness_rule() -> None:
    logits = torch.where(torch.eye(K).bool(), 0.0, -torch.inf)
    y = torch.tensor([0, 1, 2, 0])
    hard = Examples.of(logits[[0, 1, 2, 1]], y, scale=1.0)
    made = play(MetricLoss(), (hard, hard), hard).decisions
    assert made is not None
    assert made.tolist() == [True, True, True, False]


def test_gap_attack_is_half_the_gap_above_one_half() -> None:
    p = HAND.expand(20, 3).log()
    wrong = torch.arange(20) >= 17  # members: all 10 right; nonmembers: 7 of 10
    answer = play(MetricCorrectness(), None, Examples.of(p, wrong.long(), scale=1.0))
    truth = torch.arange(20) < 10
    assert answer.decisions is not None
    assert balanced_accuracy(answer.decisions, truth).value == pytest.approx(0.65)
    assert auc(answer.scores, truth).value == pytest.approx(0.65)
    assert MetricCorrectness().needs == Access.LABELS


@pytest.mark.parametrize("attack", privbench_attacks(), ids=lambda a: a.name)
def test_rows_without_a_label_are_answered(attack: Any) -> None:
    known: Any = (cloud(60, 0, 3.0), cloud(60, 1, 1.0)) if attack.shadows.count else None
    asked = cloud(50, 2, 2.0)
    blank = asked.with_y(torch.full((50,), -1))
    answer = play(attack, known, blank)
    assert answer.scores.isfinite().all()
    if isinstance(attack, MetricCorrectness):
        assert not answer.scores.any()
    else:
        likeliest = asked.with_y(asked.x.argmax(1))
        assert torch.equal(answer.scores, play(attack, known, likeliest).scores)
        # a shadow without labels is no error either
        unlabelled = tuple(part.with_y(torch.full((60,), -1)) for part in known)
        assert play(attack, unlabelled, blank).scores.isfinite().all()


def test_mean_training_loss_is_of_labelled_rows() -> None:
    members, others = cloud(60, 0, 2.0), cloud(60, 1, 1.0)
    half = members.with_y(torch.where(torch.arange(60) < 30, members.y, -1))
    mean = play(MetricLoss(), (half, others), others).notes["mean training loss"]
    known = members.select(slice(0, 30))
    assert mean == play(MetricLoss(), (known, others), others).notes["mean training loss"]


@pytest.mark.parametrize("attack", privbench_attacks(), ids=lambda a: a.name)
def test_members_of_a_memoriser_are_found_and_those_of_a_null_victim_not(attack: Any) -> None:
    split = tiny_split()
    found = []
    for world in (split.victim(), split.null()):
        asking, ctx = arena(attack, memoriser(world))
        question = MembershipQuestion(split.candidates, "encoder")
        found.append(auc(attack.answer(asking, question, ctx).scores, split.member))
    assert found[0].value > 0.9
    assert found[1].value == pytest.approx(0.5, abs=auc_band(80, 80))
