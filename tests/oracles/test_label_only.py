"""Label-only attacks: exact copies, exact shares and distances, and what the victim is asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import ndimage
from tests.oracles.toy_cell import toy_cell
from torch import Tensor, nn

from privbench import (
    Access,
    AttackContext,
    Card,
    Examples,
    Membership,
    MembershipAttack,
    MembershipQuestion,
    Model,
    Oracle,
    Protocol,
    Shadow,
    World,
)
from privbench.measure.data.examples import join
from privbench.measure.games import metrics as m
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox import copies
from privbench_plugins.attacks.label_lira import LabelLiRA
from privbench_plugins.attacks.label_only_augment import (
    LabelOnlyAugment,
    classes_of_both,
    moved,
    rotated,
    shifts,
    slots,
    translated,
)
from privbench_plugins.attacks.label_only_boundary import LabelOnlyBoundary
from privbench_plugins.attacks.label_only_noise import LabelOnlyNoise
from privbench_plugins.attacks.label_only_transfer import LabelOnlyTransfer, losses

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK: dict[str, dict[str, Any]] = {
    "label-only-augment": {"steps": 150, "epochs": 1},
    "label-only-boundary": {"iterations": 2, "init_eval": 50},
    "label-lira": {"k": 6, "queries": 60, "variance": "per-example"},
}
ATTACKS: list[MembershipAttack] = [
    LabelOnlyAugment(), LabelOnlyBoundary(), LabelOnlyNoise(), LabelOnlyTransfer(), LabelLiRA(),
]  # fmt: skip


class Rule:
    """A victim of two classes, or more, by a rule; knows the range that it was asked in."""

    grants = Access.LABELS
    key = None

    def __init__(self, card: Card, rule: Callable[[Tensor], Tensor]) -> None:
        self.card, self.rule = card, rule
        self.seen: list[Tensor] = []

    def log_posteriors(self, x: Tensor) -> Tensor:
        x = x.float()
        assert float(x.min()) >= 0
        assert float(x.max()) <= 1
        assert x.shape[1:] == self.card.shape
        self.seen.append(x)
        hot = nn.functional.one_hot(self.rule(x), self.card.classes or 2)
        return (0.1 + hot.double()).log_softmax(1)


def card(kind: Any, *shape: int, classes: int = 2) -> Card:
    return Card(
        name="toy", kind=kind, shape=shape, classes=classes, scale=1.0, sources={"all": 400}
    )


def rows(x: Tensor, y: Tensor) -> Examples:
    return Examples.of(x.float(), y, scale=1.0)


def play(
    attack: MembershipAttack,
    served: Rule,
    asked: Examples,
    *,
    known: tuple[Examples, Examples] | None = None,
    own: Examples | None = None,
    train: Any = None,
) -> tuple[Membership, Oracle, AttackContext]:
    """Put the question; ``known`` are the members and nonmembers of a shadow that is alike."""

    def oracle() -> Oracle:
        return Oracle(served, Access.LABELS, asker="test")  # type: ignore[arg-type]

    shadows: tuple[Shadow, ...] = ()
    if known is not None:
        world = World({"members": known[0]}, "offline", 0, 0)
        shadows = (Shadow(world, known[1], oracle(), None),)  # type: ignore[arg-type]
    ctx = AttackContext(
        card=served.card, protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1),
        sensitive=(), device=torch.device("cpu"), store=None, seed=0, scope="test",
        shadows=shadows, auxiliary=asked if own is None else own, auxiliary_oracle=oracle(),
        data_seed=0, train=train,
    )  # fmt: skip
    victim = oracle()
    return attack.answer(victim, MembershipQuestion(asked, "encoder"), ctx), victim, ctx


def accuracy(answer: Membership, members: int) -> float:
    assert answer.decisions is not None
    truth = torch.arange(len(answer.decisions)) < members
    return float((answer.decisions == truth).float().mean())


# ---- all of them ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_planted_and_null_victim(attack: MembershipAttack) -> None:
    attack = attack.replace(**QUICK.get(attack.name, {}))
    split = tiny_split()

    def auc(served: Any) -> m.Estimate:
        oracle, ctx = arena(attack, served)
        question = MembershipQuestion(split.candidates.without_attributes(), "encoder")
        return m.auc(attack.answer(oracle, question, ctx).scores.numpy(), split.member.numpy())

    # the kit's auxiliary rows are too sparse for a better transfer: see the nearest neighbour
    assert auc(memoriser(split.victim())).value > (0.8 if "transfer" in attack.name else 0.9)
    null = auc(memoriser(split.null()))
    assert null.value == pytest.approx(0.5, abs=auc_band(80, 80))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_rows_without_labels_are_answered(attack: MembershipAttack) -> None:
    attack = attack.replace(**QUICK.get(attack.name, {}))
    split = tiny_split()
    oracle, ctx = arena(attack, memoriser(split.victim()))
    asked = split.candidates.select(slice(0, 20))
    blank = asked.with_y(torch.where(torch.arange(20) < 10, -1, asked.y))
    scores = attack.answer(oracle, MembershipQuestion(blank, "encoder"), ctx).scores
    assert scores.isfinite().all()
    labelled = asked.select(slice(10, 20))
    alone = attack.answer(oracle, MembershipQuestion(labelled, "encoder"), ctx).scores
    torch.testing.assert_close(scores[10:], alone)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_unfit(attack: MembershipAttack) -> None:
    without = toy_cell(card=Card(
        name="bare", kind="image", shape=(1, 2, 2), classes=None, scale=1, sources={"all": 1}
    ))  # fmt: skip
    assert "bare" in (reason_to_skip(attack, without) or "")
    table = reason_to_skip(attack, toy_cell(card=card("binary", 4)))
    assert (table is None) == (attack.name != "label-only-augment")


# ---- augmentation --------------------------------------------------------------------------------


def test_number_of_copies() -> None:
    for d, count in ((0, 0), (1, 4), (2, 8), (3, 12)):
        pairs = shifts(d)
        assert len(set(pairs)) == len(pairs) == count
        assert all(abs(dx) + abs(dy) == d for dx, dy in pairs)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for r, d in ((0, 0), (1, 0), (9, 1), (2, 2)):
        made = moved(x, r, d)
        assert made.shape == (2, 1 + 2 * r + 4 * d, 3, 8, 8)
        assert torch.equal(made[:, 0], x)
    assert len(torch.unique(moved(x, 1, 0)[0], dim=0)) == 3  # r = 1 is three pictures, not one


def test_translation_is_exact_and_continues_the_border() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3)
    assert translated(x, 1, 0)[0, 0].tolist() == [[0, 0, 1], [3, 3, 4], [6, 6, 7]]
    assert translated(x, 0, -1)[0, 0].tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8]]
    x = torch.rand(1, 1, 5, 7, generator=torch.Generator().manual_seed(0))
    for dx, dy in shifts(3):
        same = ndimage.shift(x[0, 0].numpy(), (dy, dx), order=0, mode="nearest")
        assert torch.equal(translated(x, dx, dy)[0, 0], torch.from_numpy(same))


def test_rotation() -> None:
    x = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotated(x, 90.0), x.rot90(1, (2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotated(x, 0.0), x, atol=1e-6, rtol=0)
    wide = torch.rand(1, 1, 9, 14, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rotated(wide, 180.0), wide.flip(2, 3), atol=1e-5, rtol=0)
    for degrees in (7.0, -30.0):
        same = ndimage.rotate(
            wide[0, 0].double().numpy(), degrees, reshape=False, order=1, mode="nearest"
        )
        torch.testing.assert_close(
            rotated(wide, degrees)[0, 0].double(), torch.from_numpy(same), atol=1e-5, rtol=0
        )


PICTURE = card("image", 1, 6, 6)


def pictures(y: Tensor, robust: Tensor) -> Examples:
    """Class 1 is bright at (3, 3); a robust picture is so everywhere, a fragile one only there."""
    level = torch.where(y == 1, 0.8, 0.2)
    rest = torch.where(robust, level, 1 - level)
    x = rest[:, None, None, None].expand(-1, 1, 6, 6).clone()
    x[:, 0, 3, 3] = level
    return rows(x, y)


def bright() -> Rule:
    return Rule(PICTURE, lambda x: (x[:, 0, 3, 3] > 0.5).long())


def opposed(n: int) -> tuple[Examples, Examples]:
    """Members of class 0 are robust, those of class 1 fragile; nonmembers the other way round."""
    y = torch.arange(n) % 2
    return pictures(y, y == 0), pictures(y, y == 1)


def test_networks_are_per_true_class() -> None:
    known = opposed(40)
    attack = LabelOnlyAugment(steps=200, epochs=1)
    answer, oracle, _ = play(attack, bright(), join(known), known=known)
    assert accuracy(answer, 40) == 1
    assert answer.notes["attack models"] == 2
    assert oracle.queries == 80 * 23
    answer, *_ = play(attack, bright(), join(known), known=known[::-1])
    assert accuracy(answer, 40) == 0  # roles swapped


def test_bits_are_by_the_true_label() -> None:
    """Members are what a constant victim is right about, and it is not what it predicts."""
    constant = Rule(PICTURE, lambda x: torch.zeros(len(x), dtype=torch.int64))
    x = torch.full((40, 1, 6, 6), 0.5)
    right, wrong = rows(x, torch.zeros(40).long()), rows(x, torch.ones(40).long())
    attack = LabelOnlyAugment(steps=200, epochs=1)
    bits = attack._bits(Oracle(constant, Access.LABELS, asker="test"), join([right, wrong]))  # type: ignore[arg-type]
    assert bits[:40].eq(1).all()
    assert bits[40:].eq(0).all()
    # neither class has both sides: the network of all classes answers
    answer, *_ = play(attack, constant, join([right, wrong]), known=(right, wrong))
    assert answer.notes["attack models"] == 0
    assert accuracy(answer, 40) == 1


def test_slots() -> None:
    y = torch.tensor([0, 0, 1, 2, 2, -1, -1])
    both = classes_of_both(y, torch.tensor([0, 1, 1, 1, 0, 0, 1]))
    assert both.tolist() == [0, 2]
    assert slots(torch.tensor([2, 1, 0, -1, 9]), both).tolist() == [2, 0, 1, 0, 0]
    assert slots(y, both[:0]).tolist() == [0] * 7


# ---- noise ---------------------------------------------------------------------------------------


def plane(d: int, scale: float = 1.0) -> tuple[Rule, Tensor]:
    """Class 1 where w (x - 0.5) > 0, with w = (3, 4, 0, ...), of norm 5."""
    w = torch.zeros(d)
    w[:2] = torch.tensor([3.0, 4.0]) * scale
    return Rule(card("real", d), lambda x: ((x - 0.5) @ w > 0).long()), w / w.norm()


def at(margins: Tensor, normal: Tensor) -> Examples:
    """Rows of class 1 whose distances to the plane are these; negative: misclassified."""
    return rows(0.5 + margins[:, None] * normal, torch.ones(len(margins)).long())


def test_share_of_a_linear_model_under_gaussian_noise() -> None:
    served, normal = plane(3)
    sigma, n = 0.1, 5000
    margins = torch.tensor([-0.1, 0.0, 0.05, 0.1, 0.2])
    asked = at(margins, normal)
    attack = LabelOnlyNoise(copies=n, sigmas=(sigma,))
    answer, oracle, _ = play(attack, served, asked, known=(asked, asked))
    exact = 0.5 * (1 + torch.erf(margins / sigma / math.sqrt(2))).double()
    error = 3 * (exact * (1 - exact) / n).sqrt()
    assert ((answer.scores - exact).abs() <= error + 1e-3).all()
    assert answer.scores.dtype == torch.float64
    assert oracle.queries == 5 * n


def test_flips() -> None:
    table = card("binary", 10)
    served = Rule(table, lambda x: x[:, 0].long())
    x = (torch.rand(6, 10, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    asked = rows(x, x[:, 0].long())
    attack = LabelOnlyNoise(copies=5000, flips=(2,))
    answer, *_ = play(attack, served, asked, known=(asked, asked))
    assert (answer.scores - 0.8).abs().max() <= 3 * (0.8 * 0.2 / 5000) ** 0.5
    asked_about = torch.cat(served.seen)
    assert set(asked_about.flatten().tolist()) == {0.0, 1.0}
    flips = torch.tensor([[True, False], [True, True], [False, False]])
    assert copies.flipped(torch.tensor([[0.0, 1.0]]), flips).tolist() == [[[1, 1], [1, 0], [0, 1]]]


def test_level_and_threshold_come_from_the_shadow() -> None:
    served, normal = plane(3)
    far, near = at(torch.full((40,), 0.2), normal), at(torch.full((40,), 0.05), normal)
    attack = LabelOnlyNoise(sigmas=(0.001, 0.1, 10.0))
    answer, oracle, _ = play(attack, served, join([far, near]), known=(far, near))
    assert answer.notes["level"] == 0.1
    assert accuracy(answer, 40) == 1
    assert oracle.queries == 80 * 100  # the victim is asked at one level only
    answer, *_ = play(attack, served, join([far, near]), known=(near, far))
    assert accuracy(answer, 40) <= 0.5  # roles swapped: farther means less of a member


def test_noise_is_shared_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    served, normal = plane(3)
    asked = at(torch.linspace(-0.1, 0.2, 30), normal)
    attack = LabelOnlyNoise(copies=50, sigmas=(0.1,))
    scores = play(attack, served, asked, known=(asked, asked))[0].scores
    assert (scores.diff() >= 0).all()  # the same noise at a larger margin flips no more
    monkeypatch.setattr(copies, "BLOCK", 1)
    assert torch.equal(play(attack, served, asked, known=(asked, asked))[0].scores, scores)


# ---- noise, judged against shadows ---------------------------------------------------------------


def coded(n: int) -> Examples:
    """Rows of class 1 at margins from .06 to .36; 60 more inputs tell which row it is."""
    generator = torch.Generator().manual_seed(0)
    codes = (torch.rand(n, 60, generator=generator) < 0.5).float()
    return rows(torch.cat([torch.linspace(0.56, 0.86, n)[:, None], codes], 1), torch.ones(n).long())


def robust(asked: Examples, held: Tensor) -> Rule:
    """A plane at .5 of the first input that is .05 farther away from rows that are held."""

    def rule(x: Tensor) -> Tensor:
        row = torch.cdist(x[:, 1:], asked.x[:, 1:]).argmin(1)
        return (x[:, 0] - 0.5 + 0.05 * held[row] > 0).long()

    return Rule(card("real", 61), rule)


def judged(attack: LabelLiRA, asked: Examples, inside: Tensor) -> tuple[Membership, Oracle]:
    """Put the question about the first model of inside (k + 1, n); the others are shadows."""
    victim, *shadows = (
        Oracle(robust(asked, held), Access.LABELS, asker="test")  # type: ignore[arg-type]
        for held in inside
    )
    untrained: Any = None
    parts = [(asked.select(held.nonzero()[:, 0]), asked.select((~held).nonzero()[:, 0]))
             for held in inside[1:]]  # fmt: skip
    ctx = AttackContext(
        card=card("real", 61), protocol=Protocol(name="toy", members=1, nonmembers=1, pool=1),
        sensitive=(), device=torch.device("cpu"), store=None, seed=0, scope="test",
        shadows=tuple(
            Shadow(World({"members": mine}, "online", i, 0), others, shadow, None)  # type: ignore[arg-type]
            for i, ((mine, others), shadow) in enumerate(zip(parts, shadows, strict=True))
        ),
        auxiliary=asked, auxiliary_oracle=victim, data_seed=0, train=untrained,
    )  # fmt: skip
    return attack.answer(victim, MembershipQuestion(asked, "encoder"), ctx), victim


def test_each_row_is_judged_against_its_own_shadows() -> None:
    """One threshold cannot tell a held row from one that is easy for every model; shadows can."""
    n, k = 40, 8
    asked = coded(n)
    inside = torch.stack([(torch.arange(n) + i // 2) % 2 == i % 2 for i in range(k + 1)])
    attack = LabelLiRA(k=k, levels=(0.1, 0.2, 0.4), queries=300)
    answer, victim = judged(attack, asked, inside)
    assert answer.decisions is not None
    assert torch.equal(answer.decisions, inside[0])
    assert victim.queries == 300 * n
    swapped, _ = judged(attack, asked, torch.cat([~inside[:1], inside[1:]]))
    assert swapped.decisions is not None
    assert torch.equal(swapped.decisions, ~inside[0])
    truth = inside[0].numpy()
    plain, *_ = play(LabelOnlyNoise(sigmas=(0.2,)), robust(asked, inside[0]), asked,
                     known=(asked, asked))  # fmt: skip
    assert m.auc(plain.scores.numpy(), truth).value < 0.75
    assert m.auc(answer.scores.numpy(), truth).value == 1


def test_levels_end_where_a_linear_model_loses_half_of_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a margin m and noise s it is right with Phi(m / s): .75 of two classes at s = 1.48 m."""
    served, normal = plane(3)
    monkeypatch.setattr(copies, "COPIES", 5000)
    every = at(torch.full((6,), 0.1), normal)
    own, held = every.select(slice(0, 2)), every.select(slice(2, 6))
    *_, ctx = play(LabelOnlyNoise(), served, held, known=(held, held), own=own)
    levels = copies.fitting_levels(ctx)
    assert levels[-1] == pytest.approx(0.5 * 2**-1.5)  # .177; Phi(m / .125) is .79
    assert [one / levels[-1] for one in levels] == pytest.approx([0.1, 0.3, 0.5, 0.7, 1])
    # No noise changes an answer that is always the same, and no shadow is asked about its members.
    *_, ctx = play(LabelOnlyNoise(), Rule(served.card, lambda x: torch.ones(len(x)).long()), held,
                   known=(held, held), own=own)  # fmt: skip
    assert copies.fitting_levels(ctx)[-1] == 0.5
    *_, ctx = play(LabelOnlyNoise(), served, held, known=(own, held), own=own)
    assert copies.fitting_levels(ctx)[-1] == 0.5
    # A model that is always wrong knows nothing.
    wrong = Rule(served.card, lambda x: 1 - served.rule(x))
    *_, ctx = play(LabelOnlyNoise(), wrong, held, known=(held, held), own=own)
    assert copies.fitting_levels(ctx)[-1] == 0.5


