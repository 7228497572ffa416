"""Output while a grid runs, and at its end, where the board is written too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from privbench.api.terminal_matrix import MARKS, matrices, shown_as_matrix
from privbench.boards import tradeoffs
from privbench.boards.checks import refuse_tokens
from privbench.boards.closing import closing
from privbench.boards.files import write_board
from privbench.boards.game_columns import columns
from privbench.boards.rows import body, difference_headings, headings
from privbench.boards.verdicts import control_lines
from privbench.ground.errors import BadInputError, WriteError
from privbench.ground.text import several, terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privbench.boards.board import Leaderboard
    from privbench.results.record import Record

#: Columns of every game that a terminal never shows.
_ONLY_ON_BOARD = ("queries per sample", "encoder updates", "seconds", "peak MiB")
_NARROWEST = 7  # characters of a number or its interval
_NAME = 25  # characters that a name gets at least, if it has so many
_EVERY = 10.0  # seconds between plain lines
_REDRAWN = 0.1  # seconds between drawings of one worker's bar
#: What a mark in a table means.
_MARKS = {
    " {": "{low, high}: 95 % interval over the rows of one seed",
    " [": "[low, high]: 95 % interval over seeds",
    **MARKS,
    "†": "†: differs from none beyond chance",
    "◊": "◊: decides elsewhere than at the best balanced accuracy",
}
#: Text that is printed as it is; a terminal wraps it at words, a file gets whole lines.
PLAIN: Any = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}


class _Terminal(Console):
    """Prints text as text: the border to the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Neutralise what a terminal would obey; tables hold ``_plain`` text already."""
        if self.is_terminal:
            options.pop("soft_wrap", None)
        shown = [terminal(one) if isinstance(one, str) else one for one in objects]
        super().print(*shown, **options)


def terminal_console(**options: Any) -> Console:
    """A console for text of users and plugins; the options are rich's."""
    return _Terminal(**options)


def _plain(text: str) -> Text:
    """Text without markup, emoji codes or anything that a terminal obeys."""
    return Text(terminal(text))


