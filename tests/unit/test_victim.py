"""Every seam between target, defenses and a served victim; what is shared and what is not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional as F

from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store
from privbench.measure.data.examples import Card, Examples, as_float
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import Split, World, cut
from privbench.measure.methods.access import Access
from privbench.measure.methods.defense import Defense, Release
from privbench.measure.methods.target import Target
from privbench.measure.training.loop import Training
from privbench.measure.training.model import Model
from privbench.measure.training.phase import (
    Batch,
    BatchSpec,
    Monitor,
    Optimizer,
    Outputs,
    Phase,
    Step,
    Stream,
    TrainingError,
)
from privbench.measure.victims.build import Builder, access
from privbench.measure.victims.obeyed import disobedience
from privbench.measure.victims.play import Siblings, as_adversary_sees
from privbench.measure.victims.served import Victim
from privbench.measure.victims.spec import VictimSpec
from privbench.measure.victims.stages import load, shared_phases
from privbench.testing import CPU, TinyImages, TinyTarget, memoriser, tiny_split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from privbench.measure.methods.context import DefenseContext, TargetContext

SPEC = Optimizer("adam", 1e-2)


def _embed(model: Model, batch: Batch) -> Outputs:
    h = model.encode(batch.x)
    return Outputs(h=h, logits=lambda: model.logits(h))


def _read(model: Model, batch: Batch) -> Outputs:
    return Outputs(h=batch.x, logits=lambda: model.logits(batch.x))


def _hard(out: Outputs, batch: Batch, clock: Any) -> Tensor:
    del clock
    return F.cross_entropy(out.logits, batch.y)


@dataclass(frozen=True)
class TwoPhases(Target):
    """A tiny encoder trained on its inputs' mean, then a classifier on embeddings."""

    name: ClassVar[str] = "two-phases"
    grants: ClassVar[Access] = (
        Access.LABELS | Access.POSTERIORS | Access.EMBEDDINGS | Access.GRADIENTS | Access.WEIGHTS
    )

    epochs: Annotated[int, Ge(1)] = 2
    classifier_lr: float = 1e-2
    watched: bool = False
    untrained: bool = False

    def build(self, card: Card, ctx: TargetContext) -> Model:
        del ctx
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.1), nn.Tanh())
        encoder.width = 8  # type: ignore[assignment]
        head = nn.Linear(8, 1)
        return Model(card, {"encoder": encoder, "head": head, "classifier": nn.Linear(8, 10)})

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        def mean(out: Outputs, batch: Batch, clock: Any) -> Tensor:
            del clock
            wanted = batch.x.float().mean((1, 2, 3)) / 255
            return F.mse_loss(model["head"](out.h)[:, 0], wanted)

        step = Step(mean, trains=("encoder", "head"))
        pretrain = [
            Phase(
                name=f"encoder-{rows}", rows=rows, forward=_embed, steps={"train": step},
                epochs=self.epochs, batch=BatchSpec(40), reads_labels=False,
                optimizers={"encoder": SPEC, "head": SPEC},
            )
            for rows in ctx.protocol.encoder
        ]  # fmt: skip
        watch = Monitor({"reference": world.reference}, patience=1) if self.watched else None
        classify = Phase(
            name="classifier", rows=ctx.protocol.classifier, reads="embeddings", forward=_read,
            steps={"train": Step(_hard, trains=("classifier",))}, epochs=3, batch=BatchSpec(40),
            optimizers={"classifier": Optimizer("adam", self.classifier_lr)}, monitor=watch,
        )  # fmt: skip
        return [classify] if self.untrained else [*pretrain, classify]


class _Log:
    """Keeps what happened; unlike a list it is not part of a method's identity."""

    def __init__(self) -> None:
        self.items: list[Any] = []


class _Defense(Defense):
    protects: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Nothing(_Defense):
    name: ClassVar[str] = "nothing"


@dataclass(frozen=True)
class Identity(_Defense):
    """Overrides a stage and changes nothing there."""

    name: ClassVar[str] = "identity"

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        del model, world, ctx
        return list(phases)


@dataclass(frozen=True)
class Smooth(_Defense):
    name: ClassVar[str] = "smooth"
    smoothing: float = 0.3

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        del model, world, ctx

        def soft(out: Outputs, batch: Batch, clock: Any) -> Tensor:
            del clock
            return F.cross_entropy(out.logits, batch.y, label_smoothing=self.smoothing)

        return [
            replace(p, steps={"train": replace(p.steps["train"], loss=soft)})
            if p.trains("classifier") else p
            for p in phases
        ]  # fmt: skip


