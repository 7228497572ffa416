"""Checks of defenses."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING

import torch

from privbench.measure.data.examples import as_float
from privbench.measure.methods.access import Access
from privbench.measure.victims.served import no_posteriors
from privbench.testing.fixtures import (
    TinyContrastive,
    TinyPairs,
    TinyTarget,
    tiny_builder,
    tiny_spec,
    tiny_split,
)
from privbench.testing.small import (
    NotTriedError,
    Small,
    answers,
    compatible,
    interrupted,
    needs_compatible,
    shortened,
    tiny_cell,
    trained,
    untouched,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.split import World
    from privbench.measure.methods.defense import Defense, Release
    from privbench.measure.methods.target import Target
    from privbench.measure.training.phase import Phase


#: A classifier that trains with its encoder, and two on an encoder that views have trained.
TARGETS: tuple[Target, ...] = (TinyTarget(), TinyContrastive(), TinyPairs())


def never_widens(defense: Defense) -> None:
    """``access`` only ever removes access.

    Tried: ``access`` with every combination of kinds of access.
    """
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
    """A defense that does not change phases returns the same objects; none takes all away.

    Tried: ``on_phases`` with the phases of the kit's small target.
    """
    phases, after = _phases(defense)
    if "phases" in defense.stages():
        raise NotTriedError("it says that it changes phases")
    assert len(phases) == len(after) and all(map(is_, phases, after)), (  # noqa: PT018
        "on_phases returned other phases, but stages() has no 'phases': return the same objects, "
        "or add 'phases' to stages()"
    )


def sweeps(defense: Defense) -> None:
    """Every setting of its sweep can be built, and no two are the same method.

    Tried: building every setting of its strength, and planning its phases.
    """
    if defense.strength is None:
        raise NotTriedError("it declares no strength")
    settings = defense.strength.settings(defense)
    assert len({one.digest for one in settings}) == len(settings), (
        f"two settings of {defense.strength} have one digest: each must be another method"
    )
    for one in settings:
        if any(compatible(one, target, (one,)) for target in TARGETS):
            _phases(one)


def small(defense: Defense) -> Small:
    """Return the kit's victim with that defense."""
    return Small(defense, lambda: tiny_spec(_target(defense), (shortened(defense),)))


def leaves_reference(small: Small) -> None:
    """A defense that does not say that it learns from reference rows ignores them.

    They are replaced by members with wrong labels: their loss rises while the target learns.

    Tried: two trainings, one of them with wrongly labelled members as reference rows.
    """
    defense = small.method
    if defense.learns_from_reference(tiny_cell(_target(defense), (defense,))):
        raise NotTriedError("it says that it learns from them")
    spec, split = small.plan(), tiny_split()
    others = spec.world.members.select(slice(0, len(spec.world.reference)))
    others = others.with_y((others.y + 1) % (split.card.classes or 1))
    victim = trained(replace(spec, world=spec.world.replace(reference=others)))
    seen = answers(victim, split.pool.x[:40])
    for name, answer in small.made[1].items():
        assert torch.equal(answer, seen[name]), (
            f"{name} depend on the reference rows: add 'reference-rows' to requires, or override "
            "learns_from_reference, so that "
            "boards say that its accuracy on these rows is optimistic"
        )


def _target(defense: Defense) -> Target:
    """Return the first of the kit's targets that the defense can protect.

    Raises:
        NotTriedError: if there is none.
    """
    usable = [target for target in TARGETS if compatible(defense, target, (defense,))]
    if not usable:
        needs_compatible(defense, TARGETS[0], (defense,))
    return usable[0]


def _phases(defense: Defense) -> tuple[list[Phase], list[Phase]]:
    target = _target(defense)
    with tempfile.TemporaryDirectory() as tmp:
        making = tiny_builder(tmp).draft(tiny_spec(target))
        ctx = tiny_builder(tmp)._context(tiny_spec(target), defense)  # noqa: SLF001
        after = list(defense.on_phases(making.phases, making.model, making.world, ctx))
        assert any(phase.epochs for phase in after), (
            "on_phases returned no phase with epochs, so that nothing is trained: return those "
            "that it is given"
        )
        return making.phases, after


def leaves_world(defense: Defense) -> None:
    """No hook writes into the rows that it is given.

    Tried: ``on_data``, ``inner_worlds`` and ``on_phases``, on rows compared before and after.
    """
    target = _target(defense)
    short, spec = shortened(defense), tiny_spec(target, (defense,))
    with tempfile.TemporaryDirectory() as tmp:
        builder = tiny_builder(tmp)
        draft = builder.draft(tiny_spec(target))

        def hooks(world: World) -> None:
            ctx = builder._context(replace(spec, world=world), short)  # noqa: SLF001
            ctx.world = world
            changed = short.on_data(world, ctx)
            short.inner_worlds(changed, ctx)  # as when a victim is planned
            short.on_phases(draft.phases, draft.model, world, ctx)

        untouched(spec.world, hooks, "on_data(), inner_worlds() or on_phases()")


def defends(small: Small) -> None:
    """Defended training is deterministic, and each row is released on its own.

    It can be interrupted: what goes on from a checkpoint ends the same.

    Tried: two trainings under two seeds of the global generator, the second one interrupted in
    every phase; 40 rows in two orders.
    """
    spec = small.plan()
    first, second = small.victim, interrupted(spec, noise=2)
    x = tiny_split().pool.x[:40]
    if not torch.equal(first.embeddings(x), second.embeddings(x)):
        third = trained(spec, noise=2)
        assert torch.equal(first.embeddings(x), third.embeddings(x)), (
            "training is not deterministic: draw from ctx, not from a global generator"
        )
    small.same_when_resumed(second)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    if not any(release.fresh for release in first.releases):
        moved = first.log_posteriors(x[order])
        assert torch.allclose(moved, first.log_posteriors(x)[order], atol=1e-5), (
            "the released value of a row depends on other rows of the query"
        )
    assert first.grants & ~spec.target.grants == Access.NONE, (
        f"the defended victim grants {first.grants}, more than its target: only remove access"
    )
    assert bool(first.releases) == ("release" in spec.defenses[0].stages()), (
        "stages() does not match the release: include 'release' if there is one"
    )
    for release in first.releases:
        assert release.of == "embedding" or not release.feeds_classifier, (
            "a release of posteriors cannot feed the classifier: set feeds_classifier = False"
        )


def releases(small: Small) -> None:
    """A release answers each row on its own, twice the same, and leaves its arguments alone.

    Tried: each release of a small victim on 40 rows: at once, again, and as 7 and 33 rows.
    """
    victim = small.victim
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


def reloads(small: Small) -> None:
    """Defended victims answer the same from the store, and if x is stored as floats.

    Tried: a small victim as trained, as read from a store, and trained on floats.
    """
    small.same_when_stored()
