"""Planning a victim: the untrained model, its phases and releases, and the keys of its stages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.errors import PluginError
from privbench.ground.store.source import computing_digest, digest
from privbench.ground.store.store import Key
from privbench.measure.data.row_random import salt
from privbench.measure.methods.context import DefenseContext, TargetContext, seeded
from privbench.measure.methods.target import Target
from privbench.measure.training.numerics import USUAL, Numerics
from privbench.measure.victims.obeyed import check_obeyed
from privbench.measure.victims.stages import Draft, LearnedRelease, Stage, shared_phases, touched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench.ground.store.store import Store
    from privbench.measure.data.split import World
    from privbench.measure.methods.defense import Defense
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase
    from privbench.measure.victims.spec import VictimSpec

#: Modules whose code determines a victim; what they import of `games` and `methods` counts too.
CODE = (
    "privbench.measure.data", "privbench.measure.training", "privbench.measure.methods.target",
    "privbench.measure.victims.build",
)  # fmt: skip


class Planner:
    """Plans victims; nothing is trained.

    Attributes:
        store: store of artifacts.
        device: where models are trained and served.
        numerics: with which they are made.
    """

    def __init__(self, store: Store, device: torch.device, numerics: Numerics = USUAL) -> None:
        """See the class."""
        self.store = store
        self.device = device
        self.numerics = numerics

    def draft(self, spec: VictimSpec, *, bare: bool = False) -> Draft:
        """Build the untrained model and plan its stages; nothing is trained.

        A ``bare`` model has learned nothing elsewhere either, see ``Target.build_untrained``.

        Labels from inner models are used if the store holds them. Keys do not depend on whether it
        does.
        """
        spec, labels, begun = self._with_data(spec)
        contexts = [self._context(spec, d, self._base(spec)) for d in spec.defenses]
        built, target_ctx = self._build(spec, contexts, spec.world.salt("init"), bare=bare)
        phases = self._phases(spec, built, target_ctx, contexts)
        built.to(self.device)
        seeds, own = self._share(spec, built, phases)
        releases = self._releases(spec, built, contexts)
        said = [*begun, *contexts, target_ctx]
        notes = {name: fact for ctx in said for name, fact in ctx.notes.items()}
        claims = [claim for ctx in begun + contexts for claim in ctx.claims]
        base = self._base(spec)
        return Draft(
            spec, built, phases, releases, notes, claims, seeds, own, base, tuple(labels)
        )  # fmt: skip

    def _with_data(self, spec: VictimSpec) -> tuple[VictimSpec, list[Stage], list[DefenseContext]]:
        """Return the spec as defenses change its data, and who labels its members.

        Returns:
            The spec, the stages that label its members, and the contexts of ``on_data``.
        """
        labels: list[Stage] = []
        begun: list[DefenseContext] = []
        for defense in spec.defenses:
            ctx = self._context(spec, defense)
            begun.append(ctx)
            on_data = partial(defense.on_data, ctx.world, ctx)
            changed = seeded(on_data, ctx.salt("data"))
            if "data" in defense.stages():
                spec = replace(spec, world=changed.rekeyed())
            inner = partial(defense.inner_worlds, spec.world.private(), ctx)
            if worlds := seeded(inner, ctx.salt("inner")):
                worlds = [world and world.rekeyed() for world in worlds]
                labels.append(self._labels_stage(spec, defense, worlds))
                spec = self._relabelled(spec, labels[-1])
        return spec, labels, begun

    def _phases(
        self,
        spec: VictimSpec,
        built: Model,
        target_ctx: TargetContext,
        contexts: Sequence[DefenseContext],
    ) -> list[Phase]:
        """Return the phases of the target, as the defenses change them."""
        of_target = partial(spec.target.phases, built, spec.world.private(), target_ctx)
        phases = [
            replace(phase, made_by=(spec.target.digest,))
            for phase in seeded(of_target, target_ctx.salt("phases"))
        ]
        check_obeyed(spec.target, built, phases, spec.protocol)
        for defense, ctx in zip(spec.defenses, contexts, strict=True):
            before = {id(phase) for phase in phases}
            on_phases = partial(defense.on_phases, phases, built, ctx.world, ctx)
            phases = [
                p if id(p) in before else replace(p, made_by=(*p.made_by, defense.digest))
                for p in seeded(on_phases, ctx.salt("phases"))
            ]
        return phases

    def _releases(
        self, spec: VictimSpec, built: Model, contexts: Sequence[DefenseContext]
    ) -> list[LearnedRelease]:
        """Return what the defenses put between the model and who asks it, not fitted yet."""
        releases: list[LearnedRelease] = []
        for defense, ctx in zip(spec.defenses, contexts, strict=True):
            make = partial(defense.release, spec.card, built, ctx)
            release = seeded(make, ctx.salt("release", "init"))
            if not isinstance(release, defense.release_class or NoneType):
                raise PluginError(
                    f"release() of {defense.name} returned a {type(release).__name__}, which is "
                    "not its release_class: make them agree"
                )
            if release is not None:
                release.place = len(releases)
                release.to(self.device).eval().requires_grad_(False)
                releases.append(LearnedRelease(release, defense))
        return releases

    def _base(self, spec: VictimSpec) -> str:
        """Digest of everything that trained numbers depend on, except the world."""
        return digest([spec.base(), {
            "code": computing_digest(*CODE),
            "torch": torch.__version__,
            "device": self.device.type,
            "numerics": self.numerics,
            **({"untrained": True} if _forgets(spec) else {}),
        }])  # fmt: skip

    def _labels_stage(
        self, spec: VictimSpec, defense: Defense, worlds: Sequence[World | None]
    ) -> Stage:
        inner = tuple(spec.inner(world, i) for i, world in enumerate(worlds, start=1) if world)
        fields = {
            "inner": [self.draft(one).key for one in inner], "by": defense.digest,
            "seen": spec.seen(defense), "base": self._base(spec),
        }  # fmt: skip
        key = Key("labels", fields)
        return Stage(
            f"{defense.name}: labels", key, self._base(spec), defense, inner=inner, before=spec
        )

    def _relabelled(self, spec: VictimSpec, stage: Stage) -> VictimSpec:
        """The spec with the labels of a stage, if the store holds them."""
        members = spec.world.members
        if stage.key in self.store and (held := self.store.find(stage.key)):
            members = members.with_y(held.tensors["y"].to(members.device))
        members = replace(members, labelled_by=stage.key.digest)
        return replace(spec, world=spec.world.replace(members=members))

    def _share(
        self, spec: VictimSpec, built: Model, phases: Sequence[Phase]
    ) -> tuple[dict[str, int], dict[str, Tensor]]:
        """Give the parts that shared phases train the same initial weights in all worlds.

        Returns:
            Seeds of the parts, and this world's weights of the parts that only later phases train.
        """
        seeds = dict.fromkeys(built.parts, spec.world.salt("init"))
        shared = shared_phases(phases)
        if not shared:
            return seeds, {}
        later = touched(phases[shared:]) - touched(phases[:shared])
        own = {
            f"{part}.{name}": tensor.clone()
            for part in sorted(later)
            for name, tensor in built[part].state_dict().items()
        }
        common = spec.common()
        contexts = [self._context(common, defense) for defense in spec.defenses]
        seed = common.world.salt("init")
        public, _ = self._build(common, contexts, seed, bare=_forgets(spec))
        for name, part in public.parts.items():
            built[name].load_state_dict(part.state_dict())
            if name not in later:
                seeds[name] = seed
        return seeds, own

    def _build(
        self,
        spec: VictimSpec,
        contexts: Sequence[DefenseContext],
        seed: int,
        *,
        bare: bool = False,
    ) -> tuple[Model, TargetContext]:
        ctx = TargetContext(
            sensitive=(), scope=digest([self._base(spec), spec.world.digest()]),
            **self._common(spec, spec.target.name),
        )  # fmt: skip
        build = spec.target.build_untrained if bare or _forgets(spec) else spec.target.build
        built: Model = seeded(partial(build, spec.card, ctx), seed)
        for defense, defense_ctx in zip(spec.defenses, contexts, strict=True):
            built = seeded(partial(defense.on_build, built, defense_ctx), salt(seed, defense.name))
        if self.device.type == "cuda":
            built = built.to(memory_format=torch.channels_last)
        return built.to(self.device), ctx

    def _context(
        self, spec: VictimSpec, defense: Defense, previous: str | None = None,
        refit: Callable[[Phase, Tensor, Tensor], dict[str, Tensor]] | None = None,
    ) -> DefenseContext:  # fmt: skip
        """A new context for one stage of a defense; ``previous`` is the digest before the stage."""
        previous = self._base(spec) if previous is None else previous
        return DefenseContext(
            world=spec.world.private(),
            # Hidden from defenses that use no attributes, so that all cells share `none`.
            sensitive=spec.sensitive if defense.uses_attributes else (),
            scope=digest([previous, spec.seen(defense)]), refit=refit,
            **self._common(spec, defense.family or defense.name),
        )  # fmt: skip

    def _common(self, spec: VictimSpec, name: str) -> dict[str, Any]:
        return {
            "card": spec.card, "protocol": spec.protocol, "device": self.device,
            "store": self.store, "seed": spec.world.salt("method", name),
        }  # fmt: skip


def _forgets(spec: VictimSpec) -> bool:
    """Whether the victim must not have what its encoder learned elsewhere.

    A null victim must not, if the question is about rows that the encoder was trained on: it may
    have seen none of them.
    """
    learned = type(spec.target).build_untrained is not Target.build_untrained
    return learned and spec.world.origin == "null" and "members" in spec.protocol.encoder
