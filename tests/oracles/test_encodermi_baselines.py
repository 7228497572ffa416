"""EncoderMI's baselines: whose rows, whose classifier, which features; planted encoders."""

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
    BadInputError,
    Examples,
    MembershipQuestion,
    Model,
    Oracle,
    Protocol,
    Shadow,
    World,
)
from privbench.measure.data.split import Split, cut
from privbench.measure.games import metrics as m
from privbench.measure.victims.served import Victim
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import TinyImages, arena, auc_band, memoriser, tiny_split
from privbench.toolbox.classifiers import scale
from privbench.toolbox.pgd import of_network, pgd
from privbench_plugins.attacks.encodermi_baselines import (
    Downstream,
    EncoderMIBaselineA,
    EncoderMIBaselineB,
    EncoderMIBaselineC,
    bits,
    downstream_rows,
)

QUICK = {"epochs": 60, "updates": 0, "lr": 1e-3, "head_updates": 100}
ATTACKS: list[Any] = [
    attack.replace(**QUICK)
    for attack in (EncoderMIBaselineA(), EncoderMIBaselineB(), EncoderMIBaselineC())
]
K = 4


class Recalls(nn.Module):
    """Embedding (n, 16) that says the class of a row, loud near members, noisy elsewhere.

    The class is the brightest quarter of the picture; near a member, that member's. ``turn`` is a
    rotation of the embedding, so that a classifier of one encoder is of no use on another.
    """

    width = 16
    members: Tensor
    labels: Tensor
    waves: Tensor
    turn: Tensor

    def __init__(self, members: Examples, turn: int) -> None:
        super().__init__()
        self.register_buffer("members", members.x.flatten(1).float() / members.scale)
        self.register_buffer("labels", nn.functional.one_hot(members.y, K).float())
        generator = torch.Generator().manual_seed(7)
        self.register_buffer("waves", 6 * torch.randn(64, 16, generator=generator))
        drawn = torch.randn(16, 16, generator=torch.Generator().manual_seed(turn))
        self.register_buffer("turn", torch.linalg.qr(drawn).Q)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        distance = torch.cdist(flat, self.members)
        near = (10 * (1.2 - distance.amin(1, keepdim=True))).sigmoid()
        remembered = (-10 * distance).softmax(1) @ self.labels - 1 / K
        said = (20 * quarters(x)).softmax(1) - 1 / K
        noise = (flat @ self.waves).sin()
        loud = nn.functional.pad(near * 2 * remembered + (1 - near) * said / 2, (0, 12))
        return (loud + (1 - near) * noise) @ self.turn


def quarters(x: Tensor) -> Tensor:
    return nn.functional.avg_pool2d(x.float(), 4).flatten(1)


def split() -> Split:
    """The kit's pictures, of the class of their brightest quarter."""
    data = TinyImages()
    rows = data.load(None)
    card = replace(data.card(None), classes=K)
    return cut(rows.with_y(quarters(rows.x).argmax(1)), card, data.protocols["default"], 0)


def recaller(world: World, parts: Split, turn: int) -> Victim:
    made = Model(parts.card, {"encoder": Recalls(world.members, turn)})
    made.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    return Victim(parts.card, made, key=f"recalls {turn}", grants=Access.EMBEDDINGS)


def stage(
    served: Victim, parts: Split, *, swapped: bool = False
) -> tuple[Oracle, AttackContext, MembershipQuestion]:
    world, others = parts.offline(0)
    made = recaller(world, parts, turn=2)
    if swapped:
        world, others = world.replace(members=others), world.members
    shadow = Shadow(world, others, Oracle(made, made.grants, asker="test"), made.model)
    ctx = AttackContext(
        card=parts.card, protocol=parts.protocol, sensitive=(), device=torch.device("cpu"),
        store=None, seed=0, scope="test", shadows=(shadow,), auxiliary=parts.pool,
        auxiliary_oracle=Oracle(served, Access.EMBEDDINGS, asker="test"), data_seed=0,
        train=None,  # type: ignore[arg-type]
    )  # fmt: skip
    question = MembershipQuestion(parts.candidates.without_attributes(), "encoder")
    return Oracle(served, Access.EMBEDDINGS, asker="test"), ctx, question


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_planted_and_null_encoder(attack: Any) -> None:
    parts = split()

    def auc(world: World, **how: bool) -> m.Estimate:
        oracle, ctx, question = stage(recaller(world, parts, turn=1), parts, **how)
        answer = attack.answer(oracle, question, ctx)
        costs = {"encodermi-baseline-a": 1, "encodermi-baseline-b": 11}
        assert oracle.queries == 160 * costs.get(attack.name, K)
        assert ctx.auxiliary_oracle.queries == answer.notes["downstream rows"] == 400 - 2 * 80
        return m.auc(answer.scores.numpy(), parts.member.numpy())

    # over 8 seeds of the kit the weakest was .90; with other shadows of this split .87 was seen
    assert auc(parts.victim()).value > 0.75
    null = auc(parts.null())
    assert null.value == pytest.approx(0.5, abs=auc_band(80, 80))
    if attack.name == "encodermi-baseline-a":  # it learns from the shadow
        assert auc(parts.victim(), swapped=True).value < 0.25


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_labels_of_the_rows_asked_about(attack: Any) -> None:
    """Only B reads them; it answers rows without one."""
    attack = attack.replace(epochs=20, updates=0, head_epochs=20, head_updates=0)
    kit = tiny_split()
    oracle, ctx = arena(attack, memoriser(kit.victim()))
    asked = kit.candidates.select(slice(0, 20))
    blank = asked.with_y(torch.where(torch.arange(20) < 10, -1, asked.y))
    scores = attack.answer(oracle, MembershipQuestion(blank, "encoder"), ctx).scores
    assert scores.isfinite().all()
    full = attack.answer(oracle, MembershipQuestion(asked, "encoder"), ctx).scores
    torch.testing.assert_close(scores[10:], full[10:])
    assert torch.allclose(scores, full, atol=1e-4) == (attack.name[-1] != "b")


