"""Leaderboards in markdown: equal results give identical bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privbench.boards import audits, legends, overview, tradeoffs, verdicts
from privbench.boards import shown as show
from privbench.boards.statistics import FEWEST_SEEDS
from privbench.errors import BadInputError
from privbench.games.fixed_fpr import true_fpr
from privbench.games.metrics import mean_over_seeds
from privbench.text import markdown, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from privbench.boards.records import Number, Record
    from privbench.boards.statistics import Difference
    from privbench.games.board import Column


@dataclass
class Row:
    """One cell over its seeds; ``apart`` distinguishes rows that would look the same.

    ``marks`` follow the attack's name, ``differences`` are the texts of the paired columns.
    """

    key: tuple[str, ...]
    apart: str = ""
    records: list[Record] = field(default_factory=list)
    marks: str = ""
    differences: list[str] = field(default_factory=list)


def render(
    records: Sequence[Record],
    title: str = "privbench leaderboard",
    match_utility: float | None = None,
) -> str:
    """Render results as markdown.

    Args:
        records: of any status.
        title: of the board.
        match_utility: largest loss of accuracy on reference rows at which a setting counts as an
            operating point; None for no operating points.

    Raises:
        BadInputError: if results of different presets are mixed, if a cell has two results for
            one seed (from different code, torch versions or devices), or if no board shows a game.
    """
    presets = sorted({record.cell.preset for record in records})
    if len(presets) > 1:
        raise BadInputError(
            f"these results mix presets {shown(', '.join(presets))}: "
            "put the results of each preset into a separate folder"
        )
    _refuse_twins(records)
    _refuse_unknown_games(records)
    lines = [f"# {markdown(title)}", "", *_head(records)]
    grid = overview.overview(records)
    if grid:
        lines += ["## Overview", "", *grid, *overview.LEGEND.splitlines(), ""]
    lines += tradeoffs.page(records, match_utility)
    for game in show.games(records):
        mine = [r for r in ranked(records) if r.cell.game == game and r.status == "ok"]
        if mine:
            lines += [f"## {markdown(game.capitalize())}", "", *_table(game, mine, records), ""]
    controls = verdicts.control_lines(records)
    if controls:
        lines += ["## Positive controls", "", *(f"- {markdown(line)}" for line in controls), ""]
        lines += [*legends.CONTROLS.splitlines(), ""]
    lines += _troubles(records)
    lines += [f"Preset: {markdown(', '.join(presets))}.", "", *legends.NUMBERS.splitlines()]
    if any("claimed_epsilon" in record.metrics for record in records):
        lines += ["", *audits.LEGEND.splitlines()]
    if any("loo_auc" in record.metrics for record in records):
        lines += ["", *legends.CANARIES.splitlines()]
    if any(map(_decides_elsewhere, records)):
        lines += ["", *legends.DECIDES.splitlines()]
    doubts = verdicts.doubtful(records)
    if doubts:
        titles = {verdicts.cell_of(record): record.cell for record in records}
        why = (f"- {markdown(f'{titles[c].title} ({titles[c].adversary}): {told}')}"
                for c, told in sorted(doubts.items()))  # fmt: skip
        lines += ["", *legends.FLAGS.splitlines(), "", *why]
    return "\n".join(lines) + "\n"


def headings(game: str, records: Sequence[Record]) -> list[str]:
    """Column headings of a game's table."""
    fixed = ["dataset", "target", "attack"]
    if show.tells(game, records, "phase"):
        fixed.append("phase")
    fixed += ["defense", "adversary", "seeds"]
    moving = [column.heading for column in show.columns(game, records)]
    return [*fixed, *moving, *differing(game, records), "test accuracy", "train/test gap",
            "encoder updates",
            "queries per sample", "seconds", "peak MiB"]  # fmt: skip


def ranked(records: Iterable[Record]) -> list[Record]:
    """The results without positive controls."""
    return [record for record in records if not verdicts.is_control(record)]


def differing(game: str, records: Sequence[Record]) -> list[str]:
    """Headings of the columns of paired differences."""
    heading = show.headline(game, records)[0].heading
    nulls = [f"{heading} minus null"] if _nulls(records) else []
    return [f"{heading} minus none", *nulls, "test accuracy minus none"]


def cells(
    game: str, records: Iterable[Record], board: Sequence[Record] | None = None
) -> list[list[str]]:
    """Rows of a game's table, as text, ordered by the names of the cells.

    Args:
        game: name of the game.
        records: of that game, all ok, without positive controls.
        board: all records, which decide what is doubtful; by default these.
    """
    rows: dict[str, Row] = {}
    records = list(records)
    shown = show.columns(game, records)
    phase = show.tells(game, records, "phase")
    for record in records:
        identity = verdicts.cell_of(record)
        rows.setdefault(identity, Row(_key(record))).records.append(record)
    _tell_apart(list(rows.values()))
    _judge(rows, board or records)
    ordered = sorted(rows.values(), key=lambda row: (_order(row.key), row.apart))
    return [_cells(row, shown, phase=phase) for row in ordered]


