"""Parts in which every class has its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.measure.data.row_random import salt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def dealt(labels: Tensor, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Deal rows into parts, so that every class is in every part as often as in all rows.

    The count of a class in a part is its share of the part, rounded down or up at random; its
    expectation is the share itself. So every row is in a part with the same probability, whatever
    its class. Within a class, rows are dealt in the order in which they are given, to one part
    after the other.

    Args:
        labels: (n,) classes in a random order of the rows; unknown labels are a class too.
        sizes: sizes of the parts; n or less in total.
        seed: of the rounding.

    Returns:
        Positions of each part's rows, ascending.

    >>> [part.tolist() for part in dealt(torch.tensor([7, 7, 7, 7, 9, 9]), [3, 3], 0)]
    [[0, 1, 4], [2, 3, 5]]
    """
    classes, codes = torch.unique(labels, return_inverse=True)
    held = torch.bincount(codes, minlength=len(classes)).tolist()
    counts = rounded([*sizes, len(labels) - sum(sizes)], held, seed)
    part = torch.empty_like(codes)
    which = torch.arange(len(counts), device=labels.device)
    for code in range(len(classes)):
        times = torch.tensor([row[code] for row in counts], device=labels.device)
        part[codes == code] = torch.repeat_interleave(which, times)
    return [(part == number).nonzero().squeeze(1) for number in range(len(sizes))]


def rounded(rows: Sequence[int], columns: Sequence[int], seed: int) -> list[list[int]]:
    """Round the table rows x columns / n to whole numbers without changing its margins.

    L. H. Cox, "A constructive procedure for unbiased controlled rounding", JASA 82 (1987): round
    along cycles of entries that are no whole numbers yet, up or down at random, such that each
    entry keeps its expectation. Every entry ends within one of where it began.

    Args:
        rows: sums of the rows, n in total.
        columns: sums of the columns, n in total.
        seed: of the random choices.
    """
    n = max(sum(rows), 1)
    whole = [[row * column // n for column in columns] for row in rows]
    left = [[row * column % n for column in columns] for row in rows]  # numerators over n
    step = 0
    while cycle := _cycle(left):
        up, down = cycle[::2], cycle[1::2]
        most = min(*(n - left[i][j] for i, j in up), *(left[i][j] for i, j in down))
        least = min(*(left[i][j] for i, j in up), *(n - left[i][j] for i, j in down))
        drawn = salt(seed, "rounding", step) % (most + least)
        change, step = (most if drawn < least else -least), step + 1
        for places, sign in ((up, 1), (down, -1)):
            for i, j in places:
                left[i][j] += sign * change
                if left[i][j] == n:
                    whole[i][j], left[i][j] = whole[i][j] + 1, 0
    return whole


def _cycle(left: list[list[int]]) -> list[tuple[int, int]]:
    """Entries that are no whole numbers, each in one line with the next: by turns a row, a column.

    Margins are whole, so a line that has one such entry has another one, and the walk goes on until
    it meets a line again.
    """
    start = next((i for i, row in enumerate(left) if any(row)), None)
    if start is None:
        return []
    lines, entries = [(0, start)], []
    while True:
        is_column, at = lines[-1]
        beside = [row[at] for row in left] if is_column else left[at]
        before = lines[-2][1] if len(lines) > 1 else None
        other = next(k for k, x in enumerate(beside) if x and k != before)
        entries.append((other, at) if is_column else (at, other))
        if (following := (1 - is_column, other)) in lines:
            return entries[lines.index(following) :]
        lines.append(following)
