"""Mixup + MMD mixes training rows and pulls members' posteriors towards those of reference rows.

Li, Li, Ribeiro: Membership Inference Attacks and Defenses in Classification Models. CODASPY 2021,
section 4. Each update minimises the sum of

- the phase's own loss on rows mixed in pairs, λ of one and 1 - λ of the other, labels likewise; λ
  is one draw of Beta(1, 1), the uniform distribution, for the batch;
- ``weight`` times the squared maximum mean discrepancy (biased, Gaussian kernel, width 1) between
  the posteriors of the batch's *unmixed* rows and those of reference rows of the same classes.
  Gradients flow only through the members' side.

The discrepancy counts only while the accuracies on members and reference, measured after each
epoch, are at least ``gap`` apart, and never in the last epoch.

What to expect: the gap narrows, mostly through mixup, and confidences fall with it. Attacks with
adaptive shadows lose something and still find the most (``digits``: ``rmia`` .790 to .743,
``metric-modified-entropy`` .653 to .670;
leaderboards/digits-defenses-supervised.md). On a contrastive target only the classifier reads
labels, and embeddings are mixed there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch.nn import functional as F

from privbench import (
    Batch,
    Defense,
    Ge,
    Judge,
    Monitor,
    Outputs,
    Paper,
    Stream,
    Strength,
    as_float,
    hookimpl,
)
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Clock, DefenseContext, Examples, Model, Phase, World

#: Attribute that marks rows of the reference stream: they are not mixed.
PLAIN = "mixup-mmd: plain"


@dataclass(frozen=True)
class MixupMMD(Defense):
    """Trains with mixup and penalises posteriors that differ between members and reference.

    Attributes:
        weight: weight of the discrepancy; 0 means mixup only.
        gap: smallest gap between the accuracies at which the discrepancy counts, in [0, 1].
    """

    name: ClassVar[str] = "mixup-mmd"
    requires: ClassVar[tuple[str, ...]] = ("reference-rows", "member-labels")
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "rmia",
            "Posteriors of members and reference rows agree as sets, and not row by row.",
        ),
        Judge(
            "label-lira",
            "The distance that training lowers is one of posteriors; labels are not in it.",
        ),
    )
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks and Defenses in Classification Models", "Li, Li, Ribeiro",
        "CODASPY 2021", "section 4",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "weight", stronger="up", sweep=(0.1, 0.3, 1.0, 3.0, 10.0)
    )
    deviations: ClassVar[str] = (
        "Both losses make one update, as in the paper; the authors' code gives the discrepancy a "
        "second pass of its own after each epoch, in eval mode. Members' accuracy is measured in "
        "eval mode too, on unmixed rows."
    )

    weight: Annotated[float, Ge(0)] = 3.0
    gap: Annotated[float, Ge(0)] = 0.03

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Mix rows, add a stream of reference rows, and measure accuracy on both sides."""
        del model
        note_reach(self.name, phases, ctx)
        return [self._mixed(p, world, ctx) if reads_members(p) else p for p in phases]

    def _mixed(self, phase: Phase, world: World, ctx: DefenseContext) -> Phase:
        members, reference = (rows.to(ctx.device) for rows in (world.members, world.reference))
        streams = {"reference": Stream(_marked(reference), match="class")} if self.weight else {}
        steps = {
            name: replace(
                step, loss=partial(self._loss, step.loss), streams={**step.streams, **streams}
            )
            for name, step in phase.steps.items()
        }
        watched = phase.monitor or Monitor({})
        rows = {**watched.rows, "members": members, "reference": reference}
        return replace(
            phase, steps=steps, forward=partial(_forward, phase.forward),
            prepare=partial(_prepare, phase.prepare, ctx.card.scale, ctx.card.classes or 0),
            monitor=replace(watched, rows=rows), per_example=False,
            reads_attributes=(*phase.reads_attributes, PLAIN),
        )  # fmt: skip

    def _loss(self, base: _Loss, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        loss = base(out, batch, clock)
        if not self.weight or not self.matches(clock):
            return loss
        theirs = out.streams["reference"].plain.softmax(1)  # computed without gradients
        return loss + self.weight * mmd(out.plain.softmax(1), theirs)

    def matches(self, clock: Clock) -> bool:
        """Return whether the discrepancy counts at that time."""
        seen: Mapping[str, float] = clock.metrics
        if clock.epoch == clock.epochs or "members.accuracy" not in seen:
            return False
        return abs(seen["members.accuracy"] - seen["reference.accuracy"]) >= self.gap


def mmd(p: Tensor, q: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of rows p (n, k) and q (m, k): biased, Gaussian, width 1.

    >>> round(float(mmd(torch.tensor([[0.0]]), torch.tensor([[1.0]]))), 6)  # 2 - 2 exp(-1/2)
    0.786939
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (-(a[:, None] - b[None]).square().sum(2) / 2).exp().mean()

    return kernel(p, p) + kernel(q, q) - 2 * kernel(p, q)


def mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Mix ``share`` of each row of x (n, ...) with the rest from its partner (n,) int64.

    >>> mix(torch.tensor([0.0, 4.0]), torch.tensor([1, 0]), torch.tensor(0.75)).tolist()
    [1.0, 3.0]
    """
    return share * x + (1 - share) * x[partner]


def _prepare(
    base: _Prepare | None,
    scale: float,
    classes: int,
    batch: Batch,
    uniforms: Callable[[int], Tensor],
) -> Batch:
    """Return mixed rows, then the same rows unmixed (2 views n, ...); mixed labels (n, classes)."""
    batch = base(batch, uniforms) if base else batch
    if PLAIN in batch.attributes:
        return batch
    drawn = uniforms(2)
    partner, share = drawn[:, 0].argsort(), drawn[0, 1]
    x = as_float(batch.x, scale)
    views = torch.stack([mix(part, partner, share) for part in x.chunk(batch.views)])
    y = F.one_hot(batch.y, classes).float() if batch.y.ndim == 1 else batch.y
    return replace(batch, x=torch.cat([views.flatten(0, 1), x]), y=mix(y, partner, share))


def _forward(base: _Forward, model: Model, batch: Batch) -> Outputs:
    """Return h and logits of mixed rows, and the ``plain`` logits of unmixed ones if read."""
    if PLAIN in batch.attributes:
        with_reference = batch

        def reference() -> Tensor:
            with torch.no_grad():
                return base(model, with_reference).logits

        return Outputs(plain=reference)
    mixed, plain = (replace(batch, x=x) for x in batch.x.chunk(2))
    out = base(model, mixed)
    return Outputs(
        h=lambda: out.h, logits=lambda: out.logits, plain=lambda: base(model, plain).logits
    )


def _marked(rows: Examples) -> Examples:
    """Return the same rows, marked as rows not to mix."""
    return replace(rows, attributes={**rows.attributes, PLAIN: torch.ones_like(rows.index)})


if TYPE_CHECKING:
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]
    _Prepare = Callable[[Batch, Callable[[int], Tensor]], Batch]
    _Forward = Callable[[Model, Batch], Outputs]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [MixupMMD()]
