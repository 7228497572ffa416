"""The supervised target: layers, initial weights and optimizer that papers give."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from privbench import BadInputError, Optimizer
from privbench.measure.methods.context import TargetContext
from privbench.testing import CPU, TinyImages, tiny_split
from privbench_plugins.targets.supervised import Supervised

RECIPE = Supervised(
    backbone="mlp", hidden=(16, 8), initial="glorot", optimizer="sgd", lr=0.1, momentum=0.9,
    drops=(0.5,), epochs=4, batch=10,
)  # fmt: skip


def context() -> TargetContext:
    split = tiny_split()
    return TargetContext(card=split.card, protocol=split.protocol, sensitive=(), store=None,
                         device=CPU, seed=0, scope="")  # fmt: skip


def test_layers_and_weights_of_keras() -> None:
    ctx = context()
    model = RECIPE.build(ctx.card, ctx)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    inputs = math.prod(ctx.card.shape)
    classes = ctx.card.classes
    assert [(layer.in_features, layer.out_features) for layer in layers] == [
        (inputs, 16), (16, 8), (8, classes),
    ]  # fmt: skip
    for layer in layers:
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert not layer.bias.any()
        assert float(layer.weight.detach().abs().max()) <= bound
    first = layers[0].weight.detach()
    wanted = math.sqrt(6 / (inputs + 16)) / math.sqrt(3)  # deviation of a uniform draw
    assert float(first.std()) == pytest.approx(wanted, rel=0.15)


def test_the_phase_has_that_optimizer() -> None:
    ctx = context()
    (phase,) = RECIPE.phases(RECIPE.build(ctx.card, ctx), tiny_split().victim(), ctx)
    wanted = Optimizer("sgd", 0.1, momentum=0.9, drops=(0.5,))
    assert dict(phase.optimizers) == {"encoder": wanted, "classifier": wanted}


def test_drops_are_torchs_milestones() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    spec = Optimizer("sgd", 0.5, drops=(0.5, 0.75))
    made = spec.make(weights)
    steps = torch.optim.lr_scheduler.MultiStepLR(made, [50, 75])
    for done in range(100):
        assert spec.rate(done, 100) == pytest.approx(made.param_groups[0]["lr"])
        made.step()
        steps.step()


def test_what_does_not_go_together() -> None:
    with pytest.raises(BadInputError, match=r"supervised\.momentum is of sgd"):
        Supervised(momentum=0.9)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Optimizer("sgd", 0.1, drops=(1.0,))
    cell = type("Cell", (), {"card": TinyImages().card(None)})()
    assert "are layers of an mlp" in str(
        Supervised(backbone="convnet", hidden=(4,)).incompatible(cell)
    )
    assert Supervised(backbone="mlp", hidden=(4,)).incompatible(cell) is None
