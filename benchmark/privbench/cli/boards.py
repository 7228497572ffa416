"""The commands that read results: join them, render a board, measure their scores again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbench.cli.border import Finite, prints_to_stderr, say
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privbench.boards.board import Leaderboard
    from privbench.grid.suite import Ref, Suite
    from privbench.plugins.registry import Choice
    from privbench.results.record import Record
    from privbench.results.samples import Columns


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory for the joined results; NAME.jsonl for one file, a line for each trial.",
)
@click.option("--scores", is_flag=True, help="Also per-sample scores in NAME.jsonl: a submission.")
@click.pass_obj
def merge(chosen: list[Choice], /, folders: tuple[Path, ...], out: Path, *, scores: bool) -> None:
    """Join the results of several folders, as written by `run --shard`, and write a board.

    With --out NAME.jsonl, only that file is written: results as they are published, or, with
    --scores, as they are submitted.
    """
    from privbench.results.one_file import SUFFIX

    if out.suffix == SUFFIX:
        _into_one_file(folders, out, scores=scores)
    elif scores:
        raise BadInputError("--scores is for --out NAME.jsonl: a directory has them beside results")
    else:
        _into_folder(chosen, folders, out)


def _into_one_file(folders: tuple[Path, ...], out: Path, *, scores: bool) -> None:
    from privbench.boards.checks import refuse_tokens, refuse_unfit
    from privbench.boards.html.curves import has_scores, roc
    from privbench.ground.store.files import write
    from privbench.results.files import located
    from privbench.results.limits import MOST_SCORES
    from privbench.results.one_file import dumped
    from privbench.results.sample_files import read_samples, sample_bytes

    found = located(folders, scores=scores)
    records = [record for record, _ in found]
    refuse_unfit(records)
    refuse_tokens(records, {})
    kept: dict[str, bytes] = {}
    for record, places in found:
        columns = read_samples(record, places)
        if columns is not None and has_scores(columns):
            curve = roc([columns])
            record.roc = [*zip(curve.fpr, curve.tpr, strict=True)]
    for record, places in found if scores else ():
        content = sample_bytes(record, places)
        if content is not None and len(content) > MOST_SCORES:
            raise BadInputError(
                f"the per-sample scores of trial {shown(record.trial)} have more than "
                f"{MOST_SCORES:,} bytes: ask about fewer rows"
            )
        kept |= {} if content is None else {record.trial: content}
    write(out, dumped(records, kept))
    say(f"{len(records)} results in {out}")
    lost = sum(record.samples is not None and record.trial not in kept for record in records)
    if scores and lost:
        say(f"{lost} of them without per-sample scores, which were not beside them")


def _into_folder(chosen: list[Choice], folders: tuple[Path, ...], out: Path) -> None:
    from privbench.boards.board import Leaderboard
    from privbench.boards.checks import refuse_tokens, refuse_unfit
    from privbench.boards.files import write_board
    from privbench.boards.tradeoffs import store_bound, stored_bound
    from privbench.boards.verdicts import code_lines, codes
    from privbench.cli.index import index
    from privbench.results.files import located
    from privbench.results.sample_files import sample_bytes

    there = [out] if any(out.glob("*.json")) else []
    found = located([*folders, *there], scores=True)
    records = [record for record, _ in found]
    bound = stored_bound([*folders, *there])
    refuse_unfit(records)
    refuse_tokens(records, {})
    lost = 0
    for record, places in found:
        content = sample_bytes(record, places)
        if content is not None:
            record.attach(content)
        lost += record.samples is not None and content is None
        record.write(out)
    store_bound(bound, out)
    page = out / "leaderboard.md"
    write_board(page, Leaderboard(records, bound, index(chosen).judging), out.name)
    say(f"{len(found)} results in {out}, board in {page}")
    if len(codes(records)) > 1:
        say(f"Different code made them, so compare with care. {' '.join(code_lines(records))}")
    if lost:
        say(f"{lost} of them without the file of their per-sample scores, which was not beside "
            "them: `privbench score` leaves them out")  # fmt: skip


def _of_board(command: Callable[..., None]) -> Callable[..., None]:
    """Results, and what a board says about them."""
    for add in (
        click.option(
            "--match-utility", type=Finite(min=0, max=1), metavar="LOSS",
            help="Largest loss of accuracy on reference rows at an operating point [that of the "
            "run].",
        ),
        click.option(
            "--suite", type=click.Path(path_type=Path),
            help="Suite that made the results; the page says how to run it again.",
        ),
        click.option("--title", help="Of the board [the suite's name, or privbench leaderboard]."),
        click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path)),
    ):  # fmt: skip
        command = add(command)
    return command


def _named(
    chosen: list[Choice],
    folders: Sequence[Path],
    records: Sequence[Record],
    *,
    title: str | None,
    suite: Path | None,
    match_utility: float | None,
) -> tuple[Leaderboard, str, list[str]]:
    """The board, its title, and what ``privbench run`` is given to make it again."""
    from privbench.boards.board import Leaderboard
    from privbench.boards.checks import refuse_tokens
    from privbench.boards.tradeoffs import stored_bound
    from privbench.cli.index import index
    from privbench.grid.suite import read_suite

    made_by = read_suite(suite) if suite else None
    bound = match_utility
    if bound is None:
        bound = made_by.match_utility if made_by else stored_bound(folders)
    name = title or (made_by.name if made_by else "privbench leaderboard")
    again = _again(suite, made_by, records) if suite and made_by else []
    refuse_tokens(records, {"the title": name, "the suite": again})
    asked = made_by.names or () if made_by else ()
    return Leaderboard(records, bound, index(chosen).judging, asked), name, again


def _again(path: Path, suite: Suite, records: Sequence[Record]) -> list[str]:
    """What `privbench run` is given to make these results again: the suite, as far as it ran.

    A suite may have more datasets, targets and seeds than have been run. Options replace its lists.
    """
    asked = [path.as_posix()]
    for option, listed, ran in (
        ("--dataset", suite.datasets, {r.cell.dataset.name for r in records}),
        ("--target", suite.targets, {r.cell.target.name for r in records}),
    ):
        kept = [one for one in listed if _called(one) in ran]
        alike = len({*map(_called, kept)}) < len(kept)  # options cannot tell settings apart
        for one in kept if len(kept) < len(listed) and not alike else ():
            fields = one[_called(one)] if isinstance(one, dict) else {}
            asked += [option, _called(one)]
            asked += [word for field, value in fields.items()
                      for word in ("--set", f"{_called(one)}.{field}={value}")]  # fmt: skip
    seeds = sorted({record.seed for record in records})
    if seeds != sorted(suite.seed_list) and seeds == list(range(len(seeds))):
        asked += ["--seeds", f"{len(seeds)}"]
    return asked


def _called(method: Ref) -> str:
    return method if isinstance(method, str) else next(iter(method))


@click.command()
@_of_board
@click.option(
    "-o", "--output", type=click.Path(path_type=Path),
    help="File of the page, NAME.md; NAME.csv and NAME.svg are written beside it [standard "
    "output, the page alone].",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a page.")
@click.pass_obj
def leaderboard(
    chosen: list[Choice], /, folders: tuple[Path, ...], output: Path | None, *, as_json: bool,
    **told: Any,
) -> None:  # fmt: skip
    """Render results as a board; equal results give identical bytes.

    A page has at most 150 lines; the csv file beside it has all numbers.
    """
    from privbench.boards.as_json import document
    from privbench.boards.checks import refuse_unfit
    from privbench.boards.files import write_board
    from privbench.boards.page import page
    from privbench.results.files import read_all

    if as_json and output is not None:
        raise BadInputError("--json prints to standard output: leave out -o")
    if output is not None and output.suffix != ".md":
        raise BadInputError(f"-o {shown(str(output), 200)}: the name of a page ends in .md")
    with prints_to_stderr():
        records = read_all(folders)
        board, name, again = _named(chosen, folders, records, **told)
    if as_json:
        refuse_unfit(records)
        say(document(board))
    elif output is None:
        say(page(board, name, again=again), nl=False)
    else:
        write_board(output, board, name, again=again)


@click.command()
@_of_board
@click.option(
    "-o", "--output", default="report.html", show_default=True, type=click.Path(path_type=Path),
    help="File of the page.",
)  # fmt: skip
@click.option("--svg", type=click.Path(path_type=Path), help="Directory for its figures as SVG.")
@click.option("--png", type=click.Path(path_type=Path), help="Directory for its figures as PNG.")
@click.pass_obj
def report(
    chosen: list[Choice],
    /,
    folders: tuple[Path, ...],
    output: Path,
    svg: Path | None,
    png: Path | None,
    **told: Any,
) -> None:
    """Render results as one web page: a board, and every cell with its evidence.

    The page needs no other file and no network. ROC curves and histograms are drawn where the files
    of per-sample scores are beside the results.
    """
    from privbench.boards.checks import refuse_tokens
    from privbench.results.files import located

    if output.suffix not in (".html", ".htm"):
        raise BadInputError(f"-o {shown(str(output), 200)}: the name of a report ends in .html")
    found = located(folders)
    from privbench.boards.html.page import report as rendered
    from privbench.boards.html.pictures import figures
    from privbench.ground.store.files import write
    from privbench.plugins.registry import load
    from privbench.results.sample_files import read_samples

    places = {record.trial: at for record, at in found}
    records = [record for record, _ in found]
    board, name, again = _named(chosen, folders, records, **told)

    def samples(record: Record) -> Columns | None:
        return read_samples(record, places[record.trial])

    words = _words(folders, records)
    refuse_tokens([], {"audit.txt": words})
    if words and not told["title"]:
        name = f"Audit of {records[0].cell.target.label}"
    text = rendered(board, name, again=again, samples=samples, registry=load(chosen), words=words)
    write(output, text)
    say(f"report of {len(found)} results in {output}")
    for folder, form in ((svg, "svg"), (png, "png")):
        if folder is not None:
            given = figures(board, form, samples=samples)
            for file, content in given:
                write(folder / file, content)
            say(f"figures in {folder}")


def _words(folders: Sequence[Path], records: Sequence[Record]) -> str:
    """What the audit that made all of the results says of them; "" if none did."""
    from privbench.api.own_model.document import annexed
    from privbench.api.own_model.sums import SUMS, WORDS, verified
    from privbench.results.files import AUDIT
    from privbench.results.limits import LONGEST_TEXT

    audited = all(record.cell.of_audit for record in records)
    file = folders[0] / WORDS
    if len(folders) > 1 or not audited or not file.is_file():
        return ""
    with file.open("rb") as given:
        words = given.read(LONGEST_TEXT).decode(errors="replace").rstrip("\n")
    lines = annexed(folders[0] / AUDIT) if (folders[0] / AUDIT).is_file() else []
    if (folders[0] / SUMS).is_file():
        try:
            lines.append(verified(folders[0]).words)
        except BadInputError as error:
            lines.append(f"It cannot be verified: {error}.")
    return "\n".join([words, *lines])


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--by", multiple=True, metavar="label|ATTRIBUTE",
    help="Also for the rows of each class or value of an attribute (repeatable).",
)  # fmt: skip
@click.option("--rows", is_flag=True, help="Also the rows that are most exposed over the seeds.")
@click.option("--agreement", "agree", is_flag=True, help="Also how well attacks agree.")
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="Directory for copies of the results with the recomputed metrics.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File [standard output].")
@click.pass_obj
def score(
    chosen: list[Choice],
    /,
    folders: tuple[Path, ...],
    out: Path | None,
    output: Path | None,
    **told: Any,
) -> None:
    """Recompute all metrics from the per-sample scores of results; nothing runs again."""
    from privbench.results.files import refuse_missing

    for folder in folders:
        refuse_missing(folder)
    from privbench.boards.checks import refuse_tokens, refuse_twins
    from privbench.check.rescore import read_scored
    from privbench.check.score_report import report
    from privbench.ground.store.files import write
    from privbench.plugins.registry import load

    load(chosen)  # games of plugins are known once these are imported
    found, notes = read_scored(folders)
    refuse_twins(one.record for one in found)
    refuse_tokens([one.record for one in found], {})
    text = report(found, **told)
    if output is None:
        say(text, nl=False)
    else:
        write(output, text)
    if out is not None:
        for one in found:
            one.recomputed().write(out)
    for note in notes:
        say(note, err=True)
