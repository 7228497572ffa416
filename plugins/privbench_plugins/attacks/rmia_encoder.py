"""RMIA on an encoder: does a row lie more like a member's than rows of the population do?

Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference Attacks. ICML 2024, section 3. The
signals follow Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses are
Misleading, CCS 2024; those of places are our own.

The adversary queries the encoder for embeddings, owns k shadow encoders trained on subsets of the
candidate rows, and has rows z of the population that the victim did not train on. No labels are
needed; they add to what is found. Steps:

1. Signal of a row: the sum of those of ``lira-encoder`` (similarity of views, leverage, and what
   regressions leave of the label), by the weights that tell shadows with a row best from shadows
   without it. It stands for log p(x | encoder): an encoder gives no probability of a row.
2. log p(x): halfway between the row's mean signals over shadows with it and over shadows without
   it. Where one sort lacks, it is taken from the other by the usual difference between the two.
3. Compute the same for every z, which no shadow holds.
4. LR(x, z) = (p(x | victim) / p(x)) / (p(z | victim) / p(z)). Score: the share of z with LR(x, z)
   of at least 1; between two steps of it, the ratio of x. The pairs are never formed.

Deviations: see the class. What to expect: designed for few shadows, from which ``lira-encoder``
cannot estimate variances. SimCLR on digits (3 seeds, ``privbench run --attack rmia-encoder --set
rmia-encoder.k=2 --attack lira-encoder --set lira-encoder.online=true --set lira-encoder.k=2
--target simclr --seeds 3``): AUC .921 with 2 shadows, .971 with 4, .983 with 16, where
``lira-encoder`` has .859, .938, .984. 0.5 on an untrained encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
    Augmentation,
    Ge,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.likelihood import mean, observe, stand_in, threshold
from privbench.toolbox.traces import VIEWS, of_traces, weights_of_traces

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle
    from privbench.toolbox.likelihood import Evidence


@dataclass(frozen=True)
class RMIAEncoder(MembershipAttack):
    """Ranks rows by the encoder's traces of them, compared with those of the population.

    The adversary has embeddings and rows of the population, and can train shadow encoders on the
    candidate rows. Cost: 1 + `n` queries per row on images that may be augmented, else one, and
    as many for each row of the population, once.

    Attributes:
        k: number of shadow encoders, each a full training, shared with ``lira-encoder``.
        n: views per row.
        population: maximum number of rows z; 0 for all rows of the adversary.
        augmentation: how views are made, narrowed to what the dataset allows.
    """

    name: ClassVar[str] = "rmia-encoder"
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Low-Cost High-Power Membership Inference Attacks", "Zarifzadeh, Liu, Shokri",
        "ICML 2024", "section 3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The authors attack classifiers, by the posterior of the true class. Here a sum of signals "
        "stands for its logarithm, with shadows averaged after it: means of logarithms, not of "
        "probabilities, as the unit of the sum is arbitrary. So gamma is 1, as in the authors' "
        "newer toolbox. Online only: offline the score would be that of `lira-encoder` with one "
        "variance for all rows. z comes from the adversary's pool, at most 500 rows. The threshold "
        "is the best on a shadow that the others score. Rows that dominate equally many z are "
        "ordered by their own ratio. A row's score depends on the others in question."
    )

    k: Annotated[int, Ge(2)] = 16
    n: Annotated[int, Ge(2)] = 10
    population: Annotated[int, Ge(0)] = 500
    augmentation: Augmentation = VIEWS

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the share of the population that each row dominates."""
        rows, z = self._parts(question.examples, ctx)
        traces = partial(of_traces, views=self.n, augmentation=self.augmentation, posteriors=False)
        of_x, of_z = (observe(traces(ctx, part), oracle, ctx.shadows, part) for part in (rows, z))
        weights = weights_of_traces(of_x.known, of_x.inside)
        of_x, of_z = of_x.joined(weights), of_z.joined(weights)
        scores = dominated(*ratios(of_x, of_z))
        known = stand_in(ctx.shadows, rows)
        if known is None:
            return Membership(scores, None, {"population": float(len(z))})
        judges = [any(shadow is judge for judge in known.judges) for shadow in ctx.shadows]
        limit = threshold(
            dominated(*ratios(*(_in_place(e, torch.tensor(judges)) for e in (of_x, of_z)))),
            known.member,
        )
        notes = {"population": float(len(z)), "threshold": limit}
        return Membership(scores, scores >= limit, notes)

    def _parts(self, asked: Examples, ctx: AttackContext) -> tuple[Examples, Examples]:
        """Return the rows in question and those of the population: both with labels or neither."""
        z, labelled = ctx.auxiliary, ctx.auxiliary.y >= 0
        if bool((asked.y >= 0).all()) and bool(labelled.any()):
            z = z.select(labelled)
        else:
            asked, z = (part.with_y(torch.full_like(part.y, -1)) for part in (asked, z))
        order = ctx.uniform(z, 1, "population").squeeze(1).argsort(stable=True)
        return asked, z.select(order[: self.population or len(z)])


def ratios(x: Evidence, z: Evidence) -> tuple[Tensor, Tensor]:
    """Return log p(x | victim) - log p(x) of rows (n,), and the same of the population (m,).

    >>> from privbench.toolbox.likelihood import Evidence
    >>> inside = torch.tensor([[True, False], [False, True]])
    >>> x = Evidence(torch.tensor([5.0, 2.0]), torch.tensor([[5.0, 1.0], [1.0, 5.0]]), inside)
    >>> z = Evidence(torch.tensor([0.0]), torch.tensor([[2.0], [2.0]]), ~inside[:, :1] & False)
    >>> ratios(x, z)
    (tensor([ 2., -1.]), tensor([-4.]))
    """
    with_it, without = mean(x.known, x.inside, (0,)), mean(x.known, ~x.inside, (0,))
    shift = (with_it - without).nanmean().nan_to_num(0.0)
    never, always = with_it.isnan(), without.isnan()
    with_it = torch.where(never, without + shift, with_it)
    without = torch.where(always, with_it - shift, without)
    of_z = mean(z.known, ~z.inside, (0,)) + shift / 2
    return x.asked - (with_it + without) / 2, (z.asked - of_z)[~of_z.isnan()]


def _in_place(e: Evidence, judges: Tensor) -> Evidence:
    """Return what the judges (k,) know of the first shadow, in the victim's place."""
    return type(e)(e.known[0], e.known[judges], e.inside[judges])


def dominated(x: Tensor, z: Tensor) -> Tensor:
    """Return the share of z with ``x >= z``, (n,), and less than a step more the larger x is.

    >>> dominated(torch.tensor([0.5, 3.0]), torch.tensor([1.0, 0.0])).round(decimals=2)
    tensor([0.5400, 0.9800], dtype=torch.float64)
    """
    below = torch.searchsorted(z.sort().values, x, right=True)
    return (below.double() + x.double().sigmoid()) / (len(z) + 1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [RMIAEncoder()]
