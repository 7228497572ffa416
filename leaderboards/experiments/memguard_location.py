# ruff: noqa: INP001 - a script
"""MemGuard's table on Location-30, with accuracy as the expectation over the release's coin.

    uv run python leaderboards/experiments/memguard_location.py --data-root ROOT --seeds 3

A grid draws one coin per row; the authors (CCS 2019; their repository) report what an attack
gets right on average over coins: p on noisy posteriors, 1 - p on true ones. Phase I does not depend
on the budget, so it runs once for all of them. Sizes are the authors' (protocol ``memguard``), 200
epochs. Attacks are networks trained on a shadow's answers:

- ``posteriors``: all posteriors, sorted (hidden layers of 256, 128, 64, as the defender's);
- ``nn-mia``: the two largest, and whether the label is right (Talos).

A naive attacker trains on true posteriors of its shadow, as published; an adaptive one on what its
own MemGuard releases under the same budget. The victim is the authors' (layers, Glorot's weights,
SGD), and so is the defender; with ``--own-defender`` it is this package's. Rows are drawn by the
seed; ``--in-order`` takes those that the authors take.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from privbench.data.row_random import fold, uniform
from privbench.data.split import cut
from privbench.games.metrics import mean_over_seeds
from privbench.methods import registry as plugins
from privbench.methods.context import seeded
from privbench.store.store import Store, default_root
from privbench.training.nets import mlp
from privbench.victims.build import Builder
from privbench.victims.spec import VictimSpec
from privbench_plugins._shared.classifiers import fit, logits
from privbench_plugins.attacks.nn_mia import talos_features
from privbench_plugins.defenses.memguard import Guard, phase_one, probability

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench.data.examples import Examples
    from privbench.data.split import Split, World

BUDGETS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
VICTIM = {"hidden": (1024, 512, 256, 128), "initial": "glorot", "optimizer": "sgd", "lr": 0.01,
          "drops": (0.75,), "epochs": 200}  # fmt: skip
DEFENDER = {"optimizer": "sgd", "bisections": 0}
PUBLISHED = (0.73, 0.69, 0.62, 0.55, 0.52, 0.50)


@dataclass(frozen=True)
class Answers:
    """What a guarded model may say of rows: true posteriors, noisy ones, and how often which."""

    true: Tensor
    noisy: Tensor
    before: Tensor
    after: Tensor
    rows: Examples

    def chance(self, budget: float) -> Tensor:
        """Of the noisy ones (n,)."""
        d = (self.noisy - self.true).abs().sum(1)
        return probability(d, self.before, self.after, budget)

    def drawn(self, budget: float, seed: int) -> Tensor:
        """Posteriors under one coin for each row."""
        coin = uniform(fold(self.rows.keys, seed), 1)
        return torch.where(coin < self.chance(budget)[:, None], self.noisy, self.true)


def answers(
    workshop: Builder, job: Callable[[World, bool], VictimSpec], world: World, rows: Examples
) -> Answers:
    """Phase I on rows, by the model and the defender of that world."""
    plain, guarded = workshop.victim(job(world, False)), workshop.victim(job(world, True))
    (guard,) = guarded.releases
    assert isinstance(guard, Guard)  # noqa: S101 - it is MemGuard's
    true = plain.log_posteriors(rows.x).exp()
    noisy = true + phase_one(
        true, guard.log_odds, guard.settings.iterations, guard.settings.bisections
    )
    with torch.no_grad():
        return Answers(true, noisy, guard.log_odds(true), guard.log_odds(noisy), rows)


FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "posteriors": lambda p, _: p.sort(1, descending=True).values.float(),
    "nn-mia": talos_features,
}


def accuracy(
    read: Callable[[Tensor, Tensor], Tensor],
    shadow: list[Answers],
    budget: float | None,
    *,
    asked: list[Answers],
    budget_asked: float,
    seed: int,
) -> float:
    """Expected balanced accuracy of a network trained on shadow answers (in, out)."""
    said = [a.true if budget is None else a.drawn(budget, seed) for a in shadow]
    x = torch.cat([read(p, a.rows.y) for p, a in zip(said, shadow, strict=True)])
    y = torch.cat([torch.full((len(p),), 1 - i) for i, p in enumerate(said)])
    network = seeded(lambda: mlp([x.shape[1], 256, 128, 64, 2]), seed)
    fit(
        network,
        x,
        y,
        lr=1e-3,
        batch=64,
        epochs=100,
        steps=2000,
        generator=torch.Generator().manual_seed(seed),
    )
    rates = []
    for side, a in enumerate(asked):
        right = [
            logits(network, read(p, a.rows.y)).argmax(1) == 1 - side for p in (a.true, a.noisy)
        ]
        p = a.chance(budget_asked)
        rates.append(float(((1 - p) * right[0] + p * right[1]).mean()))
    return sum(rates) / 2


Cut = tuple["World", "Examples", "World", "Examples"]


def drawn(split: Split, rows: Examples) -> Cut:
    """Victim and its nonmembers, shadow and its nonmembers, of rows that the seed draws."""
    del rows
    nonmembers = split.candidates.select(~split.member)
    return split.victim(), nonmembers, *split.offline(0)


def authors(split: Split, rows: Examples) -> Cut:
    """The same parts by position, as the authors' code takes them.

    Rows 0 to 1,000 are the victim's members, 1,000 to 2,000 the defender's nonmembers, 2,000 to
    3,000 are asked about beside the members; 3,000 to 3,500 are a shadow's members, 4,000 to 4,500
    its nonmembers. Rows 3,500 to 4,000 are its defender's, which the authors' attack does without.
    """

    def part(start: int, stop: int) -> Examples:
        return rows.select(slice(start, stop))

    victim = split.victim().replace(members=part(0, 1000), reference=part(1000, 2000))
    shadow = split.offline(0)[0].replace(members=part(3000, 3500), reference=part(3500, 4000))
    return victim, part(2000, 3000), shadow, part(4000, 4500)


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seeds", default=3)
@click.option("--in-order", is_flag=True, help="The authors' rows; seeds are of training only.")
@click.option("--own-defender", is_flag=True, help="This package's, not the authors'.")
def main(data_root: Path, seeds: int, *, in_order: bool, own_defender: bool) -> None:
    """Print the table."""
    registry = plugins.load()
    data = registry.get("dataset", "location-30")
    card, protocol = data.card(data_root), data.protocols["memguard"]
    target = registry.get("target", "supervised").replace(**VICTIM)
    guard = registry.get("defense", "memguard").replace(**({} if own_defender else DEFENDER))
    workshop = Builder(Store(default_root()), torch.device("cpu"))

    def job(world: World, guarded: bool) -> VictimSpec:
        return VictimSpec(card, protocol, world, target, (guard,) if guarded else ())

    found: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for seed in range(seeds):
        rows = data.load(data_root)
        victim, nonmembers, world, outside = (authors if in_order else drawn)(
            cut(rows, card, protocol, seed), rows
        )
        shadow = [answers(workshop, job, world, rows) for rows in (world.members, outside)]
        asked = [answers(workshop, job, victim, rows) for rows in (victim.members, nonmembers)]
        for budget in BUDGETS:
            for name, read in FEATURES.items():
                for who, mine in (("naive", None), ("adaptive", budget)):
                    got = accuracy(read, shadow, mine, asked=asked, budget_asked=budget, seed=seed)
                    found[name, who, budget].append(got)
            spent = [
                float((a.chance(budget) * (a.noisy - a.true).abs().sum(1)).mean()) for a in asked
            ]
            found["distortion", "spent", budget].append(sum(spent) / 2)
        turned = ((asked[0].before > 0) != (asked[0].after > 0)).double().mean()
        click.echo(f"seed {seed}: noise turns the defender for {turned:.0%} of members", err=True)
    kinds = sorted({key[:2] for key in found})
    click.echo("| budget | published | " + " | ".join(" ".join(kind) for kind in kinds) + " |")
    click.echo("|---|---|" + "---|" * len(kinds))
    for budget, published in zip(BUDGETS, PUBLISHED, strict=True):
        cells = []
        for kind in kinds:
            mean = mean_over_seeds(found[*kind, budget])
            most = 2.0 if kind[0] == "distortion" else 1.0
            low, high = max(mean.low, 0.0), min(mean.high, most)
            cells.append(f"{mean.value:.3f} [{low:.3f}, {high:.3f}]")
        click.echo(f"| {budget:g} | {published:.2f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
