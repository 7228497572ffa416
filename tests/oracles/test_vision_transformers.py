"""MAE and DINO by hand, on their small vision transformer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from privbench import Adversary, Augmentation, Cell, Model, as_float
from privbench.ground.errors import BadInputError
from privbench.measure.games.membership import MembershipQuestion
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Batch, Clock
from privbench.testing import fixtures, tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench.toolbox.private_training import group_normed
from privbench.toolbox.vision_transformer import (
    Standardised,
    VisionTransformer,
    patches,
    picked,
    positions,
)
from privbench_plugins.attacks.partcrop import PartCrop, bell_curves, divergences
from privbench_plugins.defenses.crop_range import CropRange
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.targets.dino import DINO, LARGE, cross_entropies
from privbench_plugins.targets.mae import MAE, Hiding

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "width": 8, "depth": 1, "heads": 2, "epochs": 2, "updates": 0,
    "batch": 40,
}  # fmt: skip
ROWS = 12


def _training(target: Any, tmp_path: Path) -> Training:
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


def _batch(run: Training, seed: int = 1) -> Any:
    some = tiny_split().victim().members.select(slice(0, ROWS))
    g = torch.Generator().manual_seed(seed)
    assert run.phase.prepare is not None
    return run.phase.prepare(
        Batch(some.x, some.y, {}, torch.arange(ROWS)), lambda m: torch.rand(ROWS, m, generator=g)
    )


# ---- the network ---------------------------------------------------------------------------------


def test_patches_are_those_that_a_loop_cuts() -> None:
    x = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    found = patches(x, 2)
    by_hand = [x[:, :, i : i + 2, j : j + 2].flatten(1) for i in (0, 2) for j in (0, 2, 4)]
    assert torch.equal(found, torch.stack(by_hand, dim=1))


def test_attention_by_hand() -> None:
    """One block: softmax of products over the root of a head's numbers, then the network."""
    torch.manual_seed(0)  # noqa: TID251 - a test
    net = VisionTransformer((1, 4, 4), patch=2, width=8, depth=1, heads=2)
    x = torch.rand(3, 1, 4, 4)
    block: Any = net.blocks[0]
    tokens = net.embed(patches(x, 2)) + net.position
    q, k, v = block.asks(block.norms[0](tokens)).chunk(3, dim=2)
    heads = []
    for at in (slice(0, 4), slice(4, 8)):
        products = q[..., at] @ k[..., at].transpose(1, 2) / math.sqrt(4)
        heads.append(products.softmax(2) @ v[..., at])
    tokens = tokens + block.answers(torch.cat(heads, dim=2))
    tokens = net.norm(tokens + block.network(block.norms[1](tokens)))
    assert torch.allclose(net(x), tokens.mean(1), atol=1e-5)
    net.released = "map"
    assert torch.allclose(net(x), tokens.flatten(1), atol=1e-5)


def test_tokens_of_some_patches_do_not_depend_on_the_others() -> None:
    net = VisionTransformer((1, 8, 8), patch=2, width=8, depth=2, heads=2)
    g = torch.Generator().manual_seed(0)
    x, other = torch.rand(2, 1, 1, 8, 8, generator=g)
    kept = torch.tensor([[0, 5, 9]])
    seen = torch.zeros(16, dtype=torch.bool)
    seen[kept[0]] = True
    cut = torch.where(seen[None, :, None], patches(x, 2), patches(other, 2))
    mixed = cut.view(1, 4, 4, 1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 1, 8, 8)
    assert torch.equal(patches(mixed, 2), cut)
    assert torch.allclose(net.tokens(x, kept), net.tokens(mixed, kept))
    assert not torch.allclose(net(x), net(mixed))


def test_positions_by_hand() -> None:
    found = positions(2, 3, 8)
    for row in range(2):
        for column in range(3):
            expected = [
                f(at / 10_000 ** (i * 4 / 8)) for at in (column, row)
                for f in (math.sin, math.cos) for i in range(2)
            ]  # fmt: skip
            assert found[row * 3 + column].tolist() == pytest.approx(expected, abs=1e-5)


# ---- MAE -----------------------------------------------------------------------------------------


