"""The rows of an audit: members, nonmembers and, perhaps, rows for shadows, from the user's files.

They are joined into one file in the cache folder, which the dataset ``npz`` reads.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.toolbox.npz_size import excess

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Names of the sources of the rows, in the order in which the rows are joined.
SOURCES = ("members", "nonmembers", "shadow")
#: Array of the joined file that names the source of each row.
ORIGIN = "origin"
#: Fewer members or nonmembers cannot be told apart with any confidence.
FEWEST = 20
_TABLE, _GREY, _IMAGE = 2, 3, 4  # axes of x

#: A path of a ``.npz`` file, or its arrays.
Given = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """All rows of an audit, as the harness reads them.

    Attributes:
        x: (n, *shape) uint8, or float32 in [0, 1]; source after source.
        y: (n,) int64 classes; None if the rows have no labels.
        sizes: source -> number of rows, without empty ones.
        attributes: sensitive attribute -> (n,) values.
        low, high: the values that 0 and 1 of each column stand for; () if these are 0 and 1.
        fingerprints: (n,) digests of x as it was given, before it was scaled.
    """

    x: NDArray[Any]
    y: NDArray[np.int64] | None
    sizes: Mapping[str, int]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    fingerprints: Sequence[str] = ()

    @property
    def classes(self) -> int:
        """Number of classes; 0 without labels."""
        return 0 if self.y is None else int(self.y.max()) + 1

    def of(self, source: str) -> slice:
        """Return where the rows of a source are."""
        names = list(self.sizes)
        begin = sum(self.sizes[name] for name in names[: names.index(source)])
        return slice(begin, begin + self.sizes[source])

    def unit(self) -> NDArray[np.float32]:
        """Return x as float32 in [0, 1]."""
        return (self.x / (255 if self.x.dtype == np.uint8 else 1)).astype(np.float32)

    def write(self, folder: Path) -> Path:
        """Write them to a file that is named after its content; return its path."""
        named: dict[str, Any] = {
            "x": self.x,
            ORIGIN: np.repeat(list(self.sizes), list(self.sizes.values())),
        }
        named |= {} if self.y is None else {"y": self.y}
        named |= self.attributes
        told = hashlib.sha256()
        for name, array in named.items():
            told.update(f"{name} {array.dtype} {array.shape}".encode())
            told.update(np.ascontiguousarray(array).tobytes())
        path = folder / f"{told.hexdigest()[:32]}.npz"
        if path.exists():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
            np.savez(file, **named)
        os.replace(file.name, path)  # noqa: PTH105 - two audits may write it at the same time
        return path


def read_rows(
    members: Given, nonmembers: Given, shadow: Given | None = None, attributes: Given | None = None
) -> Rows:
    """Read the rows of an audit.

    Each file holds ``x``: a table (n, columns) of any finite numbers, or images (n, c, h, w),
    (n, h, w, c) or (n, h, w); and ``y``: (n,) classes, numbers from 0 or texts, if there are any.
    The file of attributes has one array for each, with a value for every row: of members, then of
    nonmembers, then of shadow rows.

    Raises:
        BadInputError: if they cannot be used; one sentence that says what to do.
    """
    files = {"members": members, "nonmembers": nonmembers}
    files |= {} if shadow is None else {"shadow": shadow}
    held = {source: _arrays(given, source) for source, given in files.items()}
    x = {source: _inputs(arrays, source) for source, arrays in held.items()}
    shapes = {source: one.shape[1:] for source, one in x.items()}
    for source, shape in shapes.items():
        if shape != shapes["members"]:
            raise BadInputError(f"{source}: its rows have shape {shape}, those of the members "
                                f"{shapes['members']}: give rows of one kind")  # fmt: skip
    for source in ("members", "nonmembers"):
        if len(x[source]) < FEWEST:
            raise BadInputError(f"{source}: {len(x[source])} rows are too few: give at least "
                                f"{FEWEST}")  # fmt: skip
    prints = {source: fingerprints(one) for source, one in x.items()}
    _refuse_overlap(prints)
    sizes = {source: len(one) for source, one in x.items()}
    joined, low, high = _in_unit_interval(np.concatenate(list(x.values())))
    extra = {} if attributes is None else _attributes(attributes, len(joined))
    every = [one for column in prints.values() for one in column]
    return Rows(joined, _labels(held, sizes), sizes, extra, low, high, every)


def read_source(given: Given, source: str) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the arrays of one file, and the fingerprints of its rows (n,).

    Raises:
        BadInputError: if there is no usable x.
    """
    held = _arrays(given, source)
    return held, fingerprints(_inputs(held, source))


def _arrays(given: Given, option: str) -> dict[str, NDArray[Any]]:
    if isinstance(given, Mapping):
        return {str(name): np.asarray(array) for name, array in given.items()}
    if not isinstance(given, (str, Path)):
        raise BadInputError(f"{option}: it is a {type(given).__name__}: give the path of a .npz "
                            "file or, in Python, a mapping of arrays, such as "
                            '{"x": x, "y": y}')  # fmt: skip
    told = f"{option} {shown(str(given), 200)}"
    held: dict[str, NDArray[Any]] = {}
    try:
        problem = _unfit(Path(given))
        if not problem:
            with np.load(given, allow_pickle=False) as file:
                held = {name: file[name] for name in file.files}
    except OSError as error:
        problem = f"cannot be read ({error.strerror or 'no archive'}): name a .npz file"
    except Exception as error:  # noqa: BLE001 - numpy and zipfile raise many types on bad bytes
        problem = (f"is no archive of plain arrays ({shown(str(error), 120)}): write it by "
                   "np.savez, without objects")  # fmt: skip
    if problem:
        raise BadInputError(f"{told} {problem}")
    return held


