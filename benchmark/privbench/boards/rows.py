"""A game's table for a terminal, a row for each cell; how numbers over seeds are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards import game_columns
from privbench.results.statistics import FEWEST_SEEDS, FEWEST_TESTED, significant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.boards.board import Leaderboard
    from privbench.ground.columns import Column
    from privbench.measure.games.metrics import Estimate
    from privbench.results.record import Record
    from privbench.results.seeds import Seeds, Series
    from privbench.results.statistics import Difference


def headings(game: str, board: Leaderboard) -> list[str]:
    """Column headings of a game's table."""
    records = board.of_game(game)
    fixed = ["dataset", "target", "attack"]
    if game_columns.tells(game, records, "phase"):
        fixed.append("phase")
    fixed += ["defense", "adversary", "seeds"]
    moving = [column.heading for column in game_columns.columns(game, records)]
    return [*fixed, *moving, *difference_headings(game, board), "test accuracy", "train/test gap",
            "encoder updates",
            "queries per sample", "seconds", "peak MiB"]  # fmt: skip


def difference_headings(game: str, board: Leaderboard) -> list[str]:
    """Headings of the columns of paired differences."""
    heading = game_columns.headline_column(game, board.of_game(game))[0].heading
    nulls = [f"{heading} minus null"] if _nulls(_cells(game, board)) else []
    return [f"{heading} minus none", *nulls, "test accuracy minus none"]


def body(game: str, board: Leaderboard) -> list[list[str]]:
    """Rows of a game's table, as text, ordered by the names of the cells.

    They have numbers, and are no positive controls.
    """
    found = _cells(game, board)
    records = board.of_game(game)
    columns = game_columns.columns(game, records)
    phase = game_columns.tells(game, records, "phase")
    keys = {cell: _key(of.first) for cell, of in found.items()}
    told = _told_apart(keys, found)
    certain = significant({cell: one for cell, one in board.minus_none.items() if cell in found})
    nulls = _nulls(found)
    made = []
    for cell in sorted(found, key=lambda cell: (_order(keys[cell]), told[cell])):
        of, (dataset, target, attack, trained, defense, adversary) = found[cell], keys[cell]
        attack += (" ‡" if cell in board.doubtful else "") + (
            " ¶" if board.missed(of.first) else ""
        )
        seeds = len(of.ok)
        draft = " (draft)" if seeds < FEWEST_SEEDS else ""
        draft = " (draft, no interval)" if seeds < FEWEST_TESTED else draft
        seconds = [of.number("cost", name) for name in ("seconds_training", "seconds")]
        made.append([
            f"{dataset} ({told[cell]})" if told[cell] else dataset, target, attack,
            *([trained] if phase else []),
            defense + (" °" if of.outside else ""), adversary, f"{seeds}{draft}",
            *(over_seeds(column, of) for column in columns),
            _signed(board.minus_none.get(cell)) + (" †" if cell in certain else ""),
            *([_signed(of.minus_null)] if nulls else []),
            _signed(board.accuracy_minus_none.get(cell)),
            tested(of), _mean(of.number("utility", "gap")),
            _mean(of.number("updates", "encoder"), ".0f"),
            _mean(of.number("cost", "queries_per_sample"), ".0f"),
            f"{sum(one.mean for one in seconds):.1f}",
            f"{of.number('cost', 'peak_bytes').mean / 2**20:.0f}",
        ])  # fmt: skip
    return made


def _cells(game: str, board: Leaderboard) -> dict[str, Seeds]:
    return {cell: of for cell, of in board.with_numbers.items() if of.first.cell.game == game}


def _nulls(found: Mapping[str, Seeds]) -> bool:
    """Whether any result has the game's main number on a null victim."""
    return any(of.null.numbers or of.null.refused for of in found.values())


def _signed(difference: Difference | None) -> str:
    """A difference with its interval over seeds; ``–`` if there is none."""
    if difference is None:
        return "–"
    if difference.low is None or difference.high is None or difference.seeds < FEWEST_TESTED:
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def _told_apart(keys: Mapping[str, tuple[str, ...]], found: Mapping[str, Seeds]) -> dict[str, str]:
    """Cell -> the fields that tell it from others that look the same; "" if there are none."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for cell, key in keys.items():
        alike.setdefault(key, []).append(cell)
    made = dict.fromkeys(keys, "")
    for group in alike.values():
        if len(group) > 1:
            told = game_columns.differing(
                [found[cell].first.cell.model_dump(mode="json") for cell in group]
            )
            made |= zip(group, told, strict=True)
    return made


def _order(key: tuple[str, ...]) -> tuple[tuple[bool, str], ...]:
    """Sort by name, with the baseline ``none`` before all defenses."""
    return tuple((part != "none", part) for part in key)


def _key(record: Record) -> tuple[str, ...]:
    cell = record.cell
    attack = cell.attack.label
    if record.board and "sensitive" in record.board.tells:
        attack += f" [{', '.join(cell.sensitive)}]"
    dataset = record.cell.data
    return (dataset, cell.target.label, attack, record.phase, cell.defense, cell.adversary)


def over_seeds(column: Column, of: Seeds) -> str:
    """Return what a column shows of the seeds of one cell."""
    if column.seeds == "pooled":
        return of.bounds[column.name].text if column.name in of.bounds else "–"
    if column.seeds == "smallest":
        return of.smallest(column.part, column.name).text
    return summary(of.number(column.part, column.name), column.low, column.high)


def summary(found: Series, low: float | None = 0.0, high: float | None = 1.0) -> str:
    """Mean with its interval over seeds; ``–`` if not measured, ``refused`` if that is impossible.

    Fewer than ``FEWEST_TESTED`` seeds have no interval.

    Args:
        found: a number.
        low: the smallest that it can be, to which the interval is cut; None for no end.
        high: the largest.
    """
    if found.refused:
        return "refused"
    made = found.within(low, high)
    return "–" if made is None else _with_interval(made, len(found.numbers))


def tested(of: Seeds) -> str:
    """Mean test accuracy over seeds, each counted once, with its interval.

    One seed has the binomial interval of its test rows, in braces. ``several`` if results of one
    seed differ.
    """
    known = of.number("utility", "test_accuracy")
    if of.tested is None:
        return "several" if known.numbers else "–"
    if len({*known.seeds}) == 1 and of.tested.low < of.tested.high:
        return f"{of.tested.value:.3f} {{{of.tested.low:.3f}, {of.tested.high:.3f}}}"
    return _with_interval(of.tested, len({*known.seeds}))


def _with_interval(made: Estimate, seeds: int) -> str:
    told = f"{made.value:.3f}"
    return told if seeds < FEWEST_TESTED else f"{told} [{made.low:.3f}, {made.high:.3f}]"


def _mean(found: Series, form: str = ".3f") -> str:
    return f"{found.mean:{form}}" if found.numbers else "–"
