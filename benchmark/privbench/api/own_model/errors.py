"""How far the answers of a regression are from the true numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Rows


@dataclass(frozen=True)
class Errors:
    """Root mean squared errors of a regression, in units of y.

    >>> print(Errors(0.5, 2.0, 4.0))
    Root mean squared error: 0.5 on members, 2 on nonmembers (standard deviation of y: 4).

    Attributes:
        members: of the members.
        nonmembers: of the nonmembers.
        spread: standard deviation of y over both: the error of the mean of y.
    """

    members: float
    nonmembers: float
    spread: float

    def __str__(self) -> str:
        """The errors in a sentence, and a warning if the answers cannot be meant for y."""
        told = (
            f"Root mean squared error: {self.members:.4g} on members, {self.nonmembers:.4g} on "
            f"nonmembers (standard deviation of y: {self.spread:.4g})."
        )
        if self.members <= self.spread:
            return told
        return (
            f"{told} WARNING: the mean of y is closer to y than the answers are: if the model "
            "should do better, check the units of x and of y."
        )


def errors(answers: NDArray[np.float64], rows: Rows) -> Errors | None:
    """Return the errors of answers (n, 1) to members, then nonmembers; None for no regression."""
    if rows.targets is None:
        return None
    truth = rows.targets[: len(answers)]
    square = np.square(answers[:, 0] - truth)
    inside, outside = (float(square[rows.of(one)].mean()) for one in ("members", "nonmembers"))
    return Errors(inside**0.5, outside**0.5, float(truth.std()))
