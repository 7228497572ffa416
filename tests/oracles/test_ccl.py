"""The convex-concave loss against its formulas by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench.ground.store.store import Store
from privbench.measure.training.phase import Batch, Clock, Outputs
from privbench.measure.victims.build import Builder
from privbench.testing import CPU
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.ccl import CCL, convex_concave
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from privbench_plugins.defenses.ccl import Concave


def _term(p: float, concave: Concave) -> float:
    return -math.exp(p) if concave == "exponential" else -p - p**2 / 2


@pytest.mark.parametrize("concave", ["exponential", "quadratic"])
def test_each_row_by_hand(concave: Concave) -> None:
    """Confidences .2 and .7, no library of losses."""
    p = [[0.2, 0.5, 0.3], [0.1, 0.2, 0.7]]
    logits = torch.tensor(p, dtype=torch.float64).log() + 3
    found = convex_concave(logits, torch.tensor([0, 2]), 0.3, concave)
    by_hand = [-0.3 * math.log(q) + 0.7 * _term(q, concave) for q in (0.2, 0.7)]
    assert found.tolist() == pytest.approx(by_hand)


@pytest.mark.parametrize("concave", ["exponential", "quadratic"])
@given(p=st.floats(0.01, 0.98), convexity=st.floats(0, 1))
def test_the_term_is_concave_and_falls_and_the_gradient_is_that_of_the_formula(
    concave: Concave, p: float, convexity: float
) -> None:
    low, middle, high = (_term(p + d, concave) for d in (-0.01, 0, 0.01))
    assert low > middle > high
    assert middle > (low + high) / 2
    logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64)
    logits.requires_grad_()
    (found,) = torch.autograd.grad(
        convex_concave(logits, torch.tensor([0]), convexity, concave).sum(), logits
    )
    slope = -math.exp(p) if concave == "exponential" else -1 - p
    by_hand = (convexity * -1 / p + (1 - convexity) * slope) * p * (1 - p)
    assert float(found[0, 0]) == pytest.approx(by_hand, rel=1e-9)


def test_phases_that_read_labels_use_it(tmp_path: Path) -> None:
    defense = CCL(convexity=0.25, scale=2.0)
    builder = Builder(Store(tmp_path), CPU)
    (phase,) = builder.draft(tiny_spec(Supervised(backbone="mlp"), (defense,))).phases
    (step,) = phase.steps.values()
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(6, 4, generator=g), torch.tensor([0, 1, 2, 3, 0, 1])
    batch = Batch(torch.zeros(6, 1), y, {}, torch.arange(6))
    found = step.loss(Outputs(h=logits, logits=logits), batch, Clock(1, 0, 1, 1))
    p = logits.softmax(1).gather(1, y[:, None])[:, 0]
    by_hand = 2 * (0.25 * F.cross_entropy(logits, y) - 0.75 * p.exp().mean())
    assert float(found) == pytest.approx(float(by_hand), rel=1e-6)