@dataclass(frozen=True)
class Relabel(_Defense):
    name: ClassVar[str] = "relabel"

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        del ctx
        return world.replace(members=world.members.with_y((world.members.y + 1) % 3))


@dataclass(frozen=True)
class Dim(_Defense):
    """Changes x by less than a stored step, as a careless author writes it."""

    name: ClassVar[str] = "dim"
    by: float = 0.1

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        del ctx
        x = as_float(world.members.x, 255) * (1 - self.by)
        return world.replace(members=replace(world.members, x=x))


@dataclass(frozen=True)
class Wide(_Defense):
    name: ClassVar[str] = "wide"

    def on_build(self, model: Model, ctx: DefenseContext) -> Model:
        ctx.module(model, "extra", lambda: nn.Linear(2, 2))
        model.parts["encoder"].append(nn.Hardtanh())  # type: ignore[operator]
        return model


@dataclass(frozen=True)
class Noise(_Defense):
    """Weight noise from the global generator, after looking at the model's mode."""

    name: ClassVar[str] = "noise"
    scale: float = 0.5
    calls: ClassVar[_Log] = _Log()

    def on_trained(
        self, model: Model, phases: Sequence[Phase], world: World, ctx: DefenseContext
    ) -> Model:
        del phases, world
        self.calls.items.append(any(m.training for m in model.modules()))
        with torch.no_grad():
            for p in model["classifier"].parameters():
                p.add_(self.scale * torch.randn(p.shape))
        ctx.note(noise=self.scale, shape=(1, 2))
        ctx.claim(epsilon=1.0, delta=0.0, of=("classifier",))
        return model


class _Rounding(Release):
    of = "posterior"

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        del x, u
        rough = (value * 10).round() + 1
        return rough / rough.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Round(_Defense):
    name: ClassVar[str] = "round"
    release_class: ClassVar[type[Release]] = _Rounding

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        del card, model, ctx
        return _Rounding()


class _Masking(Release):
    of = "embedding"
    uniforms = 1
    mask: Tensor

    def __init__(self, *, fresh: bool, noise: float) -> None:
        super().__init__()
        self.fresh = fresh
        self.noise = noise
        self.scale = nn.Linear(8, 8)  # initial weights from the global generator
        self.register_buffer("mask", torch.zeros(8))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        with torch.no_grad():
            self.mask.copy_(model.encode(world.reference.x).mean(0))
        ctx.note(fitted_on=len(world.reference))

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        del x
        out: Tensor = self.scale(value) - self.mask + self.noise * u
        return out

    def sibling(self, seed: int) -> Release:
        other = type(self)(fresh=self.fresh, noise=self.noise)
        other.load_state_dict({**self.state_dict(), "mask": self.mask + 1 + seed % 7})
        return other


class _Feeding(_Masking):
    feeds_classifier = True


@dataclass(frozen=True)
class Mask(_Defense):
    name: ClassVar[str] = "mask"
    classifier: bool = False
    fresh: bool = False
    noise: float = 0.0

    @property
    def release_class(self) -> type[_Masking]:
        return _Feeding if self.classifier else _Masking

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        del card, model, ctx
        return self.release_class(fresh=self.fresh, noise=self.noise)


class _Shift(Release):
    of = "embedding"
    by: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("by", torch.zeros(1))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        del model, ctx
        self.by.fill_(float(world.reference.attributes[self.name].sum()))

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        del x, u
        return value + self.by


@dataclass(frozen=True)
class Reader(_Defense):
    """Reads the sensitive attribute while fitting its release."""

    name: ClassVar[str] = "reader"
    uses_attributes: ClassVar[bool] = True
    release_class: ClassVar[type[Release]] = _Shift

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        del card, model
        return _Shift(ctx.sensitive[0])


def _job(
    *defenses: Defense, target: Target | None = None, split: Split | None = None,
    world: World | None = None, sensitive: tuple[str, ...] = ("bright",),
) -> VictimSpec:  # fmt: skip
    split = split or tiny_split()
    return VictimSpec(
        split.card, split.protocol, world or split.victim(), target or TwoPhases(), defenses,
        sensitive,
    )  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Builder:
    return Builder(Store(tmp_path / "a"), CPU)


X = tiny_split().pool.x[:70]


