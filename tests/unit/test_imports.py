"""The rooms of the core: imports run downward, and in no circle."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IMPORTS = runpy.run_path(str(ROOT / "tests" / "imports.py"))
#: The only modules that know each other: what methods are, and what they get.
INTERFACES = "privbench.measure.methods."


@pytest.fixture(scope="module")
def found() -> Any:
    return IMPORTS["structure"](ROOT)


def test_imports_between_rooms_run_downward(found: Any) -> None:
    assert found.upward == []
    placed = {room for floor in found.layers for room in floor}
    assert found.packages == placed


def test_there_is_no_circle_but_among_the_interfaces_of_methods(found: Any) -> None:
    assert found.circles == []
    others = [ring for ring in found.rings if not all(n.startswith(INTERFACES) for n in ring)]
    assert others == []


def test_grid_and_boards_meet_in_results_only(found: Any) -> None:
    wings = {"privbench.grid", "privbench.boards"}
    assert not {arrow for arrow in found.arrows if {*arrow} == wings}


def test_a_circle_is_found() -> None:
    leads = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"], "f": ["a"]}
    assert IMPORTS["circles"](leads, leads.__getitem__) == [["a", "b", "c"], ["d", "e"]]
