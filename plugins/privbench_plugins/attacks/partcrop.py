"""PartCrop: parts of a member respond otherwise to the member's whole than parts of other images.

Zhu, Zha, Li, Wang: A Unified Membership Inference Method for Visual Self-supervised Encoder via
Part-aware Capability. CCS 2024, arXiv:2404.02462; its second version (v2 here) in
arXiv:2505.10351. The texts could be checked in part only; the formulas are those of the authors'
code (github.com/JiePKU/PartCrop).

The adversary does not know how the encoder was trained (contrastive, masked, with which views): it
crops parts and asks for embeddings. Steps, for each image:

1. Embed m random crops, small parts of the image, and the whole image. An encoder that releases a
   feature map (``mae`` and ``dino`` with ``released="map"``; the shadow says so) has an embedding
   at each of L places; a part has their mean. For others the map is made of windows, with a note.
2. The response of a part is the softmax, over the L places, of its products with the map.
3. Two numbers for each part: the Kullback-Leibler divergence to its response from the uniform
   distribution, and from a bell-shaped one. Each set of m numbers is sorted, descending.
4. A network of three hidden layers learns from these 2m numbers who is a member, on the shadow.

Deviations: see the class. What to expect: an untrained encoder gives 0.5, and so does one that
treats parts of members as parts of others, or images so small that a part shows nothing (digits of
8×8 pixels, SimCLR, a map of windows: .52 on one seed, where ``encodermi-t`` has .74). The authors'
figures are not comparable: their loader crops members' images at random and leaves nonmembers'
whole (``get_cifar10_dataloaders`` in ``mia_util.py``), which alone tells them apart, and the
attacker is chosen by its accuracy on the evaluation set.
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
    Access,
    Augmentation,
    BadInputError,
    Ge,
    Gt,
    Le,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    as_float,
    augment,
    hookimpl,
)
from privbench.toolbox.classifiers import member_odds

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

#: Numbers of images that are cropped at a time.
_NUMBERS = 2**25


@dataclass(frozen=True)
class PartCrop(MembershipAttack):
    """Learns, on a shadow, how parts of members respond to the whole image.

    Attributes:
        parts: random crops of each image (m).
        area: area of a part over the area of the image, uniform in this range.
        places: windows per side, for encoders that release a vector (L is the square).
        window: side of a window over the side of the image.
        attacker: ``v1``: ReLU; ``v2``: root-mean-square norm and tanh after each hidden layer.
        epochs: passes over the shadow's rows.
        steps: minimum number of updates, so that a small shadow set does not leave it undertrained.
        batch: rows per step.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
    """

    name: ClassVar[str] = "partcrop"
    misses_planted: ClassVar[str] = (
        "it asks about small parts of images, and the leak is near whole ones"
    )
    needs: ClassVar[Access] = Access.EMBEDDINGS
    requires: ClassVar[tuple[str, ...]] = ("images",)
    paper: ClassVar[Paper] = Paper(
        "A Unified Membership Inference Method for Visual Self-supervised Encoder via Part-aware "
        "Capability", "Zhu, Zha, Li, Wang", "CCS 2024", "arXiv:2404.02462; v2: arXiv:2505.10351",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Parts are resized to the whole image (theirs to a half or a quarter of its side). The "
        "map of an encoder that releases a vector holds the embeddings of L windows, cut out at "
        "even places and resized to the whole image. Embeddings are layer-normalised, as the "
        "last layer of their transformer does, those of a released map once more. The attacker "
        "learns from a shadow instead of from half of the victim's own members; members and "
        "nonmembers are cropped alike; features are standardised by the shadow's; weights begin "
        "as torch draws them (theirs: deviation .01); the last state of the attacker is kept, "
        "not the best on the evaluation set; at least 1,000 updates. Parts are not limited to "
        "what keeps the label: they are queries only. They are cut from whole images (theirs from "
        "views already cropped for training). Bell curves are drawn once (theirs for each batch)."
    )

    parts: Annotated[int, Ge(1), Le(10_000)] = 128
    area: tuple[float, float] = (0.08, 0.2)
    places: Annotated[int, Ge(2), Le(100)] = 4
    window: Annotated[float, Gt(0), Le(1)] = 0.5
    attacker: Literal["v1", "v2"] = "v1"
    epochs: Annotated[int, Ge(1)] = 100
    steps: Annotated[int, Ge(0)] = 1000
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 5e-4

    @property
    def shadows(self) -> Shadows:
        """Request one shadow encoder."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score rows by the responses of their parts; the attacker learns from the shadow."""
        (shadow,) = ctx.shadows
        released = getattr(shadow.model["encoder"], "feature_map", None)
        if released is None:
            ctx.note(**{self.name: "the encoder releases a vector: its map is made of windows"})
        places = math.prod(released) if released else 1
        width = shadow.oracle.embeddings(shadow.nonmembers.select(slice(0, 1))).shape[1]
        if width % places:
            raise BadInputError(
                f"partcrop: the shadow's embeddings have {width} numbers, which the {places} "
                "places of its feature map do not divide: change the width of that target"
            )
        length = places if released else self.places**2
        bells = bell_curves(self.parts, length, ctx.generator("bells"))

        def features(asked: Oracle, rows: Examples) -> Tensor:
            return self._features(asked, rows, bells, ctx, (places, width // places))

        inside = features(shadow.oracle, shadow.world.members)
        outside = features(shadow.oracle, shadow.nonmembers)
        known = torch.cat([inside, outside])
        centre, spread = known.mean(0), known.std(0).clamp_min(1e-6)
        asked = features(oracle, question.examples)
        scores = member_odds(
            ctx.init(self._network, "attacker"),
            *((x - centre) / spread for x in (inside, outside, asked)),
            epochs=self.epochs, steps=self.steps, batch=self.batch, lr=self.lr,
            weight_decay=self.weight_decay, generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0)

    def _features(
        self, oracle: Oracle, rows: Examples, bells: Tensor, ctx: AttackContext,
        shape: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        """Return the sorted divergences (rows, 2m).

        Embeddings have as many places as ``shape`` says (a vector has 1), each of as many numbers.
        """
        places, _ = shape
        crops = Augmentation(crop=self.area, flip=0.5)
        u = ctx.uniform(rows, self.parts * crops.uniforms, "parts")
        at_once = max(1, _NUMBERS // (self.parts * rows.x[0].numel() * places))
        made = []
        for x, some in zip(torch.split(rows.x, at_once), torch.split(u, at_once), strict=True):
            images = as_float(x, rows.scale)
            repeated = images.repeat_interleave(self.parts, dim=0)
            cut = augment(repeated, crops, some.reshape(len(repeated), crops.uniforms))
            parts = _map(oracle, cut, shape).mean(1).view(len(x), self.parts, -1)
            if places == 1:
                images = windows_of(images, self.places, self.window).flatten(0, 1)
            whole = _map(oracle, images, shape).view(len(x), bells.shape[1], -1)
            made.append(divergences(parts, whole, bells))
        return torch.cat(made)

    def _network(self) -> nn.Module:
        """Build untrained: features (rows, 2m) -> logits (rows, 2) of nonmember, member."""
        widths = (2 * self.parts, 512, 256, 128)
        hidden = _rectified if self.attacker == "v1" else _scaled
        layers = [hidden(a, b) for a, b in pairwise(widths)]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 2))


def _rectified(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


def _scaled(inputs: int, outputs: int) -> nn.Module:
    norm = nn.RMSNorm(outputs, eps=1e-6, elementwise_affine=False)
    return nn.Sequential(nn.Linear(inputs, outputs), norm, nn.Tanh())


def _map(oracle: Oracle, x: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return embeddings (n, places, d) of x, with mean 0 and variance 1 at each place."""
    h = oracle.embeddings(x)
    if h.shape[1] != math.prod(shape):
        raise BadInputError(
            f"partcrop needs a shadow with embeddings as wide as the victim's ({h.shape[1]}), and "
            f"the adversary's target makes {math.prod(shape)}: change the width of that target"
        )
    return F.layer_norm(h.view(len(h), *shape).float(), shape[1:])


def windows_of(x: Tensor, places: int, window: float) -> Tensor:
    """Return square windows at even places of each image, resized to the whole image.

    Args:
        x: (n, c, h, w) in [0, 1].
        places: number per side.
        window: side of a window over the side of the image, in (0, 1].

    Returns:
        (n, places², c, h, w), row by row.
    """
    height, width = x.shape[2:]
    rows, columns = (max(1, round(window * side)) for side in (height, width))
    made = []
    for i in range(places):
        top = round(i * (height - rows) / (places - 1))
        for j in range(places):
            left = round(j * (width - columns) / (places - 1))
            cut = x[:, :, top : top + rows, left : left + columns]
            made.append(F.interpolate(cut, (height, width), mode="bilinear", antialias=True))
    return torch.stack(made, dim=1)


def divergences(parts: Tensor, places: Tensor, bells: Tensor) -> Tensor:
    """Return, sorted, how far the response of each part is from even and from bell-shaped.

    The response of part i is q_i = softmax over places j of <part_i, place_j>. For a reference p
    the divergence is the sum over j of p_j (log p_j - log q_ij).

    Args:
        parts: (n, m, d) embeddings.
        places: (n, L, d) embeddings.
        bells: (m, L) positive, each row with sum 1.

    Returns:
        (n, 2m): m divergences from the uniform distribution, then m from the rows of ``bells``,
        each half in descending order; all at least 0.

    A part that responds alike to both places has an even response:

    >>> part, places = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0], [0.0, 2.0]]])
    >>> divergences(part, places, torch.tensor([[0.5, 0.5]])).tolist()
    [[0.0, 0.0]]
    """
    log_q = (parts @ places.transpose(1, 2)).log_softmax(2)
    even = -math.log(log_q.shape[2]) - log_q.mean(2)
    bell = (bells * (bells.log() - log_q)).sum(2)
    found = [values.sort(1, descending=True).values for values in (even, bell)]
    return torch.cat(found, dim=1).clamp_min(0)


def bell_curves(m: int, length: int, generator: torch.Generator) -> Tensor:
    """Return m bell-shaped distributions (m, length): normal densities at sorted normal draws."""
    draws = torch.randn(m, length, generator=generator, device=generator.device).sort(1).values
    z = (draws - draws.mean(1, keepdim=True)) / draws.std(1, keepdim=True)
    return (-(z**2) / 2).softmax(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [PartCrop()]