def test_levels_of_a_binary_table_are_numbers_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads one column of 20: right with 1 - k / 20 under k flips, .75 at k = 5."""
    monkeypatch.setattr(copies, "COPIES", 5000)
    every = rows(torch.ones(6, 20), torch.ones(6).long())
    own, held = every.select(slice(0, 2)), every.select(slice(2, 6))
    served = Rule(card("binary", 20), lambda x: x[:, 0].long())
    *_, ctx = play(LabelOnlyNoise(), served, held, known=(held, held), own=own)
    assert copies.fitting_levels(ctx)[-1] == pytest.approx(10 * 2**-0.5)  # 7.1; the next is 5


def test_log_odds_of_a_linear_model_and_the_ratio_by_hand() -> None:
    """The shares of a plane under noise are known; so are Gaussians of two shadows of a kind.

    The signal is the mean over two levels. The mean of two ratios would be a quarter larger.
    """
    asked = coded(4)
    inside = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])
    attack = LabelLiRA(k=4, levels=(0.6, 0.2), queries=80_000, variance="pooled")
    answer, _ = judged(attack, asked, inside.bool())
    margin = asked.x[:, 0].double() - 0.5
    shares = [[0.5 * (1 + torch.erf((margin + far) / level / math.sqrt(2))) for level in (0.6, 0.2)]
              for far in (0.05, 0)]  # fmt: skip
    held, free = (torch.stack([p.log() - (1 - p).log() for p in of]).mean(0) for of in shares)
    # Shadows of a kind agree, so the deviation is the least that is allowed: 1e-3.
    signal = torch.where(inside[0].bool(), held, free)
    exact = ((signal - free).square() - (signal - held).square()) / 2 / 1e-6
    assert (answer.scores / exact - 1).abs().max() < 0.15


def test_rows_without_labels_are_no_members_under_shadows() -> None:
    asked = coded(6)
    inside = torch.stack([(torch.arange(6) + i // 2) % 2 == i % 2 for i in range(5)])
    blank = asked.with_y(torch.tensor([-1, 1, 1, 1, 1, -1]))
    answer, _ = judged(LabelLiRA(k=4, queries=60), blank, inside)
    assert answer.decisions is not None
    assert answer.scores[[0, 5]].tolist() == [0, 0]
    assert not answer.decisions[[0, 5]].any()


def test_distances_as_the_signal_and_their_budget() -> None:
    served, normal = plane(8)
    margins = torch.tensor([-0.1, 0.05, 0.1, 0.2])
    attack = LabelLiRA(signal="boundary", queries=400)
    _, oracle, ctx = play(
        LabelOnlyNoise(), served, at(-margins, normal), known=(at(margins, normal),) * 2
    )
    before = oracle.queries
    found = attack._distance(oracle, at(margins, normal), ctx)
    assert found.shape == (4, 1)
    assert found[0] == 0
    torch.testing.assert_close(found[1:, 0].float(), margins[1:], atol=0.02, rtol=0.1)
    assert oracle.queries - before <= 4 * 400 + 100
    split = tiny_split()
    fewer = attack.replace(k=6, queries=60)
    oracle, ctx = arena(fewer, memoriser(split.victim()))
    question = MembershipQuestion(split.candidates.without_attributes(), "encoder")
    scores = fewer.answer(oracle, question, ctx).scores
    assert m.auc(scores.numpy(), split.member.numpy()).value > 0.9


# ---- boundary ------------------------------------------------------------------------------------


def test_distances_of_a_linear_model() -> None:
    served, normal = plane(8)
    margins = torch.linspace(-0.1, 0.3, 41)
    asked, known = at(margins, normal), at(torch.tensor([0.25] * 20), normal)
    other = at(torch.tensor([0.05] * 20), normal)
    attack = LabelOnlyBoundary(iterations=12)
    answer, oracle, _ = play(attack, served, asked, known=(known, other))
    right = margins > 1e-3
    exact = margins[right].double()
    assert (answer.scores[margins < -1e-3] == 0).all()
    assert (answer.scores[right] >= exact * (1 - 1e-4)).all()
    assert (answer.scores[right] <= exact * 1.1 + 1e-3).all()
    assert answer.decisions is not None
    assert not answer.decisions[margins < 0.14].any()  # the middle between .05 and .25 is .15
    assert answer.decisions[margins > 0.17].all()
    assert answer.notes["failures"] == 0
    starts = 2 * attack.starts - (attack.starts - len(asked))  # noise and all own rows
    assert oracle.queries == starts + round(float(answer.notes["queries"]) * len(asked))
    assert attack.shadows.count == 1
    assert attack.max_rows == 500


def test_shadow_is_asked_about_half_the_rows_on_either_side() -> None:
    served, normal = plane(4)
    known = at(torch.full((60,), 0.2), normal), at(torch.full((60,), 0.1), normal)
    own = at(torch.tensor([-0.2, 0.2]), normal)
    attack = LabelOnlyBoundary(iterations=1, rows=20, starts=2)
    _, _, ctx = play(attack, served, known[0].select(slice(0, 1)), known=known, own=own)
    # per row: its label, two bisections of eight, 100 directions, a step or a few
    cost = 20 * (1 + 2 * 8 + 100) + 4
    assert cost + 20 <= ctx.shadows[0].oracle.queries <= cost + 20 * 4


def test_threshold_from_noise_needs_no_shadow() -> None:
    served, normal = plane(8)
    asked = at(torch.linspace(0.01, 0.3, 20), normal)
    attack = LabelOnlyBoundary(iterations=12, calibration="noise")
    assert attack.shadows.count == 0
    answer, _, ctx = play(attack, served, asked)
    noise = torch.rand(100, 8, generator=ctx.generator("calibration"))
    exact = ((noise - 0.5) @ normal).abs().double()
    threshold = float(answer.notes["threshold"])
    assert float(exact.median()) <= threshold <= float(exact.median()) * 1.1
    assert answer.decisions is not None
    assert torch.equal(answer.decisions, answer.scores >= threshold)
    high, *_ = play(attack.replace(percentile=90), served, asked)
    assert float(high.notes["threshold"]) == pytest.approx(float(exact.quantile(0.9)), rel=0.1)


def test_failed_rows_have_the_largest_distance() -> None:
    """All inputs are of class 1 but those of the adversary's own, if it has one such."""
    served = Rule(card("real", 4), lambda x: (x.amin(1) < 0.9).long())
    asked = rows(torch.full((6, 4), 0.5), torch.tensor([1, 1, 1, 1, 0, 0]))
    attack = LabelOnlyBoundary(calibration="noise", noise=3)
    dim = rows(torch.zeros(3, 4), torch.ones(3).long())
    failed, oracle, _ = play(attack, served, asked, own=dim)
    assert failed.notes["failures"] == 4
    assert failed.scores.tolist() == [2.0] * 4 + [0.0] * 2  # the diagonal of a cube in 4 dimensions
    assert oracle.queries == (103 + 6) + (103 + 3)
    light = rows(torch.full((1, 4), 0.95), torch.zeros(1).long())
    found, *_ = play(attack, served, asked, own=light)
    assert found.notes["failures"] == 0
    assert (found.scores[:4] >= 0.8 * (1 - 1e-4)).all()  # 0.4 in each of four columns
    assert (found.scores[:4] <= 0.9).all()


