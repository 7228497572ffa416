"""Sealed splits: they cannot be cut before the run ends, and can be repeated afterwards.

A sealed run draws a nonce, keeps it in memory and cuts its splits with it. Records hold a
commitment to the nonce while the grid runs, and the nonce itself once the run has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import warnings
from typing import TYPE_CHECKING

from privbench.boards.records import DamagedResultError, read
from privbench.errors import WriteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from privbench.boards.records import Record


def new_nonce() -> str:
    """Return a nonce: 32 random hexadecimal digits."""
    return secrets.token_hex(16)


def commitment(nonce: str) -> str:
    """Return what may be known of a nonce while it is secret: 32 digits of its SHA-256.

    Without a nonce, "".
    """
    return "" if not nonce else hashlib.sha256(nonce.encode()).hexdigest()[:32]


def reveal(folder: Path, nonce: str, records: Iterable[Record] = ()) -> None:
    """Write the nonce into the results that are committed to it: files, and records in memory."""
    for record in [*records, *_sealed(folder)]:
        if record.seal == {"commitment": commitment(nonce)}:
            record.seal["nonce"] = nonce
            try:
                record.write(folder)
            except WriteError as error:
                text = f"{error}; the secret of this sealed result is {nonce}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)


def set_aside_unrevealed(folder: Path) -> None:
    """Rename results of killed sealed runs: they cannot be repeated, and their cells run again."""
    for record in _sealed(folder):
        if "nonce" not in record.seal or record.status != "ok":
            path = record.path(folder)
            path.rename(path.with_name(f"{path.name}.unrevealed-{secrets.token_hex(4)}"))


def revealed(folder: Path) -> list[str]:
    """Return the nonces that results in a folder reveal."""
    nonces = [record.seal["nonce"] for record in _sealed(folder) if "nonce" in record.seal]
    return list(dict.fromkeys(nonces))


def _sealed(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(DamagedResultError):
            record = read(path)
            if record.seal:
                yield record
