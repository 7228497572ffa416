# ruff: noqa: INP001 - a script
"""Measures the seeds that boards lack, one at a time, and publishes each: see queue.yaml.

    uv run python leaderboards/grow.py --plan          what is missing, what it costs; runs nothing
    uv run python leaderboards/grow.py --hours 8       measures for so long

What is missing follows from results/*.jsonl, so a run that was killed goes on from there on any
machine. A seed that would end later is begun only if no other fits, and stopped in time. What a
seed has when it is stopped, and every ten minutes, is kept in partial/, from where it goes on.
Runs and their store are in PRIVBENCH_CACHE. Only --commit commits. Exit status: 0, 1 if a seed or
page could not be made, 2 for bad input, 130 if interrupted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import yaml
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, ValidationError

sys.path.insert(0, str(Path(__file__).parent))
import fidelity
import regenerate

from privbench.cli.boards import _again
from privbench.cli.main import main as privbench
from privbench.grid import strict_yaml
from privbench.grid.keys import code_digest
from privbench.grid.resolver import Resolver
from privbench.grid.suite import MOST_SEEDS, read_suite
from privbench.ground.errors import BadInputError, PrivbenchError
from privbench.ground.store.canonical import digest
from privbench.ground.store.source import source_digest
from privbench.ground.store.store import default_root
from privbench.ground.text import shown
from privbench.plugins import registry
from privbench.results.files import read_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from privbench.plugins.registry import Registry
    from privbench.results.record import Record

ROOT = Path(__file__).resolve().parents[1]
HERE = Path("leaderboards")
INTERRUPTED = 130
#: Seconds after which what a running seed has is kept.
KEPT_EVERY = 600.0


class Wanted(BaseModel):
    """An entry of queue.yaml.

    Attributes:
        suite: name of a file in suites/.
        seeds: that the board should have.
        afresh: whether results of other code are replaced, by as many seeds of today's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    suite: str
    seeds: Annotated[StrictInt, Ge(1), Le(MOST_SEEDS)]
    afresh: StrictBool = False


def read_queue(text: str, suites: Collection[str]) -> list[Wanted]:
    """Read queue.yaml.

    Args:
        text: of the file.
        suites: names that there are.

    Raises:
        BadInputError: naming the line.
    """
    line, queue = 1, list[Wanted]()
    try:
        values, node = strict_yaml.load(text), yaml.compose(text, yaml.SafeLoader)
        if not isinstance(values, list) or node is None:
            raise BadInputError("write a list of {suite: NAME, seeds: N}")  # noqa: TRY301
        for value, at in zip(values, node.value, strict=True):
            line = at.start_mark.line + 1
            entry = Wanted.model_validate(value)
            if entry.suite not in suites:
                raise BadInputError(f"no suite {shown(entry.suite)} in suites/")  # noqa: TRY301
            if entry.suite in {one.suite for one in queue}:
                raise BadInputError(f"{entry.suite} is there twice")  # noqa: TRY301
            queue.append(entry)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'entry'}: {first['msg'].lower()}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, problem = mark.line + 1 if mark else 1, getattr(error, "problem", None) or str(error)
    except BadInputError as error:
        problem = str(error)
    else:
        return queue
    raise BadInputError(f"{HERE}/queue.yaml, line {line}: {problem}")


@dataclass(frozen=True)
class Code:
    """Today's code of a suite.

    Attributes:
        code: digest of the core.
        sources: kind and name of each method -> digest of its source.
        attacks, stacks: labels that every seed has.
    """

    code: str
    sources: dict[str, str]
    attacks: frozenset[str] = frozenset()
    stacks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, suite: Path, known: Registry) -> Code:
        """That of a suite.

        Raises:
            BadInputError: if it names what there is not.
        """
        given = read_suite(suite)
        try:
            asked = Resolver(given, known)
        except PrivbenchError as error:
            raise BadInputError(f"suite {suite.stem}: {error}") from error
        stacks = [*asked.stacks, *asked.controls]
        theirs = asked.adversaries
        methods = [
            *(("dataset", one) for one in [*asked.datasets, *(one.dataset for one in theirs)]),
            *(("target", one) for one in [*asked.targets, *(one.target for one in theirs)]),
            *(("defense", one) for stack in stacks for one in stack),
            *(("attack", one) for one in asked.attacks),
        ]
        return cls(
            code_digest(),
            {f"{kind} {one.name}": source_digest(type(one)) for kind, one in methods if one},
            frozenset(one.label for one in asked.attacks),
            frozenset("+".join(one.label for one in stack) for stack in stacks),
        )

    def made(self, records: Iterable[Record]) -> bool:
        """Whether it made these results, whatever their commit, and runs nothing more."""
        records = list(records)
        return (
            self.attacks <= {one.cell.attack.label for one in records}
            and self.stacks <= {one.cell.defense for one in records}
            and all(map(self.made_one, records))
        )

    def made_one(self, record: Record) -> bool:
        """Whether it made this result."""
        used = record.provenance.get("plugins", {})
        return record.provenance.get("code") == self.code and all(
            self.sources.get(name) == of.get("source") for name, of in used.items()
        )


