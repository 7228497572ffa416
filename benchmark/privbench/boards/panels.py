"""From results to panels."""

from __future__ import annotations

import json
import re
from statistics import fmean as mean
from statistics import median
from typing import TYPE_CHECKING, Protocol

from privbench.boards import game_columns
from privbench.boards.operating import accuracy, seen_by
from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Guess, Panel, Spot
from privbench.ground.judges import judges
from privbench.results import audits
from privbench.results.statistics import FEWEST_SEEDS, Attacks, compared, paired, worst_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.operating import Family, Group, OperatingPoint
    from privbench.ground.columns import Column
    from privbench.ground.judges import Wanted
    from privbench.results.record import CellRecord, MethodRecord, Record
    from privbench.results.seeds import Seeds

#: Metrics that are .5 for every guess, and the baseline that is one guess for all rows.
_HALF, _MAJORITY = ("auc", "balanced_accuracy"), "majority"


class Grouped(Protocol):
    """What panels need of a ``Leaderboard``."""

    bound: float | None
    judging: Mapping[str, Sequence[Wanted]]

    @property
    def skipped(self) -> Mapping[tuple[str, ...], list[Record]]:
        """See ``Leaderboard``."""

    @property
    def groups(self) -> list[Group]:
        """See ``Leaderboard``."""

    @property
    def choices(self) -> Mapping[int, list[OperatingPoint]]:
        """See ``Leaderboard``."""

    def mark(self, record: Record) -> str:
        """See ``Leaderboard``."""

    def seeds(self, records: Iterable[Record]) -> Seeds:
        """See ``Leaderboard``."""


def panels(board: Grouped) -> list[Panel]:
    """Return the panels of a board, in an order that does not depend on that of the results."""
    named = _titles(board.groups)
    made = [
        _panel(board, group, *named[id(group)], adversary)
        for group in board.groups
        for adversary in sorted({record.cell.adversary for record in group.records})
    ]
    return sorted(made, key=lambda one: (one.dataset, one.target, one.adversary))


def _titles(found: Sequence[Group]) -> dict[int, tuple[str, str]]:
    """Group -> dataset and target: hyperparameters of targets only where they tell them apart.

    What differs between groups that would have the same title stands in the dataset's label.
    """
    labels: dict[str, set[str]] = {}
    for group in found:
        labels.setdefault(group.records[0].cell.target.name, set()).add(group.target)
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in found:
        name = group.records[0].cell.target.name
        target = _short_labels(name, labels[name])[group.target]
        alike.setdefault((group.dataset, target), []).append(group)
    made = {}
    for (dataset, target), mine in alike.items():
        cells = [group.records[0].cell for group in mine]
        known = {"dataset", "protocol", "target", "sensitive"}
        told = game_columns.differing(
            [cell.model_dump(mode="json", include=known) for cell in cells]
        )
        for group, text in zip(mine, told, strict=True):
            made[id(group)] = (f"{dataset} ({text})" if text else dataset, target)
    return made


def _named(group: Group) -> dict[int, str]:
    """Family -> its name, with hyperparameters only where the name alone is ambiguous."""
    stacks = [next(r for of in f.settings.values() for r in of).cell.defenses
              for f in group.families]  # fmt: skip
    plain = ["+".join(one.name for one in stack) for stack in stacks]
    full = [family.name for family in group.families]
    return {
        id(family): name if plain.count(name) == 1
        else label if full.count(label) == 1 else f"{label} {_versions(stack)}"
        for family, name, label, stack in zip(group.families, plain, full, stacks, strict=True)
    }  # fmt: skip


