"""Leaderboards: markdown, a pure function of results, the same bytes for the same results."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privbench.boards import overview
from privbench.errors import BadInputError
from privbench.games.metrics import mean_over_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from privbench.boards.records import Number, Record

GAMES = ("membership", "attributes", "reconstruction")

#: game -> (heading, what to read: part of the record, name of the number)
COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "membership": (
        ("AUC", "metrics", "auc"),
        ("balanced accuracy", "metrics", "balanced_accuracy"),
        ("TPR at 1 % FPR", "metrics", "tpr_at_fpr_0.01"),
        ("TPR at 0.1 % FPR", "metrics", "tpr_at_fpr_0.001"),
        ("null AUC", "controls.null", "auc"),
        ("blind AUC", "baselines.blind", "auc"),
    ),
    "attributes": (
        ("accuracy", "metrics", "accuracy"),
        ("balanced accuracy", "metrics", "balanced_accuracy"),
        ("majority", "baselines.majority", "accuracy"),
        ("label only", "baselines.label_only", "accuracy"),
        ("raw pixels", "controls.pixels", "accuracy"),
        ("untrained encoder", "controls.untrained", "accuracy"),
    ),
    "reconstruction": (
        ("MSE", "metrics", "mse"),
        ("PSNR", "metrics", "psnr"),
        ("SSIM", "metrics", "ssim"),
        ("right bits", "metrics", "bits"),
        ("right columns", "metrics", "columns"),
        ("mean image MSE", "baselines.mean_image", "mse"),
        ("mean image SSIM", "baselines.mean_image", "ssim"),
        ("raw pixels MSE", "controls.pixels", "mse"),
        ("untrained encoder MSE", "controls.untrained", "mse"),
    ),
}

#: Shown beside them where a defense of the table claims an epsilon.
CLAIMS = (
    ("claimed ε", "metrics", "claimed_epsilon"),
    ("audited ε", "metrics", "audited_epsilon"),
    ("audit's ceiling", "metrics", "audit_ceiling"),
)

#: Range of the metrics that are no rates.
BOUNDS = {"psnr": (0.0, math.inf), "ssim": (-1.0, 1.0)}

LEGEND = """\
Numbers are means over seeds; brackets hold 95 % intervals (Student t over seeds, or that of the
one seed there is). **null AUC** is the same attack on a victim trained in a spare world: it must
stay around 0.5. **blind AUC** is a classifier on raw inputs that never queries. An attack's failure
proves nothing. Rows marked ° lie outside what the defense claims to protect. **encoder updates**
are compared at equal budgets: a schedule that alternates by epoch runs more epochs for that.
"""

CLAIMS_LEGEND = """\
**claimed ε** is what the defense says; **audited ε** is a lower bound at 97.5 % from one run with
fair-coin inclusion and guesses fixed beforehand (Steinke, Nasr, Jagielski, NeurIPS 2023), the
smallest of the seeds' where there are several: it can refute a claim and never prove one.
**audit's ceiling** is what a perfect attack would reach at this number of coins. Rows whose claim
this protocol cannot test say "refused".
"""


@dataclass
class Row:
    """One cell over its seeds; ``apart`` tells it from rows that would read the same."""

    key: tuple[str, ...]
    apart: str = ""
    records: list[Record] = field(default_factory=list)


def render(records: Sequence[Record], title: str = "privbench leaderboard") -> str:
    """Render results as markdown.

    Raises:
        BadInputError: if results of different presets are mixed, or a cell has two results of one
            seed (made by different code, torch or device), which are no two seeds.
    """
    presets = sorted({record.cell.preset for record in records})
    if len(presets) > 1:
        raise BadInputError(
            f"these results mix presets {', '.join(presets)}: a board never does; "
            "give each preset its own results folder"
        )
    _refuse_twins(records)
    lines = [f"# {_one_line(title)}", ""]
    grid = overview.overview(records)
    if grid:
        lines += ["## Overview", "", *grid, *overview.LEGEND.splitlines(), ""]
    for game in GAMES:
        mine = [r for r in records if r.cell.game == game and r.status == "ok"]
        if mine:
            lines += [f"## {game.capitalize()}", "", *_table(game, mine), ""]
    lines += _troubles(records)
    lines += [f"Preset: {', '.join(presets)}.", "", *LEGEND.splitlines()]
    if any("claimed_epsilon" in record.metrics for record in records):
        lines += ["", *CLAIMS_LEGEND.splitlines()]
    return "\n".join(lines) + "\n"


def columns(game: str, records: Iterable[Record] = ()) -> tuple[tuple[str, str, str], ...]:
    """What a game's table shows of these records, as in ``COLUMNS``."""
    claims = any("claimed_epsilon" in record.metrics for record in records)
    return COLUMNS[game] + (CLAIMS if claims and game == "membership" else ())


