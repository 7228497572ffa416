"""A dataset: a named, versioned source of examples."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privbench.measure.methods.method import Method

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.protocol import Protocol


class Dataset(Method):
    """A named, versioned source of examples.

    >>> from privbench.testing import TinyImages
    >>> data = TinyImages()
    >>> data.card(None).shape, len(data.load(None)), sorted(data.protocols)
    ((1, 8, 8), 720, ['default'])

    Attributes:
        protocols: its own protocols by name; must include "default".
        reads_given_files: whether its fields name files of the user, which may change between two
            runs.
    """

    protocols: ClassVar[Mapping[str, Protocol]]
    reads_given_files: ClassVar[bool] = False

    @abstractmethod
    def card(self, root: Path | None) -> Card:
        """Describe the dataset.

        Must be cheap, since the planner calls it: download and decode nothing.
        """

    @abstractmethod
    def load(self, root: Path | None) -> Examples:
        """Load all rows on the CPU, with integers as stored, in an order that never changes.

        Args:
            root: folder from ``--data-root`` or PRIVBENCH_DATA; None to download if possible.

        Raises:
            BadInputError: if the data is missing; the message names the expected file and folder.
        """
