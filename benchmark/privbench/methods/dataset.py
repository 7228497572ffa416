"""A dataset: a named, versioned source of examples."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from privbench.method import Method

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from privbench.data.examples import Card, Examples
    from privbench.data.protocol import Protocol


class Dataset(Method):
    """A named, versioned source of examples."""

    protocols: ClassVar[Mapping[str, Protocol]]  #: its own, among them "default"

    @abstractmethod
    def card(self, root: Path | None) -> Card:
        """Describe it. Cheap: the planner calls it; nothing is downloaded or decoded."""

    @abstractmethod
    def load(self, root: Path | None) -> Examples:
        """Load all rows on the CPU, integers as stored, in an order that never changes.

        Args:
            root: folder of ``--data-root`` or PRIVBENCH_DATA; None means: download if it can.

        Raises:
            BadInputError: if the data are not there, saying which file is expected where.
        """
