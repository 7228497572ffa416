"""Runs planned trials and writes their results to disk."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from privbench.grid.executors import Executor, Serial, Watch
from privbench.grid.kept import kept
from privbench.grid.undone import failed, skipped, unwritable
from privbench.ground.errors import WriteError
from privbench.ground.store.files import set_aside
from privbench.results.record import DamagedResultError, Record

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.grid.planned import Item, Planned


def execute(
    planned: Planned,
    folder: Path,
    *,
    executor: Executor | None = None,
    watch: Watch | None = None,
) -> list[Record]:
    """Run the trials that have no result yet; write each result as soon as it is done.

    Args:
        planned: the trials.
        folder: of results. Results there that are ok are kept, and skipped ones as long as the
            reason is the same; failed ones run again. Damaged ones are set aside.
        executor: where trials run; by default in this process.
        watch: shows how far the grid is.

    Returns:
        All records, in the order of the plan. One that could not be written has failed.
    """
    records: dict[str, Record] = {}

    def over(record: Record, *, was_there: bool = False) -> None:
        records[record.trial] = record
        if watch:
            watch.trial(record, was_there)

    todo: list[str] = []
    items = planned.items
    for item in items:
        if item.failed is not None:
            over(_written(failed(planned.blank(item.digest), *item.failed), folder))
        elif there := _kept_or_set_aside(item, folder):
            over(there, was_there=True)
        elif item.skip:
            over(_written(skipped(planned.blank(item.digest), item.skip), folder))
        else:
            todo.append(item.digest)
    for record in (executor or Serial()).run(planned, todo, watch):
        over(_written(record, folder))
    return [records[item.digest] for item in items]


def _kept_or_set_aside(item: Item, folder: Path) -> Record | None:
    try:
        return kept(item.digest, item.skip, folder)
    except DamagedResultError as error:
        path = error.path
        aside = path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}")
        set_aside(path, aside, f"result {path}", error.reason)
        return None


def _written(record: Record, folder: Path) -> Record:
    """Write a record; where that is impossible, the cell has failed."""
    if problem := record.excess():
        record = unwritable(
            record, f"its result cannot be kept: {problem}; let the methods note less"
        )
    try:
        record.write(folder)
    except WriteError as error:
        return unwritable(record, str(error))
    return record
