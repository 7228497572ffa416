"""How an endpoint is reached: what is refused, and what is said, before the first request."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbench.api.own_model.identity import AGAIN
from privbench.ground.errors import BadInputError
from privbench.ground.text import several, shown
from privbench.ground.tokens import redacted
from privbench.toolbox.endpoint_formats import format_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from torch import Tensor

    from privbench.measure.methods.attack import Attack

#: How an address begins.
ADDRESSES = ("http://", "https://")
DEFAULT = "privbench"
#: Hyperparameters that say how often an attack asks about each row.
_COSTS = ("queries", "copies", "budget")


@dataclass(frozen=True)
class Asking:
    """How an endpoint is asked.

    Attributes:
        format: name of a format; "" for the default.
        request: file of a template; "" for the format's own request.
        answer: path in an answer; "" for the format's own.
        max_queries: most rows that are sent; 0 for no limit.
        rate: most requests per second; 0 for no limit.
        retries: how often a failed request is repeated.
        batch: most rows of a request.
        request_timeout: seconds in which a request must be answered.
        deadline: seconds for all requests; 0 for no limit.
    """

    format: str = ""
    request: str = ""
    answer: str = ""
    max_queries: int = 0
    rate: float = 0.0
    retries: int = 5
    batch: int = 64
    request_timeout: float = 60.0
    deadline: float = 0.0

    def refuse(self, model: Any, version: str) -> None:
        """Refuse what cannot be used, and anything for a model that is not an endpoint.

        Raises:
            BadInputError: one sentence that says what to do.
        """
        if isinstance(model, str) and model.startswith(ADDRESSES):
            format_of(self.format or DEFAULT, self.request, self.answer, version)
        elif self != (usual := Asking()):
            named = next(name for name, one in vars(self).items() if one != getattr(usual, name))
            raise BadInputError(f"{named}: the model is not an endpoint: leave {named} out, or "
                                "give an address (http:// or https://) as the model")  # fmt: skip

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``own-model``."""
        request = str(Path(self.request).absolute()) if self.request else ""
        return {**asdict(self), "format": self.format or DEFAULT, "request": request}


def more_queries(
    attacks: Sequence[Attack], settings: Mapping[str, Mapping[str, Any]], rows: int, shadow: int
) -> dict[str, int]:
    """Return attack -> rows that it asks beyond members and nonmembers; 0 if that is unknown.

    Args:
        attacks: those that the user names; of others only those on attributes ask for more.
        settings: method -> hyperparameters.
        rows: number of members and nonmembers.
        shadow: number of shadow rows, about which attacks on attributes ask.
    """
    from privbench.api.own_model.choice import CHANGES

    made: dict[str, int] = {}
    for one in attacks:
        attack = one.replace(**settings.get(one.name, {}))
        if attack.max_rows is not None or attack.name in CHANGES:
            known = attack.hyperparameters()
            each = next((known[of] for of in _COSTS if isinstance(known.get(of), int)), 0)
            made[one.name] = each * min(attack.max_rows or rows, rows)
        elif attack.game == "attributes" and shadow:
            made[one.name] = shadow
    return made


def announce(
    asked: Any, x: Tensor, changed: Tensor, more: Mapping[str, int], console: Console | None
) -> None:
    """Say how many rows an endpoint will be sent and, after the first request, how long it takes.

    Args:
        asked: module that asks the endpoint.
        x: (n, *shape) members and nonmembers, in [0, 1].
        changed: (m, *shape) rows about which other models that agree on x may differ.
        more: from ``more_queries``.
        console: where it is said; None for nowhere.

    Raises:
        BadInputError: if it is more than ``max_queries``.
    """
    endpoint = asked.endpoint
    counts = [sum(not time for time in asked.kept(of)) if len(of) else 0 for of in (x, changed)]
    again = min(AGAIN, len(x) + len(changed) - sum(counts))
    certain = sum(counts) + again
    requests = sum(math.ceil(count / endpoint.batch) for count in (*counts, again))
    place = shown(redacted(endpoint.url), 200)
    told = f"{place} will be sent {several(certain, 'row')} in {several(requests, 'request')}"
    if counts[1]:
        told += f", {counts[1]} of them changed, which tell it from other models"
    if again:
        told += f", {again} of them to compare with the answers that are kept"
    for name, rows in more.items():
        about = f"about {rows:,} more at most" if rows else "more, whose number is not known"
        told += f"; {name} asks {about}"
    if endpoint.max_queries and certain > endpoint.max_queries:
        raise BadInputError(f"max_queries {endpoint.max_queries:,}: {told}: allow more, or give "
                            "fewer rows; nothing was sent")  # fmt: skip
    if console is None:
        return
    console.print(f"{told}.", markup=False, highlight=False, soft_wrap=True)

    def first(rows: int, seconds: float) -> None:
        each = max(seconds, 1 / endpoint.rate if endpoint.rate else 0.0)
        left = _duration(max(1, each * (requests - 1)))
        console.print(f"The first request ({several(rows, 'row')}) took {seconds:.2g} s: the other "
                      f"{requests - 1} take about {left}.", markup=False,
                      highlight=False, soft_wrap=True)  # fmt: skip

    if requests > 1:
        endpoint.on_first = first


def _duration(seconds: float) -> str:
    """Return a time in the unit that fits.

    >>> _duration(5.2), _duration(300), _duration(9000)
    ('5 s', '5 min', '2.5 h')
    """
    minute, hour = 60, 3600
    if seconds < 2 * minute:
        return f"{seconds:.0f} s"
    return f"{seconds / minute:.0f} min" if seconds < 2 * hour else f"{seconds / hour:.1f} h"
