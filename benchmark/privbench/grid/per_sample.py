"""Gathers the per-sample scores of a trial, so that a new metric needs no new run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privbench.results.samples import pack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.measure.data.split import Split
    from privbench.measure.games.game import Game
    from privbench.measure.methods.cell import Cell


def gathered(game: Game, cell: Cell, parts: Split, truth: Any, answers: Mapping[str, Any]) -> bytes:
    """Return the file of per-sample scores, see ``privbench.results.samples``.

    Args:
        game: of the cell.
        cell: the cell.
        parts: its split.
        truth: of the question.
        answers: ``victim`` and each control -> answer to the question.

    Returns:
        b"" for a game that is not about rows.
    """
    rows = game.asked(parts, max_rows=cell.attack.max_rows, sensitive=cell.sensitive)
    if rows is None or not len(rows):
        return b""
    columns = {"row": rows.keys, "label": rows.y}
    columns |= {f"attribute.{name}": values for name, values in rows.attributes.items()}
    made = {name: column.cpu().numpy() for name, column in columns.items()}
    made |= {f"truth.{name}": one for name, one in game.per_sample_truth(truth).items()}
    for player, answer in answers.items():
        told = game.per_sample(answer, truth)
        made |= {f"{player}.{name}": column for name, column in told.items()}
    return pack(made)
