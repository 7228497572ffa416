"""A panel: every defense against every attack, for one dataset, protocol, target and adversary.

Boards, figures and reports show panels; what they leave out is in the csv file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from privbench.ground.text import several
from privbench.results.statistics import ERROR, FEWEST_SEEDS, clipped, estimate, paired, significant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from privbench.measure.games.metrics import Estimate
    from privbench.results.record import Record
    from privbench.results.seeds import Seeds
    from privbench.results.statistics import Change, Difference, Worst

#: Metric that is reported at its worst beside the headline.
LOW_FPR = "tpr_at_fpr_0.01"
#: A rate of 0 tells nothing if its interval over a seed's rows ends beyond this: if none of ten
#: members is found, it ends at .31.
TELLS_NOTHING = 0.35

Aim = tuple[str, str]  # game, attributes that are guessed


@dataclass(frozen=True, order=True)
class AttackColumn:
    """A column of a panel.

    Attributes:
        game: that it plays.
        guessed: attributes that it guesses; "" in other games.
        needs: access that it reads, as ``POSTERIORS``; "" where a result does not say.
        name: with hyperparameters only where the name alone is ambiguous.
    """

    game: str
    guessed: str
    needs: str
    name: str

    @property
    def aim(self) -> Aim:
        """What it is after."""
        return self.game, self.guessed


@dataclass
class Spot:
    """One attack on one defense.

    Attributes:
        over: its results, of any status.
        mark: why it does not count, ``‡`` or ``¶``; "" if it does.
        same: whether every seed has the numbers that it has without a defense: the attack sees no
            difference.
        strongest: whether no other attack with the same aim and access does better here.
    """

    over: Seeds
    mark: str = ""
    same: bool = False
    strongest: bool = False

    @property
    def records(self) -> list[Record]:
        """Its results by seed."""
        return self.over.records

    @cached_property
    def _several(self) -> bool:
        return len(self.over.ok) > len({record.seed for record in self.over.ok})

    @cached_property
    def values(self) -> Mapping[int, float]:
        """Seed -> headline metric of the game."""
        return {} if self._several else self.over.headline.by_seed

    @cached_property
    def rates(self) -> Mapping[int, float]:
        """Seed -> true-positive rate at 1 % false-positive rate."""
        return {} if self._several else self.over.number("metrics", LOW_FPR).by_seed

    @property
    def rates_at_most(self) -> float | None:
        """Where the interval of rates of 0 ends if that tells nothing; None for other rates.

        Mostly many nonmembers share the highest score, so that no threshold calls few of them
        members.
        """
        ends = [high or 0.0 for _, high in self.over.number("metrics", LOW_FPR).row_intervals]
        if not self.rates or any(self.rates.values()) or min(ends, default=0) <= TELLS_NOTHING:
            return None
        return max(ends)

    @property
    def counts(self) -> bool:
        """Whether it has a number and no mark."""
        return bool(self.values) and not self.mark

    @property
    def estimate(self) -> Estimate | None:
        """Mean of ``values`` with Student's interval; None without values."""
        return self.over.headline.estimate if self.values else None

    @property
    def rate(self) -> Estimate | None:
        """Mean of ``rates`` with its interval, in [0, 1]; None without rates."""
        return self.over.number("metrics", LOW_FPR).within(0.0, 1.0) if self.rates else None

    @property
    def state(self) -> str:
        """``ok``, ``failed``, ``skipped``, ``refused``, ``several`` or ``missing``.

        ``several`` if a seed has several results, of cells that this board does not tell apart.
        """
        if self._several:
            return "several"
        if self.values:
            return "ok"
        found = {record.status for record in self.records}
        named = (status for status in ("failed", "skipped") if status in found)
        return next(named, "refused" if found else "missing")


