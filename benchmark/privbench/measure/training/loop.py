"""The training loop: runs every phase."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from privbench.ground.errors import WriteError
from privbench.measure.training import checkpoint
from privbench.measure.training.phase import (
    Batch,
    Clock,
    Monitor,
    Outputs,
    Phase,
    Progress,
    Step,
    Stream,
    TrainingError,
    autocast,
)
from privbench.measure.training.process_state import known
from privbench.measure.training.withheld import Declared, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.model import Model


class Training:
    """A running phase: the mutable state that ``Phase.wrap`` may change.

    >>> from privbench.testing import TinyTarget, tiny_split
    >>> from privbench import TargetContext
    >>> split = tiny_split()
    >>> ctx = TargetContext(card=split.card, protocol=split.protocol, sensitive=(), store=None,
    ...                     device=torch.device("cpu"), seed=0, scope="")
    >>> model = TinyTarget().build(split.card, ctx)
    >>> (phase,) = TinyTarget().phases(model, split.victim(), ctx)
    >>> members = split.victim().members
    >>> Training(model, phase, members, seed=0).run()["updates"]  # 3 epochs of 2 steps
    {'encoder': 6, 'classifier': 6}

    Attributes:
        model: the model, on its device.
        phase: the phase that runs.
        rows: rows of the phase (inputs, or embeddings in ``x``), without labels and attributes
            that the phase does not declare.
        optimizers: (parts trained together) -> torch optimizer.
        generators: all that draw while it runs; ``Phase.wrap`` adds its own, by a name.
        updates: part -> number of updates so far.
        metrics: latest measurements of the monitor.
    """

    def __init__(
        self, model: Model, phase: Phase, rows: Examples, seed: int, *, bf16: bool = False
    ) -> None:
        """Prepare the training without running it; ``seed`` determines batches and views only."""
        if not len(rows):
            raise TrainingError(
                f"phase '{phase.name}' has no rows to train on: check the sizes in the protocol"
            )
        self.model = model
        self.phase = phase
        self.rows = visible(rows, phase)
        self.bf16 = rows.device.type if bf16 else None
        self.seed = seed
        self.steps = phase.batch.steps(len(rows))
        self.generator = torch.Generator(device=rows.device).manual_seed(seed)
        self.generators = {"batches": self.generator}
        self.updates: dict[str, int] = dict.fromkeys(phase.optimizers, 0)
        self.metrics: dict[str, float] = {}
        self._streams: dict[int, _StreamSampler] = {}  # by identity: steps may share a stream
        self._focused: str | None = None
        self._at = _Place(1)
        self._groups = self._group_parts()
        self._totals = self._total_updates()
        self.optimizers: dict[tuple[str, ...], torch.optim.Optimizer] = {
            parts: phase.optimizers[parts[0]].make(
                [p for part in parts for p in model[part].parameters()]
            )
            for parts in self._groups
        }

    def run(self, progress: Progress | None = None, keep: Path | None = None) -> dict[str, Any]:
        """Train to the end and leave the model in eval mode without gradients.

        Args:
            progress: shows how far it is.
            keep: file of a checkpoint: training goes on from it, and writes it every few minutes
                and on SIGTERM or Ctrl-C; None for none.

        Returns:
            A summary: seconds, epochs, updates per part, examples per second.

        Raises:
            TrainingError: if a weight is not finite after training.
        """
        phase, begun = self.phase, time.perf_counter()
        best, name, every = _Best(phase.monitor), phase.name, checkpoint.seconds()
        done = 0.0
        # Dropout uses torch's global generators: seed them here and restore them afterwards.
        with (
            checkpoint.told_to_end() as told, known(self.seed),
            phase.wrap(self) if phase.wrap else nullcontext(),
        ):  # fmt: skip
            if keep and (held := checkpoint.read(keep)):
                begun -= self._go_on(*held, best)
                name += f" (resumed at epoch {self._at.epoch} of {phase.epochs})"
            kept = time.monotonic()
            for epoch in range(self._at.epoch, phase.epochs + 1):
                for step in self._epoch(epoch):
                    done = epoch - 1 + step / self.steps
                    due = told.to_end or time.monotonic() - kept >= every
                    if keep and due and done < phase.epochs:
                        self._keep(keep, best, time.perf_counter() - begun)
                        kept = time.monotonic()
                    if told.to_end:
                        raise KeyboardInterrupt
                    if progress:
                        progress.epoch(name, done, phase.epochs, len(self.rows))
                done = epoch
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
            "epochs": int(done),
            "updates": dict(self.updates),
            "examples_per_second": done * len(self.rows) / seconds if seconds else 0.0,
        }

    def _keep(self, path: Path, best: _Best, seconds: float) -> None:
        """Write a checkpoint after a step."""
        tensors: dict[str, Tensor] = {}
        state = {
            "model": dict(self.model.state_dict()), "updates": self.updates,
            "optimizers": [one.state_dict() for one in self.optimizers.values()],
            "generators": {name: one.get_state() for name, one in self.generators.items()},
            "process": checkpoint.global_generators(),
            "streams": [sampler.left for sampler in self._samplers()],
            "metrics": self.metrics, "best": vars(best) | {"monitor": None},
            "at": vars(self._at), "seconds": seconds,
        }  # fmt: skip
        values = checkpoint.flattened(state, "state", tensors)
        with suppress(WriteError):  # the training itself goes on
            checkpoint.write(path, tensors, values)

    def _go_on(self, tensors: dict[str, Tensor], values: dict[str, Any], best: _Best) -> float:
        """Take over the state of a checkpoint; return the seconds that it took."""
        device = self.rows.device
        state = checkpoint.nested(values, tensors)
        self.model.load_state_dict(state["model"])
        for optimizer, held in zip(self.optimizers.values(), state["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        for sampler, left in zip(self._samplers(), state["streams"], strict=True):
            sampler.left = left.to(device)
        self.updates, self.metrics = state["updates"], state["metrics"]
        kept = state["best"]
        best.value, best.since, best.state = kept["value"], kept["since"], kept["state"]
        self._at = _Place(**state["at"])
        if self._at.order is not None:
            self._at.order = self._at.order.to(device)
        self._focused = None
        checkpoint.set_global_generators(state["process"])
        seconds: float = state["seconds"]
        return seconds

    def _samplers(self) -> list[_StreamSampler]:
        """The samplers of all streams, in the order of the steps."""
        streams = [s for step in self.phase.steps.values() for s in step.streams.values()]
        return [self._sampler(stream) for stream in {id(one): one for one in streams}.values()]

    def _epoch(self, epoch: int) -> Iterator[int]:
        """Train for an epoch, or the rest of it; yield after every step how many are done."""
        phase, at = self.phase, self._at
        if not at.step:
            at.started = dict(self.updates)
        for i, rows in self._batches():
            name = phase.step_at(epoch, i)
            clock = Clock(epoch, i, phase.epochs, self.steps, self.metrics)
            self._update(name, rows, clock, at.started)
            at.step = i + 1
            yield i + 1
        self._at = _Place(epoch + 1)

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
        else:  # an empty Poisson batch still takes its step: its noise is part of the DP guarantee
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
        """Set the scheduled learning rate; ``started`` counts updates before this epoch."""
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
        """Set train mode and gradients for the parts that the step trains.

        Live parts get train mode without gradients; all others get eval mode.
        """
        if name == self._focused:
            return
        for part_name, part in self.model.parts.items():
            part.train(part_name in step.trains or part_name in step.live)
            part.requires_grad_(part_name in step.trains)
        self._focused = name

    def _batches(self) -> Iterator[tuple[int, Tensor]]:
        """Yield number and rows of the batches of an epoch that are left."""
        n, spec, at = len(self.rows), self.phase.batch, self._at
        device = self.rows.device
        size = min(spec.size, n)
        if spec.kind == "poisson":
            for i in range(at.step, self.steps):
                drawn = torch.rand(n, generator=self.generator, device=device) < size / n
                yield i, drawn.nonzero().squeeze(1)
            return
        if at.order is None:
            at.order = torch.randperm(n, generator=self.generator, device=device)
        for i in range(at.step, self.steps):
            yield i, at.order[i * size : (i + 1) * size]

    def _batch(self, rows: Tensor, step: Step) -> Batch:
        streams = {}
        for name, stream in step.streams.items():
            sampler = self._sampler(stream)
            drawn = sampler.draw(self.rows.y[rows])
            streams[name] = self._prepared(_take(sampler.stream.rows, drawn))
        batch = self._prepared(_take(self.rows, rows))
        return replace(batch, streams=streams) if streams else batch

    def _sampler(self, stream: Stream) -> _StreamSampler:
        if id(stream) not in self._streams:
            seen = replace(stream, rows=visible(stream.rows, self.phase))
            self._streams[id(stream)] = _StreamSampler(seen, self.generator)
        return self._streams[id(stream)]

    def _prepared(self, batch: Batch) -> Batch:
        if self.phase.prepare is None:
            return batch
        n = len(batch.y)

        def uniforms(m: int) -> Tensor:
            return torch.rand(n, m, generator=self.generator, device=batch.y.device)

        return self.phase.prepare(batch, uniforms)

    def _group_parts(self) -> tuple[tuple[str, ...], ...]:
        """Group parts that share one optimizer: equal settings, always trained together."""
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


@dataclass
class _Place:
    """How far a training is.

    Attributes:
        epoch: the current one, counted from 1.
        step: number of its steps that are done.
        order: (n,) the order of the rows in this epoch, once it is drawn.
        started: updates of each part before this epoch.
    """

    epoch: int
    step: int = 0
    order: Tensor | None = None
    started: dict[str, int] = field(default_factory=dict)


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
    """Draws a stream's rows in endless shuffled passes, or matched by class."""

    def __init__(self, stream: Stream, generator: torch.Generator) -> None:
        self.stream = stream
        self.generator = generator
        self.left = torch.empty(0, dtype=torch.long, device=stream.rows.device)

    def draw(self, y: Tensor) -> Tensor:
        """Return positions in the stream's rows for a batch with labels y (n,)."""
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


def _take(rows: Examples, at: Tensor) -> Batch:
    attributes = Declared.of(rows).at(at)
    return Batch(rows.x[at], rows.y[at], attributes, at)
