"""Fixtures of the conformance kit: tiny data, planted victims and an arena for attacks."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from privbench.ground.store.source import digest
from privbench.ground.store.store import Store
from privbench.measure.data.augmentation import Augmentation
from privbench.measure.data.examples import Card, Examples, as_float
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import Split, World, cut
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.membership import MembershipAttack, MembershipQuestion
from privbench.measure.methods.access import Access
from privbench.measure.methods.context import AttackContext, Shadow, TargetContext
from privbench.measure.methods.dataset import Dataset
from privbench.measure.methods.oracle import Oracle
from privbench.measure.methods.target import Target
from privbench.measure.training.model import Model
from privbench.measure.victims.build import Builder
from privbench.measure.victims.play import Siblings
from privbench.measure.victims.served import Victim
from privbench.measure.victims.spec import VictimSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from privbench.measure.games.game import Game
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.defense import Defense
    from privbench.measure.training.phase import Phase, Progress


CPU = torch.device("cpu")


_ROWS, _SIDE, _CLASSES = 720, 8, 10
_CROPS = Augmentation(crop=(0.8, 1.0))


@dataclass(frozen=True)
class TinyImages(Dataset):
    """Smooth random 8×8 images with ten classes and the attribute ``bright`` (above the median).

    Attributes:
        real: whether x is stored as floats instead of whole numbers; the images are the same.
    """

    name: ClassVar[str] = "tiny-images"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=80, nonmembers=80, reference=40, pool=400, test=80
        )
    }

    real: bool = False

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name, kind="image", shape=(1, _SIDE, _SIDE), classes=_CLASSES, scale=255,
            attributes={"bright": 2}, sensitive=("bright",), sources={"all": _ROWS},
            limits=Augmentation(crop=(0.8, 1.0), shift=1, blur=1.0, blur_sigma=(0.1, 0.5)),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Generate the dataset, the same each time."""
        del root
        generator = torch.Generator().manual_seed(20211115)
        coarse = torch.rand(_ROWS, 1, 4, 4, generator=generator)
        x = nn.functional.interpolate(coarse, size=(_SIDE, _SIDE), mode="bilinear")
        y = torch.randint(_CLASSES, (_ROWS,), generator=generator)
        ink = x.mean((1, 2, 3))
        bright = (ink > ink.median()).long()
        x = (x * 255).round().byte()
        stored = as_float(x, 255) if self.real else x
        return Examples.of(stored, y, {"bright": bright}, scale=255)


class _Memory(nn.Module):
    """Embedding (n, d) that remembers members: closeness, signature of x, label of the nearest."""

    width: int = 17 + _CLASSES
    members: Tensor
    labels: Tensor
    waves: Tensor

    def __init__(self, members: Examples) -> None:
        super().__init__()
        self.register_buffer("members", as_float(members.x, members.scale).flatten(1).clone())
        self.register_buffer("labels", nn.functional.one_hot(members.y, _CLASSES).float())
        generator = torch.Generator().manual_seed(7)
        waves = torch.randn(self.members.shape[1], 16, generator=generator)
        self.register_buffer("waves", 6 * waves)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        distance = torch.cdist(flat, self.members)
        near = (-10 * distance).softmax(1) @ self.labels
        close = (-(distance.amin(1, keepdim=True) ** 2) / 1.5).exp()
        signature = (flat @ self.waves).sin() / 4
        return torch.cat([3 * close, 3 * (1 - close) * signature, close * near], dim=1)


class _Read(nn.Module):
    """Logits (n, k) from the last dimensions of the memory's embedding."""

    def forward(self, h: Tensor) -> Tensor:
        return 6 * h[:, -_CLASSES:]


class _Reveal(nn.Module):
    """Embedding that contains the brightness, among other linear features of x."""

    width: int = 8
    mix: Tensor

    def __init__(self) -> None:
        super().__init__()
        mix = torch.randn(_SIDE * _SIDE, 8, generator=torch.Generator().manual_seed(3)) / 32
        mix[:, 0] = 1 / 16
        self.register_buffer("mix", mix)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - 0.5) @ self.mix


class _Copy(nn.Module):
    """Embedding that is the image itself after a fixed rotation."""

    width: int = _SIDE * _SIDE
    turn: Tensor

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(self.width, self.width, generator=torch.Generator().manual_seed(5))
        self.register_buffer("turn", torch.linalg.qr(drawn).Q)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - 0.5) @ self.turn


class _Scramble(_Reveal):
    """Embedding that is unrelated to brightness: sines of high frequencies."""

    def forward(self, x: Tensor) -> Tensor:
        return (1e4 * (x.flatten(1) - x.mean((1, 2, 3))[:, None]) @ self.mix).sin()


def memoriser(world: World) -> Victim:
    """Return a victim that smoothly memorises the members of a world."""
    card = TinyImages().card(None)
    trained = Model(card, {"encoder": _Memory(world.members), "classifier": _Read()})
    trained.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    key = digest(["memory", world.digest()])
    return Victim(card, trained, key=key, grants=~Access.NONE)


