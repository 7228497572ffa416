"""Per-sample scores: one safetensors file beside each result, which names its checksum.

Columns have one entry per row of the question, in its order:

* ``row``: int64 hash of the row's content, the same for every seed and split; equal rows share one;
* ``label``: class, -1 if unknown; ``attribute.NAME``: value, -1 if unknown;
* ``truth.NAME``: the truth of the game, for example ``truth.member``;
* ``victim.NAME`` and ``CONTROL.NAME``: the answers about the victim and about each control, for
  example ``victim.scores``, ``null.decisions``.

The file holds the truth.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

Columns: TypeAlias = Mapping[str, NDArray[np.generic]]

SUFFIX = ".safetensors"
#: A file larger than this is refused before it is read.
MOST_BYTES = 2**28
MOST_COLUMNS = 1000
_DTYPES = {"F64", "F32", "I64", "I32", "U8", "BOOL"}
_NAME = re.compile(r"[a-z_]+(\.[^\x00-\x1f]{1,80})?")


class BadSamplesError(ValueError):
    """Bytes that are no per-sample scores; the message says why in a few words."""


def pack(columns: Columns) -> bytes:
    """Return the columns as the bytes of a file; equal columns give equal bytes."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(column) for name, column in columns.items()})


def unpack(content: bytes) -> dict[str, NDArray[np.generic]]:
    """Return the columns of a file.

    Raises:
        BadSamplesError: if names, types or shapes are not those of per-sample scores.
    """
    from safetensors import SafetensorError, deserialize

    try:
        found = dict(deserialize(content))  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, RecursionError) as error:
        raise BadSamplesError(f"it is not safetensors ({error})") from None
    if not 0 < len(found) <= MOST_COLUMNS or not all(_NAME.fullmatch(name) for name in found):
        raise BadSamplesError("its columns are not those of per-sample scores")
    if any(told["dtype"] not in _DTYPES for told in found.values()):
        raise BadSamplesError("it holds types other than numbers of 32 or 64 bits and bool")
    shapes = [tuple(told["shape"]) for told in found.values()]
    if len({shape[:1] for shape in shapes}) > 1 or not all(
        len(shape) in (1, 2) and min(shape) > 0 for shape in shapes
    ):
        raise BadSamplesError("its columns have unequal lengths or no rows")
    from safetensors.numpy import load

    columns: dict[str, NDArray[np.generic]] = load(content)
    if "row" not in columns or columns["row"].dtype != np.int64:
        raise BadSamplesError("it has no column `row`")
    for name, column in columns.items():
        fact = "." not in name or name.startswith(("attribute.", "truth."))
        if fact and (column.ndim != 1 or column.dtype.kind not in "iub"):
            raise BadSamplesError("its rows, labels or truths are not whole numbers, one per row")
    return columns


def checksum(content: bytes) -> str:
    """Return the BLAKE2b digest of a file, 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def load_checked(path: Path, size: int, wanted: str) -> bytes:
    """Return the bytes of a file if they are still those that were written.

    Raises:
        FileNotFoundError: if there is no file.
        BadSamplesError: if it has changed, or is too large.
    """
    if size > MOST_BYTES:
        raise BadSamplesError(f"it has more than {MOST_BYTES:,} bytes")
    if path.stat().st_size != size:
        raise BadSamplesError("it has changed since it was written")
    content = path.read_bytes()
    if len(content) != size or checksum(content) != wanted:
        raise BadSamplesError("it has changed since it was written")
    return content


def part(columns: Columns, prefix: str) -> dict[str, NDArray[np.generic]]:
    """Return the columns ``PREFIX.NAME`` by NAME, ordered by name."""
    start = f"{prefix}."
    names = sorted(name for name in columns if name.startswith(start))
    return {name.removeprefix(start): columns[name] for name in names}
