"""This plugin is the baseline of every table: no defense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privbench import Defense, Strength, hookimpl


@dataclass(frozen=True)
class NoDefense(Defense):
    """Changes nothing, at any stage."""

    name: ClassVar[str] = "none"
    protects: ClassVar[tuple[str, ...]] = ()
    strength: ClassVar[Strength | None] = None


@hookimpl
def privbench_defenses() -> list[Defense]:
    """Offer the baseline."""
    return [NoDefense()]
