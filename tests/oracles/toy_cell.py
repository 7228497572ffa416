"""A cell with no more than what common requirements look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from privbench import Adversary, Protocol


def toy_cell(**fields: Any) -> Any:
    """The cell, with these fields; its protocol has rows for everybody."""
    protocol = Protocol(name="toy", members=80, nonmembers=80, reference=80, pool=400)
    return SimpleNamespace(**{"protocol": protocol, "adversary": Adversary(), **fields})
