"""Property inference by divergence: are the victim's posteriors closer to one kind of shadow?

Suri, Lu, Chen, Evans: Dissecting Distribution Inference. SaTML 2023, the black-box KL-divergence
attack.

The adversary queries the victim for the posteriors of its own rows, and owns shadows trained on
rows of its own, half of them at the low share of the asked value and half at the high one. Steps:

1. Divergence of each shadow: the mean over rows of KL(shadow's posteriors || victim's).
2. Compare each low shadow with each high one: the share of the victim's training rows is that of
   the shadow with the smaller divergence. The majority of these pairs decides.

Deviations: see the class. What to expect: much more than the value of a single training row tells,
also where the value is balanced within each class and the task does not need it: on ``digits``,
``supervised``, 66 training rows, the AUC for ``slant`` is 0.99. The decision is worse than the
score, since the victims of a seed share members and so lean to one side together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
    Ge,
    Paper,
    Property,
    PropertyAttack,
    Shadows,
    hookimpl,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, Oracle, PropertyQuestion, Shadow

#: Posteriors are raised to this, as in the authors' code.
_SMALLEST = 1e-6


@dataclass(frozen=True)
class PropertyInference(PropertyAttack):
    """Compares the divergence of the victim from shadows of either share.

    The adversary has posteriors of its own rows. Cost: one query per row of these and victim.

    Attributes:
        pairs: number of pairs of shadows, one at the low and one at the high share, each a full
            training.
        rows: maximum number of own rows that the models are compared on.
    """

    name: ClassVar[str] = "property-inference"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Dissecting Distribution Inference", "Suri, Lu, Chen, Evans", "SaTML 2023",
        "KL-divergence attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Checked against the authors' code, not the paper's text. All pairs of shadows vote; the "
        "code draws a share of them. The code's scores, differences scaled by the smallest and "
        "largest over all victims, need all victims at once: here the score is the difference of "
        "the two mean divergences over their sum. The code's rows come from both distributions, "
        "here from the pool, and a shadow is not judged on rows that it trained on. 8 pairs are a "
        "choice made here."
    )

    pairs: Annotated[int, Ge(1)] = 8
    rows: Annotated[int, Ge(10)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request two offline shadows for each pair."""
        return Shadows(2 * self.pairs, "offline")

    def answer(self, oracle: Oracle, question: PropertyQuestion, ctx: AttackContext) -> Property:
        """Score (1,) in [-1, 1] by how much closer the victim is to the shadows of high share."""
        order = ctx.uniform(ctx.auxiliary, 1, "rows").squeeze(1).argsort(stable=True)
        rows = ctx.auxiliary.select(order[: self.rows])
        asked = oracle.log_posteriors(rows)
        apart = torch.stack([_apart(shadow, rows, asked) for shadow in ctx.shadows])
        middle = sum(question.shares) / 2
        high = torch.tensor([question.share(s.world.members) > middle for s in ctx.shadows])
        high = high.to(apart.device)
        score, votes = compared(apart[~high], apart[high])
        return Property(score[None], (votes >= 0.5)[None])  # noqa: PLR2004 - the majority


def _apart(shadow: Shadow, rows: Examples, asked: Tensor) -> Tensor:
    """Return the divergence of the victim's answers from a shadow's, on rows new to the shadow."""
    new = ~shadow.world.contains(rows)
    return divergence(shadow.oracle.log_posteriors(rows)[new], asked[new])


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the mean over rows of KL(p || q), a number, of log-probabilities (n, k).

    >>> p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
    >>> round(float(divergence(p.log(), q.log())), 4)  # (ln 2 + ln 2/3) / 2
    0.1438
    """
    log_p, log_q = (log.double().clamp_min(math.log(_SMALLEST)) for log in (log_p, log_q))
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()


def compared(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Compare divergences from a victim: of shadows at the low share (a,), and at the high (b,).

    Returns:
        The relative difference of their means, in [-1, 1] and positive if the high ones are closer,
        and the share of pairs that say so; ties count half.

    >>> [float(x) for x in compared(torch.tensor([3.0, 1.0]), torch.tensor([1.0]))]
    [0.3333333432674408, 0.75]
    """
    total = (low.mean() + high.mean()).clamp_min(torch.finfo(low.dtype).tiny)
    apart = low[:, None] - high
    return (low.mean() - high.mean()) / total, ((apart.sign() + 1) / 2).mean()


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [PropertyInference()]
