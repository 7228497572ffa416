# ruff: noqa: INP001 - a plugin
"""Data with nothing to learn, and a victim that learns nothing: for leaks that are planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from privbench import Augmentation, Card, Dataset, Examples, Protocol, hookimpl
from privbench.testing import TinyTarget

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from privbench import Target

#: Rows that are asked about, half of them members.
ROWS = (100, 1000, 10_000)


@dataclass(frozen=True)
class SmoothImages(Dataset):
    """Smooth random 8×8 images of ten random classes: nothing to learn, and all rows differ."""

    name: ClassVar[str] = "smooth-images"
    protocols: ClassVar[Mapping[str, Protocol]] = {
        name: Protocol(name=name, members=n // 2, nonmembers=n // 2, pool=2 * n, test=100)
        for name, n in zip(("default", "n1000", "n10000"), ROWS, strict=True)
    }

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        limits = Augmentation(crop=(0.8, 1.0), shift=1, blur=1.0, blur_sigma=(0.1, 0.5))
        return Card(name=self.name, kind="image", shape=(1, 8, 8), classes=10, scale=255,
                    sources={"all": 3 * max(ROWS) + 100}, limits=limits)  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Generate the dataset, the same each time."""
        n = self.card(root).rows
        generator = torch.Generator().manual_seed(20211115)
        coarse = torch.rand(n, 1, 4, 4, generator=generator)
        x = (nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear") * 255).round().byte()
        return Examples.of(x, torch.randint(10, (n,), generator=generator), {}, scale=255)


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the data."""
    return [SmoothImages()]


@hookimpl
def privbench_targets() -> list[Target]:
    """Offer the target."""
    return [TinyTarget()]
