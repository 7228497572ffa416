"""A victim as a tuple of stages; the key of each is known before anything is trained.

In order: labels that inner models give (SELENA), phases that train the encoder, releases that the
classifier trains on, the other phases, changes of weights, the other releases. The key of a stage
holds the key of the stage before, so a stage that two victims share is made once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.store.source import digest
from privbench.ground.store.store import Key
from privbench.measure.methods.defense import Release
from privbench.measure.victims.spec import common_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.defense import Defense
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase
    from privbench.measure.victims.spec import VictimSpec


@dataclass(frozen=True)
class Stage:
    """One step from an untrained model to a served victim, and the artifact that it leaves.

    A phase is the stage that trains. A defense acts at data, labels, build, phases, weights or
    release (``Defense.stages``); what it does to data and build leaves no artifact of its own.

    Attributes:
        name: for people.
        key: of its artifact; its kind says what the stage is: ``labels``, ``phase``, ``trained``
            (weights that a defense changed) or ``release``.
        previous: digest of all that the model depends on when the stage begins.
        of: the phase, the defense or the release that it is about.
        public: whether all worlds share it.
        changed: parts of the model that have been trained when it ends.
        after_encoder: whether it comes after the phases that train the encoder.
        inner: victims that have to be trained before.
        before: the spec under the labels that the stage replaces.
    """

    name: str
    key: Key
    previous: str
    of: Phase | Defense | LearnedRelease
    public: bool = False
    changed: tuple[str, ...] = ()
    after_encoder: bool = False
    inner: tuple[VictimSpec, ...] = ()
    before: VictimSpec | None = None

    @property
    def stored(self) -> bool:
        """Whether it leaves an artifact: a release that learns nothing does not."""
        if isinstance(self.of, LearnedRelease):
            return type(self.of.release).fit is not Release.fit
        return True


@dataclass(frozen=True)
class LearnedRelease:
    """A release and the defense that brought it."""

    release: Release
    defense: Defense


@dataclass
class Draft:
    """A victim under construction: its plan, and the model as far as it is made.

    Attributes:
        spec: with the world as the defenses changed it.
        model: as trained so far.
        phases: all of them, in order.
        releases: in the order of their defenses.
        notes, claims: what defenses said while the victim was planned.
        seeds: part -> seed of its initial weights.
        own: initial weights, of this world, of the parts that only later phases train; the phases
            shared by all worlds run before these are loaded.
        base: digest of all that the untrained model depends on.
        labels: the stages that come before all others, with the inner victims that they need.
        initial: weights of all parts as the phases after the encoder's found them.
        fitted: releases that have learned what they need.
        facts: what each stage recorded, with the key of its artifact.
    """

    spec: VictimSpec
    model: Model
    phases: list[Phase]
    releases: list[LearnedRelease]
    notes: dict[str, Any]
    claims: list[Any]
    seeds: dict[str, int]
    own: dict[str, Tensor]
    base: str
    labels: tuple[Stage, ...] = ()
    initial: dict[str, Tensor] = field(default_factory=dict)
    fitted: list[LearnedRelease] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def world(self) -> World:
        """As the defenses changed it."""
        return self.spec.world

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""
        return tuple(_Chain(self).stages())

    @cached_property
    def key(self) -> str:
        """Digest of all that the victim's answers depend on."""
        stages = self.stages
        last = stages[-1].key.digest if stages else self.base
        return digest([last, self.seeds, self.world.salt("release")])

    def names(self) -> dict[str, str]:
        """Words for the digests in the keys of its stages, to explain an artifact."""
        spec = self.spec
        return {
            self.base: f"untrained {spec.target.label}",
            spec.target.digest: f"target {spec.target.label}",
            **{d.digest: f"defense {d.label}" for d in spec.defenses},
            **{s.key.digest: f"{s.key.kind} '{s.name}'" for s in self.stages},
        }

    def halves(self) -> tuple[list[Phase], list[Phase]]:
        """Phases up to the last that trains the encoder, and those after it."""
        at = max((i + 1 for i, p in enumerate(self.phases) if p.trains("encoder")), default=0)
        return self.phases[:at], self.phases[at:]

    def keep_initial(self) -> None:
        """Keep the weights that the phases after the encoder's start from."""
        self.initial = {**state(self.model, self.model.parts), **self.own}

    def rows(self, phase: Phase) -> Examples:
        """The rows that a phase sees."""
        rows = phase.rows
        return self.world.parts[rows] if isinstance(rows, str) else self.world.members.select(rows)

    def seed(self, phase: Phase, *, public: bool) -> int:
        """Seed of a phase's training; ``public`` for one that all worlds share."""
        world = common_world(self.world) if public else self.world
        return world.salt("phase", phase.name)

    def record(self) -> dict[str, Any]:
        """What was recorded while the victim was made: seconds, phases, notes, claims, machines."""
        notes, claims = dict(self.notes), list(self.claims)
        spent: dict[str, float] = {}  # artifacts that several of its models share count once
        made_on: list[Any] = []
        for fact in self.facts:
            notes |= fact.get("notes", {})
            claims += fact.get("claims", [])
            spent |= {fact["key"]: fact["seconds"], **fact.get("spent", {})}
            made_on += [fact["made_on"]] if fact["made_on"] not in made_on else []
        return {
            "seconds": sum(spent.values()),
            "spent": spent,
            "phases": [
                {k: f[k] for k in ("phase", "epochs", "updates", "seconds") if k in f}
                for f in self.facts
            ],
            "notes": notes,
            "claims": claims,
            "made_on": made_on,
        }


