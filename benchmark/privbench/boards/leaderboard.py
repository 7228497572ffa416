"""Leaderboards in markdown: equal results give identical bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privbench.boards import overview
from privbench.boards import shown as show
from privbench.errors import BadInputError
from privbench.games.metrics import mean_over_seeds
from privbench.text import markdown, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from privbench.boards.records import Number, Record
    from privbench.games.board import Column

LEGEND = """\
Numbers are means over seeds; brackets hold 95 % intervals (Student t over seeds; for a single seed,
its own interval). **null AUC** is the same attack on a victim trained on none of these samples: it
must stay around 0.5. **blind AUC** is a classifier on raw inputs that never queries the victim. A
failed attack proves nothing. Rows marked ° are outside what the defense claims to protect. Training
is compared at an equal budget of **encoder updates**: a schedule that alternates by epoch runs more
epochs to reach it.
"""

FLAGS_LEGEND = """\
Rows marked ‡ cannot be trusted: the attack also tells apart what its victim never saw, more than
chance explains. The results say how far (`privbench show`).
"""

CLAIMS_LEGEND = """\
**claimed ε** is the epsilon that the defense claims. **audited ε** is a lower bound at 97.5 %
confidence from one run with fair-coin inclusion and a number of guesses fixed in advance (Steinke,
Nasr, Jagielski, NeurIPS 2023); with several seeds, the smallest bound is shown. It can refute a
claim but never prove one. **audit's ceiling** is the bound that a perfect attack would reach with
this number of coins. "refused" means that this protocol cannot test the claim.
"""


@dataclass
class Row:
    """One cell over its seeds; ``apart`` distinguishes rows that would look the same."""

    key: tuple[str, ...]
    apart: str = ""
    records: list[Record] = field(default_factory=list)


def render(records: Sequence[Record], title: str = "privbench leaderboard") -> str:
    """Render results as markdown.

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
    lines = [f"# {markdown(title)}", ""]
    grid = overview.overview(records)
    if grid:
        lines += ["## Overview", "", *grid, *overview.LEGEND.splitlines(), ""]
        if any(record.cell.control for record in records):
            lines += [*overview.CONTROL_LEGEND.splitlines(), ""]
    for game in show.games(records):
        mine = [r for r in records if r.cell.game == game and r.status == "ok"]
        if mine:
            lines += [f"## {markdown(game.capitalize())}", "", *_table(game, mine), ""]
    lines += _troubles(records)
    lines += [f"Preset: {markdown(', '.join(presets))}.", "", *LEGEND.splitlines()]
    if any("claimed_epsilon" in record.metrics for record in records):
        lines += ["", *CLAIMS_LEGEND.splitlines()]
    if any(record.flags for record in records):
        lines += ["", *FLAGS_LEGEND.splitlines()]
    return "\n".join(lines) + "\n"


def headings(game: str, records: Sequence[Record]) -> list[str]:
    """Column headings of a game's table."""
    fixed = ["dataset", "target", "attack"]
    if show.tells(game, records, "phase"):
        fixed.append("phase")
    fixed += ["defense", "adversary", "seeds"]
    moving = [column.heading for column in show.columns(game, records)]
    return [*fixed, *moving, "test accuracy", "train/test gap", "encoder updates",
            "queries per sample", "seconds", "peak MiB"]  # fmt: skip


def cells(game: str, records: Iterable[Record]) -> list[list[str]]:
    """Rows of a game's table, as text, ordered by the names of the cells."""
    rows: dict[str, Row] = {}
    records = list(records)
    shown = show.columns(game, records)
    phase = show.tells(game, records, "phase")
    for record in records:
        identity = record.cell.model_dump_json()
        rows.setdefault(identity, Row(_key(record))).records.append(record)
    _tell_apart(list(rows.values()))
    ordered = sorted(rows.values(), key=lambda row: (_order(row.key), row.apart))
    return [_cells(row, shown, phase=phase) for row in ordered]


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
    attack += " ‡" if any(record.flags for record in records) else ""
    fixed = [f"{dataset} ({row.apart})" if row.apart else dataset, target, attack]
    if phase:
        fixed.append(trained)
    fixed += [defense + (" °" if outside else ""), adversary, str(len(records))]
    moving = [_over_seeds(column, [show.number(r, column) for r in records]) for column in shown]
    return [
        *fixed,
        *moving,
        _mean(records, lambda r: r.utility.get("test_accuracy")),
        _mean(records, lambda r: r.utility.get("gap")),
        _mean(records, lambda r: float(r.updates["encoder"]) if "encoder" in r.updates else None,
              "{:.0f}"),
        _mean(records, lambda r: r.cost.queries_per_sample, "{:.0f}"),
        _mean(records, lambda r: r.cost.seconds_training + r.cost.seconds, "{:.1f}"),
        _mean(records, lambda r: r.cost.peak_bytes / 2**20, "{:.0f}"),
    ]  # fmt: skip


def _over_seeds(column: Column, numbers: Sequence[Number | None]) -> str:
    if column.seeds == "smallest":
        return _smallest(numbers)
    low = -math.inf if column.low is None else column.low
    return summary(numbers, (low, math.inf if column.high is None else column.high))


def summary(numbers: Sequence[Number | None], bounds: tuple[float, float] = (0.0, 1.0)) -> str:
    """Mean with its interval; ``–`` if not measured, ``refused`` if it cannot be measured.

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
        only = given[0]
        if only.low is None or only.high is None:
            return f"{values[0]:.3f}"
        return f"{values[0]:.3f} [{only.low:.3f}, {only.high:.3f}]"
    mean = mean_over_seeds(values)
    low, high = max(mean.low, bounds[0]), min(mean.high, bounds[1])
    return f"{mean.value:.3f} [{low:.3f}, {high:.3f}]"


def _smallest(numbers: Sequence[Number | None]) -> str:
    """The smallest of several bounds: each holds on its own, but their mean is not a bound."""
    given = [n for n in numbers if n is not None]
    values = [n.value for n in given if n.value is not None]
    if not given:
        return "–"
    return f"{min(values):.3f}" if len(values) == len(given) else "refused"


def _mean(
    records: Sequence[Record], read: Callable[[Record], float | None], form: str = "{:.3f}"
) -> str:
    values = [value for value in map(read, records) if value is not None]
    return form.format(sum(values) / len(values)) if values else "–"


def _table(game: str, records: Sequence[Record]) -> list[str]:
    names = [markdown(name) for name in headings(game, records)]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return lines + [
        f"| {' | '.join(markdown(text) for text in row)} |" for row in cells(game, records)
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
