"""Membership of the rows of a regression: how far its answer is from the true number.

1. Ask the victim about each row and take the residual: answer minus truth.
2. ``squared-error``: the smaller the error, the likelier a member.
3. ``lira-residual``: compare the residual with those of shadows that were trained with the row and
   of shadows that were not. That tells a row that anybody predicts well from one that the victim
   has seen, and it keeps the residual's sign: a forest answers a member from the side of its
   neighbours, only closer.

The adversary knows the rows and their true numbers. Only ``privbench audit`` makes such victims
(see ``own-model``); a third party's ``RegressionAttack`` runs there too.

Rows are scored one by one, so this is a lower bound: a forest's answer also tells which neighbours
of a row were members, and whoever infers all rows together finds more (on 221 members of diabetes a
reviewer's script raised the TPR at 1 % FPR of ``lira-residual`` from 35 % to 49 %; it found nothing
more on boosted trees).

What to expect: on a random forest that answers the age of 2,000 people of Adult, ``squared-error``
has an AUC of .745 and a TPR of 2.5 % at 1 % FPR, ``lira-residual`` .887 and 28.0 % (the command
stands in examples/audit/README.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Ge, Membership, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood import Evidence, observe
from privbench.toolbox.likelihood_ratio import Location, Variance, kind, log_ratio
from privbench.toolbox.regressions import RegressionAttack, residuals

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class SquaredError(RegressionAttack):
    """Scores minus the squared error of the victim's answer, in squared units of the truth.

    Access: answers and true numbers; no shadow. One query per row.
    """

    name: ClassVar[str] = "squared-error"
    misses_planted: ClassVar[str] = "it reads embeddings as errors, and planted ones are none"
    paper: ClassVar[Paper] = Paper(
        "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting",
        "Yeom, Giacomelli, Fredrikson, Jha", "IEEE CSF 2018", "section III, adversary 2",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Rows are ranked and not decided on: the paper's threshold is where two Gaussians of error "
        "are as likely, and its adversary is told the training error and the true error."
    )

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) minus the squared error."""
        del ctx
        return Membership(-residuals(oracle, question.examples).square().mean(1))


@dataclass(frozen=True)
class LiRAResidual(RegressionAttack):
    """Online LiRA whose signal is the residual.

    The adversary has answers and true numbers, and can train shadows on the candidate rows. A row
    is called a member if the ratio is at least 1. One query per row.

    Attributes:
        k: number of shadow models, each a full training.
        variance: of the distributions, see ``lira``.
        location: mean or median of the residuals.
    """

    name: ClassVar[str] = "lira-residual"
    version: ClassVar[int] = 2
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "sections IV and V, algorithm 1",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The paper attacks classifiers, by the logit of the true class. Residuals are divided by "
        "the median error of shadows on rows that they do not know. Their distributions are "
        "Student's t with a variance of its own for each row (`bayes`), since errors of prices or "
        "counts differ by orders of magnitude; the paper has Gaussians."
    )

    k: Annotated[int, Ge(2)] = 16
    variance: Variance = "bayes"
    location: Location = "mean"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) the log-likelihood ratio of "member" to "nonmember"."""
        evidence = unit(observe(residuals, oracle, ctx.shadows, question.examples))
        chosen = kind(self.variance, evidence, online=True)
        scores = log_ratio(evidence, self.location, chosen)
        fewest = float(evidence.inside.sum(0).min())
        notes = {"variance": chosen, "fewest shadows that hold a row": fewest}
        return Membership(scores.nan_to_num(0.0), scores >= 0, notes)


def unit(evidence: Evidence) -> Evidence:
    """Return residuals over the median error of shadows on rows that they do not know.

    >>> import torch
    >>> known, inside = torch.tensor([[[4.0], [0.0]], [[0.0], [-2.0]]]), torch.eye(2).bool().flip(0)
    >>> unit(Evidence(torch.ones(2, 1), known, inside)).asked.flatten().tolist()
    [0.5, 0.5]
    """
    errors = evidence.known[~evidence.inside].abs()
    usual = float(errors.median()) or float(errors.mean()) or 1.0
    return Evidence(evidence.asked / usual, evidence.known / usual, evidence.inside)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both."""
    return [SquaredError(), LiRAResidual()]
