# ruff: noqa: INP001 - a script
"""What rules for class thresholds do to the balanced accuracy of a metric attack.

``uv run python leaderboards/experiments/thresholds.py --data-root ROOT`` prints the table of
``thresholds.md``: a plugin of one file with the attack of Song and Mittal (modified entropy) under
four rules, run by the harness on four victims. The last column is the largest balanced accuracy
that any single threshold reaches on the rows asked about, which no attack can know.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import click
import numpy as np

import privbench
from privbench import Membership, hookimpl
from privbench.boards.sample_files import read_samples
from privbench.boards.samples import part
from privbench_plugins.attacks.metric import MetricModifiedEntropy

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle
    from privbench.boards.records import Record

SUITES = {
    "digits": {"targets": ["supervised"]},
    "location-30": {"datasets": ["location-30"], "targets": ["supervised"]},
    "cifar10, 500 members": {
        "datasets": ["cifar10"], "targets": [{"supervised": {"epochs": 40, "updates": 2000}}],
        "protocols": [{"name": "small", "members": 500, "nonmembers": 500, "pool": 1250,
                       "test": 1000}],
    },
    "cifar10, 2,000 members": {
        "datasets": ["cifar10"], "targets": [{"supervised": {"epochs": 40}}],
        "protocols": [{"name": "more", "members": 2000, "nonmembers": 2000, "pool": 5000,
                       "test": 1000}],
    },
}  # fmt: skip
#: More rows than any class has.
MANY = 10**6
#: Where a threshold stands, and the fewest members and nonmembers of a class with one of its own.
RULES: tuple[tuple[Literal["at", "between"], int], ...] = (
    ("at", 1), ("between", 1), ("at", 30), ("between", 30), ("between", 100), ("between", MANY),
)  # fmt: skip


@dataclass(frozen=True)
class Ruled(MetricModifiedEntropy):
    """The attack with thresholds by one of several rules.

    Attributes:
        place: ``at`` the smallest score that is called a member, or ``between`` it and the largest
            that is not.
        fewest: members and nonmembers that a class needs for a threshold of its own.
    """

    name: ClassVar[str] = "ruled"
    place: Literal["at", "between"] = "at"
    fewest: int = 1

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) as the base class does, and decide by the rule."""
        (shadow,) = ctx.shadows
        inside, y_in = self._scores(shadow.oracle, shadow.world.members)
        outside, y_out = self._scores(shadow.oracle, shadow.nonmembers)
        asked, y = self._scores(oracle, question.examples)
        overall = self._best(inside.numpy(), outside.numpy())
        decisions = asked >= overall
        for one in y.unique():
            sides = inside[y_in == one].numpy(), outside[y_out == one].numpy()
            if min(map(len, sides)) >= self.fewest:
                decisions[y == one] = asked[y == one] >= self._best(*sides)
        return Membership(asked, decisions)

    def _best(self, inside: np.ndarray, outside: np.ndarray) -> float:
        """The largest threshold of the best balanced accuracy, by trying all."""
        values = np.unique(np.concatenate([inside, outside]))[::-1]
        gains = [(inside >= v).mean() - (outside >= v).mean() for v in values]
        best = int(np.argmax(np.round(gains, 12)))
        if gains[best] <= 0:
            return float("inf")
        after = values[best + 1] if best + 1 < len(values) else values[best]
        return float(values[best] if self.place == "at" else (values[best] + after) / 2)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [Ruled()]


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seeds", default=3)
def main(data_root: Path, seeds: int) -> None:
    """Print the table."""
    heads = [f"{place}, {'never' if n == MANY else n}" for place, n in RULES]
    click.echo(f"| victim | AUC | {' | '.join(heads)} | best single |")
    click.echo("|---" * (len(heads) + 3) + "|")
    for name, suite in SUITES.items():
        attacks = [{"ruled": {"place": place, "fewest": n}} for place, n in RULES]
        with tempfile.TemporaryDirectory() as folder:
            results = privbench.run(
                {**suite, "attacks": attacks, "seeds": seeds}, out=folder, data_root=data_root,
                plugins=[Path(__file__)],
            )  # fmt: skip
            best = [reachable(record, Path(folder)) for record in results]
        told = [[], *([] for _ in RULES)]
        for record in results:
            fields = record.cell.attack.fields
            at = RULES.index((fields["place"], fields["fewest"]))
            told[0].append(record.metrics["auc"].value)
            told[1 + at].append(record.metrics["balanced_accuracy"].value)
        means = [np.mean(values) for values in (*told, best)]
        click.echo(f"| {name} | {' | '.join(f'{one:.3f}' for one in means)} |")


def reachable(record: Record, folder: Path) -> float:
    """The largest balanced accuracy of one threshold on the rows that were asked about."""
    columns = read_samples(record, [folder])
    scores, member = part(columns, "victim")["scores"], part(columns, "truth")["member"]
    return max(
        ((scores[member] >= v).mean() + (scores[~member] < v).mean()) / 2 for v in np.unique(scores)
    )


if __name__ == "__main__":
    main()
