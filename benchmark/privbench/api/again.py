"""Plans of the commands that run trials of others again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privbench.api.planning import Planning
from privbench.boards.checks import refuse_twins
from privbench.check.challenge import victims
from privbench.check.repeat import challengers, differences, suite_against, suite_of
from privbench.grid.plan import NothingRunsError
from privbench.ground.errors import BadInputError
from privbench.plugins import registry as plugins

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from privbench.plugins.registry import Choice
    from privbench.results.record import Record


class Reproduction(Planning):
    """The trial of a result.

    Attributes:
        different: in what the trial differs here from that of the result, one clause each.
    """

    def __init__(
        self, record: Record, chosen: Sequence[Choice], options: Mapping[str, Any]
    ) -> None:
        """Plan it.

        Raises:
            PrivbenchError: if it cannot be planned here.
        """
        super().__init__(suite_of(record, plugins.load(chosen)), chosen, options)
        self.different = differences(record, self.planned[0].trial, self.device)


class Challenge(Planning):
    """New attacks against the victims of published results.

    Attributes:
        asked: for each attack and victim: the game of the attack, which of ``victims`` it is, and
            the digests of the trials.
        unasked: name of a victim and of an attack that cannot ask it -> why.
    """

    def __init__(  # noqa: PLR0917 - sent in order
        self,
        records: Sequence[Record],
        attacks: Sequence[str],
        seeds: int | None,
        known: Mapping[str, Collection[str]],
        chosen: Sequence[Choice],
        options: Mapping[str, Any],
    ) -> None:
        """Plan them.

        Args:
            records: published results.
            attacks: names of the new attacks; none for those of plugin files.
            seeds: how many seeds of each victim; None for all.
            known: kind -> names of methods that must exist.
            chosen: plugins.
            options: of the run.

        Raises:
            PrivbenchError: if a name is unknown, if there is no such victim, or if one has two
                results of an attack and seed.
        """
        registry = plugins.load(chosen)
        registry.refuse_broken_files()
        for kind, names in known.items():
            for name in names:
                registry.get(kind, name)
        pairs = [
            (attack, i, victim)
            for attack in challengers(registry, attacks)
            for i, victim in enumerate(victims(records, attack.game, seeds))
        ]
        refuse_twins(one for *_, victim in pairs for one in victim.records)
        suites = {
            (attack.game, i, attack.name): suite_against(victim, attack, registry)
            for attack, i, victim in pairs
        }
        if not suites:
            raise BadInputError("no result with numbers is about such a victim and such a "
                                "question: give other results, or leave out --defense and "
                                "--target")  # fmt: skip
        named = {(attack.game, i): victim.name for attack, i, victim in pairs}
        self.asked: list[tuple[str, int, list[str]]] = []
        self.unasked: dict[str, str] = {}
        for (game, i, attack), suite in suites.items():
            try:
                if not self.asked:
                    super().__init__(suite, chosen, options)
                self.asked.append((game, i, self.add(suite)))
            except NothingRunsError as error:
                pair = f"{named[game, i]}, {game}, by {attack}"
                self.unasked[pair] = "; ".join(sorted(error.reasons))
        if not self.asked:
            raise NothingRunsError(dict.fromkeys(self.unasked.values(), ""))
