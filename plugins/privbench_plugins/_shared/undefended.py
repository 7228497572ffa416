"""Answers of the undefended model on a defender's own rows, from which releases learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench import as_float

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Examples, Model

#: Rows per forward pass.
ROWS = 256


def embeddings(model: Model, rows: Examples) -> Tensor:
    """Return embeddings (n, d) float64."""
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.encode(as_float(x.to(device), rows.scale)).double()
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)


def posteriors(model: Model, rows: Examples) -> Tensor:
    """Return posteriors (n, classes) float64."""
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.logits(model.encode(as_float(x.to(device), rows.scale))).double().softmax(1)
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)
