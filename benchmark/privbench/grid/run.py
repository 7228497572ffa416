"""Runs planned trials and writes their results to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards.records import Record
from privbench.grid.cell import cell_record
from privbench.grid.executors import Executor, Serial, Watch
from privbench.grid.kept import kept
from privbench.grid.plugins import provenance_of
from privbench.grid.trial import failed_record

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
            reason is the same; failed ones run again.
        executor: where trials run; by default in this process.
        watch: shows how far the grid is.

    Returns:
        All records, in the order of the plan.
    """
    records: dict[str, Record] = {}
    todo: list[Trial] = []
    for item in planned:
        if item.failed is not None:
            reason, trace = item.failed
            made = failed_record(item.trial, reason, runner.device, trace)
            made.write(folder)
            records[made.trial] = made
            if watch:
                watch.trial(made, False)
            continue
        old = kept(item.trial.digest, item.skip, folder)
        if old is None and item.skip:
            old = _skipped(item, runner)
            old.write(folder)
        if old is None:
            todo.append(item.trial)
            continue
        records[old.trial] = old
        if watch:
            watch.trial(old, True)
    for record in (executor or Serial()).run(todo, runner, watch):
        record.write(folder)
        records[record.trial] = record
        if watch:
            watch.trial(record, False)
    return [records[item.trial.digest] for item in planned]


def _skipped(item: Planned, runner: TrialRunner) -> Record:
    trial = item.trial
    return Record(
        trial=trial.digest, cell=cell_record(trial.cell), seed=trial.seed, status="skipped",
        reason=item.skip or "", phase=trial.cell.protocol.phase,
        provenance=provenance_of(trial.cell, runner.device),
    )  # fmt: skip
