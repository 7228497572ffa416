"""Whether shadows are right as often as the audited model, and know the rows that they got.

If they are not, they were trained otherwise, and attacks with them find too little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Rows
    from privbench.api.planning import Planning
    from privbench.api.session import Session
    from privbench.measure.data.examples import Examples
    from privbench.measure.victims.served import Victim

_MOST = 4  # shadows that are asked
_FAR, _ERRORS = 0.1, 3  # difference of accuracies, and standard errors beyond it
#: Shadows know their rows below the first one; the model clearly knows its own below the second.
_HEARD, _CLEAR = 0.01, 1e-4
_ROUNDING = 1e-6  # of posteriors


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


def surer(session: Session, *, values: bool = False) -> float | None:
    """Return the p-value of "shadows are no surer of rows that they had than of others".

    Each row is compared with itself, as shadows with it and shadows without it answer, each after
    the mean over all rows is taken off (Wilcoxon's signed ranks).

    Args:
        session: that ran. The model answers classes, posteriors or logits.
        values: whether it is a regression instead.

    Returns:
        None if no row has both kinds of shadows.
    """
    from scipy.stats import wilcoxon

    by_row: dict[int, tuple[list[float], list[float]]] = {}
    for victim, own, others in cast("Planning", session.planned).shadows(_MOST):
        sure = [_sure(victim, rows, values=values) for rows in (own, others)]
        middle = np.concatenate(sure).mean()
        for place, (rows, of) in enumerate(zip((own, others), sure, strict=True)):
            for row, one in zip(rows.index.tolist(), (of - middle).tolist(), strict=True):
                by_row.setdefault(row, ([], []))[place].append(one)
    gaps = np.array([np.mean(a) - np.mean(b) for a, b in by_row.values() if a and b])
    if not gaps.size:
        return None
    gaps = gaps[np.abs(gaps) > _ROUNDING]
    return float(wilcoxon(gaps, alternative="greater").pvalue) if gaps.size else 1.0


def _sure(victim: Victim, rows: Examples, *, values: bool) -> NDArray[np.float64]:
    """Return the posterior of each row's class, or minus the error of a regression: (n,)."""
    x = as_float(rows.x, rows.scale)
    if values:
        return -victim.embeddings(x).double().abs().cpu().numpy()[:, 0]
    found = victim.log_posteriors(x).double().exp().cpu()
    return np.asarray(found.gather(1, rows.y.cpu()[:, None])[:, 0].numpy())


def unheard(session: Session, rows: Rows, answers: NDArray[np.float64], gives: str) -> str:
    """Return that the model is surer of its members, and shadows are not of theirs; "" if they are.

    Args:
        session: that ran, with shadows by the user's code.
        rows: of the audit.
        answers: (n,) or (n, k), of the model to members and nonmembers.
        gives: what these are.
    """
    from scipy.stats import mannwhitneyu

    if gives == "embeddings":
        return ""
    sure = _sure_of(rows, answers, gives)
    members, nonmembers = sure[rows.of("members")], sure[rows.of("nonmembers")]
    own = mannwhitneyu(members, nonmembers, alternative="greater").pvalue
    p_value = surer(session, values=rows.targets is not None)
    if p_value is None or p_value <= _HEARD or own > _CLEAR:
        return ""
    return (
        f"shadows are no surer of rows that they were trained on than of others (p = {p_value:.2g})"
        f", and the model is surer of its members (p = {own:.2g}): check that the shadow recipe "
        "trains on the x and y that it gets, as the model was trained"
    )


def _sure_of(rows: Rows, answers: NDArray[np.float64], gives: str) -> NDArray[Any]:
    """Return how sure the model is of the truth about each member and nonmember, (n,)."""
    if rows.targets is not None:
        return -np.abs(answers[:, 0] - rows.targets[: len(answers)])
    assert rows.y is not None  # noqa: S101 - the model classifies
    y = rows.y[: len(answers)]
    if gives == "labels":
        return np.asarray(answers == y)
    sure = answers[np.arange(len(y)), y]
    return np.asarray(sure - np.logaddexp.reduce(answers, axis=1) if gives == "logits" else sure)


def _right(victim: Victim, rows: Examples) -> float:
    """Return the share of rows about which a victim is right."""
    guess = victim.log_posteriors(as_float(rows.x, rows.scale)).argmax(1)
    return float((guess.cpu() == rows.y.cpu()).double().mean())
