"""MNIST holds 70,000 handwritten digits, grey, 28x28.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition.
Proceedings of the IEEE, 1998. It is read and, if missing, downloaded (12 MB, md5 of every archive
checked) by torchvision; the folder is ``MNIST/raw``. Licence: CC BY-SA 3.0, as Keras' documentation
states it; the pictures are from NIST's Special Databases 1 and 3.

Source ``train`` holds 60,000 rows, ``test`` 10,000 by other writers. There is no sensitive
attribute.

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
class MNIST(TrainThenTest):
    """Loads MNIST: x (70000, 1, 28, 28) uint8."""

    name: ClassVar[str] = "mnist"
    paper: ClassVar[Paper] = Paper(
        "Gradient-based learning applied to document recognition",
        "LeCun, Bottou, Bengio, Haffner", "Proceedings of the IEEE 1998", "section III.A",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(1_000, 4_000)}
    described: ClassVar[Card] = Card(
        name=name,
        kind="image",
        shape=(1, 28, 28),
        classes=10,
        scale=255,
        sources={"train": 60_000, "test": 10_000},
        mean=(0.1307,),
        std=(0.3081,),
        limits=views.of_grey(28),
    )
    made_by: ClassVar[str] = "MNIST"
    folder: ClassVar[str] = "MNIST/raw"
    origin: ClassVar[str] = "http://yann.lecun.com/exdb/mnist/ (which names no licence)"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [MNIST()]
