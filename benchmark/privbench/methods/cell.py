"""A cell of the grid: who attacks what, under which defense, on which data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.games.access import BLACK_BOX, Access

if TYPE_CHECKING:
    from privbench.data.examples import Card
    from privbench.data.protocol import Protocol
    from privbench.games.attack import Attack
    from privbench.methods.adversary import Adversary
    from privbench.methods.dataset import Dataset
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target


@dataclass(frozen=True)
class Cell:
    """Everything about a trial but its seed; methods may look at it before anything is loaded.

    Attributes:
        card: of the dataset.
        protocol: that cuts the dataset.
        target: of the victim.
        defenses: in the order in which they act; the defense ``none`` alone for no defense.
        adversary: what the attacker knows.
        attack: that is run.
        sensitive: attributes that the cell is about.
        dataset: where the rows come from; None where there is a card only, as in tests.
        preset: name of the preset that sized the methods; boards never mix them.
        pool: card of the adversary's dataset, where that is another one.
    """

    card: Card
    protocol: Protocol
    target: Target
    defenses: tuple[Defense, ...]
    adversary: Adversary
    attack: Attack
    sensitive: tuple[str, ...] = ()
    dataset: Dataset | None = None
    preset: str = "cpu"
    pool: Card | None = None

    @property
    def access(self) -> Access:
        """What the defended victim grants to this adversary."""
        granted = self.target.grants
        if not self.adversary.white_box:
            granted &= BLACK_BOX
        for defense in self.defenses:
            granted = defense.access(granted)
        return granted

    @property
    def defense(self) -> str:
        """Label of the stack."""
        return "+".join(defense.label for defense in self.defenses)
