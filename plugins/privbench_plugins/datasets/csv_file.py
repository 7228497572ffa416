r"""Your own table, in a text file with one row per line (``.csv``).

Two lines of a suite, or a few options, suffice:

    attacks: [lira]
    datasets: [{csv: {path: mine.csv, class_column: income, sensitive: [sex]}}]

    privbench run --attack lira --target supervised --dataset csv --set csv.path=mine.csv \
        --set csv.class_column=income

The first line names the columns; text is UTF-8. One column is the class, others may be sensitive
attributes; both are numbered in sorted order. All other columns, and the sensitive ones too, are
encoded as columns of x:

- a column of numbers is scaled so that its smallest value is 0 and its largest 1, and rounded to
  multiples of 2**-20 (a constant column is 0);
- a column of texts, or one named in ``categorical``, is one-hot, its values in sorted order; an
  empty cell is a value of its own. ``Card.groups`` says which columns belong together.

A table without numbers is ``binary`` (uint8), another one ``real`` (float32). The smallest and the
largest value are taken from all rows, also those held out. No rows are augmented: a changed row
would be another person.

The default protocol is that of ``npz``. The key of a result holds the digest of the file, not its
name. Encoded columns of more than 64 MB are kept in the user's cache folder and memory-mapped.
"""

from __future__ import annotations

import csv
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Len

