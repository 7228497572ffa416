# ruff: noqa: INP001 - a script
"""Writes every board again from the results that are committed: results/NAME.jsonl → NAME.md.

    uv run python leaderboards/regenerate.py            write NAME.md, NAME.csv and NAME.svg
    uv run python leaderboards/regenerate.py --check    only say which of them differ

The board of a suite in suites/NAME.yaml has its title and its bound of utility. Exit status: 0, or
1 if a file differs. CI checks this in tests/unit/test_committed_boards.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from privbench.cli.main import main as privbench

ROOT = Path(__file__).resolve().parents[1]
#: Files of a board: the page, all numbers, the figure where there is one to draw.
SUFFIXES = (".md", ".csv", ".svg")


def render(name: str, page: Path, root: Path = ROOT) -> None:
    """Write the board of results/NAME.jsonl as this page, with csv file and figure beside it."""
    suite = Path("leaderboards", "suites", f"{name}.yaml")
    args = ["leaderboard", f"leaderboards/results/{name}.jsonl", "-o", str(page.absolute())]
    with contextlib.chdir(root):  # the page names the suite by its path in the checkout
        args += ["--suite", suite.as_posix()] if suite.exists() else ["--title", name]
        privbench(args, standalone_mode=False)


def stale(root: Path = ROOT) -> list[str]:
    """Return the files that are not what their results give, by path in the checkout."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _names(root):
            render(name, Path(folder, f"{name}.md"), root)
            for suffix in SUFFIXES:
                file = f"{name}{suffix}"
                if _bytes(root / "leaderboards" / file) != _bytes(Path(folder, file)):
                    found.append(f"leaderboards/{file}")
    return found


def write(root: Path = ROOT) -> None:
    """Write all boards; a figure that there is nothing to draw of is removed."""
    for name in _names(root):
        page = root / "leaderboards" / f"{name}.md"
        for suffix in SUFFIXES:
            page.with_suffix(suffix).unlink(missing_ok=True)
        render(name, page, root)


def _names(root: Path) -> list[str]:
    return sorted(path.stem for path in root.glob("leaderboards/results/*.jsonl"))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:] == ["--check"]:
        differ = stale()
        print("\n".join(differ) or "all boards are those of their results")  # noqa: T201
        sys.exit(1 if differ else 0)
    write()
