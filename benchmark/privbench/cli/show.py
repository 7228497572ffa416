"""Cards: a method or a result as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbench.text import listed

if TYPE_CHECKING:
    from privbench.boards.records import Number, Record
    from privbench.method import Method


def method_card(kind: str, method: Method) -> str:
    """Threat model, source, hyperparameters and deviations of a method."""
    from privbench.methods.about import about  # it imports torch

    told = about(kind, method)
    lines = [f"{method.name} ({kind}, version {method.version})", ""]
    for text in told.texts:
        lines += [text, ""]
    lines += [f"Paper: {told.paper}"] if told.paper else []
    lines += [f"{name}: {text}" for name, text in told.facts.items()]
    lines += ["", "Hyperparameters:", *_hyperparameters(method)]
    if method.presets:
        lines += ["", "Presets:"]
        lines += [f"  {name}: {listed(fields)}" for name, fields in method.presets.items()]
    if told.deviations:
        lines += ["", f"Deviations: {told.deviations}"]
    return "\n".join(lines)


def _hyperparameters(method: Method) -> list[str]:
    return [f"  {name} = {value}" for name, value in method.hyperparameters().items()] or ["  none"]


def result_card(record: Record) -> str:
    """Cell, numbers with intervals, controls, cost and provenance of a result."""
    cell = record.cell
    lines = [
        f"{cell.title}, {cell.adversary}, seed {record.seed}: {record.status}"
        + (f" ({record.reason})" if record.reason else ""),
        f"trial {record.trial}, result {record.digest}",
        f"phase: {record.phase}; rows: {listed(record.sizes)}",
        f"protocol: {listed(cell.protocol)}; preset {cell.preset}",
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
            lines.append(f"{title}: {listed(facts)}")
    lines += [f"claim: {listed(claim)}" for claim in record.claims]
    lines += [f"‡ cannot be trusted: {flag}" for flag in record.flags]
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
