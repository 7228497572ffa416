"""Answers of a model that one owns, before any release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.model import Model

#: Rows per forward pass.
ROWS = 256


def embeddings(model: Model, rows: Examples) -> Tensor:
    """Return embeddings (n, d) float64 of rows x (n, *shape), on the device of the model."""
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.encode(as_float(x.to(device), rows.scale)).double()
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)


def posteriors(model: Model, rows: Examples) -> Tensor:
    """Return posteriors (n, classes) float64 of rows x (n, *shape); each row adds up to 1."""
    return _logits(model, rows).softmax(1)


def log_posteriors(model: Model, rows: Examples) -> Tensor:
    """Return the logs of posteriors, (n, classes) float64 of at most 0."""
    return _logits(model, rows).log_softmax(1)


def _logits(model: Model, rows: Examples) -> Tensor:
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.logits(model.encode(as_float(x.to(device), rows.scale))).double()
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)
