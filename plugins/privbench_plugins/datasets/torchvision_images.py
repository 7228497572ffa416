"""Pictures with classes that torchvision reads: CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST.

A missing dataset is downloaded, and every file's published md5 is checked. Source ``train`` holds
the train rows, ``test`` the test rows; there is no sensitive attribute.

The default protocols are sized for a short run on a CPU: 1,000 members (CIFAR-100: 2,000, 20 of
each class), and all parts except the test rows come from ``train``, so that members and nonmembers
differ only by training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from privbench import BadInputError, Card, Dataset, Examples, Paper, Protocol, hookimpl
from privbench.toolbox import views
from privbench.toolbox.published import fetched, home, short_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from privbench import Augmentation


@dataclass(frozen=True)
class TrainThenTest(Dataset):
    """Images that a class of torchvision reads: the train rows, then the test rows, in file order.

    Attributes:
        described: the card; its sources are train and test, in that order.
        made_by: name of torchvision's class.
        folder: the folder that torchvision looks for under the data root.
        origin: where the data are published, and under which licence.
    """

    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(1_000, 4_000)}
    described: ClassVar[Card]
    made_by: ClassVar[str]
    folder: ClassVar[str]
    origin: ClassVar[str]

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return self.described

    def load(self, root: Path | None) -> Examples:
        """Read (or download) the data: x (n, channels, height, width) uint8.

        Raises:
            BadInputError: if the files are missing, damaged or incomplete and cannot be downloaded.
        """
        card, place = self.card(root), home(root)

        def read() -> list[Any]:
            from torchvision import datasets

            made_by = getattr(datasets, self.made_by)
            return [made_by(place, train=True, download=True), made_by(place, train=False)]

        halves = fetched(read, self.name, place, self.folder, self.origin)
        rows = [len(half) for half in halves]
        if rows != list(card.sources.values()):
            raise BadInputError(
                f"{self.name}: {self.folder} in {place} holds {rows[0]} train and {rows[1]} test "
                f"rows where {' and '.join(map(str, card.sources.values()))} were published; "
                "remove it to download it again"
            )
        channels, *sides = card.shape
        x = torch.cat([torch.as_tensor(half.data) for half in halves])  # channels last, or grey
        return Examples.of(
            x.view(len(x), *sides, channels).permute(0, 3, 1, 2),
            torch.cat([torch.as_tensor(half.targets) for half in halves]),
            scale=card.scale,
            source=torch.arange(len(rows)).repeat_interleave(torch.tensor(rows)),
        )


def _pictures(
    name: str, shape: tuple[int, int, int], *, train: int, limits: Augmentation,
    mean: tuple[float, ...], std: tuple[float, ...], classes: int = 10,
) -> Card:  # fmt: skip
    return Card(
        name=name, kind="image", shape=shape, classes=classes, scale=255,
        sources={"train": train, "test": 10_000}, mean=mean, std=std, limits=limits,
    )  # fmt: skip


@dataclass(frozen=True)
class CIFAR10(TrainThenTest):
    """Loads CIFAR-10: x (60000, 3, 32, 32) uint8.

    CIFAR-10 holds 60,000 colour photographs of ten kinds of objects, 32x32 (170 MB; the folder is
    ``cifar-10-batches-py``). Licence: the authors name none; the photographs were collected from
    the web. For the published sizes use the protocols ``encodermi`` (nonmembers from ``test``, as
    in that paper), ``encodermi-matched`` or ``quarters``.
    """

    name: ClassVar[str] = "cifar10"
    paper: ClassVar[Paper] = Paper(
        "Learning Multiple Layers of Features from Tiny Images", "Krizhevsky",
        "University of Toronto 2009", "chapter 3",
    )  # fmt: skip
    # Channel means and deviations are those of EncoderMI's code.
    described: ClassVar[Card] = _pictures(
        name, (3, 32, 32), train=50_000, limits=views.of_objects(32),
        mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010),
    )  # fmt: skip
    made_by: ClassVar[str] = "CIFAR10"
    folder: ClassVar[str] = "cifar-10-batches-py"
    origin: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html (which names no licence)"


@dataclass(frozen=True)
class CIFAR100(TrainThenTest):
    """Loads CIFAR-100: x (60000, 3, 32, 32) uint8.

    CIFAR-100 holds 60,000 colour photographs of a hundred kinds of objects, 32x32 (169 MB; the
    folder is ``cifar-100-python``). The classes are the hundred fine ones. Licence: the authors
    name none; the photographs were collected from the web. Published sizes: the protocols
    ``quarters`` (Talos, 15,000 members), ``alm`` and ``encodermi``.
    """

    name: ClassVar[str] = "cifar100"
    paper: ClassVar[Paper] = CIFAR10.paper
    protocols: ClassVar[Mapping[str, Protocol]] = {"default": short_run(2_000, 6_000)}
    # Channel means and deviations are those of the train rows.
    described: ClassVar[Card] = _pictures(
        name, (3, 32, 32), train=50_000, limits=views.of_objects(32),
        mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), classes=100,
    )  # fmt: skip
    made_by: ClassVar[str] = "CIFAR100"
    folder: ClassVar[str] = "cifar-100-python"
    origin: ClassVar[str] = CIFAR10.origin


@dataclass(frozen=True)
class MNIST(TrainThenTest):
    """Loads MNIST: x (70000, 1, 28, 28) uint8.

    MNIST holds 70,000 handwritten digits, grey, 28x28 (12 MB; the folder is ``MNIST/raw``). The
    test rows are by other writers. Licence: CC BY-SA 3.0, as Keras' documentation states it; the
    pictures are from NIST's Special Databases 1 and 3.
    """

    name: ClassVar[str] = "mnist"
    paper: ClassVar[Paper] = Paper(
        "Gradient-based learning applied to document recognition",
        "LeCun, Bottou, Bengio, Haffner", "Proceedings of the IEEE 1998", "section III.A",
    )  # fmt: skip
    described: ClassVar[Card] = _pictures(
        name, (1, 28, 28), train=60_000, limits=views.of_grey(28), mean=(0.1307,), std=(0.3081,)
    )
    made_by: ClassVar[str] = "MNIST"
    folder: ClassVar[str] = "MNIST/raw"
    origin: ClassVar[str] = "http://yann.lecun.com/exdb/mnist/ (which names no licence)"


@dataclass(frozen=True)
class FashionMNIST(TrainThenTest):
    """Loads Fashion-MNIST: x (70000, 1, 28, 28) uint8.

    Fashion-MNIST holds 70,000 pictures of ten kinds of clothing, grey, 28x28 (31 MB; the folder is
    ``FashionMNIST/raw``). MIT licence.
    """

    name: ClassVar[str] = "fashion-mnist"
    paper: ClassVar[Paper] = Paper(
        "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
        "Xiao, Rasul, Vollgraf", "arXiv:1708.07747, 2017", "section 2",
    )  # fmt: skip
    # Mean and deviation are those of the train rows. A mirrored shoe is a shoe.
    described: ClassVar[Card] = _pictures(
        name,
        (1, 28, 28),
        train=60_000,
        limits=views.of_grey(28, flip=0.5),
        mean=(0.286,),
        std=(0.353,),
    )
    made_by: ClassVar[str] = "FashionMNIST"
    folder: ClassVar[str] = "FashionMNIST/raw"
    origin: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist (MIT licence)"


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the datasets."""
    return [CIFAR10(), CIFAR100(), MNIST(), FashionMNIST()]
