"""BYOL trains an encoder to predict what a slowly moving copy says of another view; no negatives.

Grill, Strub, Altché, Tallec, Richemond, Buchatskaya, Doersch, Avila Pires, Guo, Gheshlaghi Azar,
Piot, Kavukcuoglu, Munos, Valko: Bootstrap Your Own Latent: A New Approach to Self-Supervised
Learning. NeurIPS 2020, section 3, equations 1 and 2, algorithm 1, appendix A (architecture). What
the paper leaves open follows the authors' code.

Steps: make two views per row. The online network (encoder, projector, predictor) predicts, from one
view, the target network's projection (encoder, projector) of the other view, and the other way
round; the loss is the squared distance of the unit vectors. Only the online network gets gradients;
after each update the target's parameters move towards the online ones by a rate that falls to zero.
Then the online encoder is frozen and one linear layer learns the task on embeddings of plain rows.

Presets: the defaults suit a CPU and small sets; ``paper`` has the published sizes of projector and
predictor, moving average and epochs.

Deviations: see the class. What to expect: no row is pushed away from any other, so members of a
small set need not be told apart, and the encoder memorises less than SimCLR's in as many updates.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

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
    follow,
)
from privbench.toolbox.self_supervised import SelfSupervised, task_head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Clock, TargetContext, World

#: SimCLR's views, as in the paper's appendix B, on small images.
BYOL_VIEWS = Augmentation(
    crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2, blur=0.5,
    blur_sigma=(0.1, 1.0),
)  # fmt: skip
_FOLLOWS = {"encoder": "target_encoder", "projector": "target_projector"}


@dataclass(frozen=True)
class BYOL(SelfSupervised):
    """Trains with BYOL, then a linear classifier on the frozen online encoder.

    It counts as contrastive, because batch norm joins the rows of a batch.

    Attributes:
        backbone: backbone of both encoders; ``auto`` follows the data (an MLP up to 8×8, otherwise
            a convnet).
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step (2 views each); a smaller last batch is dropped. All rows if there are
            fewer, and then an epoch is one update.
        momentum: share of the target network that stays at the first update (τ_base); it rises to 1
            along a half cosine.
        lr: learning rate of Adam, falling to zero along a half cosine.
        weight_decay: L2 penalty.
        hidden: width of the hidden layer of projector and predictor.
        projection: width of their outputs.
        augmentation: augmentation of the two views, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "byol"
    paper: ClassVar[Paper] = Paper(
        "Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning",
        "Grill, Strub, Altché, Tallec, Richemond, Buchatskaya, Doersch, Avila Pires, Guo, "
        "Gheshlaghi Azar, Piot, Kavukcuoglu, Munos, Valko",
        "NeurIPS 2020", "section 3, equations 1-2, algorithm 1; arXiv:2006.07733",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Adam instead of LARS, without warm-up, and weight decay also of biases and batch norms; "
        "both views come from one distribution, without solarisation; the target network begins "
        "as a copy of the online one (in the authors' code with weights of its own); jitter "
        "operations come in fixed order; by default smaller projectors and a moving average of "
        ".99, the authors' value for 100 and 300 epochs. Values of its preset are for ImageNet; "
        "there is no published one for small images."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "backbone": "resnet18", "epochs": 1000, "updates": 1000, "momentum": 0.996,
            "hidden": 4096, "projection": 256, "weight_decay": 1.5e-6,
        },
    }  # fmt: skip

    momentum: Annotated[float, Ge(0), Le(1)] = 0.99
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1.5e-6
    hidden: Annotated[int, Ge(1), Le(10_000)] = 512
    projection: Annotated[int, Ge(1), Le(10_000)] = 128
    augmentation: Augmentation = BYOL_VIEWS

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build online and target networks and, if there is a task, a linear classifier."""
        del ctx
        encoder = backbone(chosen_backbone(self.backbone, card), card.shape)
        projector = head(encoder.width, self.hidden, self.projection)
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "projector": projector,
            "predictor": head(self.projection, self.hidden, self.projection),
            "target_encoder": copy.deepcopy(encoder),
            "target_projector": copy.deepcopy(projector),
            **task_head(encoder.width, card),
        }
        return Model(card, parts)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the encoder's rows in the protocol, then train the classifier."""
        spec = Optimizer("adam", self.lr, self.weight_decay, schedule="cosine")
        online = ("encoder", "projector", "predictor")
        step = Step(_loss, trains=online, live=tuple(_FOLLOWS.values()), before=self._follow)
        return self.pair_phases(
            model, world, ctx, forward=_forward, step=step, drop_last=True,
            optimizers=dict.fromkeys(online, spec),
        )  # fmt: skip

    def _follow(self, model: Model, clock: Clock) -> None:
        """Equation 1, for the update before this one; before the first it changes nothing."""
        done = (clock.epoch - 1) * clock.steps + clock.step
        follow(model, _FOLLOWS, kept(self.momentum, done - 1, clock.epochs * clock.steps))


def kept(base: float, k: int, total: int) -> float:
    """Return the share of the target network that stays at update k of ``total``, from 0.

    1 - (1 - base) (cos(π k / total) + 1) / 2 (section 3.2): ``base`` at first, 1 at the end.

    >>> kept(0.9, 0, 10), kept(0.9, 5, 10), kept(0.9, 10, 10)
    (0.9, 0.95, 1.0)
    """
    return 1.0 - (1.0 - base) * (math.cos(math.pi * max(k, 0) / total) + 1.0) / 2.0


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a projector or predictor: (n, inputs) to (n, outputs), batch norm in between."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
        nn.Linear(hidden, outputs, bias=False),
    )  # fmt: skip


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return h (2n, d); z (2n, p) predictions; k (2n, p) the target's projections to predict.

    Each view passes alone, so that batch norm sees one view of each row.
    """
    n = len(batch.y)
    both = (batch.x[:n], batch.x[n:])
    h = [model.encode(view) for view in both]

    def predictions() -> Tensor:
        return torch.cat([model["predictor"](model["projector"](one)) for one in h])

    def targets() -> Tensor:
        with torch.no_grad():
            seen = [model["target_encoder"](model.inputs(view)) for view in reversed(both)]
            return torch.cat([model["target_projector"](one) for one in seen])

    return Outputs(h=torch.cat(h), z=predictions, k=targets)


def _loss(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    """Both directions of equation 2, mean over rows."""
    del batch, clock
    return 2 * distance(out.z, out.k)


def distance(z: Tensor, k: Tensor) -> Tensor:
    """Return the squared distance of the unit vectors (equation 2), mean over rows, in [0, 4].

    Args:
        z: (n, p) predictions.
        k: (n, p) what they should be; no gradient flows into them.

    >>> one = torch.tensor([[1.0, 0.0]])
    >>> distance(one, 3 * one).item(), distance(one, -one).item()
    (0.0, 4.0)
    """
    unit = F.normalize(z.float(), dim=1), F.normalize(k.float().detach(), dim=1)
    return (unit[0] - unit[1]).square().sum(1).mean()


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [BYOL()]
