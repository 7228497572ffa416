"""Per-sample scores of results, from the files beside them or from their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.ground.store import files
from privbench.results import samples
from privbench.results.record import DamagedResultError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from privbench.results.record import Record


def sample_bytes(record: Record, folders: Iterable[Path]) -> bytes | None:
    """The per-sample scores of a result: of its line, or of the first folder that has them.

    Returns:
        None if the result has none, or if no folder has the file.

    Raises:
        DamagedResultError: if the only files are not those that were written with the result.
    """
    if record.samples is None or record.unwritten_samples:
        return record.unwritten_samples or None
    damaged: DamagedResultError | None = None
    for folder in folders:
        path = record.samples_path(folder)
        try:
            return samples.load_checked(path, record.samples.bytes, record.samples.blake2b)
        except FileNotFoundError:
            continue
        except samples.BadSamplesError as error:
            damaged = DamagedResultError(path, str(error))
        except OSError as error:
            if error.errno in files.BUSY:
                raise
            damaged = DamagedResultError(path, f"it cannot be read ({error.strerror})")
    if damaged:
        raise damaged
    return None


def read_samples(record: Record, folders: Iterable[Path]) -> samples.Columns | None:
    """The columns of ``sample_bytes``.

    Raises:
        DamagedResultError: as there, or if they are no per-sample scores.
    """
    folders = list(folders)
    content = sample_bytes(record, folders)
    if content is None:
        return None
    try:
        return samples.unpack(content)
    except samples.BadSamplesError as error:
        raise DamagedResultError(record.samples_path(folders[0]), str(error)) from None
