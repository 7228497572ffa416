"""Overview of a board: one row per defense, one column per attack, one number in each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.boards import shown as show
from privbench.boards import verdicts
from privbench.boards.statistics import FEWEST_SEEDS, held_out
from privbench.boards.verdicts import tested
from privbench.text import markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from privbench.boards.records import MethodRecord, Record
    from privbench.boards.verdicts import Judged
    from privbench.games.board import Column as ShownColumn

LEGEND = """\
The overview shows means over seeds: AUC of membership attacks, accuracy of attribute attacks, mean
squared error of reconstructions. **Bold** marks the strongest attack of a game on a defense, among
those without a mark (‡, ¶). A maximum over attacks is biased upward, so judge the defense by
**strongest, held out**: for each seed the attack that is strongest on all other seeds is chosen and
reported on this one; brackets hold Student's interval over seeds. Only attacks with all seeds and
without a mark are chosen, if need be the only one of these. The mean image of the adversary's rows
is an answer that uses no embedding: where it is bold, no attack is better. If a defense does not
change the released outputs and an attack needs no shadows, naive and adaptive adversaries are the
same: a dash for the naive adversary then means the adaptive number. Intervals, controls, costs and
the reasons for skipped cells are in the tables and lists below.
"""

#: With fewer cells there is no overview: the tables are short enough.
FEWEST = 4

Column = tuple[str, str, str]  # game, attribute, attack


def overview(records: Iterable[Record]) -> list[str]:
    """Markdown lines: one table for each dataset, protocol, target and adversary.

    A group gets a table if it has at least two defenses and four cells.

    Args:
        records: of any status and game.
    """
    records = list(records)
    judged = verdicts.judged(records)
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        cell = record.cell
        if record.board is None or verdicts.is_control(record):
            continue  # an attack that plays an unknown game is listed as skipped
        named = str(cell.protocol.get("name", "default"))
        dataset = cell.dataset.label + ("" if named == "default" else f" ({named})")
        groups.setdefault((dataset, cell.target.label, cell.adversary), []).append(record)
    lines: list[str] = []
    for names in sorted(groups):
        mine = groups[names]
        if names[2] == "naive":  # without a defense, naive equals adaptive and runs once
            mine = mine + [r for r in groups.get((*names[:2], "adaptive"), []) if _undefended(r)]
        table = _table(mine, judged)
        if table:
            dataset, target, adversary = names
            seeds = len({record.seed for record in mine})
            draft = f", draft ({seeds} of {FEWEST_SEEDS} seeds)" if seeds < FEWEST_SEEDS else ""
            heading = markdown(f"{dataset}, {target}, {adversary} adversary{draft}")
            lines += [f"### {heading}", "", *table, ""]
    return lines


def _mark(judged: Judged, records: Iterable[Record]) -> str:
    """The mark of a spot; "" if it is ranked."""
    return next((f" {mark}" for record in records if (mark := judged.mark(record))), "")


def _undefended(record: Record) -> bool:
    return all(defense.name == "none" for defense in record.cell.defenses)


def _table(records: Sequence[Record], judged: Judged) -> list[str]:
    defenses = _short([record.cell.defenses for record in records])
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
    constants = {
        (game, "", name.replace("_", " ")): name
        for game in dict.fromkeys(column[0] for column in across)
        if (name := show.constant(game, records))
    }
    heads += [markdown(f"{name} ({main[game][0].heading})") for game, _, name in constants]
    seeds = len({record.seed for record in records})
    worst = {
        defense: {aim: _held_out(row, aim, judged, higher=main[aim[0]][1]) for aim in _aims(across)}
        for defense, row in spots.items()
    }
    several = [aim for aim in _aims(across) if sum(spot[:2] == aim for spot in across) > 1]
    aims = [aim for aim in several if any(worst[defense][aim] for defense in spots)]
    heads += [f"strongest, held out ({_aim_named(aim, main[aim[0]][0])})" for aim in aims]
    lines = [_line(["defense", *heads, "test accuracy"]), "|" + "---|" * (len(heads) + 2)]
    for defense in sorted(spots, key=lambda name: (name != "none", name)):
        row = {
            column: _number(spots[defense].get(column, []), main[column[0]][0], seeds)
            for column in across
        }
        row |= {
            column: _constant(spots[defense], column[0], name, main[column[0]][0])
            for column, name in constants.items()
        }
        marks = {column: _mark(judged, spots[defense].get(column, [])) for column in across}
        best = _strongest(
            {column: text for column, text in row.items() if not marks.get(column)},
            {game: higher for game, (_, higher) in main.items()},
        )
        shown = [
            f"**{t}**" if column in best else t + marks.get(column, "") for column, t in row.items()
        ]
        shown += [worst[defense][aim] or "–" for aim in aims]
        accuracy = tested(r for found in spots[defense].values() for r in found)
        lines.append(_line([markdown(defense), *shown, accuracy]))
    return lines


def _aims(across: Iterable[Column]) -> list[tuple[str, str]]:
    """The games and attributes of some columns, each once."""
    return list(dict.fromkeys(column[:2] for column in across))


def _aim_named(aim: tuple[str, str], main: ShownColumn) -> str:
    _, attribute = aim
    return markdown(f"{main.heading}{f', {attribute}' if attribute else ''}")


def _held_out(
    row: Mapping[Column, list[Record]], aim: tuple[str, str], judged: Judged, *, higher: bool
) -> str:
    """What the attack reaches that other seeds chose; "" if none can be chosen.

    Where a single attack is unmarked, it is its own choice.
    """
    attacks = {
        column[2]: verdicts.headline(found)
        for column, found in row.items()
        if column[:2] == aim
        and not _mark(judged, found)
        and len({verdicts.cell_of(record) for record in found}) == 1
    }
    attacks = {name: values for name, values in attacks.items() if values}
    made = held_out(attacks, higher=higher)
    if made is None:
        return ""
    names = "/".join(sorted(made.chosen))
    at = made.estimate
    return f"{at.value:.3f} [{at.low:.3f}, {at.high:.3f}] {markdown(names)}"


def _columns(records: Sequence[Record]) -> list[Column]:
    names = _short([[record.cell.attack] for record in records])
    columns = []
    for record, name in zip(records, names, strict=True):
        cell = record.cell
        sensitive = record.board is not None and "sensitive" in record.board.tells
        guessed = ", ".join(cell.sensitive) if sensitive else ""
        columns.append((cell.game, guessed, f"{name} [{guessed}]" if guessed else name))
    return columns


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


def _constant(row: dict[Column, list[Record]], game: str, baseline: str, main: ShownColumn) -> str:
    """Mean over seeds of the game's constant answer, scored on the most rows that were asked."""
    found: dict[int, tuple[int, float]] = {}
    for record in (record for records in row.values() for record in records):
        number = record.baselines.get(baseline, {}).get(main.name)
        if record.cell.game == game and number is not None and number.value is not None:
            mine = (record.sizes.get("rows", 0), number.value)
            found[record.seed] = max(mine, found.get(record.seed, mine))
    return f"{sum(value for _, value in found.values()) / len(found):.3f}" if found else "–"


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
