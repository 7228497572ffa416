"""A board: results, and what they say, each thing computed once, when it is first asked for.

Page, csv file, terminal, JSON, words, figures and HTML are functions of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from privbench.boards import game_columns, operating, panels, verdicts
from privbench.boards.panel import foremost
from privbench.results.seeds import Seeds
from privbench.results.statistics import significant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from privbench.boards.operating import Group, OperatingPoint
    from privbench.boards.panel import Panel
    from privbench.boards.verdicts import Range
    from privbench.ground.judges import Wanted
    from privbench.results.record import Record
    from privbench.results.statistics import Difference


class Leaderboard:
    """All results of a board; how a game is shown is ``ground.columns.Board``.

    Attributes:
        records: of any status, with positive controls.
        bound: largest loss of accuracy on reference rows at which a setting counts as an operating
            point; None shows every setting.
        judging: defense -> attacks that must have met it before it is ranked; empty ranks all.
        asked: kind and name of the methods that its suite names; empty for unknown.
    """

    def __init__(
        self,
        records: Iterable[Record],
        bound: float | None = None,
        judging: Mapping[str, Sequence[Wanted]] | None = None,
        asked: Collection[tuple[str, str]] = (),
    ) -> None:
        """Take the results; nothing is computed before it is asked for."""
        self.records, self.bound, self.judging = list(records), bound, judging or {}
        self.asked = asked
        self._seeds: dict[frozenset[int], Seeds] = {}

    # ---- cells -----------------------------------------------------------------------------------

    @cached_property
    def cells(self) -> Mapping[str, Seeds]:
        """Cell as text -> its results."""
        found: dict[str, list[Record]] = {}
        for record in self.records:
            found.setdefault(self.cell_of(record), []).append(record)
        return {cell: self.seeds(of) for cell, of in found.items()}

    def cell_of(self, record: Record) -> str:
        """Return the cell of one of the results, as text; seeds of one cell have the same."""
        return self._texts[id(record)]

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {id(record): record.cell.model_dump_json() for record in self.records}

    def seeds(self, records: Iterable[Record]) -> Seeds:
        """Return some of the results over their seeds; equal ones are one object."""
        records = list(records)
        at = frozenset(map(id, records))
        if at not in self._seeds:
            self._seeds[at] = Seeds(records)
        return self._seeds[at]

    @cached_property
    def with_numbers(self) -> Mapping[str, Seeds]:
        """The cells that have numbers, without positive controls."""
        return {cell: of for cell, of in self.cells.items() if of.ok and not of.first.cell.control}

    @cached_property
    def planted(self) -> list[Seeds]:
        """The positive controls that have numbers."""
        return [of for of in self.cells.values() if of.ok and of.first.cell.control]

    # ---- what cells say about each other ---------------------------------------------------------

    @cached_property
    def doubtful(self) -> Mapping[str, str]:
        """Cell -> why it is not ranked, for all cells that are not."""
        return verdicts.doubtful(self.with_numbers)

    @cached_property
    def planted_found(self) -> Mapping[tuple[str, ...], Mapping[str, bool]]:
        """Victim -> label of an attack -> whether it found the planted leak."""
        return verdicts.planted_found(self.planted)

    def mark(self, record: Record) -> str:
        """Return why a result does not count, as boards mark it: ``‡``, ``¶``, or ""."""
        if self.cell_of(record) in self.doubtful:
            return "‡"
        return "¶" if self.missed(record) else ""

    def missed(self, record: Record) -> bool:
        """Return whether its attack missed the planted leak of such a victim."""
        return verdicts.missed_planted(record, self.planted_found)

    @cached_property
    def _none_cells(self) -> Mapping[str, Seeds]:
        return verdicts.none_cells(self.with_numbers)

    @cached_property
    def minus_none(self) -> Mapping[str, Difference]:
        """Cell -> its main number minus that of the same cell without a defense, by seed."""
        return verdicts.minus_none(self.with_numbers, self._none_cells, lambda of: of.headline)

    @cached_property
    def accuracy_minus_none(self) -> Mapping[str, Difference]:
        """Cell -> test accuracy of its victim minus that of the same cell without a defense."""
        return verdicts.minus_none(
            self.with_numbers, self._none_cells, lambda of: of.number("utility", "test_accuracy")
        )

    @cached_property
    def certain(self) -> set[str]:
        """Cells that differ from no defense beyond chance, corrected for all of the board."""
        return significant(self.minus_none)

    @cached_property
    def nulls(self) -> list[tuple[str, Range]]:
        """Name of a game's headline, and what attacks reach on null victims."""
        return verdicts.nulls(self._numbers)

    @cached_property
    def input_only(self) -> Range | None:
        """What classifiers of inputs alone reach; None if there are none."""
        return verdicts.input_only(self._numbers)

    @cached_property
    def _numbers(self) -> list[Record]:
        return [one for one in self.records if one.status == "ok" and not one.cell.control]

    @cached_property
    def games(self) -> list[str]:
        """Names of the games that have numbers, in the order in which boards show them."""
        return game_columns.games(self._numbers)

    def of_game(self, game: str) -> list[Record]:
        """Return the results of a game that have numbers, without positive controls."""
        return [one for one in self._numbers if one.cell.game == game]

    @cached_property
    def probes(self) -> Mapping[str, tuple[float, float]]:
        """Victim without a defense -> mean accuracy of a linear probe, and of an untrained one."""
        return verdicts.probes(self.records)

    @cached_property
    def unmeasured(self) -> list[str]:
        """The defenses and attacks that its suite names and that are not measured yet.

        A defense without a number is, if as many attacks were skipped there as any other has met;
        an attack, if a result names it, of any status.
        """
        met: dict[str, set[str]] = {name: set() for kind, name in self.asked if kind == "defense"}
        numbers = set[str]()
        for one in self.records:
            for name in {of.name for of in one.cell.defenses} & met.keys():
                met[name].add(one.cell.attack.label)
                numbers |= {name} if one.status == "ok" else set()
        most = max(map(len, met.values()), default=0)
        lacking = {name for name, of in met.items() if name not in numbers and len(of) < most}
        attacks = {name for kind, name in self.asked if kind == "attack"}
        return sorted(lacking | attacks - {one.cell.attack.name for one in self.records})

    # ---- panels ----------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[Group]:
        """What can be compared, with the families of settings of each defense."""
        return operating.groups(self.records)

    @cached_property
    def skipped(self) -> Mapping[tuple[str, ...], list[Record]]:
        """Victim, see ``panels.victim_met`` -> results of attacks that cannot run on it."""
        found: dict[tuple[str, ...], list[Record]] = {}
        for record in self.records:
            if record.status == "skipped":
                at = panels.victim_met(record.cell, record.cell.adversary)
                found.setdefault(at, []).append(record)
        return found

    @cached_property
    def choices(self) -> Mapping[int, list[OperatingPoint]]:
        """Family, by its id -> its operating point for each seed; empty where there is no bound."""
        if self.bound is None:
            return {}
        return {
            id(family): operating.choices(group, family, self.bound)
            for group in self.groups
            for family in group.families
        }

    @cached_property
    def panels(self) -> list[Panel]:
        """Every defense against every attack, in an order that does not depend on the results'."""
        return panels.panels(self)

    @cached_property
    def foremost(self) -> list[Panel]:
        """The panels without naive adversaries that met nothing which an adaptive one did not."""
        return foremost(self.panels)
