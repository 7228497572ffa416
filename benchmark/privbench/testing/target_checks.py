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
    from collections.abc import Sequence

    from privbench.methods.target import Target
    from privbench.training.model import Model
    from privbench.training.phase import Phase


def shapes(target: Target) -> None:
    """Embeddings, logits and phases have the shapes and names that the core expects."""
    split = tiny_split()
    if not compatible(target, target):
        return
    model, phases = _planned(target)
    h = model.encode(split.pool.x[:5])
    assert h.ndim == 2
    assert len(h) == 5
    assert model["encoder"].width == h.shape[1], "encoder.width must be the embedding's width"
    if "classifier" in model:
        assert model.logits(h).shape == (5, split.card.classes)
    names = [phase.name for phase in phases]
    assert len(set(names)) == len(names), "phases must have different names"
    for phase in phases:
        assert not isinstance(phase.rows, str) or phase.rows in split.victim().parts


def facts_agree(target: Target) -> None:
    """The planner's facts about the encoder's loss are those of the phases that train it."""
    if not compatible(target, target):
        return
    _, phases = _planned(target)
    phases = [phase for phase in phases if phase.trains("encoder")]
    if not phases:
        return
    assert target.contrastive == any(not phase.per_example for phase in phases), (
        f"contrastive is {target.contrastive}, but a phase of the encoder says otherwise: "
        "write per_example=not self.contrastive there"
    )
    assert target.labelled_encoder == any(phase.reads_labels for phase in phases), (
        f"labelled_encoder is {target.labelled_encoder}, but a phase of the encoder says "
        "otherwise: write reads_labels=self.labelled_encoder there"
    )


def _planned(target: Target) -> tuple[Model, Sequence[Phase]]:
    """Return the untrained model and its phases in the kit's world."""
    split = tiny_split()
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=CPU, store=None, seed=0,
        scope="kit",
    )  # fmt: skip
    model = seeded(partial(target.build, split.card, ctx), 0).eval()
    return model, target.phases(model, split.victim(), ctx)


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
