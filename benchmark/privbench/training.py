"""Phases of training and the one loop that runs them.

A *phase* is the seam for targets and training-time defenses: a forward pass that names what it
computes, steps that turn names into losses, and a schedule that says which step runs when. Talos,
adversarial regularization, mixup + MMD, RelaxLoss or DP-SGD edit phases; none needs its own loop.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from privbench.errors import PrivbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from privbench.data import Examples
    from privbench.model import Model


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


class Training:
    """A phase being run: the mutable state that ``Phase.wrap`` may act on.

    Attributes:
        model: the model, on its device.
        phase: what runs.
        rows: rows of the phase (inputs, or embeddings in ``x``).
        optimizers: (parts trained together) -> torch optimizer.
        updates: part -> updates so far.
        metrics: last measurements of the monitor.
    """

    def __init__(
        self, model: Model, phase: Phase, rows: Examples, seed: int, *, bf16: bool = False
    ) -> None:
        """Prepare; nothing is trained yet. ``seed`` decides batches and views, nothing else."""
        if not len(rows):
            raise TrainingError(f"phase '{phase.name}' has no rows to train on")
        self.model = model
        self.phase = phase
        self.rows = rows
        self.bf16 = rows.device.type if bf16 else None
        self.seed = seed
        self.steps = phase.batch.steps(len(rows))
        self.generator = torch.Generator(device=rows.device).manual_seed(seed)
        self.updates: dict[str, int] = dict.fromkeys(phase.optimizers, 0)
        self.metrics: dict[str, float] = {}
        self._streams: dict[int, _StreamSampler] = {}  # by identity: steps may share a stream
        self._focused: str | None = None
        self._groups = self._group_parts()
        self._totals = self._total_updates()
        self.optimizers: dict[tuple[str, ...], torch.optim.Optimizer] = {
            parts: phase.optimizers[parts[0]].make(
                [p for part in parts for p in model[part].parameters()]
            )
            for parts in self._groups
        }

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """Train to the end and leave the model in eval mode without gradients.

        Returns:
            What happened: seconds, epochs, updates per part, examples per second.

        Raises:
            TrainingError: if a weight is not finite afterwards.
        """
        phase, begun = self.phase, time.perf_counter()
        best = _Best(phase.monitor)
        done = 0
        # Dropout knows only the global generators: seeded here, put back afterwards.
        with seeded_globally(self.seed), phase.wrap(self) if phase.wrap else nullcontext():
            for epoch in range(1, phase.epochs + 1):
                self._epoch(epoch)
                done = epoch
                if progress:
                    progress.epoch(phase.name, epoch, phase.epochs)
                if self._measured(epoch) and best.stop(self.model, self.metrics):
                    break
        best.restore(self.model)
        self.model.eval().requires_grad_(False)
        for name, value in self.model.state_dict().items():
            if value.is_floating_point() and not value.isfinite().all():
                raise TrainingError(
                    f"phase '{phase.name}' left {name} not finite: lower the learning rate"
                )
        seconds = time.perf_counter() - begun
        return {
            "seconds": seconds,
            "epochs": done,
            "updates": dict(self.updates),
            "examples_per_second": done * len(self.rows) / seconds if seconds else 0.0,
        }

    def _epoch(self, epoch: int) -> None:
        phase = self.phase
        started = dict(self.updates)
        for i, rows in enumerate(self._batches()):
            name = phase.step_at(epoch, i)
            clock = Clock(epoch, i, phase.epochs, self.steps, self.metrics)
            self._update(name, rows, clock, started)

    def _update(self, name: str, rows: Tensor, clock: Clock, started: Mapping[str, int]) -> None:
        step, model = self.phase.steps[name], self.model
        self._focus(name, step)
        if step.before:
            step.before(model, clock)
        batch = self._batch(rows, step) if len(rows) else None
        outputs = None if batch is None else self._forward(batch)
        trained = [parts for parts in self._groups if parts[0] in step.trains]
        for parts in trained:
            self._set_rate(parts, started)
            self.optimizers[parts].zero_grad(set_to_none=True)
        if batch is not None and outputs is not None:
            loss = step.loss(outputs, batch, clock)
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # an empty Poisson batch still takes its step: its noise is part of the guarantee
            for parameter in (p for part in step.trains for p in model[part].parameters()):
                parameter.grad = torch.zeros_like(parameter)
        for parts in trained:
            self.optimizers[parts].step()
            for part in parts:
                self.updates[part] += 1
        if step.after and outputs is not None:
            with torch.no_grad():
                step.after(model, outputs)

    def _set_rate(self, parts: tuple[str, ...], started: Mapping[str, int]) -> None:
        """Where the parts' own schedule stands; ``started`` counts updates before this epoch."""
        spec = self.phase.optimizers[parts[0]]
        count = started if spec.per == "epoch" else self.updates
        rate = spec.rate(count[parts[0]], self._totals[parts[0]])
        for group in self.optimizers[parts].param_groups:
            group["lr"] = rate

    def _forward(self, batch: Batch) -> Outputs:
        with autocast(self.bf16):
            outputs = self.phase.forward(self.model, batch)
        outputs.streams = {name: self._forward(stream) for name, stream in batch.streams.items()}
        return outputs.in_bf16(self.bf16) if self.bf16 else outputs

    def _focus(self, name: str, step: Step) -> None:
        """Train mode and gradients for what the step trains, eval mode for the rest."""
        if name == self._focused:
            return
        for part_name, part in self.model.parts.items():
            part.train(part_name in step.trains or part_name in step.live)
            part.requires_grad_(part_name in step.trains)
        self._focused = name

    def _batches(self) -> Iterator[Tensor]:
        n, spec = len(self.rows), self.phase.batch
        device = self.rows.device
        size = min(spec.size, n)
        if spec.kind == "poisson":
            for _ in range(self.steps):
                drawn = torch.rand(n, generator=self.generator, device=device) < size / n
                yield drawn.nonzero().squeeze(1)
            return
        order = torch.randperm(n, generator=self.generator, device=device)
        for i in range(self.steps):
            yield order[i * size : (i + 1) * size]

    def _batch(self, rows: Tensor, step: Step) -> Batch:
        streams = {}
        for name, stream in step.streams.items():
            sampler = self._streams.setdefault(id(stream), _StreamSampler(stream, self.generator))
            drawn = sampler.draw(self.rows.y[rows])
            streams[name] = self._prepared(_take(stream.rows, drawn))
        batch = self._prepared(_take(self.rows, rows))
        return replace(batch, streams=streams) if streams else batch

    def _prepared(self, batch: Batch) -> Batch:
        if self.phase.prepare is None:
            return batch
        n = len(batch.y)

        def uniforms(m: int) -> Tensor:
            return torch.rand(n, m, generator=self.generator, device=batch.y.device)

        return self.phase.prepare(batch, uniforms)

    def _group_parts(self) -> tuple[tuple[str, ...], ...]:
        """Parts of equal settings that are always trained together share one optimizer."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for part, spec in self.phase.optimizers.items():
            where = tuple(n for n, step in self.phase.steps.items() if part in step.trains)
            groups.setdefault((spec, where), []).append(part)
        return tuple(tuple(parts) for parts in groups.values())

    def _total_updates(self) -> dict[str, int]:
        totals = dict.fromkeys(self.phase.optimizers, 0)
        for epoch in range(1, self.phase.epochs + 1):
            for i in range(self.steps):
                for part in self.phase.steps[self.phase.step_at(epoch, i)].trains:
                    totals[part] += 1
        return totals

    def _measured(self, epoch: int) -> bool:
        monitor = self.phase.monitor
        if monitor is None or epoch % monitor.every:
            return False
        self.model.eval()
        self._focused = None
        for name, rows in monitor.rows.items():
            with torch.no_grad():
                x = rows.x if self.phase.reads == "embeddings" else self.model.encode(rows.x)
                logits = self.model.logits(x)
                self.metrics[f"{name}.loss"] = nn.functional.cross_entropy(logits, rows.y).item()
                right = (logits.argmax(1) == rows.y).float().mean()
                self.metrics[f"{name}.accuracy"] = right.item()
        return True


class _Best:
    """The best state so far, for early stopping."""

    def __init__(self, monitor: Monitor | None) -> None:
        self.monitor = monitor
        self.value = math.inf
        self.since = 0
        self.state: dict[str, Tensor] | None = None

    def stop(self, model: Model, metrics: Mapping[str, float]) -> bool:
        if self.monitor is None or self.monitor.patience is None:
            return False
        value = metrics[self.monitor.watch]
        if value < self.value:
            self.value, self.since = value, 0
            self.state = {name: t.clone() for name, t in model.state_dict().items()}
            return False
        self.since += 1
        return self.since >= self.monitor.patience

    def restore(self, model: Model) -> None:
        if self.state is not None:
            model.load_state_dict(self.state)


class _StreamSampler:
    """Endless shuffled passes over a stream's rows, or rows matched by class."""

    def __init__(self, stream: Stream, generator: torch.Generator) -> None:
        self.stream = stream
        self.generator = generator
        self.left = torch.empty(0, dtype=torch.long, device=stream.rows.device)

    def draw(self, y: Tensor) -> Tensor:
        """Positions in the stream's rows for a batch with labels y (n,)."""
        rows, device = self.stream.rows, self.stream.rows.device
        if self.stream.match == "class":
            noise = torch.rand(len(y), len(rows), generator=self.generator, device=device)
            return (noise + (y[:, None] == rows.y[None]).float()).argmax(1)
        size = self.stream.size or len(y)
        while len(self.left) < size:
            fresh = torch.randperm(len(rows), generator=self.generator, device=device)
            self.left = torch.cat([self.left, fresh])
        taken, self.left = self.left[:size], self.left[size:]
        return taken


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed torch's global generators, of every device in use, and put them back after."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if used else ()
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def _take(rows: Examples, at: Tensor) -> Batch:
    attributes = {name: column[at] for name, column in rows.attributes.items()}
    return Batch(rows.x[at], rows.y[at], attributes, at)