def _judge(rows: Mapping[str, Row], board: Sequence[Record]) -> None:
    """Fill in the marks and differences of rows, given by their cells."""
    judged = verdicts.judged(board)
    shown = [record for row in rows.values() for record in row.records]
    apart = verdicts.to_undefended(shown)
    useful = verdicts.to_undefended(shown, verdicts.accuracy)
    certain = verdicts.significant(apart)
    nulls = _nulls(shown)
    for cell, row in rows.items():
        first = row.records[0]
        if cell in judged.doubtful:
            row.marks += " ‡"
        if first.cell.attack.label in judged.missed.get(verdicts.victim_of(first), ()):
            row.marks += " ¶"
        row.differences = [_signed(apart.get(cell)) + (" †" if cell in certain else "")]
        if nulls:
            row.differences.append(_signed(verdicts.to_null(row.records)))
        row.differences.append(_signed(useful.get(cell)))


def _nulls(records: Iterable[Record]) -> bool:
    """Whether any result has the game's main number on a null victim."""
    return any(verdicts.null(record) is not None for record in records)


def _signed(difference: Difference | None) -> str:
    """A difference with its interval over seeds; ``–`` if there is none."""
    if difference is None:
        return "–"
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.3f}"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def _head(records: Sequence[Record]) -> list[str]:
    """Which code made the results, and whether some rows are drafts."""
    cells = verdicts.by_cell(r for r in ranked(records) if r.status == "ok")
    few = sum(len(found) < FEWEST_SEEDS for found in cells.values())
    lines = [
        f"**{markdown(line)}**" if line.startswith("WARNING") else markdown(line)
        for line in verdicts.code_lines(records)
    ]
    if few:
        lines.append(f"Draft: {few} of {len(cells)} cells have fewer than {FEWEST_SEEDS} seeds.")
    return [
        text for line in [*lines, *_true_fpr(records), *_probes(records)] for text in (line, "")
    ]


def _true_fpr(records: Iterable[Record]) -> list[str]:
    """What "1 % FPR" means with this number of nonmembers."""
    sizes = {record.sizes.get("nonmembers", 0) for record in records}
    told = [
        f"{100 * at.mean:.2f} % ± {100 * at.deviation:.2f} % with {n:,} nonmembers"
        for n in sorted(sizes)
        if n >= 100  # noqa: PLR2004 - fewer are refused
        for at in [true_fpr(n, 0.01)]
    ]
    if not told:
        return []
    line = ", ".join(told)
    return [f"The threshold at 1 % FPR comes from the nonmembers; its true FPR is {line}."]


def _probes(records: Iterable[Record]) -> list[str]:
    """What a linear probe reads from undefended encoders, beside untrained ones."""
    names = "probe_accuracy", "untrained_accuracy"
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for record in records:
        if record.cell.defense == "none" and all(name in record.utility for name in names):
            dataset, target, *_ = _key(record)
            measured = tuple(record.utility[name] for name in names)
            found.setdefault(f"{target} on {dataset}", {})[record.seed] = measured
    told = []
    for victim, by_seed in sorted(found.items()):
        pairs = [by_seed[seed] for seed in sorted(by_seed)]
        trained, untrained = (sum(of) / len(pairs) for of in zip(*pairs, strict=True))
        told.append(f"{markdown(victim)} {trained:.3f} (untrained {untrained:.3f})")
    if not told:
        return []
    return [
        f"Accuracy of a linear probe on undefended encoders, mean over seeds: {', '.join(told)}."
    ]


def _tell_apart(rows: Sequence[Row]) -> None:
    """Label rows that look the same although their cells differ with the differing fields."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(row.key, []).append(row)
    for group in alike.values():
        facts = [_facts(row.records[0].cell.model_dump(mode="json")) for row in group]
        names = sorted({name for fact in facts for name in fact})
        differ = [n for n in names if len({fact.get(n, "") for fact in facts}) > 1]
        for row, fact in zip(group, facts, strict=True):
            row.apart = ", ".join(f"{n} {fact[n]}" for n in differ if n in fact)


def _facts(values: Any, at: str = "") -> dict[str, str]:
    """Innermost values of nested results by dotted name."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {at: str(values)}
    flat: dict[str, str] = {}
    for name, value in values.items():
        flat |= _facts(value, f"{at}.{name}" if at else str(name))
    return flat


