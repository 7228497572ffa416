"""Targets whose encoder learns from two views of each row, without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Gt
from torch import nn

from privbench.measure.data.augmentation import Augmentation
from privbench.measure.methods.target import Target
from privbench.measure.training.phase import BatchSpec, Phase
from privbench.toolbox.phases import (
    BackboneName,
    Views,
    classifier_phase,
    encoder_phases,
    passes,
    unfit_backbone,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from privbench.measure.data.examples import Card
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import TargetContext
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Batch, Optimizer, Outputs, Step

CROPS = Augmentation(crop=(0.08, 1.0), flip=0.5)


@dataclass(frozen=True)
class SelfSupervised(Target):
    """Trains an encoder on pairs of views, then a linear classifier on the frozen encoder.

    Attributes:
        backbone: backbone of the encoder; ``auto`` follows the data (an MLP up to 8×8, otherwise a
            convnet).
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step; all rows if there are fewer, and then an epoch is one update.
        augmentation: augmentation of both views, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    requires: ClassVar[tuple[str, ...]] = ("images",)
    contrastive: ClassVar[bool] = True
    labelled_encoder: ClassVar[bool] = False

    backbone: BackboneName = "auto"
    epochs: Annotated[int, Ge(0)] = 400
    updates: Annotated[int, Ge(0)] = 0
    batch: Annotated[int, Ge(2)] = 512
    augmentation: Augmentation = CROPS
    classifier_epochs: Annotated[int, Ge(1)] = 100
    classifier_updates: Annotated[int, Ge(0)] = 0
    classifier_lr: Annotated[float, Gt(0)] = 1e-2
    classifier_weight_decay: Annotated[float, Ge(0)] = 1e-4

    def incompatible(self, cell: Cell) -> str | None:
        """Require a backbone for the images."""
        return unfit_backbone(self.backbone, cell.card)

    def pair_phases(
        self,
        model: Model,
        world: World,
        ctx: TargetContext,
        *,
        forward: Callable[[Model, Batch], Outputs],
        step: Step,
        optimizers: Mapping[str, Optimizer],
        drop_last: bool = False,
    ) -> list[Phase]:
        """Return the phases on the encoder's rows in the protocol, and that of the classifier.

        Args:
            model: has a part ``classifier`` if there is a task.
            world: whose rows train the model.
            ctx: of the target.
            forward: from a batch of first views and then second ones.
            step: of the encoder's phases.
            optimizers: part -> its optimizer.
            drop_last: whether a smaller last batch is dropped.
        """
        batch = BatchSpec(self.batch, drop_last=drop_last)
        made = [
            Phase(
                name=name,
                rows=rows,
                prepare=Views(self.augmentation, ctx.card, 2),
                forward=forward,
                steps={"train": step},
                epochs=passes(
                    name, world.parts[rows], batch, ctx, epochs=self.epochs, updates=self.updates
                ),
                batch=batch,
                optimizers=optimizers,
                per_example=not self.contrastive,
                reads_labels=self.labelled_encoder,
            )
            for name, rows in encoder_phases(ctx.protocol)
        ]
        if "classifier" in model:
            made.append(
                classifier_phase(
                    world, ctx, epochs=self.classifier_epochs, updates=self.classifier_updates,
                    lr=self.classifier_lr, weight_decay=self.classifier_weight_decay, batch=512,
                )
            )  # fmt: skip
        return made


def task_head(width: int, card: Card) -> dict[str, nn.Module]:
    """Return a linear classifier on embeddings of that width as part ``classifier``, if any."""
    return {} if card.classes is None else {"classifier": nn.Linear(width, card.classes)}
