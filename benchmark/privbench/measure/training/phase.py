"""A phase: one stage of training, declared by targets and edited by defenses."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from privbench.ground.errors import PrivbenchError, no_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.model import Model


class TrainingError(PrivbenchError):
    """A phase could not be trained (for example, a loss or weight became infinite or NaN)."""


@dataclass(frozen=True)
class Batch:
    """The rows of one step.

    >>> x, y = torch.zeros(6, 1, 8, 8), torch.tensor([0, 1, 2])
    >>> batch = Batch(x, y, {}, torch.arange(3), views=2)
    >>> len(batch.y), len(batch.x)  # two views of three rows
    (3, 6)

    Attributes:
        x: (views * n, ...) inputs, one view after the other; or (n, d) embeddings.
        y: (n,) int64 labels, or (n, k) soft labels; if the phase does not declare that it reads
            labels, only their number can be read.
        attributes: name -> (n,) int64; only those that the phase declares.
        rows: (n,) positions in the phase's rows.
        views: number of views of each row in ``x``.
        streams: additional batches that the step declared, by name.
    """

    x: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    rows: Tensor
    views: int = 1
    streams: Mapping[str, Batch] = field(default_factory=dict)


class Outputs:
    """The named outputs of one forward pass; each is computed at most once, when first read.

    >>> calls = []
    >>> out = Outputs(h=lambda: calls.append("h") or torch.ones(1))
    >>> out.h is out.h, calls
    (True, ['h'])
    """

    def __init__(self, **named: Tensor | Callable[[], Tensor]) -> None:
        """Take tensors, or functions that compute them."""
        self._named = named
        self._bf16: str | None = None
        self.streams: Mapping[str, Outputs] = {}

    def in_bf16(self, device: str) -> Outputs:
        """Compute with autocast on that kind of device; losses still read float32."""
        self._bf16 = device
        return self

    def __getattr__(self, name: str) -> Tensor:
        """Return the output with that name.

        Raises:
            AttributeError: if there is none; lists the available outputs.
        """
        if name.startswith("_") or name not in self._named:
            raise AttributeError(f"outputs have no '{name}': choose from {', '.join(self._named)}")
        value = self._named[name]
        if callable(value):
            with autocast(self._bf16):
                value = value()
        if self._bf16 and value.dtype == torch.bfloat16:
            value = value.float()
        self._named[name] = value
        return value


def autocast(device: str | None) -> AbstractContextManager[Any]:
    """Return a context that computes in bfloat16 on that kind of device; no change for None."""
    return torch.autocast(device, torch.bfloat16) if device else nullcontext()


def _choose(**named: tuple[str, tuple[str, ...]]) -> None:
    """Refuse a value that is none of its choices: it would be taken for one of them."""
    for what, (value, choices) in named.items():
        if wrong := no_choice(what, value, choices):
            raise ValueError(wrong)


@dataclass(frozen=True)
class Clock:
    """Progress of training: epoch from 1, step within it from 0, and the latest measurements.

    >>> clock = Clock(epoch=3, step=0, epochs=10, steps=5)
    >>> clock.epoch / clock.epochs
    0.3
    """

    epoch: int
    step: int
    epochs: int
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """A second source of rows for a step.

    >>> from privbench.testing import tiny_split
    >>> stream = Stream(tiny_split().reference, size=20)
    >>> len(stream.rows)
    40

    Attributes:
        rows: rows to draw from.
        size: rows per step; None for as many as the main batch has.
        match: ``"class"`` draws, for each row of the main batch, a row of the same class.
    """

    rows: Examples
    size: int | None = None
    match: Literal["class"] | None = None

    def __post_init__(self) -> None:
        """Check the value of ``match``."""
        if self.match not in ("class", None):
            raise ValueError(f"match is {self.match!r}: write 'class' or None")


@dataclass(frozen=True)
class Step:
    """One kind of update.

    >>> def loss(out, batch, clock):
    ...     return nn.functional.cross_entropy(out.logits, batch.y)
    >>> Step(loss, trains=("encoder", "classifier")).trains
    ('encoder', 'classifier')

    Attributes:
        loss: (outputs, batch, clock) -> scalar; pure, without a Python branch on tensor values.
        trains: parts in train mode with gradients; all others, except ``live``, are in eval mode.
        live: parts in train mode without gradients (MoCo's key encoder).
        streams: additional rows that the loss reads as ``batch.streams`` and ``outputs.streams``.
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

    >>> BatchSpec(64).steps(100), BatchSpec(64, drop_last=True).steps(100)
    (2, 1)

    Attributes:
        size: rows per batch; if there are fewer rows, one batch of all rows.
        kind: ``shuffle`` (each row once per epoch) or ``poisson`` (each row with probability
            size / n, so sizes vary and may be zero).
        drop_last: whether to drop a last, smaller batch.
    """

    size: int
    kind: Literal["shuffle", "poisson"] = "shuffle"
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Check the kind."""
        _choose(kind=(self.kind, ("shuffle", "poisson")))

    def steps(self, n: int) -> int:
        """Return the number of steps per epoch over n rows."""
        size = min(self.size, n)
        return n // size if self.drop_last and self.kind == "shuffle" else math.ceil(n / size)


@dataclass(frozen=True)
class Optimizer:
    """How a part is updated; its schedule counts only the updates of that part.

    >>> cosine = Optimizer("sgd", 0.1, schedule="cosine")
    >>> cosine.rate(0, 10), round(cosine.rate(5, 10), 3), cosine.rate(10, 10)
    (0.1, 0.05, 0.0)
    >>> dropped = Optimizer("sgd", 1.0, drops=(0.5, 0.75))
    >>> [round(dropped.rate(done, 8), 3) for done in (3, 4, 6)]
    [1.0, 0.1, 0.01]

    Attributes:
        kind: ``adam`` or ``sgd``.
        lr: initial learning rate.
        weight_decay: L2 penalty added to the gradient, as in torch.
        momentum: momentum of sgd.
        schedule: ``constant``, or ``cosine`` decay to zero over the part's updates.
        per: whether the rate changes at each update or at each epoch.
        drops: shares of the part's updates, each in (0, 1), after which the rate falls to a tenth.
    """

    kind: Literal["adam", "sgd"]
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    per: Literal["step", "epoch"] = "step"
    drops: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check what is chosen by name."""
        _choose(
            kind=(self.kind, ("adam", "sgd")),
            schedule=(self.schedule, ("constant", "cosine")),
            per=(self.per, ("step", "epoch")),
        )
        if not all(0 < drop < 1 for drop in self.drops):
            raise ValueError(f"drops {self.drops}: each is a share of the updates, between 0 and 1")

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
        """Return the learning rate after ``done`` of ``total`` updates."""
        lr = self.lr * 0.1 ** sum(done >= drop * total for drop in self.drops)
        if self.schedule == "constant":
            return lr
        return 0.5 * lr * (1 + math.cos(math.pi * done / max(total, 1)))


@dataclass(frozen=True)
class Monitor:
    """Measurements between epochs, for losses that read ``clock.metrics`` and for early stopping.

    >>> from privbench.testing import tiny_split
    >>> stop = Monitor({"reference": tiny_split().reference}, patience=3)
    >>> stop.watch
    'reference.loss'

    Attributes:
        rows: name -> rows on which loss and accuracy are measured, in eval mode; the metrics are
            called ``<name>.loss`` and ``<name>.accuracy``.
        every: epochs between measurements.
        watch: metric that early stopping minimises.
        patience: measurements without improvement before training stops and the best state is
            restored; None disables early stopping.
    """

    rows: Mapping[str, Examples]
    every: int = 1
    watch: str = "reference.loss"
    patience: int | None = None


class Wrap(Protocol):
    """What runs around a phase."""

    def __call__(self, training: Any, /) -> AbstractContextManager[None]:
        """Enter before the first step of a running ``Training``, and leave after the last one."""


@dataclass(frozen=True)
class Phase:
    """One stage of training.

    >>> def forward(model, batch):
    ...     h = model.encode(batch.x)
    ...     return Outputs(h=h, logits=lambda: model.logits(h))
    >>> def loss(out, batch, clock):
    ...     return nn.functional.cross_entropy(out.logits, batch.y)
    >>> adam = Optimizer("adam", 1e-3)
    >>> phase = Phase(
    ...     name="encoder", rows="members", forward=forward, epochs=10, batch=BatchSpec(64),
    ...     steps={"train": Step(loss, trains=("encoder", "classifier"))},
    ...     optimizers={"encoder": adam, "classifier": adam},
    ... )
    >>> phase.trains("encoder"), phase.step_at(1, 0)
    (True, 'train')

    Attributes:
        name: name, unique in the target ("encoder", "classifier", ...).
        rows: part of the world that it trains on, or a (n_members,) bool mask of the members.
        forward: (model, batch) -> Outputs; called once per step.
        steps: step name -> step.
        epochs: number of passes over the rows.
        batch: how rows become batches.
        optimizers: part -> how it is updated.
        schedule: (epoch from 1, step from 0) -> name of a step; not needed if there is only one.
        reads: ``inputs``, or ``embeddings`` of the frozen encoder (computed once; they pass through
            the release first if the release says that the classifier trains on its output).
        prepare: (batch, uniforms) -> batch, where ``uniforms(m)`` returns (n, m) in [0, 1).
        per_example: whether the loss is the mean over the rows of what each adds by itself. DP-SGD
            requires this: a sum, or a mean weighted by class, lets a row change what others add.
        reads_labels: whether a loss reads y; if not, the phase is the same under any labels, and
            y is withheld from it.
        reads_attributes: names of the sensitive attributes that a loss reads; others are withheld.
        wrap: (running ``Training``) -> context manager around the phase. It may replace optimizers
            or hook modules, and must undo its changes to modules on exit.
        monitor: measurements between epochs.
        made_by: digests of the methods that created or changed the phase; set by the core.
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
    wrap: Wrap | None = None
    monitor: Monitor | None = None
    made_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the names of steps, parts, streams and optimizers are consistent."""
        _choose(reads=(self.reads, ("inputs", "embeddings")))
        if self.schedule is None and len(self.steps) != 1:
            raise ValueError(
                f"phase '{self.name}' has {len(self.steps)} steps: set `schedule` to choose one"
            )
        for name, step in self.steps.items():
            for part in step.trains:
                if part not in self.optimizers:
                    raise ValueError(
                        f"phase '{self.name}': step '{name}' trains '{part}', "
                        "which has no optimizer: add it to `optimizers`"
                    )
            for other, stream in step.streams.items():
                if stream.match == "class" and not self.reads_labels:
                    raise ValueError(
                        f"phase '{self.name}': step '{name}' matches stream '{other}' by class, "
                        "which reads labels: write reads_labels=True"
                    )

    def step_at(self, epoch: int, i: int) -> str:
        """Return the name of the step that runs at that time."""
        return next(iter(self.steps)) if self.schedule is None else self.schedule(epoch, i)

    def trains(self, part: str) -> bool:
        """Return whether any step trains that part."""
        return any(part in step.trains for step in self.steps.values())


class Progress(Protocol):
    """An observer of training progress."""

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """Report that ``done`` of ``total`` epochs of that phase are complete.

        ``rows`` is the number of rows in an epoch.
        """
