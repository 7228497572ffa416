"""The kit catches methods that gave clean boards with wrong numbers."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from privbench import (
    Access,
    Column,
    Defense,
    Membership,
    MembershipAttack,
    Model,
    Phase,
    Release,
    Strength,
)
from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.grid.trial import learning_from_reference
from privbench.ground.errors import PluginError
from privbench.measure.games.catalog import GAMES
from privbench.plugins import registry as plugins
from privbench.testing import TinyImages, TinyTarget, checks, tiny_builder, tiny_spec, tiny_split
from privbench.testing.attack_checks import fills_board
from privbench_plugins.defenses.early_stopping import EarlyStopping

if TYPE_CHECKING:
    from pathlib import Path


def failures(method: Any) -> dict[str, str]:
    """Return the checks that fail, with what they say."""
    said = {}
    for check in checks(method):
        try:
            check()
        except AssertionError as error:
            said[check.name] = str(error)
    return said


@pytest.mark.parametrize("method", [TinyTarget(), TinyImages()])
def test_good_methods_pass(method: Any) -> None:
    assert failures(method) == {}


# ---- defenses ------------------------------------------------------------------------------------


class Shift(Release):
    """Adds a learned number."""

    of: ClassVar[Any] = "embedding"
    by: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.zeros(()))

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del model, ctx
        self.by.fill_(float(len(world.members)))

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value + self.by


class Forgets(Shift):
    """Keeps state outside buffers."""

    seen = 0.0

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del model, world, ctx
        self.seen = 1.0

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value + self.seen


class Counts(Shift):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        self.calls += 1
        return value + self.calls


class Centres(Shift):
    """Subtracts the mean of the batch: a permutation of the batch does not show it."""

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return value - value.mean(0)


class Overwrites(Shift):
    """Changes what it is given."""

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del u
        x.zero_()
        return value + 0


class Widens(Shift):
    """Releases another shape."""

    def forward(self, x: Any, value: Any, u: Any) -> Any:
        del x, u
        return torch.cat([value, value], 1)


def defended(made: type[Release]) -> Any:
    @dataclass(frozen=True)
    class Theirs(Defense):
        """Has that release."""

        name: ClassVar[str] = "theirs"
        protects: ClassVar[tuple[str, ...]] = ("membership",)
        release_class: ClassVar[type[Release]] = made

        def release(self, card: Any, model: Any, ctx: Any) -> Release:
            del card, model, ctx
            return made()

    return Theirs()


@pytest.mark.parametrize(("made", "said"), [
    (Forgets, "answers otherwise once its stored state is loaded"),
    (Counts, "answers otherwise"),
    (Centres, "depends on the other rows of the query"),
    (Overwrites, "changes its arguments"),
    (Widens, "shape"),
])  # fmt: skip
def test_releases(made: Any, said: str) -> None:
    assert failures(defended(Shift)) == {}
    assert said in " ".join(failures(defended(made)).values())


def test_labels_that_are_not_kept() -> None:
    """Else labels and accuracy would be those of the model without the defense."""
    turned = posteriors(lambda value: value.roll(1, 1))
    assert failures(defended(turned)) == {}
    turned.keeps_labels = True
    said = " ".join(failures(defended(turned)).values())
    assert "says keeps_labels and changed the most likely class: set it False" in said
    with tempfile.TemporaryDirectory() as folder:
        victim = tiny_builder(folder).victim(tiny_spec(TinyTarget(), (defended(turned),)))
        with pytest.raises(PluginError, match="release Changed says keeps_labels and changed"):
            victim.log_posteriors(tiny_split().pool.x[:40])


def posteriors(change: Any) -> type[Release]:
    class Changed(Release):
        """Changes posteriors."""

        of: ClassVar[Any] = "posterior"

        def forward(self, x: Any, value: Any, u: Any) -> Any:
            del x, u
            return change(value)

    return Changed


@pytest.mark.parametrize(("change", "said"), [
    (lambda p: p / 2, "posteriors that sum to 0.5: return rows of numbers from 0 to 1"),
    (lambda p: 20 * p - 1.9, "negative posteriors"),
    (lambda p: p / 0, "not finite"),
])  # fmt: skip
def test_posteriors_that_are_none(change: Any, said: str) -> None:
    assert failures(defended(posteriors(lambda p: p**2 / (p**2).sum(1, keepdim=True)))) == {}
    found = failures(defended(posteriors(change)))
    assert said in found["releases each row on its own, and changes nothing else"]
    with tempfile.TemporaryDirectory() as folder:
        victim = tiny_builder(folder).victim(
            tiny_spec(TinyTarget(), (defended(posteriors(change)),))
        )
        with pytest.raises(PluginError, match="release Changed returned"):
            victim.log_posteriors(tiny_split().pool.x[:40])


@dataclass(frozen=True)
class Hoards(Defense):
    """Keeps what it changed of the weights outside the state."""

    name: ClassVar[str] = "hoards"
    protects: ClassVar[tuple[str, ...]] = ()

    def on_trained(self, model: Any, phases: Any, world: Any, ctx: Any) -> Model:
        del phases, world, ctx
        model["encoder"].register_forward_hook(lambda *given: given[2] * 2)
        changed: Model = model
        return changed


def test_weights() -> None:
    assert "when it is loaded from the store" in " ".join(failures(Hoards()).values())


class Judges(Shift):
    """Learns from the reference rows."""

    def fit(self, model: Any, world: Any, ctx: Any) -> None:
        del model, ctx
        self.by.fill_(world.reference.x.double().mean())


def test_reference_rows() -> None:
    assert "depend on the reference rows: add" in " ".join(failures(defended(Judges)).values())


@dataclass(frozen=True)
class Steep(Defense):
    """Its phases cannot be built with the strongest setting."""

    name: ClassVar[str] = "steep"
    protects: ClassVar[tuple[str, ...]] = ()
    strength: ClassVar[Strength | None] = Strength("weight", stronger="up", sweep=(1.0, 2.0))

    weight: float = 1.0

    def on_phases(self, phases: Any, model: Any, world: Any, ctx: Any) -> Any:
        del model, world, ctx
        if self.weight > 1:
            raise ValueError("too steep")
        return phases


@dataclass(frozen=True)
class Same(Steep):
    """Takes all settings for one."""

    name: ClassVar[str] = "same"
    digest: ClassVar[str] = "same"


def test_sweeps() -> None:
    said = failures(Steep())
    assert list(said) == ["every setting of its sweep can be built"]
    assert "too steep" in said["every setting of its sweep can be built"]
    assert "have one digest" in failures(Same())["every setting of its sweep can be built"]


@dataclass(frozen=True)
class Drops(Defense):
    """Takes all phases away."""

    name: ClassVar[str] = "drops"
    protects: ClassVar[tuple[str, ...]] = ()
    strength: ClassVar[Strength | None] = None

    def on_phases(self, phases: Any, model: Any, world: Any, ctx: Any) -> Any:
        del model, world, ctx
        return [replace(phase, epochs=0) for phase in phases]


def test_a_defense_that_trains_nothing() -> None:
    assert "on_phases returned no phase with epochs" in " ".join(failures(Drops()).values())


# ---- targets -------------------------------------------------------------------------------------


class Made(TinyTarget):
    """Changes the phases of the kit's target."""

    def phases(self, model: Any, world: Any, ctx: Any) -> list[Phase]:
        phase, *_ = super().phases(model, world, ctx)
        return self.changed(phase, world)

    def changed(self, phase: Phase, world: Any) -> list[Phase]:
        raise NotImplementedError


