"""What a page says around its tables: code, probes, drafts, controls, what has no number."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from statistics import NormalDist
from typing import TYPE_CHECKING
from urllib.parse import quote

from privbench.boards import verdicts
from privbench.boards.operating import NO_SETTING, NOT_SHOWN
from privbench.ground.text import markdown, several, shown
from privbench.results.fixed_fpr import true_fpr
from privbench.results.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.boards.board import Leaderboard
    from privbench.boards.panel import DefenseRow, Panel
    from privbench.boards.verdicts import Range
    from privbench.results.record import Record
    from privbench.results.seeds import Seeds

#: Reasons for cells that were skipped, failed or are doubtful, and names of one kind.
MOST = 8
#: With fewer nonmembers, no rate at 1 % FPR is measured.
FEWEST = 100
#: Characters of a list of names.
LONG = 400


def code(board: Leaderboard) -> list[str]:
    """Which code made the results; warnings are bold."""
    lines = verdicts.code_lines(board.records)
    return [f"**{markdown(x)}**" if x.startswith("WARNING") else markdown(x) for x in lines]


def probes(board: Leaderboard) -> str:
    """What a linear probe reads without a defense, beside untrained encoders; "" for nothing."""
    told = [
        f"{victim} {trained:.3f} (untrained {untrained:.3f})"
        for victim, (trained, untrained) in sorted(board.probes.items())
    ]
    start = "Accuracy of a linear probe on undefended encoders, mean over seeds: "
    return markdown(start + shown(", ".join(told), LONG)) + "." if told else ""


def low_fpr(records: Iterable[Record]) -> str:
    """What "1 % FPR" means with this number of nonmembers; "" if it is never measured."""
    sizes = sorted({n for record in records if (n := record.sizes.get("nonmembers", 0)) >= FEWEST})
    told = [
        f"{100 * at.mean:.2f} % ± {100 * at.deviation:.2f} % with {n:,} nonmembers"
        for n in dict.fromkeys((sizes[0], sizes[-1]) if sizes else ())
        for at in [true_fpr(n, 0.01)]
    ]
    start = "The threshold at 1 % FPR comes from the nonmembers; its true FPR is "
    return f"{start}{' to '.join(told)}." if told else ""


def remarks(panel: Panel) -> str:
    """Return what a panel lacks, in one paragraph of markdown; "" for nothing."""
    told = []
    if len(panel.seeds) < FEWEST_SEEDS:
        told.append(
            f"Draft: {several(len(panel.seeds), 'seed')} where a board needs {FEWEST_SEEDS}."
        )
    if len(panel.own) < len(panel.attacks):
        told.append("Attacks that do the same for the adaptive adversary are in its table; "
                    "the worst case counts them.")  # fmt: skip
    why: dict[str, list[str]] = {}
    for name, reasons in sorted(panel.unmet.items()):
        for reason, seeds_ in reasons.items():
            numbers = ", ".join(map(str, seeds_))
            why.setdefault(reason, []).append(f"{name} (seed{'s' * (len(seeds_) > 1)} {numbers})")
    for reason, names in sorted(why.items()):
        start = _NO_POINT.get(reason, f"No operating point, as {reason}")
        told.append(f"{start}: {shown(', '.join(names), LONG)}.")
    told += not_ranked(panel)
    return markdown(" ".join(told))


def not_ranked(panel: Panel) -> list[str]:
    """Say which attacks have not met which defenses that they judge: at most one sentence."""
    missing: dict[str, list[DefenseRow]] = {}
    for line in panel.rows:
        for name in dict.fromkeys(name for of in line.not_met.values() for name in of):
            missing.setdefault(name, []).append(line)
    if not missing:
        return []
    told = [f"{name}: {_lines(of, panel)}" for name, of in sorted(missing.items())]
    return [f"Not ranked (‖), as an attack that judges it has not met it: {'; '.join(told)}."]


def _lines(some: Sequence[DefenseRow], panel: Panel) -> str:
    """Names of some defenses; with settings only where it is not all of them."""
    if len(some) == len(panel.rows) - 1 > 1:
        return "all"
    every, mine = (Counter(line.name for line in of) for of in (panel.rows, some))
    told = [line.name if mine[line.name] == every[line.name] else line.title for line in some]
    return shown(", ".join(dict.fromkeys(told)), LONG)


#: As a reason for a doubt names it. Flags of results are texts of anyone, and may look alike.
_P_VALUE = re.compile(r" \(p = (\d+(?:\.\d+)?(?:e-\d+)?)\b")
_NO_POINT = {
    NO_SETTING: "No setting costs little enough",
    NOT_SHOWN: "No setting is shown to cost little enough",
}


def controls(board: Leaderboard) -> list[str]:
    """One paragraph: what attacks find where there is nothing, and where a leak was planted."""
    told = [f"{heading} on null victims {_range(of)}" for heading, of in board.nulls]
    told += [
        f"AUC of a classifier of inputs alone {_range(of)}"
        for of in filter(None, [board.input_only])
    ]
    told += _planted(board)
    told += _smallest(board)
    doubts: dict[str, list[str]] = {}
    for why in board.doubtful.values():
        doubts.setdefault(_P_VALUE.split(why)[0], []).append(why)
    told += [f"‡ {len(of)} cells: {shown(why, LONG)}{_smallest_p(of)}"
             for why, of in sorted(doubts.items())[:MOST]]  # fmt: skip
    told += [f"‡ {len(doubts) - MOST} more reasons, see the csv file"] if len(doubts) > MOST else []
    return [f"**Controls**: {markdown('; '.join(told))}.", ""] if told else []


def _smallest_p(reasons: Sequence[str]) -> str:
    known = [float(found[1]) for why in reasons if (found := _P_VALUE.search(why))]
    return f" (p from {min(known):.2g})" if known else ""


def _range(of: Range) -> str:
    over = f"{several(of.count, 'trial')} of {several(of.seeds, 'seed')}"
    return f"{of.mean:.3f} on average ({of.low:.3f} to {of.high:.3f} over {over})"


def by_chance(over: Seeds, attacks: int) -> float | None:
    """What the best of so many attacks reaches by chance: the mean AUC of one board in 40.

    None if it is unknown, as in other games than membership.
    """
    error = _error(over)
    return None if error is None else 0.5 + error * NormalDist().inv_cdf(1 - 0.025 / attacks)


def smallest_leak(over: Seeds) -> float | None:
    """The mean AUC of membership that is beyond chance (5 %) on four boards of five, or None."""
    error = _error(over)
    normal = NormalDist()
    return None if error is None else 0.5 + error * (normal.inv_cdf(0.975) + normal.inv_cdf(0.8))


def _error(over: Seeds) -> float | None:
    """Standard error of a mean AUC without signal, over seeds; None if it is unknown."""
    of: dict[int, float] = {}  # seed -> variance of its AUC
    for record in over.ok:
        m, n = (record.sizes.get(name, 0) for name in ("members", "nonmembers"))
        if record.cell.game == "membership" and m and n:
            of[record.seed] = (m + n + 1) / (12 * m * n)
    return math.sqrt(math.fsum(of.values())) / len(of) if of else None


def _smallest(board: Leaderboard) -> list[str]:
    spots = [spot for panel in board.foremost for spot in panel.rows[0].spots.values()]
    found = {one for spot in spots if (one := smallest_leak(spot.over))}
    if not found:
        return []
    ends = dict.fromkeys(f"{one:.3f}" for one in (min(found), max(found)))
    told = "the smallest leak that an attack sees on four of five such boards is an AUC of"
    return [f"{told} {' to '.join(ends)}"]


def _planted(board: Leaderboard) -> list[str]:
    """How many planted leaks were found, and who missed one."""
    cells = [(verdicts.finds(of.ok), of.first) for of in board.planted]
    judged = [one for one in cells if one[0] is not None]
    if not judged:
        return []
    missed = sorted(
        f"{one.cell.attack.label} ({', '.join(filter(None, verdicts.victim_of(one)))})"
        for finds, one in judged if not finds
    )  # fmt: skip
    told = f"planted leaks found in {len(judged) - len(missed)} of {len(judged)} cells"
    return [f"{told}, NOT by {shown(', '.join(missed), LONG)}" if missed else told]


def troubles(board: Leaderboard) -> list[str]:
    """Skipped and failed cells, counted by reason; methods with the same reason share a line."""
    cells: dict[tuple[str, str], dict[str, set[str]]] = {}
    for record in board.records:
        if record.status != "ok" and not record.cell.control:
            name, reason = _of_method(record)
            mine = cells.setdefault((record.status, reason), {}).setdefault(name, set())
            mine.add(board.cell_of(record))
    if not cells:
        return []
    counts = {at: sum(map(len, by_name.values())) for at, by_name in cells.items()}
    ordered = sorted(cells, key=lambda at: (at[0], -counts[at], sorted(cells[at]), at[1]))
    lines = []
    for at in ordered[:MOST]:
        (status, reason), names = at, sorted(cells[at])
        told = f"{reason}: {', '.join(names)}" if len(names) > 1 else f"{names[0]} {reason}"
        told = shown(" ".join(told.split()), LONG)
        lines.append(f"- {status} {counts[at]}: {markdown(told)}")
    left = sum(counts[at] for at in ordered[MOST:])
    lines += [f"- {left} more, see the csv file"] if left else []
    return ["Cells without a number:", "", *lines, ""]


def _of_method(record: Record) -> tuple[str, str]:
    """The method that a reason begins with, and the rest; "" and the whole reason if none does."""
    cell = record.cell
    for name in (cell.attack.name, *(defense.name for defense in cell.defenses)):
        if record.reason.startswith(f"{name} "):
            return name, record.reason.removeprefix(f"{name} ")
    return "", record.reason


def reproduce(board: Leaderboard, again: Sequence[str], table: str) -> list[str]:
    """What its suite asks for in vain, how to repeat the numbers, where all are, how to cite them.

    Args:
        board: with the results.
        again: what ``privbench run`` is given to make them; empty for unknown.
        table: path of the csv file; "" for none.
    """
    lines = []
    if lacking := board.unmeasured:
        told = f"Not measured yet, though the suite asks for it: {', '.join(lacking)}."
        lines += [markdown(shown(told, LONG)), ""]
    if again:
        lines += ["Reproduce, with the code named above:", "", "```",
                  f"uv run privbench run {shown(shlex.join(again), LONG)} --jobs auto",
                  "```", ""]  # fmt: skip
    where = ""
    if table:
        where = f"All numbers with their intervals: [{markdown(table)}]({quote(table)}). "
    commits = {commit or "unknown" for commit, _, _ in verdicts.codes(board.records)}
    presets = ", ".join(sorted({record.cell.preset for record in board.records}))
    cite = f"privbench, commit {', '.join(sorted(commits))}, preset {presets}, this page"
    return [*lines, f"{where}Cite as: {markdown(shown(cite, LONG))}."]
