# ruff: noqa: INP001 - a script
"""What rules for class thresholds do to the balanced accuracy of a metric attack.

``uv run python leaderboards/experiments/thresholds.py --data-root ROOT`` prints the table of
``thresholds.md``: a plugin of one file with the attack of Song and Mittal (modified entropy) under
several rules, run by the harness on four victims. The last column is the largest balanced accuracy
that any single threshold reaches on the rows asked about, which no attack can know.

``--several`` prints the second table: rules that read more than one shadow, or that ask the victim
about rows of the adversary's own.

``--board NAME`` runs the attacks of that board's suite that choose a threshold, for the first
``--seeds``, with the installed code, and compares their balanced accuracy with the published one.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
import numpy as np
import torch
import yaml

import privbench
from privbench import Membership, Results, Shadows, hookimpl
from privbench.results.sample_files import read_samples
from privbench.results.samples import part
from privbench_plugins.attacks.metric import MetricModifiedEntropy

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle
    from privbench.results.record import Record

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


@dataclass(frozen=True)
class Ruled(MetricModifiedEntropy):
    """The attack with thresholds by one of several rules.

    Attributes:
        place: ``at`` the smallest score that is called a member, or ``between`` it and the largest
            that is not.
        fewest: members and nonmembers that a class needs for a threshold of its own.
        k: number of shadows.
        join: what to do with several: ``pool`` their rows for one threshold, or ``vote``, a member
            where more than half of their thresholds say so. ``rate`` votes too, with thresholds
            that call as many of a shadow's nonmembers members of the victim as of the shadow: the
            victim has seen none of these rows.
    """

    name: ClassVar[str] = "ruled"
    place: Literal["at", "between"] = "at"
    fewest: int = 1
    k: int = 1
    join: Literal["pool", "vote", "rate"] = "pool"

    @property
    def shadows(self) -> Shadows:
        """Request k offline shadows."""
        return Shadows(self.k)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) as the base class does, and decide by the rule."""
        asked, y = (one.numpy() for one in self._scores(oracle, question.examples))
        votes = []
        for group in [ctx.shadows] if self.join == "pool" else [[one] for one in ctx.shadows]:
            inside = [self._scores(one.oracle, one.world.members) for one in group]
            outside = [self._scores(one.oracle, one.nonmembers) for one in group]
            scores, classes = (
                [torch.cat([side[i] for side in sides]).numpy() for sides in (inside, outside)]
                for i in (0, 1)
            )
            overall = self._best(*scores)
            if self.join == "rate":
                again = self._scores(oracle, group[0].nonmembers)[0].numpy()
                votes.append(asked > np.sort(again)[::-1][int((scores[1] >= overall).sum())])
                continue
            decisions = asked >= overall
            for one in np.unique(y):
                sides = [side[of == one] for side, of in zip(scores, classes, strict=True)]
                if min(map(len, sides)) >= self.fewest:
                    decisions[y == one] = asked[y == one] >= self._best(*sides)
            votes.append(decisions)
        member = 2 * np.sum(votes, axis=0) > len(votes)
        return Membership(torch.from_numpy(asked), torch.from_numpy(member))

    def _best(self, inside: np.ndarray, outside: np.ndarray) -> float:
        """The largest threshold of the best balanced accuracy, by trying all."""
        values = np.unique(np.concatenate([inside, outside]))[::-1]
        gains = [(inside >= v).mean() - (outside >= v).mean() for v in values]
        best = int(np.argmax(np.round(gains, 12)))
        if gains[best] <= 0:
            return float("inf")
        after = values[best + 1] if best + 1 < len(values) else values[best]
        return float(values[best] if self.place == "at" else (values[best] + after) / 2)


