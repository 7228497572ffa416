"""A board for machines: all cells with their numbers, and what was found, as one JSON document."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from privbench.boards.closing import closing
from privbench.boards.csv_table import rows
from privbench.results.audits import Bound
from privbench.results.one_file import rounded

if TYPE_CHECKING:
    from privbench.boards.board import Leaderboard
    from privbench.boards.csv_table import Value

#: Version of the document; it changes when a key does.
FORMAT = 1
#: Whole numbers from here on have more digits than the csv file shows.
_WHOLE = 1e6


def document(board: Leaderboard) -> str:
    """Return the JSON document; equal results give identical bytes.

    Its keys are ``format``; ``trials``, ``failed``, ``skipped`` (numbers of results); ``found``,
    the sentences of ``closing``; and ``cells``, one mapping for each cell with the columns and
    numbers of the csv file; what was not measured is left out or null.
    """
    status = [record.status for record in board.records]
    made = {
        "format": FORMAT, "trials": len(status), "failed": status.count("failed"),
        "skipped": status.count("skipped"), "found": closing(board),
        "cells": [{name: _plain(of) for name, of in row.items()} for row in rows(board).values()],
    }  # fmt: skip
    return json.dumps(made, ensure_ascii=False, indent=1, allow_nan=False)


def _plain(value: Value) -> str | float | None:
    """A value as JSON has it: numbers as the csv file rounds them, whole ones without a point."""
    if isinstance(value, Bound):
        if value.number is None:
            return value.text
        return int(value.number) if value.text.isdecimal() else value.number
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    short: float = rounded(value)
    return int(short) if short.is_integer() and abs(short) < _WHOLE else short
