"""BYOL against equations 1 and 2 by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Batch, Clock
from privbench.testing import tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.targets.byol import BYOL, distance, kept


def test_the_distance_is_two_minus_two_cosines() -> None:
    g = torch.Generator().manual_seed(0)
    z, k = torch.randn(5, 3, generator=g).double(), torch.randn(5, 3, generator=g).double()
    total = 0.0
    for a, b in zip(z.tolist(), k.tolist(), strict=True):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        total += 2 - 2 * dot / (math.hypot(*a) * math.hypot(*b))
    assert float(distance(z, k)) == pytest.approx(total / 5, rel=1e-5)
    assert float(distance(7 * z, 0.1 * k)) == pytest.approx(float(distance(z, k)), rel=1e-5)


@given(st.floats(0, 1), st.integers(1, 1000))
def test_the_target_is_kept_more_and_more(base: float, total: int) -> None:
    shares = [kept(base, k, total) for k in range(total + 1)]
    assert shares[0] == pytest.approx(base)
    assert shares[-1] == 1
    assert all(a <= b + 1e-12 for a, b in pairwise(shares))


def _training(tmp_path: Any, **fields: Any) -> Training:
    target = BYOL(backbone="convnet", epochs=2, batch=40, hidden=32, projection=8, **fields)
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


def _batch(run: Training, rows: int = 12) -> Batch:
    some = tiny_split().victim().members.select(slice(0, rows))
    g = torch.Generator().manual_seed(1)
    batch = Batch(some.x, some.y, {}, torch.arange(rows))
    assert run.phase.prepare is not None
    return run.phase.prepare(batch, lambda m: torch.rand(rows, m, generator=g))


def test_each_view_is_predicted_from_the_other_by_networks_that_see_one_view(
    tmp_path: Any,
) -> None:
    """The loss by hand, every network in train mode, one view at a time."""
    run = _training(tmp_path)
    model, batch = run.model, _batch(run)
    model.parts.train()
    out = run.phase.forward(model, batch)
    found = run.phase.steps["train"].loss(out, batch, Clock(1, 0, 2, 2)).detach()
    first, second = batch.x[:12], batch.x[12:]

    def predicted(view: torch.Tensor) -> torch.Tensor:
        prediction: torch.Tensor = model["predictor"](model["projector"](model.encode(view)))
        return prediction

    def aim(view: torch.Tensor) -> torch.Tensor:
        inputs = model.inputs(view)
        projection: torch.Tensor = model["target_projector"](model["target_encoder"](inputs))
        return projection

    one = 2 - 2 * torch.cosine_similarity(predicted(first), aim(second))
    other = 2 - 2 * torch.cosine_similarity(predicted(second), aim(first))
    assert float(found) == pytest.approx(float((one + other).detach().mean()), rel=1e-4)
    wrong = 2 - 2 * torch.cosine_similarity(predicted(first), aim(first))
    assert float(found) != pytest.approx(float(2 * wrong.detach().mean()), rel=1e-4)
    assert out.h.shape == (24, model["encoder"].width)


def test_the_target_follows_after_every_update_and_gets_no_gradient(tmp_path: Any) -> None:
    run = _training(tmp_path, momentum=0.9)
    model, step = run.model, run.phase.steps["train"]
    slow = [p.clone() for p in model["target_encoder"].parameters()]
    fasts: list[list[torch.Tensor]] = []
    slows: list[list[torch.Tensor]] = []

    def spy(m: Any, out: Any) -> None:
        """After the update: the online network has moved, the target not yet."""
        del out
        fasts.append([p.clone() for p in m["encoder"].parameters()])
        slows.append([p.clone() for p in m["target_encoder"].parameters()])

    object.__setattr__(step, "after", spy)
    run.run()
    assert len(fasts) == 4  # two epochs of two updates
    for before, now in zip(slow, slows[0], strict=True):
        assert torch.equal(before, now)  # begins as a copy of the online network
    for k in range(3):
        share = 1 - 0.1 * (math.cos(math.pi * k / 4) + 1) / 2
        for before, fast, now in zip(slows[k], fasts[k], slows[k + 1], strict=True):
            assert torch.allclose(now, share * before + (1 - share) * fast, atol=1e-6)
    assert all(p.grad is None for p in model["target_encoder"].parameters())
    assert run.updates == {"encoder": 4, "projector": 4, "predictor": 4}


def test_gradients_reach_the_online_network_only(tmp_path: Any) -> None:
    run = _training(tmp_path)
    batch = _batch(run)
    model = run.model.requires_grad_(True)
    out = run.phase.forward(model, batch)
    run.phase.steps["train"].loss(out, batch, Clock(1, 0, 2, 2)).backward()  # type: ignore[no-untyped-call]
    for part in ("encoder", "projector", "predictor"):
        assert all(p.grad is not None for p in model[part].parameters()), part
    for part in ("target_encoder", "target_projector"):
        assert all(p.grad is None for p in model[part].parameters()), part
