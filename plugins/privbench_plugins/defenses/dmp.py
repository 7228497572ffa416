"""Distillation for membership privacy: a student learns what a teacher says of other rows.

Shejwalkar, Houmansadr: Membership Privacy for Machine Learning Models Through Knowledge Transfer.
AAAI 2021, the defense DMP.

1. The teacher is the undefended target, trained on the members.
2. It labels the reference rows with its posteriors. Their own labels are not read. With ``share``
   below 1, rows whose posteriors have the lowest entropy are kept: the paper shows that the student
   then depends less on any single member. By default all are.
3. The victim is the student: the same target, untrained, on these rows and soft labels. It never
   sees a member, and neither does its encoder. Its loss divides its logits by the temperature, as
   the teacher's are, and its answers do not.

What to expect: attacks on single members lose some of their signal. On ``digits`` (``supervised``,
temperature 8, five seeds) ``lira`` with 16 shadows has an AUC of .739 (none .794) and ``lira-head``
.778 (.843), at equal accuracy (leaderboards/digits-defenses-supervised.md; measured while only the
teacher's logits were divided). Accuracy depends on how
many reference rows there are, and on the teacher. Distillation has no guarantee, and mislabelled or
duplicated members still show through the teacher's mistakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Defense, Gt, Judge, Le, Outputs, Paper, Strength, hookimpl
from privbench.toolbox.phases import reads_members
from privbench.toolbox.students import TEACHERS, alone, only, taught, teaching
from privbench.toolbox.undefended import posteriors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench import Batch, Cell, Clock, DefenseContext, Examples, Model, Phase, World


@dataclass(frozen=True)
class DMP(Defense):
    """Trains the victim on reference rows with the labels of a model of the members.

    Attributes:
        share: share of the reference rows that the student learns from, those of lowest entropy.
        temperature: by which the logits of teacher and student are divided while the student
            learns; above 1 its labels are softer.
    """

    name: ClassVar[str] = "dmp"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("reference-rows", "member-labels")
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "lira",
            "Its shadows have teachers of their own, so it knows what these pass on.",
        ),
        Judge(
            "label-lira",
            "Soft posteriors say little; robust labels say as much as before.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "Membership Privacy for Machine Learning Models Through Knowledge Transfer",
        "Shejwalkar, Houmansadr", "AAAI 2021", "distillation for membership privacy",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Teacher and student train for the target's own epochs, with its optimizer, and their last "
        "state counts; the authors' Purchase code picks the best epochs on held-out rows and keeps "
        "all reference rows. Which share the paper keeps was not checked: it chooses from more "
        "reference rows than members."
    )

    strength: ClassVar[Strength | None] = Strength(
        "temperature", stronger="up", sweep=(1.0, 2.0, 4.0, 8.0)
    )

    share: Annotated[float, Gt(0), Le(1)] = 1.0
    temperature: Annotated[float, Gt(0)] = 1.0

    def incompatible(self, cell: Cell) -> str | None:
        """Refuse defenses that would learn from reference rows as from held-out ones."""
        return alone(self, cell)

    def on_data(self, world: World, ctx: DefenseContext) -> World:
        """Put the reference rows in the place of the members."""
        del ctx
        return taught(world)

    def inner_worlds(self, world: World, ctx: DefenseContext) -> list[World]:
        """Return the world of the teacher: the members."""
        del ctx
        return [teaching(world, world.parts[TEACHERS])]

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Let the student learn at the teacher's temperature."""
        del model, world, ctx
        if self.temperature == 1:
            return phases
        return [self._softer(p) if reads_members(p) else p for p in phases]

    def _softer(self, phase: Phase) -> Phase:
        steps = {
            name: replace(step, loss=partial(self._loss, step.loss))
            for name, step in phase.steps.items()
        }
        return replace(phase, steps=steps)

    def _loss(
        self, base: Callable[[Outputs, Batch, Clock], Tensor], out: Outputs, batch: Batch,
        clock: Clock,
    ) -> Tensor:  # fmt: skip
        return base(_Softer(out, self.temperature), batch, clock)

    def relabel(self, members: Examples, models: Sequence[Model], ctx: DefenseContext) -> Tensor:
        """Return the teacher's posteriors (n, k) of reference rows; zeros for those left out."""
        (teacher,) = models
        p = posteriors(teacher, members)
        labels, kept = softened(p, self.temperature), surest(p, self.share)
        ctx.note(**{"dmp: rows": int(kept.sum())})
        return only(labels, kept)


class _Softer(Outputs):
    """The outputs of a forward pass, with logits divided by the temperature."""

    def __init__(self, out: Outputs, temperature: float) -> None:
        super().__init__(logits=out.logits / temperature)
        self.streams = out.streams
        self._others = out

    def __getattr__(self, name: str) -> Tensor:
        """Return an output; all but the logits are those of the pass."""
        if name.startswith("_") or name == "logits":
            return super().__getattr__(name)
        return getattr(self._others, name)  # type: ignore[no-any-return]


def softened(p: Tensor, temperature: float) -> Tensor:
    """Return the softmax of log p / temperature, for posteriors (n, k).

    >>> softened(torch.tensor([[0.8, 0.2]]), 2.0).tolist()  # 2 : 1
    [[0.6666666865348816, 0.3333333432674408]]
    """
    return (p.log() / temperature).softmax(1)


def surest(p: Tensor, share: float) -> Tensor:
    """Return which rows (n,) bool have the lowest entropy, that share of them, at least one.

    >>> surest(torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]]), 0.5).tolist()
    [False, True, True]
    """
    entropy = torch.special.entr(p).sum(1)
    count = max(1, math.ceil(share * len(p)))
    kept = torch.zeros(len(p), dtype=torch.bool, device=p.device)
    kept[entropy.argsort(stable=True)[:count]] = True
    return kept


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [DMP()]
