"""The page of a board in markdown: the answer, a front, and folded details, at most 150 lines.

Equal results give identical bytes. Whatever has no place here is in the csv file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from privbench.boards import findings, findings_ranking, matrix, notes, panel_groups
from privbench.boards.checks import refuse_unfit
from privbench.ground.text import markdown, several, shown
from privbench.results import audits
from privbench.results.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.matrix import Table
    from privbench.boards.panel import Panel
    from privbench.results.record import Record

#: A page has at most this many lines.
LONGEST = 150
#: Matrices and rankings are cut to no fewer rows, before whole panels are left out.
_FEWEST_ROWS = 8
_MOST_SPLITS = 8


def page(
    board: Leaderboard,
    title: str,
    *,
    again: Sequence[str] = (),
    figure: str = "",
    table: str = "",
) -> str:
    """Render results as the page of a board.

    Args:
        board: with results of any status.
        title: of the board.
        again: what ``privbench run`` is given to make the results; empty for unknown.
        figure: path of the picture of the front, relative to the page; "" for none.
        table: path of the csv file, relative to the page; "" for none.

    Raises:
        BadInputError: if the results cannot stand on one board; see ``checks``.
    """
    refuse_unfit(board.records)
    found = board.foremost
    told = findings.findings(found)
    head = [f"# {markdown(title)}", ""]
    head += [*told[:1], "", *findings_ranking.ranking(found)] if told else []
    if figure:
        head += [f"![Worst-case leak against utility, one point a defense]({quote(figure)})", ""]
    others = [f"- {line}" for line in told[1:]]
    head += _folded("Other victims and questions", [*others, ""] if others else [])
    if len(found) < len(board.panels):
        head += ["Numbers against the naive adversary are in the csv file.", ""]
    head += _folded("Data, adversary, code and settings", protocol(board))
    tail = [*notes.controls(board), *notes.troubles(board), *notes.reproduce(board, again, table)]
    body = _fitted(found, LONGEST - len(head) - len(tail))
    return "\n".join([*head, *body, *tail]) + "\n"


def _folded(what: str, lines: Sequence[str]) -> list[str]:
    """Lines that a reader opens; [] for none. The last of them is empty."""
    start = [f"<details><summary>{what}</summary>", ""]
    return [*start, *lines, "</details>", ""] if lines else []


def _fitted(found: Sequence[Panel], room: int) -> list[str]:
    """Matrices and rankings of as many panels, with as many rows, as there is room for."""
    groups = panel_groups.grouped(found)
    matrices = [
        matrix.tables(group[0]) if len(group) == 1 else [panel_groups.group_table(group)]
        for group in groups
    ]
    rankings = [matrix.ranking(group[0]) for group in groups]
    all_tables = [*(one for many in matrices for one in many), *filter(None, rankings)]
    most = max((len(table.body) for table in all_tables), default=0)
    for kept in range(len(groups), -1, -1):
        for rows in range(most, min(most, _FEWEST_ROWS) - 1, -1):
            lines = _panels(groups[:kept], matrices, rankings, rows)
            if kept < len(groups):
                left = "; ".join(panel_groups.group_title(group) for group in groups[kept:])
                told = markdown(shown(left, notes.LONG))
                lines += [f"In the csv file only: {told}.", ""]
            if len(lines) <= room:
                return lines
    return []


def _panels(
    groups: Sequence[Sequence[Panel]],
    matrices: Sequence[Sequence[Table]],
    rankings: Sequence[Table | None],
    rows: int,
) -> list[str]:
    lines: list[str] = []
    for group, tables in zip(groups, matrices, strict=False):
        for table in tables:
            lines += [f"## {markdown(table.title)}", "", *table.lines(rows), ""]
        for told in panel_groups.group_remarks(group):
            lines += [told, ""]
    lines = _folded("Every attack", [*lines, matrix.LEGEND, ""] if lines else [])
    ranked: list[str] = []
    for group, ranking in zip(groups, rankings, strict=False):
        if ranking is not None:
            ranked += [f"## Ranking: {markdown(group[0].title)}", "", *ranking.lines(rows), ""]
    found = [panel for group in groups for panel in group]
    if ranked:
        ranked += [matrix.RANKED, ""]
        ranked += [audits.LEGEND, ""] if any(map(matrix.claims_epsilon, found)) else []
    lines += _folded("Rankings with intervals and costs", ranked)
    rated = [
        panel
        for group, tables, ranking in zip(groups, matrices, rankings, strict=False)
        if any(map(matrix.shows_rates, filter(None, [*tables, ranking])))
        for panel in group
    ]
    if rated:
        spots = (spot for panel in rated for line in panel.rows for spot in line.spots.values())
        lines += [notes.low_fpr(r for spot in spots if spot.rates for r in spot.records), ""]
    return lines


def protocol(board: Leaderboard) -> list[str]:
    """Return the data, the adversary and the code in words, as lines of markdown."""
    records, found, bound = board.records, board.foremost, board.bound
    seeds = len({seed for panel in found for seed in panel.seeds})
    cut = dict.fromkeys(
        _split(record) for record in sorted(records, key=lambda one: one.trial)
        if not record.cell.control
    )  # fmt: skip
    words = {word for record in records for word in record.cell.adversary.split(", ")}
    knows = [_ADVERSARIES[name] for name in _ADVERSARIES if name in words]
    told = [*knows, "No attack sees the truth: the harness scores all answers."]
    if bound is not None:
        draft = any(len(panel.seeds) < FEWEST_SEEDS for panel in found)
        told.append(f"Each defense stands at its strongest setting that loses at most {bound:g} of "
                    f"accuracy on reference rows, {_MEASURED if draft else _SHOWN}")  # fmt: skip
        if most := [panel.most_lost for panel in found if panel.most_lost is not None]:
            told.append(f"On other rows the loss may be up to {max(most):.2f} (upper end of the "
                        "widest 95 % interval at the settings shown).")  # fmt: skip
    given = f"{several(seeds, 'seed')}. {' '.join(sorted(cut)[:_MOST_SPLITS])}"
    short = {name for one in found for name in (one.target, *(of.name for of in one.attacks))}
    asked = [record.cell.attack for record in records if not record.cell.control]
    attacks = {attack.label for attack in asked if attack.label != attack.name}
    named = {
        "Targets in full": {record.cell.target.label for record in records} - short,
        "Attacks with settings that are not their defaults": attacks - short,
    }
    full = [f"{start}: {', '.join(sorted(of))}." for start, of in named.items() if of]
    lines = [given, " ".join(told), *notes.code(board), *map(markdown, full), notes.probes(board)]
    return [text for line in lines if line for text in (line, "")]


_MEASURED = "chosen for each seed."
_SHOWN = (
    "by the upper end of Student's 95 % interval over seeds; stronger settings are tried until one "
    "is above."
)
_ADVERSARIES = {
    "adaptive": "The adaptive adversary knows the defense and trains its shadows under it.",
    "naive": "The naive adversary does not know of the defense.",
    "white-box": "The white-box adversary is adaptive and also has gradients and weights.",
}


def _split(record: Record) -> str:
    given = record.cell.protocol
    sizes = [
        f"{given[name]:,} {what}"
        for name, what in (
            ("members", "members, which train the victim"), ("nonmembers", "nonmembers"),
            ("pool", "rows that the adversary has"), ("reference", "reference rows"),
            ("test", "test rows"),
        )
        if isinstance(given.get(name), int) and given[name]
    ]  # fmt: skip
    named = given.get("name", "default")
    protocol = "" if named == "default" else f", protocol {named}"
    told = f": {', '.join(sizes)}" if sizes else ""
    return markdown(f"{record.cell.dataset.label}{protocol}{told}.")