def _refuse_twins(records: Sequence[Record]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for record in records:
        if record.status != "ok":
            continue
        twin = seen.setdefault((record.cell.model_dump_json(), record.seed), record.trial)
        if twin != record.trial:
            first, second = sorted((twin, record.trial))
            raise BadInputError(
                f"{shown(record.cell.title, 200)}, seed {record.seed} has two results, from "
                "different code, torch versions, devices, threads or sealed splits: "
                f"remove {shown(first)}.json or {shown(second)}.json"
            )


def _refuse_unknown_games(records: Iterable[Record]) -> None:
    for record in records:
        game = record.cell.game
        if record.status == "ok" and record.board is None:
            raise BadInputError(
                f"{shown(record.cell.title, 200)} plays '{shown(game)}', and its result does not "
                f"say how a board shows that: remove {shown(record.trial)}.json, or run it again"
            )


def _order(key: tuple[str, ...]) -> tuple[tuple[bool, str], ...]:
    """Sort by name, with the baseline ``none`` before all defenses."""
    return tuple((part != "none", part) for part in key)


def _key(record: Record) -> tuple[str, ...]:
    cell = record.cell
    dataset = cell.dataset.label
    if (protocol := cell.protocol.get("name", "default")) != "default":
        dataset += f" ({protocol})"
    attack = cell.attack.label
    if record.board and "sensitive" in record.board.tells:
        attack += f" [{', '.join(cell.sensitive)}]"
    return (dataset, cell.target.label, attack, record.phase, cell.defense, cell.adversary)


def _cells(row: Row, shown: Iterable[Column], *, phase: bool) -> list[str]:
    dataset, target, attack, trained, defense, adversary = row.key
    records = sorted(row.records, key=lambda record: record.seed)
    first = records[0]
    outside = bool(first.cell.protects) and first.cell.game not in first.cell.protects
    attack += row.marks
    fixed = [f"{dataset} ({row.apart})" if row.apart else dataset, target, attack]
    if phase:
        fixed.append(trained)
    draft = " (draft)" if len(records) < FEWEST_SEEDS else ""
    draft = " (draft, no interval)" if len(records) == 1 else draft
    fixed += [defense + (" °" if outside else ""), adversary, f"{len(records)}{draft}"]
    moving = [_over_seeds(column, records)
              + (" ◊" if column.name == "balanced_accuracy" and _decides_elsewhere(first) else "")
              for column in shown]  # fmt: skip
    return [
        *fixed,
        *moving,
        *row.differences,
        verdicts.tested(records),
        _mean(records, lambda r: r.utility.get("gap")),
        _mean(records, lambda r: float(r.updates["encoder"]) if "encoder" in r.updates else None,
              "{:.0f}"),
        _mean(records, lambda r: r.cost.queries_per_sample, "{:.0f}"),
        _mean(records, lambda r: r.cost.seconds_training + r.cost.seconds, "{:.1f}"),
        _mean(records, lambda r: r.cost.peak_bytes / 2**20, "{:.0f}"),
    ]  # fmt: skip


def _over_seeds(column: Column, records: Sequence[Record]) -> str:
    if column.seeds == "pooled":
        return audits.texts(records).get(column.name, "–")
    numbers = [show.number(record, column) for record in records]
    if column.seeds == "smallest":
        return audits.smallest(numbers)
    low = -math.inf if column.low is None else column.low
    bounds = low, math.inf if column.high is None else column.high
    return summary(numbers, bounds)


def _decides_elsewhere(record: Record) -> bool:
    """Whether the record has a balanced accuracy that is not comparable with others'."""
    return bool(record.cell.decides_at) and "balanced_accuracy" in record.metrics


def summary(numbers: Sequence[Number | None], bounds: tuple[float, float] = (0.0, 1.0)) -> str:
    """Mean with its interval over seeds; ``–`` if not measured, ``refused`` if that is impossible.

    One seed has no interval.

    Args:
        numbers: one per seed.
        bounds: range of the metric; an interval over seeds is clipped to it.
    """
    given = [n for n in numbers if n is not None]
    if not given:
        return "–"
    values = [n.value for n in given if n.value is not None]
    if len(values) < len(given):
        return "refused"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    mean = mean_over_seeds(values)
    low, high = max(mean.low, bounds[0]), min(mean.high, bounds[1])
    return f"{mean.value:.3f} [{low:.3f}, {high:.3f}]"


def _mean(
    records: Sequence[Record], read: Callable[[Record], float | None], form: str = "{:.3f}"
) -> str:
    values = [value for value in map(read, records) if value is not None]
    return form.format(sum(values) / len(values)) if values else "–"


def _table(game: str, records: Sequence[Record], board: Sequence[Record]) -> list[str]:
    names = [markdown(name) for name in headings(game, records)]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return lines + [
        f"| {' | '.join(markdown(text) for text in row)} |" for row in cells(game, records, board)
    ]


def _troubles(records: Sequence[Record]) -> list[str]:
    """Skipped and failed cells with their reasons, each reason listed once."""
    lines: list[str] = []
    for status in ("skipped", "failed"):
        grouped: dict[tuple[str, str], list[int]] = {}
        for record in records:
            if record.status == status:
                cell = record.cell
                named = cell.protocol.get("name", "default")
                cut = "" if named == "default" else f", protocol {named}"
                what = markdown(f"{cell.title} ({cell.adversary}{cut})")
                grouped.setdefault((what, markdown(record.reason)), []).append(record.seed)
        if grouped:
            lines += [f"## {status.capitalize()}", ""]
            lines += [
                f"- {what}, seeds {', '.join(map(str, sorted(set(seeds))))}: {reason}"
                for (what, reason), seeds in sorted(grouped.items())
            ]
            lines.append("")
    return lines
