"""A new attack against the victims of published results: which defenses it moves, by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.ground.text import several, shown
from privbench.results.seeds import Seeds
from privbench.results.statistics import FEWEST_TESTED, paired, significant, worst_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.results.record import CellRecord, Record
    from privbench.results.statistics import Difference

#: Published files round to six digits; one row of 10,000 is 1e-4.
_SAME = 2e-6


@dataclass(frozen=True)
class Victim:
    """A target with a defense, and what published attacks reach there.

    Attributes:
        name: data, target and defense.
        records: published results of one game, of all attacks and seeds.
    """

    name: str
    records: Sequence[Record]

    @property
    def attacks(self) -> dict[str, list[Record]]:
        """Attack -> its results."""
        of: dict[str, list[Record]] = {}
        for one in self.records:
            of.setdefault(one.cell.attack.label, []).append(one)
        return of


@dataclass(frozen=True)
class Outcome:
    """What a new attack reaches against a victim, beside the published ones.

    Attributes:
        victim: name.
        attack: label of the new one.
        best: label of the strongest published attack; "" if there is none on these seeds.
        published, ours: mean of the headline metric over the seeds that both have.
        difference: ours minus published, paired by seed; None if there is no common seed.
        metric: its name.
        higher: whether a higher number is a stronger attack.
        mark: why the new attack's numbers do not count, as boards mark it; "" if they do.
        best_mark: why those of the published one do not, if none counts.
        seeds: with a number, of how many that were run.
        reason: why there are no numbers; "" if there are.
        other: whether the victim differs from the published one: its test accuracy does.
    """

    victim: str
    attack: str
    best: str = ""
    published: float = 0.0
    ours: float = 0.0
    difference: Difference | None = None
    metric: str = ""
    higher: bool = True
    mark: str = ""
    best_mark: str = ""
    seeds: tuple[int, int] = (0, 0)
    reason: str = ""
    other: bool = False


def victims(records: Iterable[Record], game: str, seeds: int | None = None) -> list[Victim]:
    """Return the victims of results about which attacks of a game were asked.

    Positive controls are left out, and so is what adversaries found that know less than the
    adaptive one, or other data or targets.

    Args:
        records: of any status and game.
        game: of the new attack.
        seeds: the first so many; None for all.
    """
    found: dict[str, list[Record]] = {}
    for one in records:
        cell, knows = one.cell, one.cell.knows
        if one.status != "ok" or cell.control or cell.game != game:
            continue
        if not knows.adaptive or knows.target or knows.dataset:
            continue
        found.setdefault(_of(cell), []).append(one)
    made = []
    for mine in found.values():
        kept = sorted({one.seed for one in mine})[:seeds]
        cell = mine[0].cell
        name = f"{cell.defense} × {cell.target.label} × {cell.data}"
        made.append(Victim(name, [one for one in mine if one.seed in kept]))
    return sorted(made, key=lambda one: one.name)


def _of(cell: CellRecord) -> str:
    """What a victim and a question about it depend on, as text."""
    return cell.model_copy(
        update={"attack": cell.target, "adversary": "", "access": "", "needs": "",
                "decides_at": "", "knows": cell.knows.model_copy(update={"white_box": False})}
    ).model_dump_json()  # fmt: skip


def outcome(
    victim: Victim, ours: Sequence[Record], mark: Callable[[Record], str] = lambda _: ""
) -> Outcome:
    """Compare the results of one new attack with the strongest published one.

    That one is chosen by its mean over all seeds, so it is biased upward where attacks are close:
    the new attack must beat it all the same. Attacks whose numbers do not count are asked only
    where none counts.

    Args:
        victim: with published results.
        ours: of the new attack, one for each seed.
        mark: why a result does not count, as boards mark it; "" if it does.
    """
    first = next((one for one in ours if one.status == "failed"), ours[0])
    made = Outcome(victim.name, first.cell.attack.label)
    board = victim.records[0].board
    found = Seeds(ours).headline.by_seed
    if not found or board is None:
        why = first.reason or "no seed has a number"
        return Outcome(made.victim, made.attack, reason=f"{first.status}: {why}")
    column, higher = board.columns[0], board.higher
    marks = {name: next(filter(None, map(mark, of)), "") for name, of in victim.attacks.items()}
    published = {name: {seed: value for seed, value in Seeds(of).headline.by_seed.items()
                        if seed in found}
                 for name, of in victim.attacks.items()}  # fmt: skip
    whole = {name: of for name, of in published.items() if len(of) == len(found)}
    best = worst_case(
        {name: of for name, of in whole.items() if not marks[name]} or whole,
        higher=higher, low=column.low, high=column.high,
    )  # fmt: skip
    if best is None:
        return Outcome(made.victim, made.attack, reason="no published attack has these seeds")
    theirs = published[best.attack]
    return Outcome(
        made.victim, made.attack, best.attack, _mean(theirs), _mean(found), paired(found, theirs),
        column.heading, higher, mark=next(filter(None, map(mark, ours)), ""),
        best_mark=marks[best.attack], seeds=(len(found), len(ours)), other=_other(victim, ours),
    )  # fmt: skip


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


def _other(victim: Victim, ours: Iterable[Record]) -> bool:
    known = {one.seed: one.utility.get("test_accuracy") for one in victim.records}
    pairs = [(known.get(one.seed), one.utility.get("test_accuracy"))
             for one in ours if one.status == "ok"]  # fmt: skip
    return any(a != b and (a is None or b is None or abs(a - b) > _SAME) for a, b in pairs)


def table(found: Sequence[Outcome]) -> str:
    """Return the outcomes as a table for a terminal: a line each."""
    certain = _certain(found)
    lines = [("victim", "strongest published", "", "new attack", "", "difference")]
    for i, one in enumerate(found):
        name = f"{one.victim} ≠" if one.other else one.victim
        if one.difference is None:
            lines.append((name, "–", "", one.attack, "", one.reason))
            continue
        change = one.difference
        told = f"{change.mean:+.3f}"
        if change.low is not None and change.high is not None:
            told += f" [{change.low:+.3f}, {change.high:+.3f}]"
        told += " †" if i in certain else ""
        ran, asked = one.seeds
        told += f" ({ran} of {asked} seeds)" if ran < asked else ""
        lines.append((
            name, one.best, f"{one.published:.3f} {one.best_mark}".rstrip(),
            one.attack, f"{one.ours:.3f} {one.mark}".rstrip(), told,
        ))  # fmt: skip
    lines = [tuple(shown(part, 60) for part in line) for line in lines]  # type: ignore[misc]
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _certain(found: Sequence[Outcome]) -> set[int]:
    """The outcomes that count and are stronger beyond chance, corrected for all of them.

    None is weaker beyond chance: it is compared with the luckiest of all published attacks.
    """
    counted = {i: one.difference for i, one in enumerate(found) if one.difference and not one.mark}
    return {i for i in significant(counted) if _gain(counted[i], found[i].higher) > 0}


def told(found: Sequence[Outcome]) -> list[str]:
    """Return in words which defenses a new attack moves."""
    certain = _certain(found)
    ran = [(i in certain, _gain(one.difference, one.higher), one)
           for i, one in enumerate(found) if one.difference and not one.mark]  # fmt: skip
    tested = any(one.difference and one.difference.p is not None for _, _, one in ran)
    up = [(gain, one) for sure, gain, one in ran if gain > 0 and (sure or not tested)]
    beyond = " beyond chance (†, Holm)" if tested else ""
    of = several(len(ran), "victim")
    if len({one.victim for _, _, one in ran}) < len(ran):
        of = f"{several(len(ran), 'pair')} of attack and victim"
    lines = [f"More than the strongest published attack{beyond}: {len(up)} of {of}."]
    if not tested and ran:
        lines.append(f"With fewer than {FEWEST_TESTED} seeds nothing is shown.")
    if up:
        named = (f"{one.victim} ({gain:+.3f})" for gain, one in up)
        lines.append(f"Moved: {', '.join(named)}.")
    if marked := [one for one in found if one.mark or one.best_mark]:
        lines.append(f"‡, ¶: {several(len(marked), 'line')} with an attack whose numbers do not "
                     "count: its board says why (`privbench leaderboard FOLDER`).")  # fmt: skip
    if others := [one for one in found if one.other]:
        lines.append(f"≠: {several(len(others), 'victim')} of other accuracy than published: "
                     "trained by other code, libraries or another processor.")  # fmt: skip
    return lines


def _gain(change: Difference, higher: bool) -> float:
    """By how much the new attack is stronger."""
    return change.mean if higher else -change.mean
