"""UTKFace holds some 23,000 faces with gender, race and age.

Zhang, Song, Qi: Age Progression/Regression by Conditional Adversarial Autoencoder. CVPR 2017. This
is the "aligned and cropped" part. The licence allows non-commercial research only, so the data are
not downloaded here; ask for them at https://susanqq.github.io/UTKFace/.

Files, under the data root: ``UTKFace/*.jpg``, named ``age_gender_race_date.jpg.chip.jpg``, of any
size; and, optionally, ``UTKFace_labels.csv``, of which the columns ``file`` and
``exact_duplicate_of`` are read. Without it, files with equal bytes count as exact duplicates: for
the published files the result is the same, and two seconds slower.

- The class is gender, 0 (male) or 1 (female).
- Attribute ``race``: 0 to 4 (white, black, Asian, Indian, others). Three file names lack it; there
  it is missing.
- Attribute ``age``: under 20, under 30, under 40, under 60, 60 and more.

A face with several copies could be a member and a nonmember at once, so one copy is kept, the first
by name. Of the 375 faces with copies many carry different labels, and nothing says which are
correct. If copies disagree on an attribute, it counts as missing; if they disagree on gender, no
copy is kept. Rows are sorted by name. The 23,707 files give 23,277 rows.

Views are crops of at least half the area, flips, and mild brightness and contrast. A small
convolutional network, trained on such views, predicts gender, race and age in 85, 70 and 57 % of
other faces without augmentation; after one view at the limits in 83, 68 and 53 %. Excluded are
saturation, crops to a fifth (78, 63, 48 %), brightness and contrast of 0.8 (77, 62, 47 %), hue of
0.2 (83, 61, 49 %) and greyscale (73, 55, 46 %), which change how skin looks, and blur to 2 pixels
(84, 65, 49 %).

The faces are decoded once, by the first process that needs them, in some ten seconds, and then
mapped from a file (``privbench.toolbox.kept_rows``; 72 MB, or 286 MB at size 64).
"""

from __future__ import annotations

import csv
import functools
import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from privbench import (
    BadInputError,
    Card,
    Dataset,
    Examples,
    Paper,
    Protocol,
    hookimpl,
)
from privbench.toolbox import views
from privbench.toolbox.kept_rows import kept, stamp
from privbench.toolbox.pictures import decoded
from privbench.toolbox.published import home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


FOLDER, TABLE = "UTKFace", "UTKFace_labels.csv"
#: Rows that the published files give.
ROWS = 23_277
#: Ages at which the second and later values of ``age`` start.
AGES = (20, 30, 40, 60)

_NAME = re.compile(r"(?P<age>\d{1,3})_(?P<gender>[01])_(?:(?P<race>[0-4])_)?\d{8,}.*\.jpg")


