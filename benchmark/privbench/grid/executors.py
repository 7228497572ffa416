"""Where trials run: in this process, or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privbench.boards.records import Record
    from privbench.grid.cell import Trial
    from privbench.grid.trial import TrialRunner


class Executor(Protocol):
    """Runs trials somewhere: here, in processes, on a cluster. The order of results is free."""

    def run(self, trials: Sequence[Trial], runner: TrialRunner) -> Iterator[Record]:
        """Yield a record for every trial as it is done."""


class Serial:
    """One trial after the other, in this process."""

    def run(self, trials: Sequence[Trial], runner: TrialRunner) -> Iterator[Record]:
        """Yield a record for every trial, in order."""
        return map(runner.run, trials)
