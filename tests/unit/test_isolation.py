"""A method that writes into what it is given changes no other method's numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from privbench import (
    Access,
    Augmentation,
    Defense,
    Membership,
    MembershipAttack,
    Release,
    Shadows,
    as_float,
)
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.testing import CPU, TinyImages, TinyTarget

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.data.examples import Card, Examples
    from privbench.results.record import Record


@dataclass(frozen=True)
class FloatImages(TinyImages):
    """The tiny images as floats: `as_float` has nothing to convert."""

    name: ClassVar[str] = "float-images"

    def card(self, root: Path | None) -> Card:
        """As of the tiny images."""
        return replace(super().card(root), name=self.name)

    def load(self, root: Path | None) -> Examples:
        """As of the tiny images, in [0, 1]."""
        rows = super().load(root)
        return replace(rows, x=rows.x.float() / rows.scale)


@dataclass(frozen=True)
class Honest(MembershipAttack):
    """Reads all that an attack is given, and writes into nothing."""

    name: ClassVar[str] = "honest"
    needs: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS

    @property
    def shadows(self) -> Shadows:
        """Two, over the candidates."""
        return Shadows(2, "online")

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        """Score by everything at once."""
        rows = question.examples
        scores = oracle.posteriors(rows).amax(1)
        scores = scores + oracle.embeddings(ctx.views(rows, _AUGMENTATION, 2)).double().mean((1, 2))
        scores = scores + ctx.auxiliary_oracle.posteriors(ctx.auxiliary).mean()
        for shadow in ctx.shadows:
            inside = shadow.world.contains(rows)
            scores = scores - shadow.oracle.posteriors(rows).amax(1) * inside
            scores = scores + as_float(shadow.nonmembers.x, rows.scale).mean()
            scores = scores + next(shadow.model.parameters()).sum()
        return Membership(scores + as_float(rows.x, rows.scale).double().flatten(1).mean(1))


_AUGMENTATION = Augmentation(crop=(0.5, 1.0))


@dataclass(frozen=True)
class Vandal(Honest):
    """Writes into one thing that it is given, then asks its oracle."""

    name: ClassVar[str] = "vandal"
    what: str = "question"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        """Write, then ask about it."""
        rows = {
            "question": question.examples, "auxiliary": ctx.auxiliary,
            "nonmembers": ctx.shadows[0].nonmembers, "members": ctx.shadows[0].world.members,
        }  # fmt: skip
        if self.what == "model":
            with torch.no_grad():
                for parameter in ctx.shadows[0].model.parameters():
                    parameter.zero_()
        elif self.what == "as_float":
            as_float(question.examples.x, question.examples.scale).zero_()
        elif self.what == "numpy":
            question.examples.x.numpy()[:] = 0
            question.examples.keys.numpy()[:] = 0
        else:
            rows[self.what].x.zero_()
            rows[self.what].y.zero_()
            rows[self.what].index.zero_()
        return super().answer(oracle, question, ctx)


def _run(runner: TrialRunner, attack: Any, data: Any, *defenses: Any, target: Any = None) -> Record:
    card = data.card(None)
    cell = Cell(card, data.protocols["default"], target or TinyTarget(), defenses, Adversary(),
                attack, card.sensitive, data)  # fmt: skip
    return runner.run(Trial(cell, 0))


def _scores(record: Record) -> Any:
    assert record.status == "ok", record.traceback
    return record.metrics, record.controls, record.utility, record.split


#: Integers are copied by whoever reads them as floats; floats could be written into.
ROWS = [
    pytest.param(TinyImages(), id="integers", marks=pytest.mark.slow),
    pytest.param(FloatImages(), id="floats"),
]


@pytest.mark.parametrize("data", ROWS)
@pytest.mark.parametrize(
    "what", ["question", "auxiliary", "nonmembers", "members", "model", "as_float", "numpy"]
)
def test_an_attack_that_writes_changes_no_other_attack(
    tmp_path: Path, what: str, data: Any
) -> None:
    clean = _scores(_run(TrialRunner(Store(tmp_path / "a"), CPU), Honest(), data))
    runner = TrialRunner(Store(tmp_path / "b"), CPU)
    assert _run(runner, Vandal(what=what), data).status == "ok"
    assert _scores(_run(runner, Honest(), data)) == clean, "in the same process"
    later = TrialRunner(Store(tmp_path / "b"), CPU)
    assert _scores(_run(later, replace(Honest()), data)) == clean, "from what the store holds"


@dataclass(frozen=True)
class Breaker(Honest):
    """Reaches the victim through its oracle."""

    name: ClassVar[str] = "breaker"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        """Change the victim's weights."""
        with torch.no_grad():
            next(oracle._Oracle__served.model.parameters()).zero_()
        return super().answer(oracle, question, ctx)


