"""The four metric attacks of Song and Mittal (USENIX Security 2021), written anew from the paper.

Section 3.1 has the metrics: correctness, confidence, entropy and modified entropy. The threshold of
a class is the value, of those that occur in it, that separates the shadow's rows best, at equal
weights of members and nonmembers; here it is found by trying all. Several thresholds may separate
them equally well, so accuracies on the shadow's rows are compared, and not thresholds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.special import expit, xlogy

from privbench_plugins.attacks.metric import (
    MetricConfidence,
    MetricCorrectness,
    MetricEntropy,
    MetricModifiedEntropy,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Members, and as many nonmembers: enough for a threshold of each class.
ROWS = 1200


def correctness(p: Floats, y: Ints) -> Any:
    return (p.argmax(1) == y).astype(float)


def confidence(p: Floats, y: Ints) -> Floats:
    return p[np.arange(len(y)), y]


def entropy(p: Floats, y: Ints) -> Any:
    """Its negative, as of the modified one: members have more."""
    del y
    return xlogy(p, p).sum(1)


def modified_entropy(p: Floats, y: Ints) -> Any:
    """In the authors' code the logarithm of 0 is that of 1e-30."""
    log_p, log_rest = (np.log(np.maximum(q, 1e-30)) for q in (p, 1 - p))
    own = np.eye(p.shape[1], dtype=bool)[y]
    return np.where(own, (1 - p) * log_p, p * log_rest).sum(1)


ATTACKS = {
    MetricCorrectness(): correctness,
    MetricConfidence(): confidence,
    MetricEntropy(): entropy,
    MetricModifiedEntropy(): modified_entropy,
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
@pytest.mark.parametrize("kind", ["distinct", "tied", "masked"])
@pytest.mark.parametrize("classes", [2, 5, 12])
def test_scores_and_accuracies_are_theirs(attack: Any, kind: str, classes: int) -> None:
    p, y, member = _drawn(classes, kind)
    answer, expected = _answer(attack, p, y), ATTACKS[attack](p, y)
    scores, called = answer.scores.numpy(), answer.decisions.numpy()

    if isinstance(attack, MetricConfidence):
        scores = expit(scores)  # of log-odds
    floored = (p == 1).any(1) | (confidence(p, y) == 0)  # logarithms of 0 differ
    assert (kind == "masked") == floored.any()
    assert floored.mean() < 0.5
    np.testing.assert_allclose(scores[~floored], expected[~floored], rtol=0, atol=1e-12)

    for label in range(classes):
        inside, outside = member & (y == label), ~member & (y == label)
        ours = (called[inside].mean() + (~called[outside]).mean()) / 2
        if isinstance(attack, MetricCorrectness):  # decides by itself
            best = (expected[inside].mean() + 1 - expected[outside].mean()) / 2
        else:
            best = _best_accuracy(expected[inside], expected[outside])
        assert ours == pytest.approx(best, abs=1e-12)


def _best_accuracy(inside: Floats, outside: Floats) -> float:
    tried = np.concatenate([inside, outside])
    return max(float((inside >= t).mean() + (outside < t).mean()) / 2 for t in tried)


def _drawn(classes: int, kind: str) -> tuple[Floats, Ints, NDArray[np.bool_]]:
    """Posteriors, labels and membership; a member's label is more often its likely class."""
    rng = np.random.default_rng(classes)
    member, y = np.arange(2 * ROWS) < ROWS, np.arange(2 * ROWS) % classes
    logits = rng.normal(size=(2 * ROWS, classes)) * 2
    logits[np.arange(2 * ROWS), y] += np.where(member, 3, 1)
    if kind == "masked":  # some posteriors are 0 or 1
        logits[logits < logits.max(1, keepdims=True) - 4] = -np.inf
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    if kind == "tied":  # five different posteriors a class, on both sides
        p = p[rng.permutation(2 * ROWS) % (5 * classes) // classes * classes + y]
    return p, y, member


def _answer(attack: Any, p: Floats, y: Ints) -> Any:
    """Ask about the rows that calibrate it, of which the first half are members."""
    asked = SimpleNamespace(x=torch.from_numpy(p).log(), y=torch.from_numpy(y))
    members, others = (
        SimpleNamespace(x=asked.x[half], y=asked.y[half])
        for half in (slice(0, ROWS), slice(ROWS, None))
    )
    oracle = SimpleNamespace(
        log_posteriors=lambda rows: rows.x, labels=lambda rows: rows.x.argmax(1)
    )
    world = SimpleNamespace(members=members)
    shadow = SimpleNamespace(oracle=oracle, world=world, nonmembers=others)
    question, ctx = SimpleNamespace(examples=asked), SimpleNamespace(shadows=(shadow,))
    return attack.answer(oracle, question, ctx)