def test_mae_hides_a_share_of_the_patches_and_the_loss_is_their_error(tmp_path: Path) -> None:
    run = _training(MAE(**SMALL, decoder_width=8), tmp_path)
    batch, model = _batch(run), run.model
    model.parts.train()
    assert batch.seen == 4  # a quarter of 16
    assert torch.equal(batch.order.sort(1).values, torch.arange(16).expand(ROWS, 16))
    out = run.phase.forward(model, batch)
    found = run.phase.steps["train"].loss(out, batch, Clock(1, 0, 2, 2))
    pixels = patches(model.inputs(batch.x), 2)
    errors = []
    for row in range(ROWS):
        for place in batch.order[row, batch.seen :].tolist():
            patch = pixels[row, place]
            wanted = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
            errors.append((out.drawn[row, place] - wanted).square().mean())
    assert float(found.detach()) == pytest.approx(
        float(torch.stack(errors).mean().detach()), rel=1e-4
    )
    found.backward()  # type: ignore[no-untyped-call]
    for part in ("encoder", "painter"):
        assert all(p.grad is not None for p in model[part].parameters()), part


def test_what_is_hidden_changes_nothing_that_is_drawn(tmp_path: Path) -> None:
    run = _training(MAE(**SMALL, decoder_width=8), tmp_path)
    batch, model = _batch(run), run.model.eval()
    drawn = run.phase.forward(model, batch).drawn
    place = int(batch.order[0, -1])
    top, left = 2 * (place // 4), 2 * (place % 4)
    x = batch.x.clone()
    x[0, :, top : top + 2, left : left + 2] = 0.5
    other = run.phase.forward(model, type(batch)(
        x, batch.y, {}, batch.rows, order=batch.order, seen=batch.seen
    )).drawn  # fmt: skip
    assert torch.allclose(drawn, other)


@given(st.floats(0.01, 0.99))
def test_at_least_one_patch_is_seen_and_one_is_hidden(share: float) -> None:
    split = tiny_split()
    rows = split.victim().members.select(slice(0, 2))
    made = Hiding(MAE().augmentation, split.card, 1, 4, share)(
        Batch(rows.x, rows.y, {}, torch.arange(2)), lambda m: torch.rand(2, m)
    )
    assert 1 <= made.seen < made.order.shape[1] == 4


def test_a_row_adds_to_the_loss_of_mae_by_itself(tmp_path: Path) -> None:
    """The mean over the rows of what each adds: what DP-SGD needs."""
    run = _training(MAE(**SMALL, decoder_width=8), tmp_path)
    batch, model = _batch(run), run.model
    assert run.phase.per_example

    def loss(at: slice) -> float:
        some = type(batch)(
            batch.x[at], batch.y[at], {}, batch.rows[at], order=batch.order[at], seen=batch.seen
        )
        with torch.no_grad():
            out = run.phase.forward(model, some)
            return float(run.phase.steps["train"].loss(out, some, Clock(1, 0, 2, 2)))

    each = [loss(slice(i, i + 1)) for i in range(ROWS)]
    assert loss(slice(0, ROWS)) == pytest.approx(sum(each) / ROWS, rel=1e-4)


# ---- DINO ----------------------------------------------------------------------------------------


def test_the_loss_of_dino_by_hand() -> None:
    """Equation 3: every pair of a large view (teacher) and another view (student)."""
    g = torch.Generator().manual_seed(0)
    z, k, centre = (torch.randn(*s, generator=g) for s in ((4, 5, 3), (2, 5, 3), (3,)))
    found = float(cross_entropies(z, k, centre, 0.1, 0.04))
    total, pairs = 0.0, 0
    for t in range(2):
        for v in range(4):
            if t == v:
                continue
            pairs += 1
            for row in range(5):
                wanted = F.softmax((k[t, row] - centre) / 0.04, dim=0)
                said = F.softmax(z[v, row] / 0.1, dim=0)
                total -= sum(float(w * s.log()) for w, s in zip(wanted, said, strict=True)) / 5
    assert pairs == 6
    assert found == pytest.approx(total / pairs, rel=1e-4)


@given(st.integers(0, 999), st.floats(-5, 5))
def test_a_constant_added_to_all_outputs_does_not_matter(seed: int, by: float) -> None:
    g = torch.Generator().manual_seed(seed)
    z, k, centre = (torch.randn(*s, generator=g) for s in ((3, 2, 4), (2, 2, 4), (4,)))
    here = float(cross_entropies(z, k, centre, 0.1, 0.04))
    assert float(cross_entropies(z + by, k - by, centre, 0.1, 0.04)) == pytest.approx(
        here, rel=1e-3
    )
    assert float(cross_entropies(z, k + by, centre + by, 0.1, 0.04)) == pytest.approx(
        here, rel=1e-3
    )


def test_teacher_and_centre_follow(tmp_path: Path) -> None:
    run = _training(DINO(**SMALL, outputs=16, hidden=8, bottleneck=4, momentum=0.5), tmp_path)
    model, batch = run.model, _batch(run)
    student: Any = model["encoder"]
    teacher: Any = model["teacher"]
    centre: Any = model["centre"]
    step = run.phase.steps["train"]
    assert batch.views == 4
    assert len(batch.x) == 4 * ROWS
    with torch.no_grad():
        student.embed.weight.mul_(2.0)  # the teacher's differ
    out = run.phase.forward(model, batch)
    assert torch.allclose(out.h, model.encode(batch.x), atol=1e-5)
    with torch.no_grad():
        tokens = teacher.tokens(model.inputs(batch.x[: LARGE * ROWS]))
        expected = model["teacher_head"](tokens[:, 0])
    assert torch.allclose(out.k, expected, atol=1e-6)
    assert not out.k.requires_grad
    assert step.after is not None
    assert step.before is not None
    step.after(model, out)
    assert torch.allclose(centre.value, 0.1 * expected.mean(0), atol=1e-6)
    goal = student.embed.weight.detach()
    for clock, share in (  # of 6 updates; each call is for the update before it
        (Clock(1, 0, 2, 3), 0.5), (Clock(2, 1, 2, 3), 0.25), (Clock(2, 2, 2, 3), 0.125),
    ):  # fmt: skip
        before = teacher.embed.weight.clone()
        step.before(model, clock)  # 1 - (cos(pi k / 6) + 1) / 2 · .5 stays, at k = 0, 3, 4
        assert torch.allclose(teacher.embed.weight, before + share * (goal - before))
    loss = step.loss(run.phase.forward(model, batch), batch, Clock(1, 0, 2, 3))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is not None for p in model["head"].parameters())


