"""Single rows over seeds, and attacks against each other, from per-sample scores; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from privbench.results.samples import Columns

#: False positive rate at which a member counts as found.
FPR = 0.01


def exposure(scores: NDArray[np.generic], member: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return how each row ranks among the nonmembers of its trial: (n,) in [0, 1].

    It is the share of nonmembers with a lower score, ties half; a nonmember is compared with the
    others. A member of exposure e is found at a false positive rate of 1 - e. The mean over the
    members is the AUC. Ranks make scores of several seeds and attacks comparable.

    >>> exposure(np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, False, False, False]))
    array([1.  , 0.  , 0.75, 0.75])
    """
    inside = member.astype(bool)
    others = np.sort(scores[~inside])
    doubled = np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")
    placed: NDArray[np.float64] = (doubled - ~inside) / np.maximum(2 * (others.size - ~inside), 1)
    return placed


@dataclass(frozen=True)
class Vulnerability:
    """What the seeds of a cell say about each row that was a candidate; all of shape (rows,).

    Attributes:
        row: hash of its content; equal rows count as one.
        label: its class, -1 if unknown.
        times_in: number of seeds in which it was a member.
        times_out: number of seeds in which it was a nonmember.
        mean_in: mean exposure as a member, NaN if it never was one.
        mean_out: mean exposure as a nonmember, NaN if it never was one.
    """

    row: NDArray[np.int64]
    label: NDArray[np.int64]
    times_in: NDArray[np.int64]
    times_out: NDArray[np.int64]
    mean_in: NDArray[np.float64]
    mean_out: NDArray[np.float64]

    @property
    def difference(self) -> NDArray[np.float64]:
        """``mean_in - mean_out``: what membership adds; NaN unless a row was both.

        A row that looks like a member whether it is one or not has none.
        """
        return self.mean_in - self.mean_out


def vulnerability(trials: Iterable[Columns]) -> Vulnerability:
    """Return the vulnerability of each row over the seeds of one membership cell.

    Args:
        trials: per-sample scores, one for each seed; at least one.
    """
    trials = list(trials)
    rows, labels, inside, exposed = (
        np.concatenate(parts)
        for parts in zip(
            *(
                (
                    one["row"], one["label"], one["truth.member"].astype(bool),
                    exposure(one["victim.scores"], one["truth.member"]),
                )
                for one in trials
            ),
            strict=True,
        )
    )  # fmt: skip
    unique, first, place = np.unique(rows, return_index=True, return_inverse=True)

    def tallied(chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        times = np.bincount(place[chosen], minlength=unique.size)
        total = np.bincount(place[chosen], exposed[chosen], minlength=unique.size)
        return times, np.where(times > 0, total / np.maximum(times, 1), np.nan)

    (times_in, mean_in), (times_out, mean_out) = tallied(inside), tallied(~inside)
    return Vulnerability(unique, labels[first], times_in, times_out, mean_in, mean_out)


@dataclass(frozen=True)
class Agreement:
    """How far two attacks on one victim agree.

    Attributes:
        rank: Spearman's correlation of their per-sample success, NaN if one is constant.
        overlap: Jaccard overlap of what they found, NaN if they found nothing.
        chance: overlap expected of independent attacks that find as many.
        rows: number of rows that both were asked about.
    """

    rank: float
    overlap: float
    chance: float
    rows: int


def agreement(one: Columns, other: Columns) -> Agreement | None:
    """Return how far two attacks agree on the rows that both were asked about.

    Success is the score of a membership attack, the probability of the true value of an attribute
    attack (the first attribute by name), and minus the MSE of a reconstruction. Found are the
    members above the threshold of 1 % FPR, or the rows with the right value.

    Args:
        one: per-sample scores of one attack.
        other: those of another attack, of the same seed.

    Returns:
        None if the questions differ. The rows of one may be the first of the other.
    """
    n = min(one["row"].size, other["row"].size)
    if n < 2 or not np.array_equal(one["row"][:n], other["row"][:n]):  # noqa: PLR2004
        return None
    a, b = (_success({name: column[:n] for name, column in c.items()}) for c in (one, other))
    if a is None or b is None:
        return None
    either, both = int((a.found | b.found).sum()), int((a.found & b.found).sum())
    at_random = float(a.found.sum()) * float(b.found.sum()) / max(a.asked, 1)
    total = float(a.found.sum() + b.found.sum()) - at_random
    return Agreement(
        _spearman(a.success, b.success),
        both / either if either else math.nan,
        at_random / total if total else math.nan,
        n,
    )


class _Success(NamedTuple):
    """How well an attack did on each row, what it found, and how much it could have found."""

    success: NDArray[np.float64]
    found: NDArray[np.bool_]
    asked: int


def _success(columns: Columns) -> _Success | None:
    if "victim.scores" in columns:
        scores = columns["victim.scores"].astype(np.float64)
        member = columns["truth.member"].astype(bool)
        return _Success(scores, member & found(scores, member), int(member.sum()))
    truths = sorted(name for name in columns if name.startswith("truth."))
    if truths:
        truth = columns[truths[0]].astype(np.int64)
        given = columns[truths[0].replace("truth.", "victim.", 1)].astype(np.float64)
        if truth.min() < 0 or truth.max() >= given.shape[1]:
            return None
        sure = given[np.arange(truth.size), truth]
        return _Success(sure, given.argmax(1) == truth, truth.size)
    if "victim.mse" in columns:
        errors = columns["victim.mse"].astype(np.float64)
        return _Success(-errors, np.zeros(errors.size, bool), 0)
    return None


def found(
    scores: NDArray[np.float64], member: NDArray[np.bool_], fpr: float = FPR
) -> NDArray[np.bool_]:
    """Return which rows score above the threshold that at most this share of nonmembers exceeds.

    >>> found(np.array([9.0, 1.0, 8.0, 0.0]), np.array([True, True, False, False]), 0.5).tolist()
    [True, True, True, False]
    """
    outside = np.sort(scores[~member])[::-1]
    tolerated = int(fpr * outside.size + 1e-9)
    if tolerated >= outside.size:
        return np.ones(scores.size, bool)
    above: NDArray[np.bool_] = scores > outside[tolerated]
    return above


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    from scipy.stats import rankdata

    x, y = rankdata(a), rankdata(b)
    if x.std() == 0 or y.std() == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
