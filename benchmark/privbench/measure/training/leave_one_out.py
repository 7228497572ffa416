"""Leave-one-out training: trains one phase many times in parallel, each time without one row.

Sensitivity samplers need this (``DefenseContext.refit``). All trainings start from the same initial
weights. The slot of a dropped row is removed from each epoch's order. If the dropped row is
exchanged for another row, it takes that row's slot, and the other row is left out. So a training
without i and a training without j differ in one slot, if the latter drops i and exchanges j: the
difference between them comes from these two rows only. On CUDA, normal training uses bfloat16 and
this uses float32: the training procedure is the same, but not the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call, vmap

from privbench.measure.training.phase import Batch, Clock, TrainingError
from privbench.measure.training.withheld import Declared, Withheld

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase

#: Number of parallel trainings; constant, so that results are reproducible to the bit.
SIDE_BY_SIDE = 32


def refit(
    model: Model,
    phase: Phase,
    rows: Examples,
    *,
    initial: Mapping[str, Tensor],
    seed: int,
    dropped: Tensor,
    exchanged: Tensor,
) -> dict[str, Tensor]:
    """Train a phase once for every dropped row.

    Args:
        model: model whose parts the phase trains; its weights do not change.
        phase: a phase with one kind of step, and without views, streams, monitor or wrap.
        rows: the n rows that the phase sees.
        initial: name in the model's state -> its tensor before the phase.
        seed: seed of the phase; equal seeds give equal batches.
        dropped: (r,) int64 positions in rows; a -1 means that no training drops a row.
        exchanged: (r,) int64 positions whose slots the dropped rows take; -1 for none.

    Returns:
        Name -> (r, ...) trained tensors of the parts that the phase trains.

    Raises:
        TrainingError: if the phase does not meet these conditions.
    """
    (step, *others) = phase.steps.values()
    extras = (phase.prepare, phase.monitor, phase.wrap, step.streams, step.before, step.after)
    if others or any(extras) or phase.batch.kind != "shuffle":
        raise TrainingError(
            f"phase '{phase.name}' cannot be refitted: use a single plain step on shuffled "
            "batches, without prepare, monitor, wrap, streams, before or after"
        )
    names = [
        name for name, _ in model.named_parameters() if name.split(".")[1] in step.trains
    ]  # "parts.<part>..."
    start = {name: initial[name.removeprefix("parts.")] for name in names}
    blocks = []
    for out, other in zip(
        torch.split(dropped, SIDE_BY_SIDE), torch.split(exchanged, SIDE_BY_SIDE), strict=True
    ):
        stacked = {
            name: tensor.expand(len(out), *tensor.shape).clone().requires_grad_()
            for name, tensor in start.items()
        }
        _train(model, phase, rows, stacked, _batches(len(rows), phase, seed, out, other))
        blocks.append(stacked)
    return {
        name.removeprefix("parts."): torch.cat([block[name].detach() for block in blocks])
        for name in names
    }


class _Loss(nn.Module):
    """The phase's loss as a module that contains the model, so its parameters can be replaced."""

    clock: Clock  #: of the step

    def __init__(self, model: Model, phase: Phase) -> None:
        super().__init__()
        self.model, self.phase = model, phase

    def forward(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        y = y if self.phase.reads_labels else Withheld.like(y, self.phase.name)
        batch = Batch(x, y, Declared(self.phase.name, {}), at)
        (step,) = self.phase.steps.values()
        return step.loss(self.phase.forward(self.model, batch), batch, self.clock)


def _train(
    model: Model,
    phase: Phase,
    rows: Examples,
    stacked: Mapping[str, Tensor],
    batches: Iterable[tuple[int, int, Tensor]],
) -> None:
    """Train the stacked parameters (r, ...), each on its own rows of every batch."""
    optimizers = [
        (spec, spec.make([t for name, t in stacked.items() if name.split(".")[1] == part]))  # type: ignore[misc]
        for part, spec in phase.optimizers.items()
    ]
    steps = phase.batch.steps(len(rows))
    model.eval()
    loss = _Loss(model, phase)

    def one(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        named = {f"model.{name}": tensor for name, tensor in parameters.items()}
        made: Tensor = functional_call(loss, named, (x, y, at), tie_weights=False)
        return made

    for done, (epoch, i, at) in enumerate(batches):
        loss.clock = Clock(epoch, i, phase.epochs, steps)
        x = rows.x.index_select(0, at.flatten()).view(*at.shape, *rows.x.shape[1:])
        losses = vmap(one)(stacked, x, rows.y[at], at)
        for spec, optimizer in optimizers:
            for group in optimizer.param_groups:
                counted = done if spec.per == "step" else (epoch - 1) * steps
                group["lr"] = spec.rate(counted, steps * phase.epochs)
            optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for _, optimizer in optimizers:
            optimizer.step()


def _batches(
    n: int, phase: Phase, seed: int, dropped: Tensor, exchanged: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield epoch, step and (r, b) positions, in the same order as training with that seed."""
    device, size = dropped.device, min(phase.batch.size, n)
    generator = torch.Generator(device=device).manual_seed(seed)
    for epoch in range(1, phase.epochs + 1):
        mine = torch.randperm(n, generator=generator, device=device).expand(len(dropped), n)
        if bool((dropped >= 0).all()):
            mine = mine[mine != dropped[:, None]].view(len(dropped), n - 1)
            mine = torch.where(mine == exchanged[:, None], dropped[:, None], mine)
        for i in range(phase.batch.steps(n)):
            at = mine[:, i * size : (i + 1) * size]
            if at.shape[1]:
                yield epoch, i, at
