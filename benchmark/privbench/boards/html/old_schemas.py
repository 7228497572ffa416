"""Results of old schemas, for boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.results.record import OLD_SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from privbench.results.record import Record


def with_boards(records: Iterable[Record]) -> list[Record]:
    """The results, where each says how boards show it.

    Those of old schemas do not say so, and are shown as today's game of that name. Only then is
    torch imported.
    """
    return [_completed(r) if r.schema_version in OLD_SCHEMAS else r for r in records]


def _completed(record: Record) -> Record:
    from privbench.games.catalog import GAMES

    game = GAMES.get(record.cell.game)
    return record.model_copy(update={"board": game.board}) if game else record
