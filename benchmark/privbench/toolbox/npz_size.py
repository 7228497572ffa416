"""How large a file is when it is unpacked, told before any of it is read."""

from __future__ import annotations

import math
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.text import quoted

if TYPE_CHECKING:
    from pathlib import Path

#: Environment variable: most bytes of the arrays that are read from a file into memory.
MOST = "PRIVBENCH_MOST_ARRAY_BYTES"
_DEFAULT = 2**32


def excess(file: Path, mapped: float = math.inf) -> str:
    """Return why the arrays of a file are not read, as the end of a sentence; "" if they are.

    Args:
        file: a ``.npz`` file; any other one is not too large.
        mapped: bytes from which on an array that is not compressed stays in the file.

    Raises:
        OSError: if it cannot be read.
        Exception: of NumPy or ``zipfile`` if it is damaged, or an array is not as long as it says.
    """
    if not zipfile.is_zipfile(file):
        return ""
    size = 0
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                _refuse_other_size(member, info)
            stays = info.compress_type == zipfile.ZIP_STORED and info.file_size >= mapped
            size += 0 if stays else info.file_size
    return beyond(size)


def beyond(size: int) -> str:
    """Return why a file that holds so many bytes is not read, as ``excess``; "" if it is."""
    most = os.environ.get(MOST, str(_DEFAULT))
    if not most.isdecimal():
        return f"is not read, since {MOST} is {quoted(most)}: set it to a number of bytes"
    if size <= int(most):
        return ""
    return (f"holds {size:,} bytes when unpacked, more than {int(most):,}: give a smaller "
            f"file or, if you trust it and have the memory, set {MOST}={size}")  # fmt: skip


def _refuse_other_size(member: Any, info: zipfile.ZipInfo) -> None:
    """Refuse a member whose header names more or fewer bytes than it has."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(member)
    named = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and named != info.file_size - member.tell():
        raise ValueError(f"{info.filename} has {info.file_size:,} bytes, and its header names "
                         f"{named:,}")  # fmt: skip
