"""One run, from the command line or from Python: plan, execute, show."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from privbench.api import options as run_options
from privbench.api.console import PLAIN, Watcher, summarise, terminal_console
from privbench.api.results import Results
from privbench.boards.board import Board
from privbench.grid import run as grid
from privbench.grid.cell import cell_record
from privbench.grid.executors import Serial
from privbench.grid.judging import judging
from privbench.grid.kept import is_kept
from privbench.grid.outcome import encodable
from privbench.grid.plan import plan
from privbench.grid.plugins import can_be_sent, code_of, sealed
from privbench.grid.suite import Suite, read_suite, suite_from
from privbench.grid.trial import TrialRunner
from privbench.ground.errors import BadInputError
from privbench.ground.store.stamps import imported_files
from privbench.ground.store.store import Store, default_root
from privbench.ground.text import shown
from privbench.measure.training import checkpoint
from privbench.measure.training.numerics import Numerics, slow_in_bf16
from privbench.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench.grid.executors import Executor
    from privbench.grid.plan import PlannedTrial
    from privbench.ground.store.store import Artifact
    from privbench.plugins.registry import Choice
    from privbench.results.record import Record


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
    session = Session(suite, files, options, console=Console(quiet=True))
    session.run()
    if session.problem:
        warnings.warn(session.problem, RuntimeWarning, stacklevel=2)
    results = Results(session.records)
    results.match_utility, results.folders = suite.match_utility, (session.out,)
    return results


def suite_of(given: Suite | Mapping[str, Any] | str | Path) -> Suite:
    """Return the suite that was given as one, as a mapping, or as the path of a YAML file."""
    if isinstance(given, str | Path):
        return read_suite(Path(given))
    return given if isinstance(given, Suite) else suite_from(dict(given), "the suite")


class Session:
    """A planned grid and the means to run it."""

    def __init__(
        self,
        suite: Suite,
        chosen: Sequence[Choice],
        options: Mapping[str, Any],
        console: Console | None = None,
    ) -> None:
        """Plan the grid; nothing is loaded or trained yet.

        Raises:
            PrivbenchError: if the suite or an option is invalid.
        """
        self.console = console or terminal_console()
        self.suite = suite
        run_options.check(options)
        checkpoint.seconds()  # refused now, and not by each training
        self.shown_out: Path = options["out"]
        self.out = self.shown_out.absolute()  # whatever folder a plugin goes to
        self.root = run_options.data_root(options["data_root"])
        self.device = _device(options["device"])
        self.numerics = _numerics(options, self.device)
        if self.numerics.precision == "bf16" and slow_in_bf16(self.device):
            self.console.print("--precision bf16: this processor has no instructions for bfloat16 "
                               "and trains many times slower than in float32", **PLAIN)  # fmt: skip
        self.store: Path = options.get("store") or default_root()
        self.chosen = list(chosen)
        self.registry = registry.load(self.chosen, wanted=suite.names)
        self.registry.refuse_broken_files()
        self.planned: list[PlannedTrial] = []
        self.add(suite)
        self.planned = self.planned[run_options.shard(options.get("shard"))]
        self.timeout: float | None = options.get("timeout")
        # Once code of others is loaded here, this process computes nothing.
        apart = bool(registry.imported) and can_be_sent(item.trial.cell for item in self.planned)
        self.executor = _executor(options, self.device, apart=apart)
        self.records: list[Record] = []
        self.board = Board([])  # of the records, once there are some
        self.files = imported_files()
        self.problem = ""  # why there is no board
        self.counts_models = False  # whether to tell how long the models take

    def add(self, suite: Suite) -> list[PlannedTrial]:
        """Plan the grid of another suite beside this one; return its trials. Each runs once.

        Raises:
            PrivbenchError: if it is invalid.
        """
        if suite.names is not None and not self.registry.offers(suite.names):
            self.registry = registry.load(self.chosen)
        made = plan(
            suite, self.registry, root=self.root, device=str(self.device), numerics=self.numerics
        )  # fmt: skip
        known = {item.trial.digest for item in self.planned}
        self.planned += [item for item in made if item.trial.digest not in known]
        return made

    @property
    def reads_given_files(self) -> bool:
        """Whether the grid depends on files of the user, whose content only planning reads."""
        cells = [item.trial.cell for item in self.planned]
        datasets = {of for cell in cells for of in (cell.dataset, cell.adversary.dataset)}
        canaries = {cell.protocol.canaries for cell in cells}
        return any(dataset.reads_given_files for dataset in datasets if dataset) or any(
            planted.path is not None for planted in canaries if planted
        )

    def run(self) -> int:
        """Run what is not done yet; return the exit status: 0, or 1 if a cell failed.

        Raises:
            BadInputError: if results cannot be written; this is checked before training.
        """
        trained = self.execute()
        self.board = Board(self.records, self.suite.match_utility, judging(self.registry))
        self.problem = summarise(
            self.console, self.board, self.out, self.suite.name, trained=trained
        )
        failed = any(record.status == "failed" for record in self.records)
        return 1 if failed or self.problem else 0

    def execute(self) -> int:
        """Run what is not done yet; return the number of phases that were trained.

        Raises:
            BadInputError: if results cannot be written; this is checked before training.
        """
        _writable(self.out, self.shown_out)
        with Watcher(self.console, len(self.planned)) as watcher:
            runner = self.runner(watcher)
            if self.counts_models and isinstance(self.executor, Serial):  # workers tell the time
                watcher.models = self._missing(runner)
            self.records = grid.execute(
                self.planned, runner, self.out, executor=self.executor, watch=watcher
            )
        return runner.builder.trained_phases

    def _missing(self, runner: TrialRunner) -> int:
        """Return how many phases are to train."""
        keys: dict[str, bool] = {}
        by_victim: dict[str, dict[str, bool]] = {}
        for item in self.planned:
            if not (item.skip or item.failed or is_kept(item.trial.digest, item.skip, self.out)):
                with contextlib.suppress(Exception):  # running the trial says what is wrong
                    keys |= _phases(runner, item, by_victim)
        return sum(not held for held in keys.values())

    def explain(self) -> None:
        """Print the plan: what would run, what is kept, and what is skipped and why."""
        runner = self.runner(None)
        keys: dict[str, bool] = {}
        by_victim: dict[str, dict[str, bool]] = {}  # trials share most of their victims
        shown = self.console.print
        for item in self.planned:
            cell = cell_record(item.trial.cell)
            name = f"{cell.title}, {cell.adversary}, seed {item.trial.seed}"
            if item.skip:
                state = f"skipped: {item.skip}"
            elif item.failed:
                state = f"would fail: {item.failed[0]}"
            elif is_kept(item.trial.digest, item.skip, self.out):
                state = "kept"
            else:
                Store.code = code_of(sealed(item.trial).cell)
                try:
                    phases = _phases(runner, item, by_victim)
                except Exception as error:  # noqa: BLE001 - a run would record a failure
                    shown(f"{name}: would fail: {encodable(str(error))}", **PLAIN)
                    continue
                finally:
                    Store.code = ""
                todo = sum(not held for held in phases.values())
                state = (
                    f"would run; {len(phases)} training phases, {len(phases) - todo} in the store"
                )
                keys |= phases
            shown(f"{name}: {state}", **PLAIN)
        missing = sum(not held for held in keys.values())
        guess = _estimate(runner, missing)
        limit = "no time limit" if self.timeout is None else f"at most {self.timeout:g} s"
        shown(
            f"{len(self.planned)} trials; {missing} distinct phases to train; {guess}; "
            f"{limit} for each attack",
            **PLAIN,
        )

    def artifacts(self) -> tuple[list[Artifact], int]:
        """Return the stored victims and shadows of the grid, and how many are not stored."""
        builder, seen, missing = self.runner(None).builder, set[str](), set[str]()
        stored: dict[str, Artifact] = {}
        with tempfile.TemporaryDirectory() as empty:  # stored answers would need no shadows
            asker = self.runner(None, Path(empty))
            for item in self.planned:
                if item.skip or item.failed:
                    continue
                Store.code = code_of(sealed(item.trial).cell)
                try:
                    for spec in asker.specs(item.trial).values():
                        mark = f"{spec.identity} {Store.code}"
                        keys = () if mark in seen else builder.planned(spec)
                        seen.add(mark)
                        for key in keys:
                            if found := builder.store.find(key):
                                stored[found.key.digest] = found
                            else:
                                missing.add(key.digest)
                finally:
                    Store.code = ""
        return [stored[one] for one in sorted(stored)], len(missing)

    def runner(self, watcher: Watcher | None, store: Path | None = None) -> TrialRunner:
        """Return what runs the trials, with the store of the session by default."""
        return TrialRunner(
            Store(store or self.store), self.device, root=self.root, progress=watcher,
            numerics=self.numerics,
        )  # fmt: skip


def _phases(
    runner: TrialRunner, item: PlannedTrial, by_victim: dict[str, dict[str, bool]]
) -> dict[str, bool]:
    phases: dict[str, bool] = {}
    for spec in runner.specs(item.trial).values():
        if spec.identity not in by_victim:
            planned = runner.builder.planned(spec)
            by_victim[spec.identity] = {key.digest: held for key, held in planned.items()}
        phases |= by_victim[spec.identity]
    return phases


def _estimate(runner: TrialRunner, missing: int) -> str:
    """Estimate the training time from the build seconds of the phases in the store."""
    seconds = [row.seconds or 0.0 for row in runner.store.list()
               if row.kind == "phase" and not row.damaged]  # fmt: skip
    if not missing:
        return "about 0 s"
    if not seconds:
        return "time unknown: no timings recorded yet"
    return f"about {missing * sum(seconds) / len(seconds):.0f} s, if similar to those in the store"


def _executor(options: Mapping[str, Any], device: torch.device, *, apart: bool) -> Executor:
    """What runs the trials; ``apart`` if this process must not."""
    kind, count = run_options.executor(options)
    timeout: float | None = options.get("timeout")
    if kind == "ray":
        from privbench.grid.cluster import Ray

        return Ray(options.get("address"), timeout)
    if kind == "serial" and (options.get("executor") or not apart):
        return Serial()
    from privbench.grid.processes import Processes

    devices = _devices(options.get("devices"), device)
    return Processes(count, timeout, devices, bool(options.get("isolate")))


def _devices(given: str | None, device: torch.device) -> tuple[str, ...]:
    """The CUDA devices of the workers, in turn; () for the runner's device.

    Raises:
        BadInputError: unless torch finds them.
    """
    numbers = run_options.device_numbers(given)
    if numbers and device.type != "cuda":
        raise BadInputError(
            f"--devices {shown(given)} needs --device cuda, and this run is on {device}"
        )
    return tuple(str(_device(f"cuda:{number}")) for number in numbers)


def _numerics(options: Mapping[str, Any], device: torch.device) -> Numerics:
    precision = options.get("precision", "auto")
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "float32"
    return Numerics(options.get("threads", 1), options.get("compiled", False), precision)


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


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInputError(f"--device {name}: torch finds no CUDA device: use cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise BadInputError(f"--device {name}: CUDA devices found: {count}; use a lower number")
    return device


__all__ = ["Results", "Session", "run"]
