"""What a run found, in words: the last lines in the terminal.

No sentence claims more than its interval bears. The defense that lowers a leak most has an interval
that holds for the best of all that the run compares, and one seed shows nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privbench.boards.findings import beside
from privbench.boards.matrix import COSTLY, aim_text, costly, without_number
from privbench.boards.notes import by_chance
from privbench.ground.text import several, shown
from privbench.results.statistics import FEWEST_SEEDS, FEWEST_TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.panel import Aim, DefenseRow, Panel
    from privbench.results.statistics import Difference

#: Questions at most, and characters of a sentence.
MOST, LONGEST = 4, 400
#: Characters of the defenses that a sentence names.
_ROOM = 320
#: Names of attacks that have not met a defense.
_NAMED = 3


def closing(board: Leaderboard) -> list[str]:
    """Return a sentence or two for each target and question, as plain text.

    With defenses it is about the one that lowers the strongest attack the most, of those that do
    not cost too much accuracy, otherwise about the strongest attack. A second one names other
    defenses that change a leak beyond chance, in either direction, with what they cost.
    """
    found = board.foremost
    asked = [(panel, aim) for panel in found for aim in panel.aims]
    many = len(asked) > 1
    places = {(panel.dataset, panel.target) for panel in found}
    met = {(id(panel), aim): _usable(panel, aim) for panel, aim in asked}
    among = sum(aim in row.changes for panel, aim in asked for row in panel.rows[1:])
    told: list[list[str]] = []
    for panel, aim in asked:
        of = (say(panel, aim, met[id(panel), aim], among) for say in (_told, _others))
        where = f"{_where(panel, aim, adversary=len(places) < len(found))}: " if many else ""
        if sentences := [shown(f"{where}{text}", LONGEST) for text in of if text]:
            told.append(sentences)
    more = [f"{len(told) - MOST} more findings are on the board."] if len(told) > MOST else []
    return [*(text for sentences in told[:MOST] for text in sentences), *more]


def _where(panel: Panel, aim: Aim, *, adversary: bool) -> str:
    told = f"{panel.target} on {panel.dataset}, {aim_text(aim)}"
    return f"{told} ({panel.adversary})" if adversary else told


def _usable(panel: Panel, aim: Aim) -> list[DefenseRow]:
    """Defenses that are compared with none, and do not cost too much accuracy."""
    return [row for row in panel.rows[1:] if aim in row.changes and not costly(row)]


def _told(panel: Panel, aim: Aim, met: Sequence[DefenseRow], among: int) -> str:
    none, *others = panel.rows
    if met:
        best = _best(panel, aim, met)
        told = _compared(best, aim, panel, among=among) + _strongest(best, aim)
        told += _not_met(best, aim)
    elif aim in none.worst:
        told = _alone(none, aim, panel)
        if any(aim in row.changes for row in others):
            told += f"; every defense costs more than {100 * COSTLY:g} points of accuracy"
    else:
        return ""
    if left := without_number(panel, aim):
        told += f"; {len(left)} of {len(others)} defenses have no valid number"
    return f"{told}{_draft(panel)}."


def _draft(panel: Panel) -> str:
    seeds = len(panel.seeds)
    draft = f"; {several(seeds, 'seed')}: draft" if seeds < FEWEST_SEEDS else ""
    return draft + (", nothing is shown yet" if seeds == 1 else "")


def _best(panel: Panel, aim: Aim, met: Sequence[DefenseRow]) -> DefenseRow:
    sign = 1 if panel.higher[aim] else -1
    return min(met, key=lambda row: (sign * row.changes[aim].difference.mean, row.title))


def _others(panel: Panel, aim: Aim, met: Sequence[DefenseRow], among: int) -> str:
    """Every other defense that changes the leak beyond chance: what grew first, most first."""
    best = _best(panel, aim, met) if met else None
    worse = 1 if panel.higher[aim] else -1
    moved = []
    for row in panel.rows[1:]:
        if row is best or aim not in row.changes:
            continue
        change = row.changes[aim].difference.best_of(among)
        few = change.low is None or change.seeds < FEWEST_TESTED
        if few or _unclear(change) or abs(change.mean) < 0.0005:  # noqa: PLR2004
            continue
        moved.append((worse * change.mean < 0, -abs(change.mean), row, change))
    moved.sort(key=lambda one: (*one[:2], one[2].title))
    told: list[str] = []
    way = ""
    for at, (_, _, row, change) in enumerate(moved):
        ways = "lowered" if change.mean < 0 else "raised"
        name = f"{ways} by {row.title} by" if ways != way else f"{row.title} by"
        name += f" {abs(change.mean):.3f}{_plus_minus(change)} ({_beside(row, aim)})"
        if told and len("; ".join([*told, name])) > _ROOM:
            told.append(f"and by {len(moved) - at} more, see the board")
            break
        told.append(name)
        way = ways
    return f"the {panel.metric[aim]} is {', '.join(told)}{_draft(panel)}." if told else ""


def _beside(row: DefenseRow, aim: Aim) -> str:
    """The attack that was compared, what the defense costs, and which judges are missing."""
    told = ["/".join(row.changes[aim].attacks)]
    if row.loss is not None:
        points = round(-100 * row.loss.mean, 1) + 0.0  # no -0.0
        told.append(f"accuracy {points:+.1f} points{_plus_minus(row.loss, 100, 1)}")
    if row.not_met.get(aim):
        told.append("not met by all its judges")
    return "; ".join(told)


def _compared(row: DefenseRow, aim: Aim, panel: Panel, among: int) -> str:
    """What the defense changes, as the best of so many, and what it costs."""
    change, attacks = row.changes[aim].difference.best_of(among), row.changes[aim].attacks
    what = f"the {panel.metric[aim]} of {'/'.join(attacks)}"
    same = not change.mean and change.low == change.high
    if not same and _unclear(change):
        told = f"no difference shown: {row.title} changes {what} by {change.mean:+.3f}"
        return f"{told}{_plus_minus(change)}"
    verb = "lowers" if change.mean < 0 else "raises"
    by = f"{verb} {what} by {abs(change.mean):.3f}{_plus_minus(change)}"
    if change.seeds == 1:
        by += " on this seed"
    if abs(change.mean) < 0.0005:  # noqa: PLR2004 - it would be shown as 0
        by = f"changes {what} by less than 0.001"
    told = f"{row.title} {f'leaves {what} as it is' if same else by}"
    if row.loss is None:
        return told
    points = f"{abs(100 * row.loss.mean):.1f}{_plus_minus(row.loss, 100, 1)} points of accuracy"
    if _unclear(row.loss):
        return f"{told}; its cost, {points}, may be none"
    if abs(row.loss.mean) < 0.0005:  # noqa: PLR2004 - it would be shown as 0
        return f"{told} and changes accuracy by less than 0.1 points"
    return f"{told} and {'costs' if row.loss.mean > 0 else 'gains'} {points}"


def _strongest(row: DefenseRow, aim: Aim) -> str:
    """Which attack is strongest against the defense, if it is another than the one compared."""
    worst = row.worst.get(aim)
    if worst is None or worst.attack in row.changes[aim].attacks:
        return ""
    return f"; strongest against it is {worst.attack}, {worst.estimate.value:.3f}"


def _not_met(row: DefenseRow, aim: Aim) -> str:
    """Which attacks that judge the defense have not met it."""
    missing = row.not_met.get(aim, [])
    if not missing:
        return ""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return f"; not met by {', '.join(missing[:_NAMED])}{more}, by which it must be judged"


def _alone(none: DefenseRow, aim: Aim, panel: Panel) -> str:
    """What the strongest attack reaches without a defense."""
    worst = none.worst[aim]
    name = worst.attack
    value, low, high = worst.estimate.value, worst.estimate.low, worst.estimate.high
    spot = none.strongest(aim)
    if worst.seeds == 1:  # one seed has no interval over seeds, but one over its rows
        low, high = (value if end is None else end for end in spot.over.headline.row_intervals[0])
    null = spot.over.null.mean if spot.over.null.numbers else None
    reached = f"{panel.metric[aim]} {value:.3f}"
    if not 1 < worst.seeds < FEWEST_TESTED:  # one seed has the interval of its rows
        reached += f" [{low:.3f}, {high:.3f}]"
    reached += "" if null is None else f", {null:.3f} on the null victim"
    if words := beside(panel, aim, spot):
        reached += f" ({'; '.join(words)})"
    if panel.higher[aim] and panel.metric[aim] == "AUC" and high < min(0.5, null or 0.5):
        reached += ", below chance: are its scores reversed? (privbench check)"
    hidden = value <= (by_chance(spot.over, none.counting(aim)) or -math.inf)  # as the page says it
    if hidden or (null is not None and low <= null <= high):
        return f"no leak shown: without a defense {name} has {reached}"
    return f"without a defense {name} reaches {reached}"


def _unclear(difference: Difference) -> bool:
    """Whether its interval holds no difference; one seed has no interval."""
    return difference.low is not None and difference.high is not None and (
        difference.low <= 0 <= difference.high
    )  # fmt: skip


def _plus_minus(difference: Difference, unit: float = 1, digits: int = 3) -> str:
    if difference.low is None or difference.high is None or difference.seeds < FEWEST_TESTED:
        return ""
    return f" ± {unit * (difference.high - difference.low) / 2:.{digits}f}"
