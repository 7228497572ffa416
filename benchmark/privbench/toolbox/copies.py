"""Label-only attacks that alter a row: which copies does a model still classify correctly?"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle

#: Approximate bytes of a block of copies; it has at least the copies of one row.
BLOCK = 64 * 2**20
#: Own rows, and copies of each, that ``fitting_levels`` asks about.
ROWS, COPIES = 100, 8
#: Noises that it tries, from little to all; and its levels, in units of the one that it finds.
TRIED = tuple(2 ** (i / 2) for i in range(-12, 1))
PARTS = (0.1, 0.3, 0.5, 0.7, 1.0)


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


def kept(
    oracle: Oracle, rows: Examples, ctx: AttackContext, levels: Sequence[float], queries: int
) -> Tensor:
    """Return the log-odds (n, 1) float64 that a noisy copy keeps the true class, mean over levels.

    Half a copy is added to each side.

    Args:
        oracle: answers with labels.
        rows: with their true classes.
        ctx: of the attack; all models get the same noise.
        levels: see ``noisy``.
        queries: copies of a row, over all levels.
    """
    copies = max(1, queries // len(levels))
    at, odds = noisy(ctx, copies), []
    for level in levels:
        count = survivors(oracle, rows, at(level), copies).double().sum(1)
        odds.append((count + 0.5).log() - (copies - count + 0.5).log())
    return torch.stack(odds, dim=1).mean(1, keepdim=True)


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


def fitting_levels(ctx: AttackContext) -> tuple[float, ...]:
    """Return five levels, up to the noise under which models lose half of what they know.

    Noise that no model notices tells rows apart as little as noise that hides every row. Shadows
    are asked about up to 100 labelled rows of the adversary's from which neither training nor a
    defense learned, 105 times each; what they know is the share of right labels beyond chance (one
    over the number of classes). Where they know nothing, where there are no such rows and where no
    noise takes as much, the largest level is half a unit, or half of a binary table's columns.
    """
    most = math.prod(ctx.card.shape) / 2 if ctx.card.kind == "binary" else 0.5
    own = ctx.auxiliary.select((ctx.auxiliary.y >= 0).nonzero()[:ROWS, 0])
    at = noisy(ctx, COPIES)
    asked = [(one.oracle, own.select(~_learned(one.world, own))) for one in ctx.shadows]

    def right(copies: Callable[[Tensor], Tensor], m: int) -> float:
        shares = [survivors(oracle, rows, copies, m).double().mean() for oracle, rows in asked
                  if len(rows)]  # fmt: skip
        return float(torch.stack(shares).mean()) if shares else 1.0

    chance = 1 / (ctx.card.classes or 1)
    half = (max(right(lambda x: x[:, None], 1), chance) + chance) / 2
    little = (most * part for part in TRIED if right(at(most * part), COPIES) < half)
    found = next(little, most) if half > chance else most
    return tuple(found * part for part in PARTS)


def _learned(world: World, rows: Examples) -> Tensor:
    """Which rows (n,) training or a defense may have learned from."""
    return torch.isin(rows.index, torch.cat([part.index for part in world.parts.values()]))


def blurred(x: Tensor, noise: Tensor) -> Tensor:
    """Add each noise (m, *shape) to each x (n, *shape), within [0, 1]: (n, m, *shape)."""
    return (x[:, None] + noise).clamp(0, 1)


def flipped(x: Tensor, flips: Tensor) -> Tensor:
    """Swap 0 and 1 of each x (n, *shape) where flips (m, *shape) is true: (n, m, *shape).

    >>> flipped(torch.tensor([[0.0, 1.0]]), torch.tensor([[True, True], [False, True]])).tolist()
    [[[1.0, 0.0], [0.0, 0.0]]]
    """
    return (x[:, None] - flips.to(x.dtype)).abs()
