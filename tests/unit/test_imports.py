"""The rooms of the core: imports run downward, and in no circle."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IMPORTS = runpy.run_path(str(ROOT / "tests" / "imports.py"))
#: The only modules that know each other: what methods are, and what they get.
INTERFACES = "privbench.measure.methods."
DEFINED = (ast.ClassDef, ast.FunctionDef)


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


def test_every_stop_on_the_path_of_a_trial_exists() -> None:
    stops = re.findall(r"`([\w/]+\.py):([\w.]+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(stops) > 30
    for path, name in stops:
        scope: Any = ast.parse((ROOT / "benchmark" / "privbench" / path).read_text("utf-8"))
        for part in name.split("."):
            named = {node.name: node for node in scope.body if isinstance(node, DEFINED)}
            assert part in named, f"{path}:{name}"
            scope = named[part]
