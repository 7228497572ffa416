"""The rows of an audit: members, nonmembers and, perhaps, rows for shadows, from the user's files.

They are joined into one file in the cache folder, which the dataset ``npz`` reads.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.api.own_model.scaling import in_unit_interval, loses
from privbench.api.own_model.tables import (
    MOST_CLASSES,
    REGRESSION,
    is_file,
    is_looked_up,
    is_real,
    label_values,
    lookup_of,
    named_in,
    numbered,
    target_values,
)
from privbench.api.own_model.tables import held as held_in
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.toolbox.looked_up import encoded, library, taken
from privbench.toolbox.npz_size import excess
from privbench.toolbox.row_files import TABLES, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from privbench.toolbox.looked_up import Lookup

#: Names of the sources of the rows, in the order in which the rows are joined.
SOURCES = ("members", "nonmembers", "shadow")
#: Array of the joined file that names the source of each row.
ORIGIN = "origin"
#: Source of rows that stand for classes without rows.
_UNSEEN = "unseen"
#: Fewer members or nonmembers cannot be told apart with any confidence.
FEWEST = 20
_TABLE, _GREY, _IMAGE = 2, 3, 4  # axes of x
_CHANNELS = (1, 3)
_LARGEST = 1e38  # of x

#: A path of a file, or rows in memory: a mapping of x and y, a pair of these, a DataFrame.
Given = Any


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
        labels: (n,) classes as the user gave them, whole numbers or texts.
        known: how many classes the model knows; some may be without rows.
        lookup: the user's rows, if the model gets these and not numbers.
        source: name under which a target finds them; "" for numbers.
        names: classes in the order of the answers, if the rows tell, and not the model.
        targets: (n,) float64, what a regression is to answer; None for classes.
        texts: classes in the order of their numbers, if they are texts and the model names none.
        kept: (n,) places of the rows among all that were given; None if these are all.
        copied: place among all that were given -> how many copies of it were left out.
    """

    x: NDArray[Any]
    y: NDArray[np.int64] | None
    sizes: Mapping[str, int]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    fingerprints: Sequence[str] = ()
    labels: NDArray[Any] | None = None
    known: int = 0
    lookup: Lookup | None = None
    source: str = ""
    names: NDArray[Any] | None = None
    targets: NDArray[np.float64] | None = None
    texts: tuple[str, ...] = ()
    kept: NDArray[np.int64] | None = None
    copied: Mapping[int, int] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes; 0 without labels."""
        return 0 if self.y is None else max(self.known, int(self.y.max()) + 1)

    def contents(self, source: str) -> list[str]:
        """Return what tells the rows of a source apart: x, and y if it is a regression's."""
        at = self.of(source)
        prints = list(self.fingerprints[at])
        if self.targets is None:
            return prints
        return [f"{x} {y!r}" for x, y in zip(prints, self.targets[at].tolist(), strict=True)]

    def copies(self, source: str = "members") -> int:
        """Return the number of rows of a source that were left out: equal to an earlier one."""
        return sum(self.copied.get(place, 0) for place in self.places(source))

    def places(self, source: str) -> list[int]:
        """Return where the rows of a source were among all that were given."""
        at = self.of(source)
        every = np.arange(at.start, at.stop) if self.kept is None else self.kept[at]
        return [int(place) for place in every]

    def table(self) -> Any:
        """Return the user's rows, if the model gets these; None if it gets numbers."""
        if self.lookup is None or self.kept is None:
            return None if self.lookup is None else self.lookup.rows
        return taken(self.lookup.rows, self.kept.tolist())

    def once(self) -> Rows:
        """Return the rows with each member and each nonmember once, whatever copies it has.

        A copy has the same x and y, and so the same score: it is no more evidence.

        Raises:
            BadInputError: if too few are left.
        """
        known: list[Any] = [self.fingerprints, self.labels, self.targets]
        columns = [list(one) for one in known if one is not None]
        first: dict[Any, int] = {}
        copied: dict[int, int] = {}
        for place, mark in enumerate(zip(self._sources(), *columns, strict=True)):
            if (earlier := first.setdefault(mark, place)) != place:
                copied[earlier] = copied.get(earlier, 0) + 1
        if not copied:
            return self
        kept = np.array([*first.values()])
        sizes = {source: int(((kept >= at.start) & (kept < at.stop)).sum())
                 for source in self.sizes for at in (self.of(source),)}  # fmt: skip
        _refuse_few(sizes, self.sizes)

        def some(column: NDArray[Any] | None) -> Any:
            return None if column is None else column[kept]

        return replace(
            self, x=self.x[kept], sizes=sizes,
            attributes={name: column[kept] for name, column in self.attributes.items()},
            fingerprints=[self.fingerprints[place] for place in kept], kept=kept, copied=copied,
            y=some(self.y), labels=some(self.labels), targets=some(self.targets),
        )  # fmt: skip

    def _sources(self) -> list[Any]:
        """Return the source of each row; a number of its own for each row of the adversary."""
        names: list[Any] = [*np.repeat([*self.sizes], [*self.sizes.values()]).tolist()]
        return [i if name == "shadow" else name for i, name in enumerate(names)]

    @property
    def finite_numbers(self) -> bool:
        """Whether a model gets an array of finite numbers."""
        if self.lookup is None:
            return True
        rows = self.lookup.rows
        numbers = isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
        return numbers and bool(np.isfinite(rows).all())

    def numbered(self, names: NDArray[Any] | None) -> Rows:
        """Return the rows with classes as a model numbers them, if it names them.

        Raises:
            BadInputError: if it does not know one.
        """
        if self.labels is None:
            return self
        names = self.names if names is None else names
        y = numbered(self.labels, names)
        ours = self.labels.dtype.kind == "U" and named_in(self.labels, names) is None
        _refuse_classes(max(int(y.max()) + 1, 0 if names is None else len(names)))
        texts = tuple(np.unique(self.labels).tolist()) if ours else ()
        return replace(self, y=y, known=0 if names is None else len(names), texts=texts)

    def knowing(self, answers: NDArray[np.float64], gives: str) -> Rows:
        """Return the rows with as many classes as posteriors or logits (n, k) have."""
        if gives not in ("posteriors", "logits"):
            return self
        _refuse_classes(answers.shape[1])
        return replace(self, known=answers.shape[1])

    def described(self, source: str) -> NDArray[np.float32]:
        """Return what describes the rows of a source: (n, d) numbers, without hashes and copies."""
        x = self.unit()[self.of(source)][self._first(source)]
        return x if self.lookup is None else x[:, : self.lookup.features]

    def truth(self, source: str) -> NDArray[Any] | None:
        """Return classes, or what a regression is to answer, of the rows that ``described`` has."""
        known = self.y if self.targets is None else self.targets
        return None if known is None else known[self.of(source)][self._first(source)]

    def _first(self, source: str) -> list[int]:
        """Return the places in a source of rows that are no copies of an earlier one."""
        first: dict[Any, int] = {}
        for place, content in enumerate(self.contents(source)):
            first.setdefault(content, place)
        return [*first.values()]

    def columns(self) -> dict[str, NDArray[np.float32]]:
        """Return what describes each column of a table, (n, d) for all rows; {} of other rows."""
        if self.lookup is None:
            x = self.unit()
            return {f"column {i}": x[:, [i]] for i in range(x.shape[1])} if x.ndim == _TABLE else {}
        table = self.table()
        return (
            {str(name): encoded(table[[name]]) for name in table.columns} if library(table) else {}
        )

    def of(self, source: str) -> slice:
        """Return where the rows of a source are."""
        names = list(self.sizes)
        begin = sum(self.sizes[name] for name in names[: names.index(source)])
        return slice(begin, begin + self.sizes[source])

    def unit(self) -> NDArray[np.float32]:
        """Return x as float32 in [0, 1]."""
        return (self.x / (255 if self.x.dtype == np.uint8 else 1)).astype(np.float32)

    def write(self, folder: Path) -> Path:
        """Write them to a file that is named after its content; return its path.

        A class that the model knows and no row has gets a copy of the first row, of a source that
        no part is drawn from: a dataset has rows of all classes.
        """
        unseen = np.setdiff1d(np.arange(self.classes), [] if self.y is None else self.y)
        copies = np.concatenate([np.arange(len(self.x)), np.zeros(len(unseen), int)])
        sources = np.array([*self.sizes, _UNSEEN])
        named: dict[str, Any] = {
            "x": self.x[copies],
            ORIGIN: sources.repeat([*self.sizes.values(), len(unseen)]),
        }
        named |= {} if self.y is None else {"y": np.concatenate([self.y, unseen])}
        named |= {name: column[copies] for name, column in self.attributes.items()}
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
    members: Given,
    nonmembers: Given,
    shadow: Given | None = None,
    attributes: Given | None = None,
    reading: Reading = Reading(),  # noqa: B008 - it cannot change
    *,
    output: str = "auto",
) -> Rows:
    """Read the rows of an audit.

    Each file holds ``x``: a table (n, columns) of any finite numbers, or images (n, c, h, w),
    (n, h, w, c) or (n, h, w); and ``y``: (n,) classes, numbers from 0 or texts, if there are any.
    Rows may also be tables (csv, parquet, JSON lines, DataFrames) or lists of any objects: then the
    model gets them as they are. If y holds numbers that are not classes, or ``output`` is
    ``values``, the model is a regression.

    The file of attributes has one array for each, with a value for every row: of members, then of
    nonmembers, then of shadow rows.

    Raises:
        BadInputError: if they cannot be used; one sentence that says what to do.
    """
    files = {"members": members, "nonmembers": nonmembers}
    files |= {} if shadow is None else {"shadow": shadow}
    held = {source: source_of(given, source, reading) for source, given in files.items()}
    regression = is_regression(held, output)
    if regression or any(is_looked_up(arrays["x"]) for arrays in held.values() if "x" in arrays):
        return _looked_up(held, files, attributes, reading, regression=regression)
    x = {source: _inputs(arrays, source) for source, arrays in held.items()}
    shapes = {source: one.shape[1:] for source, one in x.items()}
    for source, shape in shapes.items():
        if shape != shapes["members"]:
            raise BadInputError(f"{source}: its rows have shape {shape}, those of the members "
                                f"{shapes['members']}: give rows of one kind")  # fmt: skip
    bytes_in = [source for source, one in x.items() if one.dtype == np.uint8]
    if bytes_in and len(bytes_in) < len(x):
        raise BadInputError(f"{bytes_in[0]}: its images hold bytes, and those of another file "
                            "floats: give both in one unit")  # fmt: skip
    sizes = sizes_of(x)
    prints = {source: fingerprints(one) for source, one in x.items()}
    _refuse_overlap(prints)
    whole = np.concatenate(list(x.values()))
    joined, low, high = in_unit_interval(whole)
    if low and joined.ndim == _TABLE and loses(whole, joined, low, high):
        return _looked_up(held, files, attributes, reading, regression=False)
    extra = {} if attributes is None else _attributes(attributes, len(joined))
    every = [one for column in prints.values() for one in column]
    labels = labels_of(held, sizes)
    return Rows(joined, _temporary(labels), sizes, extra, low, high, every, labels).once()


