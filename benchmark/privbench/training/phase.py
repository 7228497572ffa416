"""A phase: one stretch of training, as targets declare it and defenses edit it."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from privbench.errors import PrivbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench.data.examples import Examples
    from privbench.training.loop import Training
    from privbench.training.model import Model


class TrainingError(PrivbenchError):
    """A phase could not be trained (a loss or weight stopped being finite)."""


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        x: (views * n, ...) inputs, one view after the other; or (n, d) embeddings.
        y: (n,) int64 labels, or (n, k) soft ones.
        attributes: name -> (n,) int64.
        rows: (n,) positions in the phase's rows.
        views: how many views of each row ``x`` holds.
        streams: further batches that the step asked for, by name.
    """

    x: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    rows: Tensor
    views: int = 1
    streams: Mapping[str, Batch] = field(default_factory=dict)


class Outputs:
    """What one forward pass can give, by name; each is computed at most once, when first read.

    >>> calls = []
    >>> out = Outputs(h=lambda: calls.append("h") or torch.ones(1))
    >>> out.h is out.h, calls
    (True, ['h'])
    """

    def __init__(self, **named: Tensor | Callable[[], Tensor]) -> None:
        """Take tensors, or functions that make them."""
        self._named = named
        self._bf16: str | None = None
        self.streams: Mapping[str, Outputs] = {}

    def in_bf16(self, device: str) -> Outputs:
        """Compute by autocast on that kind of device; what losses read is float32 all the same."""
        self._bf16 = device
        return self

    def __getattr__(self, name: str) -> Tensor:
        """Value of that name.

        Raises:
            AttributeError: naming what there is instead.
        """
        if name.startswith("_") or name not in self._named:
            raise AttributeError(f"outputs have no '{name}', only {', '.join(self._named)}")
        value = self._named[name]
        if callable(value):
            with autocast(self._bf16):
                value = value()
        if self._bf16 and value.dtype == torch.bfloat16:
            value = value.float()
        self._named[name] = value
        return value


def autocast(device: str | None) -> AbstractContextManager[Any]:
    """Bfloat16 on that kind of device; nothing for None."""
    return torch.autocast(device, torch.bfloat16) if device else nullcontext()


@dataclass(frozen=True)
class Clock:
    """Where training stands: epoch from 1, step within it from 0, and the last measurements."""

    epoch: int
    step: int
    epochs: int
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """A second source of rows for a step.

    Attributes:
        rows: where they come from.
        size: rows per step; None for as many as the main batch has.
        match: ``"class"`` draws, for each row of the main batch, a row of the same class.
    """

    rows: Examples
    size: int | None = None
    match: Literal["class"] | None = None


@dataclass(frozen=True)
class Step:
    """One kind of update.

    Attributes:
        loss: (outputs, batch, clock) -> scalar; pure, without a Python branch on tensor values.
        trains: parts that are in train mode and get gradients; all others are in eval mode.
        live: parts in train mode without gradients (MoCo's key encoder).
        streams: further rows that the loss reads as ``batch.streams`` and ``outputs.streams``.
        before: called with (model, clock) before the forward pass (moving averages).
        after: called with (model, outputs) after the update (queues).
    """

    loss: Callable[[Outputs, Batch, Clock], Tensor]
    trains: tuple[str, ...]
    live: tuple[str, ...] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)
    before: Callable[[Model, Clock], None] | None = None
    after: Callable[[Model, Outputs], None] | None = None


@dataclass(frozen=True)
class BatchSpec:
    """How rows become batches.

    Attributes:
        size: rows per batch; one batch of all rows where there are fewer.
        kind: ``shuffle`` (each row once per epoch) or ``poisson`` (each row with probability
            size / n, so sizes vary and may be zero).
        drop_last: leave out a last, smaller batch.
    """

    size: int
    kind: Literal["shuffle", "poisson"] = "shuffle"
    drop_last: bool = False

    def steps(self, n: int) -> int:
        """Steps per epoch over n rows."""
        size = min(self.size, n)
        return n // size if self.drop_last and self.kind == "shuffle" else math.ceil(n / size)


