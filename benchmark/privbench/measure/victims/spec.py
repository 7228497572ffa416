"""The specification of a victim, before anything is built or trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privbench.ground.store.source import digest

if TYPE_CHECKING:
    from privbench.measure.data.examples import Card
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.data.split import World
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target


@dataclass(frozen=True)
class VictimSpec:
    """One victim or shadow: a target under defenses in a world.

    Attributes:
        card: card of the dataset.
        protocol: how the dataset is split.
        world: the data that it trains on.
        target: how it is built and trained.
        defenses: defenses in the order in which they act; () or ``none`` alone for an undefended
            one, which have the same stages.
        sensitive: sensitive attributes of the cell.
    """

    card: Card
    protocol: Protocol
    world: World
    target: Target
    defenses: tuple[Defense, ...] = ()
    sensitive: tuple[str, ...] = ()

    def base(self) -> dict[str, Any]:
        """Everything that the untrained model and its phases depend on, except the world."""
        return {
            "target": self.target.digest,
            "built_by": [d.digest for d in self.defenses if "build" in d.stages()],
            "card": self.card,
            "protocol": self.protocol,
        }

    @cached_property
    def identity(self) -> str:
        """A digest; specs of the same victim have the same one."""
        world = [self.world.digest(self.sensitive), self.world.salt("init")]
        return digest([self.base(), [d.digest for d in self.defenses], self.sensitive, world])

    def seen(self, defense: Defense) -> dict[str, Any]:
        """What a defense may read in its world."""
        sensitive = self.sensitive if defense.uses_attributes else ()
        return {"sensitive": list(sensitive), "world": self.world.digest(sensitive)}

    def inner(self, world: World, index: int) -> VictimSpec:
        """The undefended model that a defense trains in another world."""
        return replace(self, world=replace(world, branch=index), defenses=())

    def common(self) -> VictimSpec:
        """The spec that gives the seeds of the phases that all worlds share."""
        return replace(self, world=common_world(self.world))


def common_world(world: World) -> World:
    """The world that gives the seeds of the phases that all worlds share."""
    return replace(world, origin="public", index=0, branch=0)
