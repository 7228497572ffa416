"""Output while a grid runs: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from privbench.boards import leaderboard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from privbench.boards.records import Record

_ONLY_ON_BOARD = (
    "balanced accuracy", "TPR at 0.1 % FPR", "queries per sample", "encoder updates", "seconds",
    "peak MiB", "label only",
)  # fmt: skip
#: Columns that a narrow terminal omits, in this order.
_LUXURY = ("blind AUC", "train/test gap", "audit's ceiling", "TPR at 1 % FPR", "claimed ε")
_NARROWEST = 7  # characters of a number or its interval
_EVERY = 10.0  # seconds between plain lines of one phase


class Watcher:
    """Shows the progress of trials and phases; training reports to it as its ``Progress``."""

    def __init__(self, console: Console, total: int) -> None:
        """Prepare the display for this number of trials."""
        self.console = console
        self.live = console.is_terminal
        self.total = total
        self.done = 0
        self._phase = ""
        self._begun = self._said = time.monotonic()
        self._bars = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=console,
            transient=True, disable=not self.live,
        )  # fmt: skip
        self._trials = self._bars.add_task("trials", total=total, rate="")
        self._epochs = self._bars.add_task("", total=1, rate="", visible=False)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop drawing."""
        self._bars.stop()

    def epoch(self, phase: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` epochs of that phase are finished."""
        now = time.monotonic()
        if done == 1 or phase != self._phase:
            self._phase, self._begun, self._said = phase, now, now
            shown = f"  {escape(phase)}"
            self._bars.reset(self._epochs, total=total, description=shown, visible=True)
        rate = done / max(now - self._begun, 1e-9)
        shown = f"{rate:,.0f} epochs/s" if done > 1 else ""
        self._bars.update(self._epochs, completed=done, rate=shown, visible=done < total)
        if not self.live and now - self._said > _EVERY:
            self._said = now
            left = (total - done) / max(rate, 1e-9)
            line = f"  {phase}: epoch {done}/{total}, {shown}, {left:.0f} s left"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def trial(self, record: Record, was_there: bool) -> None:
        """Show that a trial is finished."""
        self.done += 1
        self._bars.update(self._trials, completed=self.done)
        cell = record.cell
        name = f"{cell.title}, {cell.adversary}, seed {record.seed}"
        how = {"ok": "ok", "skipped": "skipped", "failed": "FAILED"}[record.status]
        tail = f": {' '.join(record.reason.split())}" if record.reason else ""
        cost = "kept" if was_there else f"{record.cost.seconds:.1f} s"
        line = f"[{self.done}/{self.total}] {name}: {how} ({cost}){tail}"
        self.console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def tables(records: Sequence[Record], width: int = 100) -> list[Table]:
    """The board's main columns as tables for a terminal; the markdown board has all of them.

    Args:
        records: of any games.
        width: of the terminal, in characters; where it is too narrow, columns are left out and
            numbers are never broken.
    """
    made = []
    for game in leaderboard.GAMES:
        mine = [r for r in records if r.cell.game == game and r.status == "ok"]
        if not mine:
            continue
        names, rows = leaderboard.headings(game, mine), leaderboard.cells(game, mine)
        fixed = names.index("seeds") + 1
        same = {i for i in range(fixed) if len({row[i] for row in rows}) == 1}
        same -= {names.index("attack"), names.index("defense")}
        shown = [i for i, name in enumerate(names) if i not in same and name not in _ONLY_ON_BOARD]
        shown = _fitting(shown, names, rows, fixed, width)
        table = Table(title=_title(game, names, rows[0], same), title_justify="left")
        for i in shown:
            first = i < fixed
            table.add_column(
                names[i],
                justify="left" if first else "right",
                no_wrap=first,
                min_width=None if first else _NARROWEST,
            )
        for row in rows:
            table.add_row(*(escape(row[i].replace(" [", "\n[")) for i in shown))
        made.append(table)
    return made


def _fitting(
    shown: list[int], names: list[str], rows: list[list[str]], fixed: int, width: int
) -> list[int]:
    """Columns that fit into the width."""
    needed = {
        i: 3 + (max(len(row[i]) for row in [names, *rows]) if i < fixed else _NARROWEST)
        for i in shown
    }
    for luxury in _LUXURY:
        if sum(needed[i] for i in shown) < width:
            break
        shown = [i for i in shown if names[i] != luxury]
    return shown


def _title(game: str, names: list[str], row: list[str], fixed: set[int]) -> str:
    said = ", ".join(f"{names[i]} {row[i]}" for i in sorted(fixed))
    return escape(f"{game.capitalize()} ({said})" if said else game.capitalize())