def target(name: str, changed: Any, **facts: Any) -> Any:
    made: Any = dataclass(frozen=True)(
        type("Theirs", (Made,), {"name": name, "changed": changed, **facts})
    )
    return made()


def steps(phase: Phase, *trains: str, **fields: Any) -> Phase:
    return replace(
        phase, steps={"train": replace(phase.steps["train"], trains=trains)},
        optimizers={part: phase.optimizers[part] for part in trains}, **fields,
    )  # fmt: skip


def by_the_back_door(self: Any, phase: Phase, world: Any) -> list[Phase]:
    """The loss finds labels in the world instead of in the batch."""
    del self

    def loss(out: Any, batch: Any, clock: Any) -> Any:
        del clock
        return F.cross_entropy(out.logits, world.members.y[batch.rows])

    step = replace(phase.steps["train"], loss=loss)
    return [replace(phase, steps={"train": step}, reads_labels=False)]


def summed(self: Any, phase: Phase, world: Any) -> list[Phase]:
    """The loss is a sum: what a row adds depends on how many others there are."""
    del self, world

    def loss(out: Any, batch: Any, clock: Any) -> Any:
        del clock
        return F.cross_entropy(out.logits, batch.y, reduction="sum")

    return [replace(phase, steps={"train": replace(phase.steps["train"], loss=loss)})]


