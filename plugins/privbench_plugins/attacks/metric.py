"""Metric attacks: compare one number from the posteriors with a threshold; no attack model.

Song, Mittal: Systematic Evaluation of Privacy Risks of Machine Learning Models. USENIX Security
2021, section 3. Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: Analyzing the
Connection to Overfitting. CSF 2018, section 3.

The adversary sees the posteriors of the candidate rows (for ``metric-correctness`` the predicted
class is enough) and knows their true labels. Steps:

1. Compute one number per row, higher for members: is the prediction correct, how confident is the
   model in the true class, how confident in any class, both at once, or how small is the loss.
2. Take a threshold from one shadow model, trained as the target is on the adversary's own rows: one
   per true class (the most accurate on the shadow), or the shadow's mean training loss.
3. Call a row a member if its number reaches the threshold.

Without a shadow (``calibration: none``) the number alone is the score, and nothing is decided.

A posterior close to 1 has lost its significant digits; the other posteriors have not. So log p and
log(1 - p) of the most likely class are both computed from the others (``logs``). A confident
prediction gets its exact value, whereas the authors' code, which floors logarithms at 1e-30, gives
the same value to all of them.

A row without a label (y = -1) is treated as if its most likely class were the true one. Such rows
have a threshold of their own if the shadow has unlabelled members and nonmembers; otherwise they
use the one for all classes.

Deviations: a threshold stands in the middle between two observed numbers, not at the upper one; a
class with few rows (most of the paper's Location have so few) shares the threshold of all
(``best_threshold``). Thresholds decide; the score, by which boards rank, is the metric itself, as
if all classes had one threshold. More: see each class.

What to expect: the gap between training and test accuracy is the floor
(``metric-correctness``); the others are about as strong as ``shokri`` or ``nn-mia`` without
training an attack model. A defense that keeps labels cannot lower ``metric-correctness`` at all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from privbench import Access, Membership, MembershipAttack, Paper, Shadows, best_threshold, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

SONG = Paper(
    "Systematic Evaluation of Privacy Risks of Machine Learning Models", "Song, Mittal",
    "USENIX Security 2021", "section 3",
)  # fmt: skip

#: Used as the log of a posterior of exactly 0: far below any that a softmax gives.
NOTHING = -1e9


@dataclass(frozen=True)
class _Metric(MembershipAttack):
    """Base of all metrics; they need a dataset with classes."""

    paper: ClassVar[Paper] = SONG


@dataclass(frozen=True)
class MetricCorrectness(_Metric):
    """The gap attack: calls a row a member if the victim classifies it correctly.

    Access: predicted classes and true labels; no shadow. One query per row. Its balanced accuracy
    is (training accuracy + 1 - test accuracy) / 2. A row without a label counts as wrong.
    """

    name: ClassVar[str] = "metric-correctness"
    needs: ClassVar[Access] = Access.LABELS
    deviations: ClassVar[str] = "The bit decides by itself: no threshold, so no shadow."

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) 1 where the predicted class is the true one, else 0."""
        del ctx
        predicted = oracle.labels(question.examples)
        right = predicted == question.examples.y.to(predicted.device)
        return Membership(right.double(), right)


@dataclass(frozen=True)
class _Posterior(_Metric):
    """Base of metrics of the posteriors, with one shadow that shows how large members' are.

    Attributes:
        calibration: where the threshold comes from: ``shadow``, or ``none`` for scores only.
    """

    needs: ClassVar[Access] = Access.POSTERIORS

    calibration: Literal["shadow", "none"] = "shadow"

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows; none for scores only."""
        return Shadows(1 if self.calibration == "shadow" else 0)

    @abstractmethod
    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Score rows, higher for members.

        Args:
            log_posteriors: (n, k) float64.
            y: (n,) classes in 0..k-1.

        Returns:
            (n,) float64, finite.
        """

    def _scores(self, oracle: Oracle, rows: Examples) -> tuple[Tensor, Tensor]:
        """Return scores and true classes; unknown classes are -1."""
        log_posteriors = oracle.log_posteriors(rows)
        y = rows.y.to(log_posteriors.device)
        read = torch.where(y < 0, log_posteriors.argmax(1), y)
        return self.measure(log_posteriors, read), y


@dataclass(frozen=True)
class _Thresholded(_Posterior):
    """Base of metrics with the threshold of highest balanced accuracy on the shadow.

    Attributes:
        calibration: see ``_Posterior``.
        per_class: use one threshold per true class, as in the paper; else one for all rows. A
            class with fewer than 30 members or nonmembers in the shadow uses the one for all rows.
    """

    per_class: bool = True

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the metric itself; the shadow's thresholds decide."""
        if self.calibration == "none":
            return Membership(self._scores(oracle, question.examples)[0])
        (shadow,) = ctx.shadows
        inside, y_in = self._scores(shadow.oracle, shadow.world.members)
        outside, y_out = self._scores(shadow.oracle, shadow.nonmembers)
        asked, y = self._scores(oracle, question.examples)
        known, groups = torch.cat([inside, outside]).cpu(), torch.cat([y_in, y_out]).cpu()
        member = torch.arange(len(known)) < len(inside)
        by = groups.numpy() if self.per_class else None
        threshold = best_threshold(known.numpy(), member.numpy(), by)
        decisions = threshold.decide(asked.cpu().numpy(), y.cpu().numpy())
        notes = {
            "threshold of all classes": threshold.overall,
            "classes with their own": float(len(threshold.by_group)),
        }
        return Membership(asked, torch.from_numpy(decisions).to(asked.device), notes)


