"""The autoencoder trains an encoder with a decoder, then a classifier on the embeddings.

Chen, Qiang, Ruan: Adversarial Representation Sharing: A Quantitative and Secure Collaborative
Learning Framework. arXiv:2203.14299, sections 3.3 and 5.1. One party, the initiator, trains encoder
and decoder by mean squared error, without labels, and publishes the encoder; a classifier is then
trained on embeddings. Both networks are fully connected, with ReLU between layers; embeddings are
unbounded, decoded inputs pass a sigmoid.

``owners`` splits the columns into contiguous runs of nearly equal length, never inside a one-hot
group (section 4.4.2, vertical partitioning). Each owner has its own encoder and decoder, which see
no other owner's columns; embeddings are concatenated, and so are the decoded inputs. The encoder's
``blocks`` say which columns became which coordinates.

What to expect: embeddings hold nearly all of the input, so ``reconstruction`` does well; the
encoder never sees labels, so attacks on posteriors detect what the classifier memorised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    Batch,
    BatchSpec,
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
    as_float,
    hookimpl,
    mlp,
)
from privbench.toolbox.phases import classifier_phase, encoder_phases, passes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privbench import Card, Cell, Clock, Protocol, TargetContext, World


@dataclass(frozen=True)
class Autoencoder(Target):
    """Trains encoder and decoder by mean squared error, then a classifier on the embeddings.

    Attributes:
        width: width of the embedding of each owner.
        hidden: neurons of each hidden layer.
        layers: number of layers of the encoder, and of the decoder.
        owners: number of owners that the columns are divided among.
        epochs: training epochs of encoder and decoder.
        updates: least number of updates of encoder and decoder; with few rows there are more
            epochs until it is reached. 0 for no such floor.
        batch: rows per step.
        lr: learning rate of encoder and decoder, with Adam.
        classifier: model trained on embeddings: ``linear``, or ``mlp`` with one hidden layer.
        classifier_epochs: training epochs of the classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the classifier, with Adam.
    """

    name: ClassVar[str] = "autoencoder"
    labelled_encoder: ClassVar[bool] = False
    paper: ClassVar[Paper] = Paper(
        "Adversarial Representation Sharing: A Quantitative and Secure Collaborative Learning "
        "Framework", "Chen, Qiang, Ruan", "arXiv:2203.14299", "sections 3.3, 4.4.2 and 5.1",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Widths, optimizer and epochs are not in the paper. It has convolutions for CelebA; here "
        "every encoder is fully connected. The classifier learns the members' labels only."
    )

    width: Annotated[int, Ge(1), Le(10_000)] = 64
    hidden: Annotated[int, Ge(1), Le(10_000)] = 256
    layers: Annotated[int, Ge(1), Le(100)] = 3
    owners: Annotated[int, Ge(1), Le(1000)] = 1
    epochs: Annotated[int, Ge(0)] = 100
    updates: Annotated[int, Ge(0)] = 0
    batch: Annotated[int, Ge(1)] = 64
    lr: Annotated[float, Gt(0)] = 1e-3
    classifier: Literal["linear", "mlp"] = "mlp"
    classifier_epochs: Annotated[int, Ge(1)] = 100
    classifier_updates: Annotated[int, Ge(0)] = 0
    classifier_lr: Annotated[float, Gt(0)] = 1e-3

    def incompatible(self, cell: Cell) -> str | None:
        """Require columns for every owner."""
        whole = len(starts(cell.card))
        if self.owners > whole:
            return (
                f"{self.name} divides columns among {self.owners} owners, and {cell.card.name} has "
                f"{whole} that can be apart"
            )
        return None

    def classifier_apart(self, protocol: Protocol) -> bool:
        """Always true."""
        del protocol
        return True

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder, decoder and, if there is a task, the classifier."""
        del ctx
        encoder = BlockEncoder(partition(card, self.owners), self.width, self.hidden, self.layers)
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "decoder": BlockDecoder(encoder, card.shape, self.hidden, self.layers),
        }
        if card.classes:
            inner = [self.hidden] if self.classifier == "mlp" else []
            parts["classifier"] = mlp([encoder.width, *inner, card.classes])
        return Model(card, parts)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train encoder and decoder on the encoder's rows in the protocol, then the classifier."""
        scale, spec = ctx.card.scale, Optimizer("adam", self.lr)

        def error(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
            """Return the mean squared error of the decoded inputs."""
            del clock
            return F.mse_loss(out.decoded, as_float(batch.x, scale))

        batch = BatchSpec(self.batch)
        made = [
            Phase(
                name=name,
                rows=rows,
                forward=_forward,
                steps={"train": Step(error, trains=("encoder", "decoder"))},
                epochs=passes(
                    name, world.parts[rows], batch, ctx, epochs=self.epochs, updates=self.updates
                ),
                batch=batch,
                optimizers={"encoder": spec, "decoder": spec},
                reads_labels=self.labelled_encoder,
            )
            for name, rows in encoder_phases(ctx.protocol)
        ]
        if "classifier" in model:
            made.append(
                classifier_phase(
                    world, ctx, epochs=self.classifier_epochs, updates=self.classifier_updates,
                    lr=self.classifier_lr, weight_decay=0.0, batch=self.batch,
                )
            )  # fmt: skip
        return made


class BlockEncoder(nn.Module):
    """One encoder per owner; their embeddings are concatenated.

    Attributes:
        blocks: for each owner, (start, stop) of its flat columns and of its coordinates.
        width: total number of coordinates of all owners.
    """

    def __init__(
        self, columns: Sequence[tuple[int, int]], width: int, hidden: int, layers: int
    ) -> None:
        """Build one network per owner: ``columns`` of each owner, ``width`` of each embedding."""
        super().__init__()
        self.blocks = tuple(
            (owned, (i * width, (i + 1) * width)) for i, owned in enumerate(columns)
        )
        self.width = width * len(columns)
        inner = [hidden] * (layers - 1)
        self.networks = nn.ModuleList(
            mlp([stop - start, *inner, width]) for start, stop in columns
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, *shape) to (n, d)."""
        flat = x.flatten(1)
        return torch.cat(
            [
                network(flat[:, start:stop])
                for network, ((start, stop), _) in zip(self.networks, self.blocks, strict=True)
            ],
            dim=1,
        )


class BlockDecoder(nn.Module):
    """One decoder per owner; each reads only its own coordinates."""

    def __init__(
        self, encoder: BlockEncoder, shape: tuple[int, ...], hidden: int, layers: int
    ) -> None:
        """Mirror the structure of that encoder."""
        super().__init__()
        self.blocks, self.shape = encoder.blocks, shape
        inner = [hidden] * (layers - 1)
        self.networks = nn.ModuleList(
            mlp([last - first, *inner, stop - start])
            for (start, stop), (first, last) in self.blocks
        )

    def forward(self, h: Tensor) -> Tensor:
        """Map h (n, d) to (n, *shape) in (0, 1)."""
        made = [
            network(h[:, first:last])
            for network, (_, (first, last)) in zip(self.networks, self.blocks, strict=True)
        ]
        return torch.cat(made, dim=1).sigmoid().view(-1, *self.shape)


def starts(card: Card) -> list[int]:
    """Return flat columns at which an owner's run may start: not inside a one-hot group."""
    inside = {column for start, stop in card.groups for column in range(start + 1, stop)}
    return [column for column in range(math.prod(card.shape)) if column not in inside]


def partition(card: Card, owners: int) -> tuple[tuple[int, int], ...]:
    """Return columns (start, stop) of each owner: nearly equal runs, none empty, no group split.

    Each cut is placed where a run may start, as near as possible to the cut of equal runs, and so
    that enough places remain for all later owners.
    """
    places, columns = starts(card), math.prod(card.shape)
    cuts, last = [0], 0
    for i in range(1, owners):
        allowed = range(last + 1, len(places) - (owners - 1 - i))
        ideal = i * columns / owners
        last = min(allowed, key=lambda at: abs(places[at] - ideal))
        cuts.append(places[last])
    return tuple(pairwise([*cuts, columns]))


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return h (n, d) and the inputs (n, *shape) decoded from it."""
    h = model.encode(batch.x)
    return Outputs(h=h, decoded=lambda: model.decode(h))


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [Autoencoder()]
