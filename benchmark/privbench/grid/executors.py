"""Where trials run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from privbench.boards.records import Record
    from privbench.grid.cell import Trial


class Executor(Protocol):
    """Runs trials somewhere: here, in processes, on a cluster. Order of results is free."""

    def run(self, trials: Sequence[Trial], work: Callable[[Trial], Record]) -> Iterator[Record]:
        """Yield a record for every trial as it is done."""


class Serial:
    """One after the other, in this process."""

    def run(self, trials: Sequence[Trial], work: Callable[[Trial], Record]) -> Iterator[Record]:
        """Yield a record for every trial, in order."""
        return map(work, trials)
