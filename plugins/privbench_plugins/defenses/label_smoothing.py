"""Label smoothing trains towards labels that give every class some probability.

Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: Rethinking the Inception Architecture for Computer
Vision. CVPR 2016, section 7; a baseline of RelaxLoss (ICLR 2022), whose smoothing is the default.

The label becomes (1 - smoothing) on its class plus smoothing / k on each of all k classes (so the
class itself keeps a little more than 1 - smoothing). Only the training loss uses the smoothed
label: attacks and utility use the plain label.

What to expect: more leaks. Rows of a class lie closer together, which can make attacks calibrated
with shadow models (``lira``, ``rmia``) stronger. On the 100 members of ``digits`` (``supervised``,
five seeds) all six attacks of the board digits-defenses-supervised find more: ``lira`` .948 (none
.794), a threshold on modified entropy .762 (.653). On a contrastive target only the classifier
reads labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch.nn import functional as F

from privbench import Defense, Ge, Judge, Le, Paper, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench import Batch, Clock, DefenseContext, Model, Outputs, Phase, World


@dataclass(frozen=True)
class LabelSmoothing(Defense):
    """Uses soft labels in the loss of every phase that reads labels of members.

    Attributes:
        smoothing: probability that is spread evenly over all classes, in [0, 1].
    """

    name: ClassVar[str] = "label-smoothing"
    requires: ClassVar[tuple[str, ...]] = ("member-labels",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira",
            "Under smoothing members sit at the smoothed label, which shadows with it know.",
        ),
        Judge("label-lira", "Smoothing changes confidence more than it changes labels."),
    )
    paper: ClassVar[Paper] = Paper(
        "Rethinking the Inception Architecture for Computer Vision",
        "Szegedy, Vanhoucke, Ioffe, Shlens, Wojna", "CVPR 2016", "section 7",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "smoothing", stronger="up", sweep=(0.05, 0.1, 0.2, 0.4, 0.8)
    )

    smoothing: Annotated[float, Ge(0), Le(1)] = 0.1

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Smooth the labels that losses read."""
        del model, world
        note_reach(self.name, phases, ctx)
        classes = ctx.card.classes or 0
        return [self._smoothed(p, classes) if reads_members(p) else p for p in phases]

    def _smoothed(self, phase: Phase, classes: int) -> Phase:
        steps = {
            name: replace(step, loss=partial(self._loss, step.loss, classes))
            for name, step in phase.steps.items()
        }
        return replace(phase, steps=steps)

    def _loss(self, base: _Loss, classes: int, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        """Return the phase's own loss, with smooth labels."""
        return base(out, replace(batch, y=smooth(batch.y, classes, self.smoothing)), clock)


def smooth(y: Tensor, classes: int, smoothing: float) -> Tensor:
    """Turn labels (n,) or (n, classes) into smooth labels (n, classes).

    >>> import torch
    >>> smooth(torch.tensor([1]), 2, 0.5).tolist()
    [[0.25, 0.75]]
    """
    hard = y if y.ndim > 1 else F.one_hot(y, classes).float()
    return (1 - smoothing) * hard + smoothing / classes


if TYPE_CHECKING:
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [LabelSmoothing()]
