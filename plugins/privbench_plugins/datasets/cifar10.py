"""CIFAR-10 holds 60,000 colour photographs of ten kinds of objects, 32x32.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of
Toronto, 2009. It is read and, if missing, downloaded (170 MB) by torchvision, which checks the
published md5 of every batch; the folder is ``cifar-10-batches-py``. Licence: the authors name none;
the photographs were collected from the web.

Source ``train`` holds 50,000 rows, ``test`` 10,000. There is no sensitive attribute.

The default protocol is sized for a short run on a CPU: 1,000 members, and all parts except the test
rows come from ``train``, so that members and nonmembers differ only by training. For the published
sizes use ``encodermi`` (nonmembers from ``test``, as in that paper), ``encodermi-matched`` or
``quarters``.
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
class CIFAR10(TrainThenTest):
    """Loads CIFAR-10: x (60000, 3, 32, 32) uint8."""

    name: ClassVar[str] = "cifar10"
    paper: ClassVar[Paper] = Paper(
        "Learning Multiple Layers of Features from Tiny Images", "Krizhevsky",
        "University of Toronto 2009", "chapter 3",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(1_000, 4_000)}
    # Channel means and deviations are those of EncoderMI's code.
    described: ClassVar[Card] = Card(
        name=name,
        kind="image",
        shape=(3, 32, 32),
        classes=10,
        scale=255,
        sources={"train": 50_000, "test": 10_000},
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        limits=views.of_objects(32),
    )
    made_by: ClassVar[str] = "CIFAR10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    origin: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html (which names no licence)"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [CIFAR10()]