@dataclass(frozen=True)
class Board:
    """What a board has and lacks.

    Attributes:
        name: of its suite.
        there: seeds that are published, of whatever code.
        missing: seeds that its next results lack, in order.
        hours: of one core, for a seed; None if that is not known.
        aside: whether its seeds wait in afresh/ until they replace those of other code.
        enough: how many of them replace those.
        left: why it is left alone; "" if it is not.
    """

    name: str
    there: tuple[int, ...]
    missing: tuple[int, ...]
    hours: float | None
    aside: bool = False
    enough: int = 0
    left: str = ""


def board(
    wanted: Wanted,
    code: Code,
    published: Sequence[Record],
    aside: Sequence[Record],
    listed: float | None,
) -> Board:
    """Compare what is wanted with what is committed.

    Args:
        wanted: of the queue.
        code: of today.
        published: results of the board.
        aside: those that are to replace it.
        listed: hours of a seed in costs.md.
    """
    there = tuple(sorted({one.seed for one in published}))
    hours = recorded(published) or recorded(aside) or listed
    every = range(wanted.seeds)
    if not published or code.made(published):
        return Board(wanted.suite, there, tuple(s for s in every if s not in there), hours)
    if not wanted.afresh:
        left = "left alone: of other code, or its suite changed; `afresh: true` measures it again"
        return Board(wanted.suite, there, (), hours, left=left)
    new = {one.seed for one in aside} if code.made(aside) else set()
    missing = tuple(seed for seed in every if seed not in new)
    enough = min(wanted.seeds, len(there))
    return Board(wanted.suite, there, missing, hours, aside=True, enough=enough)


def recorded(records: Iterable[Record]) -> float | None:
    """Hours of one core that a seed took; None without results.

    Attacks share shadows: the training of a victim counts once, that of the attack with most.
    """
    spent, training = 0.0, defaultdict[tuple[Any, ...], float](float)
    for one in records:
        cell = one.cell
        of = (one.seed, cell.dataset.label, str(cell.protocol), cell.target.label, cell.defense,
              cell.adversary)  # fmt: skip
        training[of] = max(training[of], one.cost.seconds_training)
        spent += one.cost.seconds
    seeds = {seed for seed, *_ in training}
    return (spent + sum(training.values())) / 3600 / len(seeds) if seeds else None


def listed(page: str) -> dict[str, float]:
    """Hours of a seed of each suite, in costs.md."""
    rows = [[one.strip() for one in line.split("|")[1:-1]] for line in page.splitlines()]
    heads = next((row for row in rows if row[:1] == ["suite"] and "hours" in row), [])
    hours, seeds = (heads.index(one) if heads else 0 for one in ("hours", "seeds"))
    return {
        row[0]: float(row[hours]) / float(row[seeds])
        for row in rows
        if heads and len(row) == len(heads) and re.fullmatch(r"[\d.]+(e[+-]?\d+)?", row[hours])
    }


def choose(boards: Iterable[Board], hours: float, cores: int) -> Board | None:
    """The first board of the queue whose next seed ends in these hours, on so many cores.

    If none does, the first that lacks a seed: it is stopped in time, and goes on later.
    """
    able = [one for one in boards if one.missing and one.hours is not None] if hours > 0 else []
    fits = (one for one in able if (one.hours or 0) / cores <= hours)
    return next(fits, able[0] if able else None)


def plan(boards: Iterable[Board], cores: int) -> str:
    """The queue as a table."""
    lines = [f"{'board':<28} {'seeds':>5} {'hours a seed':>12}  adds"]
    total = 0.0
    for one in boards:
        hours = None if one.hours is None else one.hours / cores
        total += (hours or 0) * len(one.missing)
        adds = f"seeds {', '.join(map(str, one.missing))}" if one.missing else one.left or "nothing"
        if one.missing and hours is None:
            adds += ": left alone, its cost is unknown (leaderboards/experiments/costs.py)"
        if one.missing and one.aside:
            adds += f"; as soon as there are {one.enough}, they replace those of other code"
        told = "?" if hours is None else f"{hours:.2f}"
        lines.append(f"{one.name:<28} {len(one.there):>5} {told:>12}  {adds}")
    return "\n".join([*lines, f"{total:.1f} hours on {cores} cores"])


class Stopper:
    """Passes Ctrl-C and SIGTERM on to the run; what is being published is finished first."""

    asked = False
    run: subprocess.Popen[bytes] | None = None

    def __call__(self, *_: object) -> None:
        """Ask to stop."""
        self.asked = True
        if self.run is not None:
            self.run.terminate()


