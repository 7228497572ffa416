"""ROC curves and histograms of one membership cell, from its per-sample scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.measure.games.metrics import Estimate, Refused, tpr_at_fpr
from privbench.results.statistics import clipped, mean_over_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from privbench.results.samples import Columns

#: False-positive rates of a curve, in each decade.
_STEPS = 6
#: Bars of a histogram, and the share of scores beyond its ends that the outer bars hold.
BARS, _TAIL = 24, 0.005
_LARGEST = 1e150  # of a score that is drawn; differences of larger ones overflow


@dataclass(frozen=True)
class Roc:
    """True-positive rates at fixed false-positive rates; all lists have one length.

    Attributes:
        fpr: in (0, 1), rising.
        tpr: mean over seeds.
        low, high: 95 % interval at each rate on its own: Student's over seeds; with one seed that
            of ``tpr_at_fpr`` over the rows.
        seeds: how many there are.
    """

    fpr: list[float]
    tpr: list[float]
    low: list[float]
    high: list[float]
    seeds: int


@dataclass(frozen=True)
class Histogram:
    """Shares of members and of nonmembers by score, of one seed.

    Attributes:
        low, high: scores at the ends; the outer bars also hold what is beyond.
        members, nonmembers: shares, one for each bar.
        logits: whether logits of the scores are shown.
    """

    low: float
    high: float
    members: list[float]
    nonmembers: list[float]
    logits: bool = False


def has_scores(columns: Columns) -> bool:
    """Whether these are the scores of a membership attack, with members and nonmembers."""
    if not {"row", "label", "victim.scores", "truth.member"} <= {*columns}:
        return False
    scores, member = _of(columns)
    return (
        scores.ndim == 1 and bool(member.any()) and not member.all() and not np.isnan(scores).any()
    )


def smallest_rate(columns: Columns) -> float:
    """Return the smallest false-positive rate that the nonmembers can show."""
    _, member = _of(columns)
    return 1 / int((~member).sum())


def roc(trials: Iterable[Columns]) -> Roc:
    """Return the ROC curve of the seeds of one cell.

    Args:
        trials: per-sample scores, one for each seed; at least one. See ``has_scores``.
    """
    given = [_of(one) for one in trials]
    fewest = min(int((~member).sum()) for _, member in given)
    count = math.ceil(_STEPS * math.log10(fewest)) if fewest > 1 else 0
    made: list[tuple[float, Estimate]] = []
    for rate in (fewest ** (i / count - 1) for i in range(count)):
        found = [tpr_at_fpr(scores, member, rate) for scores, member in given]
        known = [one for one in found if not isinstance(one, Refused)]
        if len(known) == len(found):
            made.append(
                (
                    rate,
                    known[0]
                    if len(known) == 1
                    else clipped(mean_over_seeds([one.value for one in known]), 0.0, 1.0),
                )
            )
    return Roc(
        [rate for rate, _ in made], [one.value for _, one in made], [one.low for _, one in made],
        [one.high for _, one in made], len(given),
    )  # fmt: skip


def histogram(columns: Columns) -> Histogram:
    """Return how members and nonmembers of one seed score; the outer bars hold infinite scores.

    Scores in [0, 1] are shown as logits: posteriors of a model crowd at both ends, where members
    and nonmembers could not be told apart. Scores that are all 0 or 1 stay as they are.
    """
    scores, member = _of(columns)
    inside = (scores > 0) & (scores < 1)
    logits = bool(inside.any()) and bool(((scores >= 0) & (scores <= 1)).all())
    if logits:
        with np.errstate(divide="ignore"):
            scores = np.log(scores) - np.log1p(-scores)
    finite = np.clip(scores[np.isfinite(scores)], -_LARGEST, _LARGEST)
    low, high = np.quantile(finite, [_TAIL, 1 - _TAIL]) if finite.size else (0.0, 1.0)
    if not low < high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BARS + 1)[1:-1]

    def shares(of: NDArray[np.float64]) -> list[float]:
        counts = np.bincount(np.searchsorted(edges, of, "right"), minlength=BARS)
        return [float(one) for one in counts / of.size]

    return Histogram(
        float(low), float(high), shares(scores[member]), shares(scores[~member]), logits
    )


def _of(columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    return columns["victim.scores"].astype(np.float64), columns["truth.member"].astype(bool)
