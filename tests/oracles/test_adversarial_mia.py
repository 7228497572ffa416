"""Adversarial-example MIA: exact scores of linear victims, whose gradients, whose threshold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.oracles.toy_cell import toy_cell
from torch import Tensor, nn

from privbench import (
    Access,
    AttackContext,
    Card,
    Examples,
    Membership,
    MembershipQuestion,
    Model,
    Oracle,
    Protocol,
    Shadow,
    World,
)
from privbench.measure.data.examples import join
from privbench.measure.games import metrics as m
from privbench.measure.victims.served import Victim
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox.classifiers import slots
from privbench.toolbox.likelihood import scaled_logit
from privbench.toolbox.pgd import of_network, pgd
from privbench_plugins.attacks.adversarial_mia import (
    AdversarialMIA,
    AdversarialMIATargeted,
    of_model,
    others,
    source,
)

ATTACKS: list[Any] = [AdversarialMIA(), AdversarialMIATargeted(updates=100)]
GRANTED = Access.POSTERIORS | Access.GRADIENTS
D = 6


def narrow(served: Victim, access: Access) -> Oracle:
    return Oracle(served, access, asker="test")


def card(classes: int, width: int = D) -> Card:
    return Card(
        name="toy", kind="real", shape=(width,), classes=classes, scale=1.0, sources={"all": 400}
    )


def linear(w: Tensor) -> Victim:
    """A victim with the logits x @ w.T."""
    encoder = nn.Identity()
    classifier = nn.Linear(w.shape[1], len(w), bias=False)
    classifier.weight.data = w.clone()
    made = Model(card(len(w), w.shape[1]), {"encoder": encoder, "classifier": classifier})
    return Victim(card(len(w), w.shape[1]), made, key="linear", grants=GRANTED)


def play(
    attack: Any, victim: Victim, shadow: Victim, known: tuple[Examples, Examples],
    asked: Examples, *, access: Access = GRANTED,
) -> tuple[Membership, Oracle]:  # fmt: skip
    """Put the question; ``known`` are the shadow's members and nonmembers."""
    world = World({"members": known[0]}, "offline", 0, 0)
    oracle = narrow(victim, access)
    ctx = AttackContext(
        card=victim.card, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1),
        sensitive=(), device=torch.device("cpu"), store=None, seed=0, scope="test",
        shadows=(Shadow(world, known[1], narrow(shadow, GRANTED), shadow.model),),
        auxiliary=asked, auxiliary_oracle=oracle, data_seed=0, train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    return attack.answer(oracle, MembershipQuestion(asked, "encoder"), ctx), oracle


def cloud(n: int, seed: int, classes: int = 2) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = 0.2 + 0.6 * torch.rand(n, D, generator=generator)
    return Examples.of(x, torch.randint(classes, (n,), generator=generator), scale=1.0)


def weights(seed: int, classes: int = 2) -> Tensor:
    return 4 * torch.randn(classes, D, generator=torch.Generator().manual_seed(seed))


