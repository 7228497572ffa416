"""Helpers for defenses that change losses on members' labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench import DefenseContext, Phase


def note_reach(name: str, phases: Sequence[Phase], ctx: DefenseContext) -> None:
    """Note that the defense does not reach the encoder if the encoder reads no labels."""
    if any(phase.trains("encoder") and not phase.reads_labels for phase in phases):
        ctx.note(**{name: "touches the classifier only: the encoder's loss reads no labels"})
