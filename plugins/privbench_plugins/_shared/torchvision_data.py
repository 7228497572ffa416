"""Datasets read by torchvision, which knows their addresses, checksums and formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from privbench import BadInputError, Part, Protocol
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


def short_run(members: int, pool: int) -> Protocol:
    """Return a default protocol for a short run on a CPU.

    All parts except the test rows come from source ``train``, so that members and nonmembers differ
    only by training.
    """
    return Protocol(
        name="default", members=Part(members, "train"), nonmembers=Part(members, "train"),
        reference=Part(500, "train"), pool=Part(pool, "train"), test=Part(2_000, "test"),
    )  # fmt: skip
