"""A defense that releases coarse posteriors."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from privbench import Defense, Ge, Le, Release, Strength, hookimpl

PRIVBENCH_API = "1.0"


class Quantised(Release):
    """Rounds posteriors to multiples of 1 / levels."""

    of = "posterior"

    def __init__(self, levels):
        super().__init__()
        self.levels = levels

    def forward(self, x, value, u):
        coarse = (value * self.levels).round()
        empty = coarse.sum(1, keepdim=True) == 0  # no class reaches half a level
        coarse = coarse.where(~empty, value)
        return coarse / coarse.sum(1, keepdim=True)


@dataclass(frozen=True)
class Quantise(Defense):
    """Releases posteriors in a few levels.

    Attributes:
        levels: number of steps between 0 and 1.
    """

    name: ClassVar[str] = "quantise"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    release_class: ClassVar[type[Release]] = Quantised
    uses_training_data: ClassVar[bool] = False
    strength: ClassVar[Strength] = Strength("levels", "down", (8, 4, 2))

    levels: Annotated[int, Ge(1), Le(1000)] = 4

    def release(self, card, model, ctx):
        return Quantised(self.levels)


@hookimpl
def privbench_defenses():
    return [Quantise()]
