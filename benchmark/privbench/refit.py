"""Training one phase many times over, each time without one row: all at once.

What sensitivity samplers need (``DefenseContext.refit``). All trainings start from the same initial
weights and meet the same batches, but for the row that is left out: the last row of each epoch's
order takes its place. So the differences between them come from the rows and from nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call, vmap

from privbench.training import Batch, Clock, TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from privbench.data import Examples
    from privbench.model import Model
    from privbench.training import Phase

#: Trainings side by side; a constant, so that the sums inside are the same on every day.
SIDE_BY_SIDE = 32


def refit(
    model: Model,
    phase: Phase,
    rows: Examples,
    *,
    initial: Mapping[str, Tensor],
    seed: int,
    left_out: Tensor,
) -> dict[str, Tensor]:
    """Train a phase once for every row that is left out.

    Args:
        model: whose parts the phase trains; it is left as it is.
        phase: with one kind of step, and neither views, streams, monitor nor wrap.
        rows: (n) that the phase sees.
        initial: name in the model's state -> its tensor before the phase.
        seed: of the phase; equal seeds, equal batches.
        left_out: (r,) int64 positions in rows; -1 leaves nothing out.

    Returns:
        Name -> (r, ...) trained tensors of the parts that the phase trains.

    Raises:
        TrainingError: if the phase is more than that.
    """
    (step, *others) = phase.steps.values()
    extras = (phase.prepare, phase.monitor, phase.wrap, step.streams, step.before, step.after)
    if others or any(extras) or phase.batch.kind != "shuffle":
        raise TrainingError(
            f"phase '{phase.name}' cannot be refitted: it has more than one plain step on "
            "shuffled batches"
        )
    names = [
        name for name, _ in model.named_parameters() if name.split(".")[1] in step.trains
    ]  # "parts.<part>..."
    start = {name: initial[name.removeprefix("parts.")] for name in names}
    blocks = [
        _block(model, phase, rows, initial=start, seed=seed, left_out=out)
        for out in torch.split(left_out, SIDE_BY_SIDE)
    ]
    return {n.removeprefix("parts."): torch.cat([block[n] for block in blocks]) for n in names}


class _Loss(nn.Module):
    """The phase's loss as a module of the model, so that its parameters can be exchanged."""

    def __init__(self, model: Model, phase: Phase, clock: Clock) -> None:
        super().__init__()
        self.model, self.phase, self.clock = model, phase, clock

    def forward(self, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        batch = Batch(x, y, {}, at)
        (step,) = self.phase.steps.values()
        return step.loss(self.phase.forward(self.model, batch), batch, self.clock)


def _block(
    model: Model,
    phase: Phase,
    rows: Examples,
    *,
    initial: Mapping[str, Tensor],
    seed: int,
    left_out: Tensor,
) -> dict[str, Tensor]:
    r, n = len(left_out), len(rows)
    stacked = {name: t.expand(r, *t.shape).clone().requires_grad_() for name, t in initial.items()}
    optimizers = [
        (spec, spec.make([t for name, t in stacked.items() if name.split(".")[1] == part]))  # type: ignore[misc]
        for part, spec in phase.optimizers.items()
    ]
    steps = phase.batch.steps(n)
    model.eval()
    batches = _batches(n, phase, seed, left_out)
    for done, (epoch, i, at) in enumerate(batches):
        loss = _Loss(model, phase, Clock(epoch, i, phase.epochs, steps))

        def one(parameters: Mapping[str, Tensor], at: Tensor, loss: nn.Module = loss) -> Tensor:
            named = {f"model.{name}": tensor for name, tensor in parameters.items()}
            made: Tensor = functional_call(loss, named, (rows.x[at], rows.y[at], at))
            return made

        losses = vmap(one)(stacked, at)
        for spec, optimizer in optimizers:
            for group in optimizer.param_groups:
                counted = done if spec.per == "step" else (epoch - 1) * steps
                group["lr"] = spec.rate(counted, steps * phase.epochs)
            optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for _, optimizer in optimizers:
            optimizer.step()
    return {name: tensor.detach() for name, tensor in stacked.items()}


def _batches(
    n: int, phase: Phase, seed: int, left_out: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """Epoch, step and (r, b) positions, in the order that training with that seed has them."""
    device, size = left_out.device, min(phase.batch.size, n)
    generator = torch.Generator(device=device).manual_seed(seed)
    every = bool((left_out < 0).all())
    for epoch in range(1, phase.epochs + 1):
        order = torch.randperm(n, generator=generator, device=device)
        mine = order.expand(len(left_out), n)
        if not every:
            last = order[-1]
            mine = torch.where(mine == left_out[:, None], last, mine)[:, : n - 1]
        for i in range(phase.batch.steps(n)):
            at = mine[:, i * size : (i + 1) * size]
            if at.shape[1]:
                yield epoch, i, at
