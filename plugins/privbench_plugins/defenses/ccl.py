"""The convex-concave loss adds a concave term to cross-entropy, so that members' losses spread.

Liu, Feng, Zhuang, Cao, Wei: Mitigating Privacy Risk in Membership Inference by Convex-Concave
Loss. ICML 2024, arXiv:2402.05453. Only the abstract and summaries of the text could be read; the
formulas are those of the authors' code (github.com/ml-stat-Sustech/ConvexConcaveLoss,
``loss_function.py``).

With c the cross-entropy of a row and p = exp(-c), its confidence on the class, the loss of the row
is

    scale (convexity c + (1 - convexity) t(p)),

where t(p) is -exp(p) (``exponential``, CCEL of the authors) or -(p + p²/2) (``quadratic``, CCQL).
Both terms fall as p rises. Under cross-entropy alone the rows that are fitted worst have the
largest gradients, which brings all losses together; the concave term has its largest gradient where
p is high, and leaves badly fitted rows behind.

What to expect: losses of members vary more, so that thresholds on the loss gain less; attacks that
are calibrated row by row lose less. On ``digits`` with Adam, whose members all reach a confidence
near 1, nothing changes (``supervised``, mean AUC of 3 seeds without it, with convexity .5 and .1:
``lira`` .782, .780, .774; ``metric-loss`` .640, .641, .642). On a contrastive target only the
classifier reads labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from torch.nn import functional as F

from privbench import Defense, Ge, Gt, Judge, Le, Paper, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from privbench import Batch, Clock, DefenseContext, Model, Outputs, Phase, World

Concave = Literal["exponential", "quadratic"]


@dataclass(frozen=True)
class CCL(Defense):
    """Replaces cross-entropy by the convex-concave loss in every phase that reads members' labels.

    Attributes:
        convexity: weight of cross-entropy, alpha of the paper, in [0, 1]; the concave term has the
            rest. 1 is no defense.
        concave: the concave term.
        scale: factor of the whole loss, beta of the authors' code. It matters with SGD; Adam undoes
            it.
    """

    name: ClassVar[str] = "ccl"
    requires: ClassVar[tuple[str, ...]] = ("member-labels",)
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge("rmia", "Losses of members spread; each row's own loss still falls by its training."),
        Judge("lira", "Shadows under the same loss know how far each row spreads."),
        Judge("label-lira", "The loss shapes confidences; robustness of labels is not shaped."),
    )
    paper: ClassVar[Paper] = Paper(
        "Mitigating Privacy Risk in Membership Inference by Convex-Concave Loss",
        "Liu, Feng, Zhuang, Cao, Wei", "ICML 2024", "arXiv:2402.05453",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "convexity", stronger="down", sweep=(0.9, 0.7, 0.5, 0.3, 0.1)
    )
    deviations: ClassVar[str] = (
        "Optimizer, weight decay and epochs are the target's (the authors: SGD at 0.1, 5e-4, 300 "
        "epochs), and by default the loss is not scaled. A scale acts only with SGD and weight "
        "decay, which then weighs more against the loss; Adam, the usual optimizer here, undoes it."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"convexity": 0.5, "scale": 0.05},
    }

    convexity: Annotated[float, Ge(0), Le(1)] = 0.5
    concave: Concave = "exponential"
    scale: Annotated[float, Gt(0)] = 1.0

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Replace cross-entropy by the convex-concave loss."""
        del model, world
        note_reach(self.name, phases, ctx)
        return [self._concave(p) if reads_members(p) else p for p in phases]

    def _concave(self, phase: Phase) -> Phase:
        steps = {name: replace(step, loss=self._loss) for name, step in phase.steps.items()}
        return replace(phase, steps=steps)

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        del clock
        each = convex_concave(out.logits.float(), batch.y, self.convexity, self.concave)
        return self.scale * each.mean()


def convex_concave(logits: Tensor, y: Tensor, convexity: float, concave: Concave) -> Tensor:
    """Return the convex-concave loss of each row (n,), without its scale.

    Args:
        logits: (n, k).
        y: (n,) classes, or (n, k) soft labels.
        convexity: weight of cross-entropy, in [0, 1].
        concave: the concave term.

    A row without doubt has cross-entropy 0 and confidence 1:

    >>> import torch
    >>> sure = torch.tensor([[99.0, 0.0]]), torch.tensor([0])
    >>> float(convex_concave(*sure, 0.5, "quadratic"))  # -(1 + 1/2) / 2
    -0.75
    >>> round(float(convex_concave(*sure, 0.0, "exponential")), 4)
    -2.7183
    """
    c = F.cross_entropy(logits, y, reduction="none")
    p = (-c).exp()
    term = -p.exp() if concave == "exponential" else -(p + p.square() / 2)
    return convexity * c + (1 - convexity) * term


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [CCL()]