def _equal(a: Victim, b: Victim) -> bool:
    return torch.equal(a.embeddings(X), b.embeddings(X)) and torch.equal(
        a.log_posteriors(X), b.log_posteriors(X)
    )


def _weights(victim: Victim, part: str) -> Tensor:
    return torch.cat([p.flatten() for p in victim.model[part].parameters()])


# ---- sharing -------------------------------------------------------------------------------------


def test_no_op_defenses_are_undefended_and_share_all_artifacts(shop: Builder) -> None:
    plain = shop.victim(_job())
    for stack in ((Nothing(),), (Identity(),), (Nothing(), Identity())):
        defended = shop.victim(_job(*stack))
        assert defended.key == plain.key
        assert _equal(defended, plain)
    assert shop.trained_phases == 2


def test_a_no_op_in_a_stack_changes_nothing(shop: Builder) -> None:
    alone, stacked = shop.victim(_job(Smooth())), shop.victim(_job(Nothing(), Smooth()))
    assert alone.key == stacked.key
    assert shop.trained_phases == 2


def test_defenses_share_what_is_drawn_only_with_their_family(shop: Builder) -> None:
    drawn: dict[str, float] = {}

    def draws(named: str, kin: str) -> Defense:
        @dataclass(frozen=True)
        class Draws(_Defense):
            name: ClassVar[str] = named
            family: ClassVar[str] = kin

            def on_build(self, model: Model, ctx: DefenseContext) -> Model:
                drawn[named] = float(torch.rand((), generator=ctx.generator("x")))
                return model

        return Draws()

    for named, kin in (("a", ""), ("b", ""), ("c", "clan"), ("d", "clan"), ("clan", "")):
        shop.draft(_job(draws(named, kin)))
    assert len({drawn[one] for one in ("a", "b", "c")}) == 3
    assert drawn["c"] == drawn["d"] == drawn["clan"]


def test_a_defense_of_the_classifier_shares_the_encoder(shop: Builder) -> None:
    plain = shop.victim(_job())
    smooth = shop.victim(_job(Smooth()))
    assert shop.trained_phases == 3
    assert torch.equal(plain.embeddings(X), smooth.embeddings(X))
    assert not torch.equal(plain.log_posteriors(X), smooth.log_posteriors(X))
    shop.victim(_job(Smooth(0.1)))
    assert shop.trained_phases == 4


def test_changed_rows_retrain_what_reads_them(shop: Builder) -> None:
    plain, other = shop.victim(_job()), shop.victim(_job(Relabel()))
    assert shop.trained_phases == 3, "the encoder reads no labels"
    assert not torch.equal(plain.log_posteriors(X), other.log_posteriors(X))


@pytest.mark.parametrize("by", [0.1, 1e-4])
def test_changed_x_retrains_even_if_its_author_left_the_keys(shop: Builder, by: float) -> None:
    plain, dim = shop.victim(_job()), shop.victim(_job(Dim(by)))
    assert shop.trained_phases == 4
    assert not _equal(plain, dim)


def test_one_hyperparameter_retrains_only_what_depends_on_it(shop: Builder) -> None:
    first = shop.victim(_job())
    # The whole target is in the key of its phases: its encoder could depend on any field.
    shop.victim(_job(target=TwoPhases(classifier_lr=1e-3)))
    assert shop.trained_phases == 4
    shop.victim(_job(Noise(0.1)))
    shop.victim(_job(Noise(0.2)))
    shop.victim(_job(Round()))
    assert shop.trained_phases == 4
    assert first.key != shop.victim(_job(Round())).key


def test_a_second_workshop_trains_nothing_and_serves_the_same_bits(
    shop: Builder, tmp_path: Path
) -> None:
    for stack in ((), (Smooth(), Noise(), Mask(classifier=True, noise=1.0), Round()), (Wide(),)):
        made = shop.victim(_job(*stack))
        again = Builder(shop.store, CPU)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(5)
            held = again.victim(_job(*stack))
            afresh = Builder(Store(tmp_path / f"b{len(stack)}"), CPU).victim(_job(*stack))
        assert again.trained_phases == 0
        assert held.key == made.key == afresh.key
        assert _equal(made, held)
        assert _equal(made, afresh), "it depends on the global generator"
        assert held.facts == made.facts
        timeless = ("notes", "claims")
        assert {n: made.facts[n] for n in timeless} == {n: afresh.facts[n] for n in timeless}


