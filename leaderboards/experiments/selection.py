# ruff: noqa: INP001 - a script
"""How often a board claims that a defense lowers a leak where no defense does, by simulation.

``uv run python leaderboards/experiments/selection.py [RUNS]`` prints the table of ``selection.md``.
Five seeds; each attack has a strength of its own on each seed, and its number on a defense is that
plus noise, whether there is a defense or none. So nothing differs, and each sentence that says
"lowers", and each † of a ranking, is false. The sentence claims one side of a 95 % interval: its
nominal rate is 2.5 %. Any † among the defenses of a board has 5 %, both sides.

A second table compares rules that choose the attack whose difference is tested: the strongest
without a defense on the same seeds or on other seeds, and with and without one on other seeds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click
import numpy as np
from scipy.stats import t

from privbench.boards.board import Leaderboard
from privbench.boards.closing import closing
from privbench.measure.games.catalog import GAMES
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record

SEEDS = 5
#: Defenses and attacks of a board.
CASES = tuple((k, 1) for k in (1, 4, 9, 16)) + tuple((1, k) for k in (4, 9, 16)) + ((9, 9),)


@dataclass(frozen=True)
class Claims:
    """Shares of boards without any difference.

    Attributes:
        lowers: whose closing sentence says that a defense lowers the leak.
        marked: with a † at any defense.
    """

    lowers: float
    marked: float


def false_claims(defenses: int, attacks: int, runs: int, seed: int = 0) -> Claims:
    """Return how often a board of as many defenses and equal attacks claims a difference."""
    rng = np.random.default_rng(seed)
    board = [[[_record(f"a{a:02}", f"d{d:02}" if d else "none", s) for s in range(SEEDS)]
              for d in range(defenses + 1)] for a in range(attacks)]  # fmt: skip
    records = [one for of in board for row in of for one in row]
    lowers = marked = 0
    for _ in range(runs):
        shared = rng.normal(size=(attacks, 1, SEEDS))
        values = 0.7 + 0.02 * (shared + rng.normal(size=(attacks, defenses + 1, SEEDS)))
        for one, value in zip(records, values.ravel(), strict=True):
            one.metrics["auc"] = Number(value=value, low=value - 0.1, high=value + 0.1)
        made = Leaderboard(records)
        (panel,) = made.panels
        lowers += " lowers " in closing(made)[0]
        marked += bool(panel.certain)
    return Claims(lowers / runs, marked / runs)


def _record(attack: str, defense: str, seed: int) -> Record:
    def method(name: str) -> MethodRecord:
        return MethodRecord(name=name, label=name, version=1, fields={})

    cell = CellRecord(
        dataset=method("digits"), protocol={"name": "default"}, target=method("simclr"),
        defenses=[method(defense)],
        knows=AdversaryRecord(), adversary="adaptive", attack=method(attack),
        game="membership", sensitive=[], preset="cpu", access="POSTERIORS", protects=[],
        needs="POSTERIORS",
    )  # fmt: skip
    return Record(trial=f"{attack} {defense} {seed}", cell=cell, seed=seed, status="ok",
                  board=GAMES["membership"].board)  # fmt: skip


def rules(attacks: int, runs: int, seed: int = 0, spread: float = 1) -> list[tuple[float, float]]:
    """Return how often each rule for the attack claims less and more, at 2.5 % nominally each.

    The third is that of ``compared``, for all runs at once. `spread` is the standard deviation over
    seeds with the defense, times that without it.
    """
    rng = np.random.default_rng(seed)
    none, other = rng.normal(size=(2, runs, attacks, SEEDS)) * np.array([1, spread])[:, *[None] * 3]
    most = t.ppf(0.975, SEEDS - 1)
    made = []
    for by, elsewhere in ((none, False), (none, True), (none + other, True)):
        chosen = (by.sum(2, keepdims=True) - elsewhere * by).argmax(1)[:, None]
        found = np.take_along_axis(other - none, chosen, 1)[:, 0]
        ratio = found.mean(1) / (found.std(1, ddof=1) / np.sqrt(SEEDS))
        made.append((float((ratio < -most).mean()), float((ratio > most).mean())))
    return made


def main(runs: int) -> None:
    """Print the tables."""
    click.echo("| defenses | attacks | false “lowers” | false † |\n|---|---|---|---|")
    for defenses, attacks in CASES:
        found = false_claims(defenses, attacks, runs)
        click.echo(f"| {defenses} | {attacks} | {found.lowers:.1%} | {found.marked:.1%} |")
    click.echo("\n| attacks | same seeds | other seeds | other seeds, both |\n|---|---|---|---|")
    for attacks in (1, 4, 9, 16):
        told = " | ".join(f"{less:.1%}, {more:.1%}" for less, more in rules(attacks, 20 * runs))
        click.echo(f"| {attacks} | {told} |")
    click.echo("\n| attacks | spread | other seeds, both |\n|---|---|---|")
    for attacks, spread in ((4, 0.5), (16, 0.5), (4, 0.2), (16, 0.2), (16, 2.0)):
        less, more = rules(attacks, 20 * runs, spread=spread)[2]
        click.echo(f"| {attacks} | {spread:g} | {less:.1%}, {more:.1%} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
