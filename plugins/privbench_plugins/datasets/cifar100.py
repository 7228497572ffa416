"""CIFAR-100 holds 60,000 colour photographs of a hundred kinds of objects, 32x32.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of
Toronto, 2009. It is read and, if missing, downloaded (169 MB) by torchvision, which checks the
published md5 of every file; the folder is ``cifar-100-python``. The classes are the hundred fine
ones.

Source ``train`` holds 50,000 rows, ``test`` 10,000. There is no sensitive attribute.

The default protocol is sized for a short run on a CPU: 2,000 members, 20 of each class, and all
parts except the test rows come from ``train``, so that members and nonmembers differ only by
training. Published sizes: ``quarters`` (Talos, 15,000 members), ``alm`` and ``encodermi``.
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
class CIFAR100(Dataset):
    """Loads CIFAR-100, train rows first, as 8-bit images."""

    name: ClassVar[str] = "cifar100"
    paper: ClassVar[Paper] = Paper(
        "Learning Multiple Layers of Features from Tiny Images", "Krizhevsky",
        "University of Toronto 2009", "chapter 3",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default",
            members=Part(2_000, "train"),
            nonmembers=Part(2_000, "train"),
            reference=Part(500, "train"),
            pool=Part(6_000, "train"),
            test=Part(2_000, "test"),
        )
    }

    def card(self, root: Path | None) -> Card:
        """Describe the dataset; channel means and deviations are those of the train rows."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(3, 32, 32),
            classes=100,
            scale=255,
            sources={"train": 50_000, "test": 10_000},
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
            # As of CIFAR-10: all that SimCLR, MoCo, Talos and padded crops use.
            limits=Augmentation(
                crop=(0.08, 1.0), shift=4, flip=0.5, vflip=0.5, jitter=(0.8, 0.8, 0.8, 0.4),
                jitter_p=1.0, grey=0.2, blur=1.0, blur_sigma=(0.1, 2.0), blur_kernel=9,
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (60000, 3, 32, 32) uint8."""
        from torchvision import datasets

        return train_then_test(
            datasets.CIFAR100,
            self.card(root),
            root,
            folder="cifar-100-python",
            origin="https://www.cs.toronto.edu/~kriz/cifar.html (which names no licence)",
            images=lambda half: torch.from_numpy(half.data).permute(0, 3, 1, 2),
        )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [CIFAR100()]
