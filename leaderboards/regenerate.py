# ruff: noqa: INP001 - a script
"""Writes every board again from the results that are committed: results/NAME.jsonl → NAME.md.

    uv run python leaderboards/regenerate.py            write NAME.md, NAME.csv and NAME.svg
    uv run python leaderboards/regenerate.py --check    only say which of them differ

the same for submissions/NAME.jsonl, and the tables of README.md: what was found on each dataset,
all boards, and what others submitted.

The board of a suite in suites/NAME.yaml has its title and its bound of utility. Exit status: 0, or
1 if a file differs. CI checks this.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from privbench import Results
from privbench.boards.board import Leaderboard
from privbench.boards.findings import undefended
from privbench.boards.matrix import aim_text
from privbench.cli.main import main as privbench
from privbench.grid.judging import judging
from privbench.ground.judges import judges
from privbench.ground.text import markdown, several
from privbench.plugins import registry
from privbench.results.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.panel import Aim, DefenseRow, Panel
    from privbench.ground.judges import Wanted

    Judging = Mapping[str, Sequence[Wanted]]

ROOT = Path(__file__).resolve().parents[1]
#: Files of a board: the page, all numbers, the figure where there is one to draw.
SUFFIXES = (".md", ".csv", ".svg")
#: Victims of a board that README.md names; of more it gives the number.
MOST = 3
#: A defense that may lose more accuracy than this is not named there as the best.
DEAREST = 0.05
#: Results of others; the first table of README.md is about our own only.
SUBMITTED = "submissions/"
DRAFTS = f"""\
### Drafts

