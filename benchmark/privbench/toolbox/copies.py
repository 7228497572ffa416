"""Label-only attacks that alter a row: which copies does a model still classify correctly?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle

#: Approximate bytes of a block of copies; it has at least the copies of one row.
BLOCK = 64 * 2**20


def survivors(oracle: Oracle, rows: Examples, copies: Callable[[Tensor], Tensor], m: int) -> Tensor:
    """Query m copies of every row.

    Args:
        oracle: answers with labels; m queries per row, plus one per row if any label is missing.
        rows: with their true classes; for -1 (unknown), the class predicted for the row is used.
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


def noisy(ctx: AttackContext, m: int) -> Callable[[float], Callable[[Tensor], Tensor]]:
    """Return what makes, for a level of noise, m copies of every row, as ``survivors`` takes it.

    The level is the standard deviation of Gaussian noise on inputs in [0, 1]; for a binary table it
    is the expected number of flipped columns. All levels, rows and models get the same draws.
    """
    generator, binary = ctx.generator("noise"), ctx.card.kind == "binary"
    draw = torch.rand if binary else torch.randn
    u = draw((m, *ctx.card.shape), generator=generator, device=generator.device)
    if binary:
        return lambda level: partial(flipped, flips=u < level / u[0].numel())
    return lambda level: partial(blurred, noise=level * u)


def blurred(x: Tensor, noise: Tensor) -> Tensor:
    """Add each noise (m, *shape) to each x (n, *shape), within [0, 1]: (n, m, *shape)."""
    return (x[:, None] + noise).clamp(0, 1)


def flipped(x: Tensor, flips: Tensor) -> Tensor:
    """Swap 0 and 1 of each x (n, *shape) where flips (m, *shape) is true: (n, m, *shape).

    >>> flipped(torch.tensor([[0.0, 1.0]]), torch.tensor([[True, True], [False, True]])).tolist()
    [[[1.0, 0.0], [0.0, 0.0]]]
    """
    return (x[:, None] - flips.to(x.dtype)).abs()
