"""The files of a board: the page in markdown, all numbers as csv, and the figure of the front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards.csv_table import table
from privbench.boards.front import drawable, front
from privbench.boards.page import page
from privbench.ground.store.files import write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.boards.board import Leaderboard


def write_board(
    target: Path,
    board: Leaderboard,
    title: str,
    *,
    again: Sequence[str] = (),
) -> None:
    """Write a board: the page, and beside it a csv file and a figure, if there is one to draw.

    The figure is drawn only if the csv file has changed: it shows the same numbers.

    Args:
        target: path of the page, which ends in ``.md``.
        board: with results of any status.
        title: of the board.
        again: what ``privbench run`` is given to make the results; empty for unknown.

    Raises:
        BadInputError: if the results cannot stand on one board.
        WriteError: if a file cannot be written.
    """
    beside, picture = target.with_suffix(".csv"), target.with_suffix(".svg")
    drawn = drawable(board.panels)
    text = page(board, title, again=again, figure=picture.name if drawn else "", table=beside.name)
    numbers = table(board)
    known = _read(beside) == numbers and _read(target) == text and picture.exists()
    write(target, text)
    write(beside, numbers)
    if drawn and not known:
        write(picture, front(board.panels))


def _read(path: Path) -> str:
    """The text of a file; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
