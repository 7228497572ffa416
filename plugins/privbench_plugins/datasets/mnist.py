"""MNIST holds 70,000 handwritten digits, grey, 28x28.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition.
Proceedings of the IEEE, 1998. It is read and, if missing, downloaded (12 MB, md5 of every archive
checked) by torchvision; the folder is ``MNIST/raw``.

Source ``train`` holds 60,000 rows, ``test`` 10,000 by other writers. There is no sensitive
attribute.

The default protocol is sized for a short run on a CPU: 1,000 members, and all parts except the test
rows come from ``train``, so that members and nonmembers differ only by training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privbench import Augmentation, Card, Dataset, Examples, Paper, Part, Protocol, hookimpl
from privbench_plugins._shared.torchvision_data import train_then_test

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class MNIST(Dataset):
    """Loads MNIST, train rows first, as 8-bit images."""

    name: ClassVar[str] = "mnist"
    paper: ClassVar[Paper] = Paper(
        "Gradient-based learning applied to document recognition",
        "LeCun, Bottou, Bengio, Haffner", "Proceedings of the IEEE 1998", "section III.A",
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
        """Describe the dataset."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(1, 28, 28),
            classes=10,
            scale=255,
            sources={"train": 60_000, "test": 10_000},
            mean=(0.1307,),
            std=(0.3081,),
            # No flip: digits are chiral, so a mirrored digit looks wrong.
            limits=Augmentation(
                crop=(0.5, 1.0), shift=3, blur=1.0, blur_sigma=(0.1, 1.0), blur_kernel=5
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (70000, 1, 28, 28) uint8."""
        from torchvision import datasets

        return train_then_test(
            datasets.MNIST,
            self.card(root),
            root,
            folder="MNIST/raw",
            origin="http://yann.lecun.com/exdb/mnist/ (which names no licence)",
            images=lambda half: half.data[:, None],
        )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [MNIST()]
