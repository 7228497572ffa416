"""Datasets read by torchvision, which knows their addresses, checksums and formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from privbench import BadInputError, Examples
from privbench_plugins._shared.data_folder import home

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from privbench import Card

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
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInputError(
            f"{name}: {folder} {state} {place} and downloading it failed ({why}); get it from "
            f"{origin} and set --data-root or PRIVBENCH_DATA to the folder that holds it"
        ) from error


def train_then_test(
    made_by: Callable[..., Any],
    card: Card,
    root: Path | None,
    *,
    folder: str,
    origin: str,
    images: Callable[[Any], Tensor],
) -> Examples:
    """Load the train rows, then the test rows, each in file order; download them if missing.

    Args:
        made_by: torchvision's class, called with a root, ``train`` and ``download``.
        card: of the dataset; ``sources`` must be train and test, in that order.
        root: where ``folder`` is, or is downloaded to; None for the user's data folder.
        folder: the folder that torchvision looks for under the root.
        origin: where the data are published, and under which licence.
        images: maps an instance of that class to (n, c, h, w) uint8.

    Raises:
        BadInputError: if the files are missing, damaged or incomplete and cannot be downloaded.
    """
    place = home(root)

    def read() -> list[Any]:
        return [made_by(place, train=True, download=True), made_by(place, train=False)]

    halves = fetched(read, card.name, place, folder, origin)
    rows = [len(half) for half in halves]
    if rows != list(card.sources.values()):
        raise BadInputError(
            f"{card.name}: {folder} in {place} holds {rows[0]} train and {rows[1]} test rows "
            f"where {' and '.join(map(str, card.sources.values()))} were published; remove it to "
            "download it again"
        )
    return Examples.of(
        torch.cat([images(half) for half in halves]),
        torch.cat([torch.as_tensor(half.targets) for half in halves]),
        scale=card.scale,
        source=torch.arange(len(rows)).repeat_interleave(torch.tensor(rows)),
    )