def test_a_card_or_reference_that_training_reads_is_in_the_key(shop: Builder) -> None:
    """Limits narrow the views of training; a monitor stops it."""
    job = _job()
    first = shop.victim(job)
    assert job.card.limits is not None
    tighter = replace(job.card, limits=replace(job.card.limits, shift=0))
    assert shop.victim(replace(job, card=tighter)).key != first.key
    watched = _job(target=TwoPhases(watched=True))
    before = shop.victim(watched)
    smaller = watched.world.replace(reference=watched.world.reference.select(slice(0, 10)))
    assert shop.victim(replace(watched, world=smaller)).key != before.key


def test_a_phase_that_a_defense_changed_depends_on_all_that_it_may_have_seen(
    shop: Builder,
) -> None:
    job = _job(Smooth())
    shop.victim(job)
    fewer = job.world.replace(reference=job.world.reference.select(slice(0, 7)))
    shop.victim(replace(job, world=fewer))
    assert shop.trained_phases == 3, "the classifier again, the encoder not"
    shop.victim(replace(job, sensitive=()))
    assert shop.trained_phases == 3, "it reads no attributes"


def test_worlds_differ_even_where_nothing_is_trained(shop: Builder) -> None:
    @dataclass(frozen=True)
    class Random(TinyTarget):
        name: ClassVar[str] = "random"

        def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
            del model, world, ctx
            return []

    one = shop.victim(_job(target=Random()))
    other = shop.victim(_job(target=Random(), world=tiny_split().null()))
    assert one.key != other.key
    assert not _equal(one, other)


def test_the_untrained_victim_is_the_start_of_training(shop: Builder) -> None:
    raw = shop.untrained(_job(Smooth()))
    assert shop.trained_phases == 0
    assert raw.key == shop.untrained(_job()).key != shop.victim(_job()).key
    assert not torch.equal(raw.embeddings(X), shop.victim(_job()).embeddings(X))


def test_an_undeclared_change_is_refused(shop: Builder) -> None:
    @dataclass(frozen=True)
    class Sneaky(_Defense):
        name: ClassVar[str] = "sneaky"

        def on_phases(
            self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
        ) -> Sequence[Phase]:
            del model, world, ctx

            def after(model: Model, out: Outputs) -> None:
                del out
                model["classifier"].get_parameter("bias").data.add_(1)

            step = replace(phases[0].steps["train"], after=after)
            return [replace(phases[0], steps={"train": step}), *phases[1:]]

    with pytest.raises(TrainingError, match=r"changed 'classifier\.bias'"):
        shop.victim(_job(Sneaky()))


# ---- public phases -------------------------------------------------------------------------------


def _public_split() -> Split:
    data = TinyImages()
    protocol = Protocol(
        members=60, nonmembers=60, reference=20, public=100, pool=300, encoder=("public", "members")
    )
    return cut(data.load(None), data.card(None), protocol, 1)


def test_a_public_phase_is_trained_once_and_classifiers_start_apart(shop: Builder) -> None:
    split = _public_split()
    worlds = [split.victim(), split.offline(0)[0], split.offline(1)[0]]
    slow = TwoPhases(classifier_lr=1e-12)
    made = [shop.victim(_job(split=split, world=world, target=slow)) for world in worlds]
    assert shop.trained_phases == 1 + 2 * 3
    a, b, c = (_weights(victim, "classifier") for victim in made)
    assert not torch.allclose(a, b)
    assert not torch.allclose(b, c)
    assert len({victim.key for victim in made}) == 3


@pytest.mark.parametrize(
    ("shown", "trained", "problem"),
    [
        (("members", "members"), ("members", "members"), None),
        (("members", "downstream"), ("members", "downstream"), None),
        (("members", "downstream"), ("members", "members"), "shows it downstream at last"),
        (("downstream", "members"), ("downstream", "downstream"), "shows it members at last"),
        (("members", "members"), ("members", "public"), "which the protocol shows to no phase"),
        (("members", "downstream"), ("downstream", "downstream"), "shows it members: "),
    ],
)
def test_phases_train_on_what_the_protocol_shows(
    shown: tuple[Any, Any], trained: tuple[str, str], problem: str | None
) -> None:
    protocol = Protocol(
        members=80, nonmembers=80, downstream=40, pool=300, encoder=shown[:1], classifier=shown[1]
    )
    phases: Any = [
        SimpleNamespace(name=part, rows=rows, trains=part.__eq__)
        for part, rows in zip(("encoder", "classifier"), trained, strict=True)
    ]
    model: Any = {"encoder", "classifier"}
    found = disobedience(model, phases, protocol)
    assert found is None if problem is None else problem in (found or "")


