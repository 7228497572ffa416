"""Uniform noise on embeddings is the baseline that ARS compares its adversarial noise with.

Chen, Qiang, Ruan: Adversarial Representation Sharing: A Quantitative and Secure Collaborative
Learning Framework. arXiv:2203.14299, section 5.2.1. Every coordinate of a released embedding moves
by a number drawn uniformly from [-bound, bound], in units of the embeddings' standard deviation
over the members (one unit for all coordinates: the root of their mean variance).

By default a row gets the same noise in every query, because a party shares it once. With ``fresh``
every query draws new noise, and an adversary that repeats a query can average the noise away.

What to expect (digits, ``supervised``, bound 1, seed 0, leaderboards/digits-operating-points.md):
no loss of accuracy (.887, as without noise), where the noise of ARS costs .027. Reconstruction is
as hard as under ARS (mean squared error .019 and .018, the mean image .074), attribute inference
easier (.76 against .54, .84 without noise).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Defense, Ge, Judge, Paper, Release, Strength, hookimpl
from privbench.toolbox.undefended import embeddings

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Card, DefenseContext, Model, World


class Noisy(Release):
    """Adds uniform noise to embeddings."""

    of = "embedding"
    feeds_classifier = True
    unit: Tensor

    def __init__(self, bound: float, width: int, *, fresh: bool) -> None:
        """Set up for embeddings of that width."""
        super().__init__()
        self.bound, self.uniforms, self.fresh = bound, width, fresh
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Measure the unit on the members."""
        h = embeddings(model, world.members)
        self.unit.copy_(h.var(0, correction=0).mean().sqrt())
        noise = self.bound * float(self.unit)
        relative = (h.shape[1] / 3) ** 0.5 * noise / float(h.norm(dim=1).mean().clamp_min(1e-12))
        ctx.note(**{"uniform-noise: absolute bound": noise, "uniform-noise: relative L2": relative})

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Move each coordinate by bound (2u - 1) units."""
        del x
        noise = self.bound * self.unit * (2 * u.double() - 1)
        return (value.double() + noise).to(value.dtype)


@dataclass(frozen=True)
class UniformNoise(Defense):
    """Adds uniform noise to every coordinate of the embedding.

    Attributes:
        bound: largest shift of a coordinate, in standard deviations of the embeddings. It is a
            utility budget, not an epsilon of differential privacy.
        fresh: whether every query draws new noise.
    """

    name: ClassVar[str] = "uniform-noise"
    protects: ClassVar[tuple[str, ...]] = ("reconstruction",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "reconstruction",
            "Learns from many noisy releases of its own rows, and so averages the noise.",
        ),
    )
    release_class: ClassVar[type[Release]] = Noisy
    paper: ClassVar[Paper] = Paper(
        "Adversarial Representation Sharing: A Quantitative and Secure Collaborative Learning "
        "Framework", "Chen, Qiang, Ruan", "arXiv:2203.14299", "section 5.2.1, the baseline",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "bound", stronger="up", sweep=(0.125, 0.25, 0.5, 1.0)
    )
    deviations: ClassVar[str] = (
        "The paper gives bounds in absolute numbers of its own embeddings; here they are in "
        "standard deviations, and the record notes the absolute bound."
    )

    bound: Annotated[float, Ge(0)] = 1.0
    fresh: bool = False

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release:
        """Return the architecture of the release, which learns the unit."""
        del card, ctx
        return Noisy(self.bound, int(model["encoder"].width), fresh=self.fresh)  # type: ignore[arg-type]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [UniformNoise()]
