"""Training a phase without single rows: all at once equals one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from privbench.context import DefenseContext
from privbench.store import Store
from privbench.testing import CPU, _job
from privbench.training import TrainingError
from privbench.victim import Workshop
from privbench_plugins.defenses.none import NoDefense
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

FAST = SimCLR(epochs=2)


def _making(tmp_path: Path, target: Any = FAST) -> tuple[Workshop, Any]:
    workshop = Workshop(Store(tmp_path), CPU)
    making = workshop._begin(_job(target))
    (first, _), (rest, _) = making.halves()
    workshop._train(making, first)
    workshop._train(making, rest)
    return workshop, making


def test_leaving_nothing_out_gives_the_trained_classifier(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path)
    made = workshop._refit(making, making.phases[-1], torch.tensor([-1, -1]))
    for name, tensor in making.model["classifier"].state_dict().items():
        torch.testing.assert_close(
            made[f"classifier.{name}"][0], tensor, atol=1e-5, rtol=1e-4, check_stride=False
        )


@pytest.mark.parametrize("batch", [1000, 30])
def test_leaving_one_out_equals_training_without_it(tmp_path: Path, batch: int) -> None:
    from dataclasses import replace

    workshop, making = _making(tmp_path)
    phase = replace(making.phases[-1], epochs=7)
    phase = replace(phase, batch=replace(phase.batch, size=batch))
    out = [3, 50, 3]
    made = workshop._refit(making, phase, torch.tensor(out))
    seed = workshop._phase_seed(making, phase, public=False)
    _, rows = workshop._embedded(making, phase, workshop._rows(making.world, phase))
    n, size = len(rows), min(batch, len(rows))
    spec = phase.optimizers["classifier"]
    for k, left in enumerate(out[:2]):
        weight = making.initial["classifier.weight"].clone().requires_grad_()
        bias = making.initial["classifier.bias"].clone().requires_grad_()
        descent = torch.optim.Adam([weight, bias], lr=spec.lr, weight_decay=spec.weight_decay)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(7):
            order = torch.randperm(n, generator=generator).tolist()
            last = order.pop()
            order = [last if row == left else row for row in order]
            assert left not in order
            assert len(order) == n - 1
            for start in range(0, n - 1, size):
                at = order[start : start + size]
                loss = F.cross_entropy(F.linear(rows.x[at], weight, bias), rows.y[at])
                descent.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                descent.step()
        torch.testing.assert_close(made["classifier.weight"][k], weight.detach(), atol=1e-5, rtol=0)
        torch.testing.assert_close(made["classifier.bias"][k], bias.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(made["classifier.weight"][0], made["classifier.weight"][2])
    assert not torch.equal(made["classifier.weight"][0], made["classifier.weight"][1])


def test_only_phases_on_embeddings_can_be_refitted(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path, Supervised(epochs=1))
    with pytest.raises(TrainingError, match="trains the encoder"):
        workshop._refit(making, making.phases[-1], torch.tensor([0]))


def test_refit_is_there_in_on_trained_only(tmp_path: Path) -> None:
    workshop = Workshop(Store(tmp_path), CPU)
    ctx = workshop._defense_context(_job(FAST), NoDefense())
    assert isinstance(ctx, DefenseContext)
    phase = workshop._begin(_job(FAST)).phases[-1]
    with pytest.raises(RuntimeError, match="on_trained"):
        ctx.refit(phase, torch.tensor([0]))