def test_an_attack_that_changes_the_victim_fails_and_is_named(tmp_path: Path) -> None:
    clean = _scores(_run(TrialRunner(Store(tmp_path / "a"), CPU), Honest(), TinyImages()))
    runner = TrialRunner(Store(tmp_path / "b"), CPU)
    record = _run(runner, Breaker(), TinyImages())
    assert record.status == "failed"
    assert "attack 'breaker' changed 'encoder.1.weight' of the victim: only ask it" in record.reason
    assert _scores(_run(runner, Honest(), TinyImages())) == clean


class _Same(Release):
    of = "posterior"

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("seen", torch.zeros(1))

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del ctx
        if self.what == "fit":
            world.members.x.zero_()
        if self.what == "model":
            with torch.no_grad():
                next(model.parameters()).zero_()

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del u
        if self.what == "forward":
            x.zero_()
        return value


@dataclass(frozen=True)
class Rough(Defense):
    """Writes into what one of its hooks is given, and otherwise changes nothing."""

    name: ClassVar[str] = "rough"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    release_class: ClassVar[Any] = _Same
    what: str = "data"

    def on_data(self, world: Any, ctx: Any) -> Any:
        """Write into the members, or not."""
        if self.what == "data":
            world.members.x.zero_()
        if self.what == "context":
            ctx.world.reference.x.zero_()
        return world

    def on_phases(self, phases: Any, model: Any, world: Any, ctx: Any) -> Any:
        """Write into the reference rows, or not."""
        del model, ctx
        if self.what == "phases":
            world.reference.x.zero_()
            world.members.y.zero_()
        return phases

    def release(self, card: Any, model: Any, ctx: Any) -> Any:
        """Release what is there."""
        del card, model, ctx
        return _Same(self.what)


@pytest.mark.parametrize("data", ROWS)
@pytest.mark.parametrize("what", ["data", "context", "phases", "fit", "forward"])
def test_a_defense_that_writes_changes_no_other_cell(tmp_path: Path, what: str, data: Any) -> None:
    clean = _scores(_run(TrialRunner(Store(tmp_path / "a"), CPU), Honest(), data))
    runner = TrialRunner(Store(tmp_path / "b"), CPU)
    rough = _scores(_run(runner, Honest(), data, Rough(what=what)))
    assert _scores(_run(runner, Honest(), data)) == clean, "in the same process"
    later = TrialRunner(Store(tmp_path / "b"), CPU)
    assert _scores(_run(later, Honest(), data)) == clean, "from what the store holds"
    if what == "data":
        assert rough != clean, "it trains on what it wrote, under keys of its own"


def test_a_release_that_changes_the_model_while_it_learns_fails(tmp_path: Path) -> None:
    record = _run(TrialRunner(Store(tmp_path), CPU), Honest(), TinyImages(), Rough(what="model"))
    assert record.status == "failed"
    assert "fit() of rough's release changed 'encoder.1.weight' of the model" in record.reason


@dataclass(frozen=True)
class Careless(TinyTarget):
    """Writes into its world while it plans its phases."""

    name: ClassVar[str] = "careless"

    def phases(self, model: Any, world: Any, ctx: Any) -> Any:
        """Zero the members, then plan."""
        world.members.x.zero_()
        world.members.keys.zero_()
        return super().phases(model, world, ctx)


def test_a_target_that_writes_changes_nothing(tmp_path: Path) -> None:
    clean = _scores(_run(TrialRunner(Store(tmp_path / "a"), CPU), Honest(), TinyImages()))
    runner = TrialRunner(Store(tmp_path / "b"), CPU)
    _scores(_run(runner, Honest(), TinyImages(), target=Careless()))
    assert _scores(_run(runner, Honest(), TinyImages())) == clean


def test_as_float_never_returns_its_input() -> None:
    for x in (torch.rand(3), torch.ones(3, dtype=torch.uint8)):
        assert as_float(x, 1.0).data_ptr() != x.data_ptr()
