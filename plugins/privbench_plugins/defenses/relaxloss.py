"""RelaxLoss holds the training loss at a level instead of minimising it to zero.

Chen, Yu, Fritz: RelaxLoss: Defending Membership Inference Attacks without Losing Utility.
ICLR 2022, section 4, algorithm 1. With c the mean cross-entropy of a batch:

- even epochs, counted from 0: minimise abs(c - target_loss), so increase c where it is below the
  level;
- odd epochs: minimise c while it is above ``target_loss``; otherwise flatten posteriors towards a
  soft label with min(p, upper) on the class, where p is the model's posterior of that class, and
  the rest spread evenly.

The authors' two scripts flatten differently, and so do the two variants here: ``tabular`` minimises
the mean cross-entropy with the soft labels of all rows; ``image`` that of wrongly classified rows
only, minus the plain cross-entropy of every row. As in both, gradients flow through the soft label.

What to expect: members' losses spread around the level as nonmembers' losses do, at little cost in
accuracy; the level is the parameter to tune. On a contrastive target only the classifier reads
labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import Defense, Ge, Gt, Judge, Le, Paper, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from privbench import Batch, Cell, Clock, DefenseContext, Model, Outputs, Phase, World

Variant = Literal["image", "tabular"]
#: Largest confidence of a soft label, by variant: the values of CIFAR-10 and Purchase.
UPPER: Mapping[Variant, float] = {"image": 1.0, "tabular": 0.3}


@dataclass(frozen=True)
class RelaxLoss(Defense):
    """Keeps cross-entropy around a level, and flattens posteriors below it.

    Attributes:
        target_loss: the level, alpha of the paper, in nats (CIFAR-10 1 or .4, CIFAR-100 3 or .5,
            Purchase .8, Texas 2.5). It must be below log k, the loss of guessing. Preset ``paper``
            has the 1 of CIFAR-10.
        upper: largest confidence of a soft label; None for 1 (``image``) or .3 (``tabular``).
        variant: which script's flattening is used; ``auto`` follows the kind of data.
    """

    name: ClassVar[str] = "relaxloss"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("member-labels",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("rmia", "Losses of members are spread like those of nonmembers, and not row by row."),
        Judge(
            "label-lira",
            "The level that training holds is one of losses; robustness of labels is not held.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "RelaxLoss: Defending Membership Inference Attacks without Losing Utility",
        "Chen, Yu, Fritz", "ICLR 2022", "section 4, algorithm 1",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "target_loss", stronger="up", sweep=(0.02, 0.05, 0.1, 0.3, 1.0)
    )
    deviations: ClassVar[str] = (
        "Optimizer and epochs are the target's (the authors: SGD at 0.1, 300 epochs); flattening "
        "follows their code, which has one form for images and another for tables, and lets "
        "gradients through the soft label."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"target_loss": 1.0},
        "cifar100": {"target_loss": 3.0},
        "purchase": {"target_loss": 0.8, "upper": 0.3, "variant": "tabular"},
        "texas": {"target_loss": 2.5, "upper": 0.1, "variant": "tabular"},
    }

    target_loss: Annotated[float, Gt(0)] = 0.4
    upper: Annotated[float, Ge(0), Le(1)] | None = None
    variant: Literal["auto", "image", "tabular"] = "auto"

    def incompatible(self, cell: Cell) -> str | None:
        """Require a level below the loss of guessing."""
        classes = cell.card.classes or 1
        if self.target_loss < math.log(classes):
            return None
        return (
            f"{self.name}.target_loss {self.target_loss} is not below log {classes} = "
            f"{math.log(classes):.2f}, the loss of guessing on {cell.card.name}"
        )

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Replace cross-entropy by the relaxed loss."""
        del model, world
        note_reach(self.name, phases, ctx)
        by_kind: Variant = "image" if ctx.card.kind == "image" else "tabular"
        variant = by_kind if self.variant == "auto" else self.variant
        return [self._relaxed(p, variant) if reads_members(p) else p for p in phases]

    def _relaxed(self, phase: Phase, variant: Variant) -> Phase:
        loss = partial(self._loss, variant)
        steps = {name: replace(step, loss=loss) for name, step in phase.steps.items()}
        return replace(phase, steps=steps, per_example=False)

    def _loss(self, variant: Variant, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        upper = UPPER[variant] if self.upper is None else self.upper
        return relaxed(
            out.logits.float(), batch.y, epoch=clock.epoch - 1, level=self.target_loss,
            upper=upper, variant=variant,
        )  # fmt: skip


def relaxed(
    logits: Tensor, y: Tensor, *, epoch: int, level: float, upper: float, variant: Variant
) -> Tensor:
    """Return the relaxed loss of a batch, in nats.

    Args:
        logits: (n, k).
        y: (n,) classes, or (n, k) soft labels.
        epoch: counted from 0.
        level: the value that the mean cross-entropy is held at.
        upper: largest confidence of a soft label.
        variant: how posteriors are flattened.

    >>> one = {"level": 1.0, "upper": 1.0, "variant": "image"}
    >>> even = torch.zeros(1, 2), torch.tensor([0])
    >>> round(float(relaxed(*even, epoch=0, **one)), 4)  # 1 - log 2
    0.3069
    """
    each = F.cross_entropy(logits, y, reduction="none")
    mean = each.mean()
    if epoch % 2 == 0:
        return (mean - level).abs()
    label = y.argmax(1) if y.ndim > 1 else y
    flat = F.cross_entropy(logits, flattened(logits, label, upper), reduction="none")
    if variant == "image":
        flat = (logits.argmax(1) != label) * flat - each
    return torch.where(mean > level, mean, flat.mean())


def flattened(logits: Tensor, label: Tensor, upper: float) -> Tensor:
    """Return soft labels (n, k): min(p, upper) on the label, the rest spread evenly over others.

    >>> flattened(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([0]), 0.5).tolist()
    [[0.5, 0.25, 0.25]]
    """
    p = logits.softmax(1).gather(1, label[:, None]).clamp(max=upper)
    rest = (1 - p) / (logits.shape[1] - 1)
    return rest.expand_as(logits).scatter(1, label[:, None], p)


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [RelaxLoss()]