# ---- maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [MAE(**SMALL), DINO(**SMALL)])
def test_a_map_has_the_tokens_of_the_patches(target: Any, tmp_path: Path) -> None:
    card, x = tiny_split().card, tiny_split().pool.x[:5]
    mapped = target.replace(released="map")
    vector: Any = tiny_builder(str(tmp_path)).draft(tiny_spec(target)).model["encoder"]
    assert vector.feature_map is None
    model = tiny_builder(str(tmp_path)).draft(tiny_spec(mapped)).model.eval()
    net: Any = model["encoder"]
    assert net.feature_map == (4, 4)
    with torch.no_grad():
        released = model.encode(x)
        assert torch.equal(released.view(5, 16, 8), net.tokens(model.inputs(x))[:, -16:])
    assert model.logits(released).shape == (5, card.classes)


def test_picked_places() -> None:
    tokens = torch.arange(12.0).view(1, 4, 3)
    assert picked(tokens, torch.tensor([[2, 0]])).tolist() == [[[6, 7, 8], [0, 1, 2]]]


def test_large_views_come_first_and_crop_range_narrows_small_ones_too(tmp_path: Path) -> None:
    target = DINO(**SMALL, augmentation=Augmentation(crop=(1.0, 1.0)), small_crop=(0.1, 0.1))
    run = _training(target, tmp_path)
    batch = _batch(run)
    rows = tiny_split().victim().members.select(slice(0, ROWS))
    whole = as_float(rows.x, rows.scale)
    limits = tiny_split().card.limits
    assert limits is None or limits.crop
    for view in range(4):
        same = torch.allclose(batch.x[view * ROWS : (view + 1) * ROWS], whole, atol=1e-5)
        assert same == (view < LARGE)
    wide = DINO(**SMALL, small_crop=(0.05, 0.9))
    prepare: Any = _training(wide, tmp_path / "whole").phase.prepare
    spec = tiny_spec(wide, (CropRange(shrink=0.5),))
    narrow: Any = tiny_builder(str(tmp_path / "narrow")).draft(spec).phases[0].prepare
    assert prepare.small == (0.05, 0.9)
    assert narrow.small == pytest.approx((0.8, 0.85))  # the data allow no box below .8