def _panel(board: Grouped, group: Group, dataset: str, target: str, adversary: str) -> Panel:
    seen = seen_by(group, adversary)
    among = {record.trial for record in seen}
    names = _attacks(seen)
    games = game_columns.games(seen)
    known = sorted({*names.values()}, key=lambda one: (games.index(one.game), one))
    ran = {names[record.trial] for record in seen if record.status != "skipped"}
    attacks = [attack for attack in known if attack in ran]
    of_game = {game: game_columns.headline_column(game, seen) for game in games}
    main = {attack.aim: of_game[attack.game] for attack in known}
    higher = {aim: up for aim, (_, up) in main.items()}

    def row(name: str, setting: str, rank: float, records: Iterable[Record]) -> DefenseRow:
        mine = [record for record in records if record.trial in among]
        return _filled(board, DefenseRow(name, setting, rank), mine, names, main)

    none = row("none", "", 0.0, group.none)
    curves, rows, unmet = [], [none], dict[str, dict[str, list[int]]]()
    most: list[float] = []
    called = _named(group)
    for family in group.families:
        name = called[id(family)]
        settings = [
            row(name, family.named(rank) if family.strength_field else "", rank, of)
            for rank, of in sorted(family.settings.items(), key=lambda item: item[0])
        ]
        curves += settings
        if board.bound is None:
            rows += settings
            continue
        made = board.choices[id(family)]
        most += [one.most for one in made if one.most is not None]
        chosen, missing = _at_bound(family, made)
        if missing:
            unmet[name] = missing
        rows += [row(name, setting, 0.0, at) for setting, at in chosen]
    constant = {
        aim: _guess(seen, aim, column, game_columns.constant(aim[0], seen))
        for aim, (column, _) in main.items()
    }
    chance = {
        aim: Guess("chance", 0.5) if column.name in _HALF
        else constant[aim] or _guess(seen, aim, column, _MAJORITY)
        for aim, (column, _) in main.items()
    }  # fmt: skip
    kept = [one for one in rows if one is none or _met(one)]
    seeds = sorted({record.seed for record in seen})
    for one in kept:
        _compare(one, none, higher)
        if one is not none:
            cell = next(iter(one.spots.values())).records[0].cell
            skipped = board.skipped.get(victim_met(cell, adversary), [])
            wanted = {aim: judges(board.judging, [d.name for d in cell.defenses], aim[0])
                      for aim in main}  # fmt: skip
            left = {aim: _not_met(wanted[aim], one, aim, skipped, len(seeds)) for aim in main}
            one.not_met = {aim: names for aim, names in left.items() if names}
    return Panel(
        dataset, target, adversary, attacks, kept, [c for c in curves if c.spots],
        unmet, higher, {aim: column.heading for aim, (column, _) in main.items()},
        constant, chance, seeds, max(most, default=None),
    )  # fmt: skip


def victim_met(cell: CellRecord, adversary: str) -> tuple[str, ...]:
    """Return what an attack of that adversary meets in a cell, as text: data, protocol, victim."""
    protocol = json.dumps(cell.protocol, sort_keys=True)
    return cell.dataset.label, protocol, cell.target.label, cell.defense, adversary


def _not_met(
    wanted: Sequence[Wanted], row: DefenseRow, aim: Aim, skipped: Sequence[Record], seeds: int
) -> list[str]:
    """Which of the attacks that judge a defense have not met it; skipped ones cannot meet it."""
    spots = [spot for attack, spot in row.spots.items() if attack.aim == aim and spot.values]
    missing = []
    for judge in wanted:
        ran = [spot for spot in spots if _is(judge, spot.records[0])]
        met = [spot for spot in ran if _meets(judge, spot.records[0])]
        if any(one.counts and len(one.values) >= min(FEWEST_SEEDS, seeds) for one in met):
            continue
        if any(_meets(judge, one) or (not ran and _is(judge, one)) for one in skipped):
            continue
        older = " (only older or weaker)" if ran and not met else ""
        missing.append(f"{judge.label}{older}")
    return missing


def _is(judge: Wanted, record: Record) -> bool:
    return judge.is_attack(record.cell.attack.name, record.attack_origin)


def _meets(judge: Wanted, record: Record) -> bool:
    return judge.is_met_by(record.cell.attack, record.attack_origin)


