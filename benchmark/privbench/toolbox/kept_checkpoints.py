"""Checkpoints of a training that are stored with the model, and losses of rows along them.

The steps of a phase copy encoder and classifier after some of its epochs into a part of the model,
so a white-box adversary finds them among the weights. Nothing else about the training changes: the
trained weights are those without checkpoints.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Clock, Phase, Step

#: The part of a model that holds its checkpoints.
PART = "checkpoints"
_SERVED = ("encoder", "classifier")
_ROWS = 256  # of a forward pass


class Checkpoints(nn.Module):
    """Copies of encoder and classifier, in the order of the epochs after which they were made.

    Attributes:
        states: n of them; the first ``len(self)`` are filled.
        epochs: (n,) int64, after which epoch each was made; 0 for those that are not filled.
    """

    epochs: Tensor

    def __init__(self, model: Model, n: int) -> None:
        """Make room for n copies of the model's encoder and classifier."""
        super().__init__()
        served = nn.ModuleDict({name: model[name] for name in _SERVED})
        self.states = nn.ModuleList(copy.deepcopy(served) for _ in range(n))
        self.register_buffer("epochs", torch.zeros(n, dtype=torch.long))
        self._looked = 0  # the last epoch in which it looked whether a copy is due

    def __len__(self) -> int:
        """Return how many copies there are so far."""
        return int((self.epochs > 0).sum())

    def keep(self, model: Model, clock: Clock) -> None:
        """Copy the model if the epochs before this one made a copy due."""
        if clock.epoch == self._looked:
            return
        self._looked, done = clock.epoch, clock.epoch - 1
        dates = due(clock.epochs, len(self.states))
        last = int(self.epochs.max())
        if any(last < date <= done for date in dates):
            at = len(self)
            state = self.states[at]
            assert isinstance(state, nn.ModuleDict)  # noqa: S101 - see ``__init__``
            for name, part in state.items():
                part.load_state_dict(model[name].state_dict())
            self.epochs[at] = done


def due(epochs: int, n: int) -> list[int]:
    """Return after which epochs n copies are made, evenly spaced, all before the last epoch.

    Fewer than n if there are too few epochs.

    >>> due(100, 4), due(3, 4)
    ([20, 40, 60, 80], [1, 2])
    """
    return sorted({math.ceil(i * epochs / (n + 1)) for i in range(1, n + 1)} - {epochs})


def keeping(phase: Phase) -> Phase:
    """Return the phase with steps that fill the model's part ``PART``, see ``Checkpoints``."""
    return replace(phase, steps={name: _keeping(step) for name, step in phase.steps.items()})


def _keeping(step: Step) -> Step:
    def before(model: Model, clock: Clock) -> None:
        if step.before:
            step.before(model, clock)
        part = model[PART]
        assert isinstance(part, Checkpoints)  # noqa: S101 - see ``keeping``
        part.keep(model, clock)

    return replace(step, live=(*step.live, PART), before=before)


def reopened(model: Model, weights: Mapping[str, Tensor]) -> Model:
    """Return the model with the checkpoints that are among these weights of a victim.

    Args:
        model: an untrained model of the victim's target; one without checkpoints stays as it is.
        weights: of the victim, by name, as ``Oracle.weights`` gives them.

    Raises:
        BadInputError: if the victim's layers are others, or none was kept.
    """
    if PART not in model:
        return model
    start = f"parts.{PART}."
    held = {name.removeprefix(start): t for name, t in weights.items() if name.startswith(start)}
    try:
        model[PART].load_state_dict(held)
    except RuntimeError as error:
        raise BadInputError(
            "the victim's checkpoints do not fit its target: a defense changed the layers"
        ) from error
    checkpoints = model[PART]
    assert isinstance(checkpoints, Checkpoints)  # noqa: S101 - see ``keeping``
    if not len(checkpoints):
        raise BadInputError(
            "the victim kept no checkpoint: a defense replaced the steps of its training, or it "
            "had only one epoch"
        )
    return model


def losses(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of rows at each checkpoint, (n, checkpoints) float64, in nats.

    Args:
        model: with checkpoints; without that part, there are none.
        x: (n, *shape), whole numbers or float in [0, 1], without augmentation.
        y: (n,) classes from 0.
    """
    if PART not in model:
        return torch.zeros(len(x), 0, dtype=torch.float64, device=x.device)
    checkpoints, columns = model[PART], []
    assert isinstance(checkpoints, Checkpoints)  # noqa: S101 - see ``keeping``
    with torch.no_grad():
        for state in list(checkpoints.eval().states)[: len(checkpoints)]:
            assert isinstance(state, nn.ModuleDict)  # noqa: S101 - see ``Checkpoints``
            encoder, classifier = (state[name] for name in _SERVED)
            blocks = (model.inputs(x[i : i + _ROWS]) for i in range(0, len(x), _ROWS))
            logits = [classifier(encoder(block)) for block in blocks]
            columns.append(F.cross_entropy(torch.cat(logits).double(), y, reduction="none"))
    return torch.stack(columns, dim=1)
