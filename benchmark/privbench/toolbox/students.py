"""Students: victims that train on reference rows, with labels from teachers that saw members."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.data.split import World
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.defense import Defense

#: Part of a student's world that holds the members; no phase trains on it.
TEACHERS = "teachers"


def taught(world: World) -> World:
    """Return a world in which reference rows take the members' place, for ``Defense.on_data``.

    >>> from privbench.testing import tiny_split
    >>> world = tiny_split().victim()
    >>> student = taught(world)
    >>> len(student.members) == len(world.reference), len(student.parts[TEACHERS])
    (True, 80)
    """
    return world.replace(**{"members": world.reference, TEACHERS: world.members})


def teaching(world: World, members: Examples) -> World:
    """Return the world of a teacher of these members, from the world of its student."""
    parts = {name: rows for name, rows in world.parts.items() if name != TEACHERS}
    return replace(world, parts={**parts, "members": members})


def alone(defense: Defense, cell: Cell) -> str | None:
    """Return which other defense would find no held-out rows beside a student, or None."""
    for other in cell.defenses:
        if other.name not in (defense.name, "none") and other.uses_training_data:
            return (
                f"{defense.name} trains the victim on the reference rows, and {other.name} would "
                "learn from them as if they were held out"
            )
    return None


def only(labels: Tensor, kept: Tensor) -> Tensor:
    """Return soft labels (n, k) float32 that are zero outside the ``kept`` rows (n,) bool.

    A row without a label adds nothing to a cross-entropy, and nothing to its gradient.

    >>> only(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([True, False])).tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    return torch.where(kept[:, None], labels, 0.0).float()