def cell(**fields: Any) -> Any:
    protocol = Protocol(name="toy", members=80, nonmembers=80, pool=400)
    return toy_cell(**{"card": tiny_split().card, "protocol": protocol, "pool": None, **fields})


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_unfit(attack: Any) -> None:
    assert reason_to_skip(attack, cell()) is None
    card = tiny_split().card
    assert "two classes" in str(reason_to_skip(attack, cell(card=replace(card, classes=None))))
    bare = {"members": 80, "nonmembers": 80, "reference": 40}
    tight = Protocol(name="tight", **bare, pool=160 + 9, test=9)  # type: ignore[arg-type]
    with pytest.raises(BadInputError):
        tight.sizes(card)  # a reference of the shadow's would not fit
    tight = Protocol(name="tight", members=80, nonmembers=80, pool=160 + 9)
    assert "9 rows" in str(reason_to_skip(attack, cell(protocol=tight)))  # for ten classes
    roomy = Protocol(name="roomy", members=80, nonmembers=80, pool=160 + 10)
    assert reason_to_skip(attack, cell(protocol=roomy)) is None
    given = Protocol(name="given", members=80, nonmembers=80, pool=160, downstream=50)
    assert reason_to_skip(attack, cell(protocol=given)) is None
    # another dataset's pool is all the rows that it has; its classes are others
    foreign = reason_to_skip(
        attack, cell(protocol=tight, adversary=SimpleNamespace(dataset="other", target=None))
    )
    assert (foreign is None) == (attack.name[-1] != "b")
    unlabelled = cell(
        adversary=SimpleNamespace(dataset="x", target=None), pool=replace(card, classes=None)
    )
    assert reason_to_skip(attack, unlabelled) is not None
    if attack.name[-1] != "b":
        assert "have no labels" in str(reason_to_skip(attack, unlabelled))
    table = reason_to_skip(attack, cell(card=replace(card, kind="binary")))
    assert (table is None) == (attack.name[-1] != "b")


# ---- downstream ----------------------------------------------------------------------------------


def test_downstream_rows_are_of_neither_side() -> None:
    parts = split()
    world, others = parts.offline(0)
    shadow: Any = SimpleNamespace(world=world, nonmembers=others)
    rows = downstream_rows(shadow, parts.pool)
    assert len(rows) == 400 - 2 * 80
    assert not world.contains(rows).any()
    assert not torch.isin(rows.index, others.index).any()
    assert torch.isin(rows.index, parts.pool.index).all()
    part = parts.test.select(slice(0, 30))
    given: Any = SimpleNamespace(world=world.replace(downstream=part), nonmembers=others)
    assert torch.equal(downstream_rows(given, parts.pool).index, part.index)
    half = part.with_y(torch.where(torch.arange(30) < 15, -1, part.y))
    given.world = world.replace(downstream=half)
    assert torch.equal(downstream_rows(given, parts.pool).index, part.index[15:])
    for y in (torch.full((30,), -1), torch.full((30,), 2)):
        given.world = world.replace(downstream=part.with_y(y))
        with pytest.raises(BadInputError, match="two classes"):
            downstream_rows(given, parts.pool)