def margins(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return scaled_logit(x @ w.T, y)


# ---- both ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("white", [True, False], ids=["gradients", "transfer"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_planted_and_null_victim(attack: Any, white: bool) -> None:
    split = tiny_split()
    question = MembershipQuestion(split.candidates.without_attributes(), "encoder")

    def auc(served: Victim) -> m.Estimate:
        _, ctx = arena(attack, served)
        oracle = narrow(served, GRANTED if white else Access.POSTERIORS)
        answer = attack.answer(oracle, question, ctx)
        assert answer.notes["crafted on"] == ("victim" if white else "shadow")
        targets = 9 if "targeted" in attack.name else 1
        assert oracle.queries == len(question.examples) * targets * (21 if white else 1)
        return m.auc(answer.scores.numpy(), split.member.numpy())

    assert auc(memoriser(split.victim())).value > 0.9
    null = auc(memoriser(split.null()))
    assert null.value == pytest.approx(0.5, abs=auc_band(80, 80))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_rows_without_labels_are_answered(attack: Any) -> None:
    split = tiny_split()
    oracle, ctx = arena(attack, memoriser(split.victim()))
    asked = split.candidates.select(slice(0, 20))
    blank = asked.with_y(torch.where(torch.arange(20) < 10, -1, asked.y))
    scores = attack.answer(oracle, MembershipQuestion(blank, "encoder"), ctx).scores
    assert scores.isfinite().all()
    targets = 9 if "targeted" in attack.name else 1
    assert oracle.queries == 20 * targets * 21 + 10  # ten had to be classified
    full = attack.answer(oracle, MembershipQuestion(asked, "encoder"), ctx).scores
    torch.testing.assert_close(scores[10:], full[10:])
    if "targeted" not in attack.name:  # they stand for what is predicted
        guessed = asked.with_y(oracle.log_posteriors(asked).argmax(1))
        taken = attack.answer(oracle, MembershipQuestion(guessed, "encoder"), ctx).scores
        torch.testing.assert_close(scores[:10], taken[:10])


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_unfit(attack: Any) -> None:
    bare: Any = toy_cell(card=replace(card(2), name="bare", classes=None))
    assert "bare" in str(reason_to_skip(attack, bare))
    for kind in ("image", "binary", "real"):
        fine: Any = toy_cell(card=replace(card(2), kind=kind))
        assert reason_to_skip(attack, fine) is None


def test_gradients_are_the_victims_where_granted() -> None:
    victim, shadow = linear(weights(0)), linear(weights(1))
    mine = of_model(shadow.model)
    x, y = cloud(5, 0).x, torch.zeros(5).long()
    for access, whose in ((GRANTED, victim), (Access.POSTERIORS, shadow)):
        _, gradient = source(narrow(victim, access), mine)
        torch.testing.assert_close(gradient(x, y), of_model(whose.model)(x, y))


# ---- untargeted ----------------------------------------------------------------------------------


def test_confidence_is_the_worst_case_of_a_linear_victim() -> None:
    w, eps = weights(0), 0.05
    asked = cloud(30, 2)
    attack = AdversarialMIA(eps=eps, step_size=0.01, steps=10)
    answer, oracle = play(attack, linear(w), linear(weights(1)), (cloud(9, 3), cloud(9, 4)), asked)
    exact = margins(asked.x, w, asked.y) - eps * float((w[0] - w[1]).abs().sum())
    torch.testing.assert_close(answer.scores, exact, atol=1e-4, rtol=1e-4)
    assert answer.scores.dtype == torch.float64
    assert oracle.queries == 30 * (1 + 10)


def test_transfer_moves_along_the_shadows_gradient() -> None:
    w, v, eps = weights(0), weights(1), 0.05
    asked = cloud(30, 2)
    attack = AdversarialMIA(eps=eps, step_size=0.01, steps=10)
    answer, oracle = play(
        attack, linear(w), linear(v), (cloud(9, 3), cloud(9, 4)), asked, access=Access.POSTERIORS
    )
    away = torch.where((asked.y == 0)[:, None], v[1] - v[0], v[0] - v[1]).sign()
    torch.testing.assert_close(
        answer.scores, margins(asked.x + eps * away, w, asked.y), atol=1e-4, rtol=1e-4
    )
    assert oracle.queries == 30


def test_no_room_is_the_plain_confidence() -> None:
    w = weights(0, 3)
    asked = cloud(30, 2, 3)
    known = cloud(9, 3, 3), cloud(9, 4, 3)
    answer, _ = play(AdversarialMIA(eps=0.0), linear(w), linear(weights(1, 3)), known, asked)
    torch.testing.assert_close(answer.scores, margins(asked.x, w, asked.y))


def test_the_threshold_is_the_shadows_on_its_own_examples() -> None:
    w, v, eps = weights(0), weights(1), 0.05
    inside, outside = cloud(40, 3), cloud(40, 4)
    inside = inside.with_y((inside.x @ v.T).argmax(1))  # right about members
    fall = eps * float((v[0] - v[1]).abs().sum())
    scores = torch.cat([margins(rows.x, v, rows.y) - fall for rows in (inside, outside)])
    expected = m.best_threshold(scores.numpy(), (torch.arange(80) < 40).numpy())
    attack = AdversarialMIA(eps=eps, step_size=0.01, steps=10)
    for asked, access in ((cloud(30, 2), GRANTED), (cloud(50, 6), Access.POSTERIORS)):
        answer, _ = play(attack, linear(w), linear(v), (inside, outside), asked, access=access)
        threshold = float(answer.notes["threshold"])
        assert threshold == pytest.approx(expected.overall, abs=1e-3)
        assert answer.decisions is not None
        assert torch.equal(answer.decisions, answer.scores >= threshold)
    swapped, _ = play(attack, linear(w), linear(v), (outside, inside), asked)
    assert swapped.notes["threshold"] != pytest.approx(expected.overall, abs=1e-3)


# ---- targeted ------------------------------------------------------------------------------------


def test_wrong_classes_in_order() -> None:
    assert others(torch.tensor([0, 1, 3]), 4).tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 2]]
    assert others(torch.tensor([1, 0]), 2).tolist() == [[0], [1]]


