"""Canaries in place of members' gradients, and the noisy steps that an adversary of DP-SGD sees.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, section 6
(white box); Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis: Tight Auditing of
Differentially Private Machine Learning. USENIX Security 2023.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from privbench.ground.errors import BadInputError
from privbench.measure.data.row_random import fold, salt, uniform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from privbench.measure.methods.context import DefenseContext
    from privbench.measure.training.loop import Training
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Batch, Outputs, Phase

#: Parts of a model that hold the noisy steps begin like this; the phase's name follows.
PART = "gradient-canaries of "
#: A canary lies in the first so many coordinates of the gradient: only these are kept.
WIDTH = 4096
#: Length of a canary in units of ``clip``: clipping cuts it to ``clip``.
LENGTH = 100.0
#: Numbers that are kept at most, 1 GiB.
_MOST = 2**28


class NoisySteps(nn.Module):
    """What an adversary sees of the training of a phase, as buffers that are stored with the model.

    Attributes:
        steps: (steps, width) float32, the noisy sum of clipped gradients of every step in units of
            ``clip``, in its first coordinates.
        noise: () standard deviation of the noise in these units.
        rate: () probability with which a step uses a row.
        batch: () rows that a step uses on average.
    """

    steps: Tensor
    noise: Tensor
    rate: Tensor
    batch: Tensor

    def __init__(self, steps: int, width: int) -> None:
        """Keep zeros until the phase is trained."""
        super().__init__()
        self.register_buffer("steps", torch.zeros(steps, width))
        self.register_buffer("noise", torch.zeros(()))
        self.register_buffer("rate", torch.zeros(()))
        self.register_buffer("batch", torch.zeros(()))


def directions(keys: Tensor, width: int) -> Tensor:
    """Return the canaries of rows with these keys: keys (n,) int64 -> unit vectors (n, width).

    Their coordinates have equal size and random signs, so two rows' are nearly orthogonal: the
    product has standard deviation width^-0.5.
    """
    coins = uniform(fold(keys, salt(PART)), width) < 0.5  # noqa: PLR2004 - fair ones
    return (2 * coins.float() - 1) / math.sqrt(width)


def planted(
    phase: Phase, model: Model, ctx: DefenseContext, *, keys: Tensor, steps: int, rate: float
) -> Phase:
    """Return the phase with a canary in place of the gradient of every row.

    Args:
        phase: whose ``wrap`` sets up one optimizer of Opacus.
        model: gets a part that keeps the steps.
        ctx: of the defense.
        keys: (n,) int64 of the phase's rows.
        steps: of the phase.
        rate: probability with which a step uses a row.

    Raises:
        BadInputError: if the steps take too much memory.
    """
    trained = {part for step in phase.steps.values() for part in step.trains}
    numbers = sum(p.numel() for part in trained for p in model[part].parameters())
    width = min(numbers, WIDTH)
    if steps * width > _MOST:
        raise BadInputError(
            f"gradient canaries keep {width:,} numbers of each of {steps:,} steps of phase "
            f"'{phase.name}': train for at most {_MOST // width:,} steps"
        )
    part = PART + phase.name.replace(".", "-")  # a part's name holds no dot
    ctx.module(model, part, lambda: NoisySteps(steps, width))
    planting = _Planting(phase, part, keys, rate)
    changed = {name: replace(one, live=(*one.live, part)) for name, one in phase.steps.items()}
    return replace(phase, steps=changed, forward=planting.forward, wrap=planting.wrap)


class _Planting:
    """Plants canaries while a phase trains.

    Attributes:
        phase: without canaries.
        part: that keeps the steps.
        keys: (n,) of the phase's rows.
        rate: see ``NoisySteps``.
        rows: positions (b,) of the rows of the last batch.
    """

    def __init__(self, phase: Phase, part: str, keys: Tensor, rate: float) -> None:
        self.phase, self.part, self.keys, self.rate = phase, part, keys, rate
        self.rows = torch.empty(0, dtype=torch.long)

    def forward(self, model: Model, batch: Batch) -> Outputs:
        """Note the rows of a batch and pass it on."""
        self.rows = batch.rows
        return self.phase.forward(model, batch)

    @contextmanager
    def wrap(self, training: Training) -> Iterator[None]:
        """Plant before the optimizer clips, and keep what it makes of it."""
        assert self.phase.wrap is not None  # noqa: S101 - see ``planted``
        with self.phase.wrap(training):
            ((_, optimizer),) = training.optimizers.items()
            kept = training.model[self.part]
            assert isinstance(kept, NoisySteps)  # noqa: S101 - see ``planted``
            dp: Any = optimizer
            kept.noise.fill_(dp.noise_multiplier)
            kept.rate.fill_(self.rate)
            kept.batch.fill_(self.rate * len(self.keys))
            pre_step, (part, *_) = dp.pre_step, training.updates

            def planting(closure: Any = None) -> Any:
                self._plant(dp, kept.steps.shape[1])
                made = pre_step(closure)
                noisy = torch.cat([p.grad.flatten() for p in dp.params])[: kept.steps.shape[1]]
                done = training.updates[part]
                kept.steps[done] = noisy * (dp.expected_batch_size / dp.max_grad_norm)
                return made

            dp.pre_step = planting
            yield

    def _plant(self, optimizer: Any, width: int) -> None:
        """Replace the gradients of the rows of the batch; an empty batch has none."""
        rows = len(optimizer.params[0].grad_sample)
        if not rows:
            return
        canaries = directions(self.keys[self.rows], width) * (LENGTH * optimizer.max_grad_norm)
        start = 0
        for p in optimizer.params:
            of_rows = p.grad_sample.view(rows, -1)
            here = canaries[:, start : start + of_rows.shape[1]]
            of_rows.zero_()
            of_rows[:, : here.shape[1]] = here
            start += of_rows.shape[1]
