"""An attack: a strategy for one game."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from privbench.games.access import Access
from privbench.method import Method

if TYPE_CHECKING:
    from privbench.games.oracle import Oracle
    from privbench.methods.context import AttackContext


@dataclass(frozen=True)
class Shadows:
    """What an attack wants trained for it.

    Attributes:
        count: how many shadows.
        origin: worlds of its ``own`` pool (they hold no candidate), or drawn over the
            ``candidates`` (online attacks), independently of the victim's. Worlds of an origin
            are the same for all attacks of a seed, the first ones of any longer list.
    """

    count: int = 0
    origin: Literal["own", "candidates"] = "own"


class Attack(Method):
    """A strategy for one game. It never sees the truth and never scores itself.

    Subclass ``MembershipAttack``, ``AttributeAttack`` or ``ReconstructionAttack``.
    """

    game: ClassVar[str]
    needs: ClassVar[Access]  #: without these a cell is skipped
    wants: ClassVar[Access] = Access.NONE  #: used where granted

    @property
    def shadows(self) -> Shadows:
        """Shadows that it wants; may depend on hyperparameters."""
        return Shadows()

    @property
    def asks(self) -> int | None:
        """How many rows it can afford to be asked about; None for all."""
        return None

    @abstractmethod
    def answer(self, oracle: Oracle, question: Any, ctx: AttackContext) -> Any:
        """Answer the question with what the oracle and the context give."""