def read_source(given: Given, source: str) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the arrays of one file, and the fingerprints of its rows (n,).

    Raises:
        BadInputError: if there is no usable x.
    """
    table = library(given) or is_file(given, Reading())
    held = {} if table else source_of(given, source, Reading())
    if table or ("x" in held and is_looked_up(held["x"])):
        raise BadInputError(f"{source}: x is a table or a list: give an array of numbers (.npz)")
    return held, fingerprints(_inputs(held, source))


def _looked_up(
    held: Mapping[str, Mapping[str, Any]], given: Mapping[str, Given], attributes: Given | None,
    reading: Reading, *, regression: bool,
) -> Rows:  # fmt: skip
    """Return rows that the model gets as they are."""
    for source, arrays in held.items():
        if "x" not in arrays:
            raise BadInputError(f"{source}: it holds {shown(', '.join(arrays)) or 'no array'}: "
                                "give x")  # fmt: skip
    x = {source: arrays["x"] for source, arrays in held.items()}
    sizes = sizes_of(x)
    targets = targets_of(held, sizes) if regression else None
    labels = None if regression else labels_of(held, sizes)
    prints: list[str] = []
    if not any(is_looked_up(one) for one in x.values()):
        numbers = {source: _inputs(arrays, source) for source, arrays in held.items()}
        prints = [one for part in numbers.values() for one in fingerprints(part)]
        if regression and any(one.ndim > _TABLE for one in numbers.values()):
            x, given = {source: _pictures(one) for source, one in numbers.items()}, {}
    lookup, name = lookup_of(x, given, reading, targets)
    prints = prints or lookup.prints
    extra = {} if attributes is None else _attributes(attributes, len(lookup.x))
    rows = Rows(
        lookup.x, _temporary(labels), sizes, extra, fingerprints=prints, labels=labels,
        lookup=lookup, source=name, targets=targets,
    )  # fmt: skip
    _refuse_overlap({source: rows.contents(source) for source in sizes})
    return rows.once()


def _refuse_classes(count: int) -> None:
    if count > MOST_CLASSES:
        raise BadInputError(f"there are {count:,} classes, and at most {MOST_CLASSES:,} can be "
                            "audited: group classes, and give the model as a function that adds up "
                            "their posteriors")  # fmt: skip


def _pictures(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return pictures as a model gets them: bytes in [0, 1]."""
    return (x / (255 if x.dtype == np.uint8 else 1)).astype(np.float32)


