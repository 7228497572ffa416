"""The list of built-in games; to add one, write a module and add a line here."""

from __future__ import annotations

from privbench.measure.games import (
    attributes,  # noqa: F401 - a game is known once it is imported
    membership,  # noqa: F401
    property,  # noqa: A004, F401
    reconstruction,  # noqa: F401
)
from privbench.measure.games.game import GAMES

__all__ = ["GAMES"]
