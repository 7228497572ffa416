"""Prints the import structure of the core: packages, arrows between them, and those that go up.

``uv run python tests/imports.py [CHECKOUT]``; an arrow counts once, whatever number of modules it
stands for. The layers are those of pyproject.toml.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent


def main(checkout: Path) -> None:
    """Print the structure of the package in that checkout."""
    sys.path.insert(0, str(checkout / "benchmark"))
    graph = grimp.build_graph("privbench", exclude_type_checking_imports=True, cache_dir=None)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in settings["contracts"] if c["type"] == "layers")
    level = {name.strip(): i for i, layer in enumerate(layers) for name in layer.split("|")}
    imports = {
        (one, other)
        for one in graph.modules
        for other in graph.find_modules_directly_imported_by(one)
    }
    arrows = {(_package(one), _package(other)) for one, other in imports}
    arrows = {(one, other) for one, other in arrows if one != other}
    packages = {_package(name) for name in graph.modules if "." in name}
    print(f"{len(graph.modules)} modules, {len(imports)} imports")
    print(f"{len(packages)} packages, {len(arrows)} arrows")
    upward = [a for a in sorted(arrows) if level.get(a[0], -1) > level.get(a[1], 99)]
    print(f"{len(upward)} upward:", *(f"{one} -> {other}" for one, other in upward))


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
