"""One run, from the command line or from Python: plan, execute, show."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from privbench.api import options as run_options
from privbench.api.arguments import named_as_arguments
from privbench.api.console import PLAIN, Watcher, summarise, terminal_console
from privbench.api.results import Results
from privbench.boards.board import Leaderboard
from privbench.grid.apart import PlannedApart, is_planned_apart
from privbench.grid.executors import Serial
from privbench.grid.run import execute
from privbench.grid.server import named_function
from privbench.grid.suite import Suite, read_suite, suite_from
from privbench.ground.errors import BadInputError
from privbench.ground.store.stamps import imported_files
from privbench.ground.store.store import default_root
from privbench.ground.text import shown
from privbench.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.grid.executors import Executor
    from privbench.grid.planned import Planned
    from privbench.ground.judges import Wanted
    from privbench.plugins.registry import Choice
    from privbench.results.record import Record


@named_as_arguments
def run(
    suite: Suite | Mapping[str, Any] | str | Path,
    *,
    out: str | Path = "results",
    data_root: str | Path | None = None,
    device: str = "auto",
    jobs: int | str = 1,
    timeout: float | None = None,
    executor: str | None = None,
    address: str | None = None,
    threads: int = 1,
    precision: str = "auto",
    isolate: bool = False,
    plugins: Sequence[str | Path] = (),
) -> Results:
    """Run a suite from Python; the keys of a suite are those of ``privbench.grid.suite.Suite``.

    >>> import privbench, tempfile
    >>> suite = {"attacks": ["metric-loss"], "targets": [{"supervised": {"epochs": 1}}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = privbench.run(suite, out=folder, device="cpu")
    >>> [(record.cell.defense, record.status) for record in results]
    [('none', 'ok')]

    Args:
        suite: a suite, a mapping, or a path of a YAML file.
        out: directory for results; existing ones are kept.
        data_root: directory of datasets; None for the one that PRIVBENCH_DATA names, if any.
        device: ``cpu``, ``cuda`` or ``auto``.
        jobs: number of worker processes; ``auto`` for one per core.
        timeout: time limit for one attack in seconds; if exceeded, the cell fails.
        executor: ``serial``, ``processes`` or ``ray``; by default processes if there are several
            jobs, a time limit or methods of other packages, otherwise serial.
        address: of a Ray cluster.
        threads: of each job. Other numbers give other last bits, so results and artifacts of one
            number are not reused for another.
        precision: of training: ``float32``, ``bf16`` (bfloat16, faster where the processor has it),
            or ``auto``: bf16 on CUDA, float32 on the CPU.
        isolate: whether every cell runs in a process of its own, and its attack in one without the
            truth.
        plugins: paths of plugins that are single files.
    """
    suite = suite_of(suite)
    options = {"out": Path(out), "data_root": Path(data_root) if data_root else None,
               "device": device, "jobs": jobs, "timeout": timeout, "executor": executor,
               "address": address, "threads": threads, "precision": precision,
               "isolate": isolate}  # fmt: skip
    files = [Path(plugin).absolute() for plugin in plugins]
    session = Session.of(suite, files, options, console=Console(quiet=True))
    session.run()
    if session.problem:
        warnings.warn(session.problem, RuntimeWarning, stacklevel=2)
    results = Results(session.records)
    results.match_utility, results.folders = suite.match_utility, (session.out,)
    results.judging = session.judging
    return results


def suite_of(given: Suite | Mapping[str, Any] | str | Path) -> Suite:
    """Return the suite that was given as one, as a mapping, or as the path of a YAML file."""
    if isinstance(given, str | Path):
        return read_suite(Path(given))
    return given if isinstance(given, Suite) else suite_from(dict(given), "the suite")


#: What plans a suite.
_PLANNING = "privbench.api.planning:Planning"


def planned_by(
    make: str, names: Iterable[tuple[str, str]] | None, chosen: Sequence[Choice],
    options: Mapping[str, Any], *args: Any,
) -> Planned:  # fmt: skip
    """Return a plan: made here, or in a process of its own if it needs methods of other packages.

    Args:
        make: what makes it, as ``module:name``.
        names: kind and name of its methods; None if they are not known.
        chosen: plugins.
        options: of the run.
        args: for ``make``, which also gets plugins and options.

    Raises:
        PrivbenchError: if it cannot be made.
    """
    run_options.check(options)
    options = {**options, "store": options.get("store") or default_root()}
    if is_planned_apart(names, chosen, options.get("executor")):
        return PlannedApart(options.get("threads", 1), make, *args, list(chosen), options)
    here: Planned = named_function(make)(*args, list(chosen), options)
    return here


class Session:
    """A planned grid and the means to run it.

    Attributes:
        planned: the trials.
        records: the results, once it has run.
        board: of these.
        problem: why there is no board.
        files: stamps of the files that decided the plan.
        counts_models: whether to tell how long the models take.
    """

    def __init__(
        self,
        planned: Planned,
        options: Mapping[str, Any],
        console: Console | None = None,
        *,
        name: str = "",
        match_utility: float | None = None,
    ) -> None:
        """Take a plan; nothing is loaded or trained yet.

        Args:
            planned: of ``planned_by``.
            options: with which it was made.
            console: where to show progress and results; None for the terminal.
            name: of the suite.
            match_utility: of the suite.
        """
        self.planned, self.name, self.match_utility = planned, name, match_utility
        self.console = console or terminal_console()
        self.part: str = options.get("shard") or ""
        self.shown_out: Path = options["out"]
        self.out = self.shown_out.absolute()  # whatever folder a plugin goes to
        if planned.ask("is_slow"):
            self.console.print(run_options.SLOW, **PLAIN)
        # Once code of others is loaded here, this process computes nothing.
        apart = isinstance(planned, PlannedApart) or (
            bool(registry.imported) and planned.ask("can_be_sent")
        )
        self.executor = _executor(options, planned.ask("devices"), apart=apart)
        self.files = {**planned.ask("files"), **imported_files()}
        self.reads_given_files = bool(planned.ask("reads_given_files"))
        self.judging: dict[str, list[Wanted]] = planned.ask("judging")
        self.records: list[Record] = []
        self.board = Leaderboard([])  # of the records, once there are some
        self.problem = ""
        self.counts_models = False

    @classmethod
    def of(
        cls, suite: Suite, chosen: Sequence[Choice], options: Mapping[str, Any],
        console: Console | None = None,
    ) -> Session:  # fmt: skip
        """Plan the grid of a suite.

        Raises:
            PrivbenchError: if the suite or an option is invalid.
        """
        planned = planned_by(_PLANNING, suite.names, chosen, options, suite)
        try:
            utility = suite.match_utility
            return cls(planned, options, console, name=suite.name, match_utility=utility)
        except BaseException:
            planned.close()
            raise

    def run(self) -> int:
        """Run what is not done yet; return the exit status: 0, or 1 if a cell failed.

        Raises:
            BadInputError: if results cannot be written; this is checked before training.
        """
        trained = self.execute()
        self.board = Leaderboard(self.records, self.match_utility, self.judging)
        self.problem = summarise(
            self.console, self.board, self.out, self.name, trained=trained, part=self.part
        )
        failed = any(record.status == "failed" for record in self.records)
        return 1 if failed or self.problem else 0

    def execute(self) -> int:
        """Run what is not done yet; return the number of phases that were trained.

        Raises:
            BadInputError: if results cannot be written; this is checked before training.
        """
        planned = self.planned
        try:
            _writable(self.out, self.shown_out)
            with Watcher(self.console, len(planned.items)) as watcher:
                if isinstance(self.executor, Serial):  # else workers tell the time
                    planned.ask("watched_by", watcher)
                    if self.counts_models:
                        watcher.models = planned.ask("missing", self.out)
                self.records = execute(planned, self.out, executor=self.executor, watch=watcher)
        finally:
            planned.close()
        return planned.trained_phases


def _executor(options: Mapping[str, Any], devices: tuple[str, ...], *, apart: bool) -> Executor:
    """What runs the trials, on these CUDA devices if any; ``apart`` if this process must not."""
    kind, count = run_options.executor(options)
    timeout: float | None = options.get("timeout")
    if kind == "ray":
        from privbench.grid.cluster import Ray

        return Ray(options.get("address"), timeout)
    if kind == "serial" and (options.get("executor") or not apart):
        return Serial()
    from privbench.grid.processes import Processes

    return Processes(count, timeout, devices, bool(options.get("isolate")))


def _writable(folder: Path, given: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInputError(
            f"--out {shown(str(given))} cannot be written ({error.strerror}): "
            "choose another directory"
        ) from None
