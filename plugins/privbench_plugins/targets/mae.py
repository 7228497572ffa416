"""MAE trains an encoder on a few patches of an image, so that a decoder can draw the hidden ones.

He, Chen, Xie, Li, Dollár, Girshick: Masked Autoencoders Are Scalable Vision Learners. CVPR 2022,
section 3 and appendix A.1. What the paper leaves open follows the authors' code.

Steps: crop the image; hide a random three quarters of its patches; the encoder, a vision
transformer, sees the others only; a small decoder sees their tokens, and one learned token at each
hidden place, and draws the pixels. The loss is the squared error on hidden patches. Then the
encoder sees whole images, is frozen, and one linear layer learns the task on its standardised
embeddings.

Presets: the defaults suit a CPU and small images; ``paper`` has the published sizes (ViT-B/16).

Deviations: see the class. What to expect: each row adds to the loss by itself, so ``dp-sgd``
applies; the encoder never compares two views of an image, which attacks on contrastive encoders
rely on.
"""

from __future__ import annotations

import math
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
    Lt,
    Model,
    Outputs,
    Paper,
    Phase,
    Step,
    Target,
    hookimpl,
)
from privbench.toolbox.phases import Views
from privbench.toolbox.vision_transformer import (
    VisionTarget,
    begin,
    blocks,
    patches,
    picked,
    positions,
    repeated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench import Card, Cell, Clock, TargetContext, World

#: Appendix A.1, table 8.
MAE_VIEWS = Augmentation(crop=(0.2, 1.0), flip=0.5)


@dataclass(frozen=True)
class MAE(VisionTarget):
    """Trains a masked autoencoder, then a linear classifier on the frozen encoder.

    Attributes:
        patch: pixels of a patch's side; 0 for the smallest that cuts a row into at most eight.
        width: numbers of a token of the encoder.
        depth: number of its blocks.
        heads: heads of attention of the encoder.
        released: ``vector``: the mean of the patches' tokens; ``map``: these tokens, row by row.
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step; all rows if there are fewer, and then an epoch is one update.
        hidden: share of the patches that the encoder does not see.
        decoder_width: numbers of a token of the decoder.
        decoder_depth: number of its blocks.
        decoder_heads: heads of its attention.
        normalised: whether the pixels to draw have mean 0 and variance 1 in each patch.
        lr: learning rate of Adam, falling to zero along a half cosine.
        weight_decay: L2 penalty.
        augmentation: of the images, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "mae"
    paper: ClassVar[Paper] = Paper(
        "Masked Autoencoders Are Scalable Vision Learners",
        "He, Chen, Xie, Li, Dollár, Girshick", "CVPR 2022",
        "section 3, appendix A.1; arXiv:2111.06377",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Adam without weight decay instead of AdamW, torch's decay of moments, no warm-up; no "
        "class token (the paper finds the mean of the tokens as good); bilinear crops; layer norms "
        "add 1e-5 instead of 1e-6; the classifier's batch norm has weights, and it learns by Adam "
        "instead of LARS. The paper's text could not be had here: sizes and formulas are those of "
        "the authors' code. Values of its preset are for ImageNet at 224 pixels."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "patch": 16, "width": 768, "depth": 12, "heads": 12, "decoder_width": 512,
            "decoder_depth": 8, "decoder_heads": 16, "epochs": 800, "batch": 4096, "lr": 2.4e-3,
        },
    }  # fmt: skip

    hidden: Annotated[float, Gt(0), Lt(1)] = 0.75
    decoder_width: Annotated[int, Ge(4), Le(10_000)] = 64
    decoder_depth: Annotated[int, Ge(1), Le(100)] = 1
    decoder_heads: Annotated[int, Ge(1), Le(100)] = 4
    normalised: bool = True
    augmentation: Augmentation = MAE_VIEWS

    def incompatible(self, cell: Cell) -> str | None:
        """Require patches that cover the images, and widths that heads divide."""
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            return (
                f"{self.name}: decoder_width {self.decoder_width} is no multiple of 4 and of "
                f"decoder_heads ({self.decoder_heads}): change one of them"
            )
        if self.normalised and self.side(cell.card) ** 2 * cell.card.shape[0] == 1:
            return f"{self.name}: a patch of one number has no variance: set normalised to false"
        return super().incompatible(cell)

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build encoder, decoder of patches and, if there is a task, a linear classifier."""
        del ctx
        encoder = self.encoder(card, class_token=False)
        painter = Painter(
            encoder.token, card.shape[0] * self.side(card) ** 2, self.grid(card),
            width=self.decoder_width, depth=self.decoder_depth, heads=self.decoder_heads,
        )  # fmt: skip
        return Model(card, {"encoder": encoder, "painter": painter, **self.head(encoder, card)})

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the encoder's rows in the protocol, then train the classifier."""
        del model
        side = self.side(ctx.card)

        def forward(model: Model, batch: Any) -> Outputs:
            return Outputs(
                h=lambda: model.encode(batch.x), drawn=lambda: _drawn(model, batch),
                wanted=lambda: self._wanted(patches(model.inputs(batch.x), side)),
            )  # fmt: skip

        return self.unlabelled_phases(
            world, ctx, prepare=Hiding(self.augmentation, ctx.card, 1, side, self.hidden),
            forward=forward, step=Step(_loss, trains=("encoder", "painter")),
        )  # fmt: skip

    def _wanted(self, pixels: Tensor) -> Tensor:
        """Return what the decoder shall draw (n, places, p) of patches (n, places, p)."""
        if not self.normalised:
            return pixels
        return (pixels - pixels.mean(2, keepdim=True)) / (pixels.var(2, keepdim=True) + 1e-6).sqrt()


@dataclass(frozen=True, kw_only=True)
class HiddenBatch(Batch):
    """Rows and, for each, its patches in random order: those seen, then those hidden.

    Attributes:
        order: (n, places) int64.
        seen: how many of them the encoder sees.
    """

    order: Tensor
    seen: int


@dataclass(frozen=True)
class Hiding(Views):
    """A ``Phase.prepare`` that crops each row, and draws which of its patches are hidden.

    Attributes:
        augmentation: of the images, narrowed to what the dataset allows.
        card: card of the dataset.
        n: views of each row: one.
        side: pixels of a patch's side.
        share: of the patches that is hidden; at least one patch is, and at least one is not.
    """

    side: int = 1
    share: float = 0.75

    def __call__(self, batch: Batch, uniforms: Callable[[int], Tensor]) -> HiddenBatch:
        """Return the batch with views of the rows, and an order of their patches."""
        made = super().__call__(batch, uniforms)
        places = math.prod(length // self.side for length in self.card.shape[1:])
        seen = min(max(1, int(places * (1 - self.share))), places - 1)
        return HiddenBatch(
            made.x, made.y, made.attributes, made.rows,
            order=uniforms(places).argsort(1), seen=seen,
        )  # fmt: skip


class Painter(nn.Module):
    """The decoder: tokens of seen patches to pixels of all patches."""

    position: Tensor

    def __init__(
        self, token: int, pixels: int, grid: tuple[int, int], *, width: int, depth: int, heads: int
    ) -> None:
        """Build for tokens (n, k, token), ``pixels`` numbers a patch, ``grid`` rows and columns."""
        super().__init__()
        self.embed, self.unseen = nn.Linear(token, width), nn.Embedding(1, width)
        self.register_buffer("position", positions(*grid, width), persistent=False)
        self.blocks, self.norm = blocks(width, depth, heads), nn.LayerNorm(width)
        self.draw = nn.Linear(width, pixels)
        self.apply(begin)

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        """Return pixels (n, places, p) of tokens (n, k, d), of the first k patches of ``order``."""
        n, k, _ = tokens.shape
        every = torch.cat([self.embed(tokens), repeated(self.unseen, n, order.shape[1] - k)], dim=1)
        in_place = picked(every, order.argsort(1)) + self.position
        pixels: Tensor = self.draw(self.norm(self.blocks(in_place)))
        return pixels


def _drawn(model: Model, batch: HiddenBatch) -> Tensor:
    """Return the pixels of all patches that the decoder draws from the seen ones."""
    encoder: Any = model["encoder"]
    tokens = encoder.tokens(model.inputs(batch.x), batch.order[:, : batch.seen])
    drawn: Tensor = model["painter"](tokens, batch.order)
    return drawn


def _loss(out: Outputs, batch: Any, clock: Clock) -> Tensor:
    """Mean squared error of hidden patches, mean over rows."""
    del clock
    hidden = batch.order[:, batch.seen :]
    return error(picked(out.drawn.float(), hidden), picked(out.wanted, hidden))


def error(drawn: Tensor, wanted: Tensor) -> Tensor:
    """Mean over rows, patches and pixels of the squared difference of (n, k, p) and (n, k, p).

    >>> float(error(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[1.0, 4.0]]])))
    2.0
    """
    return (drawn - wanted).square().mean()


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [MAE()]
