"""A small vision transformer, and what targets that train one have in common.

Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale. ICLR
2021, section 3.1. An image is cut into square patches; each becomes a token, and blocks of
attention and a small network change the tokens. What is released is one vector, or the tokens of
all patches, which is a feature map.

Deviations: positions are fixed sines and cosines in two dimensions, as in MAE, not learned; weights
begin uniform (Xavier), biases at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn import functional as F

from privbench.measure.methods.target import Target
from privbench.measure.training.nets.layers import Backbone
from privbench.measure.training.phase import BatchSpec, Optimizer, Phase
from privbench.toolbox.phases import classifier_phase, encoder_phases, passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.measure.data.examples import Card
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import TargetContext
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Batch, Outputs, Step
    from privbench.toolbox.phases import Views

Released = Literal["vector", "map"]
#: Patches per row, at most, if the length of their side is chosen here.
_PER_ROW = 8


class VisionTransformer(Backbone):
    """Images (n, c, h, w) to (n, width), or to a feature map (n, places · width).

    >>> net = VisionTransformer((3, 32, 32), patch=4, width=16, depth=1, heads=2, released="map")
    >>> net.places, net(torch.rand(5, 3, 32, 32)).shape
    (64, torch.Size([5, 1024]))

    Attributes:
        places: number of patches of an image.
        feature_map: rows and columns of the map that is released; None for a vector. Attacks read
            it from their shadows' encoders, whatever their class.
        token: d, numbers of a token.
        width: numbers of what is released: d, or places · d.
    """

    position: Tensor

    def __init__(
        self, shape: tuple[int, ...], *, patch: int, width: int, depth: int, heads: int,
        released: Released = "vector", class_token: bool = False,
    ) -> None:  # fmt: skip
        """Build for one shape of images.

        Args:
            shape: (c, h, w) of an image; ``patch`` divides h and w.
            patch: pixels of a patch's side.
            width: numbers of a token, a multiple of 4 and of ``heads``.
            depth: number of blocks.
            heads: heads of attention.
            released: ``vector``: the class token, or without one the mean of the patches' tokens;
                ``map``: the patches' tokens, row by row.
            class_token: whether a token that belongs to no patch is added.
        """
        super().__init__()
        channels, high, wide = shape
        self.patch, self.released, self.token = patch, released, width
        rows, columns = high // patch, wide // patch
        self.places = rows * columns
        self.feature_map = (rows, columns) if released == "map" else None
        self.width = width * (self.places if released == "map" else 1)
        self.embed = nn.Linear(channels * patch**2, width)
        self.register_buffer("position", positions(rows, columns, width), persistent=False)
        self.first = nn.Embedding(1, width) if class_token else None
        self.blocks = blocks(width, depth, heads)
        self.norm = nn.LayerNorm(width)
        self.apply(begin)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is released of images (n, c, h, w)."""
        return self.released_of(self.tokens(x))

    def released_of(self, tokens: Tensor) -> Tensor:
        """Return what is released, of all last tokens (n, l, d)."""
        if self.released == "map":
            return tokens[:, -self.places :].flatten(1)
        return tokens.mean(1) if self.first is None else tokens[:, 0]

    def tokens(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return the last tokens (n, l, d), the class token first, if there is one.

        Args:
            x: images (n, c, h, w).
            kept: (n, l) places of the patches that are seen; None for all.
        """
        tokens = self.embed(patches(x, self.patch)) + self.position
        if kept is not None:
            tokens = picked(tokens, kept)
        if self.first is not None:
            tokens = torch.cat([repeated(self.first, len(x), 1), tokens], dim=1)
        return cast("Tensor", self.norm(self.blocks(tokens)))


class Block(nn.Module):
    """Attention between tokens, then a network on each, both added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        """Build for tokens of ``width`` numbers; the network has four times as many inside."""
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.asks, self.answers = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Change tokens (n, l, d)."""
        n, length, width = tokens.shape
        asked = self.asks(self.norms[0](tokens)).view(n, length, 3, self.heads, -1)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.answers(seen.transpose(1, 2).reshape(n, length, width))
        return cast("Tensor", tokens + self.network(self.norms[1](tokens)))


class Standardised(nn.Module):
    """Batch norm of (n, d) that also takes a batch of one row: by the running mean and variance."""

    def __init__(self, width: int) -> None:
        """Build for rows of ``width`` numbers."""
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-6)  # dp-sgd replaces what has weights

    def forward(self, h: Tensor) -> Tensor:
        """Standardise each number over the batch; in eval mode by all batches before."""
        norm = self.norm
        if len(h) == 1 and isinstance(norm, nn.BatchNorm1d):
            return F.batch_norm(
                h, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        return cast("Tensor", norm(h))


def blocks(width: int, depth: int, heads: int) -> nn.Sequential:
    """Return that many blocks, one after the other."""
    return nn.Sequential(*(Block(width, heads) for _ in range(depth)))


def begin(module: nn.Module) -> None:
    """Draw the first weights: Xavier's uniform ones, biases 0, extra tokens of deviation .02."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def repeated(token: nn.Embedding, n: int, length: int) -> Tensor:
    """Return a learned token (n, length, d).

    It is an embedding of one entry, because row gradients (DP-SGD) know that layer.
    """
    where = torch.zeros(n, length, dtype=torch.int64, device=token.weight.device)
    return cast("Tensor", token(where))


def patches(x: Tensor, side: int) -> Tensor:
    """Cut images (n, c, h, w) into patches (n, places, c · side²), row by row.

    >>> patches(torch.arange(8.0).view(1, 1, 2, 4), 2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // side, side, w // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * side**2)


def picked(tokens: Tensor, places: Tensor) -> Tensor:
    """Return of tokens (n, l, d) those at places (n, k): (n, k, d)."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def positions(rows: int, columns: int, width: int) -> Tensor:
    """Return sines and cosines of each patch's column and row, (rows · columns, width).

    Their wavelengths grow from 2π places towards 10,000 times that (Vaswani et al. 2017, section
    3.5).

    >>> positions(1, 2, 4).tolist()[0]  # column 0, row 0: sine and cosine of each
    [0.0, 1.0, 0.0, 1.0]
    """
    frequencies = 10_000.0 ** -(torch.arange(width // 4) * 4 / width)
    grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
    angles = [grid[:, axis, None] * frequencies for axis in (1, 0)]
    return torch.cat([one for angle in angles for one in (angle.sin(), angle.cos())], dim=1)


@dataclass(frozen=True)
class VisionTarget(Target):
    """Trains a small vision transformer without labels, then a classifier on it, frozen.

    Attributes:
        patch: pixels of a patch's side; 0 for the smallest that cuts a row into at most eight.
        width: numbers of a token.
        depth: number of blocks.
        heads: heads of attention.
        released: ``vector``, or ``map``: the tokens of all patches, one after the other.
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step; all rows if there are fewer, and then an epoch is one update.
        lr: learning rate of Adam, falling to zero along a half cosine.
        weight_decay: L2 penalty.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    requires: ClassVar[tuple[str, ...]] = ("images",)
    labelled_encoder: ClassVar[bool] = False

    patch: Annotated[int, Ge(0), Le(256)] = 0
    width: Annotated[int, Ge(4), Le(10_000)] = 64
    depth: Annotated[int, Ge(1), Le(100)] = 4
    heads: Annotated[int, Ge(1), Le(100)] = 4
    released: Released = "vector"
    epochs: Annotated[int, Ge(0)] = 400
    updates: Annotated[int, Ge(0)] = 0
    batch: Annotated[int, Ge(2)] = 128
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.0
    classifier_epochs: Annotated[int, Ge(1)] = 100
    classifier_updates: Annotated[int, Ge(0)] = 1000
    classifier_lr: Annotated[float, Gt(0)] = 1e-2
    classifier_weight_decay: Annotated[float, Ge(0)] = 1e-4

    def side(self, card: Card) -> int:
        """Return the pixels of a patch's side on images of that dataset."""
        if self.patch:
            return self.patch
        both = math.gcd(*card.shape[1:])
        least = max(2, math.ceil(card.shape[-1] / _PER_ROW))
        return next((side for side in range(least, both + 1) if not both % side), least)

    def grid(self, card: Card) -> tuple[int, int]:
        """Return rows and columns of patches."""
        high, wide = card.shape[1:]
        return high // self.side(card), wide // self.side(card)

    def incompatible(self, cell: Cell) -> str | None:
        """Require images that patches cover, and tokens that heads divide."""
        side = self.side(cell.card)
        if any(length % side for length in cell.card.shape[1:]):
            high, wide = cell.card.shape[1:]
            return (
                f"patches of {side}x{side} pixels do not cover images of {high}x{wide} of "
                f"{cell.card.name}: set patch to a divisor of both"
            )
        if math.prod(self.grid(cell.card)) == 1:
            return f"one patch of {side}x{side} pixels is all of an image: set a smaller patch"
        if self.width % self.heads or self.width % 4:
            return (
                f"{self.name}: width {self.width} is no multiple of 4 and of heads ({self.heads}): "
                "change one of them"
            )
        return None

    def encoder(self, card: Card, *, class_token: bool) -> VisionTransformer:
        """Build the untrained encoder."""
        return VisionTransformer(
            card.shape, patch=self.side(card), width=self.width, depth=self.depth,
            heads=self.heads, released=self.released, class_token=class_token,
        )  # fmt: skip

    def head(self, encoder: VisionTransformer, card: Card) -> dict[str, nn.Module]:
        """Return the part ``classifier``, if there is a task: standardised numbers, one layer.

        Embeddings of different rows differ little beside their mean, which one layer alone takes
        away too slowly.
        """
        if card.classes is None:
            return {}
        layer = nn.Linear(encoder.width, card.classes)
        return {"classifier": nn.Sequential(Standardised(encoder.width), layer)}

    def unlabelled_phases(
        self,
        world: World,
        ctx: TargetContext,
        *,
        prepare: Views,
        forward: Callable[[Model, Batch], Outputs],
        step: Step,
    ) -> list[Phase]:
        """Return the phases on the encoder's rows in the protocol, and that of the classifier.

        Args:
            world: whose rows train the model.
            ctx: of the target.
            prepare: makes the views that ``forward`` reads.
            forward: from a prepared batch.
            step: of the encoder's phases; Adam trains what it trains, along a half cosine.
        """
        batch = BatchSpec(self.batch)
        spec = Optimizer("adam", self.lr, self.weight_decay, schedule="cosine")
        made = [
            Phase(
                name=name,
                rows=rows,
                prepare=prepare,
                forward=forward,
                steps={"train": step},
                epochs=passes(
                    name, world.parts[rows], batch, ctx, epochs=self.epochs, updates=self.updates
                ),
                batch=batch,
                optimizers=dict.fromkeys(step.trains, spec),
                per_example=not self.contrastive,
                reads_labels=self.labelled_encoder,
            )
            for name, rows in encoder_phases(ctx.protocol)
        ]
        if ctx.card.classes is not None:
            made.append(
                classifier_phase(
                    world, ctx, epochs=self.classifier_epochs, updates=self.classifier_updates,
                    lr=self.classifier_lr, weight_decay=self.classifier_weight_decay, batch=512,
                )
            )  # fmt: skip
        return made

    def classifier_apart(self, protocol: object) -> bool:
        """Always true."""
        del protocol
        return True
