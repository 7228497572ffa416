"""Fashion-MNIST holds 70,000 pictures of ten kinds of clothing, grey, 28x28.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms. arXiv:1708.07747, 2017. MIT licence. It is read and, if missing, downloaded (31 MB, md5
of every archive checked) by torchvision; the folder is ``FashionMNIST/raw``.

Source ``train`` holds 60,000 rows, ``test`` 10,000. There is no sensitive attribute.

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
class FashionMNIST(Dataset):
    """Loads Fashion-MNIST, train rows first, as 8-bit images."""

    name: ClassVar[str] = "fashion-mnist"
    paper: ClassVar[Paper] = Paper(
        "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        "Xiao, Rasul, Vollgraf", "arXiv:1708.07747, 2017", "section 2",
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
        """Describe the dataset; mean and deviation are those of the train rows."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(1, 28, 28),
            classes=10,
            scale=255,
            sources={"train": 60_000, "test": 10_000},
            mean=(0.286,),
            std=(0.353,),
            # A mirrored shoe is a shoe.
            limits=Augmentation(
                crop=(0.5, 1.0), shift=3, flip=0.5, blur=1.0, blur_sigma=(0.1, 1.0), blur_kernel=5
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (70000, 1, 28, 28) uint8."""
        from torchvision import datasets

        return train_then_test(
            datasets.FashionMNIST,
            self.card(root),
            root,
            folder="FashionMNIST/raw",
            origin="https://github.com/zalandoresearch/fashion-mnist (MIT licence)",
            images=lambda half: half.data[:, None],
        )


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [FashionMNIST()]
