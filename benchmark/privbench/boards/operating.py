"""Operating points: the strongest setting of each defense that costs little utility.

A setting is chosen by its accuracy on reference rows, compared with ``none``. The choice gets
nothing else: it sees neither test rows nor what any attack found.

With ``FEWEST_SEEDS`` seeds or more, one setting is chosen for all of them, and its loss is shown to
be within the bound: by Student's 95 % interval over seeds (``shown_within``). A draft has no such
interval, so each seed has its own choice, by the loss that was measured (``strongest``). Reference
rows are few: ``OperatingPoint.most`` says how much may be lost on others.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privbench.results.statistics import FEWEST_SEEDS, paired

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from privbench.results.record import MethodRecord, Record

#: A loss equal to the bound is within it, although .9 - .88 is above .02 in floating point.
_ROUNDING = 1e-9
#: Why there is no operating point where all settings cost too much.
NO_SETTING = "no setting qualifies"
#: Why there is none where the interval of the weakest setting's loss reaches beyond the bound.
NOT_SHOWN = "no setting is shown to qualify"
_NO_NONE = "`none` has no accuracy on reference rows"
_NO_ACCURACY = "no setting has an accuracy on reference rows"


@dataclass(frozen=True)
class Setting:
    """All that a choice may know of a setting, for one seed.

    Attributes:
        rank: settings of a higher rank protect more.
        accuracy: of its victim on reference rows, in [0, 1].
    """

    rank: float
    accuracy: float


def strongest(settings: Iterable[Setting], none: float, bound: float) -> Setting | None:
    """Return the setting of the highest rank that loses at most ``bound``; None if all lose more.

    Args:
        settings: of one defense and seed.
        none: accuracy of ``none`` on the same rows.
        bound: largest loss of accuracy, in [0, 1].

    >>> weak, strong = Setting(1.0, 0.89), Setting(2.0, 0.88)
    >>> strongest([weak, strong], 0.9, 0.02) == strong, strongest([weak, strong], 0.9, 0.0)
    (True, None)
    """
    fit = [one for one in settings if none - one.accuracy <= bound + _ROUNDING]
    return max(fit, key=lambda one: one.rank, default=None)


@dataclass
class Family:
    """The settings of one defense; other hyperparameters than its strength are equal.

    Attributes:
        name: of the defense, with the hyperparameters that differ from the defaults.
        strength_field: hyperparameter that makes it stronger; "" if it has one setting only.
        settings: rank -> records of all seeds, attacks and adversaries.
        values: rank -> value of the hyperparameter, as text.
    """

    name: str
    strength_field: str
    settings: dict[float, list[Record]] = field(default_factory=lambda: defaultdict(list))
    values: dict[float, str] = field(default_factory=dict)

    def named(self, rank: float) -> str:
        """Return ``weight=3``, or the name of a defense with one setting."""
        return f"{self.strength_field}={self.values[rank]}" if self.strength_field else self.name


@dataclass
class Group:
    """What can be compared: one dataset, protocol, target and set of sensitive attributes.

    Attributes:
        dataset, target: as in the headings of a board.
        reference: size of the part of reference rows, as in the protocol.
        none: records of ``none``.
        families: of the defenses, ordered by name.
    """

    dataset: str
    target: str
    reference: object
    none: list[Record] = field(default_factory=list)
    families: list[Family] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All records."""
        made = list(self.none)
        for family in self.families:
            made += [record for records in family.settings.values() for record in records]
        return made


@dataclass(frozen=True)
class OperatingPoint:
    """The operating point of a defense under one seed.

    Attributes:
        seed: of the split.
        rank: of the setting that was chosen; None if there is none.
        value: of its strength, as text.
        loss: of accuracy on reference rows; of the setting that loses least, if none was chosen.
        most: upper end of its 95 % interval: Student's over seeds, in a draft that of
            ``most_lost``; None if none was chosen.
        reason: why none was chosen.
    """

    seed: int
    rank: float | None = None
    value: str = ""
    loss: float | None = None
    most: float | None = None
    reason: str = ""


