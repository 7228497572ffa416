"""All results of a suite in one file: a line of JSON for each trial, ordered by trial.

This is how results are published. Floats are rounded to what another machine reproduces, and each
line has a checksum of its own. Per-sample scores and tracebacks are not in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from privbench.store.canonical import checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.records import Record

#: How the name of such a file ends.
SUFFIX = ".jsonl"
#: Significant digits of a float.
DIGITS = 6


def dumped(records: Sequence[Record]) -> str:
    """Return the text of the file; equal results give identical bytes."""
    lines = []
    for record in sorted(records, key=lambda one: one.trial):
        values = record.model_dump(
            mode="json", exclude={"samples", "traceback"}, exclude_defaults=True
        )
        # what was run stays as it is: a rounded hyperparameter is another one
        values = {
            name: value if name in ("cell", "strengths") else rounded(value)
            for name, value in {"schema_version": record.schema_version, **values}.items()
        }
        values["checksum"] = checksum(values)
        lines.append(json.dumps(values, ensure_ascii=False, separators=(",", ":"), sort_keys=True))
    return "".join(f"{line}\n" for line in lines)


def rounded(values: Any) -> Any:
    """Return nested plain values with floats of six significant digits.

    >>> rounded({"a": [0.123456789, 1, "x"], "b": 123456789.0})
    {'a': [0.123457, 1, 'x'], 'b': 123457000.0}
    """
    if isinstance(values, float):
        return float(f"{values:.{DIGITS}g}")
    if isinstance(values, dict):
        return {name: rounded(value) for name, value in values.items()}
    return [rounded(value) for value in values] if isinstance(values, list) else values