def _met(row: DefenseRow) -> bool:
    """Whether any attack ran against it, or tried to."""
    return any(spot.state != "skipped" for spot in row.spots.values())


def _at_bound(
    family: Family, made: Sequence[OperatingPoint]
) -> tuple[list[tuple[str, list[Record]]], dict[str, list[int]]]:
    """The results at the operating point with its name, and why which seeds have none."""
    at = [
        record
        for one in made
        if one.rank is not None
        for record in family.settings[one.rank]
        if record.seed == one.seed
    ]
    ranks = sorted({one.rank for one in made if one.rank is not None})
    values = [family.values[rank] for rank in ranks]
    told = f"{family.strength_field}={' or '.join(values)}" if family.strength_field else ""
    missing: dict[str, list[int]] = {}
    for one in made:
        if one.rank is None:
            missing.setdefault(one.reason, []).append(one.seed)
    return ([(told, at)] if at else []), missing


def _filled(
    board: Grouped,
    row: DefenseRow,
    records: Sequence[Record],
    names: Mapping[str, AttackColumn],
    main: Mapping[Aim, tuple[Column, bool]],
) -> DefenseRow:
    """Fill in what the results of one defense say."""
    met: dict[AttackColumn, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.seed):
        met.setdefault(names[record.trial], []).append(record)
    for attack, of in met.items():
        mark = next(filter(None, map(board.mark, of)), "")
        row.spots[attack] = Spot(board.seeds(of), mark)
    for aim in dict.fromkeys(attack.aim for attack in row.spots):
        column, higher = main[aim]
        mine = {a: s for a, s in row.spots.items() if a.aim == aim and s.counts}
        for needs in {attack.needs for attack in mine}:
            level = [spot for attack, spot in mine.items() if attack.needs == needs]
            best = (max if higher else min)(map(_mean, level))
            for spot in level:
                spot.strongest = _mean(spot) == best
        if found := worst_case(
            {a.name: s.values for a, s in mine.items()}, higher=higher,
            low=column.low, high=column.high,
        ):  # fmt: skip
            row.worst[aim] = found
        asked = {attack: _nonmembers(spot) for attack, spot in mine.items()}
        if found := worst_case(
            {a.name: s.rates for a, s in mine.items() if 2 * asked[a] >= max(asked.values())},
            low=0, high=1,
        ):  # fmt: skip
            row.low[aim] = found
    ok = [record for record in records if record.status == "ok"]
    row.optimistic = any("reference accuracy" in record.notes for record in ok)
    row.accuracies = _accuracies(ok)
    row.training = _median(record.cost.seconds_victim for record in ok)
    row.query = _median(record.cost.seconds_per_query for record in ok)
    row.epsilons = _epsilons(row)
    return row


def _nonmembers(spot: Spot) -> int:
    """Rows by which a rate of false alarms was measured, of the seed with fewest."""
    return min((r.sizes.get("nonmembers", 0) for r in spot.records if r.status == "ok"), default=0)


def _accuracies(ok: Sequence[Record]) -> dict[int, float]:
    """Seed -> test accuracy, as the first game says: another one may be about other victims."""
    made: dict[int, float] = {}
    for game in reversed(game_columns.games(ok)):
        asked = [record for record in ok if record.cell.game == game]
        for seed in {record.seed for record in asked}:
            value = accuracy(asked, seed, "test")
            made |= {} if value is None else {seed: value}
    return dict(sorted(made.items()))


def _compare(row: DefenseRow, none: DefenseRow, higher: Mapping[Aim, bool]) -> None:
    """Fill in what depends on the row of ``none``."""
    if row is none:
        return
    row.loss = paired(none.accuracies, row.accuracies)
    for attack, spot in row.spots.items():
        none_spot = none.spots.get(attack)
        spot.same = (
            none_spot is not None and bool(spot.values) and _numbers(spot) == _numbers(none_spot)
        )
    for aim in higher:
        mine, other = (
            {a.name: s for a, s in of.spots.items() if a.aim == aim and s.counts}
            for of in (row, none)
        )
        if found := compared(_by(mine, "values"), _by(other, "values"), higher=higher[aim]):
            row.changes[aim] = found
        if found := compared(_by(mine, "rates"), _by(other, "rates")):
            row.low_changes[aim] = found


