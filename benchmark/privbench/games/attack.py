"""An attack: a strategy for one game."""

from __future__ import annotations

import warnings
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
        origin: ``offline`` for worlds of the adversary's own pool, which hold no candidate;
            ``online`` for worlds drawn over the candidates, independently of the victim's. All
            attacks of a seed share the worlds of an origin: a short list is the start of a long
            one.
    """

    count: int = 0
    origin: Literal["offline", "online"] = "offline"

    def __post_init__(self) -> None:
        """Take the names of 0.1.0 for the origins."""
        renamed = {"own": "offline", "candidates": "online"}.get(self.origin)
        if renamed:
            warnings.warn(
                f"the origin '{self.origin}' of shadows is now called '{renamed}'",
                DeprecationWarning, 3,
            )  # fmt: skip
            object.__setattr__(self, "origin", renamed)


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
    def max_rows(self) -> int | None:
        """How many rows it can afford to be asked about; None for all."""
        return None

    @abstractmethod
    def answer(self, oracle: Oracle, question: Any, ctx: AttackContext) -> Any:
        """Answer the question with what the oracle and the context give."""
