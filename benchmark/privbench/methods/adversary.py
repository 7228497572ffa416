"""What the attacker knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privbench.methods.dataset import Dataset
    from privbench.methods.target import Target


@dataclass(frozen=True)
class Adversary:
    """What the attacker knows of the victim's making.

    Attributes:
        adaptive: its shadows and its own rows go through the same defense, with its own
            randomness; otherwise (naive) through none.
        target: recipe of its shadows; None for the victim's own.
        dataset: where its pool comes from, brought to the victim's shape; None for the victim's
            own dataset.
        white_box: whether it has gradients and weights, where target and defense leave them.
    """

    adaptive: bool = True
    target: Target | None = None
    dataset: Dataset | None = None
    white_box: bool = False

    @property
    def label(self) -> str:
        """Name in tables."""
        words = ["adaptive" if self.adaptive else "naive"]
        if self.white_box:
            words.append("white-box")
        if self.target:
            words.append(f"shadows {self.target.label}")
        if self.dataset:
            words.append(f"pool {self.dataset.label}")
        return ", ".join(words)