def groups(records: Iterable[Record]) -> list[Group]:
    """Group results in an order that does not depend on theirs.

    Positive controls are no defenses and are left out.

    Args:
        records: of any status and game.
    """
    made: dict[str, Group] = {}
    families: dict[tuple[str, str], Family] = {}
    for record in sorted(records, key=lambda one: one.trial):
        cell = record.cell
        if record.board is None or cell.control:
            continue
        at = json.dumps(
            [cell.dataset.model_dump(), cell.protocol, cell.target.model_dump(), cell.sensitive],
            sort_keys=True,
        )
        group = made.setdefault(
            at, Group(cell.data, cell.target.label, cell.protocol.get("reference"))
        )
        if cell.undefended:
            group.none.append(record)
            continue
        key, name, strength_field, rank, value = _placed(record)
        if (at, key) not in families:
            families[at, key] = Family(name, strength_field)
            group.families.append(families[at, key])
        families[at, key].settings[rank].append(record)
        families[at, key].values[rank] = value
    for group in made.values():
        group.families.sort(key=lambda one: (one.name, one.strength_field))
    return [made[at] for at in sorted(made)]


def _placed(record: Record) -> tuple[str, str, str, float, str]:
    """Return key, name and ``strength_field`` of the family, and rank and value of this setting."""
    stack, known = record.cell.defenses, record.strengths
    if len(stack) == 1 and stack[0].name in known:
        defense, strength = stack[0], known[stack[0].name]
        value = defense.fields.get(strength.field)
        rank: float | None = None
        if strength.stronger == "listed":
            rank = strength.sweep.index(value) if value in strength.sweep else None
        elif isinstance(value, int | float) and not isinstance(value, bool):
            rank = value if strength.stronger == "up" else -value
        if rank is not None:
            others = {name: v for name, v in defense.fields.items() if name != strength.field}
            same = [defense.name, defense.version, strength.field, others]
            key = json.dumps(same, sort_keys=True)
            told = f"{value:g}" if isinstance(value, float) else str(value)
            return key, _without(defense, strength.field), strength.field, float(rank), told
    key = json.dumps([one.model_dump() for one in stack], sort_keys=True)
    return key, record.cell.defense, "", 0.0, ""


def _without(defense: MethodRecord, hidden: str) -> str:
    """Return the label of a defense without one of its hyperparameters."""
    inside = defense.label.removeprefix(defense.name).strip("()")
    told = f"{hidden}={defense.fields[hidden]}"
    kept = inside.replace(f"{told}, ", "").replace(f", {told}", "").replace(told, "")
    return f"{defense.name}({kept})" if kept else defense.name


def accuracy(records: Iterable[Record], seed: int, rows: str) -> float | None:
    """Return the accuracy of one victim on ``test`` or ``reference`` rows.

    None if it was not measured, or if results of that victim do not agree.
    """
    found = {
        record.utility[f"{rows}_accuracy"]
        for record in records
        if record.seed == seed and record.status == "ok" and f"{rows}_accuracy" in record.utility
    }
    return found.pop() if len(found) == 1 else None


def choices(group: Group, family: Family, bound: float) -> list[OperatingPoint]:
    """Choose the operating point of a defense for each seed that it or ``none`` ran with."""
    seeds = {record.seed for record in group.none}
    seeds |= {record.seed for records in family.settings.values() for record in records}
    if len(seeds) < FEWEST_SEEDS:
        return [_measured(group, family, seed, bound) for seed in sorted(seeds)]
    return _chosen_over_seeds(group, family, sorted(seeds), bound)


def _measured(group: Group, family: Family, seed: int, bound: float) -> OperatingPoint:
    """The choice for one seed of a draft."""
    none = accuracy(group.none, seed, "reference")
    if none is None:
        return OperatingPoint(seed, reason=_NO_NONE)
    seen = {rank: accuracy(records, seed, "reference") for rank, records in family.settings.items()}
    settings = [Setting(rank, value) for rank, value in seen.items() if value is not None]
    if not settings:
        return OperatingPoint(seed, reason=_NO_ACCURACY)
    chosen = strongest(settings, none, bound)
    if chosen is None:
        least = none - max(one.accuracy for one in settings)
        return OperatingPoint(seed, loss=least, reason=NO_SETTING)
    rows = group.reference
    most = most_lost(none, chosen.accuracy, rows) if isinstance(rows, int) and rows else None
    loss = none - chosen.accuracy
    return OperatingPoint(seed, chosen.rank, family.values[chosen.rank], loss, most)