class Watcher:
    """Shows the progress of trials and of each worker; training reports to it as ``Progress``."""

    def __init__(self, console: Console, total: int) -> None:
        """Prepare the display for this number of trials."""
        self.console = console
        self.live = console.is_terminal
        self.total = total
        self.done = 0
        self.models = 0  # to train by one process; 0 if they are not counted
        self._trained, self._begun = 0, time.monotonic()
        self._left = ""
        self._failure = ""  # the reason of the last one
        self._said = time.monotonic()
        self._phases: dict[int, _Phase] = {}  # worker -> what it trains
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(),
            TextColumn("{task.fields[told]}", markup=False), console=console,
            transient=True, disable=not self.live,
        )  # fmt: skip
        self._trials = self._bars.add_task("trials", total=total, told="")
        self._workers: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing."""
        self._bars.stop()

    def epoch(self, phase: str, done: float, total: int, rows: int, worker: int = 0) -> None:
        """Show that ``done`` of ``total`` epochs of ``rows`` rows of that phase are finished."""
        now = time.monotonic()
        at = self._phases.get(worker)
        if at is None or (at.name, at.total) != (phase, total) or done < at.done:
            at = self._phases[worker] = _Phase(phase, total, rows, now, done)
        if done >= total and self.models:
            self._trained += 1
            each = (now - self._begun) / self._trained
            self._told(each * max(0, self.models - self._trained))
        fresh, at.done = at.said is None or now - at.said > _REDRAWN, done
        if self.live and (fresh or done >= total):
            at.said = now
            self._draw(worker, at, now)
        if not self.live and now - self._said > _EVERY:
            self._said = now
            busy = "; ".join(at.told(now) for _, at in sorted(self._phases.items()))
            self._line(f"  [{self.done}/{self.total}{self._left}] {busy}")

    def idle(self, worker: int) -> None:
        """Show that a worker trains nothing."""
        self._phases.pop(worker, None)
        if worker in self._workers:
            self._bars.update(self._workers[worker], visible=False)

    def left(self, seconds: float | None) -> None:
        """Show how long the rest of the grid takes."""
        if self._trained >= self.models:  # before that, the models tell
            self._told(seconds)

    def _told(self, seconds: float | None) -> None:
        self._left = "" if seconds is None else f", about {_duration(seconds)} left"
        self._count()

    def trial(self, record: Record, was_there: bool) -> None:
        """Show that a trial is finished."""
        self.done += 1
        self._count()
        cell = record.cell
        if record.status == "skipped" and cell.of_audit:
            return  # the words of an audit name them
        name = f"{cell.title}, {cell.adversary}, seed {record.seed}"
        how = {"ok": "ok", "skipped": "skipped", "failed": "FAILED"}[record.status]
        told = " ".join("; ".join(filter(None, [record.reason, *record.flags])).split())
        if record.status == "failed":
            again, self._failure = told == self._failure, told
            told = "for the same reason" if again else told
        tail = f": {told}" if told else ""
        cost = "kept" if was_there else f"{record.cost.seconds:.1f} s"
        if not was_there and record.cost.seconds_training:
            cost += f", its models {record.cost.seconds_training:.1f} s"
        beside = "" if record.status == "skipped" else f" ({cost})"
        self._line(f"[{self.done}/{self.total}] {name}: {how}{beside}{tail}")

    def _count(self) -> None:
        told = f"{self.done}/{self.total}{self._left}"
        self._bars.update(self._trials, completed=self.done, told=told)

    def _draw(self, worker: int, at: _Phase, now: float) -> None:
        if worker not in self._workers:
            self._workers[worker] = self._bars.add_task("", total=1.0, told="")
        self._bars.update(
            self._workers[worker], description=f"  {terminal(at.name)}", total=at.total,
            completed=at.done, told=at.rate(now), visible=True,
        )  # fmt: skip

    def _line(self, text: str) -> None:
        self.console.print(text, **PLAIN)


@dataclass
class _Phase:
    """What a worker trains: ``total`` epochs of ``rows`` rows; first reported at ``begun``."""

    name: str
    total: int
    rows: int
    begun: float
    first: float
    done: float = 0.0
    said: float | None = None

    def rate(self, now: float) -> str:
        """Return rows per second since the first report."""
        seconds = now - self.begun
        rows = (self.done - self.first) * self.rows
        return f"{rows / seconds:,.0f} rows/s" if seconds > 0 and rows else ""

    def told(self, now: float) -> str:
        """Return the progress as a short text."""
        rate = self.rate(now)
        return f"{self.name}: epoch {self.done:.1f}/{self.total}{', ' + rate if rate else ''}"


def _duration(seconds: float) -> str:
    """Return a duration with about two significant digits.

    >>> _duration(42.3), _duration(754), _duration(9000)
    ('42 s', '13 min', '2.5 h')
    """
    if seconds < 90:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def summarise(
    console: Console, board: Leaderboard, out: Path, title: str, *, trained: int, part: str = ""
) -> str:
    """Write the board of a run, and print its tables and how it went.

    Args:
        console: to print on.
        board: with the results of all trials.
        out: folder of results.
        title: of the board.
        trained: number of phases that were trained.
        part: ``I/N`` if the trials are a part of a grid: the whole grid has a board, a part none.

    Returns:
        What is not written, and why; "" if all is.
    """
    if part:
        return _summarise_part(console, board, out, part, trained)
    page, problem = out / "leaderboard.md", ""
    try:
        refuse_tokens(board.records, {"the title": title})
        write_board(page, board, title)
        tradeoffs.store_bound(board.bound, out)
    except (WriteError, BadInputError) as error:
        problem = str(error)
    for table in tables(board, console.width):
        console.print(table)
    for sentence in tradeoffs.told(board):
        console.print(sentence, **PLAIN)
    for line in control_lines(board):
        console.print(f"Positive control: {line}", **PLAIN)
    _tell(console, board, out, trained, problem or f"board in {page}")
    elsewhere = any(record.cell.of_audit for record in board.records)
    for sentence in [] if elsewhere else closing(board):  # an audit's words
        console.print(f"Found: {sentence}", **PLAIN)
    return problem


def _summarise_part(
    console: Console, board: Leaderboard, out: Path, part: str, trained: int
) -> str:
    problem = ""
    try:
        tradeoffs.store_bound(board.bound, out)
    except WriteError as error:
        problem = str(error)
    where = f"part {part} of the grid: `privbench merge` joins the parts"
    _tell(console, board, out, trained, problem or where)
    return problem


def _tell(console: Console, board: Leaderboard, out: Path, trained: int, where: str) -> None:
    records = board.records
    failed = sum(record.status == "failed" for record in records)
    console.print(
        f"{several(len(records), 'trial')}, {failed} failed; {several(trained, 'phase')} trained; "
        f"results in {out}, {where}",
        **PLAIN,
    )


def show_finished(board: Leaderboard, out: Path, title: str, console: Console, part: str) -> str:
    """Show a grid whose results are all there; the arguments are those of ``summarise``."""
    with Watcher(console, len(board.records)) as watcher:
        for record in board.records:
            watcher.trial(record, True)
    return summarise(console, board, out, title, trained=0, part=part)


def tables(board: Leaderboard, width: int = 100) -> list[Table]:
    """The board's main columns as tables for a terminal; the markdown board has all of them.

    Several attacks on several defenses are a matrix, everything else has a row for each cell.

    Args:
        board: with results of any games.
        width: width of the terminal in characters; if it is too narrow, columns are left out, and
            then names are broken, numbers never.
    """
    in_matrix = shown_as_matrix(board)
    made = matrices(board, in_matrix, width)
    for game in (one for one in board.games if one not in in_matrix):
        names, rows = headings(game, board), body(game, board)
        fixed = names.index("seeds") + 1
        same = {i for i in range(fixed) if len({row[i] for row in rows}) == 1}
        same -= {names.index("attack"), names.index("defense")}
        moving = columns(game, board.of_game(game))
        never = {*_ONLY_ON_BOARD, *(c.heading for c in moving if c.terminal == "never")}
        spare = [*reversed(difference_headings(game, board)), "train/test gap"]
        spare = [*spare, *(c.heading for c in reversed(moving) if c.terminal == "wide")]
        shown = [i for i, name in enumerate(names) if i not in same and name not in never]
        spare += [c.heading for c in reversed(moving[1:])]
        widths = _fitting(shown, names, rows, fixed, width=width, spare=spare)
        table = Table(
            title=_title(game, names, rows[0], same), title_justify="left",
            caption=_legend([row[i] for row in rows for i in widths], len(shown) - len(widths)),
            caption_justify="left",
        )  # fmt: skip
        for i, wide in widths.items():
            table.add_column(
                _plain(names[i]),
                justify="left" if i < fixed else "right",
                overflow="fold",
                width=wide,
            )
        for row in rows:
            table.add_row(*(_plain(_broken(row[i])) for i in widths))
        made.append(table)
    return made


def _fitting(
    shown: list[int], names: list[str], rows: list[list[str]], fixed: int, *, width: int,
    spare: list[str],
) -> dict[int, int]:  # fmt: skip
    """Return the columns that fit, with the characters that each gets.

    ``spare`` ones are left out in their order while the others lack room. Numbers get what they
    need, and names share the rest.
    """
    texts = {i: [names[i], *(row[i] for row in rows)] for i in shown}
    longest = {i: max(map(len, texts[i])) for i in shown if i < fixed}
    needed = {i: min(longest[i], _NAME) if i < fixed else _narrowest(texts[i]) for i in shown}
    for name in spare:
        if sum(needed.values()) + 3 * len(needed) < width:
            break
        needed = {i: wide for i, wide in needed.items() if names[i] != name}
    room = width - 1 - 3 * len(needed) - sum(wide for i, wide in needed.items() if i >= fixed)
    left = sum(i < fixed for i in needed)
    for i in sorted((i for i in needed if i < fixed), key=longest.__getitem__):
        needed[i] = max(1, min(longest[i], room // left))
        room, left = room - needed[i], left - 1
    return needed


def _legend(texts: Sequence[str], left_out: int) -> Text:
    """What the marks in a table mean, and how many columns had no room."""
    told = [text for mark, text in _MARKS.items() if any(mark in one for one in texts)]
    told += [f"{several(left_out, 'more column')} on the board"] if left_out else []
    return _plain("; ".join(told))


def _broken(number: str) -> str:
    """A number with its interval on a line of its own."""
    return number.replace(" [", "\n[").replace(" {", "\n{")


def _narrowest(texts: list[str]) -> int:
    """Characters that a column needs so that no word of its heading or numbers is broken."""
    return max(_NARROWEST, *(len(word) for text in texts for word in text.split()))


def _title(game: str, names: list[str], row: list[str], fixed: set[int]) -> Text:
    said = ", ".join(f"{names[i]} {row[i]}" for i in sorted(fixed))
    return _plain(f"{game.capitalize()} ({said})" if said else game.capitalize())
