"""A cell of the grid: who attacks what, under which defense, on which data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from privbench.boards.records import CellRecord, MethodRecord
from privbench.games.access import BLACK_BOX
from privbench.store.source import computing_digest, digest

if TYPE_CHECKING:
    from privbench.data.examples import Card
    from privbench.data.protocol import Protocol
    from privbench.games.access import Access
    from privbench.games.attack import Attack
    from privbench.method import Method
    from privbench.methods.adversary import Adversary
    from privbench.methods.dataset import Dataset
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target


@dataclass(frozen=True)
class Cell:
    """Everything about a trial but its seed.

    Attributes:
        dataset, protocol, target, adversary, attack: see ``contracts``.
        defenses: in the order in which they act; the defense ``none`` alone for no defense.
        sensitive: attributes that the cell is about.
        preset: name of the preset that sized the methods; boards never mix them.
        card: of the dataset.
        pool: card of the adversary's dataset, where that is another one.
    """

    dataset: Dataset
    protocol: Protocol
    target: Target
    defenses: tuple[Defense, ...]
    adversary: Adversary
    attack: Attack
    sensitive: tuple[str, ...]
    preset: str
    card: Card
    pool: Card | None = None

    @property
    def access(self) -> Access:
        """What the defended victim grants to this adversary."""
        granted = self.target.grants
        if not self.adversary.white_box:
            granted &= BLACK_BOX
        for defense in self.defenses:
            granted = defense.access(granted)
        return granted

    @property
    def defense(self) -> str:
        """Label of the stack."""
        return "+".join(defense.label for defense in self.defenses)

    def record(self) -> CellRecord:
        """The cell in words."""
        protects = sorted({game for defense in self.defenses for game in defense.protects})
        return CellRecord(
            dataset=_method(self.dataset),
            protocol={"name": self.protocol.name, **_sizes(self)},
            target=_method(self.target),
            defenses=[_method(defense) for defense in self.defenses],
            adversary=self.adversary.label,
            attack=_method(self.attack),
            game=self.attack.game,
            sensitive=list(self.sensitive),
            preset=self.preset,
            access=str(self.access),
            protects=protects,
        )


def _sizes(cell: Cell) -> dict[str, Any]:
    protocol = cell.protocol
    return {
        **{name: part.size for name, part in protocol.parts().items()},
        "encoder": list(protocol.encoder),
        "classifier": protocol.classifier,
        **({} if protocol.inclusion == "size" else {"inclusion": protocol.inclusion}),
        **({} if protocol.shadow is None else {"shadow": protocol.shadow}),
    }


def _method(method: Method) -> MethodRecord:
    return MethodRecord(
        name=method.name,
        label=method.label,
        version=method.version,
        fields={name: _plain(value) for name, value in method.hyperparameters().items()},
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)


@dataclass(frozen=True)
class Trial:
    """A cell under one seed; its digest is its identity."""

    cell: Cell
    seed: int
    device: str = "cpu"

    @cached_property
    def digest(self) -> str:
        """Digest of methods, protocol, seed, source code, torch version and device kind."""
        cell = self.cell
        adversary = cell.adversary
        return digest(
            {
                "dataset": cell.dataset.identity,
                "protocol": cell.protocol,
                "target": cell.target.identity,
                "defenses": [defense.identity for defense in cell.defenses],
                "adversary": {
                    "adaptive": adversary.adaptive,
                    "white_box": adversary.white_box,
                    "target": adversary.target.identity if adversary.target else None,
                    "dataset": adversary.dataset.identity if adversary.dataset else None,
                },
                "attack": cell.attack.identity,
                "sensitive": list(cell.sensitive),
                "preset": cell.preset,
                "seed": self.seed,
                "code": code_digest(),
                "torch": torch.__version__,
                "device": torch.device(self.device).type,
            }
        )


#: Where the code that decides a result begins: all that computes is found from here by import.
_ROOTS = (
    "privbench.data.split",
    "privbench.games.catalog",
    "privbench.games.audit",
    "privbench.victims.workshop",
)


def code_digest() -> str:
    """Digest of the code that decides results."""
    return computing_digest(*_ROOTS)
