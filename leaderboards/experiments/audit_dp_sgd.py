# ruff: noqa: INP001 - a script
"""A white-box audit of ``dp-sgd`` by gradient canaries, which must refute broken versions of it.

    uv run python leaderboards/experiments/audit_dp_sgd.py --runs 10

Steinke, Nasr, Jagielski (NeurIPS 2023) audit DP-SGD with gradients of their own in place of
examples' gradients, by an adversary that sees every noisy step, as the privacy analysis assumes.
Here N of the members are ordinary rows, and each of M canaries is a member by a fair coin. Training
runs as in a grid: its own batches, and the plugin's phases, clipping, noise and optimizer. Only the
gradient of a canary in a batch is replaced, before clipping, by a random direction of its own, 100
times as long as ``clip``. The score of a canary is the log-likelihood ratio of its projections z on
all steps, for a row that each step uses with probability q, with noise sigma:

    sum over steps of log(1 - q + q exp((z - 1/2) / sigma^2)),  z in units of ``clip``.

The guesses are those of ``privbench.games.audit``; the claim is refuted if its p-value is below
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
the accountant's profile, and ``privbench.games.audit.contradiction`` refuses it.
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

from privbench.data.examples import Examples, join
from privbench.data.protocol import Protocol
from privbench.data.split import World
from privbench.games import audit
from privbench.store.store import Store
from privbench.training.loop import Training
from privbench.training.phase import BatchSpec
from privbench.victims.build import Builder
from privbench.victims.spec import VictimSpec
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from privbench.training.model import Model
    from privbench.training.phase import Batch, Outputs

#: Length of a canary's gradient, in units of ``clip``.
LENGTH = 100.0
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
        rows: ordinary members.
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


@dataclass
class Trace:
    """What the adversary sees: its projections of every noisy step.

    Attributes:
        directions: (m, parameters) unit vectors, one for each canary.
        inside: (members,) position of the member's canary; -1 for an ordinary row.
        steps: projections (m,) of each step, in units of ``clip``.
        batch: positions in the members of the rows of the last forward pass.
    """

    directions: Tensor
    inside: Tensor
    steps: list[Tensor]
    batch: Tensor | None = None


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
        draft = drafted(setting.broken or setting.defense)
        (phase,) = draft.phases
        generator = torch.Generator().manual_seed(seed)
        width = sum(p.numel() for p in draft.model.parameters())
        directions = torch.randn(setting.canaries, width, generator=generator)
        inside = torch.cat([torch.full((setting.rows,), -1), chosen])
        trace = Trace(directions / directions.norm(dim=1, keepdim=True), inside, [])
        phase = replace(
            phase, batch=BatchSpec(phase.batch.size, setting.kind),
            forward=watched(phase.forward, trace), wrap=planting(phase.wrap, trace, setting),
        )  # fmt: skip
        Training(draft.model, phase, draft.rows(phase), seed).run()
    z = torch.stack(trace.steps, 1).double().numpy()
    (q,), sigma = claim["sample_rate"], (setting.broken or setting.defense).noise_multiplier
    sigma = float(sigma or claim["noise_multiplier"])
    return score(z, q, sigma), member, claim


def score(z: NDArray[np.float64], q: float, sigma: float) -> NDArray[np.float64]:
    """Log-likelihood ratios (m,) of projections z (m, steps); see the module."""
    gain = np.minimum((z - 0.5) / sigma**2, 700)
    return np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + gain).sum(1)


@cache
def honest_chance(q: float, sigma: float, steps: int, draws: int = 1_000_000) -> float:
    """The chance of the best guess about one coin under Poisson sampling, and 4 standard errors.

    The score is the likelihood ratio, so the guess by its sign is the best one.
    """
    rng = np.random.default_rng(0)
    member = rng.random(draws) < 0.5  # noqa: PLR2004 - a fair coin
    used = (rng.random((draws, steps)) < q) & member[:, None]
    found = score(used + sigma * rng.standard_normal((draws, steps)), q, sigma) > 0
    return float((found == member).mean() + 2 / np.sqrt(draws))


def watched(forward: Any, trace: Trace) -> Any:
    """The same forward pass, which notes the rows of its batch."""

    def noting(model: Model, batch: Batch) -> Outputs:
        trace.batch = batch.rows
        made: Outputs = forward(model, batch)
        return made

    return noting


def planting(wrap: Any, trace: Trace, setting: Setting) -> Any:
    """The plugin's wrap, with canaries' gradients in place of those of their rows."""

    @contextmanager
    def wrapped(training: Training) -> Iterator[None]:
        with wrap(training):
            ((_, optimizer),) = training.optimizers.items()
            step = optimizer.pre_step

            def pre_step(closure: Any = None) -> Any:
                plant(optimizer.params, trace, setting.defense.clip)
                if not setting.clips:
                    optimizer.clip_and_accumulate = lambda: unclipped(optimizer.params)
                done = step(closure)
                noisy = torch.cat([p.grad.flatten() for p in optimizer.params])
                scale = optimizer.expected_batch_size / setting.defense.clip
                trace.steps.append(trace.directions @ noisy * scale)
                return done

            optimizer.pre_step = pre_step
            yield

    return wrapped


def plant(params: Any, trace: Trace, clip: float) -> None:
    """Replace the gradients of the canaries in the batch."""
    if trace.batch is None or not len(params[0].grad_sample):
        return
    which = trace.inside[trace.batch]
    at, start = which >= 0, 0
    for p in params:
        own = trace.directions[which[at], start : start + p.numel()] * LENGTH * clip
        p.grad_sample[at] = own.view(-1, *p.shape)
        start += p.numel()


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
        Setting(DPSGD(noise_multiplier=0.3, batch=10, accountant="rdp"), 1, 50, 1, runs=200),
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
