"""Checks of defenses."""

from __future__ import annotations

import itertools
import tempfile
from typing import TYPE_CHECKING

import torch

from privbench.games.access import Access
from privbench.testing.fixtures import (
    TinyTarget,
    tiny_builder,
    tiny_spec,
    tiny_split,
)
from privbench.testing.small import compatible, shortened, trained

if TYPE_CHECKING:
    from privbench.methods.defense import Defense
    from privbench.training.phase import Phase


def never_widens(defense: Defense) -> None:
    """``access`` only ever removes access."""
    kinds = list(Access)
    for n in range(len(kinds) + 1):
        for chosen in itertools.combinations(kinds, n):
            granted = Access.NONE
            for kind in chosen:
                granted |= kind
            assert defense.access(granted) & ~granted == Access.NONE, (
                f"access() grants more than the given {granted}: only remove access"
            )


def keeps_phases(defense: Defense) -> None:
    """A defense that does not change phases returns the same objects."""
    phases, after = _phases(defense)
    if "phases" not in defense.stages():
        assert all(a is b for a, b in zip(phases, after, strict=True))
    for phase in after:
        assert phase in phases or phase.name


def _phases(defense: Defense) -> tuple[list[Phase], list[Phase]]:
    with tempfile.TemporaryDirectory() as tmp:
        making = tiny_builder(tmp).draft(tiny_spec(TinyTarget()))
        ctx = tiny_builder(tmp)._context(tiny_spec(TinyTarget()), defense)  # noqa: SLF001
        after = defense.on_phases(making.phases, making.model, making.world, ctx)
        return making.phases, list(after)


def defends(defense: Defense) -> None:
    """Defended training is deterministic, and each row is released on its own."""
    target = TinyTarget()
    if not compatible(defense, target, (defense,)):
        return
    small = shortened(defense)
    first, second = trained(target, (small,), noise=1), trained(target, (small,), noise=2)
    x = tiny_split().pool.x[:40]
    assert torch.equal(first.embeddings(x), second.embeddings(x)), (
        "training is not deterministic: draw from ctx, not from a global generator"
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    if not any(release.fresh for release in first.releases):
        moved = first.log_posteriors(x[order])
        assert torch.allclose(moved, first.log_posteriors(x)[order], atol=1e-5), (
            "the released value of a row depends on other rows of the query"
        )
    assert first.grants & ~target.grants == Access.NONE
    assert bool(first.releases) == ("release" in small.stages()), (
        "stages() does not match the release: include 'release' if there is one"
    )
    for release in first.releases:
        assert release.of == "embedding" or not release.feeds_classifier, (
            "a release of posteriors cannot feed the classifier: set feeds_classifier = False"
        )
