"""Barlow Twins against equations 1 and 2 by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Batch, Clock
from privbench.testing import tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.targets.barlow_twins import BarlowTwins, redundancy

if TYPE_CHECKING:
    from pathlib import Path


def _views(seed: int, n: int = 6, p: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    first = torch.randn(n, p, generator=g)
    return first, first + 0.5 * torch.randn(n, p, generator=g)


def test_the_loss_is_that_of_pearson_correlations() -> None:
    """Each correlation from sums of products, equation 2 of centred outputs."""
    a, b = (z.double().numpy() for z in _views(0))
    a, b = a - a.mean(0), b - b.mean(0)
    total = 0.0
    for i in range(3):
        for j in range(3):
            product = sum(x * y for x, y in zip(a[:, i], b[:, j], strict=True))
            c = product / (math.hypot(*a[:, i]) * math.hypot(*b[:, j]))
            total += (1 - c) ** 2 if i == j else 0.005 * c**2
    assert float(redundancy(*_views(0), 0.005)) == pytest.approx(total, rel=1e-3)


@given(st.integers(0, 999), st.floats(0, 1))
def test_scale_and_place_of_an_output_do_not_matter_and_views_may_change_places(
    seed: int, weight: float
) -> None:
    a, b = _views(seed)
    here = float(redundancy(a, b, weight))
    scale, place = torch.tensor([3.0, 2.0, 5.0]), torch.tensor([1.0, -4.0, 0.0])
    assert float(redundancy(scale * a + place, b, weight)) == pytest.approx(here, rel=1e-2)
    assert float(redundancy(b, a, weight)) == pytest.approx(here, rel=1e-4)


def test_independent_outputs_that_agree_cost_nothing() -> None:
    z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(redundancy(z, z, 1.0)) == pytest.approx(0, abs=1e-6)
    assert float(redundancy(z, -z, 1.0)) == pytest.approx(8, rel=1e-4)  # (1 + 1)², twice


def _training(tmp_path: Path, **fields: Any) -> Training:
    target = BarlowTwins(backbone="convnet", epochs=2, batch=40, hidden=32, projection=8, **fields)
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


def test_a_step_correlates_the_two_views_of_its_rows(tmp_path: Path) -> None:
    """The loss of a batch: each view alone through encoder and projector, in train mode."""
    run = _training(tmp_path, redundancy=0.1)
    some = tiny_split().victim().members.select(slice(0, 12))
    g = torch.Generator().manual_seed(1)
    assert run.phase.prepare is not None
    batch = run.phase.prepare(
        Batch(some.x, some.y, {}, torch.arange(12)), lambda m: torch.rand(12, m, generator=g)
    )
    model = run.model
    model.parts.train()
    out = run.phase.forward(model, batch)
    found = run.phase.steps["train"].loss(out, batch, Clock(1, 0, 2, 2))
    each = [model["projector"](model.encode(view)) for view in (batch.x[:12], batch.x[12:])]
    c = np.corrcoef(*(z.detach().numpy().T for z in each))[:8, 8:]
    by_hand = ((1 - np.diag(c)) ** 2).sum() + 0.1 * ((c**2).sum() - (np.diag(c) ** 2).sum())
    assert float(found.detach()) == pytest.approx(by_hand, rel=0.02)
    assert out.h.shape == (24, model["encoder"].width)
    found.backward()  # type: ignore[no-untyped-call]
    for part in ("encoder", "projector"):
        assert all(p.grad is not None for p in model[part].parameters()), part


def test_the_sizes_are_the_published_ones(tmp_path: Path) -> None:
    """Section 2.2: three linear layers, the first two with batch norm and a rectifier."""
    kinds = [type(one).__name__ for one in _training(tmp_path).model["projector"].children()]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    preset = BarlowTwins.presets["paper"]
    assert (preset["hidden"], preset["projection"], preset["batch"]) == (8192, 8192, 2048)
    assert BarlowTwins().redundancy == 0.005
