"""Your own arrays, in a NumPy archive (``.npz``), under your own licence.

Two lines of a suite, or two options, suffice:

    attacks: [lira]
    datasets: [{npz: {path: mine.npz}}]

    privbench run --attack lira --dataset npz --set npz.path=mine.npz

The archive holds, for n rows,

- ``x``: images (n, channels, height, width) or (n, height, width, channels) with 1 or 3 channels,
  grey images (n, height, width), or a table (n, columns); whole numbers from 0 to 255, or floats in
  [0, 1];
- ``y``: (n,) classes, numbered from 0 (-1 for a row without a label), or texts, which are numbered
  in sorted order;
- any other array: a sensitive attribute with that name, (n,) values like those of ``y``. The first
  is the default of attacks and defenses; ``sensitive`` of a suite names others.

With ``origins: NAME`` the array NAME is no attribute: it says where each row comes from, such as
``members`` and ``nonmembers`` of a model that exists already. Its values are the sources from which
parts of a protocol can be drawn. Such a file may have no ``y``.

Everything else follows from the file. Whole numbers up to 1 have scale 1 (tables of them are
``binary``), others 255. Grey images allow crops, shifts and blur; colour images also flips and mild
brightness and contrast, or all that SimCLR uses if there are no attributes. The default protocol is
as in ``default_protocol``: of n rows, n / 23 times 4 members, 4 nonmembers, 1 reference, 10 pool, 4
test, at most 2,000 members. The key of a result holds the digest of the file, not its name. The
file is read once for the digest and once for the range of x.

``np.savez`` does not compress, and a uint8 or float32 x of more than 64 MB is then memory-mapped:
only the rows of a split are in memory. Other types, and ``np.savez_compressed``, are read into
memory: at most 4 GiB of a file, or as many bytes as PRIVBENCH_MOST_ARRAY_BYTES says. Nothing is
unpickled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch

from privbench import Card, Dataset, Examples, Ge, Protocol, hookimpl
from privbench.toolbox.mapped_array import LARGE, Array, Arrays
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.npz_size import excess
from privbench.toolbox.own_data import (
    OwnDataset,
    default_protocol,
    views,
)
from privbench.toolbox.tables import FEWEST, MOST_VALUES, count_problem, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Float values that differ by less than 1 / FINE may get one key.
FINE, BYTE = 2.0**24, 255.0
_IMAGE, _GREY, _TABLE = 4, 3, 2  # axes of x


@dataclass(frozen=True)
class Npz(OwnDataset):
    """Loads your own arrays x, y and attributes from a NumPy archive.

    Attributes:
        scale: for whole numbers, the one that means 1.0; for floats, the units per 1.0 that tell
            rows apart; 0 to derive it.
        origins: name of the array with the sources of the rows; "" if all have one source.
    """

    name: ClassVar[str] = "npz"

    scale: Annotated[float, Ge(0)] = 0.0
    origins: str = ""

    @property
    def label(self) -> str:
        """As of all methods; of a file with sources, which the package wrote, the digest alone."""
        return f"{self.name}({self.sha256[:8]})" if self.origins and self.path else super().label

    @property
    def protocols(self) -> Mapping[str, Protocol]:  # type: ignore[override]
        """The default protocol, from the number of rows."""
        rows = self._facts().rows if self.path else None
        return {"default": default_protocol(rows)}

    def card(self, root: Path | None) -> Card:
        """Describe the file.

        Raises:
            BadInputError: if it cannot be used; says why and what to do.
        """
        del root
        facts = self._facts()
        return Card(
            name=self.name, kind=facts.kind, shape=facts.shape, classes=facts.classes,
            scale=facts.scale, attributes=dict(facts.attributes),
            sensitive=tuple(name for name, _ in facts.attributes[:1]), sources=dict(facts.sources),
            limits=None if facts.kind != "image" else (
                views(*facts.shape, attributes=bool(facts.attributes))
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read the file: x (n, *shape) uint8 or float32, mapped if it is large."""
        del root
        facts = self._facts()
        x, columns, names = _read(self)
        self._unchanged()
        source = torch.from_numpy(columns.pop(self.origins)) if names else None
        return Examples.of(
            x.tensor(),
            torch.from_numpy(columns.pop("y")),
            {name: torch.from_numpy(column) for name, column in columns.items()},
            scale=facts.scale,
            source=source,
            mapped=x.mapped,
        )

    def _facts(self) -> _Facts:
        return _described(self, self.location, self.sha256)


#: Fewest rows of a model that exists already: 20 members and 20 nonmembers.
_OF_MODEL = 40


class _Facts(NamedTuple):
    rows: int
    kind: Any
    shape: tuple[int, ...]
    scale: float
    classes: int | None
    attributes: tuple[tuple[str, int], ...]
    sources: tuple[tuple[str, int], ...]


@functools.lru_cache(maxsize=64)
def _described(data: Npz, file: Path, sha256: str) -> _Facts:
    """Return what the card says; another content has another digest."""
    del file, sha256
    x, columns, names = _read(data)
    counts = np.bincount(columns.pop(data.origins)).tolist() if names else [len(x.values)]
    sources = tuple(zip(names or ["all"], counts, strict=True))
    sizes = {name: int(column.max(initial=-1)) + 1 for name, column in columns.items()}
    classes = sizes.pop("y") or None
    fewest = _OF_MODEL if names else FEWEST
    if classes and (problem := count_problem(columns["y"], classes, fewest)):
        raise data.wrong(problem)
    most = _most(data, x)
    real = x.values.dtype.kind == "f"
    scale = data.scale or (FINE if real else 1.0 if most <= 1 else BYTE)
    if not real and most > scale:
        raise data.wrong(f"x reaches {most:g}, above the scale {scale:g}: give a larger scale, or "
                         "leave it out")  # fmt: skip
    kind = "image" if x.values.ndim == _IMAGE else "binary" if scale == 1 and not real else "real"
    attributes = tuple(sizes.items())
    return _Facts(len(x.values), kind, x.values.shape[1:], scale, classes, attributes, sources)


