"""Rows in files: csv, parquet and JSON lines as tables of pandas, others by the user's code."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privbench.ground.errors import BadInputError, nearest
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.npz_size import beyond

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Endings of files that are read as tables.
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
_INSTALL = "pip install 'privbench[tables]'"
#: Names of columns that a message lists, from the first and from the last on.
_FIRST, _LAST = 12, 4
#: What separates columns.
_MARKS = {".csv": "commas", ".tsv": "tabs"}
#: A number, as pandas writes it as a name: the second column of that name ends in ``.1``.
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?(\.\d+)?")


class Reading(NamedTuple):
    """How files of rows are read.

    Attributes:
        label: column with the class.
        column: the only column that the model gets, as a list; "" for all, as a table.
        loader: ``module:function`` of a function from a path to rows and their classes; "" for
            tables.
    """

    label: str = "y"
    column: str = ""
    loader: str = ""


def read(file: Path, reading: Reading, told: str) -> tuple[Any, Any]:
    """Return the rows of a file, a table of pandas or what the loader yields, and their classes.

    Args:
        file: that holds them.
        reading: how it is read.
        told: its name for messages.

    Raises:
        BadInputError: if it cannot be read; one sentence that says what to do.
    """
    if not file.is_file():  # a device may never end, and a pipe may never begin
        there = "is not a regular file" if file.exists() else "cannot be read (no such file)"
        raise BadInputError(f"{told} {there}: name a file of rows")
    if file.suffix == ".npz" and not reading.loader:
        with np.load(file, allow_pickle=False) as arrays:  # a worker: it was checked before
            return as_rows(arrays["x"]), arrays.get(reading.label)
    if reading.loader:
        return _loaded(file, reading.loader, told)
    return split(_table(file, told), reading, told, file=file)


def as_rows(x: Any) -> Any:
    """Return what a model gets of an array: float32, a list if there is one axis of others."""
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.kind in "biuf":
        return x.astype(np.float32)
    return x.tolist() if x.ndim == 1 else x


def refuse_twins(names: Iterable[Any], told: str) -> None:
    """Refuse two columns of one name."""
    counts = Counter(map(str, names))
    if twin := next((name for name, count in counts.items() if count > 1), ""):
        raise BadInputError(f"{told}: {counts[twin]} columns are called {plain(twin)}: rename one")


def split(table: Any, reading: Reading, told: str, *, file: Path | None = None) -> tuple[Any, Any]:
    """Return a DataFrame without its class, or its one column as a list, and the classes."""
    names = list(table.columns)
    if not names:
        raise BadInputError(f"{told} has no columns: give the model's inputs and the class")
    refuse_twins(names, told)
    for name, what in ((reading.label, "label"), (reading.column, "column")):
        if name and name not in names:
            misread = _misread(names, file.suffix.lower()) if file else ""
            advice = misread or f"name one of {_listed(name, names)} as {what}"
            raise BadInputError(f"{told} has no column {plain(name)}: {advice}")
    y = table[reading.label].to_numpy()
    if reading.column:
        return table[reading.column].to_list(), y
    kept = [name for name in names if name != reading.label]
    if not kept:
        raise BadInputError(f"{told} has no column besides the class: give the model's inputs")
    return table[kept], y


def _listed(wanted: str, names: list[Any]) -> str:
    """Return names of columns for a message, those that were probably meant first."""
    if near := nearest(str(wanted), [str(name) for name in names]):
        names = [near, *(name for name in names if str(name) != near)]
    if len(names) > _FIRST + _LAST:
        names = [*names[:_FIRST], "…", *names[-_LAST:]]
    return ", ".join(plain(name)[:40] for name in names)


def _misread(names: list[str], suffix: str) -> str:
    """Return what is wrong with a file of text whose names of columns are none; "" if they are.

    >>> _misread(["a;b"], ".csv"), _misread(["a", "b"], ".csv"), _misread(["0", "1"], ".csv")
    ("its columns are separated by ';': write it with commas", '', '')
    >>> _misread(["5.1", "3.5", "5.1.1"], ".csv")
    'its first line holds numbers: write names of the columns above it'
    """
    if suffix not in _MARKS:
        return ""
    others = ";|\t" if suffix == ".csv" else ";|,"
    marks = [mark for mark in others if "".join(names).count(mark) >= len(names)]
    if marks:
        return f"its columns are separated by {marks[0]!r}: write it with {_MARKS[suffix]}"
    counted = names == [str(i) for i in range(len(names))]
    if not counted and all(_NUMBER.fullmatch(name) for name in names):
        return "its first line holds numbers: write names of the columns above it"
    return ""


def _table(file: Path, told: str) -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise BadInputError(f"{told} is read by pandas, which is not installed: {_INSTALL}, or "
                            "give a .npz file") from None  # fmt: skip
    try:
        if problem := beyond(_bytes(file)):
            raise BadInputError(f"{told} {problem}")  # noqa: TRY301
        suffix = file.suffix.lower()
        if suffix == ".parquet":
            return pd.read_parquet(file)
        if suffix in (".jsonl", ".ndjson"):
            lines = file.read_text(encoding="utf-8").splitlines()
            return pd.DataFrame.from_records([json.loads(line) for line in lines if line.strip()])
        return pd.read_csv(file, sep="\t" if suffix == ".tsv" else ",", low_memory=False)
    except ImportError:
        raise BadInputError(f"{told} is read by pyarrow, which is not installed: {_INSTALL}, or "
                            "give a csv file") from None  # fmt: skip
    except BadInputError:
        raise
    except UnicodeDecodeError as error:
        raise BadInputError(f"{told} is not written in UTF-8: write it again so") from error
    except Exception as error:
        raise BadInputError(f"{told} cannot be read as a {file.suffix[1:]} file "
                            f"({one_line(error)}): write it again") from error  # fmt: skip


def _bytes(file: Path) -> int:
    """Return the least bytes that a table needs in memory.

    A few bytes of parquet may say that a value comes a billion times.
    """
    size = file.stat().st_size
    if file.suffix.lower() != ".parquet":
        return size
    held: Any = import_module("pyarrow.parquet").read_metadata(file)
    return int(max(size, 8 * held.num_rows * held.num_columns))


def _loaded(file: Path, loader: str, told: str) -> tuple[Any, Any]:
    from privbench.toolbox.opened_model import loader as loader_of

    function = loader_of(loader)
    try:
        made = function(str(file))
    except Exception as error:
        raise BadInputError(f"rows: {plain(loader)} failed on {told} ({one_line(error)}): correct "
                            "it") from error  # fmt: skip
    if not isinstance(made, tuple) or len(made) != 2:  # noqa: PLR2004
        raise BadInputError(f"rows: {plain(loader)} returned a {plain(type(made).__name__)}: "
                            "return rows and their classes, (rows, y)")  # fmt: skip
    return made
