"""The commands that check results of others: run a trial again, recompute a submission."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.cli import completion
from privbench.cli.border import Whole, data_root_option, say
from privbench.ground.errors import BadInputError
from privbench.ground.text import several, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.api.session import Session
    from privbench.check.challenge import Outcome
    from privbench.plugins.registry import Choice
    from privbench.results.record import Record

#: Sentences and names that a check prints.
_MOST_SHOWN = 50


@click.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option("--trial", metavar="PREFIX", help="Which line of a NAME.jsonl: how its trial begins.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory for the new result [none is kept]."
)
@data_root_option("Directory of datasets; without it, they are downloaded.")
@click.option("--device", help="cpu, cuda, cuda:1 or auto [that of the result].")
@click.pass_obj
def reproduce(chosen: list[Choice], /, result: Path, **options: Any) -> None:
    """Run the trial of a RESULT again, and say whether its numbers agree.

    RESULT is a .json file of a run, or a line of a .jsonl file. Numbers agree if one lies in the
    95 % interval of the other. If it is the same trial here, the result must say the same about
    itself: methods, sizes, split, claims. Per-sample scores, if there are any, must be of the same
    rows with the same truth. Everything is trained again, in a store of its own: what another run
    left in yours is not believed.
    Exit status: 0 if all numbers agree, 1 if not, 2 for bad input, 130 if interrupted.
    """
    from privbench.check.numbers import compared, table, within_intervals

    record = _chosen(result, options["trial"])
    if record.status != "ok":
        raise BadInputError(
            f"{shown(str(result), 200)}: trial {shown(record.trial)} has status {record.status} "
            "and no numbers: give a result that is ok"
        )
    with tempfile.TemporaryDirectory(prefix="privbench-") as temporary:
        out, store = options["out"] or Path(temporary, "results"), Path(temporary, "store")
        session = _session(record, chosen, {**options, "store": store}, out)
        say(f"{record.cell.title}, {record.cell.adversary}, seed {record.seed}")
        say(_whether_same(record, session.planned.ask("different")))
        session.run()
        (ours,) = session.records
        if ours.status != "ok":
            say(f"here the trial {ours.status}: {ours.reason}")
            sys.exit(1)
        other_truth = _other_truth(record, result.parent, ours, session.out)
    rows = compared(record, ours, within_intervals)
    for told in _of_splits(record, ours):
        say(told)
    say(table(rows))
    if other_truth:
        say("its scores are of other rows, or with another truth, than its split has")
    others = _of_one_trial(record, ours)
    for told in others:
        say(told)
    different = [one.name for one in rows if not one.agrees]
    if different or not rows:
        say(f"{len(different)} of {len(rows)} numbers differ")
    if different or not rows or other_truth or others:
        sys.exit(1)
    say(f"all {len(rows)} numbers agree")


def _chosen(path: Path, prefix: str | None) -> Record:
    """The result of a file, or that of its lines whose trial begins with the prefix."""
    from privbench.results.files import each_line, read
    from privbench.results.one_file import SUFFIX

    at = shown(str(path), 200)
    if not path.exists() or path.is_dir():
        raise BadInputError(f"no result at {at}: give a .json file of a run, or a {SUFFIX} file")
    if path.suffix != SUFFIX:
        record = read(path)
        if not record.trial.startswith(prefix or ""):
            raise BadInputError(f"{at} is of trial {shown(record.trial)}: leave out --trial")
        return record
    found: list[Record] = []
    for _, record in each_line(path, scores=True):
        if record.trial.startswith(prefix or ""):
            found.append(record)
        if len(found) > 1:
            trials = " and ".join(shown(one.trial) for one in found)
            raise BadInputError(f"{at} has several such trials ({trials}): give a longer --trial")
    if not found:
        raise BadInputError(f"{at} has no trial that begins with '{shown(prefix)}'")
    return found[0]


def _session(record: Record, chosen: list[Choice], options: dict[str, Any], out: Path) -> Session:
    """The planned trial.

    Raises:
        BadInputError: if it cannot be planned here, or if the folder holds its result already.
    """
    from rich.console import Console

    from privbench.api.session import Session, planned_by

    made_by = record.provenance
    recorded = str(made_by.get("device")).split(" ")[0]
    machine = made_by.get("machine")
    threads = machine.get("threads", 1) if isinstance(machine, dict) else 1
    given = {
        **options, "out": out, "compiled": made_by.get("compiled") is True,
        "precision": made_by.get("precision", "auto"),
        "device": options["device"] or (recorded if recorded in ("cpu", "cuda") else "auto"),
        "threads": made_by.get("threads", threads),
    }  # fmt: skip
    planned = planned_by("privbench.api.again:Reproduction", None, chosen, given, record)
    for item in planned.items:
        if (out / f"{item.digest}.json").exists():
            planned.close()
            raise BadInputError(f"--out {shown(str(out), 200)} holds a result of this trial "
                                "already: choose another directory")  # fmt: skip
    return Session(planned, given, console=Console(quiet=True))


def _whether_same(record: Record, different: list[str]) -> str:
    if not different:
        return f"the same trial here: {record.trial}"
    return f"another trial here, which differs in {'; '.join(different)}"


def _of_splits(record: Record, ours: Record) -> list[str]:
    parts = sorted(name for name in record.split if record.split[name] != ours.split.get(name))
    if not parts:
        return []
    left = "; scores were not compared" if record.samples is not None else ""
    return [f"other rows were drawn for: {shown(', '.join(parts), 200)}{left}"]


def _of_one_trial(record: Record, ours: Record) -> list[str]:
    """What cannot differ between results of one trial, and does; [] for another trial."""
    from privbench.check.numbers import unlike

    if record.trial != ours.trial:
        return []
    made = []
    if _of_splits(record, ours):
        made.append("it is the same trial, so it has the same split: the file says another one")
    if names := unlike(record, ours):
        made.append(f"it is the same trial, and the file says otherwise of itself: "
                    f"{shown(', '.join(names), 300)}")  # fmt: skip
    return made


def _other_truth(record: Record, folder: Path, ours: Record, out: Path) -> bool:
    """Whether the split is the same, but not the rows or the truth beside the published scores."""
    import numpy as np

    from privbench.results.sample_files import read_samples

    theirs, mine = read_samples(record, [folder]), read_samples(ours, [out])
    if theirs is None or mine is None or _of_splits(record, ours):
        return False
    names = {name for name in {*theirs, *mine} if name == "row" or name.startswith("truth.")}
    return not all(
        name in theirs and name in mine and np.array_equal(theirs[name], mine[name])
        for name in names
    )


@click.command()
@click.argument("board", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--attack", "attacks", multiple=True, metavar="NAME",
              shell_complete=completion.of("attack"),
              help="Attack (repeatable) [all of the --plugin files].")  # fmt: skip
@click.option("--defense", "defenses", multiple=True, metavar="NAME",
              shell_complete=completion.of("defense"),
              help="Only victims with this defense (repeatable) [all].")  # fmt: skip
@click.option("--target", "targets", multiple=True, metavar="NAME",
              shell_complete=completion.of("target"),
              help="Only victims of this target (repeatable) [all].")  # fmt: skip
@click.option("--seeds", type=Whole(1, 1000), metavar="N", help="The first N seeds [all].")
@click.option("--out", type=click.Path(path_type=Path), default=Path("challenge"),
              show_default=True, help="Directory for the new results.")  # fmt: skip
@data_root_option("Directory of datasets; without it, they are downloaded.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1 or auto.")
@click.option("--jobs", default="1", show_default=True, metavar="N",
              help="Worker processes; auto: one per core.")  # fmt: skip
@click.pass_obj
def challenge(chosen: list[Choice], /, board: tuple[Path, ...], **options: Any) -> None:
    """Run a new attack against all victims of a published BOARD, and say which defenses it moves.

    BOARD is a NAME.jsonl file or a folder of results. Victims and shadows come from the store, or
    are trained again. For each victim the new attack is compared with the strongest published one,
    paired by seed. Run it again to go on where it stopped.
    Exit status: 0, or 1 if a cell failed; 2 for bad input, 130 if interrupted.
    """
    from privbench.check.challenge import table, told
    from privbench.results.files import read_all

    records = read_all(board)
    only = {kind: set(options.pop(f"{kind}s")) for kind in ("defense", "target")}
    found, unasked, failed = _outcomes(records, chosen, options, only)
    say(f"\n{table(found)}\n")
    for victim, why in unasked.items():
        say(f"Not attacked: {shown(victim, 200)}: {shown(why, 300)}.")
    for sentence in told(found):
        say(sentence)
    say(f"New results: {options['out']}. How to send them: leaderboards/SUBMIT.md")
    if failed:
        say(f"{several(failed, 'cell')} failed")
    sys.exit(int(failed > 0))


def _outcomes(
    records: Sequence[Record], chosen: list[Choice], options: dict[str, Any],
    only: dict[str, set[str]],
) -> tuple[list[Outcome], dict[str, str], int]:  # fmt: skip
    """What new attacks reach against each victim, whom none can ask and why, and failed cells."""
    from privbench.api.session import Session, planned_by
    from privbench.boards.board import Leaderboard
    from privbench.check.challenge import outcome, victims

    kept = [one for one in records
            if (not only["target"] or one.cell.target.name in only["target"])
            and (not only["defense"] or only["defense"] & {of.name for of in one.cell.defenses})
            ]  # fmt: skip
    seeds, attacks = options.pop("seeds"), options.pop("attacks")
    planned = planned_by(
        "privbench.api.again:Challenge", None, chosen, options, kept, attacks, seeds, only
    )
    asked, unasked = planned.ask("asked"), planned.ask("unasked")
    of = {game: victims(kept, game, seeds) for game in {game for game, _, _ in asked}}
    session = Session(planned, options)
    session.execute()
    made = {one.trial: one for one in session.records}
    boards = Leaderboard(kept), Leaderboard(session.records)
    marks = {id(one): board.mark(one) for board in boards for one in board.records}
    found = [outcome(of[game][i], [made[one] for one in mine], lambda one: marks[id(one)])
             for game, i, mine in asked]  # fmt: skip
    failed = sum(one.status == "failed" for one in session.records)
    return found, unasked, failed


@click.command("check-submission")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def check_submission(chosen: list[Choice], /, file: Path) -> None:
    """Recompute every metric of a FILE.jsonl from its per-sample scores.

    FILE is written by `privbench merge --scores --out FILE.jsonl`. Nothing in it is run.
    Exit status: 0 if all is as the scores say, 1 if not, 2 if the file is damaged.
    """
    from privbench.results.one_file import SUFFIX

    if file.suffix != SUFFIX or not file.exists():
        raise BadInputError(f"no submission at {shown(str(file), 200)}: give a {SUFFIX} file")
    from privbench.check.submission import check
    from privbench.plugins.registry import load

    load(chosen)  # games of plugins are known once these are imported
    found = check(file)
    for sentence in found.differences[:_MOST_SHOWN]:
        say(sentence)
    if len(found.differences) > _MOST_SHOWN:
        say(f"and {len(found.differences) - _MOST_SHOWN:,} more")
    if found.unchecked:
        names = ", ".join(shown(name) for name in sorted(found.unchecked)[:_MOST_SHOWN])
        say(f"scores do not tell, so these were not checked: {names}")
    if found.differences:
        say(f"{found.results:,} results, {len(found.differences):,} differences")
        sys.exit(1)
    say(f"{found.results:,} results, all metrics as their scores say")
