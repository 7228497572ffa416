"""DINO trains an encoder to say of a small crop what a slowly moving copy says of a large one.

Caron, Touvron, Misra, Jégou, Mairal, Bojanowski, Joulin: Emerging Properties in Self-Supervised
Vision Transformers. ICCV 2021, section 3, equations 1 to 4, algorithm 1; appendix C (head). What
the paper leaves open follows the authors' code.

Steps: crop two large views and some small ones from each row. The teacher (encoder and head) turns
the large ones into distributions over many outputs, centred by a moving mean and sharpened by a
low temperature. The student learns them from every other view, by cross-entropy. After each update
the teacher's weights move towards the student's. Then the student's encoder is frozen and one
linear layer learns the task on standardised embeddings of plain rows.

Presets: the defaults suit a CPU and small images; ``paper`` has the published sizes (ViT-S/16).

Deviations: see the class. What to expect: there are no negatives, but the centre joins all rows,
so it counts as contrastive.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privbench import (
    Augmentation,
    Batch,
    Ge,
    Gt,
    Le,
    Model,
    Outputs,
    Paper,
    Phase,
    Step,
    Target,
    hookimpl,
)
from privbench.toolbox.phases import Views, follow
from privbench.toolbox.vision_transformer import VisionTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privbench import Card, Clock, TargetContext, World

#: BYOL's colours (section 3.2, implementation details); large crops as in the authors' code.
DINO_VIEWS = Augmentation(
    crop=(0.4, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2, blur=0.5,
    blur_sigma=(0.1, 1.0),
)  # fmt: skip
_FOLLOWS = {"encoder": "teacher", "head": "teacher_head"}
#: Large views of a row.
LARGE = 2


@dataclass(frozen=True)
class DINO(VisionTarget):
    """Trains with DINO, then a linear classifier on the frozen encoder of the student.

    Attributes:
        patch: pixels of a patch's side; 0 for the smallest that cuts a row into at most eight.
        width: numbers of a token.
        depth: number of blocks.
        heads: heads of attention.
        released: ``vector``: the class token; ``map``: the tokens of all patches, row by row.
        epochs: passes of the encoder's phase over its rows.
        updates: least number of updates of that phase; with few rows there are more epochs until
            it is reached. 0 for no such floor.
        batch: rows per step; all rows if there are fewer, and then an epoch is one update.
        small: small views of each row, beside two large ones.
        small_crop: range of their area; ``augmentation`` says all else about them.
        outputs: numbers that the head ends in (K).
        hidden: width of the head's two hidden layers.
        bottleneck: width of its last layer but one.
        temperature: of the student (τ_s).
        teacher_temperature: of the teacher (τ_t).
        momentum: share of the teacher that stays at the first update; it rises to 1 along a half
            cosine.
        centre: share of the centre that stays at an update (m).
        lr: learning rate of Adam, falling to zero along a half cosine.
        weight_decay: L2 penalty.
        augmentation: of the large views, narrowed to what the dataset allows.
        classifier_epochs: passes of the linear classifier.
        classifier_updates: least number of its updates, as ``updates``.
        classifier_lr: learning rate of the linear classifier, with Adam.
        classifier_weight_decay: weight decay of the linear classifier, with Adam.
    """

    name: ClassVar[str] = "dino"
    contrastive: ClassVar[bool] = True
    paper: ClassVar[Paper] = Paper(
        "Emerging Properties in Self-Supervised Vision Transformers",
        "Caron, Touvron, Misra, Jégou, Mairal, Bojanowski, Joulin", "ICCV 2021",
        "section 3, equations 1-4, algorithm 1; arXiv:2104.14294",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The student's encoder is released, not the teacher's. Adam without weight decay instead "
        "of AdamW; no warm-up of rates or temperature, no clipped gradients, no frozen last layer "
        "in the first epoch, no drop path; the last layer always has unit norm; positions are "
        "fixed sines and cosines, and weights begin as Xavier's or torch's; small views have the "
        "size of the large ones; all views have one distribution of colours, without "
        "solarisation; the linear classifier reads the last class token only, standardised, and "
        "learns by Adam. The paper's text could not be had here: sizes and formulas are those of "
        "the authors' code. Values of its preset are for ImageNet at 224 pixels."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "patch": 16, "width": 384, "depth": 12, "heads": 6, "epochs": 800, "batch": 1024,
            "small": 10, "small_crop": (0.05, 0.25), "outputs": 65_536, "hidden": 2048,
            "bottleneck": 256, "teacher_temperature": 0.07, "momentum": 0.996, "lr": 2e-3,
            "augmentation": replace(DINO_VIEWS, crop=(0.25, 1.0)),
        },
    }  # fmt: skip

    small: Annotated[int, Ge(0), Le(100)] = 2
    small_crop: tuple[float, float] = (0.05, 0.4)
    outputs: Annotated[int, Ge(2), Le(1_000_000)] = 1024
    hidden: Annotated[int, Ge(1), Le(10_000)] = 256
    bottleneck: Annotated[int, Ge(1), Le(10_000)] = 64
    temperature: Annotated[float, Gt(0)] = 0.1
    teacher_temperature: Annotated[float, Gt(0)] = 0.04
    momentum: Annotated[float, Ge(0), Le(1)] = 0.99
    centre: Annotated[float, Ge(0), Le(1)] = 0.9
    augmentation: Augmentation = DINO_VIEWS

    def build(self, card: Card, ctx: TargetContext) -> Model:
        """Build student, teacher, centre and, if there is a task, a linear classifier."""
        del ctx
        encoder = self.encoder(card, class_token=True)
        head = Head(encoder.token, self.hidden, self.bottleneck, self.outputs)
        parts: dict[str, nn.Module] = {
            "encoder": encoder,
            "head": head,
            "teacher": copy.deepcopy(encoder),
            "teacher_head": copy.deepcopy(head),
            "centre": Centre(self.outputs),
            **self.head(encoder, card),
        }
        return Model(card, parts)

    def phases(self, model: Model, world: World, ctx: TargetContext) -> Sequence[Phase]:
        """Train on the encoder's rows in the protocol, then train the classifier."""
        del model
        step = Step(
            self._loss, trains=("encoder", "head"), live=("teacher", "teacher_head", "centre"),
            before=self._follow, after=self._move_centre,
        )  # fmt: skip
        crops = Crops(self.augmentation, ctx.card, LARGE + self.small, self.small_crop)
        return self.unlabelled_phases(world, ctx, prepare=crops, forward=_forward, step=step)

    def _follow(self, model: Model, clock: Clock) -> None:
        """Move the teacher, as of the update before this one; before the first nothing changes."""
        done, total = (clock.epoch - 1) * clock.steps + clock.step, clock.epochs * clock.steps
        rest = (1 - self.momentum) * (math.cos(math.pi * max(done - 1, 0) / total) + 1) / 2
        follow(model, _FOLLOWS, 1 - rest)

    def _move_centre(self, model: Model, out: Outputs) -> None:
        """Equation 4: the centre moves towards the mean of the teacher's outputs."""
        centre = cast("Centre", model["centre"])
        centre.value.lerp_(out.k.detach().float().mean(0), 1 - self.centre)

    def _loss(self, out: Outputs, batch: Batch, clock: Clock) -> Tensor:
        del clock
        return cross_entropies(
            out.z.float().view(batch.views, len(batch.y), -1),
            out.k.float().view(LARGE, len(batch.y), -1), out.centre,
            self.temperature, self.teacher_temperature,
        )  # fmt: skip