Boards of fewer than {FEWEST_SEEDS} seeds: none of their numbers is certain, and none names a best
defense.\
"""
SUBMISSIONS = """\
Submissions ([how to submit](SUBMIT.md); `norm-attack` is our example). We computed their metrics
again from the scores, and do not count them above: scores do not show who made them.\
"""
#: The tables of all boards stand between these in README.md.
MARKS = ("<!-- boards -->", "<!-- end of boards -->")


def render(name: str, page: Path, root: Path = ROOT) -> None:
    """Write a board as this page, with csv file and figure beside it."""
    suite = Path("leaderboards", "suites", f"{name}.yaml")
    title = name.replace(SUBMITTED, "Submitted: ")
    page.parent.mkdir(exist_ok=True)
    args = ["leaderboard", str(_results(name)), "-o", str(page.absolute())]
    with contextlib.chdir(root):  # the page names the suite by its path in the checkout
        args += ["--suite", suite.as_posix()] if suite.exists() else ["--title", title]
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


def write(root: Path = ROOT, names: Sequence[str] | None = None) -> None:
    """Write boards, all by default; a figure that there is nothing to draw of is removed."""
    for name in _names(root) if names is None else names:
        page = root / "leaderboards" / f"{name}.md"
        for suffix in SUFFIXES:
            page.with_suffix(suffix).unlink(missing_ok=True)
        render(name, page, root)
    path, text = front_page(root)
    path.write_text(text, encoding="utf-8")


def too_dear(line: DefenseRow) -> bool:
    """Whether the upper end of the accuracy that a defense loses is above the limit."""
    loss = line.loss
    if loss is not None and loss.high is not None:
        loss = replace(loss, mean=loss.high)
    return loss is not None and not loss.at_most(DEAREST)


@dataclass(frozen=True)
class Seen:
    """What a board says of one question about one victim."""

    board: str
    panel: Panel
    aim: Aim

    @property
    def victim(self) -> tuple[str, Aim, str]:
        """The dataset, what is inferred, and the name of the target."""
        panel = self.panel
        return panel.dataset.split(" (")[0], self.aim, panel.target.split("(")[0]

    @property
    def sign(self) -> int:
        """1 if a higher number is a stronger attack, else -1."""
        return 1 if self.panel.higher[self.aim] else -1

    @property
    def leak(self) -> float:
        """What the strongest attack reaches without a defense, times the sign; -inf if unknown."""
        leak = self.panel.rows[0].leak(self.aim)
        return -math.inf if leak is None else self.sign * leak

    @property
    def defended(self) -> list[tuple[float, str, DefenseRow]]:
        """The same for each defense, with its name, the smallest leak first."""
        known = [(one.leak(self.aim), one) for one in self.panel.rows[1:]]
        return sorted((self.sign * leak, one.title, one) for leak, one in known if leak is not None)

    @property
    def usable(self) -> list[tuple[float, str, DefenseRow]]:
        """Those that lose little accuracy even at the upper end, or of which that is not known."""
        return [one for one in self.defended if not too_dear(one[2])]

    @property
    def strongest(self) -> set[str]:
        """The attack that reaches the leak without a defense, whatever its settings."""
        none = self.panel.rows[0]
        worst = none.worst.get(self.aim)
        return {spot.records[0].cell.attack.name for attack, spot in none.spots.items()
                if worst and (attack.aim, attack.name) == (self.aim, worst.attack)}  # fmt: skip

    @property
    def asked(self) -> set[str]:
        """Attacks that the board has, whatever their settings."""
        spots = [item for line in self.panel.rows for item in line.spots.items()]
        return {spot.records[0].cell.attack.name for one, spot in spots if one.aim == self.aim}

    @property
    def lines(self) -> list[DefenseRow]:
        """Defenses of which the leak is known."""
        return [line for *_, line in self.defended]

    @property
    def judged(self) -> set[tuple[str, ...]]:
        """Stacks of defenses that met all attacks that judge them."""
        return {stack(line) for line in self.lines if not line.not_met.get(self.aim)}

    @property
    def source(self) -> str:
        """The board."""
        return f"([{self.board}]({self.board}.md))"

    @property
    def draft(self) -> bool:
        """Whether it has fewer seeds than a board needs."""
        return len(self.panel.seeds) < FEWEST_SEEDS

    def lowered(self, line: DefenseRow) -> bool:
        """Whether a defense lowers the leak beyond chance.

        That of the attack that is compared (after Holm's correction), and the worst case: its
        strongest attack finds less than the strongest one without a defense, paired by seed.
        """
        compared = (line.title, self.aim) in self.panel.certain
        less = compared and not self.panel.leaks_more(line.changes[self.aim], self.aim)
        return less and self.panel.worst_moves(line, self.aim) < 0


def stack(line: DefenseRow) -> tuple[str, ...]:
    """Names of the defenses of a line, whatever their settings."""
    spot = next(iter(line.spots.values()))
    return tuple(one.name for one in spot.records[0].cell.defenses)


def overview(root: Path = ROOT) -> str:
    """Return what leaks most and what protects best on each dataset, and lists of all boards."""
    known = judging(registry.load())
    shown = {name: _shown(name, root, known) for name in _names(root)}
    ours = {name: of for name, of in shown.items() if not name.startswith(SUBMITTED)}
    seen = [
        Seen(name, panel, aim) for name, of in ours.items() for panel in of for aim in panel.aims
    ]
    heads = ["data", "what is inferred", "victim", "leaks most without a defense",
             "protected best", "cost"]  # fmt: skip
    every = ["board", "victims", "attacks", "defenses", "seeds"]
    told = []
    for draft in (False, True):
        mine = [one for one in seen if one.draft is draft]
        victims = sorted({one.victim for one in mine})
        lines = [_finding([one for one in mine if one.victim == at], known) for at in victims]
        boards = [_board(name, of) for name, of in ours.items() if _draft(of) is draft]
        told += [DRAFTS] if draft and (lines or boards) else []
        width = 4 if draft else 6
        found = _table(heads[:width], [line[:width] for line in lines])
        told += [found] if lines else []
        title = f"Boards of fewer than {FEWEST_SEEDS} seeds:" if draft else "Boards:"
        told += [title, _table(every, boards)] if boards else []
    if theirs := [_board(name, of) for name, of in shown.items() if name not in ours]:
        told += [SUBMISSIONS, _table(every, theirs)]
    return "\n\n".join(told)


def _draft(shown: Sequence[Panel]) -> bool:
    """Whether a board has fewer seeds than it needs."""
    return max((len(one.seeds) for one in shown), default=0) < FEWEST_SEEDS


def _shown(name: str, root: Path, known: Judging) -> Sequence[Panel]:
    """The panels that come first on a board."""
    suite = root / "leaderboards" / "suites" / f"{name}.yaml"
    settings = yaml.safe_load(suite.read_text("utf-8")) if suite.exists() else {}
    records = Results.read(root / _results(name))
    return Leaderboard(records, settings.get("match_utility"), known).foremost


def _finding(mine: Sequence[Seen], known: Judging) -> list[str]:
    """The strongest leak of a victim on all boards, and the best defense that all judges met.

    Args:
        mine: what boards say of the victim.
        known: which attacks judge which defense.
    """
    dataset, aim, victim = mine[0].victim
    most = max(mine, key=lambda one: one.leak)
    leaks = best = cost = "–"
    if most.leak > -math.inf:
        told = f"{most.panel.target}: {undefended(most.panel, most.aim)}"
        leaks = f"{markdown(told)} {most.source}"
    widest = max(mine, key=lambda one: (len(one.judged), len({*map(stack, one.lines)}),
                                        len(one.lines), one.leak))  # fmt: skip
    if widest.usable:
        told, cost = _best(widest, known)
        if cost != "–" and (missing := most.strongest - widest.asked):
            told += f"; not met by {', '.join(missing)}"
        best = f"{markdown(told)} {widest.source}"
    return [dataset, aim_text(aim), victim, leaks, best, cost]


def _best(of: Seen, known: Judging) -> tuple[str, str]:
    """The usable defense that leaves least and what it costs, or why it is not called the best."""
    left, title, line = of.usable[0]
    if missing := line.not_met.get(of.aim):
        wanted = len(judges(known, stack(line), of.aim[0]))
        met = f"met {wanted - len(missing)} of its {several(wanted, 'judge')} at full strength"
        return f"none yet: {title} leaks least and {met}", "–"
    seeds = line.worst[of.aim].seeds
    if seeds < FEWEST_SEEDS:
        return f"{title}: {several(seeds, 'seed')} only", "–"
    if not of.lowered(line):
        return f"{title}: that it lowers the leak is not shown", "–"
    before = "" if of.leak == -math.inf else f"{of.sign * of.leak:.3f} to "
    told = f"{of.panel.target}: {title}, {before}{of.sign * left:.3f}"
    if line.loss is None:
        return told, "–"
    mean, low, high = line.loss.mean, line.loss.low, line.loss.high
    half = "" if low is None or high is None else f" ± {50 * (high - low):.1f}"
    return told, f"{100 * mean:.1f}{half} points"


def _board(name: str, shown: Sequence[Panel]) -> list[str]:
    victims = dict.fromkeys(f"{one.target} on {one.dataset}" for one in shown)
    attacks = {attack.name for one in shown for attack in one.attacks}
    defenses = {line.name for one in shown for line in one.rows} - {"none"}
    seeds = max((len(one.seeds) for one in shown), default=0)
    told = markdown("; ".join(victims) if len(victims) <= MOST else f"{len(victims)} victims")
    return [f"[{name}]({name}.md)", told, f"{len(attacks)}", f"{len(defenses)}", f"{seeds}"]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(heads), "|".join(["---"] * len(heads)), *map(" | ".join, rows)]
    return "\n".join(f"| {line} |" for line in lines)


def front_page(root: Path = ROOT) -> tuple[Path, str]:
    """Return README.md and what it should hold: its own text with the tables between two marks."""
    path = root / "leaderboards" / "README.md"
    text = path.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return path, f"{before}{MARKS[0]}\n\n{overview(root)}\n\n{MARKS[1]}{after}"


def _names(root: Path) -> list[str]:
    """Names of our own boards; then "submissions/NAME" of others'."""
    ours = sorted(path.stem for path in root.glob("leaderboards/results/*.jsonl"))
    others = sorted(path.stem for path in root.glob(f"leaderboards/{SUBMITTED}*.jsonl"))
    return [*ours, *(f"{SUBMITTED}{name}" for name in others)]


def _results(name: str) -> Path:
    """The results of a board, in the checkout."""
    folder = "" if name.startswith(SUBMITTED) else "results/"
    return Path(f"leaderboards/{folder}{name}.jsonl")


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:] == ["--check"]:
        differ = stale()
        print("\n".join(differ) or "all boards are those of their results")  # noqa: T201
        sys.exit(1 if differ else 0)
    write()