#: Where a threshold stands, and the fewest members and nonmembers of a class with one of its own.
RULES = {
    f"{place}, {'never' if fewest == MANY else fewest}": {"place": place, "fewest": fewest}
    for place, fewest in (
        ("at", 1), ("between", 1), ("at", 30), ("between", 30), ("between", 100), ("between", MANY),
    )
}  # fmt: skip
#: With the second-last rule of the first table.
SEVERAL = {
    f"{k} {join}": {"place": "between", "fewest": 30, "k": k, "join": join}
    for k, join in (
        (1, "pool"), (4, "pool"), (8, "pool"), (4, "vote"), (8, "vote"), (1, "rate"), (4, "rate"),
    )
}  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [Ruled()]


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seeds", default=3)
@click.option("--several", is_flag=True, help="Rules with several shadows, on three victims.")
@click.option("--board", help="Compare this board instead.")
@click.option("--target", help="Only this target of the board's suite.")
@click.option("--dataset", help="Only this dataset of the board's suite.")
def main(
    data_root: Path, seeds: int, *, several: bool, board: str | None, **only: str | None
) -> None:
    """Print a table of rules, or of a board."""
    if several:
        rules(dict(list(SUITES.items())[:3]), SEVERAL, data_root, seeds)
    elif board is None:
        rules(SUITES, RULES, data_root, seeds)
    else:
        republished(board, data_root, seeds, only)


#: Attacks whose decisions rest on ``best_threshold``.
THRESHOLDED = (
    "metric-confidence", "metric-entropy", "metric-modified-entropy", "adversarial-mia",
    "adversarial-mia-targeted", "label-only-boundary", "label-only-noise", "encodermi-t", "lira",
    "lira-offline", "lira-encoder", "rmia", "rmia-offline", "imia", "pmia",
)  # fmt: skip


def republished(board: str, data_root: Path, seeds: int, only: dict[str, str | None]) -> None:
    """Print published balanced accuracies beside those of the installed code."""
    folder = Path(__file__).parents[1]
    suite = yaml.safe_load((folder / "suites" / f"{board}.yaml").read_text("utf-8"))
    suite["attacks"] = [one for one in suite["attacks"] if named(one) in THRESHOLDED]
    for kind, name in only.items():
        if name:
            suite[f"{kind}s"] = [one for one in suite[f"{kind}s"] if named(one) == name]
    suite |= {"seeds": seeds, "controls": False}
    with tempfile.TemporaryDirectory() as out:
        now = privbench.run(suite, out=out, data_root=data_root)
    published = {cell(one): one for one in Results.read(folder / "results" / f"{board}.jsonl")}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for one in now:
        old = published.get(cell(one))
        pair = [r and r.metrics.get("balanced_accuracy") for r in (old, one)]
        if old is not None and all(number and number.value is not None for number in pair):
            what = f"{one.cell.attack.name} × {one.cell.target.name} × {one.cell.dataset.name}"
            drift = abs(old.metrics["auc"].value - one.metrics["auc"].value)
            found.setdefault(what, []).append((pair[0].value, pair[1].value, drift))
    for what, pairs in sorted(found.items()):
        old, new, drift = (np.array(column) for column in zip(*pairs, strict=True))
        most = (new - old)[np.abs(new - old).argmax()]
        click.echo(f"| {board} | {what} | {len(pairs)} | {old.mean():.3f} | {new.mean():.3f} | "
                   f"{(new - old).mean():+.3f} | {most:+.3f} | {drift.max():.3f} |")  # fmt: skip


def named(method: str | dict[str, Any]) -> str:
    """The name of a method in a suite."""
    return method if isinstance(method, str) else next(iter(method))


def cell(record: Record) -> tuple[object, ...]:
    """What is equal in a published result and the same one of today."""
    of = record.cell
    return (of.dataset.label, of.target.label, of.defense, of.adversary, of.attack.label,
            of.attack.name, record.seed)  # fmt: skip


def rules(
    suites: dict[str, dict[str, Any]], table: dict[str, dict[str, Any]], data_root: Path, seeds: int
) -> None:
    """Print a table of rules: means over seeds, and each seed of the rules."""
    click.echo(f"| victim | AUC | {' | '.join(table)} | best single |")
    click.echo("|---" * (len(table) + 3) + "|")
    for name, suite in suites.items():
        attacks = [{"ruled": fields} for fields in table.values()]
        with tempfile.TemporaryDirectory() as folder:
            results = privbench.run(
                {**suite, "attacks": attacks, "seeds": seeds}, out=folder, data_root=data_root,
                plugins=[Path(__file__)],
            )  # fmt: skip
            best = [reachable(record, Path(folder)) for record in results]
        told: list[list[float]] = [[], *([] for _ in table)]
        rows = list(table.values())
        for record in results:
            fields = record.cell.attack.fields
            at = next(i for i, one in enumerate(rows) if one.items() <= fields.items())
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
