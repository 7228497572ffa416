"""The list of games; to add one, write a module and add a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.games.attributes import AttributeGame
from privbench.games.membership import MembershipGame
from privbench.games.reconstruction import ReconstructionGame

if TYPE_CHECKING:
    from privbench.games.game import Game

GAMES: dict[str, Game] = {
    game.name: game for game in (MembershipGame(), AttributeGame(), ReconstructionGame())
}
