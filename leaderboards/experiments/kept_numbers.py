# ruff: noqa: INP001 - a module of scripts
"""Numbers of an experiment, one csv file beside its page: each run adds what it measured."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def kept(
    path: Path, heads: tuple[str, ...], found: dict[tuple[str, ...], float]
) -> dict[tuple[str, ...], float]:
    """Return the numbers of a file with those found now, which replace equal ones, and write them.

    Args:
        path: the csv file; may be absent.
        heads: names of the columns of a key.
        found: key -> number.
    """
    numbers: dict[tuple[str, ...], float] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                numbers[*(row[head] for head in heads)] = float(row["value"])
    numbers |= found
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*heads, "value"))
        writer.writerows((*key, repr(value)) for key, value in sorted(numbers.items()))
    return numbers


def filled(rows: list[list[str]], page: Path) -> list[str]:
    """Return the rows of a table as lines; where one has "–", what the page had stays.

    Args:
        rows: of cells, the first of which names the row.
        page: the page as it is; may be absent.
    """
    lines = page.read_text("utf-8").splitlines() if page.exists() else []
    before = {cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in lines)}
    made = []
    for row in rows:
        old = before.get(row[0], [])
        if len(old) == len(row):
            row = [b if a == "–" else a for a, b in zip(row, old, strict=True)]  # noqa: PLW2901
        made.append(f"| {' | '.join(row)} |")
    return made
