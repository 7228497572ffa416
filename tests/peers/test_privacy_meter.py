"""RMIA as its authors' toolbox Privacy Meter computes it, in loops over rows and over z.

The formulas are written anew. Offline, p(x) comes from the models that were trained without x, as
in its ``modules/mia/attacks/rmia.py``. Online, it is the mean over models of which half hold x, as
in its ``research/2024_rmia`` (here without trimming). No model holds a z, so z have the offline
form. Theirs compares with ``>``, ours with ``>=``: the same for ratios that never tie.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from privbench.toolbox.likelihood import Evidence
from privbench_plugins.attacks.rmia import RMIA, RMIAOffline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MODELS, CLASSES = 8, 5
TEMPERATURE, MARGIN, ORDER = 2.0, 0.6, 4


def softmax(logits: Floats, y: int) -> float:
    powers = [math.exp(z / TEMPERATURE) for z in logits]
    return powers[y] / sum(powers)


def taylor(logits: Floats, y: int) -> float:
    """Their soft-margin Taylor softmax, of logits whose smallest is 0."""

    def power(z: float) -> float:
        return sum(z**i / math.factorial(i) for i in range(ORDER + 1))

    scaled = [(z - min(logits)) / TEMPERATURE for z in logits]
    own = power(scaled[y] - MARGIN)
    return own / (own + sum(power(z) for i, z in enumerate(scaled) if i != y))


@pytest.mark.parametrize("form", [RMIA, RMIAOffline])
@pytest.mark.parametrize("signal", [softmax, taylor])
@pytest.mark.parametrize("gamma", [1.0, 2.0])
@pytest.mark.parametrize("a", [0.3, 0.8])
def test_scores_are_those_of_privacy_meter(form: Any, signal: Any, gamma: float, a: float) -> None:
    rng = np.random.default_rng(1)
    x, z = _Rows(rng, 80, held=True), _Rows(rng, 60, held=False)

    def ratio(rows: _Rows, i: int) -> float:
        victim, *shadows = (signal(model[i], rows.y[i]) for model in rows.logits)
        outside = [p for p, held in zip(shadows, rows.held[:, i], strict=True) if not held]
        if form is RMIA and rows is x:
            p_x = sum(shadows) / MODELS
        else:
            p_x = (1 + a) / 2 * sum(outside) / len(outside) + (1 - a) / 2
        return float(victim / p_x)

    of_x, of_z = [ratio(x, i) for i in range(80)], [ratio(z, j) for j in range(60)]
    theirs = [sum(one / other > gamma for other in of_z) / 60 for one in of_x]

    attack = form(
        k=MODELS, gamma=gamma, a=a, signal=signal.__name__,
        temperature=TEMPERATURE, margin=MARGIN, order=ORDER,
    )  # fmt: skip
    ours = attack._scores(x.asked(attack), z.asked(attack))
    assert len(set(theirs)) > 20
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-9)


class _Rows:
    """Logits (1 + models, n, classes), of the victim first; who holds a row is surer of it."""

    def __init__(self, rng: np.random.Generator, n: int, *, held: bool) -> None:
        self.y = rng.integers(CLASSES, size=n)
        half = rng.permuted(np.arange(MODELS)[:, None].repeat(n, 1), axis=0) < MODELS // 2
        self.held = half & held
        self.logits = rng.normal(size=(n, CLASSES)) + rng.normal(size=(1 + MODELS, n, CLASSES))
        self.logits[1:, np.arange(n), self.y] += 2.0 * self.held
        self.logits[0, : n // 2, self.y[: n // 2]] += 2.0 * held

    def asked(self, attack: Any) -> Evidence:
        """Give the posteriors to our attack."""
        y = torch.from_numpy(self.y)
        asked = [torch.from_numpy(model).log_softmax(-1) for model in self.logits]
        victim, *shadows = (attack._signal(log_p, y) for log_p in asked)
        return Evidence(victim, torch.stack(shadows), torch.from_numpy(self.held))