@dataclass
class DefenseRow:
    """A defense, with one setting for each seed.

    Attributes:
        name: of the defense.
        setting: value of its strength, as ``weight=3``; "" if it has none.
        rank: of the setting: higher ones protect more.
        optimistic: whether it also learns from the rows by which settings are chosen.
        spots: of each attack that met it.
        worst: aim -> the strongest attack of those that count (``worst_case``).
        low: the same for the true-positive rate at 1 % false-positive rate, where it is known.
        accuracies: seed -> test accuracy.
        loss: test accuracy of ``none`` minus its own, paired by seed; None if it cannot be said.
        changes: aim -> headline metric minus that of ``none``, of the attack that is strongest
            with and without it, on other seeds (``statistics.compared``).
        low_changes: the same for the true-positive rate at 1 % false-positive rate.
        not_met: aim -> attacks that judge it and have not met it at full strength, if any.
        training: seconds to train a victim, the median over seeds; None if unknown.
        query: seconds for one label; None if unknown.
        epsilons: claimed, nominal and audited, as text; "–" where there is none.
    """

    name: str
    setting: str = ""
    rank: float = 0.0
    optimistic: bool = False
    spots: dict[AttackColumn, Spot] = field(default_factory=dict)
    worst: dict[Aim, Worst] = field(default_factory=dict)
    low: dict[Aim, Worst] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    loss: Difference | None = None
    changes: dict[Aim, Change] = field(default_factory=dict)
    low_changes: dict[Aim, Change] = field(default_factory=dict)
    not_met: dict[Aim, list[str]] = field(default_factory=dict)
    training: float | None = None
    query: float | None = None
    epsilons: tuple[str, str, str] = ("–", "–", "–")

    @property
    def title(self) -> str:
        """Its name with the setting."""
        return f"{self.name} ({self.setting})" if self.setting else self.name

    def strongest(self, aim: Aim) -> Spot:
        """The attack of ``worst`` on it."""
        name = self.worst[aim].attack
        return next(
            spot for attack, spot in self.spots.items() if (attack.aim, attack.name) == (aim, name)
        )

    def counting(self, aim: Aim) -> int:
        """How many attacks have a number that counts."""
        return sum(attack.aim == aim and spot.counts for attack, spot in self.spots.items())

    @cached_property
    def accuracy(self) -> Estimate | None:
        """Mean test accuracy over seeds with its interval; None if there is none."""
        made = estimate([*self.accuracies.values()])
        return made and clipped(made, 0.0, 1.0)

    def leak(self, aim: Aim) -> float | None:
        """What the strongest attack reaches; None if no attack counts."""
        return self.worst[aim].estimate.value if aim in self.worst else None


@dataclass(frozen=True)
class Guess:
    """A guess that uses nothing that was released, as text: its name and what it reaches.

    Attributes:
        name: in words.
        value: of the headline metric, the mean over seeds.
    """

    name: str
    value: float

    def __str__(self) -> str:
        """Name and value."""
        return f"{self.name} {self.value:.3f}"


