"""Privacy-aware sparsity tuning shrinks the weights by which members' and others' losses differ.

Hu, Zhang, Wei: Defending Membership Inference Attacks via Privacy-aware Sparsity Tuning. 2024,
arXiv:2410.06814. Only the abstract and a summary with the formulas could be read.

With G the mean loss of members minus that of rows that the model is not trained on, a weight θ_i of
a layer with d weights gets the sensitivity

    g_i = d |∂G/∂θ_i| / Σ_j |∂G/∂θ_j|   (j over the same layer; their mean is 1),

and training minimises the loss plus ``penalty`` Σ_i g_i |θ_i|: an L1 penalty that is strong where a
weight moves the gap, and weak elsewhere. No gradient flows through g. Every step measures G on its
own batch and on as many reference rows.

What to expect: a smaller gap between the losses, and fewer weights that matter; the losses of
single rows still tell shadows who was there. Too large a penalty makes all weights small. On a
contrastive target only the classifier reads labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch.nn import functional as F

from privbench import Defense, Ge, Judge, Paper, Stream, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from privbench import Batch, Clock, DefenseContext, Model, Outputs, Phase, World


@dataclass(frozen=True)
class PAST(Defense):
    """Adds an L1 penalty by sensitivity to every phase that reads labels of members.

    Attributes:
        penalty: weight of the penalty, lambda of the paper. A weight counts as much as in a plain
            L1 penalty of that weight, on average over its layer.
    """

    name: ClassVar[str] = "past"
    requires: ClassVar[tuple[str, ...]] = ("reference-rows", "member-labels")
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("rmia", "The gap of mean losses shrinks; each row's own loss is not looked at."),
        Judge("lira", "Shadows under the same penalty know what is left of each row."),
        Judge("label-lira", "The gap is one of losses; robustness of labels is not in it."),
    )
    paper: ClassVar[Paper] = Paper(
        "Defending Membership Inference Attacks via Privacy-aware Sparsity Tuning",
        "Hu, Zhang, Wei", "2024", "arXiv:2410.06814",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "penalty", stronger="up", sweep=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    )
    deviations: ClassVar[str] = (
        "The penalty acts from the first step on (the authors train without it first, and tune "
        "with it then); sensitivities are those of one batch. The paper's second parameter, alpha, "
        "is missing, and the penalty's default is ours: the text could not be read."
    )

    penalty: Annotated[float, Ge(0)] = 1e-4

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Add reference rows and the penalty."""
        note_reach(self.name, phases, ctx)
        return [self._tuned(p, model, world) if reads_members(p) else p for p in phases]

    def _tuned(self, phase: Phase, model: Model, world: World) -> Phase:
        streams = {"reference": Stream(world.reference)}
        steps = {}
        for name, step in phase.steps.items():
            layers = [layer for part in step.trains for layer in model[part].modules()]
            loss = partial(self._loss, step.loss, layers)
            steps[name] = replace(step, loss=loss, streams={**step.streams, **streams})
        return replace(phase, steps=steps, per_example=False)

    def _loss(
        self, base: _Loss, layers: Sequence[nn.Module], out: Outputs, batch: Batch, clock: Clock
    ) -> Tensor:
        theirs = out.streams["reference"].logits, batch.streams["reference"].y
        gap = F.cross_entropy(out.logits, batch.y) - F.cross_entropy(*theirs)
        weights = [[w for w in of.parameters(recurse=False) if w.requires_grad] for of in layers]
        size = sensitive_size(gap, [layer for layer in weights if layer])
        return base(out, batch, clock) + self.penalty * size


def sensitive_size(gap: Tensor, layers: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the sum of all weights' sizes, each times its sensitivity.

    Args:
        gap: mean loss of members minus that of others, which depends on the weights.
        layers: weights by layer.

    >>> w = torch.tensor([3.0, -1.0], requires_grad=True)
    >>> sensitive_size((w * torch.tensor([1.0, 3.0])).sum(), [[w]]).item()  # .5 * 3 + 1.5 * 1
    3.0
    """
    flat = [weight for layer in layers for weight in layer]
    slopes: tuple[Tensor | None, ...] = torch.autograd.grad(
        gap, flat, retain_graph=True, allow_unused=True
    )
    of: Mapping[int, Tensor] = {
        id(weight): (torch.zeros_like(weight) if slope is None else slope.detach().abs())
        for weight, slope in zip(flat, slopes, strict=True)
    }
    total = gap.new_zeros(())
    for layer in layers:
        mean = torch.cat([of[id(weight)].flatten() for weight in layer]).mean()
        share = 1 / mean.clamp_min(torch.finfo(mean.dtype).tiny)
        for weight in layer:
            total = total + (of[id(weight)] * share * weight.abs()).sum()
    return total


if TYPE_CHECKING:
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [PAST()]
