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

from privbench import Card, Dataset, Paper, Protocol, hookimpl
from privbench_plugins._shared import views
from privbench_plugins._shared.torchvision_data import TrainThenTest, short_run

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class FashionMNIST(TrainThenTest):
    """Loads Fashion-MNIST: x (70000, 1, 28, 28) uint8."""

    name: ClassVar[str] = "fashion-mnist"
    paper: ClassVar[Paper] = Paper(
        "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        "Xiao, Rasul, Vollgraf", "arXiv:1708.07747, 2017", "section 2",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(1_000, 4_000)}
    # Mean and deviation are those of the train rows. A mirrored shoe is a shoe.
    described: ClassVar[Card] = Card(
        name=name,
        kind="image",
        shape=(1, 28, 28),
        classes=10,
        scale=255,
        sources={"train": 60_000, "test": 10_000},
        mean=(0.286,),
        std=(0.353,),
        limits=views.of_grey(28, flip=0.5),
    )
    made_by: ClassVar[str] = "FashionMNIST"
    folder: ClassVar[str] = "FashionMNIST/raw"
    origin: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist (MIT licence)"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [FashionMNIST()]
