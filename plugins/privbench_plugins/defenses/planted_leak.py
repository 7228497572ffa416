"""Planted leaks of membership are positive controls: membership attacks must find them.

They protect nothing, and no board ranks them. An attack that finds no leak in a defended victim
tells something only if it finds the leak that was planted in the same target on the same dataset.
An attack that does not is too small, blind on this data or broken, and its verdict on defenses is
worth nothing.

The release keeps the members and some views of each. A query near one of them is answered as
memorised, any other as never seen; in between, the two answers are blended by the distance:

- ``planted-leak`` gives a member its own label with high confidence, and any other row a wrong
  label (the one after the model's) with low confidence;
- ``planted-leak-embeddings`` moves the embeddings of a member and of its views far out in one
  direction, and replaces those of any other row by noise of their own.

What is planted does not depend on how well the target learned. Shadows of an adaptive adversary
carry the same leak about their own members. A weaker leak tells of a share of the members only, and
answers the others as it answers everyone: this grades an attack's power.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch.nn import functional as F

from privbench import (
    Access,
    Augmentation,
    Defense,
    Ge,
    Gt,
    Le,
    Release,
    Strength,
    as_float,
    augment,
    hookimpl,
)
from privbench.toolbox.noise import normal
from privbench.toolbox.undefended import embeddings

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Card, Cell, DefenseContext, Model, World

#: Posterior of the released label: of members, and of other rows. Each row's is drawn from a range,
#: as attacks fit distributions to it.
SURE, UNSURE = (0.95, 0.999), (0.3, 0.6)


class Memory(Release):
    """Answers queries near a member or its views otherwise than all others."""

    kept: Tensor
    labels: Tensor
    reach: Tensor

    def __init__(self, settings: _Planted, card: Card, members: int) -> None:
        """Set up for that many members."""
        super().__init__()
        self.settings, self.limits = settings, card.limits or Augmentation()
        copies = members * (1 + settings.views * (card.kind == "image"))
        self.register_buffer("kept", torch.zeros(copies, int(torch.Size(card.shape).numel())))
        self.register_buffer("labels", torch.zeros(copies, dtype=torch.long))
        self.register_buffer("reach", torch.ones((), dtype=torch.float64))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Keep the members, views of them and their labels."""
        del model
        rows = world.members
        x = as_float(rows.x, rows.scale)
        times = len(self.kept) // len(rows)
        told = leaking(ctx.uniform(rows, 1, "told").squeeze(1), self.settings.auc)
        views = [
            augment(x, self.limits, ctx.uniform(rows, self.limits.uniforms, f"view {i}"))
            for i in range(times - 1)
        ]
        self.kept.copy_(torch.cat([x, *views]).flatten(1))
        self.kept[~told.repeat(times)] = torch.inf  # nothing is near it
        self.labels.copy_(rows.y.clamp_min(0).repeat(times))
        apart = distances(x.flatten(1), x.flatten(1)).fill_diagonal_(torch.inf).amin(1)
        self.reach.copy_(self.settings.reach * apart.median().clamp(1e-6, 1e6))

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Blend the two answers by the distance to what was kept."""
        nearest, at = distances(x.flatten(1), self.kept).min(1)
        near = (-((nearest / self.reach) ** 4)).exp()[:, None]
        known, unknown = self.answers(value.double(), self.labels[at], u.double())
        return (near * known + (1 - near) * unknown).to(value.dtype)

    @abstractmethod
    def answers(self, value: Tensor, label: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is released of each row if it is a member, and if it is none.

        Args:
            value: (n, d) what the model says, float64.
            label: (n,) of the nearest member.
            u: (n, uniforms) in [0, 1), float64.
        """


