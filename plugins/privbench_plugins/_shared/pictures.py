"""Pictures in files: decoded to one size, in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privbench import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image

#: Pictures that are decoded before they are handed on.
GROUP = 512


def decoded(name: str, files: Sequence[Path], size: int) -> Iterator[np.ndarray]:
    """Decode and resize pictures; yield (k, 3, size, size) uint8, in order.

    Args:
        name: of the dataset, for messages.
        files: of any format and size; grey ones get three equal channels.
        size: pixels per side; other sizes are resized, bilinear and antialiased.

    Raises:
        BadInputError: if a file cannot be decoded; names it.
    """
    from PIL import Image

    def opened() -> Iterator[Image.Image]:
        for file in files:
            try:
                with Image.open(file) as image:
                    yield image.convert("RGB")
            except (OSError, SyntaxError, ValueError) as error:  # what PIL raises on bad bytes
                raise BadInputError(
                    f"{name}: {file} cannot be decoded ({' '.join(str(error).split())}); get it "
                    "again"
                ) from error

    return resized(opened(), size)


def resized(images: Iterable[Image], size: int) -> Iterator[np.ndarray]:
    """Resize colour pictures; yield groups of them, (k, 3, size, size) uint8."""
    from PIL import Image

    group: list[np.ndarray] = []
    for image in images:
        same = image.size == (size, size)
        made = image if same else image.resize((size, size), Image.Resampling.BILINEAR)
        group.append(np.asarray(made).transpose(2, 0, 1))
        if len(group) == GROUP:
            yield np.stack(group)
            group.clear()
    if group:
        yield np.stack(group)