def _most(data: Npz, x: Array) -> float:
    """Return the largest value, after checking that all are in range."""
    low, high, begun = np.inf, -np.inf, 0
    for block in x.blocks():
        small, large = float(block.min()), float(block.max())
        if np.isnan(small):
            row = begun + int(np.isnan(block).reshape(len(block), -1).any(1).argmax())
            raise data.wrong(f"x is NaN, first in row {row}: fill in missing values, or drop such "
                             "rows")  # fmt: skip
        low, high, begun = min(low, small), max(high, large), begun + len(block)
    top = 1.0 if x.values.dtype.kind == "f" else BYTE
    if low < 0 or high > top:
        raise data.wrong(f"x lies in [{low:g}, {high:g}]: give floats in [0, 1] or whole numbers "
                         "from 0 to 255")  # fmt: skip
    return high


def _read(data: Npz) -> tuple[Array, dict[str, np.ndarray], list[str]]:
    """Return x (n, *shape) of uint8 or float32, columns as (n,) int64, and names of sources.

    The columns are y, the attributes and, if the file has sources, the number of each row's.
    """
    held: dict[str, Array] = {}
    try:
        problem = excess(data.location, LARGE)
        if not problem:
            arrays = Arrays(data.location)
            held = {name: arrays.read(name) for name in arrays.names}
    except Exception as error:  # noqa: BLE001 - numpy and zipfile raise many types on bad bytes
        raise data.wrong(f"it is damaged or no archive of plain arrays ({one_line(error)}): write "
                         "it with np.savez, without objects") from None  # fmt: skip
    if problem:
        raise data.wrong(f"it {problem}")
    origins = held.pop(data.origins, None) if data.origins else None
    if data.origins and origins is None:
        raise data.wrong(f"it has no array {plain(data.origins)}: set npz.origins to one that it "
                         "has, or leave it out")  # fmt: skip
    if "x" not in held or ("y" not in held and origins is None):
        names = plain(", ".join(held)) or "no array"
        raise data.wrong(f"it holds {names}: give an archive with the arrays x and y, such as "
                         "np.savez(FILE, x=x, y=y)")  # fmt: skip
    x = _inputs(data, held.pop("x"))
    rows = len(x.values)
    y = held.pop("y", None)
    columns = {"y": np.full(rows, -1) if y is None else _column(data, "y", y.values, rows)}
    columns |= {name: _column(data, name, one.values, rows) for name, one in held.items()}
    if origins is None:
        return x, columns, []
    if origins.values.dtype.kind != "U" or origins.values.shape != (rows,):
        raise data.wrong(f"{plain(data.origins)} names no source for each row: give (n,) texts")
    known, columns[data.origins] = np.unique(origins.values, return_inverse=True)
    return x, columns, [str(one) for one in known]


def _inputs(data: Npz, x: Array) -> Array:
    """Return x with channels first, as uint8 or float32."""
    values = x.values
    if values.dtype.kind not in "buif" or 0 in values.shape:
        raise data.wrong(f"x holds {values.dtype} of shape {values.shape}: give numbers")
    if values.ndim == _GREY:
        values = values[:, None]
    elif values.ndim == _IMAGE and values.shape[1] not in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.ndim not in (_TABLE, _IMAGE) or (
        values.ndim == _IMAGE and values.shape[1] not in (1, 3)
    ):
        raise data.wrong(f"x has shape {x.values.shape}: give images of 1 or 3 channels or a "
                         "table, with the rows first")  # fmt: skip
    if values.dtype.kind in "ui" and values.dtype != np.uint8:
        _most(data, Array(values))
    wanted = np.float32 if values.dtype.kind == "f" else np.uint8
    same = values.dtype == wanted and values.dtype.isnative
    return Array(values, x.mapped) if same else Array(values.astype(wanted))


def _column(data: Npz, name: str, values: np.ndarray, rows: int) -> np.ndarray:
    """Return labels or values of an attribute as (n,) int64."""
    if values.shape != (rows,):
        raise data.wrong(f"{plain(name)} has shape {values.shape}, but x has {rows} rows: give one "
                         "value per row, or leave the array out")  # fmt: skip
    if values.dtype.kind in "US":
        return numbered(values, f"{name} of {plain(data.path)}")[0]
    if values.dtype.kind not in "bui":
        raise data.wrong(f"{plain(name)} holds {values.dtype}: give whole numbers from 0, or texts")
    found = np.unique(values).tolist()
    known = [value for value in found if value != -1]
    gaps = name == "y" and known != list(range(len(known)))
    if gaps or not known or known[0] < 0 or known[-1] >= MOST_VALUES:
        listed = ", ".join(map(str, found[:5])) + (", …" if len(found) > 5 else "")  # noqa: PLR2004
        told = "number the classes 0 to k - 1" if name == "y" else "number its values from 0"
        raise data.wrong(f"{plain(name)} holds {listed}: {told} (-1 if unknown; at most "
                         f"{MOST_VALUES:,} of them), or give texts")  # fmt: skip
    return values.astype(np.int64)


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Npz()]
