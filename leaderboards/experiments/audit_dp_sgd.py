# ruff: noqa: INP001 - a script
"""A white-box audit of ``dp-sgd`` by gradient canaries, which must refute broken versions of it.

    uv run python leaderboards/experiments/audit_dp_sgd.py --runs 10

The attack ``gradient-canary`` on ``dp-sgd`` with ``gradient_canaries`` is the audit in the grid;
its card says how. Here the same plugin trains with a fault. Some members are in every run, and each
of M canaries is a member by a fair coin. Training runs as in a grid: its own batches, and the
plugin's phases, clipping, noise and optimizer.

The guesses are those of ``measure.games.audit``; the claim is refuted if its p-value is below
2.5 %. Broken are, each with the claim of the sound version:

- ``no clipping``: noise is added, but gradients are not clipped;
- ``no Poisson sampling``: shuffled batches of equal size, with the accounting of Poisson sampling;
- ``no delta``: sigma as if (epsilon, delta) needed no delta: 1 / epsilon in place of what the
  accountant finds, at full batches in one step.

One run cannot show shuffled batches. A shuffled row is in exactly one batch of an epoch; Poisson
sampling leaves about e^-1 of the rows out of all batches; so the claim differs only where it allows
a delta near 1/2 at a small epsilon, and a mechanism that reveals *all* coins of a run with that
chance satisfies it. ``no Poisson sampling`` is therefore audited by 200 short runs with one coin
each, which are independent: the canary is guessed to be a member if its score is positive, and the
number of right guesses is compared with the best chance under the claimed sampling
(``honest_chance``; a profile of a few deltas is too coarse here). In simulations of the scores
alone, 200 runs refute shuffling in 99.5 % of audits (100 runs: 84 %, 50 runs: 46 %) and Poisson
sampling in 1.7 %. The other faults are audited in one run each.

A claim that does not *state* its delta, (epsilon, 0), is refuted by no number of guesses at this
size: outputs that show more than epsilon come once in 1 / delta = 100,000 coins. But it contradicts
the accountant's profile, and ``privbench.measure.games.audit.contradiction`` refuses it.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from scipy.stats import binom

from privbench.ground.store.store import Store
from privbench.measure.data.examples import Examples, join
from privbench.measure.data.protocol import Protocol
from privbench.measure.data.split import World
from privbench.measure.games import audit
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import BatchSpec
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.toolbox.gradient_canaries import PART, directions
from privbench_plugins.attacks.gradient_canary import log_ratios
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

#: A claim is refuted below this p-value.
ERROR = audit.ERROR
_DATA = Digits()
_PROTOCOL = Protocol(name="gradient-canaries", members=1, nonmembers=1, pool=2, inclusion="coin")


@dataclass(frozen=True)
class Setting:
    """How DP-SGD runs and is audited.

    Attributes:
        defense: the sound version, whose claim is tested.
        broken: fields of the version that runs instead, if it is another.
        epochs: passes over the members.
        rows: members of every run.
        canaries: coins of a run.
        runs: runs of an audit.
        clips: whether gradients are clipped.
        kind: how batches are drawn.
    """

    defense: DPSGD
    epochs: int
    rows: int
    canaries: int
    runs: int = 1
    broken: DPSGD | None = None
    clips: bool = True
    kind: str = "poisson"


@cache
def digits() -> Examples:
    """All rows of digits."""
    return _DATA.load(None)


def run(setting: Setting, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], Any]:
    """Train once; return scores (m,) of the canaries, the coins (m,) and the claim."""
    rng = np.random.default_rng(seed)
    member = rng.random(setting.canaries) < 0.5  # noqa: PLR2004 - a fair coin
    order = torch.from_numpy(rng.permutation(len(digits())))
    ordinary = digits().select(order[: setting.rows])
    planted = digits().select(order[setting.rows :][: setting.canaries])
    chosen = torch.from_numpy(member.nonzero()[0])
    world = World({"members": join([ordinary, planted.select(chosen)])} | dict.fromkeys(
        ("reference", "public", "downstream"), ordinary.select(slice(0, 0))
    ), "victim", 0, seed)  # fmt: skip
    target = Supervised(epochs=setting.epochs)
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Store(Path(folder)), torch.device("cpu"))

        def drafted(defense: DPSGD) -> Any:
            card = _DATA.card(None)
            return builder.draft(VictimSpec(card, _PROTOCOL, world, target, (defense,), ()))

        (claim,) = drafted(setting.defense).claims
        draft = drafted(replace(setting.broken or setting.defense, gradient_canaries=True))
        (phase,) = draft.phases
        phase = replace(phase, batch=BatchSpec(phase.batch.size, setting.kind))
        if not setting.clips:
            phase = replace(phase, wrap=unclipping(phase.wrap))
        Training(draft.model, phase, draft.rows(phase), seed).run()
    kept = draft.model[PART + phase.name]
    z = directions(planted.keys, kept.steps.shape[1]) @ kept.steps.T
    spread = float(torch.hypot(kept.noise, (kept.batch / kept.steps.shape[1]).sqrt()))
    return log_ratios(z, float(kept.rate), spread).numpy(), member, claim


@cache
def honest_chance(q: float, sigma: float, steps: int, draws: int = 1_000_000) -> float:
    """The chance of the best guess about one coin under Poisson sampling, and 4 standard errors.

    The score is the likelihood ratio, so the guess by its sign is the best one.
    """
    rng = np.random.default_rng(0)
    member = rng.random(draws) < 0.5  # noqa: PLR2004 - a fair coin
    used = (rng.random((draws, steps)) < q) & member[:, None]
    z = torch.from_numpy(used + sigma * rng.standard_normal((draws, steps)))
    found = log_ratios(z, q, sigma).numpy() > 0
    return float((found == member).mean() + 2 / np.sqrt(draws))


def unclipping(wrap: Any) -> Any:
    """The plugin's wrap, with an optimizer that does not clip."""

    @contextmanager
    def wrapped(training: Training) -> Iterator[None]:
        with wrap(training):
            ((_, optimizer),) = training.optimizers.items()
            dp: Any = optimizer
            dp.clip_and_accumulate = lambda: unclipped(dp.params)
            yield

    return wrapped


