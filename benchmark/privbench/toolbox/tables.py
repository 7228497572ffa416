"""Tables in text files: columns become numbers, whatever they hold.

A column of numbers is scaled so that its smallest value is 0 and its largest 1, and rounded to
multiples of 2**-20 (a constant column is 0). A column of texts, or one named as categorical, is
one-hot, its values in sorted order; an empty cell is a value of its own. The class and sensitive
attributes are numbered in sorted order. The smallest and the largest value are taken from all rows,
also those held out.
"""

from __future__ import annotations

import csv
import functools
import math
import multiprocessing
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from privbench.ground.errors import BadInputError
from privbench.ground.store.content import file_digest
from privbench.ground.text import shown
from privbench.measure.data.examples import Card, Examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Units per 1.0 of a scaled number.
FINE = 2**20
#: Rows that are encoded at a time.
BLOCK = 4_096
#: Fewest rows: 20 members and 20 nonmembers, and as many for the adversary.
FEWEST = 115
#: Values of an attribute, texts of a column, classes.
MOST_VALUES = 1_000


@dataclass(frozen=True)
class CsvFile:
    r"""A table in a text file (UTF-8) with one row per line; the first line names the columns.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "people.csv")
    ...     lines = [f"{20 + i % 50},{i % 2},{i % 3 % 2}\n" for i in range(200)]
    ...     _ = file.write_text("age,rich,sex\n" + "".join(lines))
    ...     card = CsvFile(file, class_column="rich", sensitive=("sex",)).card("people")
    >>> card.name, card.classes, card.attributes
    ('people', 2, {'sex': 2})

    Attributes:
        location: of the file.
        class_column: column with the class.
        sensitive: columns with sensitive attributes; the first is the default of attacks.
        categorical: columns of numbers that are one-hot, like texts.
        drop: columns that are left out, such as names and numbers of persons.
        separator: between two columns, one character.
        called: how messages name the file; by default by its path.
        get: what to do if the file is missing: where to get it and under which licence.
    """

    location: Path
    class_column: str
    sensitive: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    separator: str = ","
    called: str = ""
    get: str = "name an existing file"

    @property
    def name(self) -> str:
        """How messages name the file."""
        return self.called or plain(self.location)

    def wrong(self, problem: str) -> BadInputError:
        """Return the error that names the file and says what is wrong with it."""
        return BadInputError(f"{self.name}: {problem}")

    def card(self, name: str, content: str = "") -> Card:
        """Describe the table as a dataset of that name; see ``facts`` for ``content``.

        Raises:
            BadInputError: if the file is missing or cannot be used; says why and what to do.
        """
        content = content or self._content()
        facts = self.facts(content)
        return Card(
            name=name, kind="real" if facts.real else "binary", shape=(facts.width,),
            classes=facts.classes, scale=FINE if facts.real else 1,
            attributes={name: count for name, (_, count) in facts.attributes.items()},
            sensitive=self.sensitive[:1], sources={"all": len(facts.y)}, groups=facts.groups,
            content=content,
        )  # fmt: skip

    def load(self) -> Examples:
        """Encode the table: x (n, columns), uint8 if no column holds numbers, else float32.

        Raises:
            BadInputError: if the file is missing or cannot be used; says why and what to do.
        """
        facts = self.facts()
        x = np.concatenate(list(encoded(self, facts)))
        return Examples.of(
            torch.from_numpy(x), torch.from_numpy(facts.y.copy()),
            {name: torch.from_numpy(codes.copy()) for name, (codes, _) in facts.attributes.items()},
            scale=FINE if facts.real else 1,
        )  # fmt: skip

    def facts(self, content: str = "") -> Facts:
        """Return columns, classes and attributes, which are read again if the file changed.

        Args:
            content: digest of the file, where it is known.

        Raises:
            BadInputError: if the file is missing or cannot be used; says why and what to do.
        """
        return _described(self, content or self._content())

    def _content(self) -> str:
        try:
            return file_digest(self.location)
        except OSError as error:
            why = error.strerror
            raise BadInputError(f"cannot read {self.name} ({why}): {self.get}") from None


class Column(NamedTuple):
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
        """How many columns of x it becomes."""
        return 1 if self.values is None else len(self.values)


