"""The import structure of the core: packages, arrows between them, and those that go up.

``uv run python tests/imports.py [CHECKOUT]`` prints it; an arrow counts once, whatever number of
modules it stands for. The layers are those of pyproject.toml. The site draws them.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Structure:
    """What imports what.

    Attributes:
        layers: packages by layer, the highest first.
        modules, imports: how many there are.
        packages: of the core.
        arrows: from a package to one that it imports.
        upward: arrows from a lower layer to a higher one.
    """

    layers: list[tuple[str, ...]]
    modules: int
    imports: int
    packages: set[str]
    arrows: set[tuple[str, str]]
    upward: list[tuple[str, str]]


def structure(checkout: Path) -> Structure:
    """Return the structure of the package in that checkout."""
    sys.path.insert(0, str(checkout / "benchmark"))
    graph = grimp.build_graph("privbench", exclude_type_checking_imports=True, cache_dir=None)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    given = next(c["layers"] for c in settings["contracts"] if c["type"] == "layers")
    layers = [tuple(name.strip() for name in layer.split("|")) for layer in given]
    level = {name: i for i, layer in enumerate(layers) for name in layer}
    imports = {
        (one, other)
        for one in graph.modules
        for other in graph.find_modules_directly_imported_by(one)
    }
    arrows = {(_package(one), _package(other)) for one, other in imports}
    arrows = {(one, other) for one, other in arrows if one != other}
    packages = {_package(name) for name in graph.modules if "." in name}
    upward = [a for a in sorted(arrows) if level.get(a[0], -1) > level.get(a[1], 99)]
    return Structure(layers, len(graph.modules), len(imports), packages, arrows, upward)


def main(checkout: Path) -> None:
    """Print the structure of the package in that checkout."""
    found = structure(checkout)
    print(f"{found.modules} modules, {found.imports} imports")
    print(f"{len(found.packages)} packages, {len(found.arrows)} arrows")
    print(f"{len(found.upward)} upward:", *(f"{one} -> {other}" for one, other in found.upward))


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
