"""Files that are written whole or not at all, and damaged ones that are set aside."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import warnings
from typing import TYPE_CHECKING

from privbench.ground.errors import WriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Failures that say nothing of the file that was read.
BUSY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def write(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file, text as UTF-8: a reader sees the old one or the new one. It follows the umask.

    Args:
        path: of the file.
        content: of the file.
        private: whether only the user may read it (mode 0600).

    Raises:
        WriteError: if that is impossible; then the old file stays, and no temporary one.
    """
    draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if private else 0o666
            synced(draft, content.encode() if isinstance(content, str) else content, mode)
            os.replace(draft, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(OSError):  # it is gone if all went well
            draft.unlink()


def synced(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a new file, with this mode less the umask, and wait until it is on the disk."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn a failure to write into an error that names the file as the user knows it."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def set_aside(path: Path, aside: Path, what: str, reason: str) -> None:
    """Rename a damaged file or folder, so that nothing is lost, and warn."""
    try:
        os.replace(path, aside)  # noqa: PTH105
    except FileNotFoundError:  # deleted or moved by another process
        return
    warnings.warn(
        f"{what} is damaged ({reason}): moved to {aside}, treated as missing",
        RuntimeWarning,
        stacklevel=4,
    )
