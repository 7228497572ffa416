"""``privbench show RESULT``: a result as text for a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privbench.cli import completion
from privbench.cli.border import say
from privbench.ground.errors import BadInputError
from privbench.ground.text import listed, shown

if TYPE_CHECKING:
    from privbench.results.record import Number, Record


@click.command()
@click.argument("result", shell_complete=completion.files)
def show(result: str) -> None:
    """Show a RESULT: the numbers, intervals, controls and provenance of one trial.

    A method is explained by `privbench doc NAME`.
    """
    path = Path(result)
    if not path.exists():
        raise BadInputError(
            f"no result at {shown(result, 200)}: results are in the directory given by --out; "
            "a method is explained by `privbench doc NAME`"
        )
    from privbench.results.files import read

    say(result_card(read(path)))


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