TARGETS = {
    "sum": (summed, "the mean of their losses is"),
    "reference": (lambda _, phase, __: [replace(phase, rows="reference")], "rows 'reference'"),
    "ignores the protocol": (lambda _, phase, __: [phase], "the protocol shows it downstream"),
    "no classifier": (lambda _, phase, __: [steps(phase, "encoder")], "no phase trains the class"),
    "back door": (by_the_back_door, "reads labels"),
    "apart": (lambda _, phase, __: [phase], "classifier_apart() is True, but the phases say False"),
}  # fmt: skip


@pytest.mark.parametrize("what", TARGETS)
def test_targets(what: str) -> None:
    change, said = TARGETS[what]
    facts: dict[str, dict[str, Any]] = {
        "back door": {"labelled_encoder": False}, "apart": {"classifier_apart": lambda *_: True},
    }  # fmt: skip
    told = " ".join(failures(target("theirs", change, **facts.get(what, {}))).values())
    assert said in told


@pytest.mark.parametrize("what", ["reference", "no classifier"])
def test_the_core_refuses_such_a_target_too(what: str, tmp_path: Path) -> None:
    change, said = TARGETS[what]
    with pytest.raises(PluginError, match=f"target theirs under protocol 'default': .*{said}"):
        tiny_builder(str(tmp_path)).victim(tiny_spec(target("theirs", change)))


def test_a_target_that_reads_whole_numbers_only() -> None:
    @dataclass(frozen=True)
    class Divides(TinyTarget):
        """Divides by 255 whatever it gets."""

        name: ClassVar[str] = "divides"

        def build(self, card: Any, ctx: Any) -> Model:
            model = super().build(card, ctx)
            model.encode = lambda x: model["encoder"](x.float() / 255)  # type: ignore[method-assign]
            return model

    assert "whole numbers" in " ".join(failures(Divides()).values())


# ---- attacks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brightness(MembershipAttack):
    """Reads x as if it were always whole numbers."""

    name: ClassVar[str] = "brightness"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        sure = oracle.posteriors(question.examples).amax(1)
        return Membership(sure + question.examples.x.double().mean((1, 2, 3)) / 1e4)


@dataclass(frozen=True)
class Unsteady(MembershipAttack):
    """Depends on what no answer may depend on."""

    name: ClassVar[str] = "unsteady"
    needs: ClassVar[Access] = Access.POSTERIORS
    on: str = "generator"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        sure = oracle.posteriors(question.examples).amax(1)
        if self.on == "place":
            sure = sure + torch.arange(len(sure)) / 1e4
        elif self.on == "generator":
            sure = sure + torch.rand(len(sure)) / 1e5
        elif question.examples.x.is_floating_point():
            raise TypeError("give whole numbers")
        return Membership(sure)


@dataclass(frozen=True)
class Vandal(MembershipAttack):
    """Destroys what it is given."""

    name: ClassVar[str] = "vandal"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        made = Membership(oracle.posteriors(question.examples).amax(1))
        question.examples.y.zero_()
        ctx.auxiliary.x.zero_()
        return made


@dataclass(frozen=True)
class Careless(TinyTarget):
    """Writes into its world."""

    name: ClassVar[str] = "careless"

    def phases(self, model: Any, world: Any, ctx: Any) -> Any:
        world.members.x.mul_(0)
        return super().phases(model, world, ctx)


@dataclass(frozen=True)
class Rough(Defense):
    """Writes into its world."""

    name: ClassVar[str] = "rough"
    protects: ClassVar[tuple[str, ...]] = ("membership",)

    def on_data(self, world: Any, ctx: Any) -> Any:
        del ctx
        world.members.x.mul_(0)
        return world


_KEPT = TinyImages().load(None)


@dataclass(frozen=True)
class Hoarder(TinyImages):
    """Returns the same tensors each time."""

    name: ClassVar[str] = "hoarder"

    def card(self, root: Any) -> Any:
        return replace(super().card(root), name=self.name)

    def load(self, root: Any) -> Any:
        del root
        return replace(_KEPT)


