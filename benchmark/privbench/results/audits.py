"""Audits of a board: the guesses of all seeds of a cell count together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.ground.text import shown
from privbench.measure.games.audit import COUNTS, assessed, counted
from privbench.measure.games.metrics import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from privbench.measure.games.metrics import Estimate
    from privbench.results.record import Number, Record

#: Metrics that ``bounds`` shows.
NAMES = (
    "claimed_epsilon", "nominal_epsilon", "audited_epsilon", "audit_ceiling", "claimed_mu",
    "audited_mu", "audit_p",
)  # fmt: skip

#: Those that defenses state: the largest of the seeds holds for all of them.
CLAIMED = ("claimed_epsilon", "nominal_epsilon", "claimed_mu")

LEGEND = (
    "**ε**: claimed is what the defense guarantees (the largest of the seeds), nominal has no "
    'guarantee, for example one from a sampled sensitivity; "classifier only" leaves open the '
    "other phases that members train. Audited is a lower bound at 97.5 % confidence from the "
    "guesses of all seeds together (Steinke, Nasr, Jagielski, NeurIPS 2023), by the first attack "
    "by name: it can refute a claim but never prove one, and cannot test one above what a perfect "
    'attack would reach. "refused": this protocol cannot test the claim.'
)


@dataclass(frozen=True)
class Bound:
    """What boards show of a bound.

    Attributes:
        text: with what it covers.
        number: that the text is; None where it is more, or none.
    """

    text: str
    number: float | None = None


MISSING, REFUSED = Bound("–"), Bound("refused")


def bound(value: float, digits: str = ".3f") -> Bound:
    """Return a bound with so many digits."""
    text = f"{value:{digits}}"
    return Bound(text, float(text) if math.isfinite(value) else None)


def _over_seeds(records: Sequence[Record]) -> Mapping[str, Estimate | Refused] | None:
    """Return the audit of all seeds together; None if a record lacks the counts.

    Args:
        records: the seeds of one cell.
    """
    claims = [[claim for claim in record.claims if "epsilon" in claim] for record in records]
    counts = [
        {name: record.metrics[name].value for name in COUNTS if name in record.metrics}
        for record in records
    ]
    if any(len(one) != 1 for one in claims) or any(
        len(of) < len(COUNTS) or None in of.values() for of in counts
    ):
        return None
    given = [{name: float(value or 0) for name, value in of.items()} for of in counts]
    return assessed([claim for (claim,) in claims], [counted(of) for of in given])


def bounds(records: Sequence[Record]) -> dict[str, Bound]:
    """Return each of ``NAMES`` for the seeds of one cell.

    An epsilon that is no guarantee is nominal, not claimed. A claim that leaves open phases that
    members train names those that it covers.
    """
    made = _bounds(records)
    covered = sorted({text for record in records if (text := _partly(record))})
    for name in CLAIMED if covered else ():
        if made[name].text[0].isdigit():
            made[name] = Bound(made[name].text + "".join(f" ({text})" for text in covered))
    claims = [one for record in records for one in record.claims if "epsilon" in one]
    if not all(claim.get("guarantee", False) for claim in claims):
        made["nominal_epsilon"], made["claimed_epsilon"] = made["claimed_epsilon"], MISSING
    return made


def _bounds(records: Sequence[Record]) -> dict[str, Bound]:
    together = _over_seeds(records)
    if together is None:  # each bound stands alone
        return {
            name: _of_seeds([r.metrics.get(name) for r in records], _CHOSEN.get(name, min))
            for name in NAMES
        }
    found = {
        name: metric.value for name, metric in together.items() if not isinstance(metric, Refused)
    }
    made = {name: bound(found[name]) if name in found else MISSING for name in NAMES}
    made["audit_p"] = bound(found["audit_p"], ".2g")
    if found["audit_ceiling"] < found["claimed_epsilon"]:
        told = f"{made['audited_epsilon'].text}, not testable (ceiling below claim)"
        made["audited_epsilon"] = Bound(told)
    if "claimed_mu" in found:
        regrets = f"{found['mu_regret']:.3f}, of ε {found['epsilon_regret']:.3f}"
        made["claimed_mu"] = Bound(f"{made['claimed_mu'].text} (regret {regrets})")
    return made


def _bonferroni(values: Sequence[float]) -> float:
    """The p-value that the claim holds for all seeds: the smallest, corrected for their number.

    >>> _bonferroni([0.02, 0.5]), _bonferroni([0.7, 0.9])
    (0.04, 1.0)
    """
    return min(1.0, len(values) * min(values))


#: How the bounds of several seeds become one, where it is not the smallest.
_CHOSEN: Mapping[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(CLAIMED, max), "audit_p": _bonferroni,
}  # fmt: skip


def _partly(record: Record) -> str:
    """Which phases the claims of an epsilon cover; "" if these are all that members train."""
    phases = [str(claim.get("phase", "")) for claim in record.claims if "epsilon" in claim]
    covered = {name for phase in phases for name in phase.split("+") if name}
    trained = {name for name in record.phase.split("+") if name}
    if not phases or trained <= covered:
        return ""
    covered &= trained
    return shown(f"{'+'.join(sorted(covered))} only") if covered else "no phase"


def _of_seeds(
    numbers: Sequence[Number | None], choose: Callable[[Sequence[float]], float]
) -> Bound:
    given = [n for n in numbers if n is not None]
    values = [n.value for n in given if n.value is not None]
    if not given:
        return MISSING
    return bound(choose(values)) if len(values) == len(given) else REFUSED