def _unfit(file: Path) -> str:
    """Return why a file is not read, as the end of a sentence; "" if it is."""
    if not file.exists():
        return "cannot be read (no such file): name a .npz file"
    if not file.is_file():  # a device may never end, and a pipe may never begin
        return "is no regular file: name a .npz file"
    if not zipfile.is_zipfile(file):  # .npy, text, or cut short
        return "is no whole .npz file: write it by np.savez(FILE, x=rows, y=classes)"
    return excess(file)


def _inputs(arrays: Mapping[str, NDArray[Any]], source: str) -> NDArray[Any]:
    """Return x with channels first: uint8 images, or float64."""
    if "x" not in arrays:
        raise BadInputError(f"{source}: it holds {shown(', '.join(arrays)) or 'no array'}: give "
                            "an archive with x, and y if there are classes")  # fmt: skip
    x = arrays["x"]
    if x.dtype.kind not in "buif" or x.ndim not in (_TABLE, _GREY, _IMAGE) or 0 in x.shape[1:]:
        raise BadInputError(f"{source}: x holds {x.dtype} of shape {x.shape}: give a table "
                            "(n, columns), or images (n, channels, height, width)")  # fmt: skip
    if x.ndim == _GREY:
        x = x[:, None]
    elif x.ndim == _IMAGE and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == _IMAGE and x.dtype == np.uint8:
        return x
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        row = int((~np.isfinite(x)).reshape(len(x), -1).any(1).argmax())
        raise BadInputError(f"{source}: x is NaN or infinite, first in row {row}: fill in "
                            "missing values, or drop such rows")  # fmt: skip
    return x


def fingerprints(x: NDArray[Any]) -> list[str]:
    """Return a digest of each row (n,): equal for equal numbers, whatever their type."""
    return [
        hashlib.blake2b((row + 0.0).tobytes(), digest_size=16).hexdigest()  # -0 is 0
        for row in x.astype(np.float64)
    ]


def _refuse_overlap(prints: Mapping[str, Sequence[str]]) -> None:
    """Refuse rows that are in two sets: an answer about them would mean nothing."""
    seen: dict[str, tuple[str, int]] = {}
    for source, rows in prints.items():
        clashes = []
        mine: dict[str, tuple[str, int]] = {}
        for i, key in enumerate(rows):
            clashes += [(i, *seen[key])] if key in seen else []
            mine.setdefault(key, (source, i))
        if clashes:
            i, other, j = clashes[0]
            raise BadInputError(f"{source}: {len(clashes)} of its rows are also among the "
                                f"{other}, first row {i}, which is row {j} there: drop them from "
                                f"{source}")  # fmt: skip
        seen |= mine


def _in_unit_interval(
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


def _labels(
    held: Mapping[str, Mapping[str, NDArray[Any]]], sizes: Mapping[str, int]
) -> NDArray[np.int64] | None:
    """Return classes as numbers; texts are numbered in sorted order over all files."""
    lacking = [source for source, arrays in held.items() if "y" not in arrays]
    if len(lacking) == len(held):
        return None
    if lacking:
        raise BadInputError(f"{lacking[0]}: it has no y, and another file has: give y in all of "
                            "them, or in none")  # fmt: skip
    columns = {source: arrays["y"] for source, arrays in held.items()}
    for source, y in columns.items():
        if y.shape != (sizes[source],):
            raise BadInputError(f"{source}: y has shape {y.shape}, and x {sizes[source]} rows: "
                                "give one class for each row")  # fmt: skip
    texts = [source for source, y in columns.items() if y.dtype.kind == "U"]
    if texts and len(texts) < len(columns):
        raise BadInputError(f"{texts[0]}: y holds texts, and y of another file numbers: give "
                            "texts in all of them, or numbers")  # fmt: skip
    y = np.concatenate(list(columns.values()))
    if texts:
        return np.unique(y, return_inverse=True)[1].astype(np.int64)
    whole = y.dtype.kind in "bui" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))
    if not whole or y.min() < 0:
        raise BadInputError("y must hold classes from 0, or texts: number them as the model does")
    y = y.astype(np.int64)
    gap = next((c for c, n in enumerate(np.bincount(y)) if n == 0), None)
    if gap is not None:
        raise BadInputError(f"no row has class {gap}, but there are higher ones: number the "
                            "classes 0 to k - 1, and give a row of each")  # fmt: skip
    return y


def _attributes(given: Given, rows: int) -> dict[str, NDArray[Any]]:
    found = _arrays(given, "attributes")
    for name, column in found.items():
        if column.shape != (rows,):
            raise BadInputError(f"attributes: {shown(name)} has shape {column.shape}: give a "
                                f"value for each of the {rows} rows, of members, then of "
                                "nonmembers, then of shadow rows")  # fmt: skip
        if column.dtype.kind not in "buiU":
            raise BadInputError(f"attributes: {shown(name)} holds {column.dtype}: give whole "
                                "numbers from 0, or texts")  # fmt: skip
        if name in ("x", "y", ORIGIN):
            raise BadInputError(f"attributes: an attribute cannot be called {name}: rename it")
    return found
