"""Barlow Twins trains an encoder so that two views agree in every number and no two numbers agree.

Zbontar, Jing, Misra, LeCun, Deny: Barlow Twins: Self-Supervised Learning via Redundancy Reduction.
ICML 2021, section 2.1, equations 1 and 2, algorithm 1; section 2.2 and appendix A (sizes and
optimisation). What the paper leaves open follows the authors' code.

Steps: make two views per row; apply encoder and projector to each view; standardise every output
over the batch; correlate all outputs of one view with all of the other. The loss pulls the diagonal
of this matrix to one and all else to zero. There are no negatives and no second network. Then the
encoder is frozen and one linear layer learns the task on embeddings of plain rows.

Presets: the defaults suit a CPU and small sets; ``paper`` has the published sizes.

Deviations: see the class. What to expect: no row is compared with another one, but all rows of a
batch enter each correlation, so it counts as contrastive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn

from privbench import (
    Augmentation,
    Batch,
    Ge,
    Gt,
    Le,
    Model,
    Optimizer,
    Outputs,
    Paper,
    Phase,
    Step,
    Target,
    backbone,
    hookimpl,
)
from privbench.toolbox.phases import (
    chosen_backbone,
)
from privbench.toolbox.self_supervised import SelfSupervised, task_head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Clock, TargetContext, World

#: BYOL's views (section 2.2), on small images.
TWIN_VIEWS = Augmentation(
    crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2, blur=0.5,
    blur_sigma=(0.1, 1.0),
)  # fmt: skip


@dataclass(frozen=True)
class BarlowTwins(SelfSupervised):
    """Trains with Barlow Twins, then a linear classifier on the frozen encoder.

    Attributes:
        backbone: backbone of the encoder; ``auto`` follows the data (an MLP up to 8×8, otherwise a
            convnet).
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step (2 views each); a smaller last batch is dropped. All rows if there are
            fewer, and then an epoch is one update.
        redundancy: weight of the correlations between different outputs (λ).
        lr: learning rate of Adam, falling to zero along a half cosine.
        weight_decay: L2 penalty.
        hidden: width of the projector's two hidden layers.
        projection: width of its output.
        augmentation: augmentation of the two views, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "barlow-twins"
    paper: ClassVar[Paper] = Paper(
        "Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
        "Zbontar, Jing, Misra, LeCun, Deny", "ICML 2021",
        "section 2.1, equations 1-2, algorithm 1; arXiv:2103.03230",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Adam instead of LARS, without warm-up, and weight decay also of biases and batch norms; "
        "both views come from one distribution, without solarisation; jitter operations come in "
        "fixed order; by default a smaller projector. Values of its preset are for ImageNet; "
        "there is no published one for small images."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "backbone": "resnet18", "epochs": 1000, "updates": 1000, "batch": 2048,
            "hidden": 8192, "projection": 8192, "weight_decay": 1.5e-6,
        },
    }  # fmt: skip

    redundancy: Annotated[float, Ge(0)] = 5e-3
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1.5e-6
    hidden: Annotated[int, Ge(1), Le(10_000)] = 512
    projection: Annotated[int, Ge(1), Le(10_000)] = 256
    augmentation: Augmentation = TWIN_VIEWS

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder, projector and, if there is a task, a linear classifier."""
        del ctx
        encoder = backbone(chosen_backbone(self.backbone, card), card.shape)
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "projector": projector(encoder.width, self.hidden, self.projection),
            **task_head(encoder.width, card),
        }
        return Model(card, parts)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the encoder's rows in the protocol, then train the classifier."""
        spec = Optimizer("adam", self.lr, self.weight_decay, schedule="cosine")
        parts = ("encoder", "projector")
        return self.pair_phases(
            model, world, ctx, forward=_forward, step=Step(self._loss, trains=parts),
            optimizers=dict.fromkeys(parts, spec), drop_last=True,
        )  # fmt: skip

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        del batch, clock
        first, second = out.z.chunk(2)
        return redundancy(first, second, self.redundancy)


def projector(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return three linear layers, (n, inputs) to (n, outputs), batch norm after the first two."""
    return nn.Sequential(
        nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, outputs, bias=False),
    )  # fmt: skip


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return h (2n, d), both views embedded; z (2n, p), projected.

    Each view passes alone, so that batch norm sees one view of each row.
    """
    n = len(batch.y)
    h = [model.encode(view) for view in (batch.x[:n], batch.x[n:])]
    return Outputs(h=torch.cat(h), z=lambda: torch.cat([model["projector"](one) for one in h]))


def redundancy(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Return how far the correlations of two views are from the identity (equation 1), a sum.

    Args:
        first: (n, p) projections of one view of each row.
        second: (n, p) of another view.
        weight: of the correlations of different outputs (λ), at least 0.

    Returns:
        Σ_i (1 - C_ii)² + λ Σ_{i≠j} C_ij², where C (p, p) holds the correlations over the batch
        (equation 2 of centred outputs).

    Two outputs that agree between the views and with each other: only λ (1 + 1) is left.

    >>> z = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 10.0]])
    >>> round(float(redundancy(z, z, 0.25)), 4)
    0.5
    """
    one, other = (_standardised(z.float()) for z in (first, second))
    correlations = one.T @ other / len(one)
    squares = correlations.square()
    diagonal = correlations.diagonal()
    return (1 - diagonal).square().sum() + weight * (squares.sum() - squares.diagonal().sum())


def _standardised(z: Tensor) -> Tensor:
    """Return outputs (n, p) with mean 0 and variance 1 over the batch, as batch norm does it."""
    return (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [BarlowTwins()]
