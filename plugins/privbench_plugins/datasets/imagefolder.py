"""Your own pictures, in one folder per class, under your own licence.

Two lines of a suite, or two options, suffice:

    attacks: [encodermi-t]
    datasets: [{imagefolder: {path: pictures, size: 64}}]

    privbench run --attack encodermi-t --dataset imagefolder --set imagefolder.path=pictures

The folder holds one folder per class, with pictures at any depth (``.png``, ``.jpg``, ``.jpeg``,
``.bmp``, ``.gif``, ``.tif``, ``.tiff``, ``.webp``, ``.ppm``, ``.pgm``); classes are numbered in
sorted order of their names. Every picture is resized to ``size`` x ``size`` pixels (bilinear,
antialiased; sides are not kept in proportion).

Sensitive attributes come from ``table``, a csv file with a header: the first column is the file,
relative to the folder (``cats/1.png``), and every other column an attribute, whose values are
numbered in sorted order; an empty cell is unknown. Each picture has one line. The first attribute
is the default of attacks and defenses.

Rows are sorted by class and file. Views are limited as those of ``npz``, and the default protocol
is the same. The key of a result holds the digest of all files and their names within the folder,
not the place of the folder. Pictures are decoded once, into one file in the user's cache folder;
above 64 MB it is memory-mapped.
"""

from __future__ import annotations

import csv
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch

from privbench import Card, Dataset, Examples, Ge, Le, Protocol, hookimpl
from privbench.toolbox.kept_rows import kept
from privbench.toolbox.messages import one_line, plain
from privbench.toolbox.own_data import (
    OwnDataset,
    default_protocol,
    views,
)
from privbench.toolbox.pictures import decoded
from privbench.toolbox.tables import MOST_VALUES, count_problem, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)