class PosteriorMemory(Memory):
    """Right and sure about members, wrong and unsure about others."""

    of = "posterior"
    uniforms = 1

    def answers(self, value: Tensor, label: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """See ``SURE`` and ``UNSURE``; the rest is shared equally by the other classes."""
        classes = value.shape[1]
        wrong = (value.argmax(1) + 1) % classes
        return peaked(label, classes, SURE, u), peaked(wrong, classes, UNSURE, u)


class EmbeddingMemory(Memory):
    """Members and their views lie far out in one direction, others are noise."""

    of = "embedding"
    unit: Tensor

    def __init__(self, settings: _Planted, card: Card, members: int, width: int) -> None:
        """Set up for embeddings of that width."""
        super().__init__(settings, card, members)
        self.uniforms = width
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Measure the size of embeddings too."""
        super().fit(model, world, ctx)
        h = embeddings(model, world.members)
        self.unit.copy_(h.square().mean().sqrt().clamp_min(1e-6))

    def answers(self, value: Tensor, label: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return four times the model's own and eight units more, and half of it with noise."""
        del label
        return 4 * value + 8 * self.unit, 0.5 * value + self.unit * normal(u, 1.0)


def peaked(label: Tensor, classes: int, top: tuple[float, float], u: Tensor) -> Tensor:
    """Return posteriors (n, classes) of these labels (n,) with a posterior from that range.

    With few classes the label's posterior is never below the others'.

    >>> peaked(torch.tensor([1]), 3, (0.4, 0.6), torch.tensor([[0.5]], dtype=torch.float64))
    tensor([[0.2500, 0.5000, 0.2500]], dtype=torch.float64)
    """
    p = (top[0] + (top[1] - top[0]) * u).clamp_min(1.1 / classes)
    rest = (1 - p) / max(classes - 1, 1)
    return torch.where(F.one_hot(label, classes).bool(), p, rest)


def leaking(u: Tensor, auc: float) -> Tensor:
    """Mark the rows (n,) of the smallest draws u (n,) that make an AUC of up to ``auc``.

    If a share q of the members is known for sure and the rest is like nonmembers, the best attack
    has an AUC of q + (1 - q) / 2; so q is 2 AUC - 1. Their number is rounded.

    >>> leaking(torch.tensor([0.3, 0.9, 0.1, 0.5]), 0.75).tolist()
    [True, False, True, False]
    """
    known = torch.zeros(len(u), dtype=torch.bool, device=u.device)
    known[u.argsort(stable=True)[: round((2 * auc - 1) * len(u))]] = True
    return known


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return Euclidean distances (len(a), len(b)) float64, 0 between equal rows."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(a.double(), b.double(), compute_mode=exact)


@dataclass(frozen=True)
class _Planted(Defense):
    """A planted leak.

    Attributes:
        reach: distance at which a query counts as a member by the factor 1 / e, in median distances
            of a member to the nearest other one.
        views: views of each member that are kept, at the limits of the dataset; images only.
        auc: what the best attack reaches: the leak is about a share of 2 auc - 1 of the members,
            drawn at random.
    """

    protects: ClassVar[tuple[str, ...]] = ()
    control: ClassVar[bool] = True
    strength: ClassVar[Strength | None] = None
    plants_in: ClassVar[Access]
    deviations: ClassVar[str] = (
        "It is nobody's method, and no defense. It plants nothing in gradients or weights, which "
        "it hides like every release."
    )

    reach: Annotated[float, Gt(0)] = 0.6
    views: Annotated[int, Ge(0)] = 8
    auc: Annotated[float, Gt(0.5), Le(1)] = 1.0

    def incompatible(self, cell: Cell) -> str | None:
        """Require a membership attack that reads an output in which the leak is planted."""
        attack = cell.attack
        if attack.game != "membership":
            return f"{self.name} plants a leak of membership, and {attack.name} asks for none"
        if attack.needs and not attack.needs & self.plants_in:
            return f"{attack.name} reads {attack.needs}, in which {self.name} plants no leak"
        if attack.misses_planted:
            return f"{attack.name} misses the leak of {self.name}: {attack.misses_planted}"
        return None


@dataclass(frozen=True)
class PlantedLeak(_Planted):
    """Plants a leak of membership in posteriors and labels."""

    name: ClassVar[str] = "planted-leak"
    plants_in: ClassVar[Access] = Access.LABELS | Access.POSTERIORS
    release_class: ClassVar[type[Release]] = PosteriorMemory

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release."""
        del model
        return PosteriorMemory(self, card, len(ctx.world.members))


@dataclass(frozen=True)
class PlantedLeakEmbeddings(_Planted):
    """Plants a leak of membership in embeddings."""

    name: ClassVar[str] = "planted-leak-embeddings"
    plants_in: ClassVar[Access] = Access.EMBEDDINGS
    release_class: ClassVar[type[Release]] = EmbeddingMemory

    def incompatible(self, cell: Cell) -> str | None:
        """Leave an attack that reads posteriors or labels too to ``planted-leak``."""
        why = super().incompatible(cell)
        if why is None and cell.attack.needs & PlantedLeak.plants_in:
            why = f"{cell.attack.name} reads more than embeddings: planted-leak is its control"
        return why

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release."""
        width = int(model["encoder"].width)  # type: ignore[arg-type]
        return EmbeddingMemory(self, card, len(ctx.world.members), width)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the controls."""
    return [PlantedLeak(), PlantedLeakEmbeddings()]
