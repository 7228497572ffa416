"""Rows that are decoded once, kept in a file and mapped into memory."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from platformdirs import user_cache_dir

from privbench.ground.errors import BadInputError
from privbench.toolbox.mapped_array import Array, Arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def kept(
    name: str,
    made_from: Sequence[object],
    shape: tuple[int, ...],
    dtype: Any,
    decode: Callable[[], Iterable[np.ndarray]],
) -> Array:
    """Return rows that are decoded once; of more than 64 MB, they are read when they are used.

    The file is ``decoded/<name>-<digest>.npy`` in the folder that PRIVBENCH_CACHE names, or else in
    the user's cache folder. It may be deleted when nothing runs. Several processes that ask at once
    wait for one of them.

    Args:
        name: of the dataset.
        made_from: all that the rows depend on: settings, and ``stamp`` of every file read. Rows are
            decoded again if any of it changes.
        shape: (n, ...) of all rows.
        dtype: of the rows.
        decode: yields the rows in order, in arrays (k, ...) of that type.

    Raises:
        BadInputError: if ``decode`` yields fewer or more rows, or the file cannot be written.
    """
    given = os.environ.get("PRIVBENCH_CACHE")
    folder = (Path(given).expanduser() if given else Path(user_cache_dir("privbench"))) / "decoded"
    dtype = np.dtype(dtype)
    told = hashlib.blake2b(repr((name, shape, dtype.str, [*made_from])).encode(), digest_size=16)
    file = folder / f"{name}-{told.hexdigest()}.npy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            held = _opened(file, shape, dtype)
            if held is None:
                _write(name, file, shape, dtype, decode())
                held = _opened(file, shape, dtype)
    except OSError as error:
        raise BadInputError(
            f"{name}: decoded rows cannot be kept in {folder} ({error}); free some space, or set "
            "PRIVBENCH_CACHE to another folder"
        ) from error
    if held is None:
        raise BadInputError(f"{name}: {file} was changed while it was read; try again")
    return held


def stamp(file: Path) -> tuple[str, int, int]:
    """Return what tells whether a file changed: its path, its bytes and when it was written."""
    told = file.stat()
    return str(file.absolute()), told.st_size, told.st_mtime_ns


def _opened(file: Path, shape: tuple[int, ...], dtype: np.dtype) -> Array | None:
    """Return the rows in a file; None if it is not there or not whole."""
    try:
        held = Arrays(file).read("x")
    except (FileNotFoundError, EOFError, ValueError):
        return None
    return held if (held.values.shape, held.values.dtype) == (shape, dtype) else None


def _write(
    name: str, file: Path, shape: tuple[int, ...], dtype: np.dtype, arrays: Iterable[np.ndarray]
) -> None:
    """Write the arrays one after the other under a temporary name, then rename the file."""
    draft, rows = file.with_name(f".{secrets.token_hex(8)}.part"), 0
    head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        with draft.open("wb") as opened:
            np.lib.format.write_array_header_1_0(opened, head)
            for array in arrays:
                if array.dtype != dtype or array.shape[1:] != shape[1:]:
                    raise BadInputError(
                        f"{name}: row {rows} of the files has shape {array.shape[1:]}, not "
                        f"{shape[1:]}; get them again"
                    )
                opened.write(np.ascontiguousarray(array).data)
                rows += len(array)
        if rows != shape[0]:
            raise BadInputError(
                f"{name}: the files hold {rows} rows where {shape[0]} were published; get them "
                "again"
            )
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
