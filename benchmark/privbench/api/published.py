"""The results of the published boards, which are installed with the package."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from privbench.api.results import Results
from privbench.ground.errors import UnknownNameError

#: In an installed package, and in a checkout.
_PLACES = (Path(__file__).parents[1] / "published",
           Path(__file__).parents[3] / "leaderboards" / "results")  # fmt: skip


@overload
def published(board: None = None) -> list[str]: ...


@overload
def published(board: str) -> Results: ...


def published(board: str | None = None) -> list[str] | Results:
    """Return the results of a published board, or the names of all boards; no network is used.

    >>> import privbench
    >>> "digits" in privbench.published()
    True
    >>> results = privbench.published("digits")
    >>> len(results), results[0].cell.dataset.name
    (80, 'digits')

    Args:
        board: name of the board; None for the names.

    Raises:
        BadInputError: if no board has that name.
    """
    found = {path.stem: path for place in _PLACES for path in sorted(place.glob("*.jsonl"))}
    if board is None:
        return sorted(found)
    if board not in found:
        raise UnknownNameError("board", board, found)
    return Results.read(found[board])
