"""Training a phase without single rows: all at once equals one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F

from privbench.ground.store.store import Store
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import cut
from privbench.measure.methods.context import DefenseContext
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import TrainingError
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.measure.victims.stages import load
from privbench.testing import CPU, TinyImages
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.none import NoDefense
from privbench_plugins.defenses.weight_noise import AdditiveLogistic
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

FAST = SimCLR(epochs=2)


def _making(tmp_path: Path, target: Any = FAST) -> tuple[Builder, Any]:
    workshop = Builder(Store(tmp_path), CPU)
    making = workshop.draft(tiny_spec(target))
    for stage in making.stages:
        workshop.make(making, stage)
    return workshop, making


def test_leaving_nothing_out_gives_the_trained_classifier(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path)
    made = workshop._refit(
        making, making.phases[-1], torch.tensor([-1, -1]), torch.tensor([-1, -1])
    )
    for name, tensor in making.model["classifier"].state_dict().items():
        torch.testing.assert_close(
            made[f"classifier.{name}"][0], tensor, atol=1e-5, rtol=1e-4, check_stride=False
        )


def test_a_rate_that_falls_by_epoch_falls_as_in_normal_training(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path)
    phase = making.phases[-1]
    falling = replace(phase.optimizers["classifier"], schedule="cosine", per="epoch")
    phase = replace(phase, optimizers={"classifier": falling}, epochs=3)
    phase = replace(phase, batch=replace(phase.batch, size=30))
    made = workshop._refit(making, phase, torch.tensor([-1]), torch.tensor([-1]))
    embedded, rows = workshop._embedded(making, phase, making.rows(phase))
    load(making.model, making.initial)
    Training(making.model, embedded, rows, making.seed(phase, public=False), bf16=False).run()
    for name, tensor in making.model["classifier"].state_dict().items():
        torch.testing.assert_close(
            made[f"classifier.{name}"][0], tensor, atol=1e-5, rtol=0, check_stride=False
        )


def _by_hand(workshop: Builder, making: Any, phase: Any, dropped: int, exchanged: int) -> Any:
    """Weight and bias, one training after the other, by plain loops."""
    seed = making.seed(phase, public=False)
    _, rows = workshop._embedded(making, phase, making.rows(phase))
    n, spec = len(rows), phase.optimizers["classifier"]
    size = min(phase.batch.size, n)
    weight = making.initial["classifier.weight"].clone().requires_grad_()
    bias = making.initial["classifier.bias"].clone().requires_grad_()
    descent = torch.optim.Adam([weight, bias], lr=spec.lr, weight_decay=spec.weight_decay)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(phase.epochs):
        order = torch.randperm(n, generator=generator).tolist()
        order.remove(dropped)
        order = [dropped if row == exchanged else row for row in order]
        assert len(order) == len(set(order)) == n - 1
        assert (dropped if exchanged < 0 else exchanged) not in order
        for start in range(0, n - 1, size):
            at = order[start : start + size]
            loss = F.cross_entropy(F.linear(rows.x[at], weight, bias), rows.y[at])
            descent.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    return weight.detach(), bias.detach()


@pytest.mark.parametrize("batch", [1000, 30])
def test_leaving_one_out_equals_training_without_it(tmp_path: Path, batch: int) -> None:
    workshop, making = _making(tmp_path)
    phase = replace(making.phases[-1], epochs=7)
    phase = replace(phase, batch=replace(phase.batch, size=batch))
    pairs = [(3, -1), (50, -1), (3, 50), (3, -1)]
    dropped, exchanged = torch.tensor(pairs).T
    made = workshop._refit(making, phase, dropped, exchanged)
    for k, pair in enumerate(pairs):
        weight, bias = _by_hand(workshop, making, phase, *pair)
        torch.testing.assert_close(made["classifier.weight"][k], weight, atol=1e-5, rtol=0)
        torch.testing.assert_close(made["classifier.bias"][k], bias, atol=1e-5, rtol=0)
    torch.testing.assert_close(made["classifier.weight"][0], made["classifier.weight"][3])
    apart = (made["classifier.weight"][0] - made["classifier.weight"][1]).abs().max()
    assert float(apart) > 1e-4


def test_equal_rows_make_equal_trainings(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path)
    twins = making.world.members.select(torch.tensor([*range(8), 2, *range(9, 80)]))
    making.spec = replace(making.spec, world=making.world.replace(members=twins))
    phase = making.phases[-1]
    phase = replace(phase, batch=replace(phase.batch, size=30), epochs=7)
    made = workshop._refit(making, phase, torch.tensor([2, 2]), torch.tensor([-1, 8]))
    weights = made["classifier.weight"]
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=0)


def test_a_classifier_that_was_trained_before_starts_from_there(tmp_path: Path) -> None:
    data, target = TinyImages(), Supervised(epochs=1)
    protocol = Protocol(
        members=80, nonmembers=80, reference=40, pool=300, public=100, encoder=("public",)
    )
    split = cut(data.load(None), data.card(None), protocol, 0)
    job = VictimSpec(split.card, protocol, split.victim(), target, (AdditiveLogistic(pairs=3),))
    victim = Builder(Store(tmp_path), CPU).victim(job)
    assert victim.facts["claims"][0]["sensitivity"] > 0


def test_only_phases_on_embeddings_can_be_refitted(tmp_path: Path) -> None:
    workshop, making = _making(tmp_path, Supervised(epochs=1))
    with pytest.raises(TrainingError, match="trains the encoder"):
        workshop._refit(making, making.phases[-1], torch.tensor([0]), torch.tensor([-1]))


def test_refit_is_there_in_on_trained_only(tmp_path: Path) -> None:
    workshop = Builder(Store(tmp_path), CPU)
    ctx = workshop._context(tiny_spec(FAST), NoDefense())
    assert isinstance(ctx, DefenseContext)
    phase = workshop.draft(tiny_spec(FAST)).phases[-1]
    with pytest.raises(RuntimeError, match="on_trained"):
        ctx.refit(phase, torch.tensor([0]), torch.tensor([-1]))
