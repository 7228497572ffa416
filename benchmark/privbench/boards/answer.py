"""What a board found, in sentences: two for each victim and question, the largest leak first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.boards import matrix, notes, panel_groups
from privbench.ground.text import markdown, shown
from privbench.results.statistics import FEWEST_TESTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Panel, Spot

_MOST = 8
#: Controls that a leak of other games than membership is compared with, and what they are.
_BESIDE = {
    "controls.pixels": "the same attack on the rows themselves",
    "controls.untrained": "on an untrained encoder",
}


def findings(found: Sequence[Panel]) -> list[str]:
    """Return what leaks and what protects, in numbers: a paragraph of markdown a panel and aim."""
    told = [text for _, _, text in answers(found)]
    more = len(told) - _MOST
    return told[:_MOST] + ([f"{more} more in the tables."] if more > 0 else [])


def answers(found: Sequence[Panel]) -> list[tuple[list[Panel], Aim, str]]:
    """Return group, aim and text of what can be said, the largest leak first.

    Of the first group that comes first which its defenses claim to protect.
    """
    groups = panel_groups.grouped(found)
    asked = [
        (group, aim)
        for group in groups
        for aim in group[0].aims
        if any(attack.aim == aim for attack in group[0].own)
    ]
    asked.sort(key=lambda one: one[0] is not groups[0] or not _claimed(one[0][0], one[1]))
    return [(group, aim, text) for group, aim in asked if (text := _finding(group, aim))]


def _claimed(panel: Panel, aim: Aim) -> bool:
    """Whether any defense claims to protect against this; so it is if there is none."""
    spots = [spot for line in panel.rows[1:] for at, spot in line.spots.items() if at.aim == aim]
    return not all(spot.over.outside for spot in spots) or len(panel.rows) == 1


def _finding(group: Sequence[Panel], aim: Aim) -> str:
    panel = group[0]
    if len(group) > 1:
        few = min(group, key=lambda one: len(one.seeds)).seeds_told
        about = f"{panel_groups.group_title(group)}, {matrix.aim_text(aim)}, {few}"
        told = _of_victims(group, aim)
    else:
        about = f"{panel.target} on {panel.dataset}, {matrix.aim_text(aim)} ({panel.adversary})"
        about += f", {panel.seeds_told}"
        told = _of_panel(panel, aim)
    return f"**{markdown(about)}**: {markdown(told)}" if told else ""


def _of_victims(group: Sequence[Panel], aim: Aim) -> str:
    """Where the strongest attack finds most and least; "" if nowhere."""
    first, parts = group[0], panel_groups.differing(group)
    best = [(own_best(panel, aim), panel) for panel in group]
    leaks = {panel_groups.named(panel, parts): spot.value for spot, panel in best if spot}
    if not leaks:
        return ""
    sign = 1 if first.higher[aim] else -1
    most = max(leaks.values(), key=lambda leak: sign * leak)
    least = min(leaks.values(), key=lambda leak: sign * leak)
    start = f"the strongest attack reaches {first.metric[aim]} {panel_groups.at(leaks, most)}"
    seen = [one for panel in group for one in notes.smallest(panel)]
    if seen and most <= min(seen):
        start = f"no leak is shown: {start}, where {min(seen):.3f} could have been seen"
    return f"{start}. Least is {panel_groups.at(leaks, least)}."


def _of_panel(panel: Panel, aim: Aim) -> str:
    none, *defenses = panel.rows
    sign = 1 if panel.higher[aim] else -1
    known = [(sign * leak, line) for line in defenses if (leak := line.leak(aim)) is not None]
    if aim not in none.worst:
        if not known:
            return ""
        (least, best), (most, worst) = min(known, key=_leak), max(known, key=_leak)
        told = f"{panel.metric[aim]} {sign * most:.3f} with {worst.title}{_epsilon(worst)}"
        told += (
            f", {sign * least:.3f} with {best.title}{_epsilon(best)}" if best is not worst else ""
        )
        return f"{told}."
    more = []
    if known:
        more = [_range(panel, aim, known), _beyond_chance(panel, aim, known)]
    elif not defenses and aim in none.low:
        low = none.low[aim]
        share = f"{100 * low.estimate.value:.1f} %"
        more = [f"at 1 % of false alarms {low.attack} finds {share} of the members"]
    if left := matrix.without_number(panel, aim):
        names = shown(", ".join(line.title for line in left), notes.LONG)
        what = _what([line for _, line in known] + left)
        more.append(
            f"{len(left)} of {len(known) + len(left)} {what} have no number that counts (‡ or ¶, "
            f"see Controls): {names}"
        )
    second = "; ".join(filter(None, more))
    asked = sum(attack.aim == aim and bool(spot.values) for attack, spot in none.spots.items())
    among = f", the strongest of {asked} attacks" if asked > 1 else ", the only attack asked"
    told = f"without a defense {undefended(panel, aim, among)}."
    return f"{told} {second[0].upper()}{second[1:]}." if second else told


def undefended(panel: Panel, aim: Aim, among: str = "") -> str:
    """Return what the strongest attack reaches without a defense, beside what needs no victim.

    Args:
        panel: with a number for ``none``.
        aim: of the attack.
        among: what stands behind its name.
    """
    worst = panel.rows[0].worst[aim]
    value = worst.estimate.value
    told = f"{panel.metric[aim]} {value:.3f} by {worst.attack}{among}"
    spot = next(s for a, s in panel.rows[0].spots.items() if (a.aim, a.name) == (aim, worst.attack))
    if (seen := notes.smallest_leak(spot.over)) and value <= seen:
        return f"no leak is shown: {told}, where {seen:.3f} could have been seen"
    words = beside(panel, aim, spot)
    return told + (f" ({'; '.join(words)})" if words else "")


def beside(panel: Panel, aim: Aim, spot: Spot) -> list[str]:
    """Return what belongs beside a leak of another game than membership, in words.

    Which numbers are the larger leak, and what is reached without the victim.

    Args:
        panel: of the attack.
        aim: of the attack.
        spot: the attack on the undefended victim.
    """
    told = [] if panel.higher[aim] else ["less leaks more"]
    if panel.constant[aim]:
        told.append(f"the {panel.constant[aim]}")
    elif (chance := panel.chance[aim]) and chance.name == "majority":
        told.append(f"the largest class {chance.value:.3f}")
    return told + [
        f"{what} {of.mean:.3f}"
        for part, what in _BESIDE.items()
        if (of := spot.over.main(part)).numbers
    ]


def _epsilon(line: DefenseRow) -> str:
    claimed, _, audited = line.epsilons
    return "" if claimed == "–" else f" (ε {claimed} claimed, audited: {audited})"


def _what(lines: Sequence[DefenseRow]) -> str:
    names = {line.name for line in lines}
    if len(names) == len(lines):
        return "defenses"
    return f"settings of {next(iter(names))}" if len(names) == 1 else "settings"


def _beyond_chance(panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]]) -> str:
    """How many of the ranked defenses change a leak beyond chance, in which direction."""
    if len(panel.seeds) < FEWEST_TESTED:
        return "too few seeds to tell a difference from chance"
    judged = [line for _, line in known if aim not in line.not_met]
    if not judged:
        return ""
    certain = [line for line in judged if (line.title, aim) in panel.certain]
    more = sum(panel.leaks_more(line.changes[aim], aim) for line in certain)
    less = len(certain) - more
    told = f"{less} of {len(judged)} {_what(judged)} leak less than none beyond chance"
    return told + (f", {more} leak more" if more else "")


def _range(panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]]) -> str:
    """The defense with the least leak of those that do not cost too much, and that with the most.

    Args:
        panel: with a number for ``none``.
        aim: of the leaks.
        known: leaks times the sign, with their defenses; at least one.
    """
    sign = 1 if panel.higher[aim] else -1
    none_leak = sign * panel.rows[0].worst[aim].estimate.value
    usable = [one for one in known if not matrix.costly(one[1])]
    judged = [one for one in usable if aim not in one[1].not_met]
    whole = [one for one in judged if not partial(panel, one[1], aim)]
    best = None
    if not usable:
        told = f"every defense costs more than {matrix.COSTLY:g} of accuracy"
    else:
        least, best = min(whole or judged or usable, key=_leak)
        told = f"least with {best.title}, {sign * least:.3f}{_cost(best)}"
        if round(least, 3) >= round(none_leak, 3):
            told, best = "none of the defenses leaks less", None
        if not judged:
            told = f"no defense has met all attacks that judge it at full strength; {told}"
    most, worst = max(known, key=_leak)
    if worst is not best and round(most, 3) > round(none_leak, 3):
        told += f"; most with {worst.title}, {sign * most:.3f}"
    return told


def _cost(line: DefenseRow) -> str:
    if line.loss is None:
        return ""
    if abs(line.loss.mean) < 0.0005:  # noqa: PLR2004 - 0.000
        return ", at no cost in accuracy"
    verb = "costs" if line.loss.mean > 0 else "gains"
    return f", which {verb} {abs(line.loss.mean):.3f} of accuracy"


def _leak(known: tuple[float, DefenseRow]) -> tuple[float, str]:
    """By how much a line leaks; its name where two leak equally."""
    return known[0], known[1].title


def partial(panel: Panel, line: DefenseRow, aim: Aim) -> bool:
    """Return whether an attack that has a number without a defense has not met it."""
    return any(
        attack.aim == aim and spot.values and attack not in line.spots
        for attack, spot in panel.rows[0].spots.items()
    )


@dataclass(frozen=True)
class Best:
    """The strongest attack that an adversary ran itself without a defense.

    Attributes:
        value: its number.
        attack: its name.
        rate: the best rate at 1 % FPR of all of them; None if unknown.
    """

    value: float
    attack: str
    rate: float | None


def own(panel: Panel, aim: Aim) -> list[tuple[float, str, AttackColumn, Spot]]:
    """Return the attacks that an adversary ran itself without a defense, those that count first.

    Each with its number times -1 if a higher one is stronger: sorted, the strongest comes first.
    """
    sign = -1 if panel.higher[aim] else 1
    spots = panel.rows[0].spots
    known = [
        (sign * made.value, attack.name, attack, spots[attack])
        for attack in panel.own
        if attack.aim == aim and attack in spots and (made := spots[attack].estimate)
    ]
    return sorted(known, key=lambda one: (bool(one[3].mark), *one[:2]))


def own_best(panel: Panel, aim: Aim) -> Best | None:
    """Return the strongest of them; None if none counts."""
    known = [one for one in own(panel, aim) if not one[3].mark]
    if not known:
        return None
    value, name, _, _ = known[0]
    rates = [spot.rate.value for *_, spot in known if spot.rate]
    return Best(abs(value), name, max(rates, default=None))
