"""The import structure of the core: rooms, floors, arrows between rooms, circles.

``uv run python tests/imports.py [CHECKOUT]`` prints it. Imports for type checkers count: who reads
a type follows it too. A room is a package of the core; an arrow counts once, whatever number of
modules it stands for. A circle is a set of modules, or of rooms, of which each leads to each other.
The floors are those of pyproject.toml; the names of ``privbench`` itself are under the highest one,
which uses them. The site draws them.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Structure:
    """What imports what.

    Attributes:
        layers: rooms by floor, the highest first.
        modules, imports: how many there are.
        lines: lines of code: no empty ones, comments or docstrings.
        packages: the rooms.
        arrows: from a room to one that it imports.
        upward: arrows to a higher floor, or between rooms of one floor.
        circles: of rooms.
        rings: of modules.
    """

    layers: list[tuple[str, ...]]
    modules: int
    imports: int
    lines: int
    packages: set[str]
    arrows: set[tuple[str, str]]
    upward: list[tuple[str, str]]
    circles: list[list[str]]
    rings: list[list[str]]


def structure(checkout: Path) -> Structure:
    """Return the structure of the package in that checkout, with the floors that it declares."""
    source = checkout / "benchmark"
    sys.path.insert(0, str(source))
    graph = grimp.build_graph("privbench", exclude_type_checking_imports=False, cache_dir=None)
    text = (checkout / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    given = next(c["layers"] for c in contracts if c["type"] == "layers")
    layers = [tuple(name.strip() for name in layer.split("|")) for layer in given]
    floor = {name: float(i) for i, layer in enumerate(layers) for name in layer}
    floor |= {"privbench": 0.5, "privbench.__main__": -1.0}
    leads = {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
    arrows = {
        (_room(one), _room(other))
        for one, others in leads.items()
        for other in others
        if _room(one) != _room(other)
    }
    rooms = {_room(name) for name in graph.modules} - {"privbench", "privbench.__main__"}
    upward = [
        (one, other)
        for one, other in sorted(arrows)
        if floor.get(one, 99.0) >= floor.get(other, 99.0)
    ]
    return Structure(
        layers, len(graph.modules), sum(map(len, leads.values())), _lines(source), rooms, arrows,
        upward,
        circles(rooms, lambda room: {other for one, other in arrows if one == room}),
        circles(leads, leads.__getitem__),
    )  # fmt: skip


def circles(nodes: Iterable[str], leads: Callable[[str], Iterable[str]]) -> list[list[str]]:
    """Return the largest sets of several nodes of which each leads to each other.

    >>> circles("abcd", {"a": "b", "b": "ca", "c": "d", "d": ""}.__getitem__)
    [['a', 'b']]
    """
    reached: dict[str, set[str]] = {}
    for node in nodes:
        found, todo = set[str](), [node]
        while todo:
            new = [one for one in leads(todo.pop()) if one not in found]
            found.update(new)
            todo += new
        reached[node] = found
    around = [
        sorted(other for other in reached[node] if node in reached.get(other, ()))
        for node in sorted(reached)
    ]
    return sorted({tuple(one): one for one in around if len(one) > 1}.values())


def main(checkout: Path) -> None:
    """Print the structure of the package in that checkout."""
    found = structure(checkout)
    print(f"{found.modules} modules, {found.lines} lines of code, {found.imports} imports")
    print(f"{len(found.packages)} rooms on {len(found.layers)} floors, {len(found.arrows)} arrows")
    for layer in found.layers:
        print("   ", " | ".join(layer))
    print(
        f"{len(found.upward)} arrows upward:", *(f"{one} -> {other}" for one, other in found.upward)
    )
    print(f"{len(found.circles)} circles of rooms:", *map(" ".join, found.circles))
    print(f"{len(found.rings)} circles of modules")
    for ring in found.rings:
        print("   ", *(name.removeprefix("privbench.") for name in ring))


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _lines(folder: Path) -> int:
    count = 0
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        told = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        lines = [line.strip() for line in text.splitlines()]
        count += sum(
            bool(line) and not line.startswith("#") and i not in told
            for i, line in enumerate(lines, 1)
        )
    return count


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else ROOT)
