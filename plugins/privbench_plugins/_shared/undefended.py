"""What the undefended model says of a defender's own rows: what releases learn from."""

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
    """Embeddings (n, d) float64."""
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.encode(as_float(x.to(device), rows.scale)).double()
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)


def posteriors(model: Model, rows: Examples) -> Tensor:
    """Posteriors (n, classes) float64."""
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            model.logits(model.encode(as_float(x.to(device), rows.scale))).double().softmax(1)
            for x in torch.split(rows.x, ROWS)
        ]
    return torch.cat(parts)
