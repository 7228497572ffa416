"""Steps of the training loop beside the same steps written out by hand: the loop's overhead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from privbench.measure.data.augmentation import augment
from privbench.measure.training.loop import Training
from privbench.measure.training.nets.backbones import ConvNet
from privbench.measure.training.nets.layers import HalvingMaxPool
from privbench.testing import tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.targets.simclr import QUICK_VIEWS, SimCLR, nt_xent

STEPS = 50


def _training(tmp_path: Any) -> Training:
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(SimCLR(epochs=STEPS)))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


@pytest.mark.benchmark(group="simclr, 80 members, 50 steps")
def test_loop(benchmark: Any, tmp_path: Any) -> None:
    benchmark.pedantic(lambda run: run.run(), setup=lambda: ((_training(tmp_path),), {}), rounds=5)


@pytest.mark.benchmark(group="simclr, 80 members, 50 steps")
def test_written_out(benchmark: Any, tmp_path: Any) -> None:
    run = _training(tmp_path)
    model, card = run.model, tiny_split().card
    augmentation = QUICK_VIEWS.within(card.limits)  # type: ignore[arg-type]
    x = tiny_split().victim().members.x.float() / card.scale
    parts = [*model["encoder"].parameters(), *model["head"].parameters()]
    optimizer = torch.optim.Adam(parts, lr=1e-3, fused=True)

    def steps() -> None:
        for _ in range(STEPS):
            rows = x[torch.randperm(len(x))]
            views = [
                augment(rows, augmentation, torch.rand(len(x), augmentation.uniforms))
                for _ in range(2)
            ]
            optimizer.zero_grad()
            nt_xent(model["head"](model["encoder"](torch.cat(views))), 0.1).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    benchmark.pedantic(steps, rounds=5)


@pytest.mark.benchmark(group="answer for 256 images of 32x32")
@pytest.mark.parametrize("pool", [HalvingMaxPool, lambda: nn.MaxPool2d(2, ceil_mode=True)],
                         ids=["slices", "library"])  # fmt: skip
def test_pool(benchmark: Any, pool: Any) -> None:
    net = ConvNet(3).eval()
    for name, layer in net.layers.named_children():
        if isinstance(layer, nn.MaxPool2d):
            net.layers.register_module(name, pool())
    x = torch.rand(256, 3, 32, 32)
    with torch.no_grad():
        benchmark.pedantic(net, (x,), rounds=10, warmup_rounds=1)
