"""Helpers for defenses that change losses on members' labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import Cell, DefenseContext, Phase


def none_reads_members(name: str, cell: Cell) -> str | None:
    """Return why a defense has no loss to change (no phase reads members' labels), or None."""
    if cell.target.labelled_encoder or cell.protocol.classifier == "members":
        return None
    return (
        f"{name} changes losses that read members' labels, and no phase of "
        f"{cell.target.name} does under protocol '{cell.protocol.name}'"
    )


def note_reach(name: str, phases: Sequence[Phase], ctx: DefenseContext) -> None:
    """Note that the defense does not reach the encoder if the encoder reads no labels."""
    if any(phase.trains("encoder") and not phase.reads_labels for phase in phases):
        ctx.note(**{name: "touches the classifier only: the encoder's loss reads no labels"})
