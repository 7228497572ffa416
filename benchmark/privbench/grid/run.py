"""Runs planned trials and writes their results to disk."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from privbench.boards.provenance import provenance
from privbench.boards.records import SCHEMA, DamagedResultError, Record, read
from privbench.errors import WriteError
from privbench.grid.cell import cell_record
from privbench.grid.executors import Executor, Serial, Watch
from privbench.store.files import set_aside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.grid.cell import Trial
    from privbench.grid.plan import Planned
    from privbench.grid.trial import TrialRunner


def execute(
    planned: Sequence[Planned],
    runner: TrialRunner,
    folder: Path,
    *,
    executor: Executor | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Run the trials that have no result yet; write each result as soon as it is done.

    Args:
        planned: the trials, from ``plan``.
        runner: runs one trial.
        folder: of results. Results there that are ok are kept, and skipped ones as long as the
            reason is the same; failed ones run again. Damaged ones are set aside.
        executor: where trials run; by default in this process.
        watch: shows how far the grid is.

    Returns:
        All records, in the order of the plan. One that could not be written has failed.
    """
    records: dict[str, Record] = {}
    todo: list[Trial] = []
    for item in planned:
        old = _kept_or_set_aside(item, folder)
        if old is None and item.skip:
            old = _written(_skipped(item, runner), folder)
        if old is None:
            todo.append(item.trial)
            continue
        records[old.trial] = old
        if watch:
            watch.trial(old, old.status != "failed")
    for record in (executor or Serial()).run(todo, runner, watch):
        records[record.trial] = written = _written(record, folder)
        if watch:
            watch.trial(written, False)
    return [records[item.trial.digest] for item in planned]


def done(item: Planned, folder: Path) -> bool:
    """Whether there is a result that will be kept."""
    try:
        return _kept(item, _path(item, folder)) is not None
    except DamagedResultError:
        return False


def _path(item: Planned, folder: Path) -> Path:
    return folder / f"{item.trial.digest}.json"


def _kept_or_set_aside(item: Planned, folder: Path) -> Record | None:
    path = _path(item, folder)
    try:
        return _kept(item, path)
    except DamagedResultError as error:
        aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
        set_aside(path, aside, f"result {path}", error.reason)
        return None


def _kept(item: Planned, path: Path) -> Record | None:
    """The result on disk, unless it failed or was skipped for a reason that no longer applies.

    Raises:
        DamagedResultError: if there is something else.
    """
    if not os.path.lexists(path):
        return None
    record = read(path)
    if record.schema_version != SCHEMA:
        raise DamagedResultError(path, f"its schema is {record.schema_version}, not {SCHEMA}")
    if record.trial != item.trial.digest:  # somebody renamed a file
        raise DamagedResultError(path, f"it is of trial {record.trial}")
    still = record.status == "ok" or (record.status, record.reason) == ("skipped", item.skip)
    return record if still else None


def _written(record: Record, folder: Path) -> Record:
    """Write a record; where that is impossible, the cell has failed."""
    try:
        record.write(folder)
    except WriteError as error:
        return Record(
            trial=record.trial, cell=record.cell, seed=record.seed, status="failed",
            reason=str(error), phase=record.phase, cost=record.cost,
            provenance=record.provenance,
        )  # fmt: skip
    return record


def _skipped(item: Planned, runner: TrialRunner) -> Record:
    trial = item.trial
    return Record(
        trial=trial.digest, cell=cell_record(trial.cell), seed=trial.seed, status="skipped",
        reason=item.skip or "", phase=trial.cell.protocol.phase,
        provenance=provenance(runner.device),
    )  # fmt: skip
