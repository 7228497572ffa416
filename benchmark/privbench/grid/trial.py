"""A trial (a cell with one seed), and the record of a cell as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privbench.grid import keys
from privbench.grid.keys import dataset_of
from privbench.measure.training.numerics import USUAL, Numerics
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, StrengthRecord

if TYPE_CHECKING:
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.method import Method


def cell_record(cell: Cell) -> CellRecord:
    """The cell as plain values."""
    protects = sorted({game for defense in cell.defenses for game in defense.protects})
    return CellRecord(
        dataset=_method(dataset_of(cell)),
        protocol=protocol_record(cell.protocol),
        target=_method(cell.target),
        defenses=[_method(defense) for defense in cell.defenses],
        adversary=cell.adversary.label,
        knows=_knows(cell.adversary),
        attack=_method(cell.attack),
        game=cell.attack.game,
        sensitive=list(cell.sensitive),
        preset=cell.preset,
        access=str(cell.access),
        protects=protects,
        decides_at=cell.attack.decides_at,
        control=any(defense.control for defense in cell.defenses),
        needs=str(cell.attack.needs),
    )


def strengths(cell: Cell) -> dict[str, StrengthRecord]:
    """The strength of each defense that has one, by its name."""
    return {
        defense.name: StrengthRecord(
            field=defense.strength.field, stronger=defense.strength.stronger,
            sweep=[plain(value) for value in defense.strength.sweep],
        )
        for defense in cell.defenses
        if defense.strength is not None
    }  # fmt: skip


def learning_from_reference(cell: Cell) -> str:
    """Names of the defenses that learn from reference rows, joined; "" if none does."""
    return "+".join(d.name for d in cell.defenses if d.learns_from_reference(cell))


def protocol_record(protocol: Protocol) -> dict[str, Any]:
    """The protocol as plain values."""
    parts = protocol.parts().items()
    sources = {name: part.source for name, part in parts if part.source is not None}
    return {
        "name": protocol.name,
        **{name: part.size for name, part in parts},
        **({"sources": sources} if sources else {}),
        "encoder": list(protocol.encoder),
        "classifier": protocol.classifier,
        **({} if protocol.inclusion == "size" else {"inclusion": protocol.inclusion}),
        **({} if protocol.shadow is None else {"shadow": protocol.shadow}),
        **({"trained_elsewhere": True} if protocol.trained_elsewhere else {}),
        **({} if protocol.canaries is None else {"canaries": asdict(protocol.canaries)}),
    }


def _method(method: Method) -> MethodRecord:
    return MethodRecord(
        name=method.name,
        label=method.label,
        version=method.version,
        fields={name: plain(value) for name, value in method.hyperparameters().items()},
    )


def _knows(adversary: Adversary) -> AdversaryRecord:
    target, dataset = adversary.target, adversary.dataset
    return AdversaryRecord(
        adaptive=adversary.adaptive, white_box=adversary.white_box,
        target=_method(target) if target else None,
        dataset=_method(dataset) if dataset else None,
    )  # fmt: skip


def plain(value: Any) -> Any:
    """The value of a hyperparameter as JSON has it, in the form that a suite gives it."""
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(one) for name, one in asdict(value).items()}
    return str(value)


@dataclass(frozen=True)
class Trial:
    """A cell with one seed; its digest is its identity."""

    cell: Cell
    seed: int
    device: str = "cpu"
    numerics: Numerics = USUAL

    @cached_property
    def digest(self) -> str:
        """Digest of what determines its result, see ``keys.of_trial``."""
        return keys.of_trial(self.cell, self.seed, self.device, self.numerics)