@dataclass(frozen=True)
class UTKFace(Dataset):
    """Loads UTKFace, sorted by name, as 8-bit images.

    Attributes:
        size: pixels per side; larger files are resized, bilinear and antialiased.
    """

    name: ClassVar[str] = "utkface"
    paper: ClassVar[Paper] = Paper(
        "Age Progression/Regression by Conditional Adversarial Autoencoder", "Zhang, Song, Qi",
        "CVPR 2017", "section 4.1",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Exact duplicates are left out, and labels on which they disagree count as missing."
    )
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
        )
    }

    size: Literal[32, 64] = 32

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; rows are counted if the files exist, without decoding any."""
        folder = home(root)
        rows = len(faces(folder)) if (folder / FOLDER).is_dir() else ROWS
        return Card(
            name=self.name,
            kind="image",
            shape=(3, self.size, self.size),
            classes=2,
            scale=255,
            attributes={"race": 5, "age": len(AGES) + 1},
            sensitive=("race",),
            sources={"all": rows},
            limits=views.of_faces(),
        )

    def load(self, root: Path | None) -> Examples:
        """Read the data: x (n, 3, size, size) uint8, sorted by name, mapped from a file."""
        folder = home(root)
        if not (folder / FOLDER).is_dir():
            raise BadInputError(
                f"utkface: {FOLDER}/ with the aligned and cropped faces (*.jpg) is not in "
                f"{folder}; get it from https://susanqq.github.io/UTKFace/ (non-commercial "
                "research only) and set --data-root or PRIVBENCH_DATA to the folder that holds it"
            )
        found = faces(folder)
        if not found:
            raise BadInputError(f"utkface: there is no *.jpg in {folder / FOLDER}")
        files = [folder / FOLDER / name for name in found]
        x = kept(
            self.name, [self.digest, *map(stamp, files)], (len(files), 3, self.size, self.size),
            np.uint8, lambda: decoded(self.name, files, self.size),
        )  # fmt: skip
        y, race, age = torch.tensor(list(found.values())).T.contiguous()
        return Examples.of(x.tensor(), y, {"race": race, "age": age}, scale=255, mapped=x.mapped)


class Labels(NamedTuple):
    """Labels from a file name, or those that all copies agree on; -1 where they do not agree."""

    gender: int
    race: int
    age: int


def faces(folder: Path) -> Mapping[str, Labels]:
    """Return the name of each face that is kept -> its labels, sorted by name.

    Raises:
        BadInputError: if a name holds no labels, or folder and table hold different files.
    """
    stamps = [file.stat().st_mtime_ns for file in (folder / FOLDER, folder / TABLE)
              if file.exists()]  # fmt: skip
    return _faces(folder, *stamps)


@functools.lru_cache(maxsize=4)
def _faces(folder: Path, *stamps: int) -> Mapping[str, Labels]:
    """Read the names once, until the folder or the table changes: planning asks many times."""
    del stamps
    names = sorted(f.name for f in (folder / FOLDER).iterdir() if f.name.endswith(".jpg"))
    first = _listed(folder, names) if (folder / TABLE).is_file() else _compared(folder, names)
    copies: dict[str, list[Labels]] = {}
    for name in names:
        copies.setdefault(first[name], []).append(labels(name))
    agreed = {name: agreement(mine) for name, mine in sorted(copies.items())}
    return {name: mine for name, mine in agreed.items() if mine.gender >= 0}


def labels(name: str) -> Labels:
    """Read the labels from a file name.

    >>> labels("61_1_20170109142408075.jpg.chip.jpg")
    Labels(gender=1, race=-1, age=4)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadInputError(
            f"utkface: '{name}' is not named age_gender_race_date.jpg.chip.jpg; remove it"
        )
    age, gender, race = match.group("age", "gender", "race")
    return Labels(int(gender), -1 if race is None else int(race), bisect_right(AGES, int(age)))


def agreement(copies: Sequence[Labels]) -> Labels:
    """Return the labels that all copies agree on, or -1.

    >>> agreement([Labels(1, 0, 2), Labels(1, 3, 2)])
    Labels(gender=1, race=-1, age=2)
    """
    columns = zip(*copies, strict=True)
    return Labels(*(said[0] if len(set(said)) == 1 else -1 for said in columns))


def _listed(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return name -> name of the face that it copies (itself if no copy), from the table."""
    with (folder / TABLE).open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    first = {row["file"]: row["exact_duplicate_of"] or row["file"] for row in rows}
    if set(first) != set(names) or not set(first.values()) <= set(names):
        raise BadInputError(
            f"utkface: {TABLE} lists {len(first)} files and {FOLDER}/ holds {len(names)}, not all "
            f"the same, in {folder}; complete the folder or remove the table"
        )
    return first


def _compared(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the same mapping, by comparing the bytes of the files."""
    seen: dict[bytes, str] = {}

    def first(name: str) -> str:
        content = (folder / FOLDER / name).read_bytes()
        return seen.setdefault(hashlib.blake2b(content, digest_size=16).digest(), name)

    return {name: first(name) for name in names}


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [UTKFace()]
