"""How the games of these results are shown, as the results themselves say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.ground.columns import Board, Column
    from privbench.results.record import Number, Record


def games(records: Iterable[Record]) -> list[str]:
    """Names of the games of these results, in the order in which boards show them."""
    places: dict[str, int] = {}
    for record in records:
        if record.board is not None:
            game = record.cell.game
            places[game] = min(record.board.place, places.get(game, record.board.place))
    return sorted(places, key=lambda game: (places[game], game))


def columns(game: str, records: Iterable[Record]) -> list[Column]:
    """Columns of a game's table for these results: all that any of them names, each once."""
    records = [record for record in records if record.cell.game == game]
    named = dict.fromkeys(column for board in _boards(records) for column in board.columns)
    return [
        column for column in named
        if not column.optional or any(number(record, column) for record in records)
    ]  # fmt: skip


def headline_column(game: str, records: Iterable[Record]) -> tuple[Column, bool]:
    """Main number of a game, and whether a higher one is a stronger attack."""
    board = _boards([record for record in records if record.cell.game == game])[0]
    return board.columns[0], board.higher


def constant(game: str, records: Iterable[Record]) -> str:
    """Baseline of a game that uses nothing that the victim released; "" for none."""
    return _boards([record for record in records if record.cell.game == game])[0].constant


def tells(game: str, records: Iterable[Record], what: str) -> bool:
    """Whether the phase or the sensitive attributes distinguish rows of this game."""
    return any(
        what in record.board.tells
        for record in records
        if record.cell.game == game and record.board
    )


def number(record: Record, column: Column) -> Number | None:
    """The number of a result that stands in a column; None if it has none.

    An epsilon that is no guarantee is nominal, not claimed.
    """
    part, _, inner = column.part.partition(".")
    found = getattr(record, part).get(inner, {}) if inner else getattr(record, part)
    name = column.name
    if part == "metrics" and name in ("claimed_epsilon", "nominal_epsilon"):
        claims = [claim for claim in record.claims if "epsilon" in claim]
        nominal = not all(claim.get("guarantee", False) for claim in claims)
        name = "claimed_epsilon" if nominal == (name == "nominal_epsilon") else ""
    number: Number | None = found.get(name)
    return number


def _boards(records: Iterable[Record]) -> list[Board]:
    """What the results say, each once; the fullest first, whatever the order of the results."""
    said = {record.board for record in records if record.board is not None}
    return sorted(said, key=lambda board: (-len(board.columns), repr(board)))


def differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of some nested values, what distinguishes it from the others, as text.

    >>> differing([{"size": {"a": 1, "b": 2}}, {"size": {"a": 3, "b": 2}}])
    ['size.a 1', 'size.a 3']
    """
    found = [_facts(one) for one in values]
    names = sorted({name for facts in found for name in facts})
    differ = [n for n in names if len({facts.get(n, "") for facts in found}) > 1]
    return [", ".join(f"{n} {facts[n]}" for n in differ if n in facts) for facts in found]


def _facts(values: Any, at: str = "") -> dict[str, str]:
    """Innermost values by dotted name."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {at: str(values)}
    flat: dict[str, str] = {}
    for name, value in values.items():
        flat |= _facts(value, f"{at}.{name}" if at else str(name))
    return flat