def unclipped(params: Any) -> None:
    """Sum the gradients as they are."""
    for p in params:
        p.summed_grad = p.grad_sample.sum(0)


def p_value(setting: Setting, seed: int) -> float:
    """The p-value of the claim in one audit."""
    made = [run(setting, seed * setting.runs + i) for i in range(setting.runs)]
    claim = audit.loosest([one for _, _, one in made])
    if setting.runs > 1:
        right = sum(int(((scores > 0) == member).sum()) for scores, member, _ in made)
        first = made[0][2]
        chance = honest_chance(max(c["sample_rate"][0] for _, _, c in made),
                               first["noise_multiplier"], first["steps"][0])  # fmt: skip
        return float(binom.sf(right - 1, len(made), chance))
    ((scores, member, _),) = made
    runs = [{share: audit.guesses(scores, member, share) for share in audit.SHARES}]
    found = audit.assessed([claim], runs)["audit_p"]
    return getattr(found, "value", 1.0)


_SOUND = DPSGD(epsilon=1.0, batch=100_000)  # all members in each step
SETTINGS: Mapping[str, tuple[Setting, Mapping[str, Any]]] = {
    "no clipping": (
        Setting(_SOUND, 2, 100, 300), {"clips": False},
    ),
    "no Poisson sampling": (
        # 49 or 50 members: the coin does not change the number of steps, which all see
        Setting(DPSGD(noise_multiplier=0.3, batch=10, accountant="rdp"), 1, 49, 1, runs=200),
        {"kind": "shuffle"},
    ),
    "no delta": (
        Setting(_SOUND, 1, 100, 600), {"broken": replace(_SOUND, noise_multiplier=1.0)},
    ),
}  # fmt: skip


@click.command()
@click.option("--runs", "audits", default=10, show_default=True, help="Audits of each version.")
@click.option("--only", default=None, help="Name of one fault.")
def main(audits: int, only: str | None) -> None:
    """Print how many audits refute the claim of each broken version, and of its sound one."""
    click.echo("| fault | claim (ε, δ) | coins | runs | broken: refuted | median p "
               "| sound: refuted | median p |\n|" + "---|" * 8)  # fmt: skip
    for name, (sound, fault) in SETTINGS.items():
        if only not in (None, name):
            continue
        broken = replace(sound, **fault)
        claim = run(sound, 0)[2]
        told = []
        for version in (broken, sound):
            found = [p_value(version, 1 + i) for i in range(audits)]
            refuted = sum(p < ERROR for p in found)
            told.append(f"{refuted} of {audits} | {np.median(found):.2g}")
        click.echo(f"| {name} | {claim['epsilon']:.2f}, {claim['delta']:g} | {sound.canaries} "
                   f"| {sound.runs} | {' | '.join(told)} |")  # fmt: skip


if __name__ == "__main__":
    main()
