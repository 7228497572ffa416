"""Privacy-aware sparsity tuning against sensitivities by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from privbench.ground.store.store import Store
from privbench.measure.training.phase import Batch, Clock
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, tiny_split
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.past import PAST, sensitive_size
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path


def test_sensitivities_are_slopes_of_the_gap_by_differences() -> None:
    """A logistic model with one layer of two weights and a bias; slopes by finite differences."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 2, generator=g).double(), torch.tensor([0, 1, 1, 0, 1, 0])
    w = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.2], dtype=torch.float64, requires_grad=True)

    def gap(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        each = F.binary_cross_entropy_with_logits(x @ w + b, y.double(), reduction="none")
        return each[:3].mean() - each[3:].mean()

    slopes = []
    for i in range(3):
        ends = []
        for step in (-1e-6, 1e-6):
            all_ = torch.cat([w.detach(), b.detach()])
            all_[i] += step
            ends.append(float(gap(all_[:2], all_[2:])))
        slopes.append(abs(ends[1] - ends[0]) / 2e-6)
    gammas = [3 * slope / sum(slopes) for slope in slopes]
    by_hand = sum(gamma * size for gamma, size in zip(gammas, (0.7, 0.4, 0.2), strict=True))
    assert float(sensitive_size(gap(w, b), [[w, b]]).detach()) == pytest.approx(by_hand, rel=1e-6)
    apart = float(sensitive_size(gap(w, b), [[w], [b]]).detach())
    two = 2 * (slopes[0] * 0.7 + slopes[1] * 0.4) / (slopes[0] + slopes[1]) + 0.2
    assert apart == pytest.approx(two, rel=1e-6)  # each layer's sensitivities have mean 1


def test_no_gradient_flows_through_the_sensitivities() -> None:
    w = torch.tensor([3.0, -1.0], requires_grad=True)
    sensitive_size((w.pow(3)).sum(), [[w]]).backward()  # type: ignore[no-untyped-call]
    slopes = torch.tensor([27.0, 3.0])
    assert w.grad is not None
    assert torch.allclose(w.grad, slopes / slopes.mean() * torch.tensor([1.0, -1.0]))


def test_a_step_adds_the_penalty_of_its_batch_and_reference_rows(tmp_path: Path) -> None:
    def phase_of(*defenses: PAST) -> tuple[nn.Module, float]:
        target = Supervised(backbone="mlp")
        making = Builder(Store(tmp_path), CPU).draft(tiny_spec(target, defenses))
        (phase,), model = making.phases, making.model
        members, reference = tiny_split().victim().members, tiny_split().reference
        mine, theirs = (
            Batch(rows.x[:8], rows.y[:8], {}, torch.arange(8)) for rows in (members, reference)
        )
        out = phase.forward(model, mine)
        out.streams = {"reference": phase.forward(model, theirs)}
        batch = Batch(mine.x, mine.y, {}, mine.rows, streams={"reference": theirs})
        (step,) = phase.steps.values()
        return model.parts, float(step.loss(out, batch, Clock(1, 0, 1, 1)).detach())

    _, plain = phase_of()
    parts, penalised = phase_of(PAST(penalty=0.01))
    assert penalised == pytest.approx(plain + 0.01 * _by_layers(parts), rel=1e-4)
    _, none = phase_of(PAST(penalty=0.0))
    assert none == pytest.approx(plain)


def _by_layers(parts: nn.Module) -> float:
    """The sum by hand: slopes of the gap, weight and bias of each linear layer at once."""
    encoder, classifier = parts["encoder"], parts["classifier"]  # type: ignore[index]
    members, reference = tiny_split().victim().members, tiny_split().reference
    losses = []
    for rows in (members, reference):
        x = rows.x[:8].float() / rows.scale
        losses.append(F.cross_entropy(classifier(encoder(x)), rows.y[:8]))
    total = 0.0
    layers = [one for part in (encoder, classifier) for one in part.modules()
              if [*one.parameters(recurse=False)]]  # fmt: skip
    for layer in layers:
        weights = [*layer.parameters(recurse=False)]
        slopes = torch.autograd.grad(losses[0] - losses[1], weights, retain_graph=True)
        sizes = torch.cat([w.detach().abs().flatten() for w in weights])
        steep = torch.cat([slope.abs().flatten() for slope in slopes])
        total += float((len(sizes) * steep / steep.sum() * sizes).sum())
    assert len(layers) > 2
    return total
