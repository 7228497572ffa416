"""A cell of the grid: one attack on one target, under given defenses, on given data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.measure.methods.access import BLACK_BOX, Access

if TYPE_CHECKING:
    from privbench.measure.data.examples import Card
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target


@dataclass(frozen=True)
class Cell:
    """Everything that defines a trial except its seed; available before any data is loaded.

    >>> from privbench import Adversary
    >>> from privbench.testing import AnyAttack, TinyImages, TinyTarget
    >>> data = TinyImages()
    >>> cell = Cell(data.card(None), data.protocols["default"], TinyTarget(), (), Adversary(),
    ...             AnyAttack())
    >>> str(cell.access)  # black box
    'LABELS+POSTERIORS+EMBEDDINGS'

    Attributes:
        card: card of the dataset.
        protocol: how the dataset is split.
        target: target of the victim.
        defenses: defenses in the order they are applied; only ``none`` for an undefended victim.
        adversary: what the attacker knows.
        attack: attack to run.
        sensitive: sensitive attributes of this cell.
        dataset: source of the rows; None where only a card exists, as in tests.
        preset: preset that set the sizes of the methods; a board never mixes presets.
        pool: card of the adversary's dataset, if it differs from the victim's.
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
        """Return the access that the defended victim grants to this adversary."""
        granted = self.target.grants
        if not self.adversary.white_box:
            granted &= BLACK_BOX
        for defense in self.defenses:
            granted = defense.access(granted)
        return granted

    @property
    def defense(self) -> str:
        """Return the label of the combined defenses."""
        return "+".join(defense.label for defense in self.defenses)
