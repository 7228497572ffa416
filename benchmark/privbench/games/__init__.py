"""Games: the question asked, the truth kept back, the score of an answer."""

from privbench.games.attributes import AttributeGame
from privbench.games.base import BadAnswerError, Game, Metrics
from privbench.games.membership import MembershipGame
from privbench.games.reconstruction import ReconstructionGame

GAMES: dict[str, Game] = {
    game.name: game for game in (MembershipGame(), AttributeGame(), ReconstructionGame())
}

__all__ = [
    "GAMES",
    "AttributeGame",
    "BadAnswerError",
    "Game",
    "MembershipGame",
    "Metrics",
    "ReconstructionGame",
]
