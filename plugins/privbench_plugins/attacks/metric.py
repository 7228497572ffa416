"""Metric attacks: one number read off the posteriors against a threshold; nothing is learned.

Song, Mittal: Systematic Evaluation of Privacy Risks of Machine Learning Models. USENIX Security
2021, section 3. Yeom, Giacomelli, Fredrikson, Jha: Privacy Risk in Machine Learning: Analyzing the
Connection to Overfitting. CSF 2018, section 3.

The adversary sees the posteriors of the rows asked about (for ``metric-correctness`` the predicted
class is enough) and knows their true labels. Steps:

1. One number per row, higher for members: is the answer right, how sure is it of the true class,
   how sure at all, both at once, or how small is the loss.
2. A threshold on it from one shadow model, the victim's recipe on rows of the adversary's own: one
   for each true class (the most accurate on the shadow), or the shadow's mean training loss.
3. Member iff the number reaches the threshold.

A posterior next to 1 has lost its digits, the others have not. So log p and log(1 - p) of the
likeliest class are both computed from the others (``logs``): a sure answer gets its true number,
where the authors' code, which floors logarithms at 1e-30, gives the same one to all of them.

A row without a label (y = -1) is read as one of the likeliest class. It has a threshold of its own
where the shadow has such rows on both sides, else the one of all classes.

Deviations: see each class. What to expect: the gap between training and test accuracy is the floor
(``metric-correctness``); the others reach as far as ``shokri`` or ``nn-mia`` without training an
attack model. A defense that keeps labels cannot lower ``metric-correctness`` at all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from privbench import Access, Membership, MembershipAttack, Paper, Shadows, best_threshold, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, Examples, MembershipQuestion, Oracle

SONG = Paper(
    "Systematic Evaluation of Privacy Risks of Machine Learning Models", "Song, Mittal",
    "USENIX Security 2021", "section 3",
)  # fmt: skip

#: Log of a posterior of exactly 0: far below any that a softmax gives.
NOTHING = -1e9


@dataclass(frozen=True)
class _Metric(MembershipAttack):
    """What all share: there must be classes."""

    paper: ClassVar[Paper] = SONG

    def incompatible(self, cell: Cell) -> str | None:
        """There must be classes to have answers about."""
        if cell.card.classes is None:
            return f"{self.name} reads predicted classes, and {cell.card.name} has no classes"
        return None


@dataclass(frozen=True)
class MetricCorrectness(_Metric):
    """The gap attack: whatever the victim classifies rightly is a member.

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
    """A number read off the posteriors, and one shadow that says how large members' are."""

    needs: ClassVar[Access] = Access.POSTERIORS

    @property
    def shadows(self) -> Shadows:
        """One, in a world of the adversary's own."""
        return Shadows(1)

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
        """Scores and true classes; those unknown are -1."""
        log_posteriors = oracle.log_posteriors(rows)
        y = rows.y.to(log_posteriors.device)
        read = torch.where(y < 0, log_posteriors.argmax(1), y)
        return self.measure(log_posteriors, read), y


@dataclass(frozen=True)
class _Thresholded(_Posterior):
    """The threshold of highest balanced accuracy on the shadow, for each true class or for all.

    Attributes:
        per_class: a threshold for each true class, as in the paper; else one for all rows. A
            class of which the shadow has members only or nonmembers only takes that one too.
    """

    per_class: bool = True

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the number itself; the shadow's thresholds decide."""
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
    """How sure the victim is of the true class: log(p_y / (1 - p_y)).

    Access: posteriors and true labels, one shadow. One query per row. The log-odds have the order
    of p_y, so that thresholds decide alike, but do not tie where p_y rounds to 1.
    """

    name: ClassVar[str] = "metric-confidence"
    deviations: ClassVar[str] = "Scores are log-odds of p_y instead of p_y: the same order."

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """log(p_y / (1 - p_y))."""
        log_p, log_rest = logs(log_posteriors)
        return _of(log_p - log_rest, y)


@dataclass(frozen=True)
class MetricEntropy(_Thresholded):
    """How sure the victim is of whatever it answers: minus the entropy of the posteriors, in nats.

    Access: posteriors, one shadow; true labels only choose the threshold. One query per row.
    """

    name: ClassVar[str] = "metric-entropy"

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Sum of p_i log p_i."""
        del y
        log_p, _ = logs(log_posteriors)
        return (log_p.exp() * log_p).sum(1)


@dataclass(frozen=True)
class MetricModifiedEntropy(_Thresholded):
    """How sure and how right at once: minus the paper's modified entropy, in nats.

    -(1 - p_y) log p_y - sum of p_i log(1 - p_i) over i other than y: 0 for a sure right answer,
    unbounded for a sure wrong one. Access: posteriors and true labels, one shadow. One query per
    row.
    """

    name: ClassVar[str] = "metric-modified-entropy"

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """(1 - p_y) log p_y + sum of p_i log(1 - p_i) over the other classes."""
        log_p, log_rest = logs(log_posteriors)
        others = (log_p.exp() * log_rest).scatter(1, y[:, None], 0).sum(1)
        return others + _of(log_rest.exp() * log_p, y)


@dataclass(frozen=True)
class MetricLoss(_Posterior):
    """Member iff the loss is at most the mean training loss: log p_y against one threshold.

    The mean is over the shadow's members as they are: eval mode, no augmentation, no penalty
    terms; of its labelled members only. Access: posteriors and true labels, one shadow. One query
    per row. The same rule as p_y >= exp(-mean loss).
    """

    name: ClassVar[str] = "metric-loss"
    paper: ClassVar[Paper] = Paper(
        "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting",
        "Yeom, Giacomelli, Fredrikson, Jha", "CSF 2018", "section 3, adversary 2",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The mean training loss is the shadow's; the paper's adversary is told the victim's own."
    )

    def measure(self, log_posteriors: Tensor, y: Tensor) -> Tensor:
        """Minus the cross-entropy, in nats."""
        log_p, _ = logs(log_posteriors)
        return _of(log_p, y)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by minus the loss; minus the shadow's mean training loss decides."""
        (shadow,) = ctx.shadows
        trained, y = self._scores(shadow.oracle, shadow.world.members)
        labelled = y >= 0
        mean = trained[labelled if labelled.any() else ~labelled].mean()
        asked, _ = self._scores(oracle, question.examples)
        return Membership(asked, asked >= mean, {"mean training loss": -float(mean)})


def logs(log_posteriors: Tensor) -> tuple[Tensor, Tensor]:
    """Log p and log(1 - p) of each class, exact next to p = 0 and next to p = 1.

    Args:
        log_posteriors: (n, k) float64, k at least 2; -inf, a posterior rounded to 0, becomes
            ``NOTHING``.

    Returns:
        Both (n, k) float64, finite. What is next to 1 comes from the sum of the other classes.

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
    """The entry of each row (n, k) at its class: (n,)."""
    return values.gather(1, y[:, None]).squeeze(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the five metrics."""
    return [
        MetricCorrectness(), MetricConfidence(), MetricEntropy(), MetricModifiedEntropy(),
        MetricLoss(),
    ]  # fmt: skip
