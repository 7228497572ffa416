"""Checks of defenses."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING

import torch

from privbench.data.examples import as_float
from privbench.games.access import Access
from privbench.testing.fixtures import (
    TinyTarget,
    tiny_builder,
    tiny_spec,
    tiny_split,
)
from privbench.testing.small import (
    answers,
    compatible,
    same_when_stored,
    shortened,
    tiny_cell,
    trained,
    untouched,
)
from privbench.victims.served import no_posteriors

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.data.split import World
    from privbench.methods.defense import Defense, Release
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
        assert len(phases) == len(after) and all(map(is_, phases, after)), (  # noqa: PT018
            "on_phases returned other phases, but stages() has no 'phases': return the same "
            "objects, or add 'phases' to stages()"
        )


def sweeps(defense: Defense) -> None:
    """Every setting of its sweep can be built, and no two are the same method."""
    if defense.strength is None:
        return
    settings = defense.strength.settings(defense)
    assert len({one.digest for one in settings}) == len(settings), (
        f"two settings of {defense.strength} have one digest: each must be another method"
    )
    for one in settings:
        if compatible(one, TinyTarget(), (one,)):
            _phases(one)


def leaves_reference(defense: Defense) -> None:
    """A defense that does not say that it learns from reference rows ignores them.

    They are replaced by members with wrong labels: their loss rises while the target learns.
    """
    target, split = TinyTarget(), tiny_split()
    if not compatible(defense, target, (defense,)):
        return
    if defense.learns_from_reference(tiny_cell(target, (defense,))):
        return
    spec = tiny_spec(target, (shortened(defense),))
    others = spec.world.members.select(slice(0, len(spec.world.reference)))
    others = others.with_y((others.y + 1) % (split.card.classes or 1))
    seen = []
    for world in (spec.world, spec.world.replace(reference=others)):
        with tempfile.TemporaryDirectory() as tmp:
            victim = tiny_builder(tmp).victim(replace(spec, world=world))
            seen.append(answers(victim, split.pool.x[:40]))
    for name, answer in seen[0].items():
        assert torch.equal(answer, seen[1][name]), (
            f"{name} depend on the reference rows: add 'reference-rows' to requires, or override "
            "learns_from_reference, so that "
            "boards say that its accuracy on these rows is optimistic"
        )


def _phases(defense: Defense) -> tuple[list[Phase], list[Phase]]:
    with tempfile.TemporaryDirectory() as tmp:
        making = tiny_builder(tmp).draft(tiny_spec(TinyTarget()))
        ctx = tiny_builder(tmp)._context(tiny_spec(TinyTarget()), defense)  # noqa: SLF001
        after = defense.on_phases(making.phases, making.model, making.world, ctx)
        return making.phases, list(after)


def leaves_world(defense: Defense) -> None:
    """No hook writes into the rows that it is given."""
    target = TinyTarget()
    if not compatible(defense, target, (defense,)):
        return
    small, spec = shortened(defense), tiny_spec(target, (defense,))
    with tempfile.TemporaryDirectory() as tmp:
        builder = tiny_builder(tmp)
        draft = builder.draft(tiny_spec(target))

        def hooks(world: World) -> None:
            ctx = builder._context(replace(spec, world=world), small)  # noqa: SLF001
            ctx.world = world
            changed = small.on_data(world, ctx)
            small.inner_worlds(changed, ctx)  # as when a victim is planned
            small.on_phases(draft.phases, draft.model, world, ctx)

        untouched(spec.world, hooks, "on_data(), inner_worlds() or on_phases()")


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
    assert first.grants & ~target.grants == Access.NONE, (
        f"the defended victim grants {first.grants}, more than its target: only remove access"
    )
    assert bool(first.releases) == ("release" in small.stages()), (
        "stages() does not match the release: include 'release' if there is one"
    )
    for release in first.releases:
        assert release.of == "embedding" or not release.feeds_classifier, (
            "a release of posteriors cannot feed the classifier: set feeds_classifier = False"
        )


def releases(defense: Defense) -> None:
    """A release answers each row on its own, twice the same, and leaves its arguments alone."""
    target = TinyTarget()
    if not compatible(defense, target, (defense,)):
        return
    victim = trained(target, (shortened(defense),))
    rows = tiny_split().pool.select(slice(0, 40))
    x = as_float(rows.x, rows.scale)
    for release in victim.releases:
        value = victim.model.encode(x).float()
        if release.of == "posterior":
            value = victim.model.logits(value).double().softmax(-1)
        u = torch.rand(len(x), release.uniforms, generator=torch.Generator().manual_seed(0))
        given = x.clone(), value.clone(), u.clone()
        whole = _asked(release, *given)
        assert all(map(torch.equal, given, (x, value, u))), (
            "the release changes its arguments: work on copies"
        )
        assert whole.shape == value.shape, (
            f"asked about values of shape {tuple(value.shape)}, the release returned shape "
            f"{tuple(whole.shape)}: keep the shape"
        )
        assert bool(whole.isfinite().all()), "the release returned numbers that are not finite"
        wrong = no_posteriors(whole) if release.of == "posterior" else ""
        assert not wrong, f"the release {wrong}"
        again = _asked(release, x, value, u)
        assert torch.equal(whole, again), (
            "asked twice about the same rows with the same u, the release answers otherwise: keep "
            "no state, and take randomness from u only"
        )
        for part in (slice(0, 7), slice(7, 40)):
            alone = _asked(release, x[part], value[part], u[part])
            assert torch.allclose(alone, whole[part], rtol=1e-4, atol=1e-5), (
                f"asked about {len(alone)} of the 40 rows, the release answers otherwise: what it "
                "releases of a row depends on the other rows of the query; compute it row by row"
            )


def _asked(release: Release, x: Tensor, value: Tensor, u: Tensor) -> Tensor:
    with torch.no_grad():
        made: Tensor = release(x, value, u)
    return made


def reloads(defense: Defense) -> None:
    """Defended victims answer the same from the store, and if x is stored as floats."""
    target = TinyTarget()
    if compatible(defense, target, (defense,)):
        same_when_stored(target, (shortened(defense),))
