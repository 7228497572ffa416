"""LiRA on the order of posteriors: how firmly do the wrong classes of a row outrank each other?

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, algorithm 1, with a signal of our own.

A defense that hides the values of posteriors, and keeps their order, keeps what noise does to that
order. Training on soft labels makes the wrong classes of a member equally likely: little noise
turns their order round. Those of other rows differ, and keep their order. The adversary sees
posteriors, of which it reads the order only, knows true labels, and owns k shadow models. Steps:

1. Ask about copies of a row with noise of several levels. For each pair of wrong classes: the
   log-odds that one outranks the other over the copies, without their sign. The signal is the mean
   over pairs and levels: how firm the order is.
2. Every shadow is asked the same about the same rows, with the same noise.
3. The score compares the victim's signal with those of shadows with the row and without it, as LiRA
   does (``privbench.toolbox.likelihood_ratio``).

Deviations: see the class. What to expect: nearly all members behind ``hamp``. On the 100 members of
``digits`` (``supervised``, five seeds, the suite digits-defenses-supervised) AUC .991, and 84.4 %
of them at 1 % of false alarms; the strongest before was ``lira-head``, .894. Where wrong classes
are not learned alike it finds nothing: without a defense .530, on null victims .508.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
    Cell,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    MinLen,
    Paper,
    Shadows,
    as_float,
    hookimpl,
)
from privbench.toolbox.copies import BLOCK, fitting_levels, noisy
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

#: Classes of which pairs are compared: of more, the adversary draws so many.
CLASSES = 64


@dataclass(frozen=True)
class OrderLiRA(MembershipAttack):
    """Compares how firm the order of a row's wrong classes is with that under shadows.

    Access: posteriors. Cost: at most `queries` queries per candidate row, of the victim and of
    every shadow (without `levels` every shadow answers up to 10,500 queries about own rows).

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        online: train shadows on subsets of the candidate rows; else on the adversary's own rows.
        queries: per row; copies are as many as each level can have.
        levels: of the noise, see ``label-lira``; None for five that fit the model.
        variance: of the shadows' signals, see ``lira``.
        rows: maximum number of candidate rows.
    """

    name: ClassVar[str] = "order-lira"
    needs: ClassVar[Access] = Access.POSTERIORS
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    misses_planted: ClassVar[str] = "it reads how firm the order of wrong classes is, and no value"
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "algorithm 1, with a signal of our own",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The signal is our own: how firmly wrong classes outrank each other under noise, in place "
        "of the scaled logit. Half a copy is added to each side of the odds, and equal posteriors "
        "count half for each. Of a row without a label all classes are compared. Noise, its "
        "levels, shadows and variance are those of `label-lira`."
    )

    k: Annotated[int, Ge(2)] = 16
    online: bool = True
    queries: Annotated[int, Ge(8)] = 60
    levels: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] | None = None
    variance: Variance = "bayes"
    rows: Annotated[int, Ge(2)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online or offline shadows."""
        return Shadows(self.k, "online" if self.online else "offline")

    @property
    def max_rows(self) -> int:
        """Limit the question to ``rows`` rows."""
        return self.rows

    def incompatible(self, cell: Cell) -> str | None:
        """Require two wrong classes."""
        if (cell.card.classes or 0) < 3:  # noqa: PLR2004
            return f"{self.name} compares wrong classes with each other: three classes are needed"
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the victim's signals with the shadows'."""
        levels = self.levels or fitting_levels(ctx)
        copies = max(1, self.queries // len(levels))
        at, classes = noisy(ctx, copies), ctx.card.classes or 0
        generator = ctx.generator("classes")
        drawn = torch.randperm(classes, generator=generator, device=generator.device)[:CLASSES]
        noises = [at(level) for level in levels]

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            each = max(8 * len(drawn) ** 2, 4 * math.prod(ctx.card.shape))  # bytes of a copy
            step = max(1, BLOCK // (copies * each))
            parts = [rows.select(slice(i, i + step)) for i in range(0, len(rows), step)]
            return torch.cat([firmness(oracle, part, noises, drawn) for part in parts])

        return likelihood_ratio(
            ask, oracle, question.examples, ctx.shadows, online=self.online, variance=self.variance
        )


def firmness(
    oracle: Oracle, rows: Examples, noises: list[Callable[[Tensor], Tensor]], classes: Tensor
) -> Tensor:
    """Return how firm the order of each row's wrong classes is, (n, 1) float64, at least 0.

    Args:
        oracle: answers with posteriors.
        rows: with their true classes, -1 if unknown.
        noises: for each level: x (n, *shape) in [0, 1] -> copies (n, m, *shape), row by row.
        classes: (c,) which are compared.
    """
    x, odds = as_float(rows.x, rows.scale), []
    for copies in noises:
        asked = copies(x)
        n, m = asked.shape[:2]
        p = oracle.posteriors(asked.flatten(0, 1)).view(n, m, -1)
        p = p[..., classes.to(p.device)]
        ahead = (p[..., :, None] - p[..., None, :]).sign().double().sum(1)  # (n, c, c), within ±m
        odds.append(((m + ahead + 1).log() - (m - ahead + 1).log()).abs())
    firm = torch.stack(odds).mean(0)
    wrong = classes.to(firm.device) != rows.y.to(firm.device)[:, None]
    pairs = (wrong[:, :, None] & wrong[:, None, :]).triu(1)
    return ((firm * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp_min(1))[:, None]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [OrderLiRA()]
