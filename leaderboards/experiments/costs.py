# ruff: noqa: INP001 - a script
"""What each suite costs in the size of a CPU: one cell of each is made, the rest extrapolated.

``PRIVBENCH_DATA=… OMP_NUM_THREADS=1 uv run python leaderboards/experiments/costs.py [SUITE…]``
``leaderboards/costs.md`` then holds the named suites, or all.

Seconds are those of the processor, so that other work on the machine does not count. Training that
takes longer than a second is cut short and scaled by its epochs.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import torch

from privbench.grid.plan import plan
from privbench.grid.suite import read_suite
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.errors import BadInputError
from privbench.ground.store.machine import make_strict
from privbench.ground.store.store import Store
from privbench.measure.data.validation import validated
from privbench.measure.training.phase import Phase
from privbench.measure.victims.build import Builder
from privbench.measure.victims.stages import LearnedRelease
from privbench.plugins import registry as plugins
from privbench.results.provenance import commit
from privbench.testing import CPU, Generated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench import Cell, Dataset, Examples
    from privbench.grid.plan import PlannedTrial
    from privbench.measure.victims.spec import VictimSpec
    from privbench.measure.victims.stages import Draft, Stage
    from privbench.plugins.registry import Registry

HERE = Path(__file__).parents[1]
PAGE = HERE / "costs.md"
#: Processor seconds that one kind of training may take; it is scaled from these.
ENOUGH = 1.0
#: Generated rows of each source: more than any suite of the size of a CPU reads.
MOST_ROWS = 6_000

Kind = tuple[str, ...]


def kind_of(spec: VictimSpec, stage: Stage) -> Kind:
    """Stages of one kind take equally long for each unit."""
    of = stage.of
    if isinstance(of, Phase):
        target = spec.target.hyperparameters()
        size = [str(target.get(name)) for name in ("backbone", "batch", "layers")]
        return ("train", of.name.partition("-")[0], spec.card.name, spec.target.name, *size)
    defense = of.defense if isinstance(of, LearnedRelease) else of
    return ("fit", defense.name, spec.card.name)


def units(draft: Draft, stage: Stage) -> float:
    """Rows that a phase sees, over all epochs; 1 for what a defense fits."""
    of = stage.of
    return float(len(draft.rows(of)) * of.epochs) if isinstance(of, Phase) else 1.0


class Metered(Builder):
    """Measures each kind of stage once, and makes the others as short as it can."""

    def __init__(self, store: Store) -> None:
        """Start without measurements."""
        super().__init__(store, CPU)
        self.rates: dict[Kind, float] = {}

    def _run_phase(self, draft: Draft, stage: Stage) -> Any:
        phase, kind = stage.of, kind_of(draft.spec, stage)
        assert isinstance(phase, Phase)  # noqa: S101 - a phase's stage
        short = replace(stage, of=replace(phase, epochs=min(2, phase.epochs)))
        if kind in self.rates or not units(draft, stage):
            return super()._run_phase(draft, short)
        begun = time.process_time()
        super()._run_phase(draft, short)
        each = (time.process_time() - begun) / 2
        epochs = min(phase.epochs, max(2, int(ENOUGH / each) // 2 * 2))  # Talos' come in pairs
        stage = replace(stage, of=replace(phase, epochs=epochs))
        begun = time.process_time()
        tensors, facts = super()._run_phase(draft, stage)
        done = facts.get("epochs", epochs) * len(draft.rows(phase))
        self.rates[kind] = (time.process_time() - begun) / done
        return tensors, facts

    def _run_weights(self, draft: Draft, stage: Stage) -> Any:
        return self._fitted(draft, stage, super()._run_weights)

    def _run_release(self, draft: Draft, stage: Stage) -> Any:
        return self._fitted(draft, stage, super()._run_release)

    def _fitted(self, draft: Draft, stage: Stage, run: Any) -> Any:
        begun = time.process_time()
        made = run(draft, stage)
        self.rates.setdefault(kind_of(draft.spec, stage), time.process_time() - begun)
        return made


@dataclass
class Suite:
    """What was counted and measured of one suite.

    Attributes:
        cells, seeds, skipped: cells that run, seeds of each, cells that are skipped.
        nodes: kind of stage or attack -> how many distinct ones one seed has, and their units.
        rates: measured seconds for each unit, by kind.
        peak: largest memory while the cell was made, in bytes.
        cell: the one that was made.
        generated: datasets that were generated.
    """

    cells: int
    seeds: int
    skipped: int
    nodes: dict[Kind, tuple[int, float]] = field(default_factory=dict)
    rates: dict[Kind, float] = field(default_factory=dict)
    peak: int = 0
    cell: str = ""
    generated: list[str] = field(default_factory=list)


def at_hand(dataset: Dataset, rows: dict[str, Examples], root: Path | None) -> Dataset:
    """The dataset, or generated rows of the same shape if its files are not there.

    ``rows`` holds what was loaded, by digest; all suites share it.
    """
    if dataset.digest in rows:
        return dataset
    card = dataset.card(root)
    few = Generated(
        replace(card, sources={name: min(n, MOST_ROWS) for name, n in card.sources.items()})
    )
    if few.digest in rows:
        return few
    try:
        made, chosen = dataset.load(root), dataset
    except BadInputError:
        made, chosen = few.load(root), few
    rows[chosen.digest] = validated(made, chosen.card(root))
    return chosen


def specs(cell: Cell, runner: TrialRunner) -> Iterator[tuple[str, VictimSpec]]:
    """The models that a trial needs, each with its part in it."""
    needed = runner.materials.needed(cell, 0)
    for spec in needed.victims():
        yield "victim", spec
    for spec in needed.nulls() if "null" in needed.game.controls else ():
        yield "null", spec
    for spec, _ in needed.shadows():
        yield cell.attack.shadows.origin, spec


def count(suite: Suite, cells: list[Cell], runner: TrialRunner) -> None:
    """Count the distinct stages of one seed.

    One model of each sort (victim, null, shadows of a pool) is planned; the others are alike.
    """
    stages: dict[str, tuple[Kind, int, float]] = {}
    drafted: dict[str, list[tuple[str, bool, Kind, float]]] = {}
    known: set[str] = set()
    for cell in cells:
        kind = ("attack", cell.attack.name, cell.card.name)
        n, total = suite.nodes.get(kind, (0, 0.0))
        suite.nodes[kind] = (n + 1, total + 1)
        alike = str([cell.card.name, cell.protocol, cell.target, cell.defenses, cell.adversary,
                     cell.attack.shadows, cell.attack.game, cell.sensitive])  # fmt: skip
        if alike in known:
            continue
        known.add(alike)
        sorts: dict[str, list[VictimSpec]] = {}
        for sort, spec in specs(cell, runner):
            sorts.setdefault(sort, []).append(spec)
        for many in sorts.values():
            first = many[0]
            if first.identity not in drafted:
                drafted[first.identity] = list(planned_stages(first, runner.builder))
            for key, public, what, size in drafted[first.identity]:
                held = stages.get(key, (what, 0, size))[1]
                stages[key] = (what, max(held, 1 if public else len(many)), size)
    for what, n, size in stages.values():
        held, total = suite.nodes.get(what, (0, 0.0))
        suite.nodes[what] = (held + n, total + n * size)


def planned_stages(spec: VictimSpec, builder: Builder) -> Iterator[tuple[str, bool, Kind, float]]:
    """The stages of a victim, and of the models that its defenses train."""
    draft = builder.draft(spec)
    for stage in draft.stages:
        for inner in stage.inner:
            yield from planned_stages(inner, builder)
        if stage.stored and stage.key.kind != "labels":
            yield stage.key.digest, stage.public, kind_of(spec, stage), units(draft, stage)


def chosen(items: list[PlannedTrial]) -> Trial:
    """A cell with a defense, if there is one, whose attack needs few shadows."""

    def order(item: PlannedTrial) -> tuple[bool, bool, int]:
        cell = item.trial.cell
        bare = cell.defense == "none" or any(d.control for d in cell.defenses)
        return bare, not cell.adversary.adaptive, cell.attack.shadows.count

    return min(items, key=order).trial


def measure(path: Path, registry: Registry, rows: dict[str, Examples], root: Path | None) -> Suite:
    """Plan a suite, count what it makes, and make one cell."""
    given = read_suite(path)
    every = plan(given.model_copy(update={"seeds": 1}), registry, root=root, device="cpu")
    items = [item for item in every if not item.skip]
    suite = Suite(len(items), len(given.seed_list), len(every) - len(items))
    datasets: dict[str, Dataset] = {}

    def given_data(cell: Cell) -> Cell:
        """The cell on data that are at hand."""
        own, other = cell.dataset, cell.adversary.dataset
        for one in (own, other):
            if one and one.digest not in datasets:
                datasets[one.digest] = at_hand(one, rows, root)
        assert own  # noqa: S101 - a planned cell has a dataset
        mine = datasets[own.digest]
        pool = datasets[other.digest] if other else None
        return replace(
            cell, dataset=mine, card=mine.card(root), pool=pool.card(root) if pool else None,
            adversary=replace(cell.adversary, dataset=pool),
        )  # fmt: skip

    cells = [given_data(item.trial.cell) for item in items]
    suite.generated = sorted({d.name for d in datasets.values() if isinstance(d, Generated)})
    with TemporaryDirectory() as folder:
        runner = TrialRunner(Store(Path(folder)), CPU, root=root)
        builder = Metered(runner.store)
        runner.builder = runner.materials.builder = builder
        runner.materials._examples = rows  # noqa: SLF001 - read once for all suites
        count(suite, cells, runner)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
        trial = Trial(given_data(chosen(items).cell), given.seed_list[0])
        for spec in runner.specs(trial).values():
            runner.materials.victim(spec)
        begun = time.process_time()
        record = runner.run(trial)
        if record.status != "ok":
            raise RuntimeError(f"{path.stem}: {record.reason}\n{record.traceback}")
        kind = ("attack", trial.cell.attack.name, trial.cell.card.name)
        suite.rates = {**builder.rates, kind: time.process_time() - begun}
    suite.peak, suite.cell = peak(), f"{record.cell.title}, {record.cell.adversary}"
    return suite


def peak() -> int:
    """Largest resident memory since it was reset, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def rate(kind: Kind, own: dict[Kind, float], every: dict[Kind, list[float]]) -> float:
    """Seconds for a unit: measured here, or the mean of the most similar kinds elsewhere."""
    if kind in own:
        return own[kind]
    for length in range(len(kind), 0, -1):
        for held in (own, every):
            alike = [
                value
                for other, found in held.items()
                if other[:length] == kind[:length]
                for value in (found if isinstance(found, list) else [found])
            ]
            if alike:
                return fmean(alike)
    return 0.0