@pytest.mark.parametrize("rows", [1, 5])
def test_the_classifier_takes_a_batch_of_one_row(rows: int) -> None:
    norm = Standardised(4).train()
    h = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    found = norm(h)
    expected = h if rows == 1 else (h - h.mean(0)) / h.var(0, correction=0).sqrt()
    assert torch.allclose(found, expected, atol=1e-4)


def test_sides_of_patches() -> None:
    def side(*shape: int) -> int:
        return MAE().side(replace(tiny_split().card, shape=shape))

    assert [side(1, n, n) for n in (8, 28, 32, 36, 50, 224)] == [2, 4, 4, 6, 10, 28]
    assert side(3, 32, 48) == 8


def test_published_sizes_can_be_built() -> None:
    card = replace(tiny_split().card, shape=(3, 224, 224))
    for target in (MAE(), DINO()):
        paper = target.replace(**target.presets["paper"])
        cell = Cell(card, tiny_split().protocol, paper, (), Adversary(), PartCrop())
        assert paper.incompatible(cell) is None
        assert paper.grid(card) == (14, 14)


@pytest.mark.slow
@pytest.mark.parametrize("released", ["map", "vector"])
def test_partcrop_reads_a_released_map(released: Any, tmp_path: Path) -> None:
    """A part has the mean of its places; the whole image all of them, or windows."""
    attack = PartCrop(parts=3, places=2, steps=2, epochs=1)
    victim = tiny_builder(str(tmp_path)).victim(tiny_spec(MAE(**SMALL, released=released)))
    oracle, ctx = fixtures.arena(attack, victim)
    (shadow,) = ctx.shadows
    ctx.shadows = (replace(shadow, model=victim.model, oracle=oracle),)
    rows, seen = tiny_split().candidates.without_attributes().select(slice(0, 5)), []
    ask = oracle.embeddings

    def spy(x: torch.Tensor) -> torch.Tensor:
        seen.append(ask(x))
        return seen[-1]

    oracle.embeddings = spy  # type: ignore[method-assign, assignment]
    attack.answer(oracle, MembershipQuestion(rows, "encoder"), ctx)
    assert bool(ctx.notes) == (released == "vector")
    cut, whole = seen[-2:]  # the candidates come last
    places = 16 if released == "map" else 1
    assert [len(cut), len(whole)] == [15, 5 if released == "map" else 20]
    bells = bell_curves(3, 16 if released == "map" else 4, torch.Generator().manual_seed(0))
    found = attack._features(oracle, rows, bells, ctx, (places, 8))
    normal = [F.layer_norm(one.view(-1, places, 8), (8,)) for one in (cut, whole)]
    expected = divergences(
        normal[0].mean(1).view(5, 3, 8), normal[1].view(5, bells.shape[1], 8), bells
    )
    assert torch.allclose(found, expected, atol=1e-5)


def test_dp_sgd_leaves_no_statistics_of_a_batch(tmp_path: Path) -> None:
    defense = DPSGD(noise_multiplier=1.0, batch=16, accountant="rdp")
    victim = tiny_builder(str(tmp_path)).victim(
        tiny_spec(MAE(**SMALL, classifier_epochs=1, classifier_updates=0), (defense,))
    )
    kinds = {type(one).__name__ for one in victim.model.modules()}
    assert "GroupNorm" in kinds
    assert not any("BatchNorm" in kind for kind in kinds)
    (norm,) = [one for one in victim.model["classifier"].modules() if isinstance(one, nn.GroupNorm)]
    made = norm(torch.randn(50, norm.num_channels, generator=torch.Generator().manual_seed(0)))
    assert len(made.abs().round(decimals=1).unique()) > 10  # in groups of two all would be 1


def test_dp_sgd_refuses_a_batch_norm_that_it_cannot_replace() -> None:
    parts = {"encoder": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, affine=False))}
    with pytest.raises(BadInputError, match="batch norm of 'encoder' has no weights"):
        group_normed(Model(tiny_split().card, parts), None, "dp-sgd")  # type: ignore[arg-type]
