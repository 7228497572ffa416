"""Location-30 records where 5,010 people went in Bangkok, as 446 yes-or-no columns.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A; from the Foursquare check-ins of Yang, Zhang, Qu, 2016. A column says
whether a person visited one region or one type of place; the 30 classes are clusters of persons.

Files, under the data root (the first one found is read; both hold the same rows in the same order):
- ``location/location.npz``: x (5010, 446) and y (5010,) from 0 to 29;
- ``location/dataset_location.tgz``: as the authors publish it (287 kB; downloaded if both files are
  missing), one text file in which a line is the class in quotes, 1 to 30, and the columns.

Source ``all`` holds all rows; no two are equal. There is no sensitive attribute. No rows can be
augmented, because a changed row would be another person.

The default protocol has 800 members, 800 nonmembers (which also measure utility), a reference part
of 500, a pool that gives a shadow model the same sizes, and 800 rows in no part, which the null
victim trains on.

What to expect: ``supervised`` is correct for all members and 59 % of the nonmembers, and AUC is
.94 for ``nn-mia`` and ``metric-modified-entropy``, .90 for ``shokri`` (one seed).
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from privbench import BadInputError, Card, Dataset, Examples, Paper, Protocol, hookimpl
from privbench_plugins._shared.data_folder import home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FOLDER, ARRAYS, ARCHIVE, TEXT = "location", "location.npz", "dataset_location.tgz", "bangkok"
#: The authors' repository, at the commit that holds the archive.
URL = (
    "https://github.com/privacytrustlab/datasets/raw/"
    f"169de9de00de049dd2e571cf7279e64698ac046a/{ARCHIVE}"
)


@dataclass(frozen=True)
class Location30(Dataset):
    """Loads Location-30 as 8-bit columns of zeros and ones."""

    name: ClassVar[str] = "location-30"
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks Against Machine Learning Models",
        "Shokri, Stronati, Song, Shmatikov", "IEEE S&P 2017", "section VI.A",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=800, nonmembers=800, reference=500, pool=2_110
        ),
        # MemGuard's own sizes: 1,000 members, 1,000 nonmembers to attack, 1,000 rows of the
        # defender, a shadow model with 500 members and 500 nonmembers. Here rows are drawn at
        # random; the authors take them in order.
        "memguard": Protocol(
            name="memguard", members=1_000, nonmembers=1_000, reference=1_000, pool=2_010,
            shadow=500,
        ),
    }  # fmt: skip

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name, kind="binary", shape=(446,), classes=30, scale=1,
            sources={"all": 5_010},
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (5010, 446) uint8 of zeros and ones."""
        card, folder = self.card(root), home(root) / FOLDER
        file = _found(folder)
        try:
            x, y = _arrays(file) if file.suffix == ".npz" else _archive(file)
        except Exception as error:  # numpy, gzip and tar raise many types on bad bytes
            raise _damaged(file, f"{type(error).__name__}: {error}") from error
        expected = (card.rows, *card.shape)
        if x.shape != expected or y.shape != expected[:1]:
            raise _damaged(file, f"it holds {x.shape} and {y.shape}, not {expected}")
        if x.max() > 1 or y.max() >= (card.classes or 0):
            raise _damaged(file, "columns must be 0 or 1, and there are 30 classes")
        return Examples.of(torch.from_numpy(x), torch.from_numpy(y).long(), scale=card.scale)


def _found(folder: Path) -> Path:
    """Return the file to read; download it if necessary."""
    choices = [folder / ARRAYS, folder / ARCHIVE]
    if there := [file for file in choices if file.is_file()]:
        return there[0]
    from torchvision.datasets.utils import download_url

    try:
        download_url(URL, folder, ARCHIVE)
    except Exception as error:  # any error of the network
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInputError(
            f"location-30: neither {ARRAYS} nor {ARCHIVE} is in {folder}, and downloading {URL} "
            f"failed ({why}); set --data-root or PRIVBENCH_DATA to the folder that holds {FOLDER}/"
        ) from error
    return choices[1]


def _arrays(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return x (n, 446) and y (n,), both uint8."""
    with file.open("rb") as raw, np.load(raw) as held:  # numpy leaves unreadable files open
        return held["x"].astype(np.uint8), held["y"].astype(np.uint8)


def _archive(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y from the text: a quoted class starting at 1, then the columns."""
    with tarfile.open(file) as packed:
        text = packed.extractfile(TEXT)
        if text is None:
            raise ValueError(f"{TEXT} in it is not a file")
        lines = io.TextIOWrapper(text, encoding="ascii")
        table = np.loadtxt(lines, delimiter=",", quotechar='"', dtype=np.uint8, ndmin=2)
    return table[:, 1:], table[:, 0] - 1


def _damaged(file: Path, why: str) -> BadInputError:
    return BadInputError(
        f"location-30: {file} is damaged ({' '.join(why.split())}); remove it, and the file that "
        "the authors publish is downloaded"
    )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Location30()]
