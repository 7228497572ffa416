"""Datasets read by torchvision, which knows their addresses, checksums and formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from privbench import BadInputError, Card, Dataset, Examples, Part, Protocol
from privbench_plugins._shared.data_folder import home
from privbench_plugins._shared.messages import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


def fetched(read: Callable[[], T], name: str, place: Path, folder: str, origin: str) -> T:
    """Return what ``read`` returns; it downloads what is missing.

    Args:
        read: makes instances of torchvision's class, with ``download``.
        name: of the dataset.
        place: the data root.
        folder: the folder that torchvision looks for under the root.
        origin: where the data are published, and under which licence.

    Raises:
        BadInputError: if the files are missing, damaged or incomplete and cannot be downloaded.
    """
    found = (place / folder).is_dir()
    try:
        return read()
    except Exception as error:  # anything that network, archives and files may raise
        state = "is incomplete or damaged in" if found else "is not in"
        raise BadInputError(
            f"{name}: {folder} {state} {place} and downloading it failed ({one_line(error)}); "
            f"get it from {origin} and set --data-root or PRIVBENCH_DATA to the folder that holds "
            "it"
        ) from error


@dataclass(frozen=True)
class TrainThenTest(Dataset):
    """Images that a class of torchvision reads: the train rows, then the test rows, in file order.

    Attributes:
        described: the card; its sources are train and test, in that order.
        made_by: name of torchvision's class.
        folder: the folder that torchvision looks for under the data root.
        origin: where the data are published, and under which licence.
    """

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


def short_run(members: int, pool: int) -> Protocol:
    """Return a default protocol for a short run on a CPU.

    All parts except the test rows come from source ``train``, so that members and nonmembers differ
    only by training.
    """
    return Protocol(
        name="default", members=Part(members, "train"), nonmembers=Part(members, "train"),
        reference=Part(500, "train"), pool=Part(pool, "train"), test=Part(2_000, "test"),
    )  # fmt: skip
