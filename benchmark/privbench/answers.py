"""Questions that games pose and answers that attacks give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.data import Examples


@dataclass(frozen=True)
class MembershipQuestion:
    """Which of these rows did the victim's phase train on?

    Attributes:
        examples: (n) rows with x and y, without attributes, in canonical order.
        phase: the phase asked about ("encoder", "classifier", "encoder+classifier").
    """

    examples: Examples
    phase: str


@dataclass(frozen=True)
class Membership:
    """Scores, and decisions where the attack has a threshold of its own.

    Attributes:
        scores: (n,) higher means more likely a member; read as float64.
        decisions: (n,) bool by a threshold chosen on the shadow side; None if there is none, and
            then only AUC and TPR at fixed FPR are shown.
        notes: facts worth keeping beside the numbers.
    """

    scores: Tensor
    decisions: Tensor | None = None
    notes: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttributeQuestion:
    """Which value does each sensitive attribute have behind these released embeddings?

    Attributes:
        embeddings: (n, d) float32, as released.
        values: attribute -> number of values.
    """

    embeddings: Tensor
    values: Mapping[str, int]


@dataclass(frozen=True)
class Attributes:
    """A distribution per attribute.

    Attributes:
        probabilities: attribute -> (n, values).
        notes: facts worth keeping beside the numbers.
    """

    probabilities: Mapping[str, Tensor]
    notes: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReconstructionQuestion:
    """What was the input behind these released embeddings?

    Attributes:
        embeddings: (n, d) float32, as released.
    """

    embeddings: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """Inputs in the unit interval.

    Attributes:
        x: (n, *shape) float in [0, 1].
        notes: facts worth keeping beside the numbers.
    """

    x: Tensor
    notes: Mapping[str, float | str] = field(default_factory=dict)


Question = MembershipQuestion | AttributeQuestion | ReconstructionQuestion
Answer = Membership | Attributes | Reconstruction
