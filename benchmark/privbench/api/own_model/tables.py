"""Rows of an audit as people have them: DataFrames, table files, lists of texts or any objects."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.toolbox.looked_up import Lookup, inputs, joined, library, register
from privbench.toolbox.row_files import TABLES, Reading, as_rows, read, split

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAIR, _TABLE, _MOST_AXES = 2, 2, 4
_LARGEST = 1e30  # of what a regression answers: its residual is a float32
#: Whole numbers from here on are targets of a regression, not classes; and as many classes at most.
MOST_CLASSES = 1_000
_NUMBER = (numbers.Real, Decimal)
#: How ``output`` may be given for a regression.
REGRESSION = ("auto", "values")


def is_file(given: Any, reading: Reading) -> bool:
    """Return whether something is the path of a file that is read as a table or by a loader."""
    return isinstance(given, (str, Path)) and (
        bool(reading.loader) or Path(given).suffix.lower() in TABLES
    )


def held(given: Any, source: str, reading: Reading) -> dict[str, Any] | None:
    """Return x and y, and other arrays, of what is no ``.npz`` file; None for anything else.

    x is an array, a DataFrame, a list or ``Sparse``.
    """
    if is_file(given, reading):
        x, y = read(Path(given), reading, f"{source} {shown(str(given), 200)}")
        given = {"x": x, "y": y}
    elif library(given):
        x, y = split(given, reading, source)
        given = {"x": x, "y": y}
    elif isinstance(given, (tuple, list)) and len(given) == _PAIR:
        given = {"x": given[0], "y": given[1]}
    elif isinstance(given, Mapping) and reading.label != "y":
        if reading.label not in given:
            raise BadInputError(f"{source}: it has no array {shown(reading.label)}: name one of "
                                f"{shown(', '.join(map(str, given)))} as label")  # fmt: skip
        given = {**given, "y": given[reading.label]}
        del given[reading.label]
    if not isinstance(given, Mapping):
        return None
    made = {str(name): np.asarray(array) for name, array in given.items() if name != "x"}
    if "x" in given:
        made["x"] = inputs(given["x"], source)
    if reading.column and "x" in given and library(made["x"]):
        raise BadInputError(f"{source}: a column is named, and x is a table: give x as a list")
    return made


def is_looked_up(x: Any) -> bool:
    """Return whether x is not an array of finite numbers, so the model gets rows as they are."""
    if not isinstance(x, np.ndarray):
        return True
    if x.dtype.kind == "f" and x.ndim in range(_TABLE, _MOST_AXES + 1):
        return not np.isfinite(x).all()
    return x.dtype.kind in "OUSMm" and x.ndim == _TABLE


def lookup_of(
    parts: Mapping[str, Any], given: Mapping[str, Any], reading: Reading,
    targets: NDArray[np.float64] | None,
) -> tuple[Lookup, str]:  # fmt: skip
    """Return all rows, source after source, and the name under which a target finds them."""
    rows = Lookup(joined({source: as_rows(x) for source, x in parts.items()}), targets=targets)
    files = list(given.values()) if all(_readable(one, reading) for one in given.values()) else []
    return rows, register(rows, files, reading)


def _readable(given: Any, reading: Reading) -> bool:
    return is_file(given, reading) or (
        isinstance(given, (str, Path)) and Path(given).suffix == ".npz"
    )


def label_values(y: NDArray[Any], n: int, source: str) -> NDArray[Any]:
    """Return classes (n,), whole numbers or texts.

    Raises:
        BadInputError: for targets of a regression, several labels for a row, and missing ones.
    """
    y = _one_each(y, n, source)
    if y.dtype.kind == "U":
        return y
    if (parts := y.astype(np.float64) % 1).any():
        raise BadInputError(f"{source}: y holds numbers that are not classes, such as "
                            f"{float(y[parts.argmax()]):g}: give classes, or output values if the "
                            "model is a regression")  # fmt: skip
    return y.astype(np.int64)


def target_values(y: NDArray[Any], n: int, source: str) -> NDArray[np.float64]:
    """Return the numbers (n,) that a regression is to answer.

    Raises:
        BadInputError: for texts, several numbers for a row, and missing ones.
    """
    y = _one_each(y, n, source)
    if y.dtype.kind == "U":
        raise BadInputError(f"{source}: y holds texts such as {shown(y[0])}, and a regression "
                            "answers numbers: make them numbers, or leave out output "
                            "values")  # fmt: skip
    y = y.astype(np.float64)
    if (largest := np.abs(y).max()) > _LARGEST:
        row = int(np.abs(y).argmax())
        raise BadInputError(f"{source}: y is {largest:g} in row {row}, and at most {_LARGEST:g} "
                            "can be audited: divide y, and what the model answers, by one "
                            "number")  # fmt: skip
    return y


def is_real(y: NDArray[Any]) -> bool:
    """Return whether y (n,) holds numbers that cannot be classes.

    >>> is_real(np.array([0.0, 1.0])), is_real(np.array([0.5, 1.0])), is_real(np.array([99_000]))
    (False, True, True)
    """
    if y.dtype.kind == "O" and all(isinstance(one, _NUMBER) for one in y.flat):
        y = y.astype(np.float64)
    if y.dtype.kind not in "buif":
        return False
    values = y[np.isfinite(y)].astype(np.float64)
    return bool((values != np.round(values)).any() or (np.abs(values) >= MOST_CLASSES).any())


def _one_each(y: NDArray[Any], n: int, source: str) -> NDArray[Any]:
    """Return y with one number or text for each row, (n,)."""
    if y.ndim == _TABLE and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == _TABLE and len(y) == n and _is_one_hot(y):
        raise BadInputError(f"{source}: y has {y.shape[1]} columns, of which one is 1 in each row: "
                            "give the class of each row, y.argmax(1)")  # fmt: skip
    if y.ndim == _TABLE and len(y) == n:
        raise BadInputError(f"{source}: y has {y.shape[1]} columns, and multi-label targets are "
                            "not supported: give one class or number for each row, or audit one "
                            "label at a time")  # fmt: skip
    if y.shape != (n,):
        raise BadInputError(f"{source}: y has shape {y.shape}, and x {n} rows: give one class or "
                            "number for each row")  # fmt: skip
    if y.dtype.kind == "O":
        y = _typed(y, source)
    if y.dtype.kind not in "buifU":
        raise BadInputError(f"{source}: y holds {y.dtype}: give numbers, or texts as "
                            "classes")  # fmt: skip
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        row = int((~np.isfinite(y)).argmax())
        raise BadInputError(f"{source}: y is missing or infinite in row {row}: fill it in, or "
                            "drop such rows")  # fmt: skip
    return y


def _is_one_hot(y: NDArray[Any]) -> bool:
    numeric = y.dtype.kind in "buif"
    return numeric and bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())


def _typed(y: NDArray[Any], source: str) -> NDArray[Any]:
    """Return objects as numbers or texts."""
    texts = [isinstance(one, str) for one in y]
    if all(texts):
        return y.astype(str)
    bad = next((i for i, one in enumerate(y) if not isinstance(one, _NUMBER)), None)
    if any(texts) or bad is not None:
        row = texts.index(False) if any(texts) else bad
        raise BadInputError(f"{source}: y holds {shown(y[row])} in row {row}, unlike others: give "
                            "texts, or numbers, in all rows")  # fmt: skip
    return y.astype(np.float64)


def named_in(labels: NDArray[Any], known: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return texts (n,) as the classes of a model, which may be numbers; None if one is none.

    >>> named_in(np.array(["2", "10"]), np.array([2.0, 10.0]))
    array([ 2., 10.])
    """
    if known is None:
        return None
    try:
        same = labels if known.dtype.kind == "U" else labels.astype(np.float64)
    except ValueError:
        return None
    return same if np.isin(same, known).all() else None


def numbered(labels: NDArray[Any], known: NDArray[Any] | None) -> NDArray[np.int64]:
    """Return classes as numbers from 0.

    Args:
        labels: (n,) whole numbers or texts.
        known: the model's classes in its own order, if it names them; otherwise texts are numbered
            in sorted order, and numbers are the model's.

    Raises:
        BadInputError: if one is not known, or negative.
    """
    texts = labels.dtype.kind == "U"
    if texts and (same := named_in(labels, known)) is not None:
        labels, texts = same, known is not None and known.dtype.kind == "U"
    if known is None or (known.dtype.kind == "U") != texts:
        if texts:
            return np.unique(labels, return_inverse=True)[1].astype(np.int64)
        if labels.min() < 0:
            raise BadInputError("y must hold classes from 0, or texts: number them as the model "
                                "does, or name output values if it is a regression")  # fmt: skip
        return labels.astype(np.int64)
    found = labels[:, None] == known
    if not found.any(1).all():
        other = shown(labels[~found.any(1)][0].item())
        raise BadInputError(f"y holds {other}, and the model knows "
                            f"{shown(', '.join(map(str, known)), 200)}: give its classes"
                            )  # fmt: skip
    return np.asarray(found.argmax(1), np.int64)