def test_slots() -> None:
    y = torch.tensor([0, 0, 1, 2, 2, -1, -1])
    inside = torch.tensor([0, 1, 1, 1, 0, 0, 1])
    assert slots(y, inside, 4).tolist() == [1, 0, 2, 0, 0]


def test_features_are_posteriors_of_one_example_per_wrong_class() -> None:
    """Against a loop over classes and rows."""
    w, asked = weights(0, 3), cloud(8, 2, 3)
    victim = linear(w)
    attack = AdversarialMIATargeted()
    oracle = narrow(victim, GRANTED)
    ctx: Any = SimpleNamespace(card=victim.card, device=torch.device("cpu"))
    found = attack._features(oracle, asked, of_model(victim.model), ctx)
    assert found.shape == (8, 2 * 3)
    gradient = of_network(lambda x: x @ w.T)
    for i in range(8):
        expected = []
        for target in range(3):
            if target == int(asked.y[i]):
                continue
            made = pgd(
                asked.x[i : i + 1], torch.tensor([target]), gradient, eps=8 / 255,
                step_size=1 / 255, steps=20, targeted=True,
            )  # fmt: skip
            expected.append((made @ w.T).softmax(1)[0])
        torch.testing.assert_close(found[i], torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert oracle.queries == 8 * 2


def opposed(n: int, seed: int) -> tuple[Examples, Examples]:
    """Sure of class 0 means member for true class 0 and nonmember for true class 1."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.02 * torch.rand(2, n, 2, generator=generator)
    x[0, :, 0] += 0.9  # sure
    x[1, :, 0] += 0.3
    y = torch.arange(n) % 2
    first = (y == 0)[:, None]
    return (
        Examples.of(torch.where(first, x[0], x[1]), y, scale=1.0),
        Examples.of(torch.where(first, x[1], x[0]), y, scale=1.0),
    )


def accuracy(answer: Membership, members: int) -> float:
    assert answer.decisions is not None
    truth = torch.arange(len(answer.decisions)) < members
    return float((answer.decisions == truth).float().mean())


def test_networks_are_per_true_class_and_learn_from_the_shadow() -> None:
    model = linear(torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
    attack = AdversarialMIATargeted(eps=0.0, updates=300)  # else the way shows the class
    asked = join(opposed(40, 1))
    answer, _ = play(attack, model, model, opposed(40, 0), asked)
    assert accuracy(answer, 40) == 1
    assert answer.notes["attack models"] == 2
    swapped, _ = play(attack, model, model, opposed(40, 0)[::-1], asked)
    assert accuracy(swapped, 40) == 0


def test_a_class_of_one_side_goes_to_the_network_of_all() -> None:
    model = linear(torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
    inside, outside = opposed(40, 0)
    known = inside.select(inside.y == 0), outside
    answer, _ = play(AdversarialMIATargeted(updates=100), model, model, known, join(opposed(40, 1)))
    assert answer.notes["attack models"] == 1
    assert answer.scores.isfinite().all()
