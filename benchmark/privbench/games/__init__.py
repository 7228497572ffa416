"""Games: the question asked, the truth kept back, the score of an answer."""

from privbench.games.attributes import AttributeGame
from privbench.games.base import BadAnswerError, Game, Metrics
from privbench.games.membership import MembershipGame

GAMES: dict[str, Game] = {game.name: game for game in (MembershipGame(), AttributeGame())}

__all__ = ["GAMES", "AttributeGame", "BadAnswerError", "Game", "MembershipGame", "Metrics"]