def _temporary(labels: NDArray[Any] | None) -> NDArray[np.int64] | None:
    """Return classes as numbers, until the model tells how it numbers them."""
    if labels is None or labels.dtype.kind == "U" or labels.min() >= 0:
        return None if labels is None else numbered(labels, None)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def sizes_of(x: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows each source has; refuse too few."""
    sizes = {source: len(one) for source, one in x.items()}
    _refuse_few(sizes, sizes)
    return sizes


def _refuse_few(sizes: Mapping[str, int], given: Mapping[str, int]) -> None:
    for source in ("members", "nonmembers"):
        if (n := sizes[source]) < FEWEST:
            told = "rows" if n == given[source] else f"different rows (of {given[source]:,})"
            raise BadInputError(f"{source}: {n} {told} are too few: give at least {FEWEST}")


def source_of(given: Given, option: str, reading: Reading) -> dict[str, Any]:
    """Return x, y and other arrays of a file, or of rows in memory."""
    if (found := held_in(given, option, reading)) is not None:
        return found
    if not isinstance(given, (str, Path)):
        raise BadInputError(f"{option}: it is a {type(given).__name__}: give the path of a "
                            "file or, in Python, rows and their classes, such as (x, y)"
                            )  # fmt: skip
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
    if reading.column:
        raise BadInputError(f"{told}: an archive has no columns with names: leave out the column")
    return held_in(held, option, reading) or {}


def _unfit(file: Path) -> str:
    """Return why a file is not read, as the end of a sentence; "" if it is."""
    if not file.exists():
        return "cannot be read (no such file): name a .npz file"
    if not file.is_file():  # a device may never end, and a pipe may never begin
        return "is not a regular file: name a .npz file"
    archive = zipfile.is_zipfile(file)
    if archive:
        with zipfile.ZipFile(file) as held:
            archive = any(name.endswith(".npy") for name in held.namelist())
    if not archive and file.suffix.lower() not in ("", ".npz"):
        return (f"ends in {shown(file.suffix)}, and rows are read from .npz, "
                f"{', '.join(TABLES[:-1])} and {TABLES[-1]}: save them as one of these"
                )  # fmt: skip
    if not zipfile.is_zipfile(file):  # text, or cut short
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
    elif x.ndim == _IMAGE and x.shape[1] not in _CHANNELS:
        if x.shape[3] not in _CHANNELS:
            raise BadInputError(f"{source}: x has shape {x.shape}: give images of 1 or 3 channels, "
                                "(n, channels, height, width) or (n, height, width, channels), or "
                                "other rows as a list")  # fmt: skip
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == _IMAGE and x.dtype == np.uint8:
        return x
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        row = int((~np.isfinite(x)).reshape(len(x), -1).any(1).argmax())
        raise BadInputError(f"{source}: x is NaN or infinite, first in row {row}: fill in "
                            "missing values, or drop such rows")  # fmt: skip
    if (largest := np.abs(x).max(initial=0)) > _LARGEST:
        row = int((np.abs(x) > _LARGEST).reshape(len(x), -1).any(1).argmax())
        raise BadInputError(f"{source}: x holds {largest:g}, first beyond {_LARGEST:g} in row "
                            f"{row}, and a model gets float32: scale such columns")  # fmt: skip
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


def is_regression(held: Mapping[str, Mapping[str, Any]], output: str) -> bool:
    """Return whether y holds what a regression is to answer, and no classes."""
    if output not in REGRESSION:
        return False
    return output != "auto" or any(is_real(one["y"]) for one in held.values() if "y" in one)


def targets_of(
    held: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
) -> NDArray[np.float64]:
    """Return what a regression is to answer, (n,)."""
    for source, arrays in held.items():
        if "y" not in arrays:
            raise BadInputError(f"{source}: it has no y: give the numbers that the model is to "
                                "answer")  # fmt: skip
    return np.concatenate([target_values(arrays["y"], sizes[source], source)
                           for source, arrays in held.items()])  # fmt: skip


def labels_of(
    held: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
) -> NDArray[Any] | None:
    """Return classes (n,) as they are given, whole numbers or texts."""
    lacking = [source for source, arrays in held.items() if "y" not in arrays]
    if len(lacking) == len(held):
        return None
    if lacking:
        raise BadInputError(f"{lacking[0]}: it has no y, and another file has: give y in all of "
                            "them, or in none")  # fmt: skip
    columns = {source: label_values(arrays["y"], sizes[source], source)
               for source, arrays in held.items()}  # fmt: skip
    texts = [source for source, y in columns.items() if y.dtype.kind == "U"]
    if texts and len(texts) < len(columns):
        raise BadInputError(f"{texts[0]}: y holds texts, and y of another file numbers: give "
                            "texts in all of them, or numbers")  # fmt: skip
    return np.concatenate(list(columns.values()))


def _attributes(given: Given, rows: int) -> dict[str, NDArray[Any]]:
    found = source_of(given, "attributes", Reading())
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
