"""Overview of a board: one row per defense, one column per attack, one number in each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards import shown as show
from privbench.text import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.records import MethodRecord, Record
    from privbench.games.board import Column as ShownColumn

LEGEND = """\
The overview shows means over seeds: AUC of membership attacks, accuracy of attribute attacks, mean
squared error of reconstructions. **Bold** marks the strongest attack of a game on a defense: judge
the defense by it, but note that a maximum over attacks is biased upward. If a defense does not
change the released outputs and an attack needs no shadows, naive and adaptive adversaries are the
same: a dash for the naive adversary then means the adaptive number. Intervals, controls, costs and
the reasons for skipped cells are in the tables and lists below.
"""

CONTROL_LEGEND = """\
The row *planted leak* is a positive control and no defense: the same attack on the same target, in
which a leak was planted that shows in the outputs it reads. An attack that does not come close to
the perfect number there is too small, blind on this data or broken, and its other numbers prove
nothing.
"""

#: Row of the positive controls.
CONTROL = "planted leak"

#: With fewer cells there is no overview: the tables are short enough.
FEWEST = 4

Column = tuple[str, str, str]  # game, attribute, attack


def overview(records: Iterable[Record]) -> list[str]:
    """Markdown lines: one table for each dataset, protocol, target and adversary.

    A group gets a table if it has at least two defenses and four cells.

    Args:
        records: of any status and game.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        cell = record.cell
        if record.board is None:
            continue  # an attack that plays an unknown game is listed as skipped
        named = str(cell.protocol.get("name", "default"))
        dataset = cell.dataset.label + ("" if named == "default" else f" ({named})")
        groups.setdefault((dataset, cell.target.label, cell.adversary), []).append(record)
    lines: list[str] = []
    for names in sorted(groups):
        mine = groups[names]
        if names[2] == "naive":  # without a defense, naive equals adaptive and runs once
            mine = mine + [r for r in groups.get((*names[:2], "adaptive"), []) if _undefended(r)]
        table = _table(mine)
        if table:
            dataset, target, adversary = names
            heading = markdown(f"{dataset}, {target}, {adversary} adversary")
            lines += [f"### {heading}", "", *table, ""]
    return lines


def _undefended(record: Record) -> bool:
    return all(defense.name == "none" for defense in record.cell.defenses)


def _table(records: Sequence[Record]) -> list[str]:
    names = _short([record.cell.defenses for record in records])
    defenses = [
        CONTROL if record.cell.control else name
        for record, name in zip(records, names, strict=True)
    ]
    columns = _columns(records)
    spots: dict[str, dict[Column, list[Record]]] = {}
    for record, column, defense in zip(records, columns, defenses, strict=True):
        spots.setdefault(defense, {}).setdefault(column, []).append(record)
    games = show.games(records)
    across = sorted(set(columns), key=lambda column: (games.index(column[0]), column[2]))
    if len(spots) < 2 or len(across) * len(spots) < FEWEST:  # noqa: PLR2004
        return []
    main = {game: show.headline(game, records) for game in games}
    heads = [markdown(f"{attack} ({main[game][0].heading})") for game, _, attack in across]
    lines = [_line(["defense", *heads, "test accuracy"]), "|" + "---|" * (len(heads) + 2)]
    seeds = len({record.seed for record in records})
    for defense in sorted(spots, key=lambda name: (name == CONTROL, name != "none", name)):
        row = {
            column: _number(spots[defense].get(column, []), main[column[0]][0], seeds)
            for column in across
        }
        higher = {game: higher for game, (_, higher) in main.items()}
        best = set() if defense == CONTROL else _strongest(row, higher)
        shown = [f"**{text}**" if column in best else text for column, text in row.items()]
        tested = "–" if defense == CONTROL else _tested(spots[defense])
        lines.append(_line([markdown(defense), *shown, tested]))
    return lines


def _columns(records: Sequence[Record]) -> list[Column]:
    names = _short([[record.cell.attack] for record in records])
    columns = []
    for record, name in zip(records, names, strict=True):
        cell = record.cell
        sensitive = record.board is not None and "sensitive" in record.board.tells
        guessed = ", ".join(cell.sensitive) if sensitive else ""
        columns.append((cell.game, guessed, f"{name} [{guessed}]" if guessed else name))
    return columns


def _tested(row: dict[Column, list[Record]]) -> str:
    """Mean test accuracy over seeds; each seed counts once."""
    by_seed: dict[int, set[float]] = {}
    for record in (record for records in row.values() for record in records):
        if "test_accuracy" in record.utility:
            by_seed.setdefault(record.seed, set()).add(record.utility["test_accuracy"])
    if any(len(found) > 1 for found in by_seed.values()):
        return "several"
    values = [value for found in by_seed.values() for value in found]
    return f"{sum(values) / len(values):.3f}" if values else "–"


def _short(methods: Sequence[Sequence[MethodRecord]]) -> list[str]:
    """Names of methods or stacks, with hyperparameters only if a name alone is ambiguous."""
    full = ["+".join(one.label for one in stack) for stack in methods]
    plain = ["+".join(one.name for one in stack) for stack in methods]
    meant: dict[str, set[str]] = {}
    for name, label in zip(plain, full, strict=True):
        meant.setdefault(name, set()).add(label)
    return [n if len(meant[n]) == 1 else label for n, label in zip(plain, full, strict=True)]


def _number(records: Sequence[Record], main: ShownColumn, seeds: int) -> str:
    """Mean over seeds, with the number of seeds if some are missing; or why none is shown."""
    if not records:
        return "–"
    ok = [record for record in records if record.status == "ok"]
    if not ok:
        return "failed" if any(record.status == "failed" for record in records) else "skipped"
    if len({record.cell.model_dump_json() for record in records}) > 1:
        return "several"
    found = [show.number(record, main) for record in ok]
    values = [number.value for number in found if number is not None and number.value is not None]
    if len(values) < len(found):
        return "refused"
    few = "" if len(values) == seeds else f" ({len(values)} of {seeds} seeds)"
    return f"{sum(values) / len(values):.3f}{few}"


def _strongest(row: dict[Column, str], higher: Mapping[str, bool]) -> set[Column]:
    """The best attacks of each game and attribute; none if there is only one attack."""
    best: set[Column] = set()
    for aim in {column[:2] for column in row}:
        mine = {column: text for column, text in row.items() if column[:2] == aim}
        numbers = {c: float(text.split()[0]) for c, text in mine.items() if text[0].isdigit()}
        if len(mine) > 1 and numbers:
            top = (max if higher[aim[0]] else min)(numbers.values())
            best |= {column for column, value in numbers.items() if value == top}
    return best


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
