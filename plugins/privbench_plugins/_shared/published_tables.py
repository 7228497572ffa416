"""Tables of zeros and ones that Shokri et al. publish: Purchase-100 and Texas-100."""

from __future__ import annotations

import hashlib
import tarfile
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from privbench import BadInputError, Card, Examples
from privbench_plugins._shared.data_folder import home
from privbench_plugins._shared.mapped import mapped, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The authors' repository, at the commit that holds the archives.
URL = "https://github.com/privacytrustlab/datasets/raw/169de9de00de049dd2e571cf7279e64698ac046a/{}"
#: Lines of text that are parsed at once.
LINES = 4096


def load_table(
    card: Card,
    root: Path | None,
    *,
    digest: str,
    folder: str,
    archive: str,
    blob: str,
    read: Callable[[tarfile.TarFile], Iterator[np.ndarray]],
) -> Examples:
    """Load a table of zeros and ones, mapped from a file; download its archive if missing.

    Args:
        card: of the dataset.
        root: the data root; None for the user's data folder.
        digest: of the dataset.
        folder: the folder under the root.
        archive: the file in that folder.
        blob: git's object id of the archive, which a downloaded one must have.
        read: yields the rows of the open archive, (k, 1 + columns) uint8: class and columns.

    Returns:
        Rows in the order of the archive: x (n, columns) uint8, a view.

    Raises:
        BadInputError: if the archive is missing, damaged or incomplete.
    """
    file = _found(card.name, home(root) / folder, archive, blob)

    def decode() -> Iterator[np.ndarray]:
        try:
            with tarfile.open(file) as packed:
                for table in read(packed):
                    yield _checked(table, card)
        except Exception as error:  # numpy, gzip and tar raise many types on bad bytes
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadInputError(
                f"{card.name}: {file} is damaged ({why}); remove it to download the file that the "
                "authors publish"
            ) from error

    shape = (card.rows, 1 + card.shape[0])
    table = mapped(card.name, shape, [digest, stamp(file)], decode)
    return Examples.of(table[:, 1:], table[:, 0].long(), scale=card.scale)


def lines_of(packed: tarfile.TarFile, member: str) -> Iterator[np.ndarray]:
    """Parse a member of the archive, numbers between commas; yield (k, columns) uint8.

    Raises:
        ValueError: if there is no such file in the archive, or a line that is not such numbers.
    """
    found = next((m for m in packed if PurePosixPath(m.name) == PurePosixPath(member)), None)
    text = packed.extractfile(found) if found is not None else None
    if text is None:
        raise ValueError(f"there is no file {member} in it")
    while lines := list(islice(text, LINES)):
        yield np.loadtxt(lines, delimiter=",", quotechar='"', dtype=np.uint8, ndmin=2)


def _checked(table: np.ndarray, card: Card) -> np.ndarray:
    if table.shape[1] != 1 + card.shape[0]:
        raise ValueError(f"a line has {table.shape[1] - 1} columns, not {card.shape[0]}")
    if table[:, 1:].max() > 1 or table[:, 0].max() >= (card.classes or 0):
        raise ValueError(f"columns must be 0 or 1, and classes 1 to {card.classes}")
    return table


def _found(name: str, folder: Path, archive: str, blob: str) -> Path:
    """Return the archive; download it if necessary."""
    file, url = folder / archive, URL.format(archive)
    if file.is_file():
        return file
    from torchvision.datasets.utils import download_url

    why = ""
    try:
        download_url(url, str(folder), archive)
    except Exception as error:  # noqa: BLE001 - any error of the network
        why = " ".join(f"{type(error).__name__}: {error}".split())
    if not why and git_blob(file) != blob:
        file.unlink()
        why = "what arrived is not the published file"
    if why:
        raise BadInputError(
            f"{name}: {archive} is not in {folder}, and downloading it failed ({why}); get it from "
            f"{url} (which names no licence) and set --data-root or PRIVBENCH_DATA to the folder "
            f"that holds {folder.name}/"
        )
    return file


def git_blob(file: Path) -> str:
    """Return the id under which git stores the file's content."""
    told = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as held:
        while some := held.read(1 << 20):
            told.update(some)
    return told.hexdigest()