@dataclass(frozen=True)
class MetricConfidence(_Thresholded):
    """Scores the victim's confidence in the true class: log(p_y / (1 - p_y)).

    Access: posteriors and true labels, one shadow. One query per row. The log-odds have the same
    order as p_y, but they do not tie where p_y rounds to 1, and between a sure member and a surer
    one they are as far apart as the posteriors' logarithms.
    """

    name: ClassVar[str] = "metric-confidence"
    deviations: ClassVar[str] = (
        "Scores are log-odds of p_y instead of p_y: the same order, other distances."
    )

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Return log(p_y / (1 - p_y))."""
        log_p, log_rest = logs(log_posteriors)
        return _of(log_p - log_rest, y)


@dataclass(frozen=True)
class MetricEntropy(_Thresholded):
    """Scores the victim's confidence in any class: minus the posteriors' entropy, in nats.

    Access: posteriors, one shadow; true labels only select the threshold. One query per row.
    """

    name: ClassVar[str] = "metric-entropy"

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Return the sum of p_i log p_i."""
        del y
        log_p, _ = logs(log_posteriors)
        return (log_p.exp() * log_p).sum(1)


@dataclass(frozen=True)
class MetricModifiedEntropy(_Thresholded):
    """Scores confidence and correctness at once: minus the paper's modified entropy, in nats.

    The modified entropy is -(1 - p_y) log p_y - sum of p_i log(1 - p_i) over i other than y: 0 for
    a confident correct prediction, unbounded for a confident wrong one. Access: posteriors and true
    labels, one shadow. One query per row.
    """

    name: ClassVar[str] = "metric-modified-entropy"

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Return (1 - p_y) log p_y + sum of p_i log(1 - p_i) over the other classes."""
        log_p, log_rest = logs(log_posteriors)
        others = (log_p.exp() * log_rest).scatter(1, y[:, None], 0).sum(1)
        return others + _of(log_rest.exp() * log_p, y)


@dataclass(frozen=True)
class MetricLoss(_Posterior):
    """Calls a member if the loss is at most the mean training loss: one threshold on log p_y.

    The mean is over the shadow's labelled members only, unchanged: eval mode, no augmentation, no
    penalty terms. Access: posteriors and true labels, one shadow. One query per row. The rule is
    the same as p_y >= exp(-mean loss).
    """

    name: ClassVar[str] = "metric-loss"
    decides_at: ClassVar[str] = "mean training loss"
    paper: ClassVar[Paper] = Paper(
        "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting",
        "Yeom, Giacomelli, Fredrikson, Jha", "CSF 2018", "section 3, adversary 2",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The mean training loss is the shadow's; the paper's adversary knows the victim's own."
    )

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Return minus the cross-entropy, in nats."""
        log_p, _ = logs(log_posteriors)
        return _of(log_p, y)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by minus the loss; minus the shadow's mean training loss decides."""
        if self.calibration == "none":
            return Membership(self._scores(oracle, question.examples)[0])
        (shadow,) = ctx.shadows
        trained, y = self._scores(shadow.oracle, shadow.world.members)
        labelled = y >= 0
        mean = trained[labelled if labelled.any() else ~labelled].mean()
        asked, _ = self._scores(oracle, question.examples)
        return Membership(asked, asked >= mean, {"mean training loss": -float(mean)})


def logs(log_posteriors: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p and log(1 - p) of each class, exact near p = 0 and near p = 1.

    Args:
        log_posteriors: (n, k) float64, k at least 2; -inf (a posterior rounded to 0) becomes
            ``NOTHING``.

    Returns:
        Both (n, k) float64, finite. Values for a p near 1 come from the sum of the other classes.

    >>> p, rest = logs(torch.tensor([[0.0, -50.0, -60.0]], dtype=torch.float64))
    >>> [round(float(v), 3) for v in rest[0]], float(p[0, 0]) < 0
    ([-50.0, -0.0, -0.0], True)
    """
    log_p = log_posteriors.double().clamp_min(NOTHING)
    top = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    log_p = log_p.scatter(1, top, torch.log1p(-others.exp()))
    rest = torch.log1p(-log_p.scatter(1, top, NOTHING).exp())
    return log_p, rest.scatter(1, top, others)


def _of(values: Tensor, y: Tensor) -> Tensor:
    """Return the entry of each row (n, k) at its class: (n,)."""
    return values.gather(1, y[:, None]).squeeze(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the five metrics."""
    return [
        MetricCorrectness(), MetricConfidence(), MetricEntropy(), MetricModifiedEntropy(),
        MetricLoss(),
    ]  # fmt: skip