def table(suites: dict[str, Suite]) -> str:
    """The page."""
    every: dict[Kind, list[float]] = {}
    for suite in suites.values():
        for kind, seconds in suite.rates.items():
            every.setdefault(kind, []).append(seconds)
    head = ["suite", "cells", "skipped", "seeds", "trained", "fitted", "training, s", "fitting, s",
            "attack, s", "hours", "of them measured", "peak, GiB"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    cells = ["| suite | cell | generated data |", "|---|---|---|"]
    for name, suite in sorted(suites.items()):
        spent, sure = Counter[str](), 0.0
        number = Counter[str]()
        for kind, (n, size) in suite.nodes.items():
            seconds = size * rate(kind, suite.rates, every) * suite.seeds
            spent[kind[0]] += seconds
            number[kind[0]] += n * suite.seeds
            sure += seconds * (kind in suite.rates)
        total = sum(spent.values())

        def mean(sort: str, spent: Counter[str] = spent, number: Counter[str] = number) -> str:
            return f"{spent[sort] / number[sort]:.1f}" if number[sort] else "–"

        lines.append(
            f"| {name} | {suite.cells} | {suite.skipped} | {suite.seeds} | {number['train']:,} | "
            f"{number['fit']:,} | {mean('train')} | {mean('fit')} | {mean('attack')} | "
            f"{total / 3600:.2g} | {sure / max(total, 1e-9):.0%} | {suite.peak / 2**30:.2f} |"
        )
        made_of = ", ".join(suite.generated) or "–"
        cells.append(f"| {name} | {suite.cell.replace('|', '/')} | {made_of} |")
    return "\n".join([*lines, "", *cells, ""])


TOLD = """# What the suites cost on a CPU

Each suite of the size of a CPU, on one core. `leaderboards/experiments/costs.py` makes one cell of
each and writes this page. Seconds are of the processor (`time.process_time`, one thread), on a
machine that did other work at the same time; `hours` are such hours for the whole suite, all seeds.

- `trained` are distinct phases of training of all seeds, `fitted` what defenses fit or change after
  training. Seconds are means over them. `attack` is the rest of a trial: the attack on the victim
  and on the null victim, baselines, utility.
- Training is measured until it has taken about {enough:g} s and scaled by rows times epochs. Models
  of one sort (the shadows of a pool) count as equally expensive.
- What the one cell does not have takes as long as the most similar that was measured: the same
  dataset and target, or the same attack or defense on other data, or else the mean of its sort. The
  column `of them measured` is the share of the hours whose rate comes from the suite's own cell:
  where it is low, expect the figure to be off by a factor.
- Defenses that lengthen training by what they add to its steps (an adversary, clipped gradients of
  single rows) count as plain training of as many rows and epochs, unless the cell has them.
- Data that are not at hand are generated, of the same shape (`privbench.testing.Generated`).
- `peak` is the largest resident memory of the process while the cell was made, with
  the datasets that the suites before it read.

Measured at commit {commit} on {cpu} with torch {torch}.

"""


def main(names: list[str]) -> None:
    """Measure the suites and write the page."""
    make_strict()
    torch.set_num_threads(1)
    root = Path(os.environ["PRIVBENCH_DATA"]) if "PRIVBENCH_DATA" in os.environ else None
    registry = plugins.load()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    told = TOLD.format(enough=ENOUGH, cpu=cpu, torch=torch.__version__, commit=commit())
    paths = [path for path in (HERE / "suites").glob("*.yaml") if not path.stem.endswith("-paper")]
    found: dict[str, Suite] = {}
    rows: dict[str, Examples] = {}
    begun = time.process_time()
    for path in sorted(paths, key=lambda path: (len(path.read_text(encoding="utf-8")), path)):
        if names and path.stem not in names:
            continue
        found[path.stem] = measure(path, registry, rows, root)
        rest = ", ".join(sorted({path.stem for path in paths} - set(found)))
        left = f"\nNot measured yet: {rest}.\n" if rest else ""
        PAGE.write_text(told + table(found) + left, encoding="utf-8")
        click.echo(f"{time.process_time() - begun:7.0f} s  {path.stem}", err=True)
        gc.collect()


if __name__ == "__main__":
    main(sys.argv[1:])
