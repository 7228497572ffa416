"""Rows that are not plain numbers: tables with names and types of columns, texts, any objects.

The harness and its attacks see numbers. The model gets the rows as the user has them: each row is
found again by its numbers. A changed row is found nowhere, so attacks that change rows are left
out.

Columns of a sparse matrix are added up in 256 columns. Others become numbers by what they hold:
numbers and dates are scaled to [0, 1], with a column that says where one is missing; texts are
one-hot, or counts of hashed words if there are many different ones. Rows that differ and have equal
numbers, and objects of other kinds, get a hash of their content in four more columns.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import numbers
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.ground.store.content import file_digest
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.row_files import Reading, as_rows, read, refuse_twins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

#: Texts of a column up to which it is one-hot; above, words are counted in so many columns.
ONE_HOT, WORDS = 64, 256
#: The dataset npz may take rows for one if all their numbers differ by less than 1 / FINE.
FINE = 2.0**24
_HASHED = 4  # columns of a hash, 16 bits each
_DIGEST = 16  # bytes of a row's key
_TABLE = 2  # axes
_BLOCK = 4096  # rows
_REGISTERED: dict[str, Lookup] = {}


class Lookup:
    """Rows of the user, and the numbers by which they are found.

    >>> import torch
    >>> found = Lookup(["a cat", "a dog", "a cat sat"])
    >>> found.x.shape, found(torch.from_numpy(found.x[[2, 0]]))
    ((3, 3), ['a cat sat', 'a cat'])

    Attributes:
        rows: a DataFrame of pandas or polars, an array, ``Sparse``, or a list of any objects.
        x: (n, d) float32 in [0, 1].
        content: digest of the rows, their type and the names and types of their columns.
        prints: (n,) digests of rows.
        features: how many columns of x, from the first on, describe rows; the others are hashes.
        targets: (n,) float64, the numbers that a regression is to answer; None for classes.
    """

    def __init__(
        self, rows: Any, *, opaque: bool = False, targets: np.ndarray | None = None
    ) -> None:
        """Take rows and targets; if ``opaque``, a row is itself, although another may be equal."""
        self.rows, self.targets = rows, targets
        contents = [_digest(_content(row)) for row in _each(rows)]
        if opaque:
            contents = [_digest((i, one)) for i, one in enumerate(contents)]
        made = np.zeros((len(rows), 0), np.float32) if opaque else encoded(rows)
        self.prints = [one.hex() for one in contents]
        if targets is not None:  # rows that differ in these alone are different rows
            contents = [_digest(of) for of in zip(contents, targets.tolist(), strict=True)]
        columns = [(name, str(rows[name].dtype)) for name in rows.columns] if library(rows) else []
        if isinstance(rows, Sparse):
            columns = [("columns", str(rows.matrix.shape[1]))]
        self.content = _digest((type(rows).__name__, columns, contents)).hex()
        self.features = made.shape[1]
        self.x = np.concatenate([made, _hashes(made, contents)], 1)
        self._places = {key: i for i, key in reversed(list(enumerate(keys(self.x))))}

    def __call__(self, x: Tensor) -> Any:
        """Return the rows whose numbers are x (n, d), in this order, as they were given.

        Raises:
            BadInputError: if one is none of the rows.
        """
        return taken(self.rows, self._found(x))

    def truth(self, x: Tensor) -> np.ndarray:
        """Return the targets (n,) of rows whose numbers are x (n, d)."""
        assert self.targets is not None  # noqa: S101 - of a regression
        return np.asarray(self.targets[self._found(x)])

    def _found(self, x: Tensor) -> list[int]:
        places = [self._places.get(key, -1) for key in keys(x.detach().cpu().numpy())]
        if -1 in places:
            raise BadInputError("own-model: a changed row was asked, and only rows as you gave "
                                "them can be: leave out attacks that change rows")  # fmt: skip
        return places


def inputs(x: Any, source: str) -> Any:
    """Return x as a DataFrame, a list of objects, an array, or rows of a sparse matrix."""
    x = as_sparse(x, source)
    if library(x):
        refuse_twins(x.columns, source)
    if library(x) or isinstance(x, Sparse):
        return x
    if hasattr(x, "to_list"):  # a column
        x = x.to_list()
    if not isinstance(x, (list, tuple)):
        x = np.asarray(x)
        if x.ndim == 0:
            raise BadInputError(f"{source}: x is a {type(x.item()).__name__}: give an array, a "
                                "DataFrame or a list")  # fmt: skip
        return x if x.dtype.kind in "biuf" else as_rows(x)
    if len(x) and isinstance(x[0], (list, tuple, np.ndarray, numbers.Number)):
        try:
            made = np.asarray(x)
        except ValueError:  # of different lengths
            return list(x)
        return made if made.dtype.kind in "biuf" else list(x)
    return list(x)


def as_sparse(x: Any, told: str) -> Any:
    """Return ``Sparse`` for a sparse matrix of scipy, and anything else as it is.

    Raises:
        BadInputError: if a sparse matrix is no table of numbers.
    """
    if not type(x).__module__.startswith("scipy.sparse"):
        return x
    if x.ndim != _TABLE or x.dtype.kind not in "biuf" or not x.shape[1]:
        raise BadInputError(f"{told}: x is a sparse array of {x.dtype} with shape {x.shape}: give "
                            "a table (n, columns) of numbers")  # fmt: skip
    return Sparse(x)


class Sparse:
    """Rows of a sparse matrix of scipy; each is (columns, values) of what is not zero.

    >>> import scipy.sparse
    >>> rows = Sparse(scipy.sparse.coo_array([[0.0, 2.0], [3.0, 0.0]]))
    >>> [(columns.tolist(), values.tolist()) for columns, values in rows]
    [([1], [2.0]), ([0], [3.0])]

    Attributes:
        matrix: (n, d), in rows, with sorted columns and without zeros: what a model gets.
    """

    def __init__(self, matrix: Any) -> None:
        """Take a sparse matrix or array (n, d) of any format."""
        self.matrix = matrix.tocsr(copy=True)
        self.matrix.sum_duplicates()
        self.matrix.eliminate_zeros()

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.matrix.shape[0])

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield columns and values of each row."""
        held = self.matrix
        for begin, end in itertools.pairwise(held.indptr):
            yield held.indices[begin:end], held.data[begin:end]

    def encoded(self) -> np.ndarray:
        """Return (n, at most ``WORDS``) float32 in [0, 1]: sums of columns, each scaled."""
        columns = self.matrix.indices % WORDS
        made = np.zeros((len(self), min(WORDS, self.matrix.shape[1])))
        np.add.at(made, (np.arange(len(self)).repeat(np.diff(self.matrix.indptr)), columns),
                  self.matrix.data)  # fmt: skip
        return np.concatenate([_column(column) for column in made.T], 1).astype(np.float32)


