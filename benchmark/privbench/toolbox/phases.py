"""Phases that several targets share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional as F

from privbench.measure.data.augmentation import Augmentation, augment
from privbench.measure.data.examples import as_float
from privbench.measure.training.nets import backbone_misfit
from privbench.measure.training.phase import Batch, BatchSpec, Optimizer, Outputs, Phase, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.data.split import World
    from privbench.measure.methods.context import DefenseContext, TargetContext
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Clock

BackboneName = Literal[
    "auto", "mlp", "convnet", "resnet18", "resnet18-stock", "resnet50", "resnet50-stock",
    "mobilenetv2", "vgg11-bn",
]  # fmt: skip


def chosen_backbone(name: BackboneName, card: Card) -> str:
    """Resolve ``auto``: an MLP for tables and images up to 8×8, else a small convolutional net."""
    if name != "auto":
        return name
    return "mlp" if card.kind != "image" or card.shape[-1] <= 8 else "convnet"  # noqa: PLR2004


def unfit_backbone(name: BackboneName, card: Card) -> str | None:
    """Return why that backbone cannot read the dataset, or None.

    ``mlp`` reads everything, ``vgg11-bn`` images of at least 32×32 pixels, the others all images.
    """
    if card.kind != "image" and name not in ("auto", "mlp"):
        return f"backbone {name} reads images, and {card.name} has {card.kind} columns"
    problem = backbone_misfit(name, card.shape)
    return f"{problem} of {card.name}" if problem else None


def encoder_phases(protocol: Protocol) -> Iterator[tuple[str, str]]:
    """Yield name and rows of each encoder phase; the last is called ``encoder``."""
    *earlier, last = protocol.encoder
    for part in earlier:
        yield f"pretrain-{part}", part
    yield "encoder", last


@dataclass(frozen=True)
class Views:
    """A ``Phase.prepare`` that makes n augmented views of each row, one view after the other.

    Attributes:
        augmentation: how views are made, narrowed to what the dataset says keeps label and
            attributes.
        card: card of the dataset.
        n: views per row.
    """

    augmentation: Augmentation
    card: Card
    n: int

    def __call__(self, batch: Batch, uniforms: Callable[[int], Tensor]) -> Batch:
        """Return the batch with x (n * rows, ...)."""
        augmentation = self.augmentation.within(self.card.limits or Augmentation())
        x = as_float(batch.x, self.card.scale)
        drawn = torch.cat([uniforms(augmentation.uniforms) for _ in range(self.n)])
        made = augment(x.repeat(self.n, *[1] * (x.dim() - 1)), augmentation, drawn)
        return Batch(made, batch.y, batch.attributes, batch.rows, views=self.n)


def passes(
    phase: str, rows: Examples, batch: BatchSpec, ctx: TargetContext, *, epochs: int, updates: int
) -> int:
    """Return the epochs of a phase: ``epochs``, or as many more as ``updates`` updates need.

    0 epochs stay 0: that leaves the part untrained. A batch larger than the rows makes one update
    of an epoch; this is noted in the record.
    """
    if batch.size > len(rows):
        ctx.note(**{
            f"{phase}: batch": f"all {len(rows)} rows (batch {batch.size}): one update an epoch"
        })  # fmt: skip
    if not epochs or not updates or not len(rows):
        return epochs
    return max(epochs, math.ceil(updates / batch.steps(len(rows))))


def sees_members(phase: Phase) -> bool:
    """Whether the phase trains on members (rows given by a mask are members too).

    >>> from types import SimpleNamespace as Phase
    >>> sees_members(Phase(rows="members")), sees_members(Phase(rows="public"))
    (True, False)
    """
    return not isinstance(phase.rows, str) or phase.rows == "members"


def reads_members(phase: Phase) -> bool:
    """Whether the phase's loss reads labels of members.

    >>> from types import SimpleNamespace as Phase
    >>> reads_members(Phase(rows="members", reads_labels=True))
    True
    >>> reads_members(Phase(rows="members", reads_labels=False))  # a contrastive one
    False
    """
    return phase.reads_labels and sees_members(phase)


def follow(model: Model, pairs: Mapping[str, str], keep: float) -> None:
    """Move the parameters of slow parts towards those of fast ones: keep·slow + (1 - keep)·fast.

    Args:
        model: has all these parts.
        pairs: fast part -> slow part, of the same structure; buffers stay separate.
        keep: share of the slow parameters that stays, in [0, 1].
    """
    with torch.no_grad():
        for fast, slow in pairs.items():
            torch._foreach_lerp_(
                list(model[slow].parameters()), list(model[fast].parameters()), 1.0 - keep
            )


def cross_entropy(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    """Mean cross-entropy of the logits, in nats; y may be (n,) classes or (n, k) soft labels.

    >>> from privbench.measure.training.phase import Clock
    >>> x, y = torch.zeros(3, 4), torch.tensor([0, 1, 1])
    >>> out = Outputs(logits=lambda: torch.zeros(3, 2))
    >>> loss = cross_entropy(out, Batch(x, y, {}, torch.arange(3)), Clock(0, 0, 1, 1))
    >>> round(float(loss), 3)  # log 2: both classes are equally likely
    0.693
    """
    del clock
    return F.cross_entropy(out.logits.float(), batch.y)


def known_cross_entropy(logits: Tensor, values: Tensor) -> Tensor:
    """Mean cross-entropy over rows whose value is known (not -1), in nats; 0 if none is.

    >>> float(known_cross_entropy(torch.zeros(2, 2), torch.tensor([-1, -1])))
    0.0
    """
    total = F.cross_entropy(logits.float(), values, ignore_index=-1, reduction="sum")
    return total / (values >= 0).sum().clamp_min(1)


def supervised_phase(
    world: World,
    ctx: TargetContext,
    *,
    epochs: int,
    lr: float,
    batch: int = 64,
    weight_decay: float = 0.0,
    updates: int = 0,
    name: str = "encoder",
    rows: str | None = None,
    prepare: Callable[[Batch, Callable[[int], Tensor]], Batch] | None = None,
    optimizer: Optimizer | None = None,
) -> Phase:
    """Train encoder and classifier together by cross-entropy.

    >>> from privbench.measure.methods.context import DefenseContext, TargetContext
    >>> from privbench.testing import tiny_split
    >>> split = tiny_split()
    >>> ctx = TargetContext(card=split.card, protocol=split.protocol, sensitive=(), store=None,
    ...                     device=torch.device("cpu"), seed=0, scope="")
    >>> phase = supervised_phase(split.victim(), ctx, epochs=5, lr=1e-3)
    >>> phase.name, phase.rows, phase.epochs, phase.trains("classifier")
    ('encoder', 'members', 5, True)

    Args:
        world: that the model trains in.
        ctx: of the target.
        epochs: passes over the rows; more if ``updates`` needs them.
        lr: learning rate of Adam, above 0.
        batch: rows of a step.
        weight_decay: L2 penalty of Adam.
        updates: least number of updates; 0 for no such floor.
        name: of the phase.
        rows: part of the world; None for what the protocol shows the encoder last.
        prepare: see ``Phase``; such as ``Views``.
        optimizer: how both are updated, instead of by Adam.
    """
    rows = ctx.protocol.encoder[-1] if rows is None else rows
    spec = BatchSpec(batch)
    optimizer = optimizer or Optimizer("adam", lr, weight_decay)
    return Phase(
        name=name,
        rows=rows,
        prepare=prepare,
        forward=classify,
        steps={"train": Step(cross_entropy, trains=("encoder", "classifier"))},
        epochs=passes(name, world.parts[rows], spec, ctx, epochs=epochs, updates=updates),
        batch=spec,
        optimizers={"encoder": optimizer, "classifier": optimizer},
    )


def classify(model: Model, batch: Batch) -> Outputs:
    """Return h (n, d) and logits (n, k): the ``forward`` of a phase on inputs."""
    h = model.encode(batch.x)
    return Outputs(h=h, logits=lambda: model.logits(h))


def classifier_phase(
    world: World,
    ctx: TargetContext,
    *,
    epochs: int = 100,
    lr: float = 1e-2,
    weight_decay: float = 1e-4,
    batch: int = 512,
    updates: int = 0,
) -> Phase:
    """Train the classifier on embeddings of the frozen encoder, with Adam.

    >>> from privbench.measure.methods.context import DefenseContext, TargetContext
    >>> from privbench.testing import tiny_split
    >>> split = tiny_split()
    >>> ctx = TargetContext(card=split.card, protocol=split.protocol, sensitive=(), store=None,
    ...                     device=torch.device("cpu"), seed=0, scope="")
    >>> phase = classifier_phase(split.victim(), ctx, epochs=20)
    >>> phase.reads, phase.trains("encoder"), phase.trains("classifier")
    ('embeddings', False, True)

    It trains on the classifier's rows in the protocol; the arguments are those of
    ``supervised_phase``.
    """
    rows, spec = ctx.protocol.classifier, BatchSpec(batch)

    def forward(model: Model, batch: Batch) -> Outputs:
        return Outputs(h=batch.x, logits=lambda: model.logits(batch.x))

    return Phase(
        name="classifier",
        rows=rows,
        reads="embeddings",
        forward=forward,
        steps={"train": Step(cross_entropy, trains=("classifier",))},
        epochs=passes("classifier", world.parts[rows], spec, ctx, epochs=epochs, updates=updates),
        batch=spec,
        optimizers={"classifier": Optimizer("adam", lr, weight_decay)},
    )


def note_reach(name: str, phases: Sequence[Phase], ctx: DefenseContext) -> None:
    """Note that a defense changes no encoder, if the encoder's phases read no labels.

    Call it in ``Defense.on_phases``, with the phases that the defense gets.
    """
    if any(phase.trains("encoder") and not phase.reads_labels for phase in phases):
        ctx.note(**{name: "touches the classifier only: the encoder's loss reads no labels"})