def test_a_downstream_classifier_reads_embeddings_as_they_are() -> None:
    """Trained on standardised ones: a far offset and a tiny scale do not matter."""

    class Shifted:
        def __init__(self, offset: float, size: float) -> None:
            self.offset, self.size, self.queries = offset, size, 0

        def embeddings(self, x: Any) -> Tensor:
            h = quarters(x.x / 255 if isinstance(x, Examples) else x)
            return torch.cat([self.offset + self.size * h, torch.full((len(h), 1), 7.0)], dim=1)

    parts = split()
    _, ctx, _ = stage(recaller(parts.victim(), parts, turn=1), parts)
    answers = []
    for offset, size in ((0.0, 1.0), (50.0, 0.5)):
        oracle: Any = Shifted(offset, size)
        head = EncoderMIBaselineA()._head(oracle, parts.pool, ctx)
        log_p = Downstream(oracle, head).log_posteriors(parts.test)
        torch.testing.assert_close(log_p.exp().sum(1), torch.ones(len(log_p)).double())
        assert (log_p.argmax(1) == parts.test.y).float().mean() > 0.9
        answers.append(log_p)
    torch.testing.assert_close(*answers, atol=0.05, rtol=0.01)


def test_scale_leaves_constants_alone() -> None:
    centre, spread = scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert centre.tolist() == [2, 5]
    assert spread.tolist() == [1, 1]


# ---- features ------------------------------------------------------------------------------------


class Fixed:
    """A downstream classifier whose logits are given by the sum of a picture."""

    def __init__(self, k: int) -> None:
        weight = torch.randn(k, 64, generator=torch.Generator().manual_seed(3))
        self.head = nn.Linear(64, k, bias=False).requires_grad_(False)
        self.head.weight.copy_(weight)
        self.seen: list[Tensor] = []

    def log_posteriors(self, x: Any) -> Tensor:
        x = x.x / 255 if isinstance(x, Examples) else x
        self.seen.append(x)
        logits: Tensor = self.head(x.flatten(1)).double()
        return logits.log_softmax(1)


def test_a_sorts_the_posteriors() -> None:
    rows = tiny_split().candidates.select(slice(0, 9))
    side: Any = Fixed(5)
    found = EncoderMIBaselineA()._features(side, rows, side, None)  # type: ignore[arg-type]
    p = side.log_posteriors(rows).exp()
    assert found.shape == (9, 5)
    assert (found[:, :-1] >= found[:, 1:]).all()
    torch.testing.assert_close(found.sum(1), torch.ones(9))
    torch.testing.assert_close(found[:, 0], p.amax(1).float())


def test_b_compares_the_row_and_its_views_with_the_true_class() -> None:
    predicted = torch.tensor([[2, 2, 0], [1, 2, 1], [0, 0, 1]])
    found = bits(predicted, torch.tensor([2, 2, -1]))
    assert found.tolist() == [[1, 1, 0], [0, 1, 0], [1, 1, 0]]
    parts = split()
    served = recaller(parts.victim(), parts, turn=1)
    oracle, ctx, _ = stage(served, parts)
    attack = EncoderMIBaselineB(e=3)
    rows = parts.candidates.select(slice(0, 20))
    side = Downstream(oracle, attack._head(ctx.auxiliary_oracle, parts.pool, ctx))
    found = attack._features(side, rows, side, ctx)
    assert found.shape == (20, 4)
    plain = side.log_posteriors(rows).argmax(1) == rows.y
    assert torch.equal(found[:, 0], plain.float())
    views = ctx.views(rows, attack.augmentation, 3).make(0, 20)
    right = side.log_posteriors(views).argmax(1).view(20, 3) == rows.y[:, None]
    assert torch.equal(found[:, 1:], right.float())


def test_c_puts_one_example_per_class_made_on_the_shadow() -> None:
    """Against a loop; the classes are all k, the true one too, and the gradient is the shadow's."""
    rows = tiny_split().candidates.select(slice(0, 6))
    mine, theirs = Fixed(3), Fixed(3)
    theirs.head.weight.neg_()
    model = SimpleNamespace(encode=lambda x: x.flatten(1))
    ctx: Any = SimpleNamespace(device=torch.device("cpu"), shadows=(SimpleNamespace(model=model),))
    found = EncoderMIBaselineC()._features(theirs, rows, mine, ctx)  # type: ignore[arg-type]
    assert found.shape == (6, 9)
    gradient = of_network(lambda x: mine.head(x.flatten(1)))
    x = rows.x / 255
    for target in range(3):
        made = pgd(
            x, torch.full((6,), target), gradient, eps=8 / 255, step_size=1 / 255, steps=20,
            targeted=True,
        )  # fmt: skip
        expected = theirs.log_posteriors(made).exp().float()
        torch.testing.assert_close(found[:, 3 * target : 3 * target + 3], expected)
    assert not mine.seen  # the shadow lends its gradient only
