"""Shokri: a classifier per class separates a model's answers on members and on nonmembers.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section V.

The adversary sees the posteriors of the candidate rows, knows their true labels, and owns k shadow
models, trained as the target is on the adversary's own rows. Steps:

1. Query every shadow for the posteriors of its members ("in") and of as many nonmembers ("out").
2. Partition these records by the *true* class of the row (not the predicted one).
3. Train one binary classifier per class on the posterior vector.
4. Query the victim once per row; the classifier of the row's true class estimates how likely it is
   "in".

One more classifier, trained on the records of all classes, scores rows without a label and rows of
classes for which the shadows have no members or no nonmembers.

Deviations: see the class. What to expect: stronger the more the victim overfits; on ``digits`` AUC
.695 with a ``supervised`` victim and .741 with ``simclr`` (leaderboards/digits-attacks.md); 0.5 on
a victim that answers members and nonmembers alike. Each shadow costs a full training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn

from privbench import Access, Ge, Gt, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.classifiers import (
    fit,
    log_odds,
    rows_by,
    slots,
    stacked_logits,
    stacked_mlp,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench import Attack, AttackContext, MembershipQuestion, Oracle, Shadow


@dataclass(frozen=True)
class Shokri(MembershipAttack):
    """Trains one attack model per true class on the answers of k shadow models.

    Attributes:
        k: number of shadow models, each a full training; the paper uses 10 to 100.
        hidden: tanh neurons of an attack model's hidden layer; 0 makes it a softmax regression,
            the authors' default (50 is their other choice).
        epochs: passes over the records.
        batch: records per update of each attack model.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        steps: minimum number of updates, so that a small shadow set does not leave attack models
            undertrained.
    """

    name: ClassVar[str] = "shokri"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks Against Machine Learning Models",
        "Shokri, Stronati, Song, Shmatikov", "IEEE S&P 2017", "section V",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "k = 4 by default, since every shadow is a full training (`paper`: 10, the default of the "
        "authors' code, and the paper's number for Texas; it has 100 for CIFAR, 60 for Location, "
        "50 for MNIST, 20 for Purchase and Adult). Attack models are linear by default, as in that "
        "code. Shadows come in pairs that swap members and nonmembers. At least 1,000 "
        "updates: 50 epochs of the few records per class of a small dataset would be some dozens. "
        "A classifier over all classes answers for classes with records of one side only."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"k": 10}}

    k: Annotated[int, Ge(1)] = 4
    hidden: Annotated[int, Ge(0)] = 0
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 0.01
    weight_decay: Annotated[float, Ge(0)] = 1e-6
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` offline shadows, trained on the adversary's own rows."""
        return Shadows(self.k)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-odds of "in" that the classifier of the true class gives."""
        known = records(ctx.shadows)
        asked = oracle.posteriors(question.examples).float()
        slot = slots(known.y, known.inside, asked.shape[1])
        chosen = slot[question.examples.y.to(asked.device)]
        own = slot[known.y] > 0
        odds = asked.new_zeros(int(slot.max()) + 1, len(asked), dtype=torch.float64)
        if (chosen == 0).any():
            odds[:1] = self._odds(known, torch.zeros_like(known.y), asked, ctx, "all")
        if own.any():
            mine = known.select(own)
            odds[1:] = self._odds(mine, slot[mine.y] - 1, asked, ctx, "class")
        scores = odds.gather(0, chosen[None]).squeeze(0)
        return Membership(scores, scores >= 0, {"attack models": float(len(odds) - 1)})

    def _odds(
        self, known: Records, groups: Tensor, asked: Tensor, ctx: AttackContext, purpose: str
    ) -> Tensor:
        """Return log-odds (g, n) of "in" for all candidate rows, by one classifier per group."""
        rows = rows_by(groups)
        widths = [asked.shape[1], *([self.hidden] if self.hidden else []), 2]
        network = ctx.init(partial(stacked_mlp, len(rows), widths, nn.Tanh), purpose)
        fit(
            network, known.x, known.inside, epochs=self.epochs, steps=self.steps,
            batch=self.batch, lr=self.lr, weight_decay=self.weight_decay, rows=rows,
            generator=ctx.generator("batches", purpose),
        )  # fmt: skip
        return log_odds(stacked_logits(network, asked))


@dataclass(frozen=True)
class Records:
    """Answers of shadows on rows whose membership is known.

    Attributes:
        x: (n, k) float32 posteriors.
        y: (n,) int64 true classes, -1 where unknown.
        inside: (n,) int64, 1 for members.
    """

    x: Tensor
    y: Tensor
    inside: Tensor

    def select(self, rows: Tensor) -> Records:
        """Select records by mask."""
        return Records(self.x[rows], self.y[rows], self.inside[rows])


def records(shadows: Sequence[Shadow]) -> Records:
    """Query every shadow on its members and its nonmembers."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for shadow in shadows:
        for rows, inside in ((shadow.world.members, 1), (shadow.nonmembers, 0)):
            x = shadow.oracle.posteriors(rows).float()
            y = rows.y.to(x.device)
            parts.append((x, y, torch.full_like(y, inside)))
    return Records(*(torch.cat(column) for column in zip(*parts, strict=True)))


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [Shokri()]
