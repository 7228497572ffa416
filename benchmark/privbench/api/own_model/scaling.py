"""Rows of numbers between the units of the user and [0, 1], which is what the harness reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.toolbox.looked_up import cells, in_units, keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TABLE = 2  # axes of x
#: Share of a column's values that may be taken for their neighbours.
_LOST, _LOOKED_AT = 0.05, 1001


def in_unit_interval(
    x: NDArray[Any],
) -> tuple[NDArray[Any], tuple[float, ...], tuple[float, ...]]:
    """Return x as the harness reads it, and what its 0 and 1 stand for.

    Tables are scaled by column, images as a whole; what lies in [0, 1] already stays.
    """
    if x.dtype == np.uint8:
        return x, (), ()
    if x.min() >= 0 and x.max() <= 1:
        return x.astype(np.float32), (), ()
    axes = 0 if x.ndim == _TABLE else None
    low, high = np.atleast_1d(x.min(axes)), np.atleast_1d(x.max(axes))
    high = np.where(high > low, high, low + 1)
    unit = ((x - low) / (high - low)).clip(0, 1).astype(np.float32)
    return unit, tuple(map(float, low)), tuple(map(float, high))


def loses(
    x: NDArray[Any], unit: NDArray[Any], low: tuple[float, ...], high: tuple[float, ...]
) -> bool:
    """Whether rows of a table differ in what float32 tells apart, and not in [0, 1].

    A column of which one value is far from all others, such as -99999 for a missing one, leaves
    the others no room there. Of a column at most 1,001 of its values are looked at, from the least
    to the largest: many values lie so close that float32 hardly tells them apart.
    """
    for j in range(x.shape[1]):
        values, first = np.unique(x[:, j].astype(np.float32), return_index=True)
        some = np.unique(np.linspace(0, len(values) - 1, _LOOKED_AT).round().astype(int))
        values = values[some].astype(np.float64)
        gaps = np.diff(values, prepend=-np.inf, append=np.inf)
        off = np.abs(in_units(unit[first[some], j], low[j], high[j]) - values)
        if (off > np.minimum(gaps[1:], gaps[:-1]) / 2).mean() > _LOST:
            return True
    return len({*cells(unit)}) < len({*keys(x)})