def headings(game: str, records: Iterable[Record] = ()) -> list[str]:
    """Column headings of a game's table."""
    fixed = ["dataset", "target", "attack"]
    if game == "membership":
        fixed.append("phase")
    fixed += ["defense", "adversary", "seeds"]
    moving = [heading for heading, _, _ in columns(game, records)]
    return [*fixed, *moving, "test accuracy", "train/test gap", "encoder updates",
            "queries per sample", "seconds", "peak MiB"]  # fmt: skip


def cells(game: str, records: Iterable[Record]) -> list[list[str]]:
    """Rows of a game's table, as text, ordered by what the cells are called."""
    rows: dict[str, Row] = {}
    records = list(records)
    shown = columns(game, records)
    for record in records:
        identity = record.cell.model_dump_json()
        rows.setdefault(identity, Row(_key(record))).records.append(record)
    _tell_apart(list(rows.values()))
    ordered = sorted(rows.values(), key=lambda row: (_order(row.key), row.apart))
    return [_cells(game, row, shown) for row in ordered]


def _tell_apart(rows: Sequence[Row]) -> None:
    """Rows that read the same although their cells differ say in what they differ."""
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
    """Leaves of nested results by dotted name."""
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
                f"{record.cell.title}, seed {record.seed} is there twice, made by different code, "
                f"torch or device: remove {first}.json or {second}.json"
            )


def _order(key: tuple[str, ...]) -> tuple[tuple[bool, str], ...]:
    """By name, with the baseline ``none`` before any defense."""
    return tuple((part != "none", part) for part in key)


def _key(record: Record) -> tuple[str, ...]:
    cell = record.cell
    dataset = cell.dataset.label
    if (protocol := cell.protocol.get("name", "default")) != "default":
        dataset += f" ({protocol})"
    attack = cell.attack.label
    if cell.game == "attributes":
        attack += f" [{', '.join(cell.sensitive)}]"
    return (dataset, cell.target.label, attack, record.phase, cell.defense, cell.adversary)


def _cells(game: str, row: Row, shown: Iterable[tuple[str, str, str]]) -> list[str]:
    dataset, target, attack, phase, defense, adversary = row.key
    records = sorted(row.records, key=lambda record: record.seed)
    first = records[0]
    outside = bool(first.cell.protects) and game not in first.cell.protects
    fixed = [f"{dataset} ({row.apart})" if row.apart else dataset, target, attack]
    if game == "membership":
        fixed.append(phase)
    fixed += [defense + (" °" if outside else ""), adversary, str(len(records))]
    moving = [
        _smallest([_at(record, where).get(name) for record in records])
        if (_, where, name) in CLAIMS
        else summary(
            [_at(record, where).get(name) for record in records], BOUNDS.get(name, (0.0, 1.0))
        )
        for _, where, name in shown
    ]
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


def _at(record: Record, where: str) -> dict[str, Number]:
    part, _, name = where.partition(".")
    found: dict[str, Number] = (
        getattr(record, part) if not name else getattr(record, part).get(name, {})
    )
    return found


def summary(numbers: Sequence[Number | None], bounds: tuple[float, float] = (0.0, 1.0)) -> str:
    """Mean with its interval; ``–`` where it was not measured, ``refused`` where it cannot be.

    Args:
        numbers: one per seed.
        bounds: of the metric; an interval over seeds is cut there.
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
    """The smallest of bounds that hold one by one: a mean of them is a bound of nothing."""
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
    names = headings(game, records)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return lines + [
        f"| {' | '.join(_escaped(text) for text in row)} |" for row in cells(game, records)
    ]


def _escaped(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _troubles(records: Sequence[Record]) -> list[str]:
    """Skipped and failed cells with their reasons, each reason once."""
    lines: list[str] = []
    for status in ("skipped", "failed"):
        grouped: dict[tuple[str, str], list[int]] = {}
        for record in records:
            if record.status == status:
                cell = record.cell
                named = cell.protocol.get("name", "default")
                cut = "" if named == "default" else f", protocol {named}"
                what = _one_line(f"{cell.title} ({cell.adversary}{cut})")
                grouped.setdefault((what, _one_line(record.reason)), []).append(record.seed)
        if grouped:
            lines += [f"## {status.capitalize()}", ""]
            lines += [
                f"- {what}, seeds {', '.join(map(str, sorted(set(seeds))))}: {reason}"
                for (what, reason), seeds in sorted(grouped.items())
            ]
            lines.append("")
    return lines