@dataclass(frozen=True)
class ImageFolder(OwnDataset):
    """Loads your own pictures from one folder per class.

    Attributes:
        size: pixels per side.
        grey: whether pictures are converted to grey.
        table: csv file with sensitive attributes; relative to the current folder.
    """

    name: ClassVar[str] = "imagefolder"

    size: Annotated[int, Ge(8), Le(1024)] = 32
    grey: bool = False
    table: str = ""

    @property
    def protocols(self) -> Mapping[str, Protocol]:  # type: ignore[override]
        """The default protocol, from the number of pictures."""
        return {"default": default_protocol(len(self._facts().files) if self.path else None)}

    @property
    def identity(self) -> Mapping[str, Any]:
        """Without both paths: the digest covers what is there."""
        known = super().identity
        fields = {name: value for name, value in known["fields"].items() if name != "table"}
        return {**known, "fields": fields}

    def card(self, root: Path | None) -> Card:
        """Describe the folder, without decoding pictures.

        Raises:
            BadInputError: if it cannot be used; says why and what to do.
        """
        del root
        facts, channels = self._facts(), 1 if self.grey else 3
        return Card(
            name=self.name, kind="image", shape=(channels, self.size, self.size),
            classes=facts.classes, scale=255,
            attributes={name: count for name, (_, count) in facts.attributes.items()},
            sensitive=tuple(facts.attributes)[:1], sources={"all": len(facts.files)},
            limits=views(channels, self.size, self.size, attributes=bool(facts.attributes)),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Decode the pictures, or read what was decoded: x (n, 1 or 3, size, size) uint8."""
        from PIL import __version__

        card, facts = self.card(root), self._facts()
        files = [self.location / name for name in facts.files]
        x = kept(
            self.name, [self.digest, __version__], (card.rows, *card.shape), np.uint8,
            lambda: self._while_unchanged(
                decoded(self.name, files, self.size, channels=card.shape[0],
                        advice="replace or remove it")
            ),
        )  # fmt: skip
        self._unchanged()
        return Examples.of(
            x.tensor(), torch.from_numpy(facts.y.copy()),
            {name: torch.from_numpy(codes.copy()) for name, (codes, _) in facts.attributes.items()},
            scale=255, mapped=x.mapped,
        )  # fmt: skip

    def _content(self) -> str:
        total = hashlib.sha256()
        for name in _pictures(self):
            total.update(f"{name}\0{self._digest_of(self.location / name)}\0".encode())
        if self.table:
            total.update(self._digest_of(self.attributes_file).encode())
        return total.hexdigest()

    @property
    def attributes_file(self) -> Path:
        """The table."""
        folder: Path = vars(self)["_folder"]
        return folder / Path(self.table).expanduser()

    def _facts(self) -> _Facts:
        return _described(self, self.location, self.sha256)


class _Facts(NamedTuple):
    files: list[str]
    y: np.ndarray
    classes: int
    attributes: dict[str, tuple[np.ndarray, int]]


def _pictures(data: ImageFolder) -> list[str]:
    """Return the pictures as ``class/file``, sorted by class and file."""
    if not data.location.is_dir():
        raise data.wrong("it is not a folder: give one that holds a folder per class")
    found = []
    for folder in sorted(p for p in data.location.iterdir() if p.is_dir()):
        inside = [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
        found += sorted(p.relative_to(data.location).as_posix() for p in inside)
    if not found:
        raise data.wrong("it holds no pictures in folders: make one folder per class, with "
                         "pictures (.png, .jpg, …) in it")  # fmt: skip
    return found


@functools.lru_cache(maxsize=16)
def _described(data: ImageFolder, folder: Path, sha256: str) -> _Facts:
    """Return files, classes and attributes; another content has another digest."""
    del folder, sha256
    files = _pictures(data)
    names, codes = np.unique([name.partition("/")[0] for name in files], return_inverse=True)
    y = codes.astype(np.int64)
    if problem := count_problem(y, len(names)):
        raise data.wrong(problem)
    return _Facts(files, y, len(names), _attributes(data, files) if data.table else {})


def _attributes(data: ImageFolder, files: list[str]) -> dict[str, tuple[np.ndarray, int]]:
    """Return attribute -> values (n,) int64, -1 if unknown, and their number."""
    told = plain(data.table)
    try:
        with data.attributes_file.open(encoding="utf-8-sig", newline="") as opened:
            head, *lines = [row for row in csv.reader(opened, strict=True) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise data.wrong(f"table {told} is no csv file in UTF-8 ({one_line(error)}): save it as "
                         "one") from None  # fmt: skip
    wrong = next((i for i, row in enumerate(lines, 2) if len(row) != len(head)), None)
    if wrong or len(head) < 2 or len(set(head)) < len(head):  # noqa: PLR2004
        where = f"row {wrong}" if wrong else "the header"
        raise data.wrong(
            f"{where} of table {told} does not fit: give a header with different "
            "names, the file first and then attributes, and as many cells in each row"
        )
    rows = {Path(row[0].strip()).as_posix(): row[1:] for row in lines}
    if len(rows) < len(lines) or set(rows) != set(files):
        odd = sorted(set(rows) ^ set(files)) or ["a file that it lists twice"]
        raise data.wrong(f"table {told} does not list each picture once, such as {plain(odd[0])}: "
                         "write one row per picture, with its name relative to it")  # fmt: skip
    made = {}
    for at, name in enumerate(head[1:]):
        cells = np.array([rows[file][at].strip() for file in files])
        values, held = np.full(len(files), -1, dtype=np.int64), cells != ""
        values[held], known = numbered(cells[held], f"{name} of {told}")
        if not 0 < len(known) <= MOST_VALUES:
            raise data.wrong(f"column '{plain(name)}' of table {told} has {len(known):,} values: "
                             f"give 1 to {MOST_VALUES:,}, or remove it")  # fmt: skip
        made[name.strip()] = values, len(known)
    return made


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [ImageFolder()]
