"""PATE: teachers on disjoint members vote with noise, and a student learns from the votes.

Papernot, Abadi, Erlingsson, Goodfellow, Talwar: Semi-supervised Knowledge Transfer for Deep
Learning from Private Training Data. ICLR 2017. Papernot, Song, Mironov, Raghunathan, Talwar,
Erlingsson: Scalable Private Learning with PATE. ICLR 2018 (the aggregator GNMax).

1. The members are dealt to ``teachers`` disjoint shards, and an undefended target trains on each.
2. For each of ``queries`` reference rows the teachers vote for a class. N(0, noise²) is added to
   the count of each class, and the largest count gives the row's label. The row's own label is not
   read.
3. The victim is the student: the same target on the reference rows, with these labels. A row that
   was not asked about has no label; an encoder that reads no labels still trains on it.

*Guarantee.* A row's shard depends on its own content only, and a teacher's seeds on the number of
its shard, whether other shards are empty or not. So adding or removing one member changes one
teacher, and moves one vote at most: the counts of a query move by √2 at most. All queries
together are one Gaussian mechanism of sensitivity √(2 queries), whose epsilon is known exactly
(Balle and Wang, ICML 2018, theorem 8) and does not depend on the votes. The papers' bound for GNMax
without a look at the votes, a Rényi divergence of order / noise² for each query, is that of the
same mechanism. The claim covers all phases: none sees a member.

What to expect: at a given epsilon the noise grows with √queries, and the votes with the number of
teachers, each of which needs rows to learn from. For 100 queries at epsilon 8 and delta 1e-5 the
noise is 8.5 votes. If each teacher is right in 60 % of rows, and otherwise votes at random among
ten classes, 10 teachers give 24 % right labels, 25 give 55 %, 50 give 92 % (simulated). At 20 rows
for a teacher it makes sense from 1,000 members; with the 100 of ``digits`` the student learns next
to nothing: test accuracy is .13 (``supervised``, seed 0; none .89), and .72 with noise of one vote,
whose epsilon says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch.nn import functional as F

from privbench import Defense, Ge, Gt, Judge, Le, Lt, Paper, Strength, hookimpl
from privbench.toolbox import noise
from privbench.toolbox.students import TEACHERS, alone, only, taught, teaching
from privbench.toolbox.undefended import posteriors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privbench import Cell, DefenseContext, Examples, Model, World


@dataclass(frozen=True)
class PATE(Defense):
    """Trains the victim on reference rows that teachers of disjoint members label by noisy votes.

    Attributes:
        teachers: number of shards; one that no row falls into has no teacher.
        queries: reference rows that the teachers label; None for all.
        epsilon: target privacy budget, which determines the noise. Ignored if ``noise`` is given.
        delta: delta of the claim; well below one over the number of members.
        noise: standard deviation of the noise, in votes; None derives it from ``epsilon``.
    """

    name: ClassVar[str] = "pate"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("reference-rows", "member-labels")
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira",
            "Its shadows are students of teachers of their own, with the same noise in the votes.",
        ),
        Judge(
            "label-lira",
            "A vote is a label: what a student learns of a row shows in labels first.",
        ),
    )
    claims_epsilon: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "Scalable Private Learning with PATE",
        "Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson", "ICLR 2018",
        "the GNMax aggregator",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The data-independent bound only, which needs no further noise to be published; no "
        "threshold on the votes (Confident-GNMax), so every query is answered; rows are dealt by a "
        "hash of their content, so shards differ in size; the student learns from labelled rows "
        "and not semi-supervised with a GAN; numbers of teachers and noise are ours."
    )
    strength: ClassVar[Strength | None] = Strength(
        "epsilon", stronger="down", sweep=(1000.0, 100.0, 20.0, 8.0)
    )

    teachers: Annotated[int, Ge(1), Le(1000)] = 10
    queries: Annotated[int, Ge(1)] | None = None
    epsilon: Annotated[float, Gt(0)] = 8.0
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    noise: Annotated[float, Gt(0)] | None = None

    def incompatible(self, cell: Cell) -> str | None:
        """Refuse defenses that would learn from reference rows as from held-out ones."""
        return alone(self, cell)

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        """Put the reference rows in the place of the members."""
        asked = self._asked(len(world.reference))
        scale = self._scale(asked)
        ctx.claim(
            epsilon=spent_epsilon(scale, asked, self.delta), delta=self.delta,
            adjacency="add/remove", phase=ctx.protocol.phase, guarantee=True,
            noise=scale, queries=asked,
        )  # fmt: skip
        ctx.note(noise=noise.SIMULATED)
        return taught(world)

    def inner_worlds(self, world: World, ctx: DefenseContext) -> list[World | None]:
        """Return the world of each shard's teacher: the members of its shard; None without any."""
        members = world.parts[TEACHERS]
        shard = shards(ctx.uniform(members, 1, "shards")[:, 0], self.teachers)
        dealt = [members.select(shard == one) for one in range(self.teachers)]
        return [teaching(world, rows) if len(rows) else None for rows in dealt]

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        """Return the winners of noisy votes, (n, k) one-hot; zeros for rows not asked about."""
        counts = torch.zeros(len(members), ctx.card.classes or 0, device=ctx.device).double()
        for model in models:
            counts += F.one_hot(posteriors(model, members).argmax(1), counts.shape[1])
        asked = self._asked(len(members))
        u = torch.rand(counts.shape, generator=torch.Generator().manual_seed(ctx.salt("noise")),
                       dtype=torch.float64).to(counts.device)  # fmt: skip
        won = (counts + noise.normal(u, self._scale(asked))).argmax(1)
        kept = torch.zeros(len(members), dtype=torch.bool, device=counts.device)
        kept[ctx.uniform(members, 1, "asked")[:, 0].argsort(stable=True)[:asked]] = True
        ctx.note(**{"pate: teachers": self.teachers})
        return only(F.one_hot(won, counts.shape[1]), kept)

    def _asked(self, rows: int) -> int:
        return min(self.queries or rows, rows)

    def _scale(self, asked: int) -> float:
        if self.noise is not None:
            return self.noise
        return noise.analytic_sigma(math.sqrt(2 * asked), self.epsilon, self.delta)


def shards(uniforms: Tensor, count: int) -> Tensor:
    """Return the shard (n,) int64 of each row, from its own number in [0, 1) only.

    >>> shards(torch.tensor([0.0, 0.49, 0.5, 0.99]), 2).tolist()
    [0, 0, 1, 1]
    """
    return (uniforms * count).long().clamp(max=count - 1)


def spent_epsilon(scale: float, queries: int, delta: float) -> float:
    """Return the exact epsilon of that many noisy votes, each of sensitivity √2 in L2.

    Args:
        scale: standard deviation of the noise, in votes.
        queries: number of votes.
        delta: delta of the claim.

    >>> round(spent_epsilon(2**0.5 * 10, 100, 1e-5), 4)  # a Gaussian of sensitivity and sigma 1
    4.3772
    """
    from scipy.optimize import brentq

    moved = math.sqrt(2 * queries)

    def excess(epsilon: float) -> float:
        return noise.gaussian_delta(moved, epsilon, scale) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-9))


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [PATE()]
