"""Supervised training that keeps checkpoints, for an adversary who finds them.

Encoder and classifier are trained as by ``supervised``, to the same weights. Meanwhile copies of
both are kept, evenly spaced over the epochs, and stored with the model: they are what a training
run leaves on a disk, in a model hub or with an experiment tracker. Only a white-box adversary reads
them (``adversaries: [white-box]``), with the attack ``loss-trace``. No defense that changes
released answers protects them: under such a defense there are no weights to read, so cells of
``loss-trace`` are skipped.

Each checkpoint takes as much memory and disk as the model. A defense that replaces the steps of
training (``mist``, ``olympus``, ``talos``) keeps none, and ``loss-trace`` then fails with that
reason. With early stopping, the checkpoints are those up to the epoch that is restored.

What to expect: answers, accuracy and all black-box attacks as on ``supervised``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch import nn

from privbench import Augmentation, Ge, Gt, Le, Model, Target, backbone, hookimpl
from privbench.toolbox.kept_checkpoints import PART, Checkpoints, keeping
from privbench.toolbox.phases import (
    BackboneName,
    Views,
    chosen_backbone,
    supervised_phase,
    unfit_backbone,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Card, Cell, Phase, Protocol, TargetContext, World


@dataclass(frozen=True)
class SupervisedCheckpoints(Target):
    """Trains encoder and classifier together by cross-entropy, and keeps checkpoints.

    Attributes:
        checkpoints: copies of the model that are kept, evenly spaced, all before the last epoch.
        backbone: backbone of the encoder; ``auto`` follows the data (an MLP up to 8×8, otherwise a
            convnet).
        epochs: passes over the rows.
        updates: least number of updates of encoder and classifier; with few rows there are more
            epochs until it is reached. 0 for no such floor.
        batch: rows per step.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        augmentation: augmentation of training rows, narrowed to what the dataset allows; none by
            default.
    """

    name: ClassVar[str] = "supervised-checkpoints"
    requires: ClassVar[tuple[str, ...]] = ("classes",)

    checkpoints: Annotated[int, Ge(1), Le(1000)] = 19
    backbone: BackboneName = "auto"
    epochs: Annotated[int, Ge(2)] = 100
    updates: Annotated[int, Ge(0)] = 0
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0
    augmentation: Augmentation | None = None

    def incompatible(self, cell: Cell) -> str | None:
        """Require inputs that the backbone can read, and one phase of training."""
        if cell.protocol.classifier != cell.protocol.encoder[-1]:
            return f"{self.name} trains encoder and classifier on the same rows"
        return unfit_backbone(self.backbone, cell.card)

    def classifier_apart(self, protocol: Protocol) -> bool:
        """Always false: see ``incompatible``."""
        del protocol
        return False

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder and linear classifier, and room for the checkpoints."""
        del ctx
        encoder = backbone(chosen_backbone(self.backbone, card), card.shape)
        parts = {"encoder": encoder, "classifier": nn.Linear(encoder.width, card.classes or 0)}
        model = Model(card, parts)
        model.parts[PART] = Checkpoints(model, self.checkpoints)
        return model

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the rows that the protocol shows the encoder last."""
        del model
        views = Views(self.augmentation, ctx.card, 1) if self.augmentation else None
        phase = supervised_phase(
            world, ctx, prepare=views, epochs=self.epochs, updates=self.updates, batch=self.batch,
            lr=self.lr, weight_decay=self.weight_decay,
        )  # fmt: skip
        return [keeping(phase)]


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [SupervisedCheckpoints()]
