# ruff: noqa: INP001 - a script
"""Writes every board again from the results that are committed: results/NAME.jsonl → NAME.md.

    uv run python leaderboards/regenerate.py            write NAME.md, NAME.csv and NAME.svg
    uv run python leaderboards/regenerate.py --check    only say which of them differ

and the table of all boards in README.md.

The board of a suite in suites/NAME.yaml has its title and its bound of utility. Exit status: 0, or
1 if a file differs. CI checks this in tests/unit/test_committed_boards.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from privbench import Results
from privbench.boards.panel import foremost
from privbench.boards.panels import panels
from privbench.boards.statistics import FEWEST_SEEDS
from privbench.cli.main import main as privbench
from privbench.text import markdown

if TYPE_CHECKING:
    from privbench.boards.panel import Aim, Panel

ROOT = Path(__file__).resolve().parents[1]
#: Files of a board: the page, all numbers, the figure where there is one to draw.
SUFFIXES = (".md", ".csv", ".svg")
#: The table of all boards stands between these in README.md.
MARKS = ("<!-- boards -->", "<!-- end of boards -->")


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
    path, text = front_page(root)
    if path.read_text("utf-8") != text:
        found.append("leaderboards/README.md")
    return found


def write(root: Path = ROOT) -> None:
    """Write all boards; a figure that there is nothing to draw of is removed."""
    for name in _names(root):
        page = root / "leaderboards" / f"{name}.md"
        for suffix in SUFFIXES:
            page.with_suffix(suffix).unlink(missing_ok=True)
        render(name, page, root)
    path, text = front_page(root)
    path.write_text(text, encoding="utf-8")


def overview(root: Path = ROOT) -> str:
    """Return a table of all boards: what leaks most, and what protects best at which cost."""
    heads = ["board", "victim", "against", "leaks most", "protects best", "costs", "seeds"]
    lines = [" | ".join(heads), "|".join(["---"] * len(heads))]
    for name in _names(root):
        records = Results.read(root / "leaderboards" / "results" / f"{name}.jsonl")
        suite = root / "leaderboards" / "suites" / f"{name}.yaml"
        bound = yaml.safe_load(suite.read_text("utf-8")).get("match_utility")
        strongest: dict[tuple[str, str, Aim], Panel] = {}
        for panel in foremost(panels(records, bound)):
            for aim in panel.aims:
                place = (panel.dataset, panel.target, aim)
                if _leak(panel, aim) > _leak(strongest.get(place), aim):
                    strongest[place] = panel
        for (_, _, aim), panel in strongest.items():
            lines.append(" | ".join([f"[{name}]({name}.md)", *_row(panel, aim)]))
    return "\n".join(f"| {line} |" for line in lines)


def _leak(panel: Panel | None, aim: Aim) -> float:
    """What the strongest attack reaches without a defense, with a sign by which more is worse."""
    leak = None if panel is None else panel.lines[0].leak(aim)
    if panel is None or leak is None:
        return -math.inf
    return leak if panel.higher[aim] else -leak


def _row(panel: Panel, aim: Aim) -> list[str]:
    none, *defenses = panel.lines
    game, guessed = aim
    sign = 1 if panel.higher[aim] else -1
    known = [(sign * leak, one) for one in defenses if (leak := one.leak(aim)) is not None]
    best, cost = "–", "–"
    if known:
        leak, line = min(known, key=lambda item: (item[0], item[1].title))
        best = f"{line.title}: {sign * leak:.3f}"
        cost = f"{100 * line.loss.mean:.1f} points" if line.loss else "–"
    seeds = len(panel.seeds)
    told = [
        f"{panel.target} on {panel.dataset}",
        f"{game} of {guessed}" if guessed else game,
        f"{panel.metric[aim]} {none.leak(aim):.3f} by {'/'.join(sorted(none.worst[aim].chosen))}",
        best,
        cost,
        f"{seeds}" if seeds >= FEWEST_SEEDS else f"{seeds} (draft)",
    ]
    return [markdown(one) for one in told]


def front_page(root: Path = ROOT) -> tuple[Path, str]:
    """Return README.md and what it should hold: its own text with the table between two marks."""
    path = root / "leaderboards" / "README.md"
    text = path.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return path, f"{before}{MARKS[0]}\n\n{overview(root)}\n\n{MARKS[1]}{after}"


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
