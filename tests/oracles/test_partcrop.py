"""PartCrop by hand, and on a victim in which parts of members respond to the whole alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privbench import Access, Augmentation, BadInputError, Card, Dataset, Examples, Model, Protocol
from privbench.ground.store.source import digest
from privbench.measure.data.split import Split, cut
from privbench.measure.games.membership import MembershipGame, MembershipQuestion
from privbench.measure.games.metrics import Estimate
from privbench.measure.methods.context import AttackContext, Shadow
from privbench.measure.methods.oracle import Oracle
from privbench.measure.victims.served import Victim
from privbench.testing import CPU, auc_band
from privbench_plugins.attacks.partcrop import PartCrop, bell_curves, divergences, windows_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

QUICK = PartCrop(parts=32, steps=300, epochs=1)
ROWS = 500


# ---- the features by hand ------------------------------------------------------------------------


def test_divergences_by_hand() -> None:
    g = torch.Generator().manual_seed(0)
    parts, places = torch.randn(2, 3, 5, generator=g), torch.randn(2, 4, 5, generator=g)
    bells = bell_curves(3, 4, g)
    found = divergences(parts, places, bells)
    for row in range(2):
        even, bell = [], []
        for i in range(3):
            products = [math.exp(float(parts[row, i] @ places[row, j])) for j in range(4)]
            q = [one / sum(products) for one in products]
            even.append(sum(0.25 * math.log(0.25 / b) for b in q))
            shape = bells[i].tolist()
            bell.append(sum(a * math.log(a / b) for a, b in zip(shape, q, strict=True)))
        expected = [*sorted(even, reverse=True), *sorted(bell, reverse=True)]
        assert found[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_parts_in_another_order_change_what_is_even_in_nothing() -> None:
    g = torch.Generator().manual_seed(1)
    parts, places = torch.randn(4, 6, 5, generator=g), torch.randn(4, 9, 5, generator=g)
    bells = bell_curves(6, 9, g)
    order = torch.randperm(6, generator=g)
    plain = divergences(parts, places, bells)
    moved = divergences(parts[:, order], places, bells)
    assert torch.allclose(plain[:, :6], moved[:, :6], atol=1e-5)
    assert not torch.allclose(plain[:, 6:], moved[:, 6:], atol=1e-3)  # part i has bell i
    assert torch.allclose(plain, divergences(parts[:, order], places, bells[order]), atol=1e-5)
    shuffled = places[:, torch.randperm(9, generator=g)]
    assert torch.allclose(plain[:, :6], divergences(parts, shuffled, bells)[:, :6], atol=1e-5)


def test_bells_rise_to_the_middle_and_fall() -> None:
    bells = bell_curves(50, 16, torch.Generator().manual_seed(0))
    assert torch.allclose(bells.sum(1), torch.ones(50))
    steps = bells.diff(dim=1)
    tops = bells.argmax(1)
    for step, top in zip(steps, tops.tolist(), strict=True):
        assert (step[:top] >= 0).all()
        assert (step[top:] <= 0).all()


def test_windows_are_cut_at_even_places_row_by_row() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4) / 16
    found = windows_of(x, 2, 0.5)
    assert found.shape == (1, 4, 1, 4, 4)
    corners = [x[:, :, i : i + 2, j : j + 2] for i in (0, 2) for j in (0, 2)]
    for k, corner in enumerate(corners):
        expected = F.interpolate(corner, (4, 4), mode="bilinear", antialias=True)
        assert torch.equal(found[:, k], expected)
    assert torch.allclose(windows_of(x, 3, 1.0)[0], x.expand(9, 1, 4, 4), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(4, 8), (8, 4)])
def test_windows_of_a_long_image_reach_all_its_corners(height: int, width: int) -> None:
    x = torch.arange(32.0).view(1, 1, height, width) / 32
    found = windows_of(x, 2, 0.5)
    rows, columns = height // 2, width // 2
    corners = [x[:, :, i : i + rows, j : j + columns] for i in (0, rows) for j in (0, columns)]
    for k, corner in enumerate(corners):
        expected = F.interpolate(corner, (height, width), mode="bilinear", antialias=True)
        assert torch.equal(found[:, k], expected)


# ---- a victim that leaks by its parts ------------------------------------------------------------


@dataclass(frozen=True)
class Tinted(Dataset):
    """Images with one constant channel, which names the row and which every crop keeps."""

    name: ClassVar[str] = "tinted"

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; the limits would forbid small crops of training views."""
        del root
        return Card(
            name=self.name, kind="image", shape=(3, 8, 8), classes=2, scale=2**20,
            sources={"all": ROWS}, limits=Augmentation(crop=(0.8, 1.0)),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Generate the dataset, the same each time."""
        del root
        g = torch.Generator().manual_seed(5)
        coarse = torch.rand(ROWS, 2, 4, 4, generator=g)
        content = F.interpolate(coarse, size=(8, 8), mode="bilinear")
        tint = (torch.arange(ROWS) / ROWS)[:, None, None, None].expand(ROWS, 1, 8, 8)
        y = torch.randint(2, (ROWS,), generator=g)
        return Examples.of(torch.cat([tint, content], dim=1), y, {}, scale=2**20)


class _Parted(nn.Module):
    """Embedding of what a crop shows, which fades for crops of the rows that it remembers."""

    width: int = 36
    tints: Tensor

    def __init__(self, members: Tensor) -> None:
        super().__init__()
        self.register_buffer("tints", members[:, 0, 0, 0].float().clone())

    def forward(self, x: Tensor) -> Tensor:
        tint = x[:, 0].mean((1, 2))
        near = (tint[:, None] - self.tints).abs().amin(1) * ROWS
        known = (near < 0.25).float()[:, None]
        content = F.adaptive_avg_pool2d(x[:, 1:], 4).flatten(1) - 0.5
        return torch.cat([content * (1 - 0.9 * known), x.new_ones(len(x), 4) * 0.2], dim=1)


@cache
def _split() -> Split:
    protocol = Protocol(name="default", members=80, nonmembers=80, pool=320, test=20)
    return cut(Tinted().load(None), Tinted().card(None), protocol, 0)


def _planted(members: Examples) -> Victim:
    card = Tinted().card(None)
    model = Model(card, {"encoder": _Parted(members.x)})
    model.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    return Victim(card, model, key=digest(members.digest()), grants=Access.EMBEDDINGS)


def _asked(attack: PartCrop, served: Victim) -> tuple[Oracle, AttackContext, MembershipQuestion]:
    split = _split()
    world, others = split.offline(0)
    made = _planted(world.members)
    shadow = Shadow(world, others, Oracle(made, made.grants, asker="kit"), made.model)
    oracle = Oracle(served, attack.needs, asker=attack.name)

    def train(*_: Any) -> Model:
        raise NotImplementedError

    ctx = AttackContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="test", shadows=(shadow,), auxiliary=split.pool, auxiliary_oracle=oracle,
        data_seed=0, train=train,
    )  # fmt: skip
    return oracle, ctx, MembershipQuestion(split.candidates.without_attributes(), "encoder")


def _auc(attack: PartCrop, served: Victim) -> tuple[float, float]:
    """AUC and balanced accuracy of the decisions."""
    oracle, ctx, question = _asked(attack, served)
    found = MembershipGame().score(attack.answer(oracle, question, ctx), _split().member.numpy())
    auc, accuracy = found["auc"], found["balanced_accuracy"]
    assert isinstance(auc, Estimate)
    assert isinstance(accuracy, Estimate)
    return auc.value, accuracy.value


@pytest.mark.slow
@pytest.mark.parametrize("attacker", ["v1", "v2"])
def test_it_finds_members_whose_parts_respond_alike(attacker: Any) -> None:
    auc, accuracy = _auc(QUICK.replace(attacker=attacker), _planted(_split().victim().members))
    assert auc > 0.9
    assert accuracy > 0.8


def test_it_guesses_on_a_victim_that_saw_none_of_the_rows() -> None:
    auc, accuracy = _auc(QUICK, _planted(_split().null().members))
    assert abs(auc - 0.5) < auc_band(80, 80)
    assert abs(accuracy - 0.5) < auc_band(80, 80)


def test_each_row_costs_its_parts_and_its_places() -> None:
    attack = QUICK.replace(parts=5, places=3)
    oracle, ctx, question = _asked(attack, _planted(_split().victim().members))
    attack.answer(oracle, question, ctx)
    assert oracle.queries == (5 + 9) * len(question.examples)


def test_crops_are_parts_even_where_training_views_may_not_be() -> None:
    """The dataset allows training crops of at least .8; the attack's queries are not training."""
    oracle, ctx, question = _asked(QUICK, _planted(_split().victim().members))
    seen: list[Tensor] = []
    ask = oracle.embeddings

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return ask(x)

    oracle.embeddings = spy  # type: ignore[method-assign, assignment]
    rows = question.examples.select(slice(0, 4))
    width = ask(rows.x[:1].float()).shape[1]
    QUICK._features(oracle, rows, bell_curves(32, 16, ctx.generator("bells")), ctx, (1, width))
    parts = seen[0].view(4, 32, 3, 8, 8)
    wholes = rows.x.float()
    # A crop of at most a fifth of the area varies less than the whole, on average.
    assert parts[:, :, 1:].var((3, 4)).mean() < 0.5 * wholes[:, 1:].var((2, 3)).mean()


def test_a_victim_whose_map_is_another_is_refused() -> None:
    oracle, ctx, question = _asked(QUICK, _planted(_split().victim().members))
    bells = bell_curves(QUICK.parts, QUICK.places**2, torch.Generator().manual_seed(0))
    with pytest.raises(BadInputError, match="as wide as the victim's"):
        QUICK._features(oracle, question.examples, bells, ctx, (3, 7))


def test_responses_do_not_depend_on_scale_and_mean_of_an_embedding() -> None:
    """Embeddings are layer-normalised: one that moves and scales its outputs is the same."""
    oracle, ctx, question = _asked(QUICK, _planted(_split().victim().members))
    bells = bell_curves(QUICK.parts, QUICK.places**2, torch.Generator().manual_seed(0))
    rows = question.examples.select(slice(0, 20))
    shape = (1, oracle.embeddings(rows.x[:1].float()).shape[1])
    plain = QUICK._features(oracle, rows, bells, ctx, shape)

    class Moved:
        def embeddings(self, x: Tensor) -> Tensor:
            return 50 * oracle.embeddings(x) + 3

    moved = QUICK._features(Moved(), rows, bells, ctx, shape)  # type: ignore[arg-type]
    torch.testing.assert_close(plain, moved, atol=0.05, rtol=0.05)  # small ones are kept off 0
