"""What an adversary knows: gradients, the target of its shadows, where its pool comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import (
    Access,
    Augmentation,
    Card,
    Dataset,
    Examples,
    Membership,
    MembershipAttack,
    Shadows,
)
from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.examples import adopted
from privbench.plugins.registry import Plugin, Registry
from privbench.testing import CPU, TinyImages, TinyTarget

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.methods.cell import Cell


@dataclass(frozen=True)
class Coloured(Dataset):
    """Coloured 12×10 pictures of three classes."""

    name: ClassVar[str] = "coloured"
    protocols: ClassVar[dict[str, Any]] = {}
    rows: int = 600
    kinds: int = 3

    def card(self, root: Path | None) -> Card:
        del root
        return Card(
            name=self.name, kind="image", shape=(3, 12, 10), classes=self.kinds, scale=255,
            sources={"all": self.rows}, limits=Augmentation(),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        del root
        generator = torch.Generator().manual_seed(1)
        x = torch.randint(256, (self.rows, 3, 12, 10), generator=generator, dtype=torch.uint8)
        return Examples.of(x, torch.arange(self.rows) % self.kinds, scale=255)


@dataclass(frozen=True)
class Spy(MembershipAttack):
    """Says in its notes what it was given."""

    name: ClassVar[str] = "spy"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    wants: ClassVar[Access] = Access.GRADIENTS
    k: int = 1

    @property
    def shadows(self) -> Shadows:
        return Shadows(self.k)

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        rows = [shadow.world.members for shadow in ctx.shadows] + [ctx.auxiliary]
        strangers = [not torch.isin(r.index, question.examples.index).any() for r in rows]
        ctx.note(
            access=str(oracle.access),
            strangers=str(all(strangers)),
            shapes=str({tuple(r.x.shape[1:]) for r in rows}),
            pool=len(ctx.auxiliary),
            classes=str([s.oracle.card.classes for s in ctx.shadows]),
        )
        return Membership(oracle.embeddings(question.examples)[:, 0])


@dataclass(frozen=True)
class Reader(Spy):
    """The same on posteriors."""

    name: ClassVar[str] = "reader"
    needs: ClassVar[Access] = Access.POSTERIORS
    wants: ClassVar[Access] = Access.NONE


@dataclass(frozen=True)
class Inverter(Spy):
    """It cannot do without gradients."""

    name: ClassVar[str] = "inverter"
    needs: ClassVar[Access] = Access.EMBEDDINGS | Access.GRADIENTS
    wants: ClassVar[Access] = Access.NONE


def _planned(**suite: Any) -> list[Any]:
    from privbench_plugins.defenses.none import NoDefense as Nothing
    from privbench_plugins.targets.supervised import Supervised

    registry = Registry()
    for kind, method in (
        ("dataset", TinyImages()), ("dataset", Coloured()), ("target", TinyTarget()),
        ("target", Supervised()),
        ("defense", Nothing()), ("attack", Spy()), ("attack", Reader()), ("attack", Inverter()),
    ):  # fmt: skip
        registry.add(kind, method, Plugin("test", "test", "test"))
    given = {"datasets": ["tiny-images"], "targets": ["tiny-target"], **suite}
    return plan(suite_from(given, "the test"), registry, root=None, device="cpu")


def _notes(cell: Cell, tmp_path: Path) -> dict[str, Any]:
    record = TrialRunner(Store(tmp_path), CPU).run(Trial(cell, 0))
    assert record.status == "ok", record.traceback
    return dict(record.notes)


def test_only_a_white_box_adversary_has_gradients(tmp_path: Path) -> None:
    black, white = _planned(attacks=["spy"], adversaries=["adaptive", "white-box"])
    assert _notes(black.trial.cell, tmp_path)["access"] == "EMBEDDINGS"
    assert _notes(white.trial.cell, tmp_path)["access"] == "EMBEDDINGS+GRADIENTS"
    assert black.trial.digest != white.trial.digest
    assert "white-box" in white.trial.cell.adversary.label


def test_an_attack_that_needs_gradients_is_skipped_without_them() -> None:
    black, white = _planned(attacks=["inverter"], adversaries=["adaptive", "white-box"])
    assert black.skip == "inverter needs GRADIENTS, which only a white-box adversary has"
    assert white.skip is None


def test_cells_that_the_adversary_does_not_change_run_once() -> None:
    own = {"adaptive": True, "target": "tiny-target", "dataset": "tiny-images"}
    planned = _planned(attacks=["reader"], adversaries=["adaptive", "naive", "white-box", own])
    assert len(planned) == 1


def test_shadows_of_another_recipe(tmp_path: Path) -> None:
    (planned,) = _planned(attacks=["spy"], adversaries=[{"target": {"supervised": {"epochs": 1}}}])
    assert planned.trial.cell.adversary.label == "adaptive, shadows supervised(epochs=1)"
    assert _notes(planned.trial.cell, tmp_path)["classes"] == "[10]"


def test_a_foreign_pool_has_the_victims_shape_and_no_row_of_it(tmp_path: Path) -> None:
    (planned,) = _planned(attacks=["spy"], adversaries=[{"dataset": "coloured"}])
    assert planned.trial.cell.adversary.label == "adaptive, pool coloured"
    notes = _notes(planned.trial.cell, tmp_path)
    assert notes["strangers"] == "True"
    assert notes["shapes"] == "{(1, 8, 8)}"
    assert notes["classes"] == "[3]"
    assert notes["pool"] == 600 - 40  # the shadows' reference comes from it too


@pytest.mark.parametrize(
    ("fields", "attack", "why"),
    [
        ({}, "reader", "reader compares classes, but coloured has 3 and tiny-images has 10"),
        ({"rows": 200}, "spy", "shadows on coloured need 240 rows, but it has 200"),
    ],
)
def test_a_foreign_pool_that_does_not_fit_is_skipped(
    fields: dict[str, Any], attack: str, why: str
) -> None:
    adversary = {"dataset": {"coloured": fields}}
    planned = _planned(attacks=[attack], adversaries=["adaptive", adversary])
    assert planned[1].skip == why


def test_adopted_pictures_keep_their_mean_and_range() -> None:
    source, card = Coloured().card(None), TinyImages().card(None)
    rows = Coloured().load(None)
    made, named = adopted(rows, source, card)
    assert made.x.dtype == torch.uint8
    assert named.shape == (1, 8, 8)
    assert named.classes == 3
    luma = (rows.x.double() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1).mean()
    assert abs(float(made.x.double().mean() - luma)) < 1
    back, _ = adopted(made, named, source)  # grey to colour: three equal channels
    assert torch.equal(back.x[:, 0], back.x[:, 2])