def die_with_parent() -> None:
    """Let a run end, as by SIGTERM, if this process is killed; Linux only."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def alone(boards: Path) -> Iterator[None]:
    """Hold a folder of boards, so that no second process measures and publishes beside this one.

    Raises:
        BadInputError: if one does.
    """
    with (boards / ".grow.lock").open("a") as held:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInputError(
                    f"another grow.py measures in {boards}: stop it, or let it end"
                ) from None
        yield


class Grower:
    """Runs and publishes the boards of a checkout."""

    def __init__(self, root: Path, *, commit: bool) -> None:
        """Read the queue.

        Raises:
            BadInputError: if it or a suite is wrong.
        """
        self.root, self.commit, self.stopper = root, commit, Stopper()
        self.suites = root / HERE / "suites"
        self.results = root / HERE / "results"
        queue = root / HERE / "queue.yaml"
        if not queue.is_file():
            raise BadInputError(f"no {HERE}/queue.yaml: write a list of {{suite: NAME, seeds: N}}")
        known = {path.stem for path in self.suites.glob("*.yaml")}
        self.queue = read_queue(queue.read_text("utf-8"), known)
        costs = root / HERE / "costs.md"
        self.costs = listed(costs.read_text("utf-8") if costs.exists() else "")
        methods = registry.load()
        self.codes = {
            one.suite: Code.of(self.suites / f"{one.suite}.yaml", methods) for one in self.queue
        }
        self.failed: set[str] = set()

    def board(self, wanted: Wanted) -> Board:
        """What a board has and lacks now."""
        name = wanted.suite
        return board(wanted, self.codes[name], self._read(name), self._read(name, "afresh"),
                     self.costs.get(name))  # fmt: skip

    def _file(self, name: str, folder: str = "results") -> Path:
        """The file of a board in ``results``, or in ``afresh`` or ``partial`` beside it."""
        return self.results.parent / folder / f"{name}.jsonl"

    def _read(self, name: str, folder: str = "results") -> list[Record]:
        path = self._file(name, folder)
        return read_all([path]) if path.exists() else []

    def grow(self, hours: float, cores: int) -> int:
        """Measure and publish seeds; return the exit status."""
        signal.signal(signal.SIGINT, self.stopper)
        signal.signal(signal.SIGTERM, self.stopper)
        end = time.monotonic() + 3600 * hours
        self.tidy()
        status = self.publish()  # one that was killed may have left old pages
        while not self.stopper.asked:
            boards = [self.board(one) for one in self.queue if one.suite not in self.failed]
            left = (end - time.monotonic()) / 3600
            if (one := choose(boards, left, cores)) is None:
                more = any(one.missing for one in boards)
                click.echo("the time is over" if more and left <= 0 else "no seed is missing")
                break
            if self.measure(one, end):
                status |= self.publish([one.name], one.missing[0])
            elif not self.stopper.asked and time.monotonic() < end:
                self.failed.add(one.name)
        if self.stopper.asked:
            click.echo("interrupted: what is published stays; the same command goes on")
            return INTERRUPTED
        return 1 if self.failed else status

    def measure(self, one: Board, end: float) -> bool:
        """Run the next seed and join it with those of the same code; False if there is no seed.

        Args:
            one: the board.
            end: when it is stopped if it still runs, as ``time.monotonic`` counts.
        """
        name, seed, code = one.name, one.missing[0], self.codes[one.name]
        path = self.suites / f"{name}.yaml"
        text = path.read_text("utf-8")
        key = digest([code.code, code.sources, text, seed])[:12]
        out = default_root() / "grow" / f"{name}-{seed}-{key}"
        copy = out.with_suffix(".yaml")
        copy.parent.mkdir(parents=True, exist_ok=True)
        suite = yaml.safe_load(text) | {"seeds": [seed]}
        copy.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
        self.go_on(one, out)
        published = self._read(name)
        same = read_suite(path).model_copy(update={"seeds": [*one.there]})
        only = _again(copy, same, published)[1:] if published else []  # of what the board has
        click.echo(f"{name}, seed {seed}: {one.hours:.2f} hours of one core expected")
        command = [sys.executable, "-m", "privbench", "run", str(copy), *only,
                   "--jobs", "auto", "--device", "cpu", "--out", str(out)]  # fmt: skip
        run = self.stopper.run = subprocess.Popen(  # noqa: S603
            command, cwd=self.root, start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509
        )  # fmt: skip
        if self.stopper.asked:  # while it was started
            run.terminate()
        status = None
        while status is None:
            left = end - time.monotonic()
            if left <= 0:
                run.terminate()
            try:
                status = run.wait(min(KEPT_EVERY, left) if left > 0 else KEPT_EVERY)
            except subprocess.TimeoutExpired:
                self.keep(one, out)
        self.stopper.run = None
        if status:
            self.keep(one, out)
            if not self.stopper.asked and time.monotonic() < end:
                click.echo(f"{name}, seed {seed} is not published: its run ended with status "
                           f"{status}, see above; its results are in {out}", err=True)  # fmt: skip
            return False
        made = read_all([out])
        if not code.made(made):
            click.echo(f"{name}, seed {seed} is not published: the code changed while it ran; "
                       "start again", err=True)  # fmt: skip
            return False
        self.join(one, out)
        self._file(name, "partial").unlink(missing_ok=True)
        return True

    def tidy(self) -> None:
        """Remove what was kept of seeds that are published: one was killed before it did so."""
        for wanted in self.queue:
            name, published = wanted.suite, set[int]()
            for folder in ("results", "afresh"):
                there = self._read(name, folder)
                published |= {one.seed for one in there} if self.codes[name].made(there) else set()
            kept = {one.seed for one in self._read(name, "partial")}
            if kept and kept <= published:
                self._file(name, "partial").unlink()

    def keep(self, one: Board, out: Path) -> None:
        """Keep what a seed has so far, so that it goes on from there on any machine."""
        kept = self._file(one.name, "partial")
        there = len(self._read(one.name, "partial"))
        count = sum(1 for _ in out.glob("*.json"))
        if count > there:
            privbench(["merge", str(out), "--out", str(kept)], standalone_mode=False)
            click.echo(f"{one.name}, seed {one.missing[0]}: {count} results kept in {kept}")
            if self.commit:
                self._commit(f"Measure a part of seed {one.missing[0]} of {one.name}")

    def go_on(self, one: Board, out: Path) -> None:
        """Write what is kept of this seed, by today's code, into the folder of its run."""
        for record in self._read(one.name, "partial"):
            if record.seed == one.missing[0] and self.codes[one.name].made_one(record):
                record.write(out)

    def join(self, one: Board, out: Path) -> None:
        """Add a seed to the results of a board, or to those that are to replace it."""
        board, aside = (self._file(one.name, at) for at in ("results", "afresh"))
        target = aside if one.aside else board
        old = self._read(one.name, "afresh") if one.aside else []
        if old and not self.codes[one.name].made(old):
            aside.unlink()
        joined = [str(target)] if target.exists() else []
        privbench(["merge", *joined, str(out), "--out", str(target)], standalone_mode=False)
        if one.aside and len({made.seed for made in read_all([aside])}) >= one.enough:
            os.replace(aside, board)  # noqa: PTH105

    def publish(self, names: Sequence[str] | None = None, seed: int = 0) -> int:
        """Write the pages of boards, of all by default; return the exit status."""
        regenerate.write(self.root, names)
        status = 0
        try:
            fidelity.write(self.root / HERE)
        except LookupError as error:
            told = f"fidelity.md is not written: {error}; correct {HERE}/published.yaml"
            click.echo(told, err=True)
            status = 1
        what = f"Measure seed {seed} of {names[0]}" if names else "Write the boards again"
        waits = names and self._file(names[0], "afresh").exists()
        done = "waits in leaderboards/afresh/" if waits else "published"
        click.echo(f"{names[0]}, seed {seed}: {done}" if names else "all pages are written")
        if self.commit:
            self._commit(what)
        return status

    def _commit(self, what: str) -> None:
        """Commit results and pages, if they have changed."""
        mine = [str(HERE), *(f":(exclude,glob){HERE}/**/*.{end}" for end in ("py", "yaml"))]
        self._git("add", "-A", "--", *mine)
        if self._git("status", "--porcelain", "-uno", "--", *mine):
            self._git("commit", "-q", "-m", what, "--", *mine)

    def _git(self, *args: str) -> str:
        command = ["git", "-C", str(self.root), *args]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


@click.command()
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), metavar="H",
              help="Measure for so long; a longer seed is stopped and goes on later.")  # fmt: skip
@click.option("--plan", "only_plan", is_flag=True, help="Print what is missing; run nothing.")
@click.option("--commit", is_flag=True, help="Commit results and pages after every seed.")
def main(*, hours: float | None, only_plan: bool, commit: bool) -> None:
    """Measure the seeds that boards lack, as queue.yaml orders them, and publish each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        if hours is None and not only_plan:
            raise BadInputError("give --hours H or --plan")
        grower = Grower(ROOT, commit=commit)
        if only_plan or hours is None:
            click.echo(plan([grower.board(one) for one in grower.queue], cores or 1))
            return
        with alone(ROOT / HERE):
            sys.exit(grower.grow(hours, cores or 1))
    except (PrivbenchError, OSError, subprocess.CalledProcessError) as error:
        click.echo(f"grow: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
