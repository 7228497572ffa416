"""How strongly a defense acts: which hyperparameter says so, in which direction, which values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from privbench.measure.methods.defense import Defense

Direction = Literal["up", "down", "listed"]


@dataclass(frozen=True)
class Strength:
    """The hyperparameter with which a defense trades utility for protection.

    >>> print(Strength("bound", stronger="up", sweep=(0.25, 0.5, 1.0)))
    bound (larger is stronger); sweep 0.25, 0.5, 1.0

    Attributes:
        field: its name.
        stronger: where a defense protects more: with larger numbers (``up``), with smaller ones
            (``down``), or, for values that are no numbers, with later ones of the sweep
            (``listed``).
        sweep: at least two different values, from the weakest to the strongest.
    """

    field: str
    stronger: Direction
    sweep: tuple[Any, ...]

    def problem(self, defense: Defense) -> str | None:
        """Explain what does not fit the defense; None if all fits."""
        if self.stronger not in get_args(Direction):
            return f"stronger is {self.stronger!r}: choose from {', '.join(get_args(Direction))}"
        known = defense.hyperparameters()
        if self.field not in known:
            return f"there is no hyperparameter {self.field!r}: choose from {', '.join(known)}"
        sweep: object = self.sweep
        if not isinstance(sweep, tuple) or len(sweep) < 2:  # noqa: PLR2004
            return f"the sweep of {self.field} is {self.sweep!r}: write a tuple of several values"
        return self._disorder() or self._misfit(defense)

    def _disorder(self) -> str | None:
        listed = ", ".join(map(str, self.sweep))
        if self.stronger == "listed":
            if len(set(map(repr, self.sweep))) < len(self.sweep):
                return f"the sweep of {self.field} ({listed}) has a value twice: give it once"
            return None
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.sweep):
            return f"the sweep of {self.field} ({listed}) has values that are no numbers"
        sign = 1 if self.stronger == "up" else -1
        pairs = zip(self.sweep, self.sweep[1:], strict=False)
        if all(sign * before < sign * after for before, after in pairs):
            return None
        order = "increasing" if sign > 0 else "decreasing"
        return f"the sweep of {self.field} ({listed}) is not {order}: the strongest comes last"

    def _misfit(self, defense: Defense) -> str | None:
        try:
            self.settings(defense)
        except BadInputError as error:
            return f"the sweep of {self.field} has a value that does not fit: {error}"
        return None

    def settings(self, defense: Defense) -> list[Defense]:
        """Return the defense with each value of the sweep, from the weakest to the strongest.

        Raises:
            BadInputError: for a value that the field does not take.
        """
        return [defense.replace(**{self.field: value}) for value in self.sweep]

    def __str__(self) -> str:
        """Return field, direction and sweep in one line, for cards."""
        listed = ", ".join(map(str, self.sweep))
        more = {"up": "larger is stronger", "down": "smaller is stronger",
                "listed": "later is stronger"}[self.stronger]  # fmt: skip
        return f"{self.field} ({more}); sweep {listed}"
