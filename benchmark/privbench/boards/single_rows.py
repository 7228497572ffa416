"""The rows of a membership cell that are most exposed, as markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from privbench.boards.row_exposure import vulnerability
from privbench.ground.text import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.results.record import Record
    from privbench.results.samples import Columns

#: Rows that a list of the most vulnerable shows.
MOST_ROWS = 10

ROWS_TEXT = """\
**exposure** of a row is the share of nonmembers that score lower: a member of exposure .99 is found
at 1 % FPR. **difference** is the mean exposure over the seeds in which the row was a member minus
that over the seeds in which it was a candidate but no member. Rows are named by a hash of their
content. A row with few seeds says little.
"""


def single_rows(record: Record, seeds: Sequence[Columns]) -> list[str]:
    """Return lines of markdown about the vulnerability of the rows of one membership cell.

    Args:
        record: of the first seed.
        seeds: per-sample scores of each seed.
    """
    of = vulnerability(seeds)
    inside, both = of.times_in > 0, ~np.isnan(of.difference)
    told = (
        f"{len(seeds)} seeds. {inside.sum()} rows were members in at least one seed; {both.sum()} "
        "of them were nonmembers in another."
    )
    for name, values in (
        ("Exposure as member", of.mean_in[inside]),
        ("Difference", of.difference[both]),
    ):
        if values.size:
            median, most, nearly, all_ = np.quantile(values, [0.5, 0.9, 0.99, 1])
            told += (
                f" {name}: mean {values.mean():.3f}, median {median:.3f}, 90 % below {most:.3f}, "
                f"99 % below {nearly:.3f}, largest {all_:.3f}."
            )
    key, listed = (of.difference, both) if both.any() else (of.mean_in, inside)
    top = np.argsort(np.where(listed, -key, np.inf), kind="stable")[: min(MOST_ROWS, listed.sum())]
    heads = ["row", "label", "seeds as member", "as nonmember"]
    heads += ["exposure as member", "as nonmember", "difference"]
    body = []
    for i in top:
        name = f"{int(of.row[i]) & (2**64 - 1):016x}"
        counts = (of.label[i], of.times_in[i], of.times_out[i])
        means = (of.mean_in[i], of.mean_out[i], of.difference[i])
        body.append([name, *(str(int(n)) for n in counts), *map(plain, means)])
    title = markdown(", ".join(named(record)))
    return [f"### {title}", "", told, "", *table(heads, body), ""]


def named(record: Record) -> list[str]:
    """Return dataset, target, attack, defense and adversary of a result."""
    cell = record.cell
    attack = cell.attack.label
    if cell.game == "attributes":
        attack += f" [{', '.join(cell.sensitive)}]"
    return [cell.data, cell.target.label, attack, cell.defense, cell.adversary]


def plain(value: float) -> str:
    """Return a number with three digits; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table of markdown."""
    lines = [f"| {' | '.join(map(markdown, line))} |" for line in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]