def test_methods_that_write_or_share() -> None:
    what = "writes into no row that it is given"
    assert "phases() wrote into the world" in failures(Careless())[what]
    assert "on_data()" in failures(Rough())[what]
    assert "return new tensors" in failures(Hoarder())["loads the same rows each time"]


def test_attacks() -> None:
    told = failures(Brightness())
    assert any("whole numbers" in said for said in told.values())


@pytest.mark.parametrize(
    ("on", "check", "said"),
    [
        ("generator", "is deterministic and blind to the global generator", "use ctx.generator"),
        ("place", "a permuted question gives a permuted answer", "key random numbers by row"),
        ("floats", "answers alike on whole numbers and floats", "it raised TypeError"),
    ],
)
def test_only_the_check_of_what_an_attack_depends_on_fails(on: str, check: str, said: str) -> None:
    ((failed, told),) = failures(Unsteady(on=on)).items()
    assert failed == check
    assert said in told


def test_no_check_spoils_the_next() -> None:
    before = tiny_split().pool.x.clone()
    told = failures(Vandal())
    assert list(told) == ["leaves its inputs as they were"]
    assert "the attack changed" in told["leaves its inputs as they were"]
    checks(TinyTarget())[0]()
    assert torch.equal(tiny_split().pool.x, before)


@pytest.mark.parametrize("method", [
    Brightness(), Vandal(), Hoards(), defended(Centres), defended(Widens),
    target("theirs", TARGETS["reference"][0]),
])  # fmt: skip
def test_every_failure_says_something(method: Any) -> None:
    assert all(len(said) > 30 for said in failures(method).values())
    checks(TinyTarget())[0]()  # the kit's rows as they were, for the next test of this process


@dataclass(frozen=True)
class Silent(EarlyStopping):
    """Stops by the loss on reference rows, and does not say so."""

    def learns_from_reference(self, cell: Any) -> bool:
        """Return what is wrong."""
        del cell
        return False


def test_a_defense_that_learns_from_optional_reference_rows_says_so() -> None:
    name = "learns from reference rows only if it says so"
    (check,) = (one for one in checks(Silent()) if one.name == name)
    with pytest.raises(AssertionError, match="override learns_from_reference"):
        check()


def test_who_learns_from_optional_reference_rows() -> None:
    registry = plugins.load()

    def told(defense: str, target: str, protocol: str = "default") -> str:
        suite = {"datasets": ["digits"], "protocols": [protocol], "targets": [target]}
        made = suite_from({**suite, "defenses": [defense], "attacks": ["metric-loss"]}, "x")
        planned = plan(made, registry, root=None, device="cpu")
        (cell,) = (p.trial.cell for p in planned if p.trial.cell.defenses[0].name == defense)
        return learning_from_reference(cell)

    assert told("early-stopping", "supervised") == "early-stopping"  # by patience, its default
    assert told("dp-features", "simclr") == "dp-features"  # centred by them
    assert told("dp-features", "simclr", "public-encoder") == ""  # centred by public rows
    assert told("memguard", "supervised") == "memguard"  # requires them
    assert told("talos", "simclr") == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"columns": (Column("AUC", "metrics", "aucc"),)},
            "the game's board shows 'aucc'",
        ),
        ({"columns": (Column("x", "baselines.guess", "auc"),)}, "which the game does not return"),
        ({"columns": (Column("x", "controls.nulls", "auc"),)}, "of 'controls.nulls'"),
        ({"columns": (Column("x", "metrics", "no", optional=True),)}, ""),
        ({"constant": "guess"}, "names the baseline 'guess'"),
        ({}, ""),
    ],
)
def test_columns_that_a_game_does_not_fill(change: Any, said: str) -> None:
    game = copy.copy(GAMES["membership"])
    game.board = replace(game.board, **change)  # type: ignore[misc]
    scored = dict.fromkeys(("auc", "balanced_accuracy", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001"), 0.5)
    baselines = {"blind": {"auc": 0.5}}
    if not said:
        fills_board(game, scored, baselines)
        return
    with pytest.raises(AssertionError, match=said):
        fills_board(game, scored, baselines)
