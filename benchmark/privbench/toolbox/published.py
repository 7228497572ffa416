"""Data that their authors publish: found under the data root, or downloaded and checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from platformdirs import user_data_dir

from privbench.ground.errors import BadInputError
from privbench.measure.data.protocol import Part, Protocol
from privbench.toolbox.messages import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def home(root: Path | None) -> Path:
    """Return ``root``, or privbench's user data folder if it is None.

    >>> home(Path("data")).name
    'data'
    """
    return Path(user_data_dir("privbench")) if root is None else root


def found_or_downloaded(
    name: str,
    file: Path,
    url: str,
    *,
    terms: str = "",
    md5: str | None = None,
    blob: str | None = None,
) -> Path:
    """Return a file, which is downloaded if it is missing.

    Args:
        name: of the dataset.
        file: where it is, or is downloaded to.
        url: of the published file.
        terms: under which it is published.
        md5: of a downloaded file.
        blob: git's object id of a downloaded file.

    Raises:
        BadInputError: if it is missing and cannot be downloaded, or if what arrives is another.
    """
    if file.is_file():
        return file
    from torchvision.datasets.utils import download_url

    why = ""
    try:
        download_url(url, str(file.parent), file.name, md5)
    except Exception as error:  # noqa: BLE001 - any error of the network
        why = one_line(error)
    if not why and blob not in (None, git_blob(file)):
        file.unlink()
        why = "what arrived is not the published file"
    if why:
        origin = f"{url} ({terms})" if terms else url
        raise BadInputError(
            f"{name}: {file.name} is not in {file.parent}, and downloading it failed ({why}); get "
            f"it from {origin} and set --data-root or PRIVBENCH_DATA to the folder that holds "
            f"{file.parent.name}/"
        )
    return file


def damaged(name: str, file: Path, why: str) -> BadInputError:
    """Return the error that names a file whose content is not the published one."""
    return BadInputError(
        f"{name}: {file} is damaged ({' '.join(why.split())}); remove it, and the published file "
        "is downloaded"
    )


def git_blob(file: Path) -> str:
    """Return the id under which git stores the file's content."""
    told = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as held:
        while some := held.read(1 << 20):
            told.update(some)
    return told.hexdigest()


def fetched(read: Callable[[], T], name: str, place: Path, folder: str, origin: str) -> T:
    """Return what ``read`` returns; it downloads what is missing.

    Args:
        read: makes instances of torchvision's class, with ``download``.
        name: of the dataset.
        place: the data root.
        folder: the folder that torchvision looks for under the root.
        origin: where the data are published, and under which licence.

    Raises:
        BadInputError: if the files are missing, damaged or incomplete and cannot be downloaded.
    """
    found = (place / folder).is_dir()
    try:
        return read()
    except Exception as error:  # anything that network, archives and files may raise
        state = "is incomplete or damaged in" if found else "is not in"
        raise BadInputError(
            f"{name}: {folder} {state} {place} and downloading it failed ({one_line(error)}); "
            f"get it from {origin} and set --data-root or PRIVBENCH_DATA to the folder that holds "
            "it"
        ) from error


def short_run(members: int, pool: int) -> Protocol:
    """Return a default protocol for a short run on a CPU.

    All parts except the test rows come from source ``train``, so that members and nonmembers differ
    only by training.

    >>> short_run(1_000, 4_000).parts()["pool"].size
    4000
    """
    return Protocol(
        name="default", members=Part(members, "train"), nonmembers=Part(members, "train"),
        reference=Part(500, "train"), pool=Part(pool, "train"), test=Part(2_000, "test"),
    )  # fmt: skip