@dataclass(frozen=True)
class Crops(Views):
    """A ``Phase.prepare`` that makes two large views of each row, then small ones.

    Attributes:
        augmentation: of the large views, narrowed to what the dataset allows.
        card: card of the dataset.
        n: number of all views.
        small: range of the area of the small ones; ``crop-range`` narrows it too.
    """

    small: tuple[float, float] = (0.05, 0.4)

    def __call__(self, batch: Batch, uniforms: Callable[[int], Tensor]) -> Batch:
        """Return the batch with x (n * rows, ...)."""
        made = Views(self.augmentation, self.card, LARGE)(batch, uniforms)
        if self.n == LARGE:
            return made
        small = replace(self.augmentation, crop=self.small)
        rest = Views(small, self.card, self.n - LARGE)(batch, uniforms)
        return replace(made, x=torch.cat([made.x, rest.x]), views=self.n)


class Head(nn.Module):
    """Three layers to a unit vector, and its products with unit vectors: (n, d) to (n, K)."""

    def __init__(self, inputs: int, hidden: int, bottleneck: int, outputs: int) -> None:
        """Build untrained."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )  # fmt: skip
        self.last = nn.Linear(bottleneck, outputs, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Return the outputs, each in [-1, 1]."""
        return F.normalize(self.layers(h)) @ F.normalize(self.last.weight).T


class Centre(nn.Module):
    """The moving mean of the teacher's outputs (K,); zero at first."""

    value: Tensor

    def __init__(self, outputs: int) -> None:
        """Begin at zero."""
        super().__init__()
        self.register_buffer("value", torch.zeros(outputs))


def _forward(model: Model, batch: Batch) -> Outputs:
    """Return h (n views, d), z (n views, K) of the student, k (2 n, K) of the teacher, centre."""
    student: Any = model["encoder"]
    x = model.inputs(batch.x)

    def taught() -> Tensor:
        with torch.no_grad():
            teacher: Any = model["teacher"]
            tokens = teacher.tokens(x[: LARGE * len(batch.y)])
            return cast("Tensor", model["teacher_head"](tokens[:, 0]))

    tokens = student.tokens(x)
    return Outputs(
        h=lambda: student.released_of(tokens), z=lambda: model["head"](tokens[:, 0]), k=taught,
        centre=cast("Centre", model["centre"]).value,
    )  # fmt: skip


def cross_entropies(
    z: Tensor, k: Tensor, centre: Tensor, temperature: float, teacher_temperature: float
) -> Tensor:
    """Return the loss (equation 3), in nats: the mean over rows and pairs of unlike views.

    Args:
        z: (v, n, K) outputs of the student on all views, the large ones first.
        k: (2, n, K) outputs of the teacher on the large views.
        centre: (K,) taken from the teacher's outputs.
        temperature: of the student, above 0.
        teacher_temperature: of the teacher, above 0.

    Equal outputs everywhere: each pair costs the entropy of a fair coin.

    >>> round(float(cross_entropies(torch.zeros(3, 4, 2), torch.zeros(2, 4, 2), torch.zeros(2),
    ...                             0.1, 0.04)), 4)
    0.6931
    """
    wanted = ((k - centre) / teacher_temperature).softmax(2)
    said = (z / temperature).log_softmax(2)
    pairs = -torch.einsum("tnk,vnk->tv", wanted, said) / z.shape[1]
    unlike = 1 - torch.eye(*pairs.shape, device=pairs.device)
    return (pairs * unlike).sum() / unlike.sum()


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [DINO()]
