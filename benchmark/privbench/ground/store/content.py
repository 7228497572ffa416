"""Digests of files of data."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Files whose digest this process computed.
_READ: set[str] = set()
_RECENT = 2_000_000_000  # nanoseconds in which a file can change without another time stamp


def files_digested() -> set[str]:
    """Return the files whose digest this process computed."""
    return {*_READ}


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file, which is read again only if it has changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "rows.csv")
    ...     _ = file.write_text("a,b")
    ...     file_digest(file)[:8]
    '1eb7c54d'

    Raises:
        OSError: if it cannot be read, as a device or a pipe.
    """
    _READ.add(os.path.abspath(file))  # noqa: PTH100 - links stay: what they point at may change
    found = os.stat(file)  # noqa: PTH116 - a text is fine, too
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))  # it may never end
    stamp = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    if time.time_ns() - max(stamp[-2:]) < _RECENT:  # it may change once more at the same time
        return _sha256(file)
    return _known(file, stamp)


@functools.lru_cache(maxsize=1 << 20)
def _known(file: Path, stamp: tuple[int, ...]) -> str:
    del stamp
    return _sha256(file)


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:  # noqa: PTH123
        return hashlib.file_digest(opened, "sha256").hexdigest()
