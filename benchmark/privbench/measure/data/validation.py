"""Whether the rows that a dataset loads are what its card says; checked once per load.

Models, keys and metrics rely on this without looking: x in the unit interval, classes 0 to k - 1,
and a different key for every different row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.errors import BadInputError
from privbench.measure.data.examples import Examples
from privbench.measure.data.row_random import row_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from privbench.measure.data.examples import Card


def validated(rows: Any, card: Card) -> Examples:
    """Return the rows of a dataset.

    Raises:
        BadInputError: if they are not what the card says, or cannot be used; says what to change.
    """
    problem = next(_problems(rows, card), None)
    if problem:
        raise BadInputError(f"dataset '{card.name}': {problem}")
    made: Examples = rows
    return made


def _problems(rows: Any, card: Card) -> Iterator[str]:
    """Yield what is wrong, in order; a check may rely on those before it."""
    if not isinstance(rows, Examples):
        yield f"load() returned a {type(rows).__name__}: return Examples.of(x, y, scale=...)"
    yield from _shapes(rows, card)
    yield from _inputs(rows, card)
    if card.classes is not None:
        yield from _labels(rows.y, card.classes)
    yield from _columns(rows, card)
    yield from _keys(rows)


def _shapes(rows: Examples, card: Card) -> Iterator[str]:
    wanted = (card.rows, *card.shape)
    if tuple(rows.x.shape) != wanted:
        yield f"x has shape {tuple(rows.x.shape)}, but the card says {wanted}: correct one of them"
    tensors = {"y": rows.y, "index": rows.index, "source": rows.source, **rows.attributes}
    for name, column in tensors.items():
        if column.dtype != torch.int64:
            yield f"{name} is {column.dtype}: convert it to torch.int64"
        if tuple(column.shape) != (len(rows),):
            yield f"{name} has shape {tuple(column.shape)}: give one number per row, ({len(rows)},)"
    for name, column in {"x": rows.x, **tensors}.items():
        if column.device.type != "cpu":
            yield f"{name} is on {column.device}: load all rows on the CPU"


def _inputs(rows: Examples, card: Card) -> Iterator[str]:
    x, real = rows.x, rows.x.is_floating_point()
    if x.is_complex() or (real and x.dtype != torch.float32):
        yield f"x is {x.dtype}: give whole numbers (torch.uint8), or torch.float32 in [0, 1]"
    if rows.scale != card.scale or not card.scale > 0:
        yield f"scale is {rows.scale}, but {card.scale} in the card: give one above 0 in both"
    if not x.numel():
        return
    low, high = _range(rows)
    top = 1.0 if real else card.scale
    if low != low or high != high:  # noqa: PLR0124 - NaN
        blocks = rows.blocks()
        where = next(b.start + int(i) for b in blocks for i in _nan(x[b]).nonzero())
        yield f"x is NaN, first in row {where}: fill in missing values, or drop such rows"
    if low < 0 or high > top:
        told = "scale each feature to the unit interval" if real else "set `scale` to the largest"
        yield f"x lies in [{low:g}, {high:g}], not in [0, {top:g}]: {told}"


def _range(rows: Examples) -> tuple[float, float]:
    """Return the smallest and the largest value of x; NaN if it has one."""
    if rows.x.dtype == torch.bool:
        return 0.0, 1.0
    ends = [torch.stack(rows.x[block].aminmax()) for block in rows.blocks()]
    low, high = torch.stack(ends).unbind(1)
    return float(low.amin()), float(high.amax())


def _nan(x: Tensor) -> Tensor:
    """Return which rows have a NaN: (n,) bool."""
    return x.flatten(1).isnan().any(1)


def _labels(y: Tensor, classes: int) -> Iterator[str]:
    numbered = f"number the classes 0 to {classes - 1} (-1 for a row without a label)"
    if not len(y):
        return
    low, high = int(y.min()), int(y.max())
    if low < -1 or high >= classes:
        yield f"y lies between {low} and {high}, but the card has {classes} classes: {numbered}"
    counts = torch.bincount(y[y >= 0], minlength=classes)
    if not bool(counts.all()):
        lacking = int((counts == 0).nonzero()[0])
        yield f"no row has class {lacking} of {classes}: {numbered}, or correct `classes`"


def _columns(rows: Examples, card: Card) -> Iterator[str]:
    if set(rows.attributes) != set(card.attributes):
        have, said = (", ".join(sorted(names)) or "none" for names in (
            rows.attributes, card.attributes,
        ))  # fmt: skip
        yield f"the rows have the attributes {have}, but the card says {said}: make them agree"
    for name in card.sensitive:
        if name not in card.attributes:
            yield f"'{name}' is sensitive but no attribute: add it to `attributes` of the card"
    for name, values in card.attributes.items():
        low, high = int(rows.attributes[name].min()), int(rows.attributes[name].max())
        if low < -1 or high >= values:
            yield (
                f"attribute '{name}' lies between {low} and {high}, but the card gives it {values} "
                f"values: number them 0 to {values - 1} (-1 if missing)"
            )
    sources = list(card.sources.values())
    if int(rows.source.min()) < 0 or int(rows.source.max()) >= len(sources):
        yield f"source is not in 0 to {len(sources) - 1}: give positions in `sources` of the card"
    counts = torch.bincount(rows.source, minlength=len(sources)).tolist()
    if counts != sources:
        yield f"the sources have {counts} rows, but the card says {sources}: correct one of them"
    if not torch.equal(rows.index, torch.arange(len(rows))):
        yield "index is not the position in the dataset: leave it to Examples.of"


def _keys(rows: Examples) -> Iterator[str]:
    """Yield if rows that differ have one key, which is that of all their random numbers."""
    if not rows.x.is_floating_point():
        return  # whole numbers are hashed as they are
    keys, which, counts = rows.keys.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    shared = counts[which] > 1
    exact = torch.cat([
        row_keys((rows.x[block][shared[block]] + 0.0).view(torch.int32), 1.0)  # -0.0 is 0.0
        for block in rows.blocks()
    ])  # fmt: skip
    different = int((counts == 1).sum()) + len(exact.unique())  # type: ignore[no-untyped-call]
    if len(keys) < different:
        yield (
            f"{different} different rows have only {len(keys)} keys, because a key reads "
            f"round(x * scale) and scale is {rows.scale:g}: give rows and card a larger scale, "
            "such as 2**20"
        )