class Facts(NamedTuple):
    """What is in a table.

    Attributes:
        columns: those of the file that become columns of x.
        y: (n,) int64 classes.
        classes: their number.
        attributes: name -> values (n,) int64, -1 for an empty cell, and their number.
    """

    columns: tuple[Column, ...]
    y: np.ndarray
    classes: int
    attributes: dict[str, tuple[np.ndarray, int]]

    @property
    def real(self) -> bool:
        """Whether any column holds numbers."""
        return any(column.values is None for column in self.columns)

    @property
    def width(self) -> int:
        """Columns of x."""
        return sum(column.width for column in self.columns)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """One-hot columns that belong together, as (start, stop)."""
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
def _described(data: CsvFile, content: Any) -> Facts:
    """Return the columns, classes and attributes; another content has another digest."""
    del content
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
    told = data.name
    y, known = numbered(kept_texts.pop(data.class_column), f"{data.class_column} of {told}")
    if problem := count_problem(y, len(known)):
        raise data.wrong(problem)
    attributes = {n: _attribute(data, n, texts) for n, texts in kept_texts.items()}
    columns_of_x = tuple(
        _column(data, name, names.index(name), seen[name], rows) for name in inputs
    )
    return Facts(columns_of_x, y, len(known), attributes)


def _attribute(data: CsvFile, name: str, texts: list[str]) -> tuple[np.ndarray, int]:
    """Return values (n,) int64, -1 for an empty cell, and their number."""
    cells = np.array(texts, dtype=str)
    codes, held = np.full(len(cells), -1, dtype=np.int64), cells != ""
    if not held.any():
        raise data.wrong(f"column '{plain(name)}' is empty: leave it out of sensitive")
    codes[held], known = numbered(cells[held], f"{name} of {data.name}")
    if len(known) > MOST_VALUES:
        raise data.wrong(f"sensitive column '{plain(name)}' has {len(known):,} values: give "
                         f"at most {MOST_VALUES:,}, such as ranges of a number")  # fmt: skip
    return codes, len(known)


def _column(data: CsvFile, name: str, at: int, seen: _Seen, rows: int) -> Column:
    """Decide how a column becomes columns of x."""
    if name not in data.categorical and seen.numbers == rows:
        return Column(name, at, None, seen.low, seen.high)
    if name not in data.categorical and 2 * seen.numbers >= rows:
        raise data.wrong(f"column '{plain(name)}' holds numbers, but '{plain(seen.text)}' in line "
                         f"{seen.line}: fill it in, drop such rows, or name the column in "
                         "categorical")  # fmt: skip
    if len(seen.texts) > MOST_VALUES:
        raise data.wrong(f"column '{plain(name)}' has more than {MOST_VALUES:,} different texts: "
                         "name it in drop")  # fmt: skip
    return Column(name, at, tuple(sorted(seen.texts)))


def encoded(data: CsvFile, facts: Facts) -> Iterator[np.ndarray]:
    """Yield x, some rows at a time: (rows, width) float32, or uint8 if no column holds numbers."""
    dtype = np.dtype(np.float32 if facts.real else np.uint8)
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


def _header(data: CsvFile) -> list[str]:
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
    data: CsvFile, width: int | None, *, header: bool = False
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


# ---- texts as numbers ----------------------------------------------------------------------------


def numbered(values: Sequence[str] | np.ndarray, what: str) -> tuple[np.ndarray, list[str]]:
    """Return texts as numbers (n,) int64 and the text of each number, in sorted order.

    Texts that all are whole numbers are sorted as numbers. If they are 0 to k - 1 they stay what
    they are; otherwise a warning says which is which.
    """
    texts = np.asarray(values, dtype=str)
    names = np.unique(texts).tolist()
    if all(_is_whole(name) for name in names):
        names.sort(key=lambda name: (int(name), name))
    places = {name: number for number, name in enumerate(names)}
    codes = np.array([places[text] for text in texts.tolist()], dtype=np.int64)
    if names != [str(number) for number in range(len(names))]:
        told = ", ".join(f"{plain(name)} is {number}" for number, name in enumerate(names[:10]))
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""  # noqa: PLR2004
        _say(f"{what}: numbered in sorted order: {told}{more}")
    return codes, names


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isascii() and text.lstrip("-").isdecimal() and len(text) < 10  # noqa: PLR2004


@functools.cache
def _say(text: str) -> None:
    """Warn once, and in no worker."""
    if multiprocessing.parent_process() is None:
        warnings.warn(text, UserWarning, stacklevel=4)


def count_problem(y: np.ndarray, classes: int, fewest: int = FEWEST) -> str:
    """Return why these labels (n,) cannot be used; "" if they can."""
    if len(y) < fewest:
        return f"{len(y)} rows are too few: give at least {fewest}"
    if classes > MOST_VALUES:
        return (
            f"{classes:,} different labels are too many: give at most {MOST_VALUES:,} classes, "
            "such as ranges of a number"
        )
    return "" if classes > 1 else "all rows have one class: give rows of at least two classes"


def plain(text: object) -> str:
    """Return a name of the user's for a message: short, in one line, all of it visible."""
    return shown(str(text), 200)
