"""Autoencoder: who owns which columns, what reaches what, and what is learned without labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import Card
from privbench.ground.store.store import Store
from privbench.measure.data.protocol import PROTOCOLS
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.phase import Batch
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyImages, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_builder, tiny_spec
from privbench_plugins.targets.autoencoder import Autoencoder, partition, starts

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Autoencoder(
    width=16, hidden=64, epochs=60, lr=5e-3, classifier_epochs=40, classifier_lr=1e-2
)


def _table(*sizes: int, loose: int = 0) -> Card:
    """One-hot groups of these sizes, then columns that belong to none."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return Card(
        name="table", kind="binary", shape=(sum(sizes) + loose,), classes=2, scale=1,
        sources={"all": 1}, groups=tuple(pairwise([0, *stops])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("card", "owners", "expected"),
    [
        (_table(4, 4, 4), 3, [(0, 4), (4, 8), (8, 12)]),
        (_table(10, 1, 1), 2, [(0, 10), (10, 12)]),
        (_table(10, 1, 1), 3, [(0, 10), (10, 11), (11, 12)]),
        (_table(1, 1, 10), 3, [(0, 1), (1, 2), (2, 12)]),
        (_table(5, loose=5), 2, [(0, 5), (5, 10)]),
        (_table(loose=7), 2, [(0, 3), (3, 7)]),
        (_table(3, 3), 1, [(0, 6)]),
    ],
)
def test_columns_are_cut_between_groups(
    card: Card, owners: int, expected: list[tuple[int, int]]
) -> None:
    assert list(partition(card, owners)) == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 5), st.data())
def test_every_owner_has_columns_and_no_group_is_cut(
    sizes: list[int], loose: int, data: st.DataObject
) -> None:
    card = _table(*sizes, loose=loose)
    owners = data.draw(st.integers(1, len(starts(card))))
    cuts = partition(card, owners)
    assert len(cuts) == owners
    assert cuts[0][0] == 0
    assert cuts[-1][1] == card.shape[0]
    assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert all(start < stop for start, stop in cuts)
    assert {start for start, _ in cuts} <= set(starts(card))


def _cell(card: Card, target: Autoencoder) -> Cell:
    return Cell(
        card, TinyImages().protocols["default"], target, (), Adversary(), AnyAttack(), (),
    )  # fmt: skip


def test_more_owners_than_groups_do_not_fit() -> None:
    target = Autoencoder(owners=3)
    assert "2 that can be apart" in (target.incompatible(_cell(_table(4, 4), target)) or "")
    assert target.incompatible(_cell(_table(4, 4, 4), target)) is None


@pytest.mark.parametrize("owners", [1, 3])
def test_owners_reach_only_their_own(tmp_path: Path, owners: int) -> None:
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(SMALL.replace(owners=owners)))
    model = making.model
    encoder: Any = model["encoder"]
    assert encoder.width == 16 * owners
    x = torch.rand(1, 1, 8, 8, requires_grad=True)
    h = model.encode(x)
    assert h.shape == (1, 16 * owners)
    assert model.decode(h).shape == x.shape
    jacobian: Any = torch.autograd.functional.jacobian
    read = jacobian(lambda x: model.encode(x)[0], x).flatten(1) != 0
    made = jacobian(lambda h: model.decode(h).flatten(), h.detach())
    for (start, stop), (first, last) in encoder.blocks:
        own = torch.zeros(64, dtype=torch.bool)
        own[start:stop] = True
        assert read[first:last][:, own].any(0).all()
        assert not read[first:last][:, ~own].any()
        assert not made[own][:, 0, :first].any()
        assert not made[own][:, 0, last:].any()
        assert made[own][:, 0, first:last].any(1).all()


@pytest.mark.parametrize("layers", [1, 3, 4])
def test_it_has_as_many_layers_as_asked(tmp_path: Path, layers: int) -> None:
    model = tiny_builder(str(tmp_path)).draft(tiny_spec(SMALL.replace(layers=layers))).model
    for part in ("encoder", "decoder"):
        linear = [m for m in model[part].modules() if isinstance(m, torch.nn.Linear)]
        assert len(linear) == layers


def test_it_learns_to_be_decoded_and_then_to_classify(tmp_path: Path) -> None:
    victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(SMALL))
    members = tiny_split().victim().members
    x = members.x / 255
    h = victim.embeddings(members.x)
    error = float((victim.model.decode(h) - x).square().mean())
    assert error < 0.5 * float((x - x.mean(0)).square().mean())
    right = (victim.log_posteriors(members.x).argmax(1) == members.y).double().mean()
    assert float(right) > 0.4  # ten random classes
    assert [fact["phase"] for fact in victim.facts["phases"]] == ["encoder", "classifier"]


def test_the_loss_is_the_mean_squared_error_of_unnormalised_inputs(tmp_path: Path) -> None:
    job = tiny_spec(SMALL)
    making = tiny_builder(str(tmp_path)).draft(
        replace(job, card=replace(job.card, mean=(0.5,), std=(0.1,)))
    )
    members = tiny_split().victim().members
    batch = Batch(members.x[:7], members.y[:7], {}, torch.arange(7))
    (step,) = making.phases[0].steps.values()
    loss: Any = step.loss(making.phases[0].forward(making.model, batch), batch, None)  # type: ignore[arg-type]
    x = batch.x / 255
    decoded = making.model.decode(making.model["encoder"]((x - 0.5) / 0.1))
    assert loss.item() == pytest.approx((decoded - x).square().mean().item(), rel=1e-5)


def test_labels_do_not_reach_the_encoder(tmp_path: Path) -> None:
    job = tiny_spec(SMALL)
    members = job.world.members
    other = replace(job, world=job.world.replace(members=members.with_y((members.y + 1) % 10)))
    first, second = (Builder(Store(tmp_path / n), CPU) for n in "ab")
    x = tiny_split().pool.x[:20]
    mine, theirs = first.victim(job), second.victim(other)
    assert torch.equal(mine.embeddings(x), theirs.embeddings(x))
    assert not torch.equal(mine.log_posteriors(x), theirs.log_posteriors(x))


def test_phases_see_what_the_protocol_shows(tmp_path: Path) -> None:
    shop = tiny_builder(str(tmp_path))
    job = replace(tiny_spec(SMALL), protocol=PROTOCOLS["talos"])
    phases = shop.draft(job).phases
    assert [(p.name, p.rows) for p in phases] == [
        ("pretrain-public", "public"), ("encoder", "members"), ("classifier", "members"),
    ]  # fmt: skip
    assert [p.reads_labels for p in phases] == [False, False, True]
    assert [p.reads for p in phases] == ["inputs", "inputs", "embeddings"]
