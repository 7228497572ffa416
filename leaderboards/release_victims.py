# ruff: noqa: INP001 - a script
"""The victims of published boards as files of a release, for ``privbench.victims``.

``uv run python leaderboards/release_victims.py BOARD --out FOLDER`` writes ``BOARD.zip`` (weights),
``BOARD.yaml`` (the suite) and ``SHA256SUMS`` into FOLDER. The board must be of today's code, so
that these are the victims behind its numbers; those that the store lacks are trained again.
``--seeds`` and ``--defense`` take some of them. Several boards may share a folder.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
import yaml

from privbench.api.planning import Planning
from privbench.api.victims import SUMS
from privbench.grid.keys import code_digest
from privbench.grid.suite import Suite, read_suite
from privbench.ground.errors import BadInputError, PrivbenchError
from privbench.ground.store import bundle
from privbench.ground.store.files import write
from privbench.ground.store.store import Artifact
from privbench.results.files import read_all

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
_MIB = 2**20


@click.command()
@click.argument("board")
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--data-root", type=click.Path(path_type=Path), envvar="PRIVBENCH_DATA")
@click.option("--seeds", type=click.IntRange(min=1), help="Only so many; all by default.")
@click.option("--defense", "defenses", multiple=True, help="Only with these; all by default.")
@click.option("--max-mib", type=click.FloatRange(min=0), default=16, show_default=True)
def main(board: str, out: Path, **chosen: Any) -> None:
    """Write the victims of BOARD into FOLDER."""
    try:
        click.echo(release(HERE, board, out, **chosen))
    except PrivbenchError as error:
        click.echo(f"release_victims: {error}", err=True)
        sys.exit(2)


def release(
    boards: Path,
    board: str,
    out: Path,
    *,
    data_root: Path | None = None,
    seeds: int | None = None,
    defenses: Sequence[str] = (),
    max_mib: float = 16.0,
) -> str:
    """Write the files; return what was written, in words.

    Args:
        boards: folder with ``suites`` and ``results``.
        board: name of one.
        out: where to; made if it is not there.
        data_root: directory of datasets.
        seeds: how many; None for all that are published.
        defenses: names of those that are wanted, beside none; nothing for all.
        max_mib: most that the weights may take.

    Raises:
        BadInputError: if that is impossible.
    """
    suite, results = boards / "suites" / f"{board}.yaml", boards / "results" / f"{board}.jsonl"
    for file in (suite, results):
        if not file.is_file():
            raise BadInputError(f"there is no {file}")
    given, results_of = read_suite(suite), read_all([results])
    published = [one for one in results_of if one.status == "ok"]
    shown = sorted({one.seed for one in published})[:seeds]
    asked = given.model_copy(update={"seeds": shown})
    published = [one for one in published if one.seed in shown]
    if defenses:
        asked = _with(asked, defenses, suite)
        wanted = ("", *defenses)
        published = [
            one for one in published if "+".join(of.name for of in one.cell.defenses) in wanted
        ]
    options = {"out": out, "data_root": data_root, "device": "cpu", "threads": 1,
               "precision": "float32"}  # fmt: skip
    planning = Planning(asked, [], options) if published else None
    trials = {item.trial.digest for item in planning.planned} if planning else set[str]()
    if planning is None or not all(one.trial in trials for one in published):
        raise BadInputError(
            f"the results of {board} are none, or of other code or another suite, so its victims "
            "cannot be made: measure it again (leaderboards/grow.py)"
        )
    stored = victims_of(planning)
    if (mib := bundle.size(stored) / _MIB) > max_mib:
        raise BadInputError(
            f"the victims of {board} have {mib:.1f} MiB, more than {max_mib:g}: give fewer --seeds "
            "or some --defense, or more --max-mib"
        )
    out.mkdir(parents=True, exist_ok=True)
    bundle.pack(stored, out / f"{board}.zip")
    write(out / f"{board}.yaml", _written(asked, suite))
    sums = (out / SUMS).read_text("utf-8").splitlines() if (out / SUMS).is_file() else []
    names = (f"{board}.yaml", f"{board}.zip")
    sums = [line for line in sums if line.split()[-1] not in names]
    sums += [f"{hashlib.sha256((out / one).read_bytes()).hexdigest()}  {one}" for one in names]
    write(out / SUMS, "\n".join([*sums, ""]))
    return f"{len(stored)} artifacts of {board}, seeds {shown}, {mib:.1f} MiB, in {out}"


def victims_of(planning: Planning) -> list[Artifact]:
    """Return what the store needs to serve the victims of a grid; those it lacks are trained.

    Teachers and sub-models are not among them: the labels that they gave are.
    """
    runner, found = planning.runner, dict[str, Artifact]()
    for item in planning.planned:
        specs = {} if item.skip or item.failed else runner.every_spec(item.trial)
        for spec in (of for role, of in specs.items() if role.startswith("victim")):
            runner.materials.victim(spec)
            every = map(runner.store.find, runner.builder.keys(spec).stages)
            found |= {one.key.digest: one for one in every if one}
    return [found[one] for one in sorted(found)]


def _with(given: Suite, defenses: Sequence[str], suite: Path) -> Suite:
    """The suite with these of its defenses only."""
    named = {
        of: [(one if isinstance(one, str) else next(iter(one)), one) for one in getattr(given, of)]
        for of in ("defenses", "sweep")
    }
    known = sorted({name for pairs in named.values() for name, _ in pairs})
    if absent := [one for one in defenses if one not in known]:
        raise BadInputError(f"{suite} has no defense {absent[0]}: it has {', '.join(known)}")
    some = {of: [one for name, one in pairs if name in defenses] for of, pairs in named.items()}
    return given.model_copy(update=some)


def _written(asked: Suite, suite: Path) -> str:
    """The suite with the seeds that are released, and what trained its victims."""
    values = yaml.safe_load(suite.read_text("utf-8"))
    values |= {"seeds": list(asked.seed_list), "defenses": asked.defenses, "sweep": asked.sweep}
    head = f"# Trained by code {code_digest()}, torch {torch.__version__}."
    return f"{head}\n{yaml.safe_dump(values, sort_keys=False)}"


if __name__ == "__main__":
    main()
