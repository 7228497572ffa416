"""Tables of zeros and ones that Shokri et al. publish: Location-30, Purchase-100 and Texas-100.

Shokri, Stronati, Song, Shmatikov: Membership Inference Attacks Against Machine Learning Models.
IEEE S&P 2017, section VI.A. Under the data root there is one archive for each, as the authors
publish it (downloaded if missing, and then compared with git's checksum of the published file). The
two large ones are parsed once, by the first process that needs them, and then mapped from a file
(``privbench.toolbox.kept_rows``). These two could not be had where this was written: their layout
and sizes are those that codes of published papers read. Licence: neither the authors nor the
archives name one.

Source ``all`` holds all rows. There is no sensitive attribute. No rows can be augmented, because a
changed row would be another person.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from privbench import Card, Dataset, Examples, Paper, Protocol, hookimpl
from privbench.toolbox.kept_rows import kept, stamp
from privbench.toolbox.messages import one_line
from privbench.toolbox.published import damaged, found_or_downloaded, home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: The authors' repository, at the commit that holds the archives.
URL = "https://github.com/privacytrustlab/datasets/raw/169de9de00de049dd2e571cf7279e64698ac046a/{}"
#: Lines of text that are parsed at once.
LINES = 4096
#: The file of Texas-100 that holds the classes.
CLASSES = "texas/100/labels"


@dataclass(frozen=True)
class PublishedTable(Dataset):
    """A table in an archive, parsed once and then mapped from a file.

    Attributes:
        described: its card.
        folder: the folder under the data root.
        archive: the file in that folder.
        blob: git's object id of the archive, which a downloaded one must have.
        text: the file in the archive; a line is the class, from 1, and the columns.
    """

    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks Against Machine Learning Models",
        "Shokri, Stronati, Song, Shmatikov", "IEEE S&P 2017", "section VI.A",
    )  # fmt: skip
    described: ClassVar[Card]
    folder: ClassVar[str]
    archive: ClassVar[str]
    blob: ClassVar[str]
    text: ClassVar[str]

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return self.described

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (n, columns) uint8 of zeros and ones.

        Raises:
            BadInputError: if the archive is missing, damaged or incomplete.
        """
        card, folder = self.card(root), home(root) / self.folder
        file = found_or_downloaded(
            self.name, folder / self.archive, URL.format(self.archive),
            terms="which names no licence", blob=self.blob,
        )  # fmt: skip

        def parsed() -> Iterator[np.ndarray]:
            try:
                with tarfile.open(file) as packed:
                    for table in self.tables(packed):
                        yield checked(table, card)
            except Exception as error:  # numpy, gzip and tar raise many types on bad bytes
                raise damaged(self.name, file, one_line(error)) from error

        shape = (card.rows, 1 + card.shape[0])
        table = kept(self.name, [self.digest, stamp(file)], shape, np.uint8, parsed)
        rows = table.tensor()
        return Examples.of(rows[:, 1:], rows[:, 0].long(), scale=card.scale, mapped=table.mapped)

    def tables(self, packed: tarfile.TarFile) -> Iterator[np.ndarray]:
        """Parse the archive; yield (k, 1 + columns) uint8, a class from 0 and its columns."""
        for table in lines_of(packed, self.text):
            table[:, 0] -= 1
            yield table


def lines_of(packed: tarfile.TarFile, member: str) -> Iterator[np.ndarray]:
    """Parse a member of the archive, numbers between commas; yield (k, columns) uint8.

    Raises:
        ValueError: if there is no such file in the archive, or a line that is not such numbers.
    """
    found = next((m for m in packed if PurePosixPath(m.name) == PurePosixPath(member)), None)
    text = packed.extractfile(found) if found is not None else None
    if text is None:
        raise ValueError(f"it has no file {member}")
    while lines := list(islice(text, LINES)):
        yield np.loadtxt(lines, delimiter=",", quotechar='"', dtype=np.uint8, ndmin=2)


def checked(table: np.ndarray, card: Card) -> np.ndarray:
    """Return classes and columns, (k, 1 + columns), after checking them.

    Raises:
        ValueError: if there are other columns, or values that the card does not allow.
    """
    if table.shape[1] != 1 + card.shape[0]:
        raise ValueError(f"a line has {table.shape[1] - 1} columns, not {card.shape[0]}")
    if table[:, 1:].max() > 1 or table[:, 0].max() >= (card.classes or 0):
        raise ValueError(f"columns must be 0 or 1, and classes 1 to {card.classes}")
    return table


def _binary(name: str, columns: int, classes: int, rows: int) -> Card:
    return Card(
        name=name, kind="binary", shape=(columns,), classes=classes, scale=1, sources={"all": rows}
    )


#: For a short run on a CPU.
_SHORT = Protocol(
    name="default", members=2_000, nonmembers=2_000, reference=500, pool=5_000, test=2_000
)


