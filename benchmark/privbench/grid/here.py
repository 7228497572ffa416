"""Planned trials in this process."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from privbench.grid.graph import graph
from privbench.grid.messages import Packed, Setup
from privbench.grid.origins import can_be_sent, code_here, code_of, of_others, sealed
from privbench.grid.outcome import new_record
from privbench.grid.planned import Item
from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store
from privbench.plugins.plugin_file import loaded_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.grid.messages import Node
    from privbench.grid.plan import PlannedTrial
    from privbench.grid.trial import Trial
    from privbench.grid.trial_runner import TrialRunner
    from privbench.measure.training.phase import Progress
    from privbench.results.record import Record


class PlannedHere:
    """Trials from ``plan`` and what runs them; see ``Planned``."""

    def __init__(self, planned: Iterable[PlannedTrial], runner: TrialRunner) -> None:
        """Nothing is loaded or trained yet."""
        self.planned, self.runner = list(planned), runner
        self._nodes: dict[str, Node] = {}
        self._trials: dict[str, Trial] = {}

    @property
    def items(self) -> list[Item]:
        """All trials, in order."""
        return [Item(one.trial.digest, one.skip, one.failed) for one in self.planned]

    @property
    def trained_phases(self) -> int:
        """How many phases were trained so far, by the runner or by workers."""
        return self.runner.builder.trained_phases

    @trained_phases.setter
    def trained_phases(self, count: int) -> None:
        self.runner.builder.trained_phases = count

    @property
    def setup(self) -> Setup:
        """What workers need to start."""
        runner = self.runner
        how = runner.builder.numerics
        return Setup(
            runner.store.root, str(runner.device), runner.root, how.threads, how.compiled,
            how.precision, loaded_files(),
        )  # fmt: skip

    def ask(self, what: str, *args: Any) -> Any:
        """Return an attribute, or what a method returns for the arguments."""
        value = getattr(self, what)
        return value(*args) if callable(value) else value

    def close(self) -> None:
        """Nothing more will be asked."""

    def watched_by(self, progress: Progress) -> None:
        """Let the runner show its training there."""
        self.runner.builder.progress = progress

    def blank(self, digest: str) -> str:
        """Return the record of a trial without results, as JSON."""
        return new_record(self.trial(digest), self.runner.device).model_dump_json()

    def nodes(self, digests: Sequence[str]) -> dict[str, Node]:
        """Return the graph of some of the trials."""
        self._nodes = graph([self.trial(one) for one in digests], self.runner)
        return self._nodes

    def packed(self, name: str, writer: str = "pickle") -> Packed:
        """Return a node of that graph with its trial, for a worker; see ``Planned``."""
        node = self._nodes[name]
        trial = self.trial(node.trial)
        apart = of_others(trial.cell.attack)
        try:
            if writer == "pickle" or can_be_sent([trial.cell]):
                trial = sealed(trial)
            sent = import_module(writer).dumps((node, trial))
        except Exception as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error
        return Packed(sent, code_of(trial.cell), apart)

    def run(self, digest: str) -> Record:
        """Run a trial; what it stores is apart if other code may have changed this process."""
        with Store.of_code(self._code_here):
            return self.runner.run(self.trial(digest))

    @cached_property
    def _code_here(self) -> str:
        return code_here(one.trial.cell for one in self.planned)

    def trial(self, digest: str) -> Trial:
        """Return the trial with that digest."""
        if digest not in self._trials:
            self._trials = {one.trial.digest: one.trial for one in self.planned}
        return self._trials[digest]
