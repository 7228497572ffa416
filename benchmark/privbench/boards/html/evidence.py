"""What single rows say about cells: ROC curves, histograms and the most exposed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.boards.html.curves import Histogram, Roc, has_scores, histogram, roc, smallest_rate
from privbench.boards.html.drawing import Frame, HistogramPaths, RocPaths, bars, frame
from privbench.boards.html.markup import block
from privbench.boards.single_rows import single_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from markupsafe import Markup

    from privbench.results.record import Record
    from privbench.results.samples import Columns

#: Cells whose per-sample scores are drawn; those that come first in the csv file.
MOST_DRAWN = 400


@dataclass(frozen=True)
class Drawn:
    """The pictures of one cell.

    Attributes:
        roc: of all seeds.
        seeds: how many there are.
        histogram: of the first seed.
        seed: which one that is.
        rows: the most exposed rows, as HTML.
    """

    roc: RocPaths
    seeds: int
    histogram: HistogramPaths
    seed: int
    rows: Markup


@dataclass(frozen=True)
class PageEvidence:
    """What all cells show.

    Attributes:
        cells: in the order of the cells; None without per-sample scores.
        frame: of all ROC curves.
        left_out: cells with per-sample scores that are not drawn.
    """

    cells: list[Drawn | None]
    frame: Frame
    left_out: int


def evidence(
    found: Iterable[Sequence[Record]], samples: Callable[[Record], Columns | None]
) -> PageEvidence:
    """Return the pictures of cells.

    Args:
        found: seeds of each cell.
        samples: result -> its per-sample scores; None if there are none.
    """
    read: list[tuple[Roc, Histogram, int, Markup] | None] = []
    smallest, drawn, left_out = 1.0, 0, 0
    for records in found:
        asked = [r for r in records if r.status == "ok" and r.samples is not None]
        if drawn >= MOST_DRAWN:
            left_out += bool(asked)
            read.append(None)
            continue
        known = [(one, of) for one in asked if (of := samples(one)) is not None and has_scores(of)]
        if not known:
            read.append(None)
            continue
        drawn += 1
        smallest = min(smallest, *(smallest_rate(of) for _, of in known))
        # The first two lines are its heading, which stands above.
        exposed = single_rows(known[0][0], [of for _, of in known])[2:]
        first, columns = known[0]
        read.append((roc(of for _, of in known), histogram(columns), first.seed,
                     block("\n".join(exposed))))  # fmt: skip
    of_all = frame(smallest)
    cells = [
        None if one is None
        else Drawn(of_all.roc(one[0]), one[0].seeds, bars(one[1]), one[2], one[3])
        for one in read
    ]  # fmt: skip
    return PageEvidence(cells, of_all, left_out)
