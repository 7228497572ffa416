"""The top of a page: the answer in two sentences, and a ranking that fits a screen.

Both are about the panel where the largest leak is; the other panels have a line each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards import matrix, notes, panel_groups
from privbench.ground.text import markdown, shown
from privbench.results.statistics import FEWEST_TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.panel import Aim, DefenseRow, Panel

#: Rows of the ranking, and characters of a line of it.
ROWS, WIDTH = 10, 100
#: Characters of what a row is about, of an attack beside it, and of an attack without.
_LONG, _ATTACK, _NAME = 36, 26, 30
_MOST = 8
_RATE = "TPR at 1 % FPR"


def findings(found: Sequence[Panel]) -> list[str]:
    """Return what leaks and what protects, in numbers: a paragraph of markdown a panel and aim."""
    told = [text for _, _, text in _told(found)]
    more = len(told) - _MOST
    return told[:_MOST] + ([f"{more} more in the tables."] if more > 0 else [])


def _told(found: Sequence[Panel]) -> list[tuple[list[Panel], Aim, str]]:
    """Group, aim and text of what can be said, the largest leak first."""
    asked = [
        (group, aim)
        for group in panel_groups.grouped(found)
        for aim in group[0].aims
        if any(attack.aim == aim for attack in group[0].own)
    ]
    return [(group, aim, text) for group, aim in asked if (text := _finding(group, aim))]


def _finding(group: Sequence[Panel], aim: Aim) -> str:
    if len(group) > 1:
        return panel_groups.group_finding(group, aim)
    (panel,) = group
    none, *defenses = panel.rows
    none_leak, metric = none.leak(aim), panel.metric[aim]
    sign = 1 if panel.higher[aim] else -1
    known = [(sign * leak, line) for line in defenses if (leak := line.leak(aim)) is not None]
    about = f"{panel.target} on {panel.dataset}, {matrix.aim_text(aim)} ({panel.adversary})"
    told = f"**{about}, {panel.seeds_told}**: "
    if none_leak is None:
        if not known:
            return ""
        (least, best), (most, worst) = min(known, key=_leak), max(known, key=_leak)
        told += f"{metric} {sign * most:.3f} with {worst.title}"
        told += f", {sign * least:.3f} with {best.title}" if best is not worst else ""
        return f"{_but_bold(told)}."
    told += f"without a defense {metric} {none_leak:.3f} by {none.worst[aim].attack}"
    told += f" (the {panel.constant[aim]})" if panel.constant[aim] else ""
    more = []
    if known:
        more = [_range(known, sign * none_leak, sign, aim), _beyond_chance(panel, aim, known)]
    if left := matrix.without_number(panel, aim):
        names = shown(", ".join(line.title for line in left), notes.LONG)
        have = f"{len(left)} of {len(defenses)} defenses have no valid number (‡ or ¶): {names}"
        more.append(have)
    second = "; ".join(more)
    return _but_bold(f"{told}.{f' {second[0].upper()}{second[1:]}.' if second else ''}")


def _beyond_chance(panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]]) -> str:
    """How many defenses change a leak beyond chance, in which direction."""
    if len(panel.seeds) < FEWEST_TESTED:
        return "too few seeds to tell a difference from chance"
    one = len({line.name for _, line in known}) == 1 < len(known)
    what = f"settings of {known[0][1].name}" if one else "defenses"
    certain = [line for line in panel.rows if (line.title, aim) in panel.certain]
    more = sum(panel.leaks_more(line.changes[aim], aim) for line in certain)
    told = f"{len(certain) - more} of {len(known)} {what} leak less than none beyond chance"
    return told + (f", {more} leak more" if more else "")


def _range(known: Sequence[tuple[float, DefenseRow]], none_leak: float, sign: int, aim: Aim) -> str:
    """The defense with the least leak of those that do not cost too much, and that with the most.

    Args:
        known: leaks times the sign, with their defenses; at least one.
        none_leak: the leak without a defense, times the sign.
        sign: 1 if a higher number is a stronger attack, else -1.
        aim: of the leaks.
    """
    told, best = f"every defense costs more than {matrix.COSTLY:g} of accuracy", None
    usable = [one for one in known if not matrix.costly(one[1])]
    if usable and all(aim in line.not_met for _, line in usable):
        told = "none of the defenses has met all attacks that judge it"
    elif usable := [one for one in usable if aim not in one[1].not_met]:
        least, best = min(usable, key=_leak)
        cost = f", which costs {best.loss.mean:.3f} of accuracy" if best.loss else ""
        told = f"least with {best.title}, {sign * least:.3f}{cost}"
    most, worst = max(known, key=_leak)
    if worst is not best and round(most, 3) > round(none_leak, 3):
        told += f"; most with {worst.title}, {sign * most:.3f}"
    return told


def _leak(known: tuple[float, DefenseRow]) -> tuple[float, str]:
    """By how much a line leaks; its name where two leak equally."""
    return known[0], known[1].title


def _but_bold(text: str) -> str:
    """Markdown of a text, in which the part between ``**`` stays bold."""
    _, bold, rest = text.split("**", 2)
    return f"**{markdown(bold)}**{markdown(rest)}"


def ranking(found: Sequence[Panel]) -> list[str]:
    """Return the ranking that belongs to the first finding, as lines; [] if there is none.

    Its rows are defenses; without any, victims; of a single victim, attacks.
    """
    for group, aim, _ in _told(found):
        first = group[0]
        if len(group) > 1:
            made = _victims(group, aim)
        elif len(first.rows) > 1:
            made = _defenses(first, aim)
        else:
            made = _attacks(first, aim)
        return [*made.lines(ROWS), ""]
    return []


def _victims(group: Sequence[Panel], aim: Aim) -> matrix.Table:
    sign = 1 if group[0].higher[aim] else -1
    parts = panel_groups.differing(group)
    known = [one for one in group if aim in one.rows[0].worst]
    ordered = sorted(known, key=lambda one: -sign * one.rows[0].worst[aim].estimate.value)
    body = [
        [_cut(panel_groups.named(one, parts)), *_worst(one.rows[0], aim),
         "–" if (tested := one.rows[0].accuracy) is None else f"{tested.value:.3f}"]
        for one in ordered
    ]  # fmt: skip
    heads = [", ".join(parts), _metric(group[0], aim), "by", _RATE, "test accuracy"]
    return _table(heads, body, "rows")


def _defenses(panel: Panel, aim: Aim) -> matrix.Table:
    lines = matrix.least_leak_first(panel)
    body, marks = [], {
        "†": "differs from none beyond chance.",
        "‖": "an attack that judges it has not met it, so it is not ranked.",
    }  # fmt: skip
    for line in lines:
        number, by, rate = _worst(line, aim)
        number += " †" * ((line.title, aim) in panel.certain)
        lost = "–" if line is panel.rows[0] or not line.loss else f"{line.loss.mean:+.3f}"
        name = _cut(line.title) + " ‖" * bool(line.not_met)
        body.append([name, number, by, rate, lost])
    note = " ".join(f"{mark}: {what}" for mark, what in marks.items() if any(
        mark in cell for row in body[:ROWS] for cell in row[:2]))  # fmt: skip
    if any(map(matrix.costly, lines[:ROWS])):
        note += f" Defenses that lose more than {matrix.COSTLY:g} of accuracy stand last."
    heads = ["defense", _metric(panel, aim), "by", _RATE, "accuracy lost"]
    return _table(heads, body, "defenses", note.strip())


def _attacks(panel: Panel, aim: Aim) -> matrix.Table:
    sign = 1 if panel.higher[aim] else -1
    spots = panel.rows[0].spots
    known = [
        (-sign * made.value, attack.name, attack)
        for attack in panel.own
        if attack.aim == aim and attack in spots and (made := spots[attack].estimate)
    ]
    body = [
        [_cut(attack.name, _NAME), matrix.spot_text(spots[attack], panel),
         matrix.reads(attack) or "–", matrix.rate_text(spots[attack], panel)]
        for _, _, attack in sorted(known)
    ]  # fmt: skip
    return _table(["attack", markdown(panel.metric[aim]), "reads", _RATE], body, "attacks")


def _worst(line: DefenseRow, aim: Aim) -> list[str]:
    """The strongest attack's number, the attack, and the best rate at 1 % FPR."""
    if aim not in line.worst:
        return ["–", "–", "–"]
    found = line.worst[aim]
    rate = f"{line.low[aim].estimate.value:.3f}" if aim in line.low else "–"
    return [f"{found.estimate.value:.3f}", _cut(found.attack, _ATTACK), rate]


def _metric(panel: Panel, aim: Aim) -> str:
    return markdown(f"worst {panel.metric[aim]}")


def _cut(title: str, longest: int = _LONG) -> str:
    """Markdown of a name, of which both ends stay: settings stand at the end."""
    if len(title) > longest:
        title = f"{title[: longest // 2]}…{title[longest // 2 + 1 - longest :]}"
    return markdown(shown(title, longest))


def _table(heads: list[str], body: list[list[str]], what: str, note: str = "") -> matrix.Table:
    """A table of these columns; without rates at 1 % FPR if there are none."""
    at = heads.index(_RATE)
    if all(row[at] == "–" for row in body):
        heads, *body = ([*row[:at], *row[at + 1 :]] for row in (heads, *body))
    return matrix.Table("", heads, body, what, note=note)
