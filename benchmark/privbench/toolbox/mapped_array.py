"""Arrays in files: read as memory maps where they are large, and never unpickled."""

from __future__ import annotations

import mmap
import os
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

#: Arrays of fewer bytes are read into memory.
LARGE = 1 << 26
#: Bytes of an array that are read at a time.
BLOCK = 1 << 25


@dataclass(frozen=True)
class Array:
    """An array, in memory or mapped.

    Attributes:
        values: the array. What is written into a mapped one never reaches the file.
        mapped: the map; None if it is in memory.
    """

    values: np.ndarray
    mapped: mmap.mmap | None = None

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield a few rows at a time; pages of a map that were read are given back."""
        size = max(1, self.values[:1].nbytes)
        step = max(1, BLOCK // size)
        for start in range(0, len(self.values), step):
            yield self.values[start : start + step]
            if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                self.mapped.madvise(mmap.MADV_DONTNEED)

    def tensor(self) -> Tensor:
        """Return the values as a tensor, without a copy."""
        return torch.from_numpy(self.values)


class Arrays:
    """The arrays of a ``.npz`` or ``.npy`` file, by name; that of a ``.npy`` file is ``x``."""

    def __init__(self, file: Path) -> None:
        """Read the names.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is neither.
        """
        self.file = file
        with file.open("rb") as opened:
            packed = opened.read(4) == b"PK\x03\x04"
        self._members: dict[str, zipfile.ZipInfo] = {}
        if packed:
            with zipfile.ZipFile(file) as archive:
                listed = archive.infolist()
            self._members = {info.filename.removesuffix(".npy"): info for info in listed}
        self.names = list(self._members) if packed else ["x"]

    def read(self, name: str) -> Array:
        """Return an array; a large one that is not compressed is mapped.

        Raises:
            ValueError: if it holds Python objects, or is damaged.
            OSError: if the file cannot be read.
        """
        info = self._members.get(name)
        with self.file.open("rb") as opened:
            if info is None:
                return _read(opened)
            if info.compress_type == zipfile.ZIP_STORED and info.file_size >= LARGE:
                opened.seek(_start(opened, info))
                return _read(opened)
            with zipfile.ZipFile(opened) as archive, archive.open(info) as member:
                return Array(np.lib.format.read_array(member, allow_pickle=False))


def _start(opened: Any, info: zipfile.ZipInfo) -> int:
    """Return where a stored member begins: after its local header, 30 bytes and two names."""
    opened.seek(info.header_offset)
    head = opened.read(30)
    if head[:4] != b"PK\x03\x04":
        raise ValueError("its table of contents is damaged")
    names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return info.header_offset + 30 + names


def _mapped(file: int) -> mmap.mmap:
    """Map a file copy-on-write, so that a row that is written to by mistake ends no process."""
    if os.name != "posix":
        return mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    # No memory is set aside for copies: a file may be larger than the memory.
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    return mmap.mmap(
        file, 0, flags=mmap.MAP_PRIVATE | unreserved, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )


def _read(opened: Any) -> Array:
    """Return the array that begins here, in the format of NumPy; map it if it is large."""
    begun = opened.tell()
    version = np.lib.format.read_magic(opened)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)  # fmt: skip
    if header is None:
        raise ValueError(f"its format {version} is not known")
    shape, fortran, dtype = header(opened)
    count = int(np.prod(shape, dtype=object))
    offset = opened.tell()
    if dtype.hasobject or fortran or count * dtype.itemsize < LARGE:
        opened.seek(begun)
        return Array(np.lib.format.read_array(opened, allow_pickle=False))
    if os.fstat(opened.fileno()).st_size < offset + count * dtype.itemsize:
        raise ValueError("it ends too early")
    mapped = _mapped(opened.fileno())
    return Array(np.frombuffer(mapped, dtype, count, offset).reshape(shape), mapped)
