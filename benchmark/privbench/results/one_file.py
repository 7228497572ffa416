"""All results of a suite in one file: a line of JSON for each trial, ordered by trial.

This is how results are published. Floats are rounded to what another machine reproduces, and each
line has a checksum of its own. Tracebacks are not in it, and per-sample scores only in a
submission: ``samples.base64`` holds the file, and the checksum of the line leaves it out.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from privbench.ground.store.canonical import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from privbench.results.record import Record

#: How the name of such a file ends.
SUFFIX = ".jsonl"
#: Significant digits of a float.
DIGITS = 6
_SCORES = re.compile(rb'("samples"\s*:\s*\{\s*)"base64"\s*:\s*"([A-Za-z0-9+/]*={0,2})"\s*,')


def dumped(records: Sequence[Record], scores: Mapping[str, bytes] | None = None) -> str:
    """Return the text of the file; equal results give identical bytes.

    Args:
        records: of any status.
        scores: trial -> file of its per-sample scores, if these are to be in the lines.
    """
    return "".join(lines(records, scores))


def lines(records: Sequence[Record], scores: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Yield the lines of the file; the arguments are those of ``dumped``."""
    for record in sorted(records, key=lambda one: one.trial):
        content = (scores or {}).get(record.trial, b"")
        left_out = {"traceback"} if content else {"traceback", "samples"}
        values = record.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
        # what was run stays as it is: a rounded hyperparameter is another one
        values = {
            name: value if name in ("cell", "strengths") else rounded(value)
            for name, value in {"schema_version": record.schema_version, **values}.items()
        }
        values["checksum"] = checksum(values)
        if content:
            values["samples"]["base64"] = b64encode(content).decode()
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        yield f"{text}\n"


def without_scores(line: bytes) -> tuple[bytes, bytes]:
    """Return a line without per-sample scores, and these as base64; b"" if it has none."""
    found = _SCORES.search(line)
    if found is None:
        return line, b""
    return line[: found.end(1)] + line[found.end() :], found[2]


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
