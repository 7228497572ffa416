"""HAMP: the soft label's entropy, its loss, and answers that keep ranks only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench import Access
from privbench.ground.store.store import Store
from privbench.measure.training.phase import Batch, Clock, Outputs
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyTarget, tiny_split
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.hamp import (
    HAMP,
    Ranked,
    confidence,
    mean_entropy,
    ranked,
    soft_labels,
    strict,
)
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("classes", "share", "p"),
    [(10, 0.95, 0.26981445), (100, 0.8, 0.33737094), (100, 0.6, 0.54850622), (2, 0.5, 0.88997214)],
)
def test_confidence_of_the_soft_label(classes: int, share: float, p: float) -> None:
    found = confidence(classes, share)
    assert found == pytest.approx(p, abs=1e-8)
    soft = soft_labels(torch.tensor([1]), classes, found).double()
    assert float(soft.sum()) == pytest.approx(1, abs=1e-6)
    rest = (1 - found) / (classes - 1)
    entropy = -found * math.log(found) - (classes - 1) * rest * math.log(rest)
    assert entropy == pytest.approx(share * math.log(classes), abs=1e-9)


def test_ends_of_the_range() -> None:
    assert confidence(10, 1.0) == pytest.approx(0.1, abs=1e-6)  # flat at the top
    assert confidence(10, 0.0) == pytest.approx(1.0, abs=1e-12)


def test_the_loss_is_divergence_less_entropy(tmp_path: Path) -> None:
    defense = HAMP(part="training", entropy=0.8, regularization=0.01)
    making = Builder(Store(tmp_path), CPU).draft(tiny_spec(TinyTarget(), (defense,)))
    (step,) = making.phases[0].steps.values()
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 10, generator=generator).requires_grad_()
    y = torch.arange(6)
    batch = Batch(torch.zeros(6, 1), y, {}, torch.arange(6))
    ours = step.loss(Outputs(logits=logits), batch, Clock(1, 0, 1, 1))
    soft = soft_labels(y, 10, confidence(10, 0.8))
    log_p = logits.log_softmax(1)
    # the authors' loss, k times: their divergence is divided by n k, their entropy by n
    theirs = F.kl_div(log_p, soft, reduction="batchmean")
    theirs = theirs - 10 * 0.01 * -(log_p.exp() * log_p).sum(1).mean()
    mine, by_hand = (torch.autograd.grad(loss, logits)[0] for loss in (ours, theirs))
    assert torch.allclose(mine, by_hand, atol=1e-7)


@given(seed=st.integers(0, 999), classes=st.integers(2, 12))
def test_order_stays_and_values_are_the_noises(seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, noise = (3 * torch.randn(2, 9, classes, generator=generator).double()).softmax(2)
    values = strict(noise.sort(1, descending=True).values)
    made = ranked(p, values)
    assert torch.equal(made.argmax(1), p.argmax(1))
    assert torch.equal(made.argsort(dim=1, stable=True), p.argsort(dim=1, stable=True))
    assert torch.equal(made.sort(1, descending=True).values, values)


def test_ties_of_posteriors_or_noise_keep_the_label() -> None:
    p = torch.tensor([[0.2, 0.4, 0.4], [0.3, 0.3, 0.4]]).double()
    values = strict(torch.full((2, 3), 1 / 3).double())
    assert torch.equal(ranked(p, values).argmax(1), p.argmax(1))
    assert torch.allclose(values.sum(1), torch.ones(2).double(), atol=1e-12)


def test_entropy_of_an_even_and_a_sure_answer() -> None:
    assert float(mean_entropy(torch.zeros(1, 4))) == pytest.approx(math.log(4))
    assert float(mean_entropy(torch.tensor([[200.0, 0.0]]))) == pytest.approx(0, abs=1e-6)


def test_release_of_a_real_victim(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=15)
    plain = shop.victim(tiny_spec(target))
    served = shop.victim(tiny_spec(target, (HAMP(part="testing", noises=30),)))
    x = tiny_split().candidates.x
    (release,) = served.releases
    assert isinstance(release, Ranked)
    before, after = plain.log_posteriors(x).exp(), served.log_posteriors(x).exp()
    assert torch.equal(served.embeddings(x), plain.embeddings(x))  # training is untouched
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert torch.equal(after, served.log_posteriors(x).exp())  # asking twice
    rows = after.sort(1, descending=True).values
    distance = (rows[:, None] - release.values[None]).abs().sum(2).amin(1)
    assert float(distance.max()) < 1e-9  # every answer holds the values of some noise
    assert len(torch.unique(rows, dim=0)) > 15  # and not all the same one's
    generator = torch.Generator().manual_seed(0)
    noise = plain.log_posteriors(torch.rand(500, 1, 8, 8, generator=generator)).exp().amax(1)
    assert float((release.values[:, 0].mean() - noise.mean()).abs()) < 0.1


def test_parts(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=60, lr=5e-3)
    trained = shop.victim(tiny_spec(target, (HAMP(part="training"),)))
    rows = tiny_split().victim().members
    assert not trained.releases
    assert Access.WEIGHTS in trained.grants
    top = trained.log_posteriors(rows.x).exp().amax(1)
    assert 0.2 < float(top.mean()) < 0.27  # p is .27, the entropy pulls lower
    both = shop.victim(tiny_spec(target, (HAMP(noises=30),)))
    assert Access.WEIGHTS not in both.grants
    assert torch.equal(both.embeddings(rows.x), trained.embeddings(rows.x))
