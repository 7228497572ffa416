"""CIFAR-100 holds 60,000 colour photographs of a hundred kinds of objects, 32x32.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of
Toronto, 2009. It is read and, if missing, downloaded (169 MB) by torchvision, which checks the
published md5 of every file; the folder is ``cifar-100-python``. The classes are the hundred fine
ones. Licence: the authors name none; the photographs were collected from the web.

Source ``train`` holds 50,000 rows, ``test`` 10,000. There is no sensitive attribute.

The default protocol is sized for a short run on a CPU: 2,000 members, 20 of each class, and all
parts except the test rows come from ``train``, so that members and nonmembers differ only by
training. Published sizes: ``quarters`` (Talos, 15,000 members), ``alm`` and ``encodermi``.
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
class CIFAR100(TrainThenTest):
    """Loads CIFAR-100: x (60000, 3, 32, 32) uint8."""

    name: ClassVar[str] = "cifar100"
    paper: ClassVar[Paper] = Paper(
        "Learning Multiple Layers of Features from Tiny Images", "Krizhevsky",
        "University of Toronto 2009", "chapter 3",
    )  # fmt: skip
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(2_000, 6_000)}
    # Channel means and deviations are those of the train rows.
    described: ClassVar[Card] = Card(
        name=name,
        kind="image",
        shape=(3, 32, 32),
        classes=100,
        scale=255,
        sources={"train": 50_000, "test": 10_000},
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        limits=views.of_objects(32),
    )
    made_by: ClassVar[str] = "CIFAR100"
    folder: ClassVar[str] = "cifar-100-python"
    origin: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html (which names no licence)"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [CIFAR100()]