def test_budget_of_the_attack() -> None:
    served, normal = plane(8)
    asked = at(torch.linspace(0.01, 0.3, 20), normal)
    answer, *_ = play(LabelOnlyBoundary(budget=200), served, asked, known=(asked, asked))
    assert 100 < float(answer.notes["queries"]) <= 200


# ---- transfer ------------------------------------------------------------------------------------


class Nearest(nn.Module):
    """Logits by the label of the nearest of its rows."""

    width = 2
    x: Tensor
    y: Tensor

    def __init__(self, known: Examples, classes: int) -> None:
        super().__init__()
        self.register_buffer("x", known.x)
        self.register_buffer("y", 8 * nn.functional.one_hot(known.y, classes).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.y[torch.cdist(x, self.x).argmin(1)]


def test_transfer_from_a_nearest_neighbour() -> None:
    """60 members in the plane with random labels, and 4,000 rows to learn their regions from."""
    k = 10
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(120, 2, generator=generator), torch.randint(k, (120,), generator=generator)
    asked = rows(x, y)
    toy = card("real", 2, classes=k)
    memory = Nearest(asked.select(slice(0, 60)), k)
    served = Rule(toy, lambda inputs: memory(inputs).argmax(1))
    own = rows(torch.rand(4000, 2, generator=generator), torch.zeros(4000).long())
    trained: list[Examples] = []

    def train(examples: Examples, target: Any) -> Model:
        assert target is None
        trained.append(examples)
        return Model(toy, {"encoder": nn.Identity(), "classifier": Nearest(examples, k)})

    answer, oracle, _ = play(LabelOnlyTransfer(), served, asked, own=own, train=train)
    member = (torch.arange(120) < 60).numpy()
    assert m.auc(answer.scores.numpy(), member).value > 0.9
    assert answer.decisions is None
    assert oracle.queries == 4000  # none about the rows in question
    assert torch.equal(trained[0].y, memory(own.x).argmax(1))  # the victim's labels, not theirs
    assert own.y.eq(0).all()
    # another victim, with other members, has nothing to tell of these
    memory = Nearest(rows(torch.rand(60, 2, generator=generator), y[60:].roll(1)), k)
    null, *_ = play(LabelOnlyTransfer(), served, asked, own=own, train=train)
    found = m.auc(null.scores.numpy(), member)
    assert found.value == pytest.approx(0.5, abs=auc_band(60, 60))


def test_losses_are_exact_and_do_not_saturate() -> None:
    model = Model(card("real", 2), {"encoder": nn.Identity(), "classifier": nn.Identity()})
    x = torch.tensor([[0.0, 1000.0], [0.0, 1000.0], [0.0, 60.0], [0.0, 50.0], [1.0, 1.0]])
    found = losses(model, rows(x, torch.tensor([0, 1, 1, 1, -1])))
    assert found.dtype == torch.float64
    assert found[:2].tolist() == [1000.0, 0.0]
    assert found[4].item() == pytest.approx(math.log(2))
    close = torch.tensor([[0.0, 20.0], [0.0, 30.0]])
    assert float(losses(model, rows(close, torch.ones(2).long())).diff()) < 0
