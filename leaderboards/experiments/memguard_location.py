# ruff: noqa: INP001 - a script
"""MemGuard's table on Location-30, with accuracy as the expectation over the release's coin.

    uv run python leaderboards/experiments/memguard_location.py --data-root ROOT --seeds 3

A grid draws one coin per row; the authors (CCS 2019; their repository) report what an attack
gets right on average over coins: p on noisy posteriors, 1 - p on true ones. Phase I does not depend
on the budget, so it runs once for all of them. Sizes are the authors' (protocol ``memguard``).
Attacks are networks trained on a shadow's answers:

- ``posteriors``: all posteriors, sorted (hidden layers of 256, 128, 64, as the defender's);
- ``nn-mia``: the two largest, and whether the label is right (Talos).

A naive attacker trains on true posteriors of its shadow, as published; an adaptive one on what its
own MemGuard releases under the same budget. The victim is the authors' (layers, Glorot's weights,
SGD, 200 epochs of whole batches), and so is the defender. Rows are drawn by the seed; ``--authors
FOLDER`` takes those that the authors take, in the order of ``FOLDER/shuffle_index.npz``.
``--layers`` compares victim, defender, phase I and attack with the predictions that lie there too:
a re-run of the authors' code by Song and Mittal (inspire-group/membership-inference-evaluation,
folder MemGuard).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from torch import Tensor, nn

from privbench.ground.store.store import Store, default_root
from privbench.measure.data.row_random import fold, uniform
from privbench.measure.data.split import cut
from privbench.measure.methods.context import seeded
from privbench.measure.training.nets import mlp
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins import registry as plugins
from privbench.results.statistics import mean_over_seeds
from privbench.toolbox.classifiers import fit, logits
from privbench_plugins.attacks.nn_mia import talos_features
from privbench_plugins.defenses.memguard import Guard, MemGuard, phase_one, probability

if TYPE_CHECKING:
    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import Split, World

BUDGETS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
VICTIM = {"hidden": (1024, 512, 256, 128), "initial": "glorot", "optimizer": "sgd", "lr": 0.01,
          "drops": (0.75,), "epochs": 1}  # fmt: skip
#: Passes of victim and shadow. Under the authors' Python 2, 1000 / 64 is 15: the rows that are left
#: over after the last whole batch of a pass wait for the next.
EPOCHS, BATCH = 200, 64
SIDES = ("victim's members", "victim's nonmembers", "shadow's members", "shadow's nonmembers")
PUBLISHED = (0.73, 0.69, 0.62, 0.55, 0.52, 0.50)


Read = Callable[[Tensor, Tensor], Tensor]


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


def released(folder: Path, rows: Examples) -> tuple[list[Answers], list[Answers]]:
    """Predictions of the authors' code: for victim and for shadow, on members and on nonmembers.

    Args:
        folder: with ``location_target_predictions.npz`` and ``location_shadow_predictions.npz``.
        rows: in the authors' order.
    """

    def parts(name: str, size: int, starts: tuple[int, int]) -> list[Answers]:
        said = np.load(_file(folder, f"location_{name}_predictions.npz"))
        true, noisy, before, after = (
            torch.from_numpy(said[column]).double().split(size)
            for column in ("tc_output", "defense_output", "predict_origin", "predict_modified")
        )
        return [
            Answers(
                true[i], noisy[i], before[i].squeeze(1).logit(), after[i].squeeze(1).logit(),
                _part(rows, start, size),
            )
            for i, start in enumerate(starts)
        ]  # fmt: skip

    return parts("target", 1000, (0, 2000)), parts("shadow", 500, (3000, 4000))


def answers(
    workshop: Builder, job: Callable[[World, bool], VictimSpec], world: World, rows: Examples
) -> Answers:
    """Phase I on rows, by the model and the defender of that world."""
    plain, guarded = workshop.victim(job(world, False)), workshop.victim(job(world, True))
    (guard,) = guarded.releases
    assert isinstance(guard, Guard)  # noqa: S101 - it is MemGuard's
    true = plain.log_posteriors(rows.x).exp()
    noisy = noised(guard, true)
    with torch.no_grad():
        return Answers(true, noisy, guard.log_odds(true), guard.log_odds(noisy), rows)


FEATURES: dict[str, Read] = {
    "posteriors": lambda p, _: p.sort(1, descending=True).values.float(),
    "nn-mia": talos_features,
}


def attacker(read: Read, shadow: list[Answers], budget: float | None, seed: int) -> nn.Module:
    """A network trained on shadow answers (in, out), under a budget or (None) without noise."""
    said = [a.true if budget is None else a.drawn(budget, seed) for a in shadow]
    x = torch.cat([read(p, a.rows.y) for p, a in zip(said, shadow, strict=True)])
    y = torch.cat([torch.full((len(p),), 1 - i) for i, p in enumerate(said)])
    network = seeded(lambda: mlp([x.shape[1], 256, 128, 64, 2]), seed)
    return fit(
        network, x, y, lr=1e-3, batch=64, epochs=100, steps=2000,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def accuracy(network: nn.Module, read: Read, asked: list[Answers], budget: float) -> float:
    """Expected balanced accuracy of an attacker on answers (in, out) under a budget."""
    rates = []
    for side, a in enumerate(asked):
        right = [
            logits(network, read(p, a.rows.y)).argmax(1) == 1 - side for p in (a.true, a.noisy)
        ]
        p = a.chance(budget)
        rates.append(float(((1 - p) * right[0] + p * right[1]).mean()))
    return sum(rates) / 2


Cut = tuple["World", "Examples", "World", "Examples"]


def drawn(split: Split, rows: Examples) -> Cut:
    """Victim and its nonmembers, shadow and its nonmembers, of rows that the seed draws."""
    del rows
    nonmembers = split.candidates.select(~split.member)
    return split.victim(), nonmembers, *split.offline(0)


def authors(split: Split, rows: Examples) -> Cut:
    """The same parts by position in the authors' order, as their code takes them.

    Rows 0 to 1,000 are the victim's members, 1,000 to 2,000 the defender's nonmembers, 2,000 to
    3,000 are asked about beside the members; 3,000 to 3,500 are a shadow's members, 4,000 to 4,500
    its nonmembers. Rows 3,500 to 4,000 are its defender's, which the authors' attack does without.
    """
    victim, shadow = split.victim(), split.offline(0)[0]
    return (
        victim.replace(members=_part(rows, 0, 1000), reference=_part(rows, 1000, 1000)),
        _part(rows, 2000, 1000),
        shadow.replace(members=_part(rows, 3000, 500), reference=_part(rows, 3500, 500)),
        _part(rows, 4000, 500),
    )


def ordered(rows: Examples, folder: Path) -> Examples:
    """Rows in the authors' order.

    Raises:
        click.UsageError: if the folder has no such order of these rows.
    """
    path = _file(folder, "shuffle_index.npz")
    order = torch.from_numpy(np.load(path)["x"]).long()
    if not torch.equal(order.sort().values, torch.arange(len(rows))):
        raise click.UsageError(
            f"{path} holds no permutation of the {len(rows):,} rows: take it from the authors' "
            "repository."
        )
    return rows.select(order)


def _part(rows: Examples, start: int, size: int) -> Examples:
    return rows.select(slice(start, start + size))


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise click.UsageError(
            f"{path} is missing: give the folder that holds {name} of "
            "inspire-group/membership-inference-evaluation (MemGuard)."
        )
    return path


def defender(
    settings: MemGuard, inside: Tensor, outside: Tensor, seed: int, *, torch_weights: bool
) -> Guard:
    """A defender trained on posteriors; from torch's own weights, as in versions 1 and 2."""
    guard = seeded(lambda: Guard(settings, inside.shape[1]), seed)

    def again() -> None:
        for layer in guard.classifier.layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    if torch_weights:
        seeded(again, seed)
    x = torch.cat([outside, inside]).sort(1, descending=True).values
    y = (torch.arange(len(x)) >= len(outside)).long()
    fit(
        guard.classifier, x, y, lr=settings.lr, batch=settings.batch, epochs=settings.epochs,
        steps=settings.updates, optimizer=settings.optimizer,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    guard.requires_grad_(False)
    return guard


def noised(guard: Guard, p: Tensor) -> Tensor:
    """Posteriors (n, classes) with the noise of phase I."""
    return p + phase_one(p, guard.log_odds, guard.settings.iterations, guard.settings.bisections)


def of_victim(true: Tensor, y: Tensor) -> dict[str, float]:
    """How right and how sure a model is of rows."""
    top = true.amax(1)
    return {
        "accuracy": float((true.argmax(1) == y).double().mean()),
        "largest posterior, mean": float(top.mean()),
        **{f"largest posterior, {q:.0%}": float(top.quantile(q)) for q in (0.05, 0.5, 0.95)},
        "entropy, mean": float(torch.special.entr(true).sum(1).mean()),
    }


def of_defender(asked: list[Answers], theirs: list[Answers]) -> dict[str, float]:
    """Log-odds h on the same posteriors, and verdicts beside the released ones."""
    h, released_h = (torch.cat([a.before for a in each]) for each in (asked, theirs))
    found = {
        f"{side}, {q:.0%}": float(a.before.quantile(q))
        for side, a in zip(("members", "nonmembers"), asked, strict=True)
        for q in (0.05, 0.5, 0.95)
    }
    return {
        **found,
        "correlation with the released": float(torch.corrcoef(torch.stack([h, released_h]))[0, 1]),
        "share of equal verdicts": float(((h > 0) == (released_h > 0)).double().mean()),
    }


def of_phase_one(a: Answers, theirs: Answers) -> dict[str, float]:
    """What noise does to the same posteriors, and how far it is from the released noise."""
    d = (a.noisy - a.true).abs().sum(1)
    return {
        "verdict turned": float(((a.before > 0) != (a.after > 0)).double().mean()),
        "length in L1, mean": float(d.mean()),
        "none found": float((d == 0).double().mean()),
        "rejected by phase II": float(((a.chance(1.0) == 0) & (d > 0)).double().mean()),
        "L1 to the released answer, median": float((a.noisy - theirs.noisy).abs().sum(1).median()),
    }


def layers(
    theirs: tuple[list[Answers], list[Answers]],
    ours: tuple[list[Answers], list[Answers]],
    reference: Tensor,
    seed: int,
) -> dict[tuple[str, str], dict[str, float]]:
    """One seed of the table: measures of (layer, what) by column.

    Args:
        theirs: of the released predictions: victim's, shadow's.
        ours: the same of our victim and shadow.
        reference: our victim's posteriors of the defender's nonmembers.
        seed: of the defenders and of the attack.
    """
    made: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)

    def note(layer: str, column: str, values: dict[str, float]) -> None:
        for what, value in values.items():
            made[layer, what][column] = value

    for column, (victim, shadow) in (("released", theirs), ("ours", ours)):
        for side, a in zip(SIDES, (*victim, *shadow), strict=True):
            note(side, column, of_victim(a.true, a.rows.y))
        read = FEATURES["posteriors"]
        network = attacker(read, shadow, None, seed)
        note(
            "attack *posteriors naive*",
            column,
            {f"accuracy, budget {b:g}": accuracy(network, read, victim, b) for b in (0.0, 1.0)},
        )
    guards = {
        "ours": (MemGuard(), False),
        "ours from torch's weights": (MemGuard(), True),
        "ours by Adam": (MemGuard(optimizer="adam", bisections=20), False),
    }
    asked = {"released": theirs[0]}
    for column, (settings, torch_weights) in guards.items():
        guard = defender(settings, ours[0][0].true, reference, seed, torch_weights=torch_weights)
        asked[column] = [
            Answers(a.true, noisy, guard.log_odds(a.true), guard.log_odds(noisy), a.rows)
            for a in theirs[0]
            for noisy in [noised(guard, a.true)]
        ]
    for column, said in asked.items():
        note("defender's log-odds on released posteriors", column, of_defender(said, theirs[0]))
        for side, a, b in zip(("members", "nonmembers"), said, theirs[0], strict=True):
            note(f"phase I on released posteriors, {side}", column, of_phase_one(a, b))
    return made


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--seeds", default=3)
@click.option(
    "--authors", "folder", type=click.Path(path_type=Path), metavar="FOLDER",
    help="The authors' rows, by its shuffle_index.npz; seeds are of training only.",
)  # fmt: skip
@click.option("--layers", "by_layer", is_flag=True, help="Compare with the predictions in FOLDER.")
def main(data_root: Path, seeds: int, *, folder: Path | None, by_layer: bool) -> None:
    """Print the table."""
    if by_layer and folder is None:
        raise click.UsageError("--layers needs --authors FOLDER, the folder of the predictions.")
    registry = plugins.load()
    data = registry.get("dataset", "location-30")
    card, protocol = data.card(data_root), data.protocols["memguard"]
    target = registry.get("target", "supervised").replace(**VICTIM)
    guard = registry.get("defense", "memguard")
    workshop = Builder(Store(default_root()), torch.device("cpu"))
    everyone = data.load(data_root)
    rows = ordered(everyone, folder) if folder else everyone
    theirs = released(folder, rows) if folder and by_layer else None

    def job(world: World, guarded: bool) -> VictimSpec:
        updates = EPOCHS * (len(world.members) // BATCH)
        sized = target.replace(updates=updates, batch=BATCH)
        return VictimSpec(card, protocol, world, sized, (guard,) if guarded else ())

    found: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    compared: list[dict[tuple[str, str], dict[str, float]]] = []
    for seed in range(seeds):
        victim, nonmembers, world, outside = (authors if folder else drawn)(
            cut(everyone, card, protocol, seed), rows
        )
        shadow = [answers(workshop, job, world, part) for part in (world.members, outside)]
        asked = [answers(workshop, job, victim, part) for part in (victim.members, nonmembers)]
        turned = ((asked[0].before > 0) != (asked[0].after > 0)).double().mean()
        click.echo(f"seed {seed}: noise turns the defender for {turned:.1%} of members", err=True)
        if theirs:
            plain = workshop.victim(job(victim, False)).log_posteriors(victim.reference.x).exp()
            compared.append(layers(theirs, (asked, shadow), plain, seed))
            continue
        naive = {name: attacker(read, shadow, None, seed) for name, read in FEATURES.items()}
        for budget in BUDGETS:
            for name, read in FEATURES.items():
                adaptive = attacker(read, shadow, budget, seed)
                for who, network in (("naive", naive[name]), ("adaptive", adaptive)):
                    found[name, who, budget].append(accuracy(network, read, asked, budget))
            spent = [
                float((a.chance(budget) * (a.noisy - a.true).abs().sum(1)).mean()) for a in asked
            ]
            found["distortion", "spent", budget].append(sum(spent) / 2)
    click.echo(layers_table(compared) if theirs else budgets_table(found))


def layers_table(compared: list[dict[tuple[str, str], dict[str, float]]]) -> str:
    """Markdown; a cell holds the values of all seeds from smallest to largest."""
    columns = ("released", "ours", "ours from torch's weights", "ours by Adam")
    lines = ["| layer | measure | " + " | ".join(columns) + " |", "|---|---|---|---|---|---|"]
    for layer, what in compared[0]:
        cells = []
        for column in columns:
            values = [f"{v:.3f}" for v in sorted(
                one[layer, what][column] for one in compared if column in one[layer, what]
            )]  # fmt: skip
            cells.append(" to ".join(dict.fromkeys([*values[:1], *values[-1:]])))
        lines.append(f"| {layer} | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def budgets_table(found: dict[tuple[str, str, float], list[float]]) -> str:
    """Markdown; means over seeds with their intervals."""
    kinds = sorted({key[:2] for key in found})
    lines = [
        "| budget | published | " + " | ".join(" ".join(kind) for kind in kinds) + " |",
        "|---|---|" + "---|" * len(kinds),
    ]
    for budget, published in zip(BUDGETS, PUBLISHED, strict=True):
        cells = []
        for kind in kinds:
            mean = mean_over_seeds(found[*kind, budget])
            most = 2.0 if kind[0] == "distortion" else 1.0
            low, high = max(mean.low, 0.0), min(mean.high, most)
            cells.append(f"{mean.value:.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {budget:g} | {published:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
