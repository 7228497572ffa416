"""Supervised training fits encoder and classifier together, by cross-entropy.

Talos (CCS 2021, section 3.3) makes this comparison for every contrastive model: the same backbone
trained from scratch on the same rows, 100 epochs of Adam; its encoder is the network without the
last layer, of width 512 with ``resnet18-stock``, 2,048 with ``resnet50-stock`` and 1,280 with
``mobilenetv2``. If a protocol shows the classifier other rows than the encoder, a linear classifier
is trained on the frozen encoder afterwards.

Deviations: see the class. What to expect: on a small member set the model fits its members
perfectly, so attacks on posteriors do well: on ``digits`` with 100 members ``lira`` has AUC .795,
``shokri`` .695. On ``simclr`` they find more, .833 and .741 (leaderboards/digits-attacks.md, five
seeds); the Talos paper reports the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import nn

from privbench import (
    Augmentation,
    BadInputError,
    Ge,
    Gt,
    Lt,
    Model,
    Optimizer,
    Paper,
    Target,
    backbone,
    hookimpl,
)
from privbench.toolbox.phases import (
    BackboneName,
    Views,
    chosen_backbone,
    classifier_phase,
    encoder_phases,
    supervised_phase,
    unfit_backbone,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench import Card, Cell, Phase, Protocol, TargetContext, World

#: A floor of updates, fewer than on the paper's own sets, for small ones.
_TALOS = {"backbone": "resnet18-stock", "batch": 512, "updates": 1000, "weight_decay": 1e-4}


@dataclass(frozen=True)
class Supervised(Target):
    """Trains encoder and classifier together by cross-entropy.

    Attributes:
        backbone: backbone of the encoder; ``auto`` follows the data (an MLP up to 8×8, otherwise a
            convnet).
        epochs: passes over the rows.
        updates: least number of updates of encoder and classifier; with few rows there are more
            epochs until it is reached. 0 for no such floor.
        batch: rows per step.
        hidden: widths of the hidden layers of an ``mlp``; by default two of 512.
        initial: initial weights: torch's own, or ``glorot``: Glorot's uniform ones and biases of 0,
            as in Keras. From torch's own, plain sgd may not learn at all in a deep ``mlp``.
        optimizer: ``adam`` or ``sgd``.
        lr: its learning rate.
        momentum: of sgd.
        cosine: whether the rate falls to zero along a cosine.
        drops: shares of the updates after which the rate falls to a tenth.
        weight_decay: L2 penalty.
        augmentation: augmentation of training rows, narrowed to what the dataset allows; none by
            default.
        pretrain: whether to pre-train on public rows that the protocol shows the encoder first;
            the paper trains from scratch.
        classifier_epochs: passes of the linear classifier, if the protocol gives it other rows.
        classifier_updates: least number of its updates, as ``updates``.
    """

    name: ClassVar[str] = "supervised"
    requires: ClassVar[tuple[str, ...]] = ("classes",)
    paper: ClassVar[Paper] = Paper(
        "Quantifying and Mitigating Privacy Risks of Contrastive Learning", "He, Zhang",
        "CCS 2021", "section 3.3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The paper gives no learning rate and its code uses Adam at 0.05; here 1e-3, at which "
        "training is stable on every backbone."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": _TALOS,
        "talos": _TALOS,
    }

    backbone: BackboneName = "auto"
    epochs: Annotated[int, Ge(0)] = 100
    updates: Annotated[int, Ge(0)] = 0
    batch: Annotated[int, Ge(1)] = 64
    hidden: tuple[Annotated[int, Ge(1)], ...] = ()
    initial: Literal["torch", "glorot"] = "torch"
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Gt(0)] = 1e-3
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    cosine: bool = False
    drops: tuple[Annotated[float, Gt(0), Lt(1)], ...] = ()
    weight_decay: Annotated[float, Ge(0)] = 0.0
    augmentation: Augmentation | None = None
    pretrain: bool = False
    classifier_epochs: Annotated[int, Ge(1)] = 100
    classifier_updates: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        """Check that momentum has a use.

        Raises:
            BadInputError: if Adam is given one.
        """
        super().__post_init__()
        if self.momentum and self.optimizer != "sgd":
            raise BadInputError("supervised.momentum is of sgd: set supervised.optimizer=sgd")

    def incompatible(self, cell: Cell) -> str | None:
        """Require inputs that the backbone can read, and layers only where it has them."""
        if self.hidden and chosen_backbone(self.backbone, cell.card) != "mlp":
            return f"hidden {self.hidden} are layers of an mlp: set backbone to mlp"
        return unfit_backbone(self.backbone, cell.card)

    def classifier_apart(self, protocol: Protocol) -> bool:
        """Return whether the classifier sees other rows than the encoder saw last."""
        return protocol.classifier != protocol.encoder[-1]

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder and linear classifier."""
        del ctx
        name = chosen_backbone(self.backbone, card)
        encoder = backbone(name, card.shape, hidden=self.hidden)
        classifier = nn.Linear(encoder.width, card.classes or 0)
        model = Model(card, {"encoder": encoder, "classifier": classifier})
        if self.initial == "glorot":
            model.apply(_glorot)
        return model

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the encoder's rows in the protocol; then the classifier, if it sees others."""
        del model
        seen = list(encoder_phases(ctx.protocol))
        optimizer = Optimizer(
            self.optimizer, self.lr, self.weight_decay, momentum=self.momentum,
            schedule="cosine" if self.cosine else "constant", drops=self.drops,
        )  # fmt: skip
        views = Views(self.augmentation, ctx.card, 1) if self.augmentation else None
        made = [
            supervised_phase(
                world, ctx, name=name, rows=rows, prepare=views, epochs=self.epochs,
                updates=self.updates, batch=self.batch, lr=self.lr, optimizer=optimizer,
            )
            for name, rows in (seen if self.pretrain else seen[-1:])
        ]  # fmt: skip
        if self.classifier_apart(ctx.protocol):
            epochs, updates = self.classifier_epochs, self.classifier_updates
            made.append(classifier_phase(world, ctx, epochs=epochs, updates=updates))
        return made


def _glorot(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [Supervised()]
