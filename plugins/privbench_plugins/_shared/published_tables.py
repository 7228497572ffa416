"""Tables of zeros and ones that Shokri et al. publish: Location-30, Purchase-100 and Texas-100."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from privbench import Card, Dataset, Examples, Paper
from privbench_plugins._shared.data_folder import home
from privbench_plugins._shared.downloads import damaged, found_or_downloaded
from privbench_plugins._shared.kept_rows import kept, stamp
from privbench_plugins._shared.messages import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The authors' repository, at the commit that holds the archives.
URL = "https://github.com/privacytrustlab/datasets/raw/169de9de00de049dd2e571cf7279e64698ac046a/{}"
#: Lines of text that are parsed at once.
LINES = 4096


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
