# ruff: noqa: INP001 - a script
"""White-box audits of ``logit-dp`` and ``dp-gcl``, which must refute versions that do not clip.

    uv run python leaderboards/experiments/audit_contrastive.py --runs 10

The adversary of the proof chooses gradients and sees every noisy step. Half of the rows, by fair
coins, are members. The gradients are 100 times as long as ``clip``: of a pair in ``logit-dp`` the
sum of the directions of its two rows (``gradient_canaries.directions``) with the sign of the pair's
weight, so that nothing cancels; of a row in ``dp-gcl`` its direction, so that a group's is the sum
of its rows'. Batches, views, groups, clipping, noise, optimizer and loop are the plugin's: only the
gradients are not the network's. The score of a row is the sum of all noisy steps along its
direction; the guesses and the p-value of the claim are those of ``measure.games.audit``. Without
clipping a row moves a step by 100 times what the claim says.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import click
import numpy as np
import torch

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.data.split import World
from privbench.measure.games import audit
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.toolbox.gradient_canaries import LENGTH, WIDTH, directions
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.defenses import dp_gcl, logit_dp
from privbench_plugins.defenses.dp_gcl import DPGCL, Grouped
from privbench_plugins.defenses.logit_dp import LogitDP, Pairs
from privbench_plugins.targets.simclr import SimCLR

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privbench import Batch, Model

#: All members in each step.
DEFENSES = {
    "logit-dp": LogitDP(epsilon=1.0, batch=100_000, accountant="rdp"),
    "dp-gcl": DPGCL(epsilon=1.0, batch=100_000, accountant="rdp"),
}
COINS = 200
_DATA = Digits()
_PROTOCOL = Protocol(name="gradient-canaries", members=1, nonmembers=1, pool=2, inclusion="coin")


@contextmanager
def planted(keys: Tensor, kept: list[Tensor], *, clips: bool) -> Iterator[None]:
    """Put canaries in the place of gradients, and keep the noisy steps.

    Args:
        keys: (n,) of the members.
        kept: gets the first coordinates (width,) of each step.
        clips: whether gradients are clipped.
    """
    update, share, clipped, loss = (
        Training._update, logit_dp.clipped_share, Grouped.clipped, Grouped._loss  # noqa: SLF001
    )  # fmt: skip
    drawn: list[Tensor] = []

    def of_pairs(self: Pairs, model: Model, batch: Batch) -> Tensor:
        first, second = torch.triu_indices(2 * len(batch.rows), 2 * len(batch.rows), 1)
        with torch.no_grad():
            unit = torch.nn.functional.normalize(self._projected(model, batch.x), dim=1)
            weights = logit_dp.derivatives(unit @ unit.T, self.temperature)[first, second]
            own = directions(keys[batch.rows], WIDTH).repeat(2, 1)
            long = LENGTH * self.clip
            norms = long * (own[first] + own[second]).norm(dim=1)
            size = weights.abs() * long
            if clips:
                size *= share(norms, self.clip)
            each = torch.zeros(len(own)).index_add_(0, first, size).index_add_(0, second, size)
            total = each @ own / (2 * self.run.spec.size)
        flat = torch.cat([p.flatten() for p in self._parameters])[:WIDTH]
        return flat @ total + 0.0 * sum(p.sum() for p in self._parameters)

    def seen(self: Grouped, out: Any, batch: Batch, clock: Any) -> Tensor:
        drawn[:] = [batch.rows]
        return loss(self, out, batch, clock)

    def of_groups(self: Grouped, gradients: Sequence[Any]) -> list[Tensor]:
        canaries = LENGTH * self.clip * directions(keys[drawn[0]], WIDTH)
        made = clipped(self, gradients)
        ends = np.cumsum([0, *(one.numel() for one in made)])
        (whole,) = clipped(self, [canaries])
        return [
            torch.cat([whole[a:b], torch.zeros(b - a)])[: b - a].view_as(one)
            for one, a, b in zip(made, ends, ends[1:], strict=False)
        ]

    def recorded(self: Training, *args: Any) -> None:
        update(self, *args)
        if self.phase.name == "encoder":
            own = [p for part in self.phase.optimizers for p in self.model[part].parameters()]
            kept.append(torch.cat([p.grad.flatten() for p in own])[:WIDTH].clone())

    changed = {"recombined": (Pairs, of_pairs), "_update": (Training, recorded),
               "_loss": (Grouped, seen), "clipped": (Grouped, of_groups)}  # fmt: skip
    if not clips:
        changed["clipped_share"] = (dp_gcl, lambda norms, _: torch.ones_like(norms).float())
    patches = [mock.patch.object(where, name, new) for name, (where, new) in changed.items()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def run(
    defense: str, seed: int, *, clips: bool, coins: int = COINS
) -> tuple[NDArray[np.float64], NDArray[np.bool_], Any]:
    """Train once; return scores (m,) of the rows, their coins (m,) and the claim."""
    rng = np.random.default_rng(seed)
    member = rng.random(coins) < 0.5  # noqa: PLR2004 - a fair coin
    data = _DATA.load(None)
    rows = data.select(torch.from_numpy(rng.permutation(len(data))[:coins]))
    members = rows.select(torch.from_numpy(member.nonzero()[0]))
    nothing = rows.select(slice(0, 0))
    others = dict.fromkeys(("reference", "public", "downstream"), nothing)
    world = World({"members": members, **others}, "victim", 0, seed)
    target = SimCLR(temperature=1.0, epochs=2, classifier_epochs=1)
    steps: list[Tensor] = []
    with tempfile.TemporaryDirectory() as folder, planted(members.keys, steps, clips=clips):
        builder = Builder(Store(Path(folder)), torch.device("cpu"))
        draft = builder.draft(
            VictimSpec(_DATA.card(None), _PROTOCOL, world, target, (DEFENSES[defense],), ())
        )
        phase = draft.phases[0]
        Training(draft.model, phase, draft.rows(phase), seed).run()
    scores = directions(rows.keys, WIDTH) @ torch.stack(steps).sum(0)
    return scores.double().numpy(), member, draft.claims[0]


def p_value(defense: str, seed: int, *, clips: bool, coins: int = COINS) -> float:
    """The p-value of the claim in one audit."""
    scores, member, claim = run(defense, seed, clips=clips, coins=coins)
    guesses = {share: audit.guesses(scores, member, share) for share in audit.SHARES}
    return getattr(audit.assessed([claim], [guesses])["audit_p"], "value", 1.0)


@click.command()
@click.option("--runs", default=10, show_default=True, help="Audits of each version.")
def main(runs: int) -> None:
    """Print how many audits refute the claim without clipping, and with it."""
    for defense in DEFENSES:
        for name, clips in (("without clipping", False), ("with clipping", True)):
            found = [p_value(defense, 1 + i, clips=clips) for i in range(runs)]
            refuted = sum(p < audit.ERROR for p in found)
            click.echo(
                f"{defense} {name}: refuted {refuted} of {runs}, median p {np.median(found):.2g}"
            )


if __name__ == "__main__":
    main()
