"""CIFAR-10 holds 60,000 colour photographs of ten kinds of objects, 32x32.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of
Toronto, 2009. It is read and, if missing, downloaded (170 MB) by torchvision, which checks the
published md5 of every batch; the folder is ``cifar-10-batches-py``.

Source ``train`` holds 50,000 rows, ``test`` 10,000. There is no sensitive attribute.

The default protocol is sized for a short run on a CPU: 1,000 members, and all parts except the test
rows come from ``train``, so that members and nonmembers differ only by training. For the published
sizes use ``encodermi`` (nonmembers from ``test``, as in that paper), ``encodermi-matched`` or
``quarters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from privbench import Augmentation, Card, Dataset, Examples, Paper, Part, Protocol, hookimpl
from privbench_plugins._shared.torchvision_data import train_then_test

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class CIFAR10(Dataset):
    """Loads CIFAR-10, train rows first, as 8-bit images."""

    name: ClassVar[str] = "cifar10"
    paper: ClassVar[Paper] = Paper(
        "Learning Multiple Layers of Features from Tiny Images", "Krizhevsky",
        "University of Toronto 2009", "chapter 3",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default",
            members=Part(1_000, "train"),
            nonmembers=Part(1_000, "train"),
            reference=Part(500, "train"),
            pool=Part(4_000, "train"),
            test=Part(2_000, "test"),
        )
    }

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; channel means and deviations are those of EncoderMI's code."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(3, 32, 32),
            classes=10,
            scale=255,
            sources={"train": 50_000, "test": 10_000},
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            # All that SimCLR, MoCo, Talos (vertical flip, blur) and padded crops (shift) use.
            limits=Augmentation(
                crop=(0.08, 1.0), shift=4, flip=0.5, vflip=0.5, jitter=(0.8, 0.8, 0.8, 0.4),
                jitter_p=1.0, grey=0.2, blur=1.0, blur_sigma=(0.1, 2.0), blur_kernel=9,
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (60000, 3, 32, 32) uint8."""
        from torchvision import datasets

        return train_then_test(
            datasets.CIFAR10,
            self.card(root),
            root,
            folder="cifar-10-batches-py",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html (which names no licence)",
            images=lambda half: torch.from_numpy(half.data).permute(0, 3, 1, 2),
        )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [CIFAR10()]
