"""The adversary: what the attacker knows about the victim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.target import Target


@dataclass(frozen=True)
class Adversary:
    """What the attacker knows about how the victim was built and trained.

    >>> Adversary().label, Adversary(adaptive=False, white_box=True).label
    ('adaptive', 'naive, white-box')

    Attributes:
        adaptive: whether its shadows and its own rows pass through the victim's defense, with the
            adversary's own randomness. If not (naive), they pass through no defense.
        target: target of its shadows; None for the victim's target.
        dataset: source of its pool, converted to the victim's input shape; None for the victim's
            dataset.
        white_box: whether it gets gradients and weights, where target and defense grant them.
    """

    adaptive: bool = True
    target: Target | None = None
    dataset: Dataset | None = None
    white_box: bool = False

    @property
    def label(self) -> str:
        """Return the name shown in tables."""
        words = ["adaptive" if self.adaptive else "naive"]
        if self.white_box:
            words.append("white-box")
        if self.target:
            words.append(f"shadows {self.target.label}")
        if self.dataset:
            words.append(f"pool {self.dataset.label}")
        return ", ".join(words)