@dataclass
class Panel:
    """What one dataset, protocol, target and adversary show.

    Attributes:
        dataset, target, adversary: labels, as boards show them.
        attacks: columns, in the order in which boards show games.
        rows: ``none`` first, then by name and strength; those that no attack met are left out.
        curves: all settings of all defenses with several; the same rows where nothing is chosen.
        most_lost: upper end of the 95 % interval of the accuracy lost at an operating point, of all
            that are shown; None where nothing is chosen.
        unmet: defenses without an operating point -> why -> the seeds concerned.
        higher: aim -> whether a higher number is a stronger attack.
        metric: aim -> name of the headline metric.
        constant: aim -> the game's constant answer; None if boards show none.
        chance: aim -> what guessing reaches, where figures draw a line; None if unknown.
        seeds: of all results.
    """

    dataset: str
    target: str
    adversary: str
    attacks: list[AttackColumn]
    rows: list[DefenseRow]
    curves: list[DefenseRow]
    unmet: Mapping[str, Mapping[str, list[int]]]
    higher: Mapping[Aim, bool]
    metric: Mapping[Aim, str]
    constant: Mapping[Aim, Guess | None]
    chance: Mapping[Aim, Guess | None]
    seeds: list[int]
    most_lost: float | None = None

    @property
    def title(self) -> str:
        """What all its numbers share."""
        return f"{self.dataset}, {self.target}, {self.adversary} adversary"

    @property
    def seeds_told(self) -> str:
        """How many seeds, and whether they make a draft."""
        draft = ": a draft" if len(self.seeds) < FEWEST_SEEDS else ""
        return several(len(self.seeds), "seed") + draft

    @property
    def aims(self) -> list[Aim]:
        """Aims of the attacks, each once."""
        return list(dict.fromkeys(attack.aim for attack in self.attacks))

    @property
    def own(self) -> list[AttackColumn]:
        """Attacks that ran for this adversary.

        Those that do the same for the adaptive one stand in its panel. All for a naive one, which
        is shown where the adaptive one did not run.
        """
        if self.adversary == "naive":
            return self.attacks
        ran = {
            attack
            for row in self.rows
            for attack, spot in row.spots.items()
            if any(record.cell.adversary == self.adversary for record in spot.records)
        }
        return [attack for attack in self.attacks if attack in ran]

    @cached_property
    def certain(self) -> set[tuple[str, Aim]]:
        """Rows and aims that differ from ``none`` beyond chance, corrected for all of them."""
        return self._certain({row.title: row.changes for row in self.rows})

    @cached_property
    def low_certain(self) -> set[tuple[str, Aim]]:
        """The same by the true-positive rate at 1 % false-positive rate."""
        return self._certain({row.title: row.low_changes for row in self.rows})

    def _certain(self, changes: Mapping[str, Mapping[Aim, Change]]) -> set[tuple[str, Aim]]:
        return significant(
            {
                (title, aim): one.difference
                for title, of in changes.items()
                for aim, one in of.items()
            }
        )

    def leaks_more(self, change: Change, aim: Aim) -> bool:
        """Whether a change of the headline metric is a stronger attack."""
        return (change.difference.mean > 0) is self.higher[aim]

    def worst_moves(self, row: DefenseRow, aim: Aim) -> int:
        """Whether the worst case of a row differs from that of ``none`` beyond chance, by seed.

        Returns:
            1 if it leaks more, -1 if less, 0 if neither is shown.
        """
        found = paired(row.strongest(aim).values, self.rows[0].strongest(aim).values)
        if found is None or found.p is None or found.p >= ERROR:
            return 0
        return 1 if (found.mean > 0) is self.higher[aim] else -1

    @property
    def met(self) -> set[tuple[str, AttackColumn]]:
        """Which defenses met which attacks."""
        return {(row.title, attack) for row in self.rows for attack in row.spots}


def foremost(found: Sequence[Panel]) -> list[Panel]:
    """Return the panels without naive adversaries that met nothing which an adaptive one did not.

    Where the naive adversary met more, an adaptive one that adds nothing is left out. The largest
    leak without a defense comes first, by the first aim of a panel.
    """
    left = set[int]()
    for naive in found:
        for one in found:
            same = (naive.dataset, naive.target) == (one.dataset, one.target)
            if same and (naive.adversary, one.adversary) == ("naive", "adaptive"):
                if naive.met <= one.met:
                    left.add(id(naive))
                elif one.met <= naive.met:
                    left.add(id(one))
    kept = [one for one in found if id(one) not in left]
    first = [*dict.fromkeys(one.aims[0] for one in kept if one.aims)]

    def place(panel: Panel) -> tuple[int, bool, float]:
        if not panel.aims:
            return len(first), True, 0.0
        aim = panel.aims[0]
        leak = panel.rows[0].leak(aim)
        return first.index(aim), leak is None, (leak or 0.0) * (-1 if panel.higher[aim] else 1)

    return sorted(kept, key=place)
