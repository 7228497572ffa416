"""The matrix of a panel, defenses against attacks, and its ranking, as markdown tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.ground.text import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Panel, Spot
    from privbench.measure.games.metrics import Estimate
    from privbench.results.statistics import Change, Difference, Worst

#: A table has at most this many columns.
WIDEST = 10

LEGEND = (
    "Numbers are means over seeds ± half of Student's 95 % interval; one seed has none. **Bold**: "
    "the strongest attack of its access. `=`: every seed has the numbers that it has without a "
    "defense, so the attack sees no difference. °: outside what the defense claims to protect. "
    "‡: not to be trusted (see Controls), ¶: missed a planted leak; neither is bold nor ranked. "
    "–: not run."
)

#: A defense that loses more accuracy stands below the others: noise would win the ranking.
COSTLY = 0.1

RANKED = (
    "Ordered by the **worst case**, the attack with the best mean; defenses that lose more than "
    f"{COSTLY:g} of accuracy stand last, and below them, with ‖, those that an attack which judges "
    "them has not met: they are not ranked. In brackets: Student's 95 % interval, whose end on the "
    "weak side is that of the best of so many attacks (Bonferroni). One seed has no interval, and "
    "the best of its attacks is biased upward. †: the attack that is strongest with and without "
    "the defense, on other seeds, finds less, or more where it says so (paired, 5 % after Holm's "
    "correction over the table, rates by themselves); in brackets which, if it is not the worst. "
    "§: the defense also learns from the rows by which settings are chosen, so its operating point "
    "is optimistic. Training is relative to no defense."
)


def with_error(estimate: Estimate | None, seeds: int, fewest: int = 2) -> str:
    """A mean with half of its interval, if there are at least that many seeds.

    >>> from privbench.measure.games.metrics import Estimate
    >>> with_error(Estimate(0.7, 0.6, 0.8), 3), with_error(Estimate(0.7, 0.6, 0.8), 1)
    ('0.700 ±0.100', '0.700')
    """
    if estimate is None:
        return "–"
    told = f"{estimate.value:.3f}"
    return told if seeds < fewest else f"{told} ±{(estimate.high - estimate.low) / 2:.3f}"


@dataclass(frozen=True)
class Table:
    """A table that can be cut to fewer rows.

    Attributes:
        title: heading above it; "" for that of the section.
        heads: of the columns, as markdown.
        body: rows of cells, as markdown.
        what: its rows are, as ``defenses``.
        foot: rows that are never cut.
        note: below it.
    """

    title: str
    heads: list[str]
    body: list[list[str]]
    what: str
    foot: tuple[list[str], ...] = ()
    note: str = ""

    def lines(self, rows: int) -> list[str]:
        """Return it with at most so many rows, and how many were left out."""
        cut = len(self.body) - rows
        made = [_row(self.heads), "|" + "---|" * len(self.heads)]
        made += map(_row, (*self.body[:rows], *self.foot))
        told = [f"{cut} more {self.what} are in the csv file."] if cut > 0 else []
        told += [self.note] if self.note else []
        return [*made, "", " ".join(told)] if told else made


def tables(panel: Panel) -> list[Table]:
    """The matrix of a panel: one for all games if it is narrow enough, otherwise one for each aim.

    Attacks are rows where there are more of them than columns fit, or a single defense. Those that
    do the same for the adaptive adversary are left out.
    """
    own = panel.own
    alone = len(panel.rows) == 1 and len(own) > 1
    together = len(own) <= WIDEST - 2 and not alone
    aims = dict.fromkeys(attack.aim for attack in own)
    parts = [own] if together else [[a for a in own if a.aim == aim] for aim in aims]
    lines = least_leak_first(panel)

    def title(attacks: Sequence[AttackColumn]) -> str:
        return panel.title + (f" ({aim_text(attacks[0].aim)})" if len(parts) > 1 else "")

    return [
        (_upright if len(attacks) <= WIDEST - 2 and not alone else _turned)(
            panel, lines, attacks, title(attacks)
        )
        for attacks in parts
        if attacks
    ]


def _upright(
    panel: Panel, lines: Sequence[DefenseRow], attacks: Sequence[AttackColumn], title: str
) -> Table:
    """Defenses are rows."""
    heads = ["defense", *(attack_text(panel, attack) for attack in attacks), "test accuracy"]
    body = [
        [markdown(line.title), *(spot_text(line.spots.get(a), panel) for a in attacks),
         with_error(line.accuracy, len(line.accuracies))]
        for line in lines
    ]  # fmt: skip
    return Table(title, heads, body, "defenses")


def _turned(
    panel: Panel, lines: Sequence[DefenseRow], attacks: Sequence[AttackColumn], title: str
) -> Table:
    """Attacks are rows, see ``strongest_first``; the first defenses are columns.

    A few defenses have a column of rates at 1 % FPR each.
    """
    across = lines[: WIDEST - 1]
    aim = attacks[0].aim
    rated = 2 * len(lines) < WIDEST and any(_rates(line, attacks) for line in lines)
    heads = [markdown(f"attack ({panel.metric[aim]})")]
    for line in across:
        heads += [markdown(line.title), markdown(f"{line.title}: TPR at 1 % FPR")][: 1 + rated]
    body, foot = [], ["test accuracy"]
    for a in strongest_first(panel, attacks):
        row = [markdown(f"{a.name}{_needs(a)}")]
        for line in across:
            spot = line.spots.get(a)
            row += [spot_text(spot, panel), rate_text(spot, panel)][: 1 + rated]
        body.append(row)
    for line in across:
        foot += [with_error(line.accuracy, len(line.accuracies)), ""][: 1 + rated]
    more = len(lines) - len(across)
    note = f"{more} more defenses are in the csv file." if more else ""
    return Table(title, heads, body, "attacks", (foot,), note)


def shows_rates(table: Table) -> bool:
    """Whether it shows rates at 1 % FPR."""
    return any("TPR at 1" in head for head in table.heads)


def _rates(line: DefenseRow, attacks: Sequence[AttackColumn]) -> bool:
    return any(line.spots[attack].rates for attack in attacks if attack in line.spots)


def rate_text(spot: Spot | None, panel: Panel) -> str:
    """Return the true-positive rate at 1 % FPR over seeds, as markdown."""
    if spot is None or not spot.rates:
        return "–"
    told = with_error(spot.rate, len(spot.rates))
    if spot.rates_at_most is not None:
        told = f"0 (at most {spot.rates_at_most:.2f})"
    return told + _few(len(spot.rates), panel)


def strongest_first(panel: Panel, attacks: Iterable[AttackColumn]) -> list[AttackColumn]:
    """Return attacks by what they are after: the strongest of each access, then the others.

    Both by strength without a defense. So a table that is cut keeps the strongest of each access.
    """
    none = panel.rows[0]

    def place(attack: AttackColumn) -> tuple[int, float, str]:
        spot = none.spots.get(attack)
        sign = 1 if panel.higher[attack.aim] else -1
        value = spot.estimate.value if spot and spot.estimate else -sign * math.inf
        return panel.aims.index(attack.aim), -sign * value, attack.name

    ordered = sorted(attacks, key=place)
    leading: dict[tuple[Aim, str], AttackColumn] = {}
    for one in ordered:
        leading.setdefault((one.aim, one.needs), one)
    leaders = {*leading.values()}
    return sorted(ordered, key=lambda one: (panel.aims.index(one.aim), one not in leaders))


def ranking(panel: Panel) -> Table | None:
    """The ranking of a panel by worst case; None if there is no defense to rank."""
    aims, low = ranked_by(panel)
    if not aims:
        return None
    claims = claims_epsilon(panel)
    heads = ["defense"]
    for aim in aims:
        heads.append(f"{aim_text(aim)}: worst {panel.metric[aim]}")
        heads += [f"{aim_text(aim)}: worst TPR at 1 % FPR"] if aim in low else []
    heads += ["test accuracy", "accuracy lost", "training", "a query"]
    heads += ["ε claimed / nominal / audited"] if claims else []
    none = panel.rows[0]
    body = []
    for line in least_leak_first(panel):
        row = [markdown(line.title) + " §" * line.optimistic + " ‖" * bool(line.not_met)]
        for aim in aims:
            row.append(_worst(panel, line, aim, line.worst))
            if (line.title, aim) in panel.certain:
                change = line.changes[aim]
                row[-1] += _dagger(line.worst[aim], change, more=panel.leaks_more(change, aim))
            if aim in low:
                row.append(_worst(panel, line, aim, line.low))
                if (line.title, aim) in panel.low_certain:
                    change = line.low_changes[aim]
                    row[-1] += _dagger(line.low[aim], change, more=change.difference.mean > 0)
        row += [with_error(line.accuracy, len(line.accuracies)),
                "–" if line is none else _signed(line.loss), _times(line.training, none.training),
                "–" if line.query is None else f"{line.query * 1e3:.3f} ms"]  # fmt: skip
        row += [" / ".join(map(markdown, line.epsilons))] if claims else []
        body.append(row)
    more = len({attack.aim for attack in panel.attacks}) - len(aims)
    note = f"{more} more of what attacks are after are in the csv file." if more else ""
    return Table("", [markdown(head) for head in heads], body, "defenses", note=note)


def _dagger(worst: Worst, change: Change, *, more: bool) -> str:
    """The mark of a difference to ``none``, with the attacks if another one is the worst."""
    told = " † more" if more else " †"
    named = worst.attack not in change.attacks
    return told + (f" ({markdown(', '.join(change.attacks))})" if named else "")


def ranked_by(panel: Panel) -> tuple[list[Aim], set[Aim]]:
    """The aims by which a panel is ranked, and those that also show rates at 1 % FPR.

    There are as many as columns fit; rates come last, and only where all defenses have them.
    """
    known = [aim for aim in panel.aims if any(aim in line.worst for line in panel.rows)]
    if len(panel.rows) < 2:  # noqa: PLR2004
        return [], set()
    room = WIDEST - 5 - claims_epsilon(panel)
    aims = known[:room]
    rated = [
        aim for aim in aims
        if all(aim in line.low for line in panel.rows if aim in line.worst)
    ]  # fmt: skip
    return aims, {*rated[: room - len(aims)]}


def claims_epsilon(panel: Panel) -> bool:
    """Whether a defense of this panel names an epsilon."""
    return any(text != "–" for line in panel.rows for text in line.epsilons)


def least_leak_first(panel: Panel) -> list[DefenseRow]:
    """``none``, then the least leak first; by the first aim, then by the next.

    Defenses that lose more than ``COSTLY`` of accuracy come last, and below them those that are
    not ranked, since an attack that judges them has not met them.
    """

    def place(line: DefenseRow) -> tuple[float, ...]:
        leaks = [(line.leak(aim), 1 if panel.higher[aim] else -1) for aim in panel.aims]
        return tuple(2.0 if leak is None else sign * leak for leak, sign in leaks)

    none, *others = panel.rows
    return [none, *sorted(others, key=lambda line: (
        bool(line.not_met), costly(line), place(line), line.title))]  # fmt: skip


def costly(line: DefenseRow) -> bool:
    """Whether a defense loses so much accuracy that it is not ranked before others."""
    return line.loss is not None and not line.loss.at_most(COSTLY)


def without_number(panel: Panel, aim: Aim) -> list[DefenseRow]:
    """Return the defenses that attacks with this aim met, none of which counts."""
    return [
        line
        for line in panel.rows[1:]
        if aim not in line.worst
        and any(attack.aim == aim and spot.values for attack, spot in line.spots.items())
    ]


def _worst(panel: Panel, line: DefenseRow, aim: Aim, known: Mapping[Aim, Worst]) -> str:
    if aim not in known:
        return "–"
    found = known[aim]
    made = found.estimate
    told = f"{made.value:.3f}" + (f" [{made.low:.3f}, {made.high:.3f}]" if found.seeds > 1 else "")
    told += _few(found.seeds, panel)
    if sum(attack.aim == aim for attack in line.spots) > 1:
        told += f" {markdown(found.attack)}"
    if left := missed(panel, line, aim):
        asked = sum(a.aim == aim and bool(s.values) for a, s in panel.rows[0].spots.items())
        told += f" (met {asked - len(left)} of {asked} attacks)"
    return told


def missed(panel: Panel, line: DefenseRow, aim: Aim) -> list[AttackColumn]:
    """Return the attacks with a number without a defense that have not met this one."""
    none = panel.rows[0].spots.items()
    return [a for a, spot in none if a.aim == aim and spot.values and a not in line.spots]


def spot_text(spot: Spot | None, panel: Panel) -> str:
    """Return what stands in the matrix for one attack on one defense, as markdown."""
    if spot is None or spot.state == "missing":
        return "–"
    if spot.state != "ok":
        return spot.state
    told = "=" if spot.same else with_error(spot.estimate, len(spot.values))
    told = f"**{told}**" if spot.strongest else told
    told += _few(len(spot.values), panel)
    return told + (" °" if spot.over.outside else "") + (f" {spot.mark}" if spot.mark else "")


def _few(seeds: int, panel: Panel) -> str:
    return f" ({seeds} of {len(panel.seeds)} seeds)" if seeds < len(panel.seeds) else ""


def _signed(difference: Difference | None) -> str:
    if difference is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} ±{(difference.high - difference.low) / 2:.3f}"


def _times(seconds: float | None, none: float | None) -> str:
    if seconds is None or not none:
        return "–"
    return f"{seconds / none:.1f}×"


def attack_text(panel: Panel, attack: AttackColumn) -> str:
    """Return the heading of an attack with its metric and access, as markdown."""
    return markdown(f"{attack.name} ({panel.metric[attack.aim]}){_needs(attack)}")


def _needs(attack: AttackColumn) -> str:
    return f" [{told}]" if (told := reads(attack)) else ""


def reads(attack: AttackColumn) -> str:
    """Return the access that an attack reads, in words; "" for none."""
    told = attack.needs.lower().replace("+", ", ")
    return "" if told == "none" else told


def aim_text(aim: Aim) -> str:
    """Return what attacks are after in words."""
    game, guessed = aim
    return f"{game} of {guessed}" if guessed else game


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
