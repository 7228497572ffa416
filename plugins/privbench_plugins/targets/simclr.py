"""SimCLR trains an encoder to match two views of one image against views of all other images.

Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning of Visual
Representations. ICML 2020, section 2, equation 1 and algorithm 1. The linear classifier on the
frozen encoder is that of Talos (CCS 2021, section 3.3).

Steps: make two augmented views per row; apply the encoder, then a projection head that only
training uses; compute NT-Xent over all 2N views. Then the encoder is frozen and one linear layer
learns the task on embeddings of plain rows.

Presets: ``cpu`` (the default) is sized for a CPU and for models that leak: small sets, many epochs.
``paper`` has the values of the public CIFAR-10 code that EncoderMI's SimCLR follows (batch 512,
Adam 1e-3, weight decay 1e-6, temperature .5, ResNet-18 with CIFAR stem). ``talos`` has those of
Talos (temperature .07, Adam 3e-4, weight decay 1e-4, stock ResNet-18, blur and vertical flip).
Talos' other backbones differ in the head's hidden layer (section 3.3): ``resnet50-stock``
2,048-256-256 and ``mobilenetv2`` 1,280-256-256, so set ``hidden`` to 256 with them; ResNet-18 has
512-512-256. Both have a floor of 1,000 updates, fewer than on the papers' own sets: it acts only
where a batch holds most of a small set, and epochs would be few updates.

Deviations: see the class. What to expect: on ``digits`` with 100 members the encoder memorises
its members (``lira-encoder`` .913), and posteriors of the linear classifier tell of them, too:
``lira`` has AUC .833, .795 on ``supervised`` (leaderboards/digits-attacks.md, five seeds).
"""

from __future__ import annotations

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
    mlp,
)
from privbench.toolbox.phases import (
    chosen_backbone,
)
from privbench.toolbox.self_supervised import SelfSupervised, task_head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Clock, TargetContext, World

CIFAR_VIEWS = Augmentation(crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
QUICK_VIEWS = Augmentation(
    crop=(0.2, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2, blur=0.5,
    blur_sigma=(0.1, 1.0),
)  # fmt: skip
TALOS_VIEWS = Augmentation(
    crop=(0.08, 1.0), flip=0.5, vflip=0.5, jitter=(0.8, 0.8, 0.8, 0.2), grey=0.2, blur=1.0,
    blur_kernel=9,
)  # fmt: skip


@dataclass(frozen=True)
class SimCLR(SelfSupervised):
    """Trains with SimCLR, then a linear classifier on the frozen encoder.

    Attributes:
        backbone: backbone of the encoder; ``auto`` follows the data (an MLP up to 8×8, otherwise a
            convnet).
        epochs: passes of the contrastive phase over its rows.
        updates: least number of updates of the contrastive phase; with few rows there are more
            epochs until it is reached. 0 for no such floor.
        batch: rows per step (2 views each); all rows if there are fewer, and then an epoch is one
            update.
        temperature: temperature of NT-Xent.
        lr: learning rate of Adam, constant unless ``cosine``.
        weight_decay: weight decay of the contrastive phase.
        cosine: whether the learning rate falls to zero along a half cosine.
        hidden: width of the projection head's hidden layer; 0 for a linear head. Talos: 512 with
            ResNet-18, 256 with ResNet-50 and MobileNetV2 (section 3.3).
        projection: width of the projection head's output. 128 in the paper; Talos: 256 with
            each backbone.
        augmentation: augmentation of the two views, narrowed to what the dataset allows.
        normalise: whether inputs are normalised by the dataset's channel means and deviations.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "simclr"
    paper: ClassVar[Paper] = Paper(
        "A Simple Framework for Contrastive Learning of Visual Representations",
        "Chen, Kornblith, Norouzi, Hinton", "ICML 2020", "section 2, equation 1",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Adam instead of LARS, as in the public CIFAR-10 code; the projection head has no batch "
        "norm and by default no hidden layer (with one, in a small network the head memorises more "
        "and the backbone less); jitter operations come in fixed order; views are "
        "narrowed to what the dataset says keeps its labels and attributes."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "backbone": "resnet18", "epochs": 1000, "updates": 1000, "temperature": 0.5,
            "lr": 1e-3, "hidden": 512, "weight_decay": 1e-6, "augmentation": CIFAR_VIEWS,
        },
        "talos": {
            "backbone": "resnet18-stock", "epochs": 100, "updates": 1000, "temperature": 0.07,
            "lr": 3e-4, "weight_decay": 1e-4, "hidden": 512, "projection": 256,
            "augmentation": TALOS_VIEWS, "normalise": False,
        },
    }  # fmt: skip

    temperature: Annotated[float, Gt(0)] = 0.1
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0
    cosine: bool = False
    hidden: Annotated[int, Ge(0), Le(10_000)] = 0
    projection: Annotated[int, Ge(1), Le(10_000)] = 128
    augmentation: Augmentation = QUICK_VIEWS
    normalise: bool = True

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder, projection head and, if there is a task, a linear classifier."""
        del ctx
        encoder = backbone(chosen_backbone(self.backbone, card), card.shape)
        widths = [encoder.width, *([self.hidden] if self.hidden else []), self.projection]
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "head": mlp(widths),
            **task_head(encoder.width, card),
        }
        return Model(card, parts, normalise=self.normalise)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train contrastively on the encoder's rows in the protocol, then train the classifier."""
        spec = Optimizer(
            "adam", self.lr, self.weight_decay, schedule="cosine" if self.cosine else "constant"
        )
        return self.pair_phases(
            model, world, ctx, forward=_forward,
            step=Step(self._loss, trains=("encoder", "head")),
            optimizers={"encoder": spec, "head": spec},
        )  # fmt: skip

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        del batch, clock
        return nt_xent(out.z, self.temperature)


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return h (2n, d), both views embedded; z (2n, p), projected only if a loss reads it."""
    h = model.encode(batch.x)
    return Outputs(h=h, z=lambda: model["head"](h))


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross-entropy (equation 1), mean over all 2n views, in nats.

    Args:
        z: (2n, p) projections: n first views, then the n second views in the same order.
        temperature: above 0.

    Two rows whose views agree and that are opposite to each other: -log(e^1 / (e^1 + 2 e^-1)).

    >>> z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> round(float(nt_xent(z, 1.0)), 4)
    0.2395
    """
    n = len(z) // 2
    unit = F.normalize(z.float(), dim=1)
    similarity = unit @ unit.T / temperature
    similarity.fill_diagonal_(-torch.inf)
    partner = torch.arange(2 * n, device=z.device).roll(n)
    return F.cross_entropy(similarity, partner)


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [SimCLR()]
