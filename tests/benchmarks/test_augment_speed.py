"""Views per second of batched augmentation: pytest -n0 --benchmark-only tests/benchmarks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privbench.measure.data.augmentation import Augmentation, augment

CIFAR = Augmentation(crop=(0.08, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
DIGITS = Augmentation(crop=(0.5, 1.0), shift=1, jitter=(0.4, 0.4, 0.0, 0.0), blur=0.5)
CASES = {
    "cifar-hsv": (CIFAR, (256, 3, 32, 32)),
    "cifar-hsv-random-order": (replace(CIFAR, order="random"), (256, 3, 32, 32)),
    "cifar-yiq": (replace(CIFAR, hue="yiq"), (256, 3, 32, 32)),
    "crop-and-flip": (Augmentation(crop=(0.08, 1.0), flip=0.5), (256, 3, 32, 32)),
    "digits": (DIGITS, (100, 1, 8, 8)),
    "stl10-hsv": (CIFAR, (32, 3, 96, 96)),
}


@pytest.mark.parametrize("name", CASES)
def test_ours(benchmark: Any, name: str) -> None:
    augmentation, shape = CASES[name]
    g = torch.Generator().manual_seed(0)
    x, u = torch.rand(shape, generator=g), torch.rand(shape[0], augmentation.uniforms, generator=g)
    view = benchmark.pedantic(augment, (x, augmentation, u), rounds=15, warmup_rounds=3)
    benchmark.extra_info["views/s"] = round(shape[0] / benchmark.stats.stats.median)
    assert view.shape == shape


def test_torchvision_per_image(benchmark: Any) -> None:
    from torchvision.transforms import v2

    jitter = v2.RandomApply([v2.ColorJitter(*CIFAR.jitter or ())], p=CIFAR.jitter_p)
    steps = [v2.RandomResizedCrop(32, scale=(0.08, 1.0)), v2.RandomHorizontalFlip(), jitter]
    transform = v2.Compose([*steps, v2.RandomGrayscale(CIFAR.grey)])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        x = torch.rand(256, 3, 32, 32)
        view = benchmark.pedantic(
            lambda: torch.stack([transform(one) for one in x]), rounds=5, warmup_rounds=1
        )
    benchmark.extra_info["views/s"] = round(256 / benchmark.stats.stats.median)
    assert view.shape == x.shape