def remembering(game: Game, world: World, split: Split) -> Victim:
    """Return a victim that remembers the members of a world, in the way that a game asks about.

    A game may have ``planted(world, split)``, which returns such an encoder, a module with
    ``width``; else it is a ``memoriser``.
    """
    plant = getattr(game, "planted", None)
    if plant is None:
        return memoriser(world)
    trained = Model(split.card, {"encoder": plant(world, split)})
    trained.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    key = digest([game.name, world.digest()])
    return Victim(split.card, trained, key=key, grants=Access.EMBEDDINGS)


def _planted(encoder: nn.Module) -> Victim:
    card = TinyImages().card(None)
    trained = Model(card, {"encoder": encoder})
    trained.register_parameter("anchor", nn.Parameter(torch.zeros(1)))
    grants = Access.EMBEDDINGS | Access.GRADIENTS | Access.WEIGHTS
    return Victim(card, trained, key=type(encoder).__name__, grants=grants)


def rate_band(trials: int, rate: float = 0.5, chance: float = 1e-4) -> float:
    """Return the deviation that a binomial rate exceeds by luck with probability ``chance``.

    >>> round(rate_band(800), 3)
    0.069
    """
    return _two_sided(chance) * math.sqrt(rate * (1 - rate) / trials)


def _two_sided(chance: float) -> float:
    return NormalDist().inv_cdf(1 - chance / 2)


def tiny_split(seed: int = 0) -> Split:
    """Return the kit's split: 80 members, 80 nonmembers, a pool of 400."""
    return _split(seed, TinyImages(real=_STORED["real"]))


@cache
def _split(seed: int, data: TinyImages) -> Split:
    return cut(data.load(None), data.card(None), data.protocols["default"], seed)


#: How the rows of the kit are stored now.
_STORED = {"real": False}


@contextmanager
def stored_as_floats() -> Iterator[None]:
    """Store the rows of the kit as floats meanwhile."""
    _STORED["real"] = True
    try:
        yield
    finally:
        _STORED["real"] = False


def rebuild() -> None:
    """Forget the rows of the kit: the next that asks gets new ones, however these were changed."""
    _split.cache_clear()


def arena(
    attack: Attack, served: Victim, *, store: Store | None = None, seed: int = 0
) -> tuple[Oracle, AttackContext]:
    """Return an oracle of ``served`` and a context with planted shadows, for that attack."""
    split, wanted = tiny_split(seed), attack.shadows
    shadows = []
    for index in range(wanted.count):
        if wanted.origin == "offline":
            world, others = GAMES[attack.game].offline(split, index, split.card.sensitive)
        else:
            world, others = split.online(index)
        made = memoriser(world)
        shadows.append(Shadow(world, others, Oracle(made, made.grants, asker="kit"), made.model))
    access = attack.needs | attack.wants
    own = Siblings(
        served, served, access, adaptive=True, seed=seed, asker=attack.name, store=None
    )  # fmt: skip
    ctx = AttackContext(
        card=split.card, protocol=split.protocol, sensitive=split.card.sensitive, device=CPU,
        store=store, seed=seed, scope="kit", shadows=tuple(shadows), auxiliary=split.pool,
        auxiliary_oracle=own.oracles[0], siblings=own.ask_for, data_seed=seed, train=_train,
        build=_untrained,
        train_shadow=partial(_train_shadow, split) if wanted.origin == "online" else None,
    )  # fmt: skip
    return Oracle(served, access, asker=attack.name), ctx


def _train_shadow(split: Split, members: Examples, number: int) -> Shadow:
    """Return a memoriser of the members as a shadow."""
    world = replace(split.online(0)[0].replace(members=members), index=100 + number)
    made = memoriser(world)
    others = split.candidates.select(~torch.isin(split.candidates.index, members.index))
    return Shadow(world, others, Oracle(made, made.grants, asker="kit"), made.model)


def _train(examples: Examples, target: Target | None) -> Model:
    """Return a memoriser of the rows instead of training a target."""
    del target
    return memoriser(tiny_split().victim().replace(members=examples)).model


def _untrained(seed: int) -> Model:
    """Return an untrained network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)  # noqa: TID251 - restored afterwards
        body = nn.Sequential(nn.Flatten(), nn.Linear(_SIDE * _SIDE, 256), nn.ReLU())
        parts = {"encoder": body, "classifier": nn.Linear(256, _CLASSES)}
    return Model(TinyImages().card(None), parts)


def tiny_spec(target: Target, defenses: tuple[Defense, ...] = ()) -> VictimSpec:
    """Return the kit's victim with that target and these defenses."""
    split = tiny_split()
    card, world = split.card, split.victim()
    return VictimSpec(card, split.protocol, world, target, defenses, card.sensitive)


