"""What was made does not change: dataclasses are frozen, but for the few that are filled in."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest

import privbench

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("privbench.boards.", "privbench.measure.", "privbench.results.", "privbench.toolbox.")
#: They are filled in step by step; an endpoint counts what it was asked.
FILLED_IN = {
    "privbench.boards.html.cells.PageCell", "privbench.boards.operating.Family",
    "privbench.boards.operating.Group", "privbench.boards.panel.DefenseRow",
    "privbench.boards.panel.Panel", "privbench.boards.panel.Spot", "privbench.boards.placing.Room",
    "privbench.measure.training.loop._Place", "privbench.measure.victims.stages.Draft",
    "privbench.toolbox.endpoint.Endpoint",
}  # fmt: skip


def _made_of_fields() -> Iterator[Any]:
    for module in pkgutil.walk_packages(privbench.__path__, "privbench."):
        if module.name.startswith(ROOMS):
            for one in vars(importlib.import_module(module.name)).values():
                if isinstance(one, type) and one.__module__ == module.name:
                    yield one


def test_dataclasses_are_frozen_but_for_those_that_are_filled_in() -> None:
    pytest.importorskip("opacus", reason="some modules of the toolbox need it")
    found: list[Any] = [one for one in _made_of_fields() if dataclasses.is_dataclass(one)]
    assert len(found) > 50
    changing = {
        f"{one.__module__}.{one.__qualname__}"
        for one in found
        if not getattr(one, "__dataclass_params__").frozen  # noqa: B009 - typeshed lacks it
    }
    assert changing == FILLED_IN