def _chosen_over_seeds(
    group: Group, family: Family, seeds: list[int], bound: float
) -> list[OperatingPoint]:
    """The choices of all seeds, which are of one setting."""
    none = {seed: accuracy(group.none, seed, "reference") for seed in seeds}
    losses: dict[float, dict[int, float]] = {}
    for rank, records in family.settings.items():
        for seed, before in none.items():
            after = accuracy(records, seed, "reference")
            if before is not None and after is not None:
                losses.setdefault(rank, {})[seed] = before - after
    found = shown_within(losses, bound)
    made = []
    for seed in seeds:
        mine = {rank: by_seed[seed] for rank, by_seed in losses.items() if seed in by_seed}
        if none[seed] is None:
            made.append(OperatingPoint(seed, reason=_NO_NONE))
        elif not mine or (found is not None and found[0] not in mine):
            made.append(OperatingPoint(seed, reason=_NO_ACCURACY))
        elif found is None:
            made.append(OperatingPoint(seed, loss=min(mine.values()), reason=NOT_SHOWN))
        else:
            rank, most = found
            made.append(OperatingPoint(seed, rank, family.values[rank], mine[rank], most))
    return made


def shown_within(
    losses: Mapping[float, Mapping[int, float]], bound: float
) -> tuple[float, float] | None:
    """Return the strongest setting whose loss is shown to be at most ``bound``; None if none is.

    Settings are tried from the weakest to the strongest, until the upper end of one's interval
    (Student's 95 %, over seeds) is above the bound. In such a fixed sequence no setting that loses
    more is chosen with a probability above 2.5 %, however many there are (Maurer, Hothorn,
    Lehmacher 1995).

    Args:
        losses: rank of a setting -> seed -> accuracy of ``none`` minus its own, on the same rows.
        bound: largest loss of accuracy, in [0, 1].

    Returns:
        Rank and upper end of the interval.

    >>> close = {0: 0.0, 1: 0.01, 2: 0.0, 3: 0.01, 4: 0.0}
    >>> more = {seed: loss + 0.015 for seed, loss in close.items()}
    >>> rank, most = shown_within({1.0: close, 2.0: more}, 0.02)
    >>> rank, round(most, 4)
    (1.0, 0.0108)
    """
    chosen = None
    for rank in sorted(losses):
        lost = losses[rank]
        if len(lost) < FEWEST_SEEDS:
            break
        found = paired(lost, dict.fromkeys(lost, 0.0))
        if found is None or found.high is None or found.high > bound + _ROUNDING:
            break
        chosen = rank, found.high
    return chosen


def most_lost(none: float, accuracy: float, rows: int) -> float:
    """Return the upper end of the 95 % interval of a loss of accuracy on the same rows.

    Newcombe's interval of a difference of two shares (Statistics in Medicine 1998, method 10) from
    Wilson's intervals of each. Which rows both models get right is not in a result, so they count
    as independent: models that are right on the same rows lose less than this.

    Args:
        none: accuracy of ``none``, in [0, 1].
        accuracy: of the defense, in [0, 1].
        rows: that both are shares of, at least 1.

    >>> round(most_lost(0.91, 0.89, 300), 3), round(most_lost(0.91, 0.89, 3000), 3)
    (0.069, 0.035)
    """
    (_, top), (bottom, _) = (_wilson(share, rows) for share in (none, accuracy))
    return none - accuracy + math.hypot(top - none, accuracy - bottom)


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z2 = 1.959963984540054**2
    middle = share + z2 / (2 * rows)
    half = math.sqrt(z2 * (share * (1 - share) / rows + z2 / (4 * rows**2)))
    return (middle - half) / (1 + z2 / rows), (middle + half) / (1 + z2 / rows)


def seen_by(group: Group, adversary: str) -> list[Record]:
    """Return the results of a group that hold for an adversary.

    A cell that is the same for two adversaries runs once, as adaptive: these are included. Seeds
    that an adversary lacks are not: they have not run yet.
    """
    mine = [record for record in group.records if record.cell.adversary == adversary]
    there = {_question(record) for record in mine}
    return mine + [
        record
        for record in group.records
        if record.cell.adversary == "adaptive" and _question(record) not in there
    ]


def _question(record: Record) -> tuple[str, str]:
    return record.cell.attack.label, record.cell.defense
