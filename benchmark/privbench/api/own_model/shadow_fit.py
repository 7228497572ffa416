"""Whether shadows are right as often as the audited model: if not, they were trained otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from privbench.api.planning import Planning
    from privbench.api.session import Session
    from privbench.measure.data.examples import Examples
    from privbench.measure.victims.served import Victim

_MOST = 4  # shadows that are asked
_FAR, _ERRORS = 0.1, 3  # difference of accuracies, and standard errors beyond it


@dataclass(frozen=True)
class ShadowFit:
    """How often shadows are right, in [0, 1], beside the model.

    Attributes:
        own: about rows that they were trained on.
        others: about other rows.
        model_own: how often the model is right about the members.
        model_others: about the nonmembers.
        far: whether shadows differ from the model by more than .1 and chance in one of the two.
    """

    own: float
    others: float
    model_own: float
    model_others: float
    far: bool

    def __str__(self) -> str:
        """The accuracies, in a sentence; a warning if they are far apart."""
        beside = f"{self.own:.1%} of their own rows and {self.others:.1%} of others"
        if not self.far:
            return f"The shadows are right about {beside}."
        return (
            f"WARNING: the shadows are right about {beside}, and the model about "
            f"{self.model_own:.1%} of the members and {self.model_others:.1%} of the nonmembers: "
            "they are not trained as the model was, so attacks with them find too little. Give all "
            "its training rows as members, or correct the shadow recipe."
        )


def shadow_fit(session: Session) -> ShadowFit | None:
    """Return how often the shadows of an audit are right; None if no attack had any that are kept.

    Args:
        session: that ran. The model answers classes, posteriors or logits.
    """
    planned = cast("Planning", session.planned)
    record = next((one for one in session.records if one.status == "ok" and one.utility), None)
    shadows = planned.shadows(_MOST)
    if record is None or not shadows:
        return None
    right = [[_right(victim, rows) for rows in (own, others)] for victim, own, others in shadows]
    own, others = (sum(column) / len(column) for column in zip(*right, strict=True))
    model = record.utility["train_accuracy"], record.utility["test_accuracy"]
    sizes = record.sizes["members"], record.sizes["nonmembers"]
    errors = [math.sqrt(max(p * (1 - p), 1 / n) / n) for p, n in zip(model, sizes, strict=True)]
    far = any(
        abs(a - b) > _FAR + _ERRORS * error
        for a, b, error in zip((own, others), model, errors, strict=True)
    )
    return ShadowFit(own, others, *model, far)


def _right(victim: Victim, rows: Examples) -> float:
    """Return the share of rows about which a victim is right."""
    guess = victim.log_posteriors(as_float(rows.x, rows.scale)).argmax(1)
    return float((guess.cpu() == rows.y.cpu()).double().mean())
