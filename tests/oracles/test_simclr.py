from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from privbench.testing import TinyImages
from privbench.toolbox.phases import chosen_backbone, unfit_backbone
from privbench.toolbox.self_supervised import CROPS
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR, nt_xent


def _by_hand(z: torch.Tensor, temperature: float) -> float:
    """Equation 1 as a double loop over views, in Python floats."""
    n = len(z) // 2
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in z.tolist()]
    total = 0.0
    for i in range(2 * n):
        j = (i + n) % (2 * n)
        similar = [
            sum(a * b for a, b in zip(unit[i], unit[k], strict=True)) / temperature
            for k in range(2 * n)
        ]
        below = sum(math.exp(s) for k, s in enumerate(similar) if k != i)
        total += -math.log(math.exp(similar[j]) / below)
    return total / (2 * n)


def test_defaults_are_those_of_crops_and_of_a_linear_probe() -> None:
    target = SimCLR()
    assert (CROPS.crop, CROPS.flip) == ((0.08, 1.0), 0.5)  # RandomResizedCrop of torchvision
    probe = target.classifier_epochs, target.classifier_lr, target.classifier_weight_decay
    assert probe == (100, 1e-2, 1e-4)


@pytest.mark.parametrize(
    ("kind", "shape", "chosen"),
    [
        ("image", (1, 8, 8), "mlp"), ("image", (1, 8, 9), "convnet"),
        ("image", (3, 32, 32), "convnet"), ("binary", (600,), "mlp"),
    ],
)  # fmt: skip
def test_small_images_and_tables_get_an_mlp(kind: Any, shape: tuple[int, ...], chosen: str) -> None:
    card = dataclasses.replace(TinyImages().card(None), kind=kind, shape=shape)
    assert chosen_backbone("auto", card) == chosen
    assert chosen_backbone("resnet18", card) == "resnet18"


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_nt_xent_equals_the_double_loop(temperature: float) -> None:
    z = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    assert float(nt_xent(z, temperature)) == pytest.approx(_by_hand(z, temperature), rel=1e-5)


def test_nt_xent_is_blind_to_length_and_symmetric_in_views() -> None:
    z = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    loss = nt_xent(z, 0.2)
    assert torch.allclose(nt_xent(z * 7, 0.2), loss)
    assert torch.allclose(nt_xent(z.roll(6, 0), 0.2), loss)
    assert not torch.allclose(nt_xent(z[torch.tensor([1, 0, *range(2, 12)])], 0.2), loss)


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        ({}, (512, 512, 256)),
        ({"backbone": "resnet50-stock", "hidden": 256}, (2048, 256, 256)),
        ({"backbone": "mobilenetv2", "hidden": 256}, (1280, 256, 256)),
    ],
)
def test_heads_of_talos(fields: dict[str, object], widths: tuple[int, ...]) -> None:
    """Section 3.3: embedding, hidden layer and output of the projection head."""
    target = SimCLR().preset("talos").replace(**fields)
    model = target.build(TinyImages().card(None), None)  # type: ignore[arg-type] # it reads no context
    first, second = (part for part in model["head"].modules() if isinstance(part, nn.Linear))
    assert (first.in_features, second.in_features, second.out_features) == widths


def test_small_images_of_an_unknown_architecture_are_skipped() -> None:
    """EncoderMI's other architecture: MoCo's head is 512-128, and the digits are too small."""
    target = MoCo(backbone="vgg11-bn", splits=2)
    card = TinyImages().card(None)
    large = dataclasses.replace(card, shape=(3, 32, 32))
    head = target.build(large, None)["head"]  # type: ignore[arg-type]
    assert isinstance(head, nn.Linear)
    assert (head.in_features, head.out_features) == (512, 128)
    told = "backbone 'vgg11-bn' needs images of at least 32x32 pixels, got 8x8 of tiny-images"
    assert unfit_backbone("vgg11-bn", card) == told
    assert unfit_backbone("vgg11-bn", large) is None
