"""Results in a notebook: the front and the matrices, in the reader's own colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards.checks import refuse_unfit
from privbench.boards.html.cells import cells
from privbench.boards.html.heat import SHADES, heat
from privbench.boards.html.page import counted, fronts, template
from privbench.boards.panel import foremost
from privbench.boards.panels import panels
from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.results.record import Record


def notebook(records: Sequence[Record], bound: float | None = None, words: str = "") -> str:
    """Return results as a piece of HTML without scripts; all of their texts are escaped.

    Args:
        records: of any status; those that cannot stand on one board give the reason instead.
        bound: largest loss of accuracy on reference rows at an operating point; None for none.
        words: what an audit says of the results, in lines.
    """
    problem, pictures, maps = "", [], []
    try:
        refuse_unfit(records)
        found = foremost(panels(records, bound))
        pictures, maps = fronts(found), [heat(panel, {}) for panel in found if panel.own]
    except BadInputError as error:
        problem = str(error)
    made: str = template("notebook.html").render(
        counted=counted(records, cells(records)), problem=problem, fronts=pictures, maps=maps,
        shades=range(SHADES), words=words.splitlines(),
    )  # fmt: skip
    return made
