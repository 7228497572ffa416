"""What ``privbench score`` prints: metrics, slices, single rows and agreement, as markdown."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from privbench.boards.row_exposure import FPR, agreement
from privbench.boards.rows import summary
from privbench.boards.single_rows import ROWS_TEXT, named, plain, single_rows, table
from privbench.check.rescore import by_cell
from privbench.ground.text import markdown
from privbench.measure.games.catalog import GAMES
from privbench.results.seeds import series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.check.rescore import Scored
    from privbench.results.record import Number


def report(
    found: Sequence[Scored], *, by: Sequence[str] = (), rows: bool = False, agree: bool = False
) -> str:
    """Return all tables.

    Args:
        found: results with their per-sample scores.
        by: ``label`` or attributes, by whose values metrics are sliced.
        rows: whether to list the vulnerability of single rows.
        agree: whether to compare attacks.
    """
    lines: list[str] = []
    for game in dict.fromkeys(one.record.cell.game for one in found):
        mine = by_cell(one for one in found if one.record.cell.game == game)
        lines += [f"## {game.capitalize()}", "", *_metrics(game, mine), ""]
        for name in by:
            lines += [f"### By {markdown(name)}", "", *_slices(mine, name), ""]
    cells = by_cell(one for one in found if one.record.cell.game == "membership")
    if rows and cells:
        lines += ["## Single rows", "", *itertools.chain(*map(_rows, cells))]
        lines += ROWS_TEXT.split("\n")
    if agree:
        lines += ["## Agreement of attacks", "", *_agreement(found), ""]
    lines += ["Numbers are means over seeds; brackets hold Student's 95 % interval over seeds."]
    return "\n".join(lines) + "\n"


_NAMES = ["dataset", "target", "attack", "defense", "adversary"]


def _metrics(game: str, cells: Iterable[Sequence[Scored]]) -> list[str]:
    main = GAMES[game].board.columns[0].name
    rows, names = [], dict[str, None]()
    for seeds in cells:
        given = [one.metrics() for one in seeds]
        names |= dict.fromkeys(itertools.chain(*given))
        controls = {
            player: [one.metrics(player=player).get(main) for one in seeds]
            for player in seeds[0].players()[1:]
        }
        rows.append((named(seeds[0].record), len(seeds), given, controls))
    players = list(dict.fromkeys(itertools.chain(*(row[3] for row in rows))))
    heads = [*_NAMES, "seeds", *names, *(f"{p} {main}" for p in players)]
    return table(
        heads,
        (
            [
                *named, str(count), *(_summary(name, given) for name in names),
                *(_over_seeds(controls.get(player, []), main)
                  for player in players),
            ]
            for named, count, given, controls in rows
        ),
    )  # fmt: skip


def _slices(cells: Iterable[Sequence[Scored]], by: str) -> list[str]:
    rows: list[tuple[list[str], list[dict[str, Number]]]] = []
    for seeds in cells:
        slices: dict[str, list[tuple[int, dict[str, Number]]]] = {}
        for one in seeds:
            for value, chosen in one.slices(by):
                slices.setdefault(value, []).append((int(chosen.sum()), one.metrics(chosen)))
        for value, found in sorted(slices.items(), key=lambda item: int(item[0].split()[-1])):
            size = sum(n for n, _ in found) / len(found)
            told = [*named(seeds[0].record), value, str(len(found)), f"{size:.0f}"]
            rows.append((told, [metrics for _, metrics in found]))
    names = dict.fromkeys(name for _, found in rows for one in found for name in one)
    heads = [*_NAMES, "slice", "seeds", "rows per seed", *names]
    return table(heads, ([*named, *(_summary(n, found) for n in names)] for named, found in rows))


def _summary(name: str, found: Iterable[dict[str, Number]]) -> str:
    return _over_seeds([metrics.get(name) for metrics in found], name)


def _over_seeds(numbers: Iterable[Number | None], name: str) -> str:
    return summary(series(enumerate(numbers)), *_bounds(name))


def _bounds(name: str) -> tuple[float, float]:
    """Return the range of a metric, as the games' boards have it."""
    for column in itertools.chain(*(game.board.columns for game in GAMES.values())):
        if column.name == name:
            low = -math.inf if column.low is None else column.low
            return low, math.inf if column.high is None else column.high
    return 0.0, 1.0


def _rows(seeds: Sequence[Scored]) -> list[str]:
    return single_rows(seeds[0].record, [one.columns for one in seeds])


def _agreement(found: Sequence[Scored]) -> list[str]:
    """One row for each two attacks on the same victims, over their common seeds."""
    victims: dict[tuple[str, ...], dict[str, dict[int, Scored]]] = {}
    for one in found:
        cell = one.record.cell
        dataset, target, attack, defense, adversary = named(one.record)
        protocol = str(sorted(cell.protocol.items()))
        at = (cell.game, dataset, target, defense, adversary, protocol)
        victims.setdefault(at, {}).setdefault(attack, {})[one.record.seed] = one
    rows = []
    for key in sorted(victims):
        for first, second in itertools.combinations(sorted(victims[key]), 2):
            a, b = victims[key][first], victims[key][second]
            made = [agreement(a[s].columns, b[s].columns) for s in sorted({*a} & {*b})]
            known = [[c.rank, c.overlap, c.chance] for c in made if c is not None]
            if known:
                means = [_mean(values) for values in zip(*known, strict=True)]
                rows.append([*key[:5], first, second, str(len(known)), *map(plain, means)])
    heads = ["game", *_NAMES[:2], *_NAMES[3:], "attack", "other attack", "seeds"]
    heads += ["rank correlation", f"overlap found at {FPR:.0%} FPR", "by chance"]
    return table(heads, rows) if rows else ["No two attacks were asked the same question."]


def _mean(values: Iterable[float]) -> float:
    """Mean of those that are numbers."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