def keys(x: np.ndarray) -> list[bytes]:
    """Return a key of the content of each row (n, ...) float32."""
    flat = np.ascontiguousarray(x.reshape(len(x), -1), np.float32) + np.float32(0)  # -0 becomes 0
    return [hashlib.blake2b(row, digest_size=_DIGEST).digest() for row in flat]


def cells(x: np.ndarray) -> list[bytes]:
    """Return a key of each row (n, d) in [0, 1]: equal for rows that the harness takes for one."""
    made: list[bytes] = []
    for start in range(0, len(x), _BLOCK):
        block = np.rint(x[start : start + _BLOCK].astype(np.float64) * FINE).astype(np.int64)
        made += [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST).digest() for row in block]
    return made


def in_units(unit: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return float32 numbers in [0, 1] in units of which 0 is low and 1 is high, as float32.

    What is whole up to the rounding of float32 is whole.

    >>> in_units(np.float32([0.1, 0.35]), 0.0, 10.0)
    array([1. , 3.5], dtype=float32)
    """
    unit, wide = np.asarray(unit, np.float32), np.asarray(high) - np.asarray(low)
    values = unit.astype(np.float64) * wide + low
    whole = np.round(values)
    exact = np.where(np.abs(values - whole) <= wide * np.spacing(unit), whole, values)
    return np.asarray(exact, np.float32)


# ---- where rows are found -----------------------------------------------------------------------


def register(rows: Lookup, files: Sequence[str | Path], reading: Reading) -> str:
    """Return the name under which ``looked_up`` finds rows.

    Args:
        rows: of the audit.
        files: that hold them, one after the other, so that another process can read them; none if
            they are in memory.
        reading: how they are read.
    """
    if files:
        held = {str(Path(one).absolute()): file_digest(Path(one)) for one in files}
        name = json.dumps({"files": held, "reading": reading._asdict(),
                           "regression": rows.targets is not None})  # fmt: skip
    else:
        name = f"given:{rows.content}"
    _REGISTERED[name] = rows
    return name


def looked_up(name: str) -> Lookup:
    """Return the rows of that name, which a worker reads from their files.

    Raises:
        BadInputError: if they are in another process, or their files changed.
    """
    return _REGISTERED[name] if name in _REGISTERED else _read(name)


@functools.lru_cache(maxsize=1)
def _read(name: str) -> Lookup:
    if name.startswith("given:"):
        raise BadInputError("own-model: rows in memory were given to another process: give the "
                            "paths of files, or leave out jobs")  # fmt: skip
    told = json.loads(name)
    for file, digest in told["files"].items():
        if file_digest(Path(file)) != digest:
            raise BadInputError(f"{plain(file)}: it changed since the run began: run the command "
                                "again")  # fmt: skip
    reading = Reading(**told["reading"])
    parts = {file: read(Path(file), reading, file) for file in told["files"]}
    rows = joined({file: as_rows(inputs(x, file)) for file, (x, _) in parts.items()})
    if not told["regression"]:
        return Lookup(rows)
    targets = [np.asarray(y, np.float64).reshape(-1) for _, y in parts.values()]
    return Lookup(rows, targets=np.concatenate(targets))


# ---- the user's rows ----------------------------------------------------------------------------


def library(rows: Any) -> str:
    """Return ``pandas`` or ``polars`` for a DataFrame of these, otherwise "".

    >>> library([1, 2])
    ''
    """
    kind = type(rows)
    root = kind.__module__.split(".")[0]
    return root if kind.__name__ == "DataFrame" and root in ("pandas", "polars") else ""


def taken(rows: Any, places: Sequence[int]) -> Any:
    """Return rows at these places, as the object that held them."""
    if library(rows) == "pandas":
        return rows.iloc[list(places)].reset_index(drop=True)
    if library(rows) == "polars" or isinstance(rows, np.ndarray):
        return rows[list(places)]
    if isinstance(rows, Sparse):
        return rows.matrix[list(places)]
    return [rows[i] for i in places]


def joined(parts: dict[str, Any]) -> Any:
    """Return the rows of several sources as one object, source after source.

    Raises:
        BadInputError: if they are of different kinds, or their columns differ.
    """
    first = next(iter(parts.values()))
    for source, part in parts.items():
        if type(part) is not type(first):
            raise BadInputError(f"{source}: its rows are a {_kind_of(part)}, those of the members "
                                f"a {_kind_of(first)}: give rows of one kind")  # fmt: skip
    if isinstance(first, np.ndarray):
        return np.concatenate(list(parts.values()))
    if isinstance(first, Sparse):
        return _stacked(parts)
    if library(first):
        return _joined_tables(parts)
    return [row for part in parts.values() for row in part]


def _kind_of(rows: Any) -> str:
    of = library(rows)
    return f"DataFrame of {of}" if of else plain(type(rows).__name__)


def _joined_tables(parts: dict[str, Any]) -> Any:
    first, *others = parts.values()
    names = list(first.columns)
    for source, part in parts.items():
        lacking = [name for name in names if name not in part.columns]
        other = [name for name in part.columns if name not in names]
        if lacking or other:
            told = f"lacks {lacking[0]}" if lacking else f"has {other[0]}, which members lack"
            raise BadInputError(f"{source}: it {plain(told)}: give the same columns in all files")
        for name in names:
            if problem := _differ(first[name], part[name]):
                raise BadInputError(f"{source}: column {plain(name)} {problem}")
    parts_alike = [first, *(part[names] for part in others)]
    if library(first) == "polars":
        import polars as pl

        return pl.concat(parts_alike, how="vertical_relaxed")
    import pandas as pd

    return pd.concat(parts_alike, ignore_index=True)


def _stacked(parts: dict[str, Sparse]) -> Sparse:
    from scipy.sparse import vstack

    columns = {source: part.matrix.shape[1] for source, part in parts.items()}
    first = next(iter(columns.values()))
    for source, count in columns.items():
        if count != first:
            raise BadInputError(f"{source}: it has {count} columns, and the members {first}: give "
                                "the same columns in all")  # fmt: skip
    return Sparse(vstack([part.matrix for part in parts.values()]))


def _differ(one: Any, other: Any) -> str:
    """Return why two columns cannot be joined without a change of type, or "" if they can."""
    if one.dtype == other.dtype:
        return ""
    types = str(one.dtype), str(other.dtype)
    if "Null" in types:  # of polars: a column without cells
        return ""
    kinds = [_kind(name) for name in types]
    if {*kinds} == {"number", "text"}:  # a csv file says nothing of a column without cells
        empty = one if kinds[0] == "number" else other
        kinds = ["text", "text"] if all(map(_missing, empty)) else kinds
    if kinds[0] != kinds[1]:
        return (f"is {plain(types[1])}, and {plain(types[0])} in the members: give it the same "
                "type in all files")  # fmt: skip
    if kinds[0] == "categor":
        return "has other categories than in the members: give it the same categories in all files"
    return ""


def _kind(dtype: str) -> str:
    """Return what joins without loss: numbers with numbers, texts with texts."""
    low = dtype.lower()
    if low.startswith(("int", "uint", "float", "bool", "decimal")):
        return "number"
    return "text" if low.startswith(("str", "object")) else low[:7]


# ---- rows as numbers ----------------------------------------------------------------------------


def encoded(rows: Any) -> np.ndarray:
    """Return what describes the rows, (n, d) float32 in [0, 1]; d is 0 if nothing does."""
    if isinstance(rows, Sparse):
        return rows.encoded()
    if library(rows):
        columns = [rows[name] for name in rows.columns]
    elif isinstance(rows, np.ndarray) and rows.ndim >= _TABLE:
        columns = list(rows.reshape(len(rows), -1).T)
    else:
        columns = [_one_axis(rows)]
    made = [_column(column) for column in columns]
    return np.concatenate([np.zeros((len(rows), 0), np.float32), *made], 1).astype(np.float32)


def _one_axis(values: Any) -> np.ndarray:
    """Return an array (n,) of objects, whatever they hold."""
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made


def _column(values: Any) -> np.ndarray:
    """Return a column as columns (n, d) in [0, 1]."""
    held = np.asarray(values)
    if held.dtype.kind in "Mm":
        held = np.where(np.isnat(held), np.nan, held.astype("<i8").astype(np.float64))
    elif held.dtype.kind not in "biuf":
        items = [None if _missing(value) else value for value in list(values)]
        known = [value for value in items if value is not None]
        if all(isinstance(value, str) for value in known):
            return _texts(items)
        if not all(isinstance(value, (numbers.Real, date)) for value in known):
            return np.zeros((len(items), 0))
        held = np.array([math.nan if value is None else _number(value) for value in items])
    held = held.astype(np.float64)
    there = np.isfinite(held)
    low = held[there].min() if there.any() else 0.0
    wide = (held[there].max() - low) if there.any() else 0.0
    unit = np.where(there, (np.where(there, held, low) - low) / (wide or 1.0), 0.0)
    return unit[:, None] if there.all() else np.stack([unit, ~there], 1)


def _missing(value: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and bool(value != value)  # noqa: PLR0124 - NaN is not


def _number(value: Any) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    return value.toordinal() * 86_400.0 if isinstance(value, date) else float(value)


def _texts(items: list[str | None]) -> np.ndarray:
    """Return texts one-hot, or as counts of hashed words; a missing one is all zeros."""
    known = sorted({text for text in items if text is not None})
    if len(known) <= ONE_HOT:
        places = {text: i for i, text in enumerate(known)}
        made = np.zeros((len(items), len(known)))
        for i, text in enumerate(items):
            if text is not None:
                made[i, places[text]] = 1
        return made
    from sklearn.feature_extraction.text import HashingVectorizer

    counter = HashingVectorizer(n_features=WORDS, alternate_sign=False)
    return np.asarray(counter.transform([text or "" for text in items]).toarray())


def _hashes(features: np.ndarray, contents: list[bytes]) -> np.ndarray:
    """Return four columns with a hash of the content of rows that features do not tell apart.

    No column if there is no such row; 0 for the others.
    """
    groups: dict[bytes, list[int]] = {}
    for i, key in enumerate(cells(features)):
        groups.setdefault(key, []).append(i)
    made = np.zeros((len(features), _HASHED), np.float32)
    for group in groups.values():
        found = [contents[i] for i in group]
        if len(set(found)) > 1 or not features.shape[1]:
            words = np.array([np.frombuffer(one[: 2 * _HASHED], "<u2") for one in found])
            made[group] = words / np.float32(2**16 - 1)
    return made if made.any() else made[:, :0]


def _each(rows: Any) -> Iterable[Any]:
    """Return the rows of a table as tuples of cells, others as they are."""
    if library(rows) == "pandas":
        rows = rows.itertuples(index=False, name=None)
    if library(rows) == "polars":
        rows = rows.iter_rows()
    found: Iterable[Any] = rows
    return found


def _digest(content: Any) -> bytes:
    return hashlib.blake2b(repr(content).encode(), digest_size=_DIGEST).digest()


def _content(row: Any) -> Any:
    """Return what ``repr`` tells all of."""
    if isinstance(row, (tuple, list)):
        return [_content(cell) for cell in row]
    if isinstance(row, np.ndarray) and row.dtype.kind != "O":
        return row.dtype.str, row.shape, row.tobytes()
    if _missing(row):
        return None
    if isinstance(row, (str, bytes, numbers.Real, date)):
        return row.item() if isinstance(row, np.generic) else row
    import joblib

    try:
        return joblib.hash(row)
    except Exception as error:
        raise BadInputError(f"a row is a {plain(type(row).__name__)} that cannot be compared "
                            f"with others ({one_line(error)}): give objects that can be pickled, "
                            "such as arrays, texts or paths") from error  # fmt: skip
