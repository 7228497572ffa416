"""Operating points: the strongest setting of each defense that costs little utility.

A setting is chosen for each seed by its accuracy on reference rows, compared with ``none``. The
choice gets nothing else: ``strongest`` sees neither test rows nor what any attack found.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privbench.boards import shown as show
from privbench.boards.verdicts import is_control

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from privbench.boards.records import MethodRecord, Record
    from privbench.boards.verdicts import Judged

#: A loss equal to the bound is within it, although .9 - .88 is above .02 in floating point.
_ROUNDING = 1e-9
#: Why there is no operating point where all settings cost too much.
NO_SETTING = "no setting qualifies"


@dataclass(frozen=True)
class Setting:
    """All that a choice may know of a setting, for one seed.

    Attributes:
        rank: settings of a higher rank protect more.
        accuracy: of its victim on reference rows, in [0, 1].
    """

    rank: float
    accuracy: float


def strongest(settings: Iterable[Setting], undefended: float, bound: float) -> Setting | None:
    """Return the setting of the highest rank that loses at most ``bound``; None if all lose more.

    Args:
        settings: of one defense and seed.
        undefended: accuracy of ``none`` on the same rows.
        bound: largest loss of accuracy, in [0, 1].

    >>> weak, strong = Setting(1.0, 0.89), Setting(2.0, 0.88)
    >>> strongest([weak, strong], 0.9, 0.02) == strong, strongest([weak, strong], 0.9, 0.0)
    (True, None)
    """
    fit = [one for one in settings if undefended - one.accuracy <= bound + _ROUNDING]
    return max(fit, key=lambda one: one.rank, default=None)


@dataclass
class Family:
    """The settings of one defense; other hyperparameters than its strength are equal.

    Attributes:
        name: of the defense, with the hyperparameters that differ from the defaults.
        strength: hyperparameter that makes it stronger; "" if it has one setting only.
        settings: rank -> records of all seeds, attacks and adversaries.
        values: rank -> value of the hyperparameter, as text.
    """

    name: str
    strength: str
    settings: dict[float, list[Record]] = field(default_factory=lambda: defaultdict(list))
    values: dict[float, str] = field(default_factory=dict)

    def named(self, rank: float) -> str:
        """Return ``weight=3``, or the name of a defense with one setting."""
        return f"{self.strength}={self.values[rank]}" if self.strength else self.name


@dataclass
class Group:
    """What can be compared: one dataset, protocol, target and set of sensitive attributes.

    Attributes:
        dataset, target: as in the headings of a board.
        reference: size of the part of reference rows, as in the protocol.
        undefended: records of ``none``.
        families: of the defenses, ordered by name.
    """

    dataset: str
    target: str
    reference: object
    undefended: list[Record] = field(default_factory=list)
    families: list[Family] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All records."""
        made = list(self.undefended)
        for family in self.families:
            made += [record for records in family.settings.values() for record in records]
        return made


@dataclass(frozen=True)
class Choice:
    """The operating point of a defense under one seed.

    Attributes:
        seed: of the split.
        rank: of the setting that was chosen; None if there is none.
        value: of its strength, as text.
        loss: of accuracy on reference rows; of the setting that loses least, if none was chosen.
        reason: why none was chosen.
    """

    seed: int
    rank: float | None = None
    value: str = ""
    loss: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Leak:
    """The strongest attack of a game on a defense.

    Attributes:
        game: of the attack.
        guessed: attributes that it infers; "" in other games.
        attack: its label.
        metric: the game's headline metric, as boards call it.
        values: of that metric by seed.
    """

    game: str
    guessed: str
    attack: str
    metric: str
    values: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return sum(self.values.values()) / len(self.values)


def groups(records: Iterable[Record], *, skipped: bool = False) -> list[Group]:
    """Group results that are ok or failed, in an order that does not depend on theirs.

    Positive controls are no defenses and are left out.

    Args:
        records: of any status and game.
        skipped: whether cells that were skipped are among them.
    """
    made: dict[str, Group] = {}
    families: dict[tuple[str, str], Family] = {}
    for record in sorted(records, key=lambda one: one.trial):
        cell = record.cell
        left_out = record.status == "skipped" and not skipped
        if left_out or record.board is None or is_control(record):
            continue
        at = json.dumps(
            [cell.dataset.model_dump(), cell.protocol, cell.target.model_dump(), cell.sensitive],
            sort_keys=True,
        )
        named = str(cell.protocol.get("name", "default"))
        dataset = cell.dataset.label + ("" if named == "default" else f" ({named})")
        group = made.setdefault(
            at, Group(dataset, cell.target.label, cell.protocol.get("reference"))
        )
        if all(defense.name == "none" for defense in cell.defenses):
            group.undefended.append(record)
            continue
        key, name, strength, rank, value = _placed(record)
        if (at, key) not in families:
            families[at, key] = Family(name, strength)
            group.families.append(families[at, key])
        families[at, key].settings[rank].append(record)
        families[at, key].values[rank] = value
    for group in made.values():
        group.families.sort(key=lambda one: (one.name, one.strength))
    return [made[at] for at in sorted(made)]


def _placed(record: Record) -> tuple[str, str, str, float, str]:
    """Return key and name of the family, its strength, and rank and value of this setting."""
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


def choices(group: Group, family: Family, bound: float) -> list[Choice]:
    """Choose the operating point of a defense for each seed that it or ``none`` ran with."""
    seeds = {record.seed for record in group.undefended}
    seeds |= {record.seed for records in family.settings.values() for record in records}
    return [_choice(group, family, seed, bound) for seed in sorted(seeds)]


def _choice(group: Group, family: Family, seed: int, bound: float) -> Choice:
    undefended = accuracy(group.undefended, seed, "reference")
    if undefended is None:
        return Choice(seed, reason="`none` has no accuracy on reference rows")
    seen = {rank: accuracy(records, seed, "reference") for rank, records in family.settings.items()}
    settings = [Setting(rank, value) for rank, value in seen.items() if value is not None]
    if not settings:
        return Choice(seed, reason="no setting has an accuracy on reference rows")
    chosen = strongest(settings, undefended, bound)
    if chosen is None:
        least = undefended - max(one.accuracy for one in settings)
        return Choice(seed, loss=least, reason=NO_SETTING)
    return Choice(seed, chosen.rank, family.values[chosen.rank], undefended - chosen.accuracy)


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


def leaks(records: Iterable[Record], judged: Judged) -> list[Leak]:
    """Return the attack with the highest mean leak of each game, and of each set of attributes.

    Args:
        records: of one defense, with one setting for each seed.
        judged: cells and attacks of the board that do not count.
    """
    records = list(records)
    main = {game: show.headline(game, records) for game in show.games(records)}
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for record in records:
        cell = record.cell
        if record.board is None:
            continue
        number = show.number(record, main[cell.game][0])
        if record.status != "ok" or number is None or number.value is None or judged.mark(record):
            continue
        aim = cell.game, ", ".join(cell.sensitive) if "sensitive" in record.board.tells else ""
        attacks = found.setdefault(aim, {})
        attacks.setdefault(cell.attack.label, {})[record.seed] = number.value
    leaks = []
    for (game, guessed), attacks in found.items():
        column, higher = main[game]
        sign = 1 if higher else -1
        made = [Leak(game, guessed, n, column.heading, attacks[n]) for n in sorted(attacks)]
        leaks.append(max(made, key=lambda leak: sign * leak.mean))
    return sorted(leaks, key=lambda leak: (list(main).index(leak.game), leak.guessed))