from privbench import Card, Dataset, Examples, Protocol, hookimpl
from privbench_plugins._shared.kept_rows import kept
from privbench_plugins._shared.mapped_array import LARGE, Array
from privbench_plugins._shared.messages import plain
from privbench_plugins._shared.own_data import (
    MOST_VALUES,
    OwnDataset,
    count_problem,
    default_protocol,
    numbered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

#: Units per 1.0 of a scaled number.
FINE = 2**20
#: Rows that are encoded at a time.
BLOCK = 4_096


@dataclass(frozen=True)
class Csv(OwnDataset):
    """Loads your own table from a csv file.

    Attributes:
        class_column: column with the class.
        sensitive: columns with sensitive attributes; the first is the default of attacks.
        categorical: columns of numbers that are one-hot, like texts.
        drop: columns that are left out, such as names and numbers of persons.
        separator: between two columns.
    """

    name: ClassVar[str] = "csv"

    class_column: str = "label"
    sensitive: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    separator: Annotated[str, Len(1, 1)] = ","

    @property
    def protocols(self) -> Mapping[str, Protocol]:  # type: ignore[override]
        """The default protocol, from the number of rows."""
        return {"default": default_protocol(len(self._facts().y) if self.path else None)}

    def card(self, root: Path | None) -> Card:
        """Describe the file.

        Raises:
            BadInputError: if it cannot be used; says why and what to do.
        """
        del root
        facts = self._facts()
        real = any(column.values is None for column in facts.columns)
        return Card(
            name=self.name, kind="real" if real else "binary", shape=(facts.width,),
            classes=facts.classes, scale=FINE if real else 1,
            attributes={name: count for name, (_, count) in facts.attributes.items()},
            sensitive=self.sensitive[:1], sources={"all": len(facts.y)}, groups=facts.groups,
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Encode the file: x (n, columns) uint8 or float32, mapped if it is large."""
        card, facts = self.card(root), self._facts()
        dtype = np.dtype(np.float32 if card.kind == "real" else np.uint8)

        def rows() -> Iterator[np.ndarray]:
            return self._while_unchanged(_encoded(self, facts, dtype))

        if card.rows * facts.width * dtype.itemsize < LARGE:
            x = Array(np.concatenate(list(rows())))
        else:
            x = kept(self.name, [self.digest], (card.rows, facts.width), dtype, rows)
        return Examples.of(
            x.tensor(), torch.from_numpy(facts.y.copy()),
            {name: torch.from_numpy(codes.copy()) for name, (codes, _) in facts.attributes.items()},
            scale=card.scale, mapped=x.mapped,
        )  # fmt: skip

    def _facts(self) -> _Facts:
        return _described(self, self.location, self.sha256)


class _Column(NamedTuple):
    """A column of the file that becomes columns of x.

    ``values`` are the texts of a one-hot column; None for numbers, which lie in low to high.
    """

    name: str
    at: int
    values: tuple[str, ...] | None
    low: float = 0.0
    high: float = 0.0

    @property
    def width(self) -> int:
        return 1 if self.values is None else len(self.values)


class _Facts(NamedTuple):
    columns: tuple[_Column, ...]
    y: np.ndarray
    classes: int
    attributes: dict[str, tuple[np.ndarray, int]]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        stops = np.cumsum([column.width for column in self.columns]).tolist()
        return tuple(
            (stop - column.width, stop)
            for column, stop in zip(self.columns, stops, strict=True)
            if column.values is not None
        )


class _Seen:
    """What is in a column, while its rows are read."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.low, self.high = math.inf, -math.inf
        self.numbers = 0
        self.text = ""  # the first cell that is not a number
        self.line = 0  # where it is

    def add(self, cells: list[str], lines: list[int]) -> None:
        if len(self.texts) <= MOST_VALUES:
            self.texts.update(cells)
        try:
            found = np.array(cells, dtype=str).astype(np.float64)
            good = np.abs(found) < _LARGEST
        except ValueError:
            good = np.array([_is_number(cell) for cell in cells])
            found = np.array([float(c) for c, ok in zip(cells, good, strict=True) if ok] or [0.0])
        else:
            found = found[good]
        if not good.all() and not self.line:
            first = int((~good).argmax())
            self.text, self.line = cells[first], lines[first]
        if good.any():
            self.numbers += int(good.sum())
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())


#: Numbers of this size and more are none: their differences may not be finite.
_LARGEST = 1e300


def _is_number(cell: str) -> bool:
    try:
        return abs(float(cell)) < _LARGEST
    except ValueError:
        return False


@functools.lru_cache(maxsize=16)
def _described(data: Csv, file: Path, sha256: str) -> _Facts:
    """Return the columns, classes and attributes; another content has another digest."""
    del file, sha256
    names = _header(data)
    kept_texts: dict[str, list[str]] = {n: [] for n in (data.class_column, *data.sensitive)}
    inputs = [n for n in names if n not in (data.class_column, *data.drop)]
    seen = {name: _Seen() for name in inputs}
    rows = 0
    same: dict[str, str] = {}
    for cells, lines in _blocks(data, len(names)):
        columns = dict(zip(names, zip(*cells, strict=True), strict=True))
        for name in inputs:
            seen[name].add(list(columns[name]), lines)
        for name, texts in kept_texts.items():
            texts += [same.setdefault(text, text) for text in columns[name]]
        if "" in columns[data.class_column]:
            line = lines[columns[data.class_column].index("")]
            raise data.wrong(f"line {line} has no {plain(data.class_column)}: fill it in, or drop "
                             "such rows")  # fmt: skip
        rows += len(cells)
    if not inputs:
        raise data.wrong("it has no columns besides the class: give some, or drop fewer")
    told = plain(data.path)
    y, known = numbered(kept_texts.pop(data.class_column), f"{data.class_column} of {told}")
    if problem := count_problem(y, len(known)):
        raise data.wrong(problem)
    attributes = {n: _attribute(data, n, texts) for n, texts in kept_texts.items()}
    columns_of_x = tuple(
        _column(data, name, names.index(name), seen[name], rows) for name in inputs
    )
    return _Facts(columns_of_x, y, len(known), attributes)


def _attribute(data: Csv, name: str, texts: list[str]) -> tuple[np.ndarray, int]:
    """Return values (n,) int64, -1 for an empty cell, and their number."""
    cells = np.array(texts, dtype=str)
    codes, held = np.full(len(cells), -1, dtype=np.int64), cells != ""
    if not held.any():
        raise data.wrong(f"column '{plain(name)}' is empty: leave it out of sensitive")
    codes[held], known = numbered(cells[held], f"{name} of {plain(data.path)}")
    if len(known) > MOST_VALUES:
        raise data.wrong(f"sensitive column '{plain(name)}' has {len(known):,} values: give "
                         f"at most {MOST_VALUES:,}, such as ranges of a number")  # fmt: skip
    return codes, len(known)


def _column(data: Csv, name: str, at: int, seen: _Seen, rows: int) -> _Column:
    """Decide how a column becomes columns of x."""
    if name not in data.categorical and seen.numbers == rows:
        return _Column(name, at, None, seen.low, seen.high)
    if name not in data.categorical and 2 * seen.numbers >= rows:
        raise data.wrong(f"column '{plain(name)}' holds numbers, but '{plain(seen.text)}' in line "
                         f"{seen.line}: fill it in, drop such rows, or name the column in "
                         "categorical")  # fmt: skip
    if len(seen.texts) > MOST_VALUES:
        raise data.wrong(f"column '{plain(name)}' has more than {MOST_VALUES:,} different texts: "
                         "name it in drop")  # fmt: skip
    return _Column(name, at, tuple(sorted(seen.texts)))


def _encoded(data: Csv, facts: _Facts, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield x, some rows at a time."""
    places = [{text: i for i, text in enumerate(c.values or ())} for c in facts.columns]
    for cells, _ in _blocks(data, None):
        x = np.zeros((len(cells), facts.width), dtype)
        start = 0
        for column, place in zip(facts.columns, places, strict=True):
            texts = [row[column.at] for row in cells]
            if column.values is None:
                width = (column.high - column.low) or 1.0
                part = (np.array(texts, dtype=str).astype(np.float64) - column.low) / width
                x[:, start] = np.round(part * FINE) / FINE
            else:
                x[np.arange(len(cells)), start + np.array([place[text] for text in texts])] = 1
            start += column.width
        yield x


def _header(data: Csv) -> list[str]:
    """Return the names of the columns, after checking those that the fields name."""
    (names, *_), _ = next(_blocks(data, None, header=True))
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise data.wrong(f"two columns are named '{plain(twice[0])}': rename one")
    asked: Sequence[str] = (data.class_column, *data.sensitive, *data.categorical, *data.drop)
    for name in asked:
        if name not in names:
            field = "class_column" if name == data.class_column else "a field"
            raise data.wrong(f"it has no column '{plain(name)}', which {field} names: choose from "
                             f"{plain(', '.join(names))}")  # fmt: skip
    return names


def _blocks(
    data: Csv, width: int | None, *, header: bool = False
) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield rows of cells with their lines, some at a time; of the header only, if asked."""
    cells: list[list[str]] = []
    lines: list[int] = []
    try:
        with data.location.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.reader(opened, delimiter=data.separator, strict=True)
            names = next(reader, [])
            if header:
                yield [[name.strip() for name in names]], [1]
                return
            for row in reader:
                if not row:
                    continue
                if width is not None and len(row) != width:
                    raise data.wrong(f"line {reader.line_num} has {len(row)} cells, the header "
                                     f"{width}: make them agree, or set separator")  # fmt: skip
                cells.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
                if len(cells) == BLOCK:
                    yield cells, lines
                    cells, lines = [], []
    except (UnicodeDecodeError, csv.Error) as error:
        raise data.wrong(f"it is not a csv file in UTF-8 ({' '.join(str(error).split())}): save it "
                         "as one") from None  # fmt: skip
    if cells:
        yield cells, lines


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Csv()]
