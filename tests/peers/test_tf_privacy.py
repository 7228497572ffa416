"""The threshold attack of TensorFlow Privacy, from its definition and scikit-learn's ROC curve.

The package needs TensorFlow, so the formulas of its ``data_structures.py`` are written anew: the
area under the curve; the attacker's advantage, the largest distance of TPR and FPR in either
direction; and precision at equal priors, TPR / (TPR + FPR). Its scores are losses of test rows
above those of training rows; ours are minus that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from sklearn import metrics as sklearn

from privbench.measure.games.metrics import (
    auc,
    balanced_accuracy,
    best_threshold,
    precision,
    recall,
    tpr_at_fpr,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


@pytest.mark.parametrize("kind", ["distinct", "tied", "infinite", "constant"])
@pytest.mark.parametrize("seed", range(10))
def test_thresholds_are_those_of_tf_privacy(kind: str, seed: int) -> None:
    scores, member = _drawn(kind, seed)
    fpr, tpr, thresholds = _curve(scores, member)
    losses = _curve(-scores, ~member)

    assert auc(scores, member).value == pytest.approx(sklearn.auc(*losses[:2]), abs=1e-12)
    advantage = max(abs(losses[1] - losses[0]))
    assert max(_advantage(scores, member), _advantage(-scores, member)) == pytest.approx(advantage)
    assert _advantage(scores, member) == pytest.approx(max(tpr - fpr))

    for most in (0.02, 0.1, 0.5):
        found = tpr_at_fpr(scores, member, most)
        assert getattr(found, "value", None) == pytest.approx(tpr[fpr <= most + 1e-9].max())

    for at, hits, false in list(zip(thresholds, tpr, fpr, strict=True))[1::7]:
        called = np.clip(scores, -1e300, 1e300) >= at
        assert getattr(precision(called, member), "value", None) == pytest.approx(
            hits / (hits + false)
        )
        assert recall(called, member).value == pytest.approx(hits)


def _advantage(scores: Floats, member: Bools) -> float:
    """Of our best threshold."""
    called = best_threshold(scores, member).decide(scores)
    return 2 * balanced_accuracy(called, member).value - 1


def _curve(scores: Floats, positive: Bools) -> tuple[Floats, Floats, Floats]:
    """Return scikit-learn's FPR, TPR and thresholds; it takes no infinite scores."""
    finite = np.clip(scores, -1e300, 1e300)
    fpr, tpr, thresholds = sklearn.roc_curve(positive, finite, drop_intermediate=False)
    return fpr, tpr, thresholds


def _drawn(kind: str, seed: int) -> tuple[Floats, Bools]:
    """Sides differ in size; for odd seeds members score lower."""
    rng = np.random.default_rng(seed)
    member = rng.permutation(160) < 60
    scores = rng.normal(size=160) + member * (-1.0) ** seed
    if kind == "tied":
        scores = scores.round()
    elif kind == "infinite":
        scores = np.where(abs(scores) > 1, np.copysign(np.inf, scores), scores)
    elif kind == "constant":
        scores = np.zeros(160)
    return scores, member