def _by(spots: Mapping[str, Spot], what: str) -> Attacks:
    return {name: getattr(spot, what) for name, spot in spots.items()}


def _numbers(spot: Spot) -> dict[int, dict[str, float | None]]:
    """Seed -> all that the attack measured; what an audit adds is not the attack's."""
    return {
        record.seed: {
            name: number.value
            for name, number in record.metrics.items()
            if name not in audits.NAMES and not name.startswith("audit")
        }
        for record in spot.records
        if record.status == "ok"
    }


def _guess(seen: Iterable[Record], aim: Aim, main: Column, name: str) -> Guess | None:
    """A baseline, scored on the most rows that were asked, over seeds; None where it is missing."""
    found: dict[int, tuple[int, float]] = {}
    for record in seen:
        number = record.baselines.get(name, {}).get(main.name)
        if number is not None and number.value is not None and _aim(record) == aim:
            this = (record.sizes.get("rows", 0), number.value)
            found[record.seed] = max(this, found.get(record.seed, this))
    if not found:
        return None
    return Guess(name.replace("_", " "), mean(value for _, value in found.values()))


def _mean(spot: Spot) -> float:
    return mean(spot.values.values())


def _median(given: Iterable[float | None]) -> float | None:
    values = [value for value in given if value is not None]
    return median(values) if values else None


def _epsilons(row: DefenseRow) -> tuple[str, str, str]:
    """Claimed, nominal and audited epsilon; the audit is that of the first attack by name."""
    for _, spot in sorted(row.spots.items(), key=lambda item: item[0].name):
        if any("claimed_epsilon" in record.metrics for record in spot.over.ok):
            told = spot.over.bounds
            claimed, nominal = told["claimed_epsilon"], told["nominal_epsilon"]
            return claimed.text, nominal.text, told["audited_epsilon"].text
    return "–", "–", "–"


def _aim(record: Record) -> Aim:
    sensitive = record.board is not None and "sensitive" in record.board.tells
    return record.cell.game, ", ".join(record.cell.sensitive) if sensitive else ""


def _attacks(records: Sequence[Record]) -> dict[str, AttackColumn]:
    """Trial -> its column; hyperparameters and versions only where a name alone is ambiguous."""
    meant: dict[str, set[tuple[str, int]]] = {}
    for record in records:
        attack = record.cell.attack
        meant.setdefault(attack.name, set()).add((attack.label, attack.version))
    made = {}
    for record in records:
        attack = record.cell.attack
        labels = {label for label, _ in meant[attack.name]}
        name = _short_labels(attack.name, labels)[attack.label]
        if len(meant[attack.name]) > len(labels):
            name += f" {_versions([attack])}"
        made[record.trial] = AttackColumn(*_aim(record), record.cell.needs, name)
    return made


def _short_labels(name: str, labels: Iterable[str]) -> dict[str, str]:
    """Labels of one method, without the hyperparameters that are the same in all of them.

    >>> _short_labels("lira", ["lira(k=8, views=0)", "lira(k=8, views=2)"])["lira(k=8, views=2)"]
    'lira(views=2)'
    >>> _short_labels("lira", ["lira(k=8)"])
    {'lira(k=8)': 'lira'}
    """
    inside = {label: label.removeprefix(name)[1:-1] for label in labels}
    told = {label: re.split(r", (?=\w+=)", text) for label, text in inside.items()}
    same = set.intersection(*map(set, told.values()))
    kept = {label: [one for one in parts if one not in same] for label, parts in told.items()}
    return {label: f"{name}({', '.join(of)})" if any(of) else name for label, of in kept.items()}


def _versions(methods: Iterable[MethodRecord]) -> str:
    return "+".join(f"v{one.version}" for one in methods)
