"""What a phase did not declare is withheld from its losses: labels and sensitive attributes.

A phase's key holds the labels and attributes that the phase declares. If a loss read others, two
victims that differ in them would share one artifact, and a defense that changes labels would be
measured on the undefended model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privbench.measure.training.phase import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from privbench.measure.data.examples import Examples
    from privbench.measure.training.phase import Phase


def visible(rows: Examples, phase: Phase) -> Examples:
    """Return the rows as the phase may read them: without what it does not declare."""
    attributes = Declared(phase.name, {
        name: rows.attributes[name] for name in phase.reads_attributes if name in rows.attributes
    })  # fmt: skip
    y = rows.y if phase.reads_labels else Withheld.like(rows.y, phase.name)
    made = replace(rows, y=y, attributes=attributes)
    vars(made).update({name: keys for name, keys in vars(rows).items() if name == "keys"})
    return made


class Declared(dict[str, Tensor]):
    """The attributes that a phase declares; reading another says how to declare it."""

    def __init__(self, phase: str, attributes: Mapping[str, Tensor]) -> None:
        """Take the attributes of the phase of that name."""
        super().__init__(attributes)
        self.phase = phase

    @classmethod
    def of(cls, rows: Examples) -> Declared:
        """Return the attributes of rows from ``visible``."""
        assert isinstance(rows.attributes, Declared)  # noqa: S101 - see ``visible``
        return rows.attributes

    def __missing__(self, name: str) -> Tensor:
        """Raise TrainingError."""
        raise TrainingError(
            f"phase '{self.phase}' reads attribute '{name}', which its rows do not have or which "
            f"it does not declare: write reads_attributes=('{name}',) in the phase"
        )

    def at(self, rows: Tensor) -> Declared:
        """Return the values of these rows."""
        return Declared(self.phase, {name: column[rows] for name, column in self.items()})


class Withheld(Tensor):
    """Labels that a phase does not declare: only their number and device can be read."""

    phase: str

    @classmethod
    def like(cls, y: Tensor, phase: str) -> Withheld:
        """Return a stand-in for y, without its values, for the phase of that name."""
        shown = torch.zeros((), dtype=y.dtype, device=y.device).expand(y.shape)
        made: Withheld = torch.Tensor._make_subclass(cls, shown)  # noqa: SLF001
        made.phase = phase
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what says nothing about values; refuse all else."""
        if func in _SHAPE:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        mine = _first([*args, *(kwargs or {}).values()])
        if func is Tensor.__getitem__ and mine is args[0]:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
                return cls.like(args[0][args[1]], mine.phase)
        raise TrainingError(
            f"phase '{mine.phase}' reads labels but says that it reads none: write "
            "reads_labels=True in the phase (a target's encoder: labelled_encoder = True)"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        """Say what it is."""
        del tensor_contents
        return f"labels withheld from phase '{self.phase}'"


#: What may be asked of withheld labels.
_SHAPE = {
    Tensor.__len__, Tensor.size, Tensor.dim, Tensor.numel, Tensor.get_device,
    *(vars(torch._C.TensorBase)[name].__get__  # noqa: SLF001
      for name in ("shape", "device", "ndim", "dtype", "is_cuda", "requires_grad")),
}  # fmt: skip


def _first(values: Iterable[Any]) -> Withheld:
    """Return the withheld labels among arguments, which may be in lists."""
    for value in values:
        if isinstance(value, Withheld):
            return value
        if isinstance(value, list | tuple):
            found = _first(value)
            if isinstance(found, Withheld):
                return found
    return Withheld.like(torch.zeros(0), "?")
