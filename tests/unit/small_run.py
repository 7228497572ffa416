"""A small run that several tests read; the suite is that of docs/python.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Results

SUITE: dict[str, Any] = {
    "attacks": ["metric-loss", "lira-offline"], "defenses": ["confidence-masking"],
    "targets": [{"supervised": {"epochs": 3}}], "seeds": 2, "set": {"lira-offline": {"k": 2}},
}  # fmt: skip


@dataclass(frozen=True)
class SmallRun:
    """What the suite gave.

    Attributes:
        results: of the run.
        folder: of its results.
        store: with its models.
    """

    results: Results
    folder: Path
    store: Path