def test_loaded_weights_are_copies_unless_they_are_assigned() -> None:
    for assign in (False, True):
        model = Model(tiny_split().card, {"encoder": nn.Linear(2, 1, bias=False).double()})
        kept = {"encoder.weight": torch.ones(1, 2)}
        load(model, kept, assign=assign) if assign else load(model, kept)
        weight: Any = model["encoder"].weight
        assert weight.dtype == (torch.float32 if assign else torch.float64)
        kept["encoder.weight"] += 1
        assert float(weight.detach().sum()) == (4 if assign else 2)


def test_after_a_phase_on_members_no_public_one_is_shared() -> None:
    def phases(*rows: str) -> Any:
        return [SimpleNamespace(rows=one, made_by=("target",)) for one in rows]

    assert shared_phases(phases("public", "public", "members")) == 2
    assert shared_phases(phases("public", "members", "public")) == 1
    assert shared_phases(phases("members", "public")) == 0


def test_a_public_phase_does_not_depend_on_who_trains_it_first(tmp_path: Path) -> None:
    split = _public_split()
    for n, defenses in enumerate([(), (Wide(),), (Identity(),)]):
        jobs = [
            _job(*defenses, split=split, world=w) for w in (split.victim(), split.offline(0)[0])
        ]
        one, other = (Builder(Store(tmp_path / f"{n}{i}"), CPU) for i in range(2))
        first = [one.victim(job) for job in jobs]
        second = [other.victim(job) for job in jobs[::-1]][::-1]
        assert all(_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_public_classifier_on_random_encoders_is_shared_with_the_encoder(shop: Builder) -> None:
    split = _public_split()
    split = replace(split, protocol=replace(split.protocol, classifier="public"))
    target = TwoPhases(untrained=True)
    one = shop.victim(_job(split=split, target=target))
    other = shop.victim(_job(split=split, target=target, world=split.offline(0)[0]))
    assert torch.equal(_weights(one, "classifier"), _weights(other, "classifier"))
    assert torch.equal(_weights(one, "encoder"), _weights(other, "encoder"))
    assert _equal(one, other)


# ---- weights -------------------------------------------------------------------------------------


def test_weight_noise_is_drawn_once_and_its_words_come_back_from_the_store(shop: Builder) -> None:
    Noise.calls.items.clear()
    plain, first = shop.victim(_job()), shop.victim(_job(Noise()))
    second = Builder(shop.store, CPU).victim(_job(Noise()))
    assert Noise.calls.items == [False], (
        "once, in eval mode although its phases came from the store"
    )
    assert not torch.equal(_weights(plain, "classifier"), _weights(first, "classifier"))
    assert torch.equal(_weights(first, "classifier"), _weights(second, "classifier"))
    assert first.facts["claims"] == [{"epsilon": 1.0, "delta": 0.0, "of": ["classifier"]}]
    assert second.facts["claims"] == first.facts["claims"]
    assert second.facts["notes"] == first.facts["notes"] == {"noise": 0.5, "shape": [1, 2]}


# ---- releases ------------------------------------------------------------------------------------


def test_a_posterior_release_leaves_embeddings_alone(shop: Builder) -> None:
    plain, rounded = shop.victim(_job()), shop.victim(_job(Round()))
    assert torch.equal(plain.embeddings(X), rounded.embeddings(X))
    p = rounded.log_posteriors(X).exp()
    assert torch.allclose(p, (plain.log_posteriors(X).exp() * 10).round() / 10, atol=1e-12)
    assert rounded.log_posteriors(X).isfinite().all()


def test_a_release_of_another_class_than_named_is_refused(shop: Builder) -> None:
    @dataclass(frozen=True)
    class Other(Round):
        release_class: ClassVar[type[Release]] = _Shift

    with pytest.raises(PluginError, match="returned a _Rounding, which is not its release_class"):
        shop.draft(_job(Other()))


def test_a_release_hides_gradients_and_weights(shop: Builder) -> None:
    hidden = Access.GRADIENTS | Access.WEIGHTS
    assert shop.victim(_job()).grants & hidden == hidden
    assert shop.victim(_job(Round())).grants & hidden == Access.NONE
    assert access(TwoPhases(), (Nothing(), Round())) & hidden == Access.NONE


def test_the_classifier_trains_on_released_embeddings_where_it_shall(shop: Builder) -> None:
    plain = shop.victim(_job())
    late, early = shop.victim(_job(Mask())), shop.victim(_job(Mask(classifier=True)))
    assert torch.equal(_weights(plain, "classifier"), _weights(late, "classifier"))
    assert not torch.equal(_weights(plain, "classifier"), _weights(early, "classifier"))
    assert torch.equal(_weights(plain, "encoder"), _weights(early, "encoder"))
    assert shop.trained_phases == 3
    assert early.facts["notes"] == {"fitted_on": 40}
    by_hand = early.releases[0](X, plain.embeddings(X), torch.zeros(len(X), 1))
    assert torch.allclose(early.embeddings(X), by_hand, atol=1e-6)
    mask = early.releases[0].get_buffer("mask")
    assert torch.allclose(mask, plain.embeddings(tiny_split().reference.x).mean(0), atol=1e-5), (
        "fitted on the trained encoder"
    )
    # by hand: the classifier phase on the released rows of the members
    world, raw = tiny_split().victim(), shop.untrained(_job()).model
    phase = shop.draft(_job()).phases[-1]
    rows = replace(world.members, x=early.embeddings(world.members.x))
    Training(raw, phase, rows, world.salt("phase", "classifier")).run()
    for name, tensor in raw["classifier"].state_dict().items():
        assert torch.equal(tensor, early.model["classifier"].state_dict()[name])


def test_a_fitted_release_is_in_the_key_of_the_classifier(shop: Builder) -> None:
    job = _job(Mask(classifier=True))
    first = shop.victim(job)
    fewer = job.world.replace(reference=job.world.reference.select(slice(0, 7)))
    second = shop.victim(replace(job, world=fewer))
    assert first.key != second.key
    assert not torch.equal(_weights(first, "classifier"), _weights(second, "classifier"))


def test_draws_are_functions_of_the_row(shop: Builder) -> None:
    victim = shop.victim(_job(Mask(noise=1.0)))
    once = victim.embeddings(X)
    assert torch.equal(once, victim.embeddings(X))
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    assert torch.equal(victim.embeddings(X[order]), once[order])
    assert not torch.allclose(once, shop.victim(_job(Mask())).embeddings(X))
    null = shop.victim(_job(Mask(noise=1.0), world=tiny_split().null()))

    def noise(v: Victim) -> Tensor:
        still: Tensor = v.releases[0](X, v.unreleased().embeddings(X), torch.zeros(70, 1))
        return v.embeddings(X) - still

    assert not torch.allclose(noise(victim), noise(null), atol=1e-3)


def test_fresh_draws_differ_and_depend_on_the_askers_own_count_only(shop: Builder) -> None:
    victim = shop.victim(_job(Mask(noise=1.0, fresh=True)))
    assert victim.fresh
    first, second = victim.embeddings(X), victim.embeddings(X)
    assert not torch.allclose(first, second)
    again = victim.session("")
    assert torch.equal(again.embeddings(X), first)
    assert torch.equal(again.embeddings(X), second)


def test_a_sibling_has_releases_of_its_own(shop: Builder) -> None:
    victim = shop.victim(_job(Mask(noise=1.0)))
    other, third = victim.sibling(1), victim.sibling(2)
    assert len({victim.key, other.key, third.key}) == 3
    assert not torch.allclose(victim.embeddings(X), other.embeddings(X))
    assert not torch.allclose(other.embeddings(X), third.embeddings(X))
    assert torch.equal(other.embeddings(X), victim.sibling(1).embeddings(X))
    assert torch.equal(victim.unreleased().embeddings(X), shop.victim(_job()).embeddings(X))


def test_an_adversary_releases_its_rows_any_number_of_times(shop: Builder) -> None:
    victim, plain = shop.victim(_job(Mask(noise=1.0))), shop.victim(_job())
    rows = Examples.of(X, torch.zeros(len(X), dtype=torch.int64), scale=1.0)

    def own(served: Victim, *, adaptive: bool) -> Siblings:
        first = as_adversary_sees(served, adaptive=adaptive, seed=3)
        return Siblings(
            served, first, Access.EMBEDDINGS, adaptive=adaptive, seed=3, asker="test",
            store=shop.store,
        )  # fmt: skip

    siblings = own(victim, adaptive=True)
    three = siblings.ask_for(3)
    answers = [one.embeddings(rows) for one in three]
    everyone = [*answers, victim.embeddings(X)]
    for i, one in enumerate(everyone):
        assert not any(torch.allclose(one, other) for other in everyone[:i])
    assert three[0] is siblings.oracles[0]
    assert siblings.ask_for(2) == three[:2]
    assert [one.queries for one in siblings.oracles] == [len(X)] * 3
    # The store keeps each answer under a key of its own.
    again = own(victim, adaptive=True).ask_for(4)
    for oracle, answer in zip(again, answers, strict=False):
        assert torch.equal(oracle.embeddings(rows), answer)
    assert not torch.allclose(again[3].embeddings(rows), answers[0])
    for served, adaptive in ((plain, True), (plain, False), (victim, False)):
        alone = own(served, adaptive=adaptive)
        assert alone.ask_for(9) == tuple(alone.oracles)
        assert torch.equal(alone.oracles[0].embeddings(rows), plain.embeddings(X))


def test_the_sensitive_attribute_reaches_those_who_declare_it(shop: Builder) -> None:
    data = tiny_split()
    rows = data.reference
    other = {"bright": rows.attributes["bright"], "dark": 1 - rows.attributes["bright"]}
    world = data.victim().replace(reference=replace(rows, attributes=other))
    bright = shop.victim(_job(Reader(), world=world))
    dark = shop.victim(_job(Reader(), world=world, sensitive=("dark",)))
    assert bright.key != dark.key
    assert not torch.equal(bright.embeddings(X), dark.embeddings(X))
    flipped = replace(rows, attributes={"bright": other["dark"]})
    changed = shop.victim(_job(Reader(), world=world.replace(reference=flipped)))
    assert changed.key != bright.key
    plain = shop.victim(_job(world=world))
    assert shop.victim(_job(world=world, sensitive=())).key == plain.key


def test_answers_do_not_depend_on_what_is_asked_beside(shop: Builder) -> None:
    victim = shop.victim(_job(Mask(noise=0.5), Round()))
    rows = tiny_split().pool.x[:300]
    together = victim.embeddings(rows), victim.log_posteriors(rows)
    for i in (0, 3, 255, 256, 299):
        one = rows[i : i + 1]
        assert torch.equal(victim.embeddings(one)[0], together[0][i])
        assert torch.equal(victim.log_posteriors(one)[0], together[1][i])
    assert torch.equal(victim.embeddings(rows.float() / 255), together[0])


def test_serving_is_in_eval_mode_and_gradients_are_of_the_input(shop: Builder) -> None:
    victim = shop.victim(_job())
    assert not any(m.training for m in victim.model.modules())
    assert not victim.embeddings(X).requires_grad
    gradient = victim.gradients(X[:5], lambda served, x: served.log_posteriors(x)[:, 0])
    x = (X[:5].float() / 255).requires_grad_()
    victim.model.logits(victim.model.encode(x)).log_softmax(1)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.allclose(gradient, x.grad, atol=1e-6)
    copies = victim.weights()
    next(iter(copies.values())).zero_()
    assert torch.equal(shop.victim(_job()).embeddings(X), victim.embeddings(X))


# ---- services ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distil(_Defense):
    """Trains undefended models on halves and computes something once."""

    name: ClassVar[str] = "distil"
    twist: int = 0
    built: ClassVar[_Log] = _Log()
    models: ClassVar[_Log] = _Log()

    def inner_worlds(self, world: World, ctx: DefenseContext) -> list[World]:
        del ctx
        halves = [world.members.select(slice(i, None, 2)) for i in range(2)]
        return [world.replace(members=half) for half in halves]

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        self.models.items[:] = models
        built, tens = self.built, self.twist // 10

        def build() -> dict[str, Tensor]:
            built.items.append(tens)
            return {"y": torch.stack([m.logits(m.encode(members.x)) for m in models]).mean(0)}

        return ctx.once("teachers", build, tens=tens)["y"].softmax(1)


def test_a_defense_trains_undefended_models_and_computes_once(shop: Builder) -> None:
    Distil.built.items.clear()
    first = shop.victim(_job(Distil()))
    assert shop.trained_phases == 2 * 2 + 2
    shop.victim(_job())
    assert shop.trained_phases == 2 * 2 + 3, "soft labels share the encoder"
    a, b = Distil.models.items
    assert not torch.equal(a["encoder"][1].weight, b["encoder"][1].weight)
    for model in Distil.models.items:
        assert not any(m.training for m in model.modules())
    second = Builder(shop.store, CPU).victim(_job(Distil()))
    assert _equal(first, second)
    shop.victim(_job(Distil(twist=3)))
    assert Distil.built.items == [0], "3 // 10 is 0: the same settings as far as it declares"
    shop.victim(_job(Distil(twist=10)))
    assert Distil.built.items == [0, 1]
    assert all(not any(m.training for m in model.modules()) for model in Distil.models.items)


def test_later_phases_begin_with_the_trained_encoder_also_under_other_labels(
    shop: Builder,
) -> None:
    for stack in ((), (Distil(),)):
        draft = shop.make_until(_job(*stack), None)
        encoder, begun = draft.model["encoder"].state_dict(), draft.initial
        assert encoder
        assert all(torch.equal(begun[f"encoder.{name}"], one) for name, one in encoder.items())
        classifier = draft.model["classifier"].state_dict()
        assert not torch.equal(begun["classifier.weight"], classifier["weight"])


def test_train_on_gives_a_finished_model_also_from_the_store(shop: Builder) -> None:
    job, rows = _job(Smooth()), tiny_split().pool.select(slice(0, 50))
    made, held = shop.train_on(job, rows), shop.train_on(job, rows)
    assert shop.trained_phases == 2
    for model in (made, held):
        assert not any(m.training for m in model.modules())
        assert not any(p.requires_grad for p in model.parameters())
    assert torch.equal(made.encode(X), held.encode(X))


def test_once_does_not_mix_up_stacks(shop: Builder) -> None:
    """What a defense computes from data that another one changed is not what it computes alone."""
    seen: list[float] = []

    @dataclass(frozen=True)
    class Counts(_Defense):
        name: ClassVar[str] = "counts"

        def on_phases(
            self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
        ) -> Sequence[Phase]:
            del model
            mean = ctx.once("mean", lambda: {"m": world.members.y.double().mean()})["m"]
            assert ctx.world is world
            seen.append(float(mean) - float(world.members.y.double().mean()))
            return phases

    shop.victim(_job(Counts()))
    shop.victim(_job(Relabel(), Counts()))
    assert seen == [0.0, 0.0]


def test_streams_and_monitors_of_a_phase_on_embeddings_are_embedded(shop: Builder) -> None:
    shapes: list[tuple[int, ...]] = []

    @dataclass(frozen=True)
    class Watches(_Defense):
        name: ClassVar[str] = "watches"

        def on_phases(
            self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
        ) -> Sequence[Phase]:
            del model, ctx

            def loss(out: Outputs, batch: Batch, clock: Any) -> Tensor:
                shapes.append(tuple(batch.streams["ref"].x.shape))
                assert clock.epoch == 1 or "reference.accuracy" in clock.metrics
                return _hard(out, batch, clock)

            step = replace(
                phases[1].steps["train"], loss=loss, streams={"ref": Stream(world.reference, 9)}
            )
            watch = Monitor({"reference": world.reference})
            return [phases[0], replace(phases[1], steps={"train": step}, monitor=watch)]

    shop.victim(_job(Watches()))
    assert set(shapes) == {(9, 8)}


def test_the_plan_has_the_keys_that_training_makes(shop: Builder) -> None:
    for stack in ((), (Mask(classifier=True), Smooth()), (Noise(), Round())):
        job = _job(*stack)
        trained = shop.trained_phases
        keys = shop.planned(job)
        assert shop.trained_phases == trained
        shop.victim(job)
        assert all(shop.planned(job).values())
        assert list(shop.planned(job)) == list(keys)


class Seen(Release):
    """Keeps the random numbers that it is given."""

    of = "embedding"
    uniforms = 5

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Answer the value as it is."""
        del x
        self.u = u.clone()
        return value


def test_two_releases_of_one_victim_draw_different_noise() -> None:
    """Noise of one place twice would cancel or double where it must add up as independent."""
    split = tiny_split()
    bare = memoriser(split.victim())
    first, second = Seen(), Seen()
    second.place = 1
    served = Victim(bare.card, bare.model, key="two", grants=bare.grants, releases=(first, second))
    served.embeddings(split.test.x)
    n = len(split.test)  # answered in blocks, which are filled up
    both = torch.stack([first.u[:n].flatten(), second.u[:n].flatten()])
    assert not torch.equal(*both)
    assert abs(float(both.corrcoef()[0, 1])) < 0.2
    second.place = 0
    served.embeddings(split.test.x)
    assert torch.equal(first.u, second.u)
