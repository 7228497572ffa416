"""A victim in the making: its phases and releases in order, and the key of each one's artifact."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from privbench.store.source import digest
from privbench.store.store import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from privbench.data.examples import Card, Examples
    from privbench.data.protocol import Protocol
    from privbench.data.split import World
    from privbench.methods.context import DefenseContext
    from privbench.methods.defense import Defense, Release
    from privbench.methods.target import Target
    from privbench.training.model import Model
    from privbench.training.phase import Phase

    #: A release, the defense that made it and that one's context.
    Entry = tuple[Release, Defense, DefenseContext]


@dataclass(frozen=True)
class Job:
    """One victim or shadow to be made.

    Attributes:
        card: of the dataset.
        protocol: that cut it.
        world: that it is trained in.
        target: its augmentation.
        defenses: in the order in which they act; () for none.
        sensitive: attributes of the cell.
    """

    card: Card
    protocol: Protocol
    world: World
    target: Target
    defenses: tuple[Defense, ...] = ()
    sensitive: tuple[str, ...] = ()

    def base(self) -> dict[str, Any]:
        """What the untrained model and its phases depend on besides the world."""
        return {
            "target": self.target.digest,
            "built_by": [d.digest for d in self.defenses if "build" in d.stages()],
            "card": self.card,
            "protocol": self.protocol,
        }

    @property
    def identity(self) -> str:
        """Equal for jobs that make the same victim."""
        world = [self.world.digest(self.sensitive), self.world.salt("init")]
        return digest([self.base(), [d.digest for d in self.defenses], self.sensitive, world])

    def seen(self, defense: Defense) -> dict[str, Any]:
        """What a defense may look at in its world."""
        sensitive = self.sensitive if defense.uses_attributes else ()
        return {"sensitive": list(sensitive), "world": self.world.digest(sensitive)}


@dataclass
class Making:
    """A job under way: what has been built and what the next artifact's key depends on.

    Attributes:
        job: with the world as the defenses changed it.
        model: as trained so far.
        phases: all of them, in order.
        contexts: one per defense.
        previous: digest of all that the model depends on so far.
        seeds: part -> seed of its initial weights.
        own: initial weights, of this world, of the parts that only later phases train; the phases
            shared by all worlds run before these are loaded.
        initial: weights of all parts as the phases after the encoder's found them.
        releases: with the defense that each is of.
        fitted: those that have learned what they need.
        touched: parts that have been trained.
        facts: what each stage recorded, with the key of its artifact.
    """

    job: Job
    model: Model
    phases: list[Phase]
    contexts: list[DefenseContext]
    previous: str
    seeds: dict[str, int]
    own: dict[str, Tensor]
    initial: dict[str, Tensor] = field(default_factory=dict)
    releases: list[Entry] = field(default_factory=list)
    fitted: list[Entry] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    facts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def world(self) -> World:
        """As the defenses changed it."""
        return self.job.world

    def halves(self) -> tuple[tuple[list[Phase], list[Entry]], tuple[list[Phase], list[Entry]]]:
        """Phases, then the releases fitted after them: up to the encoder's last, and the rest.

        Releases of embeddings learn before those of posteriors, which stand behind them.
        """
        at = max((i + 1 for i, p in enumerate(self.phases) if p.trains("encoder")), default=0)
        early = [entry for entry in self.releases if entry[1].feeds_classifier]
        late = [entry for entry in self.releases if not entry[1].feeds_classifier]
        late.sort(key=lambda entry: entry[0].of)
        return (self.phases[:at], early), (self.phases[at:], late)

    def start_of_the_rest(self) -> None:
        """Keep the weights that the phases after the encoder's start from."""
        self.initial = {**state(self.model, self.model.parts), **self.own}

    def rows(self, phase: Phase) -> Examples:
        """That a phase sees."""
        rows = phase.rows
        return self.world.parts[rows] if isinstance(rows, str) else self.world.members.select(rows)

    def seed(self, phase: Phase, *, public: bool) -> int:
        """Of a phase's training; ``public`` for one that all worlds share."""
        world = common_world(self.world) if public else self.world
        return world.salt("phase", phase.name)

    def plan(self, phases: Sequence[Phase]) -> list[tuple[Phase, Key, bool, list[str]]]:
        """Each phase with its key, whether all worlds share it, and the parts changed so far."""
        plan = []
        shared = {id(phase) for phase in self.phases[: shared_phases(self.phases)]}
        for phase in phases:
            public = id(phase) in shared
            key = self._phase_key(phase, public=public)
            self.previous = key.digest
            self.touched |= touched([phase])
            plan.append((phase, key, public, sorted(self.touched)))
        return plan

    def _phase_key(self, phase: Phase, *, public: bool) -> Key:
        fresh = touched([phase]) - self.touched
        reads = phase.reads_attributes
        streams = {
            f"{step}.{name}": stream.rows.digest(attributes=reads)
            for step, s in phase.steps.items()
            for name, stream in s.streams.items()
        }
        watched = phase.monitor.rows if phase.monitor else {}
        makers = [d for d in self.job.defenses if d.digest in phase.made_by]
        rows = self.rows(phase)
        fields = {
            "phase": phase.name,
            "previous": self.previous,
            "made_by": list(phase.made_by),
            "rows": rows.digest(labels=phase.reads_labels, attributes=reads),
            "attributes": list(reads),
            "streams": streams,
            "monitor": {name: rows.digest() for name, rows in watched.items()},
            # A defense may have looked at all of its world when it changed the phase.
            "world": [self.job.seen(d) for d in makers],
            "seed": self.seed(phase, public=public),
            "init": {name: self.seeds.get(name) for name in sorted(fresh)},
        }
        return Key("phase", fields)

    def changed_key(self, by: Defense, ctx: DefenseContext) -> Key:
        """Of the weights that a defense makes of the model as it stands."""
        return Key("trained", self._by(by, ctx.salt("trained")))

    def release_key(self, entry: Entry) -> Key:
        """Of a release as it stands behind the model and the releases before."""
        release, by, ctx = entry
        return Key("release", {**self._by(by, ctx.salt("release")), "place": release.place})

    def _by(self, defense: Defense, seed: int) -> dict[str, Any]:
        return {
            "previous": self.previous, "by": defense.digest, "seed": seed,
            "world": self.job.seen(defense), "init": self.seeds,
        }  # fmt: skip

    def told(self) -> dict[str, Any]:
        """What the making recorded: seconds, phases, notes, claims."""
        notes: dict[str, Any] = {}
        claims: list[Any] = []
        spent: dict[str, float] = {}  # artifacts that several of its models share count once
        made_on: list[Any] = []
        for ctx in self.contexts:
            notes |= ctx.notes
            claims += ctx.claims
            spent |= ctx.spent
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


def common_world(world: World) -> World:
    """Whose seeds the phases have that all worlds share."""
    return replace(world, origin="public", index=0, branch=0)


def state(trained: Model, parts: Iterable[str]) -> dict[str, Tensor]:
    """Copies of the tensors of these parts."""
    return {
        f"{part}.{name}": tensor.detach().clone(memory_format=torch.contiguous_format)
        for part in parts
        for name, tensor in trained[part].state_dict().items()
    }
