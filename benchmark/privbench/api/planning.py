"""The plan of a run, in the process that imports the methods."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from privbench.api import options as run_options
from privbench.grid.here import PlannedHere
from privbench.grid.judging import judging
from privbench.grid.kept import is_kept
from privbench.grid.origins import can_be_sent, code_of, sealed
from privbench.grid.outcome import encodable
from privbench.grid.plan import plan
from privbench.grid.trial import cell_record
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import BadInputError
from privbench.ground.store.stamps import imported_files
from privbench.ground.store.store import Store, default_root
from privbench.ground.text import shown
from privbench.measure.training import checkpoint
from privbench.measure.training.numerics import Numerics, slow_in_bf16
from privbench.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privbench.grid.plan import PlannedTrial
    from privbench.grid.suite import Suite
    from privbench.ground.judges import Wanted
    from privbench.ground.store.store import Artifact
    from privbench.measure.data.examples import Examples
    from privbench.measure.victims.served import Victim
    from privbench.plugins.registry import Choice


class Planning(PlannedHere):
    """The grid of a suite, planned with the options of a run.

    Attributes:
        device: where trials run.
        devices: CUDA devices of the workers, in turn; () for that one.
        registry: of methods.
    """

    def __init__(self, suite: Suite, chosen: Sequence[Choice], options: Mapping[str, Any]) -> None:
        """Plan the grid; nothing is loaded or trained yet.

        Raises:
            PrivbenchError: if the suite or an option is invalid.
        """
        run_options.check(options)
        checkpoint.seconds()  # refused now, and not by each training
        self.device = _device(options["device"])
        self.devices = _devices(options.get("devices"), self.device)
        numerics = _numerics(options, self.device)
        runner = TrialRunner(
            Store(options.get("store") or default_root()), self.device,
            root=run_options.data_root(options["data_root"]), numerics=numerics,
        )  # fmt: skip
        super().__init__([], runner)
        self._serial = options.get("executor") == "serial"
        self.chosen = list(chosen)
        self.registry = registry.load(self.chosen, wanted=suite.names)
        self.registry.refuse_broken_files()
        self.add(suite)
        self.planned = self.planned[run_options.shard(options.get("shard"))]

    def add(self, suite: Suite) -> list[str]:
        """Plan the grid of another suite beside this one; each trial runs once.

        Returns:
            The digests of its trials.

        Raises:
            PrivbenchError: if it is invalid.
        """
        if suite.names is not None and not self.registry.offers(suite.names):
            self.registry = registry.load(self.chosen)
        runner = self.runner
        made = plan(suite, self.registry, root=runner.root, device=str(self.device),
                    numerics=runner.builder.numerics)  # fmt: skip
        known = {item.trial.digest for item in self.planned}
        self.planned += [item for item in made if item.trial.digest not in known]
        return [item.trial.digest for item in made]

    @property
    def is_slow(self) -> bool:
        """Whether the processor has no instructions for the precision."""
        numerics = self.runner.builder.numerics
        return numerics.precision == "bf16" and slow_in_bf16(self.device)

    @property
    def can_be_sent(self) -> bool:
        """Whether other processes find the classes of all methods."""
        return can_be_sent(item.trial.cell for item in self.planned)

    @property
    def judging(self) -> dict[str, list[Wanted]]:
        """By which attacks each defense is judged."""
        return judging(self.registry)

    @property
    def files(self) -> dict[str, tuple[int, int]]:
        """Stamps of the files that were imported."""
        return imported_files()

    @property
    def reads_given_files(self) -> bool:
        """Whether the grid depends on files of the user, whose content only planning reads."""
        cells = [item.trial.cell for item in self.planned]
        datasets = {of for cell in cells for of in (cell.dataset, cell.adversary.dataset)}
        canaries = {cell.protocol.canaries for cell in cells}
        return any(dataset.reads_given_files for dataset in datasets if dataset) or any(
            planted.path is not None for planted in canaries if planted
        )

    def missing(self, out: Path) -> int:
        """Return how many phases are to train, given the results in a folder."""
        keys: dict[str, bool] = {}
        by_victim: dict[str, dict[str, bool]] = {}
        for item in self.planned:
            if not (item.skip or item.failed or is_kept(item.trial.digest, item.skip, out)):
                # Running the trial says what is wrong.
                with contextlib.suppress(Exception), Store.of_code(self._code(item)):
                    keys |= _phases(self.runner, item, by_victim)
        return sum(not held for held in keys.values())

    def explain(self, out: Path, timeout: float | None, show: Callable[[str], object]) -> None:
        """Show the plan: what would run, what is kept, and what is skipped and why.

        Args:
            out: folder of results.
            timeout: seconds for each attack.
            show: shows a line.
        """
        runner = self.runner
        if self.is_slow:
            show(run_options.SLOW)
        keys: dict[str, bool] = {}
        by_victim: dict[str, dict[str, bool]] = {}  # trials share most of their victims
        for item in self.planned:
            cell = cell_record(item.trial.cell)
            name = f"{cell.title}, {cell.adversary}, seed {item.trial.seed}"
            if item.skip:
                state = f"skipped: {item.skip}"
            elif item.failed:
                state = f"would fail: {item.failed[0]}"
            elif is_kept(item.trial.digest, item.skip, out):
                state = "kept"
            else:
                try:
                    with Store.of_code(self._code(item)):
                        phases = _phases(runner, item, by_victim)
                except Exception as error:  # noqa: BLE001 - a run would record a failure
                    show(f"{name}: would fail: {encodable(str(error))}")
                    continue
                todo = sum(not held for held in phases.values())
                state = (
                    f"would run; {len(phases)} training phases, {len(phases) - todo} in the store"
                )
                keys |= phases
            show(f"{name}: {state}")
        missing = sum(not held for held in keys.values())
        guess = _estimate(runner, missing)
        limit = "no time limit" if timeout is None else f"at most {timeout:g} s"
        show(f"{len(self.planned)} trials; {missing} distinct phases to train; {guess}; "
             f"{limit} for each attack")  # fmt: skip

    def artifacts(self) -> tuple[list[Artifact], int]:
        """Return the stored victims and shadows of the grid, and how many are not stored."""
        builder, seen, missing = self.runner.builder, set[str](), set[str]()
        stored: dict[str, Artifact] = {}
        with tempfile.TemporaryDirectory() as empty:  # stored answers would need no shadows
            asker = TrialRunner(
                Store(Path(empty)), self.device, root=self.runner.root, numerics=builder.numerics
            )
            for item in self.planned:
                if item.skip or item.failed:
                    continue
                with Store.of_code(self._code(item)):
                    for spec in asker.specs(item.trial).values():
                        mark = f"{spec.identity} {Store.code}"
                        keys = () if mark in seen else builder.planned(spec)
                        seen.add(mark)
                        for key in keys:
                            if found := builder.store.find(key):
                                stored[found.key.digest] = found
                            else:
                                missing.add(key.digest)
        return [stored[one] for one in sorted(stored)], len(missing)

    def shadows(self, most: int) -> list[tuple[Victim, Examples, Examples]]:
        """Return stored shadows of the first trial with online ones, with their rows and others."""
        for item in self.planned:
            wanted = item.trial.cell.attack.shadows
            if item.skip or item.failed or not wanted.count or wanted.origin != "online":
                continue
            needed = self.runner.materials.needed(item.trial.cell, item.trial.seed)
            with Store.of_code(self._code(item)):
                held = [
                    (spec, others) for spec, others in needed.shadows()[:most]
                    if all(self.runner.builder.planned(spec).values())
                ]  # fmt: skip
                return [
                    (self.runner.materials.victim(spec), spec.world.members, others)
                    for spec, others in held
                ]
        return []

    def _code(self, item: PlannedTrial) -> str:
        """Digest of the code of others in the process that runs a trial."""
        return self._code_here if self._serial else code_of(sealed(item.trial).cell)


def _phases(
    runner: TrialRunner, item: PlannedTrial, by_victim: dict[str, dict[str, bool]]
) -> dict[str, bool]:
    phases: dict[str, bool] = {}
    for spec in runner.specs(item.trial).values():
        mark = f"{spec.identity} {Store.code}"
        if mark not in by_victim:
            planned = runner.builder.planned(spec)
            by_victim[mark] = {key.digest: held for key, held in planned.items()}
        phases |= by_victim[mark]
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
