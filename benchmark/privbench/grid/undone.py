"""Records of trials that did not run, or whose result cannot be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.results.record import Record

if TYPE_CHECKING:
    from typing import Literal


def failed(blank: str, reason: str, traceback: str = "") -> Record:
    """Return the record of a trial that could not run.

    Args:
        blank: its record without results, as JSON.
        reason: what went wrong, in a sentence.
        traceback: of the error.
    """
    record = Record.model_validate_json(blank)
    record.status, record.reason, record.traceback = "failed", reason, traceback
    return record


def skipped(blank: str, reason: str) -> Record:
    """Return the record of a trial that does not run; the arguments are those of ``failed``."""
    return _bare(Record.model_validate_json(blank), "skipped", reason)


def unwritable(record: Record, reason: str) -> Record:
    """Return the record of a trial whose result cannot be written: without the result."""
    bare = _bare(record, "failed", reason)
    bare.cost = record.cost
    return bare


def _bare(record: Record, status: Literal["failed", "skipped"], reason: str) -> Record:
    return Record(
        trial=record.trial, cell=record.cell, board=record.board, seed=record.seed, status=status,
        reason=reason, phase=record.phase, strengths=record.strengths, provenance=record.provenance,
    )  # fmt: skip
