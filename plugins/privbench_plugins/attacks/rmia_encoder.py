"""RMIA on an encoder: does it place a row more like a member than shadow encoders usually do?

Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference Attacks. ICML 2024, section 3. The
signals are those of ``lira-encoder``.

The adversary queries the encoder for embeddings and owns k shadow ("reference") encoders trained on
subsets of the candidate rows. No labels are needed; they add to what is found. Steps:

1. Signals of a row: similarity of its views, leverage, and what regressions leave of its label
   (``privbench.toolbox.traces``). Add them up by the weights that tell shadows with a row best from
   shadows without it. The sum stands for log p(x | encoder), since an encoder gives a row no
   probability.
2. log p(x): halfway between the row's mean sum over shadows with it and over shadows without it.
   Where one sort lacks, it is taken from the other by the usual difference between the two.
3. Score: log p(x | victim) - log p(x). RMIA then counts rows z of the population whose difference
   is smaller. The count rises with the row's own difference, so it orders rows no better, and no z
   is asked about here.

Deviations: see the class. What to expect: about what ``lira-encoder`` finds online, without an
estimate of variances. SimCLR on digits (3 seeds, ``privbench run --attack rmia-encoder --set
rmia-encoder.k=2 --attack lira-encoder --set lira-encoder.online=true --set lira-encoder.k=2
--target simclr --seeds 3``): with 2 shadows AUC .957 (``lira-encoder`` .958); by the same command,
with 4 .971 (.973) and with 16 .983 (.984). 0.5 on an untrained encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from privbench.toolbox.likelihood import mean, observe
from privbench.toolbox.traces import VIEWS, of_traces, weights_of_traces

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, MembershipQuestion, Oracle
    from privbench.toolbox.likelihood import Evidence


@dataclass(frozen=True)
class RMIAEncoder(MembershipAttack):
    """Compares the encoder's traces of a row with those that shadow encoders leave on average.

    The adversary has embeddings, and can train shadow encoders on the candidate rows. A row is
    called a member if its sum of signals is at least halfway between the two means.
    Cost: 1 + `n` queries per row on images that may be augmented, else one.

    Attributes:
        k: number of shadow encoders, each a full training, shared with ``lira``.
        n: views per row.
        augmentation: how views are made, narrowed to what the dataset allows.
    """

    name: ClassVar[str] = "rmia-encoder"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Low-Cost High-Power Membership Inference Attacks", "Zarifzadeh, Liu, Shokri",
        "ICML 2024", "section 3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The authors attack classifiers, by the posterior of the true class, whose mean over "
        "shadows is p(x). Here a sum of signals stands for its logarithm and is averaged itself, "
        "as its unit says nothing about a probability. No rows of the population are compared: "
        "that changes a threshold, not the order of rows. Online only: offline the order would be "
        "that of `lira-encoder` with one variance for all rows. A row's score depends on the "
        "others in question."
    )

    k: Annotated[int, Ge(2)] = 16
    n: Annotated[int, Ge(2)] = 10
    augmentation: Augmentation = VIEWS

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by how far the sum of signals lies above what is halfway."""
        rows = question.examples
        ask = of_traces(ctx, rows, views=self.n, augmentation=self.augmentation, posteriors=False)
        evidence = observe(ask, oracle, ctx.shadows, rows)
        scores = ratio(evidence.joined(weights_of_traces(evidence.known, evidence.inside)))
        notes = {"fewest shadows that hold a row": float(evidence.inside.sum(0).min())}
        return Membership(scores.nan_to_num(0.0), scores >= 0, notes)


def ratio(evidence: Evidence) -> Tensor:
    """Return log p(x | victim) - log p(x), (n,), of signals log p(x); NaN ones do not count.

    >>> from privbench.toolbox.likelihood import Evidence
    >>> inside = torch.tensor([[True, False], [False, True]])
    >>> ratio(Evidence(torch.tensor([5.0, 2.0]), torch.tensor([[5.0, 1.0], [1.0, 5.0]]), inside))
    tensor([ 2., -1.])
    """
    known, inside, some = evidence.known, evidence.inside, ~evidence.known.isnan()
    with_it, without = mean(known, inside & some, (0,)), mean(known, ~inside & some, (0,))
    shift = mean(known, inside & some, (0, 1)) - mean(known, ~inside & some, (0, 1))
    never, always = with_it.isnan(), without.isnan()
    return evidence.asked - (
        torch.where(never, without + shift, with_it)
        + torch.where(always, with_it - shift, without)
    ) / 2  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [RMIAEncoder()]
