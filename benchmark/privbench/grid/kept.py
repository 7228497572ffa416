"""Results that are kept: of one trial, and of a whole grid that is finished.

A finished grid is recognised without planning it again, so torch is not imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from privbench.ground.errors import WriteError
from privbench.ground.judges import Wanted  # noqa: TC001 - pydantic reads it
from privbench.ground.store.canonical import digest
from privbench.ground.store.files import write
from privbench.ground.store.stamps import edited_since_start, stamps
from privbench.results.files import read
from privbench.results.record import DamagedResultError, Record
from privbench.results.sample_files import sample_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Environment variables that change what a run is.
_ENVIRONMENT = ("PRIVBENCH_", "PYTHON", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "ONEDNN_", "ATEN_")


def kept(trial: str, skip: str | None, folder: Path) -> Record | None:
    """The result on disk, unless it failed or was skipped for a reason that no longer applies.

    It is not kept either if the file of its per-sample scores is missing.

    Args:
        trial: digest of the trial.
        skip: the reason to skip it now; None if it runs.
        folder: of results.

    Raises:
        DamagedResultError: if there is something else, or per-sample scores of something else.
    """
    path = folder / f"{trial}.json"
    if not os.path.lexists(path):
        return None
    record = read(path)
    if record.trial != trial:  # somebody renamed a file
        raise DamagedResultError(path, f"it is of trial {record.trial}")
    still = record.status == "ok" or (record.status, record.reason) == ("skipped", skip)
    if not still:
        return None
    if record.samples is not None and sample_bytes(record, [folder]) is None:
        return None
    return record


def is_kept(trial: str, skip: str | None, folder: Path) -> bool:
    """Whether a run would keep the result on disk; a damaged one is made again."""
    try:
        return kept(trial, skip, folder) is not None
    except DamagedResultError:
        return False


class _Note(BaseModel):
    """What is noted about a finished grid: trials, files that decided the plan, and judges."""

    trials: list[tuple[str, str | None]]
    files: dict[str, tuple[int, int]]
    judging: dict[str, list[Wanted]]


@dataclass(frozen=True)
class Finished:
    """A grid that is finished.

    Attributes:
        records: all results.
        judging: see ``grid.judging``.
    """

    records: list[Record]
    judging: dict[str, list[Wanted]]


class FinishedGrids:
    """Notes about finished grids, one for each request.

    A note counts for the same suite, options, environment, plugins and data folder, as long as no
    file that was imported to plan the grid has changed, and none that the suite names (weights,
    canaries, pictures, at any depth of a folder).
    """

    def __init__(self, folder: Path, request: Mapping[str, Any], data_root: Path | None) -> None:
        """Look for the notes in a folder.

        Args:
            folder: of notes.
            request: all that was asked for, as plain values.
            data_root: folder of datasets.
        """
        here = {
            "python": [sys.version, sys.path], "folder": str(Path.cwd()),
            "environment": {k: v for k, v in os.environ.items() if k.startswith(_ENVIRONMENT)},
            "plugins": sorted([e.name, e.value] for e in entry_points(group="privbench")),
            "data": _listing(data_root),
            "named": [_named(text) for text in _texts(request.get("suite"))],
            "gpus": sorted(str(path) for path in Path("/dev").glob("nvidia*")),
        }  # fmt: skip
        self.path = folder / f"{digest([dict(request), here])}.json"

    def find(self, out: Path) -> Finished | None:
        """The grid, if it is finished and all results are in that folder."""
        try:
            note = _Note.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return None
        if stamps(note.files) != note.files:
            return None
        try:
            found = [kept(trial, skip, out) for trial, skip in note.trials]
        except DamagedResultError:
            return None  # a run sets it aside and says so
        records = [record for record in found if record is not None]
        return Finished(records, note.judging) if records and len(records) == len(found) else None

    def add(
        self,
        trials: Sequence[tuple[str, str | None]],
        files: Mapping[str, tuple[int, int]],
        judging: Mapping[str, Sequence[Wanted]],
    ) -> None:
        """Note that the grid is finished.

        Args:
            trials: digest of each trial, and the reason if it is skipped.
            files: ``imported_files()`` when the grid was planned.
            judging: see ``grid.judging``.
        """
        if edited_since_start(files):
            return
        of = {name: list(wanted) for name, wanted in judging.items()}
        note = _Note(trials=list(trials), files=dict(files), judging=of)
        with contextlib.suppress(WriteError):  # a note only saves time
            write(self.path, note.model_dump_json())


def _texts(value: Any) -> Iterator[str]:
    """All strings in nested lists and values of mappings, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _named(text: str) -> list[Any]:
    """Stamps of what a string is the path of; nothing if it is none."""
    found = [*stamps([text]).values()]
    if not found or not Path(text).is_dir():
        return list(found)
    inside = [os.path.join(at, name) for at, _, names in os.walk(text) for name in names]  # noqa: PTH118
    return [*found, digest([*sorted(stamps(inside).items())])]


def _listing(folder: Path | None) -> list[list[Any]]:
    """What is directly in a folder of datasets, with stamps."""
    if folder is None or not folder.is_dir():
        return []
    return [[Path(path).name, *stamp] for path, stamp in sorted(stamps(folder.iterdir()).items())]
