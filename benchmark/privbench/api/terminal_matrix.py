"""The matrix of a run for a terminal: attacks against defenses, the strongest attack marked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from privbench.boards.matrix import aim_text, least_leak_first, strongest_first, with_error
from privbench.ground.text import several, terminal
from privbench.results.statistics import FEWEST_SEEDS, FEWEST_TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Panel

#: What marks mean in all tables of a terminal.
MARKS = {
    "‡": "‡: not to be trusted, see Controls on the board",
    "¶": "¶: missed a planted leak",
    "°": "°: outside what the defense claims to protect",
}
_NAME = 30  # characters that names of rows get at most
_HEAD = 13  # characters after which a heading is broken
_BETWEEN = 2  # characters between columns


def shown_as_matrix(board: Leaderboard) -> set[str]:
    """Games that several attacks play against several defenses: a matrix shows them best.

    Not where cells differ in something that no matrix shows, such as the preset.
    """
    every = [(panel, aim) for panel in board.panels for aim in panel.aims]
    wide = {aim[0] for panel, aim in every
            if len(panel.rows) > 1 and len(_attacks(panel, aim)) > 1}  # fmt: skip
    mixed = {
        attack.game
        for panel, _ in every
        for line in panel.rows
        for attack, spot in line.spots.items()
        if spot.state == "several" or len({record.cell.preset for record in spot.records}) > 1
    }
    return wide - mixed


def matrices(board: Leaderboard, shown: set[str], width: int) -> list[Table]:
    """Return the matrices of some games, several where columns do not fit.

    Args:
        board: with results of any games.
        shown: names of games.
        width: width of the terminal in characters.
    """
    return [
        table
        for panel in board.panels
        for aim in panel.aims
        if aim[0] in shown and _attacks(panel, aim)
        for table in _tables(panel, aim, width)
    ]


def _attacks(panel: Panel, aim: Aim) -> list[AttackColumn]:
    return [attack for attack in panel.own if attack.aim == aim]


def _tables(panel: Panel, aim: Aim, width: int) -> list[Table]:
    attacks = strongest_first(panel, _attacks(panel, aim))
    attacks = [a for a in attacks if any(a in line.spots for line in panel.rows)]
    lines = least_leak_first(panel)
    across = len(lines) <= len(attacks)  # defenses are columns
    cells = [[_cell(line, attack, panel) for line in lines] for attack in attacks]
    accuracies = [
        Text(with_error(line.accuracy, len(line.accuracies), FEWEST_TESTED)) for line in lines
    ]
    attack_names, defense_names = [a.name for a in attacks], [line.title for line in lines]
    if across:
        names, heads = [*attack_names, "test accuracy"], defense_names
        columns = [[*column, end] for column, end in zip(zip(*cells, strict=True), accuracies,
                                                        strict=True)]  # fmt: skip
    else:
        names, heads = defense_names, [*attack_names, "test accuracy"]
        columns = [*cells, accuracies]
    what = "attack" if across else "defense"
    told = [_broken(terminal(head)) for head in heads]
    wide = max(part.cell_len for texts in columns for text in texts for part in text.split("\n"))
    wide = max(wide, *(len(part) for head in told for part in head.split("\n")))
    named = min(_NAME, max(len(what), *map(len, names)), max(8, width - wide - 2 * _BETWEEN))
    fit = max(1, (width - named - _BETWEEN) // (wide + _BETWEEN))
    made: list[Table] = []
    for at in range(0, len(told), fit):
        some = [*zip(told, columns, strict=True)][at : at + fit]
        table = Table(
            title=None if made else Text(terminal(_title(panel, aim))), title_justify="left",
            caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, _BETWEEN, 0, 0),
            show_edge=False, pad_edge=False,
        )  # fmt: skip
        table.add_column(what, width=named, overflow="fold")
        for head, _ in some:
            table.add_column(Text(head), justify="right", width=wide, overflow="fold")
        for row in zip(names, *(texts for _, texts in some), strict=True):
            table.add_row(Text(terminal(row[0])), *row[1:])
        made.append(table)
    texts = [text.plain for column in columns for text in column]
    made[-1].caption = Text(terminal(_legend(texts, panel, aim)))
    return made


def _broken(head: str) -> str:
    """A heading in short lines, broken after its words.

    >>> _broken("talos (adversarial_factor=3)").splitlines()
    ['talos', '(adversarial_', 'factor=3)']
    """
    lines = [""]
    for word in re.findall(r"[^-_=, ]+[-_=, ]*", head):
        if lines[-1] and len((lines[-1] + word).rstrip()) > _HEAD:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _title(panel: Panel, aim: Aim) -> str:
    seeds = len(panel.seeds)
    draft = " (draft)" if seeds < FEWEST_SEEDS else ""
    rates = any(spot.rates for line in panel.rows for a, spot in line.spots.items() if a.aim == aim)
    numbers = panel.metric[aim] + (" and TPR at 1 % FPR in percent" if rates else "")
    numbers += "" if panel.higher[aim] else ", lower is a stronger attack"
    asked = aim_text(aim).capitalize()
    return f"{asked}: {numbers} ({panel.title}, {several(seeds, 'seed')}{draft})"


def _cell(line: DefenseRow, attack: AttackColumn, panel: Panel) -> Text:
    """What an attack reaches against a defense, marked where no other reaches more."""
    spot = line.spots.get(attack)
    if spot is None or spot.state != "ok":
        return Text("–" if spot is None or spot.state == "missing" else spot.state)
    worst = line.worst.get(attack.aim)
    strongest = worst is not None and worst.attack == attack.name
    told = with_error(spot.estimate, len(spot.values), FEWEST_TESTED) + "*" * strongest
    told += spot.mark + "°" * spot.over.outside
    if spot.rate is not None:
        apart = "\n" if "±" in told else " "
        told += f"{apart}{100 * spot.rate.value:.1f}"
    few = len(spot.values) < len(panel.seeds)
    told += f"\n{several(len(spot.values), 'seed')}" if few else ""
    return Text(told, style="bold" if strongest else "")


def _legend(texts: Sequence[str], panel: Panel, aim: Aim) -> str:
    """What marks mean, and what no leak would reach."""
    meaning = {
        "*": "*: the strongest attack on the defense",
        "±": "±: half of the 95 % interval over seeds",
        **MARKS,
    }
    told = [words for mark, words in meaning.items() if any(mark in text for text in texts)]
    spots = [spot for line in panel.rows for a, spot in line.spots.items() if a.aim == aim]
    nulls = [spot.over.null.mean for spot in spots if spot.over.null.numbers]
    if nulls:
        told.append(f"on null victims {min(nulls):.3f} to {max(nulls):.3f}")
    told += [str(panel.constant[aim])] if panel.constant.get(aim) else []
    return "; ".join([*told, "more on the board"])