@dataclass(frozen=True)
class Purchase100(PublishedTable):
    """Loads Purchase-100: x (197324, 600) uint8 of zeros and ones.

    It records what 197,324 shoppers bought, as 600 yes-or-no columns, from Kaggle's "Acquire Valued
    Shoppers" challenge, whose rules the shopping records are under. A column says whether a person
    bought one product; the 100 classes are clusters of persons.

    File: ``purchase/dataset_purchase.tgz`` (119 MB once parsed); in it one text file,
    ``dataset_purchase``, in which a line is the class, 1 to 100, and the columns. Protocol
    ``selena`` has the sizes of the code of SELENA (Tang et al., USENIX Security 2022): a tenth of
    the rows are members, 15 % the defender's.
    """

    name: ClassVar[str] = "purchase-100"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": _SHORT,
        "selena": Protocol(
            name="selena", members=19_732, nonmembers=19_732, reference=29_598, pool=69_062,
            test=19_732,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = _binary(name, 600, 100, 197_324)
    folder: ClassVar[str] = "purchase"
    archive: ClassVar[str] = "dataset_purchase.tgz"
    blob: ClassVar[str] = "3efa7476ad5ed7ac3e558d28585a186b38fc5f19"
    text: ClassVar[str] = "dataset_purchase"


@dataclass(frozen=True)
class Texas100(PublishedTable):
    """Loads Texas-100: x (67330, 6169) uint8 of zeros and ones.

    It records 67,330 stays in hospitals of Texas, as 6,169 yes-or-no columns, from the public-use
    discharge data of the Texas Department of State Health Services, whose data use agreement
    forbids to pass records on and to identify patients or physicians. Columns encode the patient,
    the hospital, the cause and the diagnosis; the 100 classes are the most frequent procedures.

    File: ``texas/dataset_texas.tgz`` (415 MB once parsed); in it ``texas/100/feats``, a line of
    columns for each stay, and ``texas/100/labels``, its class, 1 to 100. Protocol ``selena`` has
    the 10,000 members of the code of SELENA (Tang et al., USENIX Security 2022). There the defender
    has 20,199 rows; here 7,000, since a shadow model needs as many of the adversary's.
    """

    name: ClassVar[str] = "texas-100"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": _SHORT,
        "selena": Protocol(
            name="selena", members=10_000, nonmembers=10_000, reference=7_000, pool=27_000,
            test=10_000,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = _binary(name, 6_169, 100, 67_330)
    folder: ClassVar[str] = "texas"
    archive: ClassVar[str] = "dataset_texas.tgz"
    blob: ClassVar[str] = "966f7ff40b24cf5912ff84759aab9adb8c25f30e"
    text: ClassVar[str] = "texas/100/feats"

    def tables(self, packed: tarfile.TarFile) -> Iterator[np.ndarray]:
        """Yield classes, which are in a file of their own, and columns side by side.

        Raises:
            ValueError: if there are not as many of both.
        """
        classes, start = np.concatenate(list(lines_of(packed, CLASSES))) - 1, 0
        for columns in lines_of(packed, self.text):
            of_these = classes[start : start + len(columns)]
            yield np.concatenate([of_these, columns], axis=1)
            start += len(columns)
        if start != len(classes):
            raise ValueError(f"{CLASSES} has {len(classes)} lines and {self.text} {start}")


@dataclass(frozen=True)
class Location30(PublishedTable):
    """Loads Location-30: x (5010, 446) uint8 of zeros and ones.

    It records where 5,010 people went in Bangkok, as 446 yes-or-no columns, from the Foursquare
    check-ins of Yang, Zhang, Qu, 2016. A column says whether a person visited one region or one
    type of place; the 30 classes are clusters of persons. No two rows are equal.

    File: ``location/dataset_location.tgz`` (287 kB); in it one text file, ``bangkok``, in which a
    line is the class in quotes, 1 to 30, and the columns.

    The default protocol has 800 members, 800 nonmembers (which also measure utility), a reference
    part of 500, a pool that gives a shadow model the same sizes, and 800 rows in no part, which the
    null victim trains on.

    What to expect: ``supervised`` is correct for all members and 59 % of the nonmembers, and AUC is
    .94 for ``nn-mia`` and ``metric-modified-entropy``, .90 for ``shokri`` (one seed).
    """

    name: ClassVar[str] = "location-30"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=800, nonmembers=800, reference=500, pool=2_110
        ),
        # MemGuard's own sizes: 1,000 members, 1,000 nonmembers to attack, 1,000 rows of the
        # defender, a shadow model with 500 members and 500 nonmembers. Here rows are drawn at
        # random; the authors take them by position in a shuffled order that they publish.
        "memguard": Protocol(
            name="memguard", members=1_000, nonmembers=1_000, reference=1_000, pool=2_010,
            shadow=500,
        ),
    }  # fmt: skip
    described: ClassVar[Card] = _binary(name, 446, 30, 5_010)
    folder: ClassVar[str] = "location"
    archive: ClassVar[str] = "dataset_location.tgz"
    blob: ClassVar[str] = "0cfc2caa0c8c8569cd68a5d4ab369a98c1f98447"
    text: ClassVar[str] = "bangkok"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the datasets."""
    return [Purchase100(), Texas100(), Location30()]