def tiny_builder(tmp: str, progress: Progress | None = None) -> Builder:
    """Return a builder with a store in that folder."""
    from pathlib import Path

    return Builder(Store(Path(tmp)), CPU, progress=progress)


@dataclass(frozen=True)
class AnyAttack(MembershipAttack):
    """A placeholder attack for cells that are never run."""

    name: ClassVar[str] = "anything"
    needs: ClassVar[Access] = Access.NONE

    def answer(self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext) -> Any:
        """Raise NotImplementedError: this attack is never run."""
        raise NotImplementedError


@dataclass(frozen=True)
class TinyTarget(Target):
    """A linear encoder and classifier, trained for three epochs, to check defenses."""

    name: ClassVar[str] = "tiny-target"
    grants: ClassVar[Access] = (
        Access.LABELS | Access.POSTERIORS | Access.EMBEDDINGS | Access.GRADIENTS | Access.WEIGHTS
    )

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build a network of widths 64 -> 8 -> k."""
        del ctx
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(card.shape)), 8), nn.Tanh())
        encoder.width = 8  # type: ignore[assignment]
        return Model(card, {"encoder": encoder, "classifier": nn.Linear(8, card.classes or 2)})

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        """Return a supervised phase, and one of the classifier if it sees other rows."""
        from privbench.measure.training.phase import BatchSpec, Optimizer, Outputs, Phase, Step

        del model, world
        rows, others = ctx.protocol.encoder[-1], ctx.protocol.classifier

        def forward(model: Model, batch: Any) -> Outputs:
            h = model.encode(batch.x)
            return Outputs(h=h, logits=lambda: model.logits(h))

        def loss(out: Outputs, batch: Any, clock: Any) -> Tensor:
            del clock
            return nn.functional.cross_entropy(out.logits, batch.y)

        spec = Optimizer("adam", 1e-2)
        both = Phase(
            name="encoder", rows=rows, forward=forward,
            steps={"train": Step(loss, trains=("encoder", "classifier"))}, epochs=3,
            batch=BatchSpec(40), optimizers={"encoder": spec, "classifier": spec},
        )  # fmt: skip
        apart = replace(
            both, name="classifier", rows=others, optimizers={"classifier": spec},
            steps={"train": Step(loss, trains=("classifier",))},
        )  # fmt: skip
        return [both] if others == rows else [both, apart]


@dataclass(frozen=True)
class TinyContrastive(TinyTarget):
    """The same network in two stages: the encoder from views, the classifier on the frozen encoder.

    It checks defenses that need one of these stages.

    Attributes:
        augmentation: of the two views of each row.
    """

    name: ClassVar[str] = "tiny-contrastive"
    contrastive: ClassVar[bool] = True
    labelled_encoder: ClassVar[bool] = False

    augmentation: Augmentation = _CROPS

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        """Pull two views of a row together and rows apart; then train the classifier."""
        from privbench.measure.training.phase import BatchSpec, Optimizer, Outputs, Phase, Step
        from privbench.toolbox.phases import Views, classifier_phase, encoder_phases

        del model

        def forward(model: Model, batch: Any) -> Outputs:
            return Outputs(h=model.encode(batch.x))

        def loss(out: Outputs, batch: Any, clock: Any) -> Tensor:
            del batch, clock
            first, second = out.h.chunk(2)
            return (first - second).square().mean() - first.std(0).mean()

        encoder = [
            Phase(
                name=name, rows=rows, prepare=Views(self.augmentation, ctx.card, 2),
                forward=forward, steps={"train": Step(loss, trains=("encoder",))}, epochs=3,
                batch=BatchSpec(40), optimizers={"encoder": Optimizer("adam", 1e-2)},
                per_example=False, reads_labels=False,
            )
            for name, rows in encoder_phases(ctx.protocol)
        ]  # fmt: skip
        return [*encoder, classifier_phase(world, ctx, epochs=3, batch=40)]


@dataclass(frozen=True)
class TinyPairs(TinyContrastive):
    """The same again, with NT-Xent: it checks defenses that need this loss.

    Attributes:
        temperature: of NT-Xent.
    """

    name: ClassVar[str] = "tiny-pairs"

    temperature: float = 1.0

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        """Tell the two views of a row from those of other rows; then train the classifier."""
        from privbench.measure.training.phase import Outputs, Step

        def forward(model: Model, batch: Any) -> Outputs:
            return Outputs(z=model.encode(batch.x))

        def loss(out: Outputs, batch: Any, clock: Any) -> Tensor:
            del batch, clock
            unit = torch.nn.functional.normalize(out.z, dim=1)
            scores = (unit @ unit.T / self.temperature).fill_diagonal_(-torch.inf)
            partners = torch.arange(len(unit), device=unit.device).roll(len(unit) // 2)
            return torch.nn.functional.cross_entropy(scores, partners)

        *encoder, classifier = super().phases(model, world, ctx)
        step = {"train": Step(loss, trains=("encoder",))}
        return [*(replace(p, forward=forward, steps=step) for p in encoder), classifier]
