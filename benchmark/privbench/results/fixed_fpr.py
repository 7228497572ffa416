"""The true FPR of a threshold that was chosen on n nonmembers."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9


@dataclass(frozen=True)
class TrueFPR:
    """The FPR that a threshold chosen on n nonmembers has among all nonmembers.

    Attributes:
        mean: its mean over draws of the nonmembers.
        deviation: its standard deviation.
    """

    mean: float
    deviation: float


def true_fpr(nonmembers: int, fpr: float) -> TrueFPR:
    """Return the true FPR of the threshold of ``tpr_at_fpr``, for scores without ties.

    The threshold lies just above the (k + 1)-th largest of n scores, k = floor(fpr n). Its true
    FPR is distributed as an order statistic of uniform numbers, Beta(k + 1, n - k): on average it
    exceeds the nominal one.

    >>> true_fpr(400, 0.01)
    TrueFPR(mean=0.012468827930174564, deviation=0.0055344592737944336)
    """
    k = math.floor(fpr * nonmembers + _ROUNDING)
    a, b = k + 1, nonmembers - k
    return TrueFPR(a / (a + b), math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1))))
