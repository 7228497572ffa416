"""What a board found, in sentences: two for each victim and question, the largest leak first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from privbench.boards import matrix, notes, panel_groups
from privbench.ground.text import markdown, shown
from privbench.results.statistics import ERROR, FEWEST_TESTED, paired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Panel, Spot
    from privbench.results.seeds import Series

_MOST = 8
#: Controls that a leak of other games than membership is compared with, and what they are.
_BESIDE = {
    "controls.pixels": "the same attack on the rows themselves",
    "controls.untrained": "on an untrained encoder",
}


def findings(found: Sequence[Panel]) -> list[str]:
    """Return what leaks and what protects, in numbers: a paragraph of markdown a panel and aim."""
    told = [text for _, _, text in by_group(found)]
    more = len(told) - _MOST
    return told[:_MOST] + ([f"{more} more in the tables."] if more > 0 else [])


def by_group(found: Sequence[Panel]) -> list[tuple[list[Panel], Aim, str]]:
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
    sign = 1 if first.higher[aim] else -1
    leaks: dict[str, float] = {}
    best: list[tuple[float, AttackColumn, Spot]] = []
    for panel in group:
        for attack, spot in own(panel, aim)[:1]:
            if spot.estimate and not spot.mark:
                leaks[panel_groups.named(panel, parts)] = spot.estimate.value
                best.append((sign * spot.estimate.value, attack, spot))
    if not best:
        return ""
    _, attack, spot = max(best, key=lambda one: one[:2])
    most = max(leaks.values(), key=lambda leak: sign * leak)
    least = min(leaks.values(), key=lambda leak: sign * leak)
    who = "the strongest attack"
    if len({one.name for _, one, _ in best}) == 1:
        who = f"{attack.name}, {_among(len(own(first, aim)))},"
    told = f"{who} reaches {first.metric[aim]} {panel_groups.at(leaks, most)}"
    attacks = sum(not spot.mark for panel in group for _, spot in own(panel, aim))
    if (chance := notes.by_chance(spot.over, attacks)) and most <= chance:
        told = f"no leak is shown: {told}, {_reached(attacks)} {chance:.3f}"
    if words := beside(first, aim, spot):
        told += f" ({'; '.join(words)})"
    told = _no_more_than_untrained(first, aim, spot) + told
    return f"{told}. Least is {panel_groups.at(leaks, least)}."


def _among(attacks: int) -> str:
    return f"the strongest of {attacks} attacks" if attacks > 1 else "the only attack asked"


def _reached(attacks: int) -> str:
    return f"where chance gives {f'the best of {attacks}' if attacks > 1 else 'it'} up to"


def _of_panel(panel: Panel, aim: Aim) -> str:
    none, *defenses = panel.rows
    sign = 1 if panel.higher[aim] else -1
    known = [(sign * leak, line) for line in defenses if (leak := line.leak(aim)) is not None]
    left = matrix.without_number(panel, aim)
    if aim not in none.worst:
        return _without_none(panel, aim, known, left) if known or left else ""
    more = []
    if known:
        more = [_range(panel, aim, known), _beyond_chance(panel, aim, known)]
    elif not defenses and aim in none.low:
        low = none.low[aim]
        share = f"{100 * low.estimate.value:.1f} %"
        more = [f"at 1 % of false alarms {low.attack} finds {share} of the members"]
    more.append(_uncounted(left, [line for _, line in known]))
    second = "; ".join(filter(None, more))
    told = f"without a defense {undefended(panel, aim, f', {_among(none.counting(aim))}')}."
    return f"{told} {second[0].upper()}{second[1:]}." if second else told


def _uncounted(left: Sequence[DefenseRow], known: Sequence[DefenseRow]) -> str:
    """Which defenses have no number that counts; "" for none."""
    if not left:
        return ""
    names = shown(", ".join(line.title for line in left), notes.LONG)
    have = "has" if len(left) == 1 else "have"
    every = [*left, *known]
    return (
        f"{len(left)} of {len(every)} {_what(every)} {have} no number that counts (‡ or ¶, see "
        f"Controls): {names}"
    )


def _without_none(
    panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]], left: Sequence[DefenseRow]
) -> str:
    """What is said where the undefended victim has no number."""
    ran = any(a.aim == aim and spot.values for a, spot in panel.rows[0].spots.items())
    told = "no number without a defense counts (‡ or ¶, see Controls)" if ran else (
        "nothing ran without a defense")  # fmt: skip
    if known:
        sign = 1 if panel.higher[aim] else -1
        ends = [max(known, key=_leak), min(known, key=_leak)][: len(known)]
        told += f"; {panel.metric[aim]} " + ", ".join(
            f"{sign * leak:.3f} with {line.title} by {line.worst[aim].attack}{_epsilon(line)}"
            f"{_accuracy(line)}"
            for leak, line in ends
        )
        if all(aim in line.not_met for _, line in known):
            told += ". No defense has met all attacks that judge it at full strength"
    return "; ".join(filter(None, [told, _uncounted(left, [line for _, line in known])])) + "."


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
    spot, attacks = panel.rows[0].strongest(aim), panel.rows[0].counting(aim)
    if (chance := notes.by_chance(spot.over, attacks)) and value <= chance:
        return f"no leak is shown: {told}, {_reached(attacks)} {chance:.3f}"
    words = beside(panel, aim, spot)
    told += f" ({'; '.join(words)})" if words else ""
    return f"{_no_more_than_untrained(panel, aim, spot)}{told}"


def _no_more_than_untrained(panel: Panel, aim: Aim, spot: Spot) -> str:
    """Say that training is not shown to leak; "" if it is, or if no untrained encoder was asked."""
    found, untrained = spot.over.headline, spot.over.main("controls.untrained")
    change = paired(found.by_seed, untrained.by_seed)
    if change is None:
        return ""
    ahead = change.mean > 0 if panel.higher[aim] else change.mean < 0
    beyond = _apart(found, untrained) if change.p is None else change.p < ERROR
    return "" if ahead and beyond else "no leak by training is shown: "


def _apart(one: Series, other: Series) -> bool:
    """Whether the intervals over rows do not meet, in each seed that both have."""
    ours, theirs = (dict(zip(of.seeds, of.row_intervals, strict=True)) for of in (one, other))
    return not any(_meet(*ours[seed], *theirs[seed]) for seed in ours.keys() & theirs)


def _meet(a: float | None, b: float | None, c: float | None, d: float | None) -> bool:
    """Whether the intervals from a to b and from c to d may have a number in common."""
    if a is None or b is None or c is None or d is None:
        return True
    return a <= d and c <= b


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


def _accuracy(line: DefenseRow) -> str:
    return f" at an accuracy of {line.accuracy.value:.3f}" if line.accuracy else ""


def _what(lines: Sequence[DefenseRow]) -> str:
    names = {line.name for line in lines}
    if len(names) == len(lines):
        return "defenses"
    return f"settings of {next(iter(names))}" if len(names) == 1 else "settings"


def _beyond_chance(panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]]) -> str:
    """How many defenses change a leak beyond chance, in which direction."""
    if len(panel.seeds) < FEWEST_TESTED:
        return "too few seeds to tell a difference from chance"
    judged = [line for _, line in known if aim not in line.not_met]
    some = judged or [line for _, line in known]
    certain = [line for line in some if (line.title, aim) in panel.certain]
    moved = Counter(  # by the attack that is compared, by the worst case
        (panel.leaks_more(line.changes[aim], aim), panel.worst_moves(line, aim)) for line in certain
    )
    less, more = moved[False, -1], moved[True, 1]
    of = f"{less} of {len(some)} {_what(some)}"
    if 0 < len(judged) < len(known):
        of = f"{less} of the {len(some)} {_what(some)} that met all their judges"
    told = f"{of} {'leaks' if less == 1 else 'leak'} less than none beyond chance"
    told += "" if judged else ", by the attacks of this page"
    if more:
        verb = "leaks" if more == 1 else "leak"
        told += f"; {more} {verb} more than none beyond chance, by the attack that is compared (†)"
    if alone := len(certain) - less - more:
        told += "; 1 has a †, which its worst case does not bear out" if alone == 1 else (
            f"; {alone} have a †, which their worst cases do not bear out")  # fmt: skip
    return told


def _range(panel: Panel, aim: Aim, known: Sequence[tuple[float, DefenseRow]]) -> str:
    """The defense with the least leak of those that do not cost too much, and that with the most.

    Args:
        panel: with a number for ``none``.
        aim: of the leaks.
        known: leaks times the sign, with their defenses; at least one.
    """
    sign = 1 if panel.higher[aim] else -1
    none_leak = round(sign * panel.rows[0].worst[aim].estimate.value, 3)
    usable = [one for one in known if not matrix.costly(one[1])]
    judged = [one for one in usable if aim not in one[1].not_met]
    pool = judged or usable
    whole = [one for one in pool if not matrix.missed(panel, one[1], aim)]
    best = None
    if not usable:
        told = f"every defense costs more than {matrix.COSTLY:g} of accuracy"
    else:
        least, best = min(whole or pool, key=_leak)
        told = f"least with {best.title}, {sign * least:.3f}{_cost(best)}"
        told += "" if whole else ", which not all of these attacks met"
        if round(least, 3) >= none_leak:
            fewer = any(round(leak, 3) < none_leak for leak, _ in known)
            among = f" that met these attacks and costs at most {matrix.COSTLY:g} of accuracy"
            told, best = f"no defense{among if fewer else ''} leaks less", None
        if not judged:
            told = f"no defense has met all attacks that judge it at full strength; {told}"
    most, worst = max(known, key=_leak)
    if worst is not best and round(most, 3) > none_leak:
        told += f"; most with {worst.title}, {sign * most:.3f}"
    return told


def _cost(line: DefenseRow) -> str:
    loss = line.loss
    if loss is None:
        return ""
    if loss.seeds == 1:
        none = abs(loss.mean) < 0.0005  # noqa: PLR2004 - 0.000
        return ", at no cost in accuracy on this seed" if none else (
            f", whose cost in accuracy on this seed is {loss.mean:+.3f}")  # fmt: skip
    if loss.low is not None and loss.high is not None and loss.low <= 0 <= loss.high:
        if loss.low == loss.high:
            return ", at no cost in accuracy"
        half = loss.high - loss.mean
        return f", whose cost in accuracy, {loss.mean:+.3f} ± {half:.3f}, may be none"
    if abs(loss.mean) < 0.0005:  # noqa: PLR2004 - 0.000
        return ", at no cost in accuracy"
    verb = "costs" if loss.mean > 0 else "gains"
    return f", which {verb} {abs(loss.mean):.3f} of accuracy"


def _leak(known: tuple[float, DefenseRow]) -> tuple[float, str]:
    """By how much a line leaks; its name where two leak equally."""
    return known[0], known[1].title


def own(panel: Panel, aim: Aim) -> list[tuple[AttackColumn, Spot]]:
    """Return the attacks that an adversary ran itself without a defense, the strongest first.

    Those that do not count, with a mark, come last.
    """
    sign = -1 if panel.higher[aim] else 1
    spots = panel.rows[0].spots
    known = [
        (bool(spots[attack].mark), sign * made.value, attack)
        for attack in panel.own
        if attack.aim == aim and attack in spots and (made := spots[attack].estimate)
    ]
    return [(attack, spots[attack]) for *_, attack in sorted(known)]
