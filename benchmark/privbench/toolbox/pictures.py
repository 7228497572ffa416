"""Pictures in files: decoded to one size, in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privbench.ground.errors import BadInputError
from privbench.toolbox.messages import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image

#: Pictures that are decoded before they are handed on.
GROUP = 512


def decoded(
    name: str,
    files: Sequence[Path],
    size: int,
    *,
    channels: int = 3,
    advice: str = "get it again",
) -> Iterator[np.ndarray]:
    """Decode and resize pictures; yield (k, channels, size, size) uint8, in order.

    Args:
        name: of the dataset, for messages.
        files: of any format, size and number of channels.
        size: pixels per side; other sizes are resized, bilinear and antialiased.
        channels: 3 for colour, 1 for grey.
        advice: what to do about a file that cannot be decoded.

    Raises:
        BadInputError: if a file cannot be decoded; names it.
    """
    from PIL import Image

    def opened() -> Iterator[Image.Image]:
        for file in files:
            try:
                with Image.open(file) as image:
                    yield image.convert("RGB" if channels == 3 else "L")  # noqa: PLR2004
            except Exception as error:  # PIL raises many types on bad bytes
                raise BadInputError(
                    f"{name}: {plain(file)} cannot be decoded ({one_line(error)}): {advice}"
                ) from error

    return resized(opened(), size)


def resized(images: Iterable[Image], size: int) -> Iterator[np.ndarray]:
    """Resize pictures of equal channels; yield groups, (k, channels, size, size) uint8."""
    from PIL import Image

    group: list[np.ndarray] = []
    for image in images:
        same = image.size == (size, size)
        made = image if same else image.resize((size, size), Image.Resampling.BILINEAR)
        group.append(np.asarray(made).reshape(size, size, -1).transpose(2, 0, 1))
        if len(group) == GROUP:
            yield np.stack(group)
            group.clear()
    if group:
        yield np.stack(group)
