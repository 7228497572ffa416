"""The algebra of the metric attacks: symmetries of the classes, bounds, and no infinities."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privbench_plugins.attacks.metric import (
    MetricConfidence,
    MetricEntropy,
    MetricLoss,
    MetricModifiedEntropy,
    logs,
)

METRICS: list[Any] = [MetricConfidence(), MetricEntropy(), MetricModifiedEntropy(), MetricLoss()]
unhurried = settings(deadline=None, max_examples=100)
extreme = st.sampled_from([-1000.0, -30.0, 0.0, 30.0, 1000.0])
usual = st.floats(-20, 20)


@st.composite
def answers(draw: st.DrawFn, logit: Any = usual) -> tuple[Tensor, Tensor]:
    """Log posteriors (n, k) and classes (n,)."""
    n, k = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    numbers = draw(st.lists(logit, min_size=n * k, max_size=n * k))
    y = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    logits = torch.tensor(numbers, dtype=torch.float64).view(n, k)
    return logits.log_softmax(1), torch.tensor(y)


@unhurried
@given(answers(st.one_of(extreme, usual)))
def test_everything_is_finite(case: tuple[Tensor, Tensor]) -> None:
    for metric in METRICS:
        scores = metric.measure(*case)
        assert scores.shape == case[1].shape
        assert scores.dtype == torch.float64
        assert scores.isfinite().all()
    log_p, log_rest = logs(case[0])
    assert (log_p <= 0).all()
    assert (log_rest <= 0).all()


@unhurried
@given(answers())
def test_plain_formulas_where_nothing_rounds(case: tuple[Tensor, Tensor]) -> None:
    log_posteriors, y = case
    log_posteriors = (log_posteriors / 8).log_softmax(1)  # now p < .999
    p = log_posteriors.exp()
    true = p.gather(1, y[:, None])[:, 0]
    m = -(1 - true) * true.log() - (p * (1 - p).log()).sum(1) + true * (1 - true).log()
    expected = [(true / (1 - true)).log(), (p * p.log()).sum(1), -m, true.log()]
    for metric, scores in zip(METRICS, expected, strict=True):
        torch.testing.assert_close(metric.measure(log_posteriors, y), scores, rtol=1e-9, atol=1e-11)


@unhurried
@given(answers(st.one_of(extreme, usual)), st.randoms(use_true_random=False))
def test_other_classes_are_interchangeable(case: tuple[Tensor, Tensor], random: Any) -> None:
    log_posteriors, y = case
    y = y[:1].expand(len(y))
    others = [c for c in range(log_posteriors.shape[1]) if c != int(y[0])]
    order = others.copy()
    random.shuffle(order)
    moved = log_posteriors.clone()
    moved[:, others] = log_posteriors[:, order]
    for metric in METRICS:
        torch.testing.assert_close(
            metric.measure(moved, y), metric.measure(log_posteriors, y), rtol=1e-9, atol=1e-12
        )


@unhurried
@given(answers(), st.integers(0, 5))
def test_entropy_does_not_look_at_the_label_and_the_others_do(
    case: tuple[Tensor, Tensor], shift: int
) -> None:
    log_posteriors, y = case
    k = log_posteriors.shape[1]
    other = (y + shift) % k
    entropy, confidence = MetricEntropy(), MetricConfidence()
    assert torch.equal(entropy.measure(log_posteriors, y), entropy.measure(log_posteriors, other))
    # all three that read the label rank the classes of a row as its posteriors do
    rows = log_posteriors.repeat_interleave(k, 0)
    classes = torch.arange(k).repeat(len(log_posteriors))
    for metric in (confidence, MetricModifiedEntropy(), MetricLoss()):
        scores = metric.measure(rows, classes).view(-1, k)
        ranked = scores.gather(1, log_posteriors.argsort(1))
        assert (ranked.diff(dim=1) >= -1e-9).all()


@unhurried
@given(answers(st.one_of(extreme, usual)))
def test_bounds(case: tuple[Tensor, Tensor]) -> None:
    k = case[0].shape[1]
    entropy = -MetricEntropy().measure(*case)
    assert (entropy >= 0).all()
    assert (entropy <= torch.tensor(float(k)).log() + 1e-6).all()
    for metric in (MetricModifiedEntropy(), MetricLoss()):
        assert (metric.measure(*case) <= 0).all()
