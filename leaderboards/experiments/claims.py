# ruff: noqa: INP001 - a script
"""A claimed epsilon, tested on models that keep it and on models whose training does not clip.

    uv run python leaderboards/experiments/claims.py --runs 10

writes a line for each model; ``claims.md`` holds them. A user has 400 handwritten digits with
wrong classes (canaries), of which coins include about half, and 200 others that are always trained
on. A small network trains by DP-SGD: Poisson batches, clipped gradients of single rows, Gaussian
noise for (2, 1e-5) by Opacus's PRV accountant. The broken version adds the same noise and does not
clip. Each model is then audited as a user does it, by ``privbench.coins`` and ``privbench.audit``
with all attacks that need no shadows, which know neither the coins nor the training.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, grad, vmap

import privbench

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLAIM = (2.0, 1e-5)
CANARIES, ALWAYS = 400, 200
BATCH, STEPS, RATE, CLIP = 128, 1200, 1.0, 0.1


def noise_multiplier(rows: int) -> float:
    """Return the noise, in units of the clipping norm, that keeps the claim."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(get_noise_multiplier(
        target_epsilon=CLAIM[0], target_delta=CLAIM[1], sample_rate=BATCH / rows, steps=STEPS,
        accountant="prv",
    ))  # fmt: skip


def train(x: NDArray[np.float32], y: NDArray[np.int64], seed: int, *, clips: bool) -> nn.Module:
    """Train by DP-SGD, or without its clipping."""
    torch.manual_seed(seed)  # noqa: TID251 - a script
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    weights = {name: one.detach() for name, one in model.named_parameters()}
    rows, classes = torch.from_numpy(x), torch.from_numpy(y)
    noise = noise_multiplier(len(rows)) * CLIP

    def loss(weights: Any, one: Any, label: Any) -> Any:
        return nn.functional.cross_entropy(functional_call(model, weights, (one,)), label)

    def clipped(weights: Any, x: Any, y: Any) -> Any:
        grads = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        norms = sum(one.flatten(1).square().sum(1) for one in grads.values()) ** 0.5
        factor = (CLIP / norms).clamp(max=1)
        return {name: torch.einsum("n,n...->...", factor, one) for name, one in grads.items()}

    def plain(weights: Any, x: Any, y: Any) -> Any:
        return grad(lambda *of: loss(*of) * len(x))(weights, x, y)

    for _ in range(STEPS):
        batch = torch.rand(len(rows)) < BATCH / len(rows)
        grads = (clipped if clips else plain)(weights, rows[batch], classes[batch])
        for name, one in grads.items():
            step = one + noise * torch.randn(one.shape)
            weights[name] = weights[name] - RATE * step / BATCH
    model.load_state_dict(weights)
    return model.eval()


def audited(seed: int, *, clips: bool) -> privbench.Audit:
    """Toss coins, train and audit."""
    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
    canaries, always = slice(CANARIES), slice(CANARIES, CANARIES + ALWAYS)
    y[canaries] = (y[canaries] + draw.integers(1, 10, CANARIES)) % 10
    own = {"x": x[canaries], "y": y[canaries]}
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        chosen = privbench.coins(own, count=CANARIES, seed_file=secret)
        rows = {name: np.concatenate([one[chosen], every[always]])
                for (name, one), every in zip(own.items(), (x, y), strict=True)}  # fmt: skip
        model = train(rows["x"], rows["y"], seed, clips=clips)
        return privbench.audit(
            model, members={name: one[chosen] for name, one in own.items()},
            nonmembers={name: one[~chosen] for name, one in own.items()},
            out=Path(folder, "audit"), claim=CLAIM, coins=secret,
        )  # fmt: skip


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=10, show_default=True)
def main(runs: int) -> None:
    """Print a line for each model."""
    click.echo("| training | run | AUC | p of the claim | lower bound of ε | refuted |")
    click.echo("|---|---:|---:|---:|---:|---|")
    for clips in (True, False):
        fell = 0
        for seed in range(runs):
            found = audited(seed, clips=clips)
            of = found.claim
            assert of is not None  # noqa: S101 - a claim was given
            best = max(one.metrics["auc"].value or 0 for one in found if one.status == "ok")
            fell += of.refuted
            click.echo(
                f"| {'DP-SGD' if clips else 'noise only'} | {seed} | {best:.3f} | "
                f"{of.p_value:.2g} | {of.lower:.2f} | {'yes' if of.refuted else 'no'} |"
            )
        click.echo(f"| {'DP-SGD' if clips else 'noise only'} | all | | | | {fell} of {runs} |")


if __name__ == "__main__":
    main()
