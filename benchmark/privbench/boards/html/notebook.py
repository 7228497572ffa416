"""Results in a notebook: the front and the matrices, in the reader's own colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards.checks import refuse_unfit
from privbench.boards.html.heat import SHADES, heat
from privbench.boards.html.page import counted, fronts, template
from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from privbench.boards.board import Leaderboard


def notebook(board: Leaderboard, words: str = "") -> str:
    """Return results as a piece of HTML without scripts; all of their texts are escaped.

    Args:
        board: with results of any status; those that cannot stand on one give the reason instead.
        words: what an audit says of the results, in lines.
    """
    problem, pictures, maps = "", [], []
    try:
        refuse_unfit(board.records)
        pictures = fronts(board.foremost)
        maps = [heat(panel, {}) for panel in board.foremost if panel.own]
    except BadInputError as error:
        problem = str(error)
    made: str = template("notebook.html").render(
        counted=counted(board), problem=problem, fronts=pictures, maps=maps,
        shades=range(SHADES), words=words.splitlines(),
    )  # fmt: skip
    return made
