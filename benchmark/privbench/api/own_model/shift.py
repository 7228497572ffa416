"""Whether members and nonmembers differ in more than membership: a classifier two-sample test.

Lopez-Paz, Oquab: Revisiting Classifier Two-Sample Tests. ICLR 2017. A forest learns on one half of
the rows to tell the two sets apart and ranks the other half, and the other way round. It never asks
the model, so what it finds is a difference of the data. Attacks can use it too, and then their
success is not a leak.

The forest reads x only. What y holds is tested beside it: a model that always answers the most
common class of its members seems to know them if this class is rare among the nonmembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: Below this p-value the sets are said to differ.
LEVEL = 0.01
_MOST_ROWS, _MOST_FEATURES, _MOST_NAMED, _MOST_TRIED = 2000, 64, 3, 5
_ROUNDING = 1e-6  # of the first component's standard deviation; what differs by less is equal
_DRAWS = 9999  # random divisions of the rows


@dataclass(frozen=True)
class Shift:
    """What the test found.

    Attributes:
        auc: with which the forest tells members from nonmembers by x, mean of the two halves; null
            if nothing is known of x.
        p_value: of equal distributions of x; twice the smaller p-value of the halves, so it is
            valid although the halves swap roles. 1 if nothing is known of x.
        p_value_of_y: of equal shares of the classes, or of equal distributions of what a regression
            is to answer; null without y.
    """

    auc: float | None
    p_value: float
    p_value_of_y: float | None = None

    @property
    def found(self) -> bool:
        """Whether the sets differ."""
        return self.found_in_x or self.found_in_y

    @property
    def found_in_x(self) -> bool:
        """Whether x differs."""
        return self.p_value < self._level

    @property
    def found_in_y(self) -> bool:
        """Whether y differs."""
        return self.p_value_of_y is not None and self.p_value_of_y < self._level

    @property
    def _level(self) -> float:
        """Of each test, so that both have ``LEVEL``."""
        return LEVEL if self.auc is None or self.p_value_of_y is None else LEVEL / 2


def shift(members: NDArray[Any], nonmembers: NDArray[Any], *, seed: int = 0) -> Shift:
    """Test whether two sets of rows (n, *shape) and (m, *shape) have one distribution.

    Give each row once: the forest would know a copy in the other half again. At most 2,000 rows of
    each set take part. Images and wide tables are reduced to 64 principal components, or fewer
    where the rest is rounding, which tells the order of the rows.
    """
    from scipy.stats import mannwhitneyu
    from sklearn.decomposition import PCA
    from sklearn.ensemble import ExtraTreesClassifier

    draw = np.random.default_rng(seed)
    sides = [rows[draw.permutation(len(rows))[:_MOST_ROWS]] for rows in (members, nonmembers)]
    x = np.concatenate([side.reshape(len(side), -1) for side in sides]).astype(np.float32)
    member = np.repeat([True, False], [len(side) for side in sides])
    if x.shape[1] > _MOST_FEATURES:
        reduced = PCA(min(_MOST_FEATURES, len(x)), random_state=seed)
        x = reduced.fit_transform(x.astype(np.float64))
        unit = _ROUNDING * np.sqrt(reduced.explained_variance_[0])
        x = np.round(x / max(unit, np.finfo(float).tiny))
    half = np.concatenate([draw.permutation(len(side)) % 2 for side in sides]).astype(bool)
    aucs: list[float] = []
    p_values: list[float] = []
    if not x.shape[1]:  # nothing is known of the rows
        return Shift(None, 1.0)
    if min(map(len, sides)) < 2:  # noqa: PLR2004 - one row has no halves
        return Shift(0.5, 1.0)
    for part in (half, ~half):
        forest = ExtraTreesClassifier(
            100, min_samples_leaf=3, class_weight="balanced", random_state=seed
        )
        score = forest.fit(x[part], member[part]).predict_proba(x[~part])[:, 1]
        inside, outside = score[member[~part]], score[~member[~part]]
        if np.ptp(score) == 0:
            aucs, p_values = [*aucs, 0.5], [*p_values, 1.0]
            continue
        told = mannwhitneyu(inside, outside, alternative="greater")
        aucs.append(float(told.statistic) / (len(inside) * len(outside)))
        p_values.append(float(told.pvalue))
    return Shift(float(np.mean(aucs)), min(1.0, 2 * min(p_values)))


def shift_of_y(members: NDArray[Any], nonmembers: NDArray[Any]) -> float:
    """Return the p-value of "both sets have one distribution of y" for (n,) and (m,).

    Classes, whole numbers from 0: of Pearson's statistic among 9,999 random divisions of the rows.
    Real numbers: of the test of Kolmogorov and Smirnov.

    >>> shift_of_y(np.repeat([0, 1], [17, 83]), np.repeat([0, 1], [54, 46]))
    0.0001
    >>> shift_of_y(np.repeat([0, 1], [50, 50]), np.repeat([0, 1], [51, 49])) > 0.5
    True
    """
    from scipy.stats import ks_2samp

    both = np.concatenate([members, nonmembers])
    if both.dtype.kind == "f":
        return float(ks_2samp(members, nonmembers).pvalue)
    total = np.bincount(both)
    total, mine = (np.bincount(of, minlength=len(total))[total > 0] for of in (both, members))
    expected = total * len(members) / len(both)
    drawn = np.random.default_rng(0).multivariate_hypergeometric(total, len(members), _DRAWS)
    by_chance, found = ((np.square(of - expected) / total).sum(-1) for of in (drawn, mine))
    return float((1 + (by_chance >= found * (1 - _ROUNDING)).sum()) / (_DRAWS + 1))


def separating(columns: Mapping[str, NDArray[Any]], members: slice, nonmembers: slice) -> str:
    """Return a sentence about columns that tell the sets apart by themselves; "" if none does.

    Forests read the five columns whose numbers differ most (Kolmogorov and Smirnov), and p-values
    are corrected for all columns, so it does not matter how the five are chosen.

    Args:
        columns: name -> (n, d) numbers that describe it; of more than 64 columns the first.
        members: where the rows of members are.
        nonmembers: where those of nonmembers are.
    """
    asked = dict(islice(columns.items(), _MOST_FEATURES))
    sides = {name: (x[members], x[nonmembers]) for name, x in asked.items()}
    first = sorted(sides, key=lambda name: -_apart(*sides[name]))[:_MOST_TRIED]
    found = [(shift(*sides[name]), name) for name in first]
    alone = sorted(
        (-one.auc, name) for one, name in found if one.auc and one.p_value * len(asked) < LEVEL
    )
    if not alone:
        return ""
    most = ", ".join(f"{shown(name, 40)} (AUC {-auc:.3f})" for auc, name in alone[:_MOST_NAMED])
    told = f"What tells members from nonmembers by itself: {most}."
    return f"{told} Leave out what the model does not read."


def _apart(inside: NDArray[Any], outside: NDArray[Any]) -> float:
    """Return the largest distance of two distributions of a column of (n, d) and (m, d) numbers."""
    from scipy.stats import ks_2samp

    pairs = zip(inside.T, outside.T, strict=True)
    return max((float(ks_2samp(*pair, method="asymp").statistic) for pair in pairs), default=0.0)
