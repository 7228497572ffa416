"""What a victim is made from, before anything is built or trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privbench.store.source import digest

if TYPE_CHECKING:
    from privbench.data.examples import Card
    from privbench.data.protocol import Protocol
    from privbench.data.split import World
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target


@dataclass(frozen=True)
class VictimSpec:
    """One victim or shadow: a target under defenses in a world.

    Attributes:
        card: of the dataset.
        protocol: that cut it.
        world: that it is trained in.
        target: how it is built and trained.
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

    @cached_property
    def identity(self) -> str:
        """Equal for specs that make the same victim."""
        world = [self.world.digest(self.sensitive), self.world.salt("init")]
        return digest([self.base(), [d.digest for d in self.defenses], self.sensitive, world])

    def seen(self, defense: Defense) -> dict[str, Any]:
        """What a defense may look at in its world."""
        sensitive = self.sensitive if defense.uses_attributes else ()
        return {"sensitive": list(sensitive), "world": self.world.digest(sensitive)}

    def inner(self, world: World, index: int) -> VictimSpec:
        """The undefended model that a defense trains in a world of its own."""
        return replace(self, world=replace(world, branch=index), defenses=())

    def common(self) -> VictimSpec:
        """The spec whose seeds the phases have that all worlds share."""
        return replace(self, world=common_world(self.world))


def common_world(world: World) -> World:
    """The world whose seeds the phases have that all worlds share."""
    return replace(world, origin="public", index=0, branch=0)
