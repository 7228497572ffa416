"""Checks of targets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from privbench.methods.context import TargetContext, seeded
from privbench.testing.fixtures import (
    CPU,
    tiny_split,
)
from privbench.testing.small import compatible, shortened, trained

if TYPE_CHECKING:
    from privbench.methods.target import Target


def shapes(target: Target) -> None:
    """Embeddings, logits and phases have the shapes and names that the core expects."""
    split = tiny_split()
    if not compatible(target, target):
        return
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="kit",
    )  # fmt: skip
    model = seeded(partial(target.build, split.card, ctx), 0).eval()
    h = model.encode(split.pool.x[:5])
    assert h.ndim == 2
    assert len(h) == 5
    assert model["encoder"].width == h.shape[1], "encoder.width must be the embedding's width"
    if "classifier" in model:
        assert model.logits(h).shape == (5, split.card.classes)
    phases = target.phases(model, split.victim(), ctx)
    names = [phase.name for phase in phases]
    assert len(set(names)) == len(names), "phases must have different names"
    for phase in phases:
        assert not isinstance(phase.rows, str) or phase.rows in split.victim().parts


def trains_alike(target: Target) -> None:
    """Training is deterministic, ignores the global generator and leaves its data as they were."""
    if not compatible(target, target):
        return
    small = shortened(target)
    before = tiny_split().candidates.x.clone()
    first, second = trained(small, noise=1), trained(small, noise=2)
    x = tiny_split().pool.x[:40]
    assert torch.equal(first.embeddings(x), second.embeddings(x)), "training is not deterministic"
    assert torch.equal(before, tiny_split().candidates.x), "training changed its data"
    assert not any(module.training for module in first.model.modules())
    assert first.key == second.key
