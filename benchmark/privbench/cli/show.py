"""Cards: a method or a result, as text for a terminal."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.boards.records import Number, Record
    from privbench.method import Method


def method_card(kind: str, method: Method) -> str:
    """Threat model, source, hyperparameters and deviations of a method."""
    lines = [f"{method.name} ({kind}, version {method.version})", ""]
    for described in (type(method), sys.modules.get(type(method).__module__)):
        text = vars(described).get("__doc__") if described else None
        if text and not text.startswith(f"{type(method).__name__}("):  # a dataclass's own words
            lines += [inspect.cleandoc(text), ""]
    lines += [f"Paper: {method.paper}"] if method.paper else []
    lines += list(_facts(kind, method))
    lines += ["", "Hyperparameters:", *_hyperparameters(method)]
    if method.presets:
        lines += ["", "Presets:"]
        lines += [f"  {name}: {_listed(fields)}" for name, fields in method.presets.items()]
    if method.deviations:
        lines += ["", f"Deviations: {method.deviations}"]
    return "\n".join(lines)


def _facts(kind: str, method: Any) -> Iterator[str]:
    if kind == "attack":
        yield f"Game: {method.game}; needs {method.needs}" + (
            f", uses {method.wants} where granted" if method.wants else ""
        )
        shadows = method.shadows
        if shadows.count:
            yield f"Shadows: {shadows.count}, {shadows.origin}"
    elif kind == "defense":
        yield f"Acts at: {', '.join(sorted(method.stages())) or 'no stage'}"
        yield f"Claims to protect: {', '.join(method.protects) or 'nothing'}"
    elif kind == "target":
        yield f"Grants: {method.grants}"
    elif kind == "dataset":
        card = method.card(None)
        yield f"Data: {card.kind} {card.shape}, {card.rows} rows ({_listed(card.sources)})"
        yield f"Classes: {card.classes}; attributes: {_listed(card.attributes) or 'none'}"
        yield f"Protocols of its own: {', '.join(method.protocols)}"


def _hyperparameters(method: Method) -> list[str]:
    return [f"  {name} = {value}" for name, value in method.hyperparameters().items()] or ["  none"]


def _listed(fields: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def result_card(record: Record) -> str:
    """A result: cell, numbers with intervals, controls, cost, provenance."""
    cell = record.cell
    lines = [
        f"{cell.title}, {cell.adversary}, seed {record.seed}: {record.status}"
        + (f" ({record.reason})" if record.reason else ""),
        f"trial {record.trial}, result {record.digest}",
        f"membership asked of: {record.phase}; rows: {_listed(record.sizes)}",
        f"protocol: {_listed(cell.protocol)}; preset {cell.preset}",
    ]
    groups = [("metrics", record.metrics)]
    groups += [(f"control {name}", numbers) for name, numbers in record.controls.items()]
    groups += [(f"baseline {name}", numbers) for name, numbers in record.baselines.items()]
    for title, numbers in groups:
        lines += [f"{title}:"] if numbers else []
        lines += [f"  {name} = {_number(number)}" for name, number in numbers.items()]
    for title, facts in (
        ("utility", record.utility), ("updates", record.updates), ("notes", record.notes),
        ("cost", record.cost.model_dump()), ("provenance", record.provenance),
    ):  # fmt: skip
        if facts:
            lines.append(f"{title}: {_listed(facts)}")
    lines += [f"claim: {_listed(claim)}" for claim in record.claims]
    if record.traceback:
        lines += ["", record.traceback]
    return "\n".join(lines)


def _number(number: Number) -> str:
    if number.refused:
        return f"refused: {number.refused}"
    if number.value is None:
        return "not measured"
    if number.low is None or number.high is None:
        return f"{number.value:.4f}"
    return f"{number.value:.4f} [{number.low:.4f}, {number.high:.4f}]"
