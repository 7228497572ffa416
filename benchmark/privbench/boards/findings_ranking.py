"""The ranking at the top of a page: ten rows of at most 100 characters, about the first finding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privbench.boards import matrix, panel_groups
from privbench.boards.findings import by_group, own
from privbench.ground.text import markdown, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privbench.boards.panel import Aim, DefenseRow, Panel

#: Rows, and characters of a line.
ROWS, WIDTH = 10, 100
#: Most characters of the name of an attack that stands beside a number.
_BY = 26
_RATE = "best TPR at 1 % FPR"
_MARKS = {
    "†": "beyond chance, the attack that is compared finds less than without a defense; † more: "
         "it finds more.",
    "◊": "not all attacks met it, so compare it with none by the same attacks.",
    "°": "outside what the defense claims to protect.",
    "‡": "not to be trusted, see Controls.",
    "¶": "missed a planted leak, see Controls.",
    "§": "it also learned from the rows by which its setting was chosen.",
    "‖": "not ranked, as an attack that judges it has not met it at full strength.",
}  # fmt: skip


def ranking(found: Sequence[Panel]) -> list[str]:
    """Return the ranking that belongs to the first finding, as lines; [] if there is none.

    Its rows are defenses; without any, victims; of a single victim, attacks.
    """
    for group, aim, _ in by_group(found)[:1]:
        first = group[0]
        if len(group) > 1:
            return _victims(group, aim)
        return _defenses(first, aim) if len(first.rows) > 1 else _attacks(first, aim)
    return []


def _defenses(panel: Panel, aim: Aim) -> list[str]:
    none, *others = panel.rows
    sign = 1 if panel.higher[aim] else -1

    def place(line: DefenseRow) -> tuple[bool, bool, float, str]:
        leak = line.leak(aim)
        worst = math.inf if leak is None else sign * leak
        return aim in line.not_met, matrix.costly(line), worst, line.title

    lines = [*([none] if none.spots else []), *sorted(others, key=place)]
    audit = aim not in none.worst and matrix.claims_epsilon(panel)
    names, body = [], []
    for line in lines:
        lost = "–" if line is none or not line.loss else f"{line.loss.mean:+.3f}"
        if audit:
            bound, _, untestable = line.epsilons[2].partition(",")
            lost = f"{line.epsilons[0]} / {bound}{' (claim not testable)' * bool(untestable)}"
        found, low = line.worst.get(aim), line.low.get(aim)
        number, by = "–", "–"
        if found:
            number = f"{found.estimate.value:.3f}{_marks(panel, line, aim)}"
            (by,) = short([found.attack], _BY)
        elif marks := [s.mark for a, s in line.spots.items() if a.aim == aim and s.mark]:
            number = marks[0]
        names.append((line.title, " §" * line.optimistic + " ‖" * (aim in line.not_met)))
        body.append([number, by, f"{low.estimate.value:.3f}" if low else "–", lost])
    last = "ε claimed / audited" if audit else "accuracy lost"
    note = ""
    if any(map(matrix.costly, lines[:ROWS])):
        note = (
            f"Defenses that lose more than {matrix.COSTLY:g} of accuracy stand below the others, "
            "those that are not ranked below all."
        )
    return _table(["defense", _metric(panel, aim), "by", _RATE, last], names, body, note)


def _marks(panel: Panel, line: DefenseRow, aim: Aim) -> str:
    told = ""
    if (line.title, aim) in panel.certain:
        told += " † more" if panel.leaks_more(line.changes[aim], aim) else " †"
    if line is not panel.rows[0]:
        told += " ◊" * bool(matrix.missed(panel, line, aim))
        spots = [spot for attack, spot in line.spots.items() if attack.aim == aim]
        told += " °" * all(spot.over.outside for spot in spots)
    return told


def _victims(group: Sequence[Panel], aim: Aim) -> list[str]:
    sign = 1 if group[0].higher[aim] else -1
    parts = panel_groups.differing(group)
    rows = []
    for panel in group:
        known = [one for one in own(panel, aim) if not one[1].mark]
        for attack, spot in known[:1]:
            made, tested = spot.estimate, panel.rows[0].accuracy
            rates = [one.rate.value for _, one in known if one.rate]
            rows.append((-sign * made.value if made else 0.0, panel_groups.named(panel, parts), [
                matrix.with_error(made, 1), *short([attack.name], _BY),
                f"{max(rates):.3f}" if rates else "–", matrix.with_error(tested, 1)]))  # fmt: skip
    rows.sort()
    heads = [", ".join(parts), _metric(group[0], aim), "by", _RATE, "test accuracy"]
    return _table(heads, [(name, "") for _, name, _ in rows], [row for *_, row in rows])


def _attacks(panel: Panel, aim: Aim) -> list[str]:
    known = own(panel, aim)
    body = [
        [f"{matrix.with_error(spot.estimate, len(spot.values))} {spot.mark}".strip(),
         matrix.reads(attack) or "–", matrix.rate_text(spot, panel)]
        for attack, spot in known
    ]  # fmt: skip
    heads = ["attack", _metric(panel, aim, ""), "reads", _RATE.removeprefix("best ")]
    return _table(heads, [(attack.name, "") for attack, _ in known], body)


def _metric(panel: Panel, aim: Aim, start: str = "worst ") -> str:
    less = "" if panel.higher[aim] else " (less leaks more)"
    return markdown(f"{start}{panel.metric[aim]}{less}")


def short(names: Sequence[str], longest: int) -> list[str]:
    """Return names as markdown of at most so many characters, no two of them alike.

    Both ends of a long name stay; of names that then are alike, what they share is left out.

    >>> short(["alm(variant=published) (epsilon=10)", "lira"], 20)
    ['alm(varian…silon=10)', 'lira']
    >>> short(["moco(epochs=10, width=16)", "moco(epochs=20, width=16)"], 16)
    ['…10, width=16)', '…20, width=16)']
    """
    made = [_middle(name, longest) for name in names]
    for one in {text for text in made if made.count(text) > 1}:
        alike = [i for i, text in enumerate(made) if text == one]
        columns = enumerate(zip(*(names[i] for i in alike), strict=False))
        shared = next((at for at, column in columns if len({*column}) > 1), 0)
        word = names[alike[0]].rfind(" ", 0, shared) + 1
        whole = {_middle(f"…{names[i][word:]}", longest) for i in alike}
        for i in alike:
            start = word if len(whole) == len(alike) else shared
            made[i] = _middle(f"…{names[i][start:]}", longest)
    for i, text in enumerate(made):
        if made.count(text) > 1:
            made[i] = _middle(names[i], max(longest - 4, 1)) + f" {i + 1}"
    return made


def _middle(name: str, longest: int) -> str:
    """Markdown of a name, cut in the middle until it is short enough."""
    name = shown(name, 10 * len(name) + 1)
    for kept in range(min(longest, len(name)), 0, -1):
        cut = f"{name[: kept // 2]}…{name[kept // 2 + 1 - kept :]}" if len(name) > kept else name
        if len(told := markdown(cut)) <= longest:
            return told
    return "…"


def _table(
    heads: Sequence[str],
    names: Sequence[tuple[str, str]],
    body: Sequence[Sequence[str]],
    note: str = "",
) -> list[str]:
    """A table of at most ``ROWS``, without empty columns, and what its marks mean.

    Args:
        heads: of the columns.
        names: of the rows, in text, with marks behind them.
        body: the other columns.
        note: below it.
    """
    kept = [
        i for i, head in enumerate(heads[1:])
        if i < 1 or len({row[i] for row in body} - {"–"}) > (head == "by")
    ]  # fmt: skip
    rows = [[row[i] for i in kept] for row in body[:ROWS]]
    marks = [marks for _, marks in names[:ROWS]]
    others = sum(max(len(row[i]) for row in rows) + 3 for i in range(len(kept)))
    room = max(WIDTH - 4 - others - max(map(len, marks)), 16)
    titles = short([name for name, _ in names[:ROWS]], room)
    full = [[title + mark, *row] for title, mark, row in zip(titles, marks, rows, strict=True)]
    made = matrix.Table("", [heads[0], *(heads[i + 1] for i in kept)], full, "rows").lines(ROWS)
    more = len(body) - ROWS
    told = [f"{more} more below." if more > 0 else "", note]
    seen = "".join(cell for row in full for cell in row[:2])
    told += [f"{mark}: {means}" for mark, means in _MARKS.items() if mark in seen]
    text = " ".join(filter(None, told))
    return [*made, "", *([text, ""] if text else [])]
