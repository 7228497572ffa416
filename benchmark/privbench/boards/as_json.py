"""A board for machines: all cells with their numbers, and what was found, as one JSON document."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from privbench.boards.closing import closing
from privbench.boards.csv_table import FIRST, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.results.record import Record

#: Version of the document; it changes when a key does.
FORMAT = 1


def document(records: Sequence[Record], bound: float | None = None) -> str:
    """Return the JSON document; equal results give identical bytes.

    Its keys are ``format``; ``trials``, ``failed``, ``skipped`` (numbers of results); ``found``,
    the sentences of ``closing``; and ``cells``, one mapping for each cell with the columns and
    numbers of the csv file; what was not measured is left out or null.

    Args:
        records: all of a board, of any status, with positive controls.
        bound: as of ``panels``.
    """
    status = [record.status for record in records]
    cells = [
        {name: text if name in FIRST else _number(text) for name, text in row.items()}
        for row in rows(records).values()
    ]
    made = {
        "format": FORMAT, "trials": len(records), "failed": status.count("failed"),
        "skipped": status.count("skipped"), "found": closing(records, bound), "cells": cells,
    }  # fmt: skip
    return json.dumps(made, ensure_ascii=False, indent=1, allow_nan=False)


def _number(text: str) -> Any:
    """The number that a text is; the text if it is none, such as ``refused``; None if empty."""
    try:
        value = float(text)
    except ValueError:
        return text or None
    if not math.isfinite(value):
        return text
    return int(value) if text.lstrip("-").isdecimal() else value