class _Chain:
    """Chains the keys of a draft's stages."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.previous = draft.base
        self.changed: set[str] = set()
        self.public = {id(phase) for phase in draft.phases[: shared_phases(draft.phases)]}

    def stages(self) -> Iterable[Stage]:
        """Yield the stages in order.

        Releases of embeddings learn before those of posteriors, which stand behind them.
        """
        draft = self.draft
        first, rest = draft.halves()
        early = [one for one in draft.releases if one.release.feeds_classifier]
        late = [one for one in draft.releases if not one.release.feeds_classifier]
        late.sort(key=lambda one: one.release.of)
        yield from draft.labels
        for phase in first:
            yield self._phase(phase, after_encoder=False)
        for one in early:
            yield self._release(one)
        for phase in rest:
            yield self._phase(phase, after_encoder=True)
        for defense in draft.spec.defenses:
            if "weights" in defense.stages():
                yield self._weights(defense)
        for one in late:
            yield self._release(one)

    def _phase(self, phase: Phase, *, after_encoder: bool) -> Stage:
        draft, public = self.draft, id(phase) in self.public
        fresh = touched([phase]) - self.changed
        reads = phase.reads_attributes
        streams = {
            f"{step}.{name}": stream.rows.rekeyed().digest(attributes=reads)
            for step, s in phase.steps.items()
            for name, stream in s.streams.items()
        }
        watched = phase.monitor.rows if phase.monitor else {}
        makers = [d for d in draft.spec.defenses if d.digest in phase.made_by]
        key = Key("phase", {
            "phase": phase.name,
            "previous": self.previous,
            "made_by": list(phase.made_by),
            "rows": draft.rows(phase).digest(labels=phase.reads_labels, attributes=reads),
            "attributes": list(reads),
            "streams": streams,
            "monitor": {name: rows.rekeyed().digest() for name, rows in watched.items()},
            # A defense may have looked at all of its world when it changed the phase.
            "world": [draft.spec.seen(d) for d in makers],
            "seed": draft.seed(phase, public=public),
            "init": {name: draft.seeds.get(name) for name in sorted(fresh)},
        })  # fmt: skip
        self.changed |= touched([phase])
        return self._next(
            phase.name, key, phase, public=public, changed=tuple(sorted(self.changed)),
            after_encoder=after_encoder,
        )  # fmt: skip

    def _weights(self, defense: Defense) -> Stage:
        key = Key("trained", self._by(defense, "trained"))
        return self._next(f"{defense.name}: weights", key, defense, after_encoder=True)

    def _release(self, one: LearnedRelease) -> Stage:
        fields = {**self._by(one.defense, "release"), "place": one.release.place}
        name = f"release of {one.release.of}"
        return self._next(name, Key("release", fields), one, after_encoder=True)

    def _by(self, defense: Defense, purpose: str) -> dict[str, Any]:
        world = self.draft.world
        return {
            "previous": self.previous, "by": defense.digest, "purpose": purpose,
            "seed": world.salt("method", defense.family or defense.name),
            "world": self.draft.spec.seen(defense), "init": self.draft.seeds,
        }  # fmt: skip

    def _next(self, name: str, key: Key, of: Any, **facts: Any) -> Stage:
        stage = Stage(name, key, self.previous, of, **facts)
        self.previous = key.digest
        return stage


def touched(phases: Sequence[Phase]) -> set[str]:
    """Parts whose state these phases change."""
    return {
        part
        for phase in phases
        for step in phase.steps.values()
        for part in step.trains + step.live
    }


def shared_phases(phases: Sequence[Phase]) -> int:
    """How many leading phases are the same in every world: public rows, touched by no defense."""
    count = 0
    for phase in phases:
        if not isinstance(phase.rows, str) or phase.rows != "public" or len(phase.made_by) > 1:
            break
        count += 1
    return count


def state(trained: Model, parts: Iterable[str]) -> dict[str, Tensor]:
    """Copies of the tensors of these parts."""
    return {
        f"{part}.{name}": tensor.detach().clone(memory_format=torch.contiguous_format)
        for part in parts
        for name, tensor in trained[part].state_dict().items()
    }


def differing(trained: Model, before: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor that is not as ``state`` found it before; None if all are."""
    now = state(trained, sorted({name.partition(".")[0] for name in before}))
    for name, held in before.items():
        found = now.get(name)
        if found is None or found.dtype != held.dtype or not torch.equal(found, held):
            return name
    return None


def load(trained: Model, tensors: Mapping[str, Tensor], *, assign: bool = False) -> None:
    """Load what ``state`` returned, on whatever device; ``assign`` brings back the dtype too."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    for part, of_part in parts.items():
        trained[part].load_state_dict(of_part, assign=assign)
