"""Label-only attacks that alter a row: which of its copies does a model still get right?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench import as_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench import Examples, Oracle

#: Bytes of a block of copies, about; one row's copies at least.
BLOCK = 64 * 2**20


def survivors(oracle: Oracle, rows: Examples, copies: Callable[[Tensor], Tensor], m: int) -> Tensor:
    """Ask about m copies of every row.

    Args:
        oracle: answers with labels; m queries per row, one more each where labels are missing.
        rows: with their true classes; -1 (unknown) stands for what is predicted for the row.
        copies: x (n, *shape) in [0, 1] -> (n, m, *shape), row by row.
        m: copies per row.

    Returns:
        (n, m) bool, on the rows' device: whether the copy's label is the row's *true* class.
    """
    y = rows.y
    if (y < 0).any():
        y = torch.where(y < 0, oracle.labels(rows).to(y.device), y)
    x = as_float(rows.x, rows.scale)
    step = max(1, BLOCK // (x.element_size() * m * x[0].numel()))
    labels = [oracle.labels(copies(part).flatten(0, 1)) for part in torch.split(x, step)]
    return torch.cat(labels).view(len(x), m).to(y.device) == y[:, None]
