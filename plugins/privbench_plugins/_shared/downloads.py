"""Files that a dataset's authors publish: found under the data root, or downloaded and checked."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from privbench import BadInputError
from privbench_plugins._shared.messages import one_line

if TYPE_CHECKING:
    from pathlib import Path


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
