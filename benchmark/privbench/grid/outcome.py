"""The record of a trial before it runs, and what records say of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.grid.origins import provenance_of
from privbench.grid.trial import cell_record, strengths
from privbench.ground.errors import AccessDeniedError, AnswerError, BadInputError, WriteError
from privbench.measure.games.catalog import GAMES
from privbench.results.limits import shortened_text
from privbench.results.record import Number, Record

if TYPE_CHECKING:
    import torch

    from privbench.grid.trial import Trial
    from privbench.measure.games.game import Metrics


def new_record(trial: Trial, device: torch.device) -> Record:
    """Return a record without results."""
    game = GAMES.get(trial.cell.attack.game)
    return Record(
        trial=trial.digest, cell=cell_record(trial.cell), seed=trial.seed, status="ok",
        board=game.board if game else None,
        phase=trial.cell.protocol.phase, provenance=provenance_of(trial, device),
        strengths=strengths(trial.cell),
    )  # fmt: skip


def numbers(metrics: Metrics) -> dict[str, Number]:
    """Return a game's metrics as a record holds them."""
    return {name: Number.of(metric) for name, metric in metrics.items()}


def reason(error: BaseException) -> str:
    """Return why a trial failed: our own messages as they are, others with their type."""
    named = isinstance(error, BadInputError | AccessDeniedError | WriteError | AnswerError)
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - of a plugin's own class
        text = "(its text cannot be had)"
    return encodable(text if named else f"{type(error).__name__}: {text}")


def encodable(text: str) -> str:
    """Return text that a result can hold: short enough, and lone surrogates become escapes."""
    return shortened_text(shortened_text(text).encode("utf-8", "backslashreplace").decode())
