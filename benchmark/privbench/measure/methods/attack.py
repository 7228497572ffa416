"""An attack: a strategy for one game."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from privbench.ground.errors import PluginError, no_choice
from privbench.measure.methods.access import Access
from privbench.measure.methods.method import Method

if TYPE_CHECKING:
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle


@dataclass(frozen=True)
class Shadows:
    """The shadows that an attack asks the core to train.

    >>> Shadows(16, "online").count
    16
    >>> Shadows(16, "anywhere")
    Traceback (most recent call last):
        ...
    privbench.ground.errors.PluginError: origin of shadows is 'anywhere': write 'offline' or ...

    Attributes:
        count: number of shadows.
        origin: ``offline`` for worlds drawn from the adversary's pool, which contain no candidate;
            ``online`` for worlds drawn over the candidates, independently of the victim's world.
            All attacks with the same seed share the worlds of an origin: fewer shadows are always
            the first of more.
    """

    count: int = 0
    origin: Literal["offline", "online"] = "offline"

    def __post_init__(self) -> None:
        """Check count and origin.

        Raises:
            PluginError: for a count or an origin that does not exist.
        """
        if type(self.count) is not int or self.count < 0:
            raise PluginError(f"count of shadows is {self.count!r}: give a whole number, 0 or more")
        if wrong := no_choice("origin of shadows", self.origin, ("offline", "online")):
            raise PluginError(wrong)


class Attack(Method):
    """A strategy for one game; it never sees the truth and never scores itself.

    Subclass ``MembershipAttack``, ``AttributeAttack``, ``ReconstructionAttack`` or
    ``PropertyAttack``, or the base class of a game of your own.

    >>> from privbench import MembershipAttack
    >>> issubclass(MembershipAttack, Attack), MembershipAttack.game
    (True, 'membership')

    Attributes:
        game: name of the game that it plays; the base class sets it.
        needs: required access; cells that do not grant it are skipped.
        wants: optional access, used if granted.
        misses_planted: why it cannot find the planted leaks of positive controls, which then skip
            it; "" if it must.
    """

    game: ClassVar[str]
    needs: ClassVar[Access]
    wants: ClassVar[Access] = Access.NONE
    misses_planted: ClassVar[str] = ""

    @property
    def shadows(self) -> Shadows:
        """Return the shadows that it needs; may depend on hyperparameters."""
        return Shadows()

    @property
    def decides_at(self) -> str:
        """Return what the decisions aim at, such as ``FPR 0.01``; "" for balanced accuracy.

        Otherwise boards mark the balanced accuracy as not comparable with others.
        """
        return ""

    @property
    def max_rows(self) -> int | None:
        """Return the maximum number of rows that the question may contain; None for all."""
        return None

    @abstractmethod
    def answer(self, oracle: Oracle, question: Any, ctx: AttackContext) -> Any:
        """Answer the question, using only the oracle and the context."""