@dataclass(frozen=True)
class Optimizer:
    """How a part is updated; its schedule counts that part's own updates only.

    Attributes:
        kind: ``adam`` or ``sgd``.
        lr: initial learning rate.
        weight_decay: L2 penalty coupled into the gradient, as in torch.
        momentum: of sgd.
        schedule: ``constant``, or ``cosine`` down to zero over the part's updates.
        per: whether cosine moves with each update or with each epoch.
    """

    kind: Literal["adam", "sgd"]
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    per: Literal["step", "epoch"] = "step"

    def make(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the torch optimizer."""
        if self.kind == "adam":
            return torch.optim.Adam(
                parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def rate(self, done: float, total: float) -> float:
        """Learning rate after ``done`` of ``total`` updates."""
        if self.schedule == "constant":
            return self.lr
        return 0.5 * self.lr * (1 + math.cos(math.pi * done / max(total, 1)))


@dataclass(frozen=True)
class Monitor:
    """Measure between epochs, for losses that read ``clock.metrics`` and for early stopping.

    Attributes:
        rows: name -> rows on which loss and accuracy are measured, in eval mode; metrics are
            called ``<name>.loss`` and ``<name>.accuracy``.
        every: epochs between measurements.
        watch: the loss that early stopping minimises.
        patience: measurements without improvement before training stops and the best state comes
            back; None never stops.
    """

    rows: Mapping[str, Examples]
    every: int = 1
    watch: str = "reference.loss"
    patience: int | None = None


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        name: unique in the target ("encoder", "classifier", ...).
        rows: the part of the world that it sees, or a (n_members,) bool mask of the members.
        forward: (model, batch) -> Outputs; called once per step.
        steps: by name.
        epochs: passes over the rows.
        batch: how rows become batches.
        optimizers: part -> how it is updated.
        schedule: (epoch from 1, step from 0) -> name of a step; by default the only one.
        reads: ``inputs``, or ``embeddings`` of the frozen encoder (computed once, released first
            where a release says that the classifier trains on it).
        prepare: (batch, uniforms) -> batch, where ``uniforms(m)`` gives (n, m) in [0, 1).
        per_example: whether the loss is a sum over examples (DP-SGD needs that).
        reads_labels: whether a loss reads y; phases that do not are the same under any labels.
        reads_attributes: names of the sensitive attributes that a loss reads.
        wrap: a context entered around the phase with the running ``Training``; it may exchange
            optimizers or hook modules and must undo what it did to modules on exit.
        monitor: measurements between epochs.
        made_by: digests of the methods that made or changed the phase; kept by the core.
    """

    name: str
    rows: str | Tensor
    forward: Callable[[Model, Batch], Outputs]
    steps: Mapping[str, Step]
    epochs: int
    batch: BatchSpec
    optimizers: Mapping[str, Optimizer]
    schedule: Callable[[int, int], str] | None = None
    reads: Literal["inputs", "embeddings"] = "inputs"
    prepare: Callable[[Batch, Callable[[int], Tensor]], Batch] | None = None
    per_example: bool = True
    reads_labels: bool = True
    reads_attributes: tuple[str, ...] = ()
    wrap: Callable[[Training], AbstractContextManager[None]] | None = None
    monitor: Monitor | None = None
    made_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that names agree."""
        if self.schedule is None and len(self.steps) != 1:
            raise ValueError(
                f"phase '{self.name}' has {len(self.steps)} steps: say which runs when"
            )
        for name, step in self.steps.items():
            for part in step.trains:
                if part not in self.optimizers:
                    raise ValueError(
                        f"phase '{self.name}': step '{name}' trains '{part}', "
                        "which has no optimizer"
                    )

    def step_at(self, epoch: int, i: int) -> str:
        """Name of the step that runs at that time."""
        return next(iter(self.steps)) if self.schedule is None else self.schedule(epoch, i)

    def trains(self, part: str) -> bool:
        """Whether any step trains that part."""
        return any(part in step.trains for step in self.steps.values())


class Progress(Protocol):
    """Told how training goes."""

    def epoch(self, phase: str, done: int, total: int) -> None:
        """``done`` of ``total`` epochs of that phase are behind us."""
