"""HAMP trains on high-entropy soft labels and answers with uninformative confidences.

Chen, Pattabiraman: Overconfidence is a Dangerous Thing: Mitigating Membership Inference Attacks by
Enforcing Less Confident Prediction. NDSS 2024, section IV.

- ``training``: the soft label has p on its class and the rest spread evenly, with p chosen so that
  its entropy is ``entropy`` times log k; the loss is the Kullback-Leibler divergence to the soft
  label, minus ``regularization`` times the entropy of the model's posteriors.
- ``testing``: posteriors keep their order and nothing else. Their values are replaced by rank with
  the sorted posteriors that the model gives to an image of pure noise.

The noise outputs are computed once, when the release is built; which one a row gets is a function
of the row, so the same row always gets the same answer.

What to expect: attacks that read confidences fall back to what rank and label reveal, and that is
more than without the defense. Training makes the wrong classes of a member equally likely, so noise
turns their order round. On the 100 members of ``digits`` (``supervised``, five seeds): AUC .991 by
``order-lira`` (none .530), .827 by ``label-lira`` (.732), .894 by ``lira-head`` (.843). On a
contrastive target, the training part changes only the classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import Defense, Ge, Judge, Le, Paper, Release, Strength, hookimpl
from privbench.toolbox.phases import note_reach, reads_members

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from privbench import Batch, Card, Clock, DefenseContext, Model, Outputs, Phase, World

#: Rows per forward pass of noise.
ROWS = 256


@dataclass(frozen=True)
class HAMP(Defense):
    """Trains for less confidence, and answers with the confidences of random inputs.

    Attributes:
        part: ``training``, ``testing`` or both.
        entropy: gamma, entropy of the soft labels as a share of log k, in [0, 1].
        regularization: alpha, weight of the model's entropy in the authors' units (deviations).
        noises: number of random inputs whose outputs replace the posteriors.
    """

    name: ClassVar[str] = "hamp"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[tuple[Judge, ...]] = (
        Judge(
            "label-lira",
            "The release keeps the label and hides values: robustness of labels is not hidden.",
        ),
        Judge(
            "order-lira",
            "The release keeps the order, which training on soft labels makes loose for members.",
        ),
        Judge("lira", "Its shadows learn soft labels and answer through the same release."),
    )
    paper: ClassVar[Paper] = Paper(
        "Overconfidence is a Dangerous Thing: Mitigating Membership Inference Attacks by Enforcing "
        "Less Confident Prediction", "Chen, Pattabiraman", "NDSS 2024", "section IV",
    )  # fmt: skip
    strength: ClassVar[Strength | None] = Strength(
        "entropy", stronger="up", sweep=(0.2, 0.4, 0.6, 0.8, 0.95)
    )
    deviations: ClassVar[str] = (
        "p is solved exactly, not on a grid of 0.01; the authors' code divides the divergence by k "
        "and not the entropy, so the entropy counts k times here, at the same ratio; optimizer, "
        "epochs and batches are the target's, and the last epoch is kept (the authors' code keeps "
        "the one of best validation accuracy); noise inputs are a fixed set, not one per query; "
        "the release touches posteriors only, not embeddings."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "purchase": {"entropy": 0.8, "regularization": 0.01},
        "texas": {"entropy": 0.6, "regularization": 0.01},
        "location": {"entropy": 0.5, "regularization": 0.001},
        "cifar100": {"entropy": 0.5, "regularization": 0.005},
    }

    part: Literal["both", "training", "testing"] = "both"
    entropy: Annotated[float, Ge(0), Le(1)] = 0.95
    regularization: Annotated[float, Ge(0)] = 0.001
    noises: Annotated[int, Ge(1)] = 1000

    @property
    def requires(self) -> tuple[str, ...]:
        """Require labels to soften if only the training part is used."""
        return ("member-labels",) if self.part == "training" else ("classes",)

    @property
    def release_class(self) -> type[Release] | None:
        """Return None if only the training part is used."""
        return None if self.part == "training" else Ranked

    def stages(self) -> frozenset[str]:
        """Return the stages of the selected part."""
        return super().stages() - ({"phases"} if self.part == "testing" else set())

    def on_phases(
        self, phases: Sequence[Phase], model: Model, world: World, ctx: DefenseContext
    ) -> Sequence[Phase]:
        """Train on high-entropy labels wherever a loss reads labels of members."""
        del model, world
        if self.part == "testing":
            return phases
        note_reach(self.name, phases, ctx)
        classes = ctx.card.classes or 0
        return [self._humble(p, classes) if reads_members(p) else p for p in phases]

    def release(self, card: Card, model: Model, ctx: DefenseContext) -> Release | None:
        """Return the architecture of the release."""
        del model, ctx
        return None if self.part == "training" else Ranked(self.noises, card.classes or 0)

    def _humble(self, phase: Phase, classes: int) -> Phase:
        p = confidence(classes, self.entropy)
        steps = {
            name: replace(step, loss=partial(self._loss, step.loss, classes, p))
            for name, step in phase.steps.items()
        }
        return replace(phase, steps=steps)

    def _loss(  # noqa: PLR0917 - the last three are a loss's own
        self, base: _Loss, classes: int, p: float, out: Outputs, batch: Batch, clock: Clock
    ) -> Tensor:
        """Return the cross-entropy with the soft labels minus the posteriors' weighted entropy.

        The cross-entropy is the divergence plus a constant, the entropy of the soft labels.
        """
        humble = replace(batch, y=soft_labels(batch.y, classes, p))
        weight = self.regularization * classes
        return base(out, humble, clock) - weight * mean_entropy(out.logits.float())


class Ranked(Release):
    """Keeps the ranks of posteriors, but takes their values from the outputs for noise."""

    of = "posterior"
    keeps_labels = True
    uniforms = 1

    values: Tensor

    def __init__(self, noises: int, classes: int) -> None:
        """Allocate ``noises`` vectors of values for ``classes`` classes."""
        super().__init__()
        self.register_buffer("values", torch.zeros(noises, classes, dtype=torch.float64))

    def fit(self, model: Model, world: World, ctx: DefenseContext) -> None:
        """Query the model on noise, and keep the values of each answer in descending order."""
        del world
        generator = ctx.generator("noise")
        shape = (len(self.values), *ctx.card.shape)
        x = torch.rand(shape, generator=generator, device=ctx.device)
        if ctx.card.kind == "binary":
            x = x.round()
        with torch.no_grad():
            logits = [model.logits(model.encode(rows)).double() for rows in torch.split(x, ROWS)]
        self.values = strict(torch.cat(logits).softmax(1).sort(1, descending=True).values)

    def forward(self, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
        """Replace posteriors (n, classes) by rank with the values of the u-th noise output."""
        del x
        drawn = (u[:, 0] * len(self.values)).long().clamp(max=len(self.values) - 1)
        return ranked(value, self.values[drawn].to(value.dtype))


def ranked(p: Tensor, values: Tensor) -> Tensor:
    """Put each row of ``values``, sorted in descending order, into the order of p; both (n, k).

    >>> ranked(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([[0.5, 0.3, 0.2]])).tolist()
    [[0.20000000298023224, 0.5, 0.30000001192092896]]
    """
    order = p.argsort(dim=1, descending=True, stable=True)  # ties: the first, as in arg-max
    return torch.zeros_like(values).scatter(1, order, values)


def strict(values: Tensor) -> Tensor:
    """Make the first value of sorted distributions (n, k) the only maximum, so the label is unique.

    >>> strict(torch.tensor([[0.5, 0.5]]).double()).diff().item() < 0
    True
    """
    tied = values[:, :1] <= values[:, 1:2]
    first = torch.where(tied, values[:, :1] + 1e-9, values[:, :1])
    raised = torch.cat([first, values[:, 1:]], dim=1)
    return raised / raised.sum(1, keepdim=True)


def confidence(classes: int, share: float) -> float:
    """Return p so that (p, rest spread evenly) has entropy ``share`` log k; by bisection to 1e-15.

    >>> round(confidence(10, 0.95), 8)
    0.26981445
    """

    def entropy(p: float) -> float:
        rest = (1 - p) / (classes - 1)
        return -sum(n * q * math.log(q) for n, q in ((1, p), (classes - 1, rest)) if q > 0)

    low, high = 1 / classes, 1.0  # entropy falls from log k to 0 between them
    while high - low > 1e-15:  # noqa: PLR2004
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if entropy(middle) > share * math.log(classes) else (low, middle)
    return (low + high) / 2


def soft_labels(y: Tensor, classes: int, p: float) -> Tensor:
    """Turn labels (n,) or (n, classes) into labels with p on the class and the rest spread evenly.

    >>> soft_labels(torch.tensor([2]), 3, 0.5).tolist()
    [[0.25, 0.25, 0.5]]
    """
    hard = y if y.ndim > 1 else F.one_hot(y, classes).float()
    rest = (1 - p) / (classes - 1)
    return rest + (p - rest) * hard


def mean_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of the posteriors of logits (n, k), mean over rows, in nats.

    >>> round(float(mean_entropy(torch.zeros(3, 2))), 4)
    0.6931
    """
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1).mean()


if TYPE_CHECKING:
    _Loss = Callable[[Outputs, Batch, Clock], Tensor]


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the defense."""
    return [HAMP()]
