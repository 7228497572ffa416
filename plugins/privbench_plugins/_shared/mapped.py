"""Rows that are decoded once, kept in a file and mapped into memory."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from filelock import FileLock
from platformdirs import user_cache_dir

from privbench import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor


def mapped(
    name: str,
    shape: tuple[int, ...],
    made_from: Sequence[object],
    decode: Callable[[], Iterable[np.ndarray]],
) -> Tensor:
    """Return rows as a tensor that reads them from a file when they are used.

    The file is ``decoded/<name>-<digest>.npy`` in the folder that PRIVBENCH_CACHE names, or else in
    the user's cache folder. It may be deleted at any time. Whoever writes into the tensor changes
    neither the file nor the tensor of another call.

    Args:
        name: of the dataset.
        shape: (n, ...) of all rows.
        made_from: all that the rows depend on: settings, and ``stamp`` of every file read. Rows are
            decoded again if any of it changes.
        decode: yields the rows in order, in arrays (k, ...) uint8.

    Returns:
        Tensor of that shape, uint8.

    Raises:
        BadInputError: if ``decode`` yields fewer or more rows, or the file cannot be written.
    """
    given = os.environ.get("PRIVBENCH_CACHE")
    folder = (Path(given).expanduser() if given else Path(user_cache_dir("privbench"))) / "decoded"
    told = hashlib.blake2b(repr((name, shape, list(made_from))).encode(), digest_size=16)
    file = folder / f"{name}-{told.hexdigest()}.npy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):  # one process decodes, the others wait
            held = _opened(file, shape)
            if held is None:
                _write(name, file, shape, decode())
                held = _opened(file, shape)
    except OSError as error:
        raise BadInputError(
            f"{name}: decoded rows cannot be kept in {folder} ({error}); free some space, or set "
            "PRIVBENCH_CACHE to another folder"
        ) from error
    if held is None:
        raise BadInputError(f"{name}: {file} was changed while it was read; try again")
    return torch.from_numpy(held)


def stamp(file: Path) -> tuple[str, int, int]:
    """Return what tells whether a file changed: its path, its bytes and when it was written."""
    told = file.stat()
    return str(file.absolute()), told.st_size, told.st_mtime_ns


def _opened(file: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Map the file, copy-on-write; None if it is not there or not whole."""
    try:
        held = np.load(file, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    whole = isinstance(held, np.ndarray) and held.dtype == np.uint8 and held.shape == shape
    return held if whole else None


def _write(name: str, file: Path, shape: tuple[int, ...], arrays: Iterable[np.ndarray]) -> None:
    """Write the arrays one after the other under a temporary name, then rename the file."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{name}-", delete=False) as draft:
        try:
            np.lib.format.write_array_header_1_0(
                draft, {"descr": "|u1", "fortran_order": False, "shape": shape}
            )
            rows = 0
            for array in arrays:
                if array.dtype != np.uint8 or array.shape[1:] != shape[1:]:
                    raise BadInputError(
                        f"{name}: row {rows} of the files has shape {array.shape[1:]}, not "
                        f"{shape[1:]}; get them again"
                    )
                draft.write(np.ascontiguousarray(array).data)
                rows += len(array)
            if rows != shape[0]:
                raise BadInputError(
                    f"{name}: the files hold {rows} rows where {shape[0]} were published; get them "
                    "again"
                )
            draft.close()
            Path(draft.name).replace(file)
        finally:
            Path(draft.name).unlink(missing_ok=True)
