"""Dual LiRA: what each row itself adds to a model, judged against shadow models.

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, algorithm 1, with signals of our own. The kernel: Jacot, Gabriel, Hongler: Neural
Tangent Kernel. NeurIPS 2018.

To first order a trained network is its start plus one kernel function for each training row.
Members have a coefficient in that sum, other rows have none (``privbench.toolbox.duals``). ``lira``
reads the posterior of a row, to which all rows nearby add. Here the adversary, who knows true
labels and owns k shadow models trained on subsets of the candidate rows, reads the coefficient:

1. Log-posteriors of all candidates, and posteriors, times the inverse of the tangent kernel between
   the candidates, at four strengths of a ridge. The kernel needs the rows alone, and no model.
2. Signals of a row: the coefficients along ``onehot(label) - mean posterior of the shadows``, the
   way that training on the row pushes its logits; that of the log-posteriors on its label, and how
   long it is, in all and across that way (a defense that trains on soft labels leaves a push of
   unknown direction); and the signal of ``lira``.
3. Add up the signals by the weights that tell shadows with a row best from shadows without it
   (Fisher's discriminant). Score: the log-likelihood ratio, as ``lira-head``.

``dual-encoder`` sees embeddings alone: how long their coefficients are, the coefficients of what
regressions on the embeddings say of the label, and the signals of ``lira-encoder``. ``dual-head``
sees both, and has the signals of ``dual-lira``, of ``dual-encoder`` and of ``lira-head``.

Deviations: see the class. What to expect: more than ``lira`` with the same shadows, most where
another defense hides a row's own answer. On the 100 members of ``digits`` (``supervised``, five
seeds, the protocol of the suite digits-defenses-supervised; AUC, and members found at 1 % of false
alarms), without a defense ``dual-lira`` .862 and 30.8 %, ``dual-encoder`` .865 and 29.4 %,
``dual-head`` .879 and 33.4 % (``lira`` .794 and 18 %, ``lira-head`` .843 and 20.8 %); under
``selena`` .791, .758, .804 (.604, .697). On null victims .48 to .49.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.duals import of_encoder, of_posteriors
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio
from privbench.toolbox.traces import weights_of_traces

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle
    from privbench.toolbox.likelihood import Ask


@dataclass(frozen=True)
class DualLiRA(MembershipAttack):
    """The likelihood ratio of what a row itself adds to a model's posteriors.

    The adversary has posteriors and labels, and can train shadows on the candidate rows. A row is
    called a member if the ratio is at least 1. One query per row.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        variance: of the distributions, see ``lira``.
    """

    name: ClassVar[str] = "dual-lira"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "algorithm 1, with signals of our own",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The signals are our own: dual coefficients of the tangent kernel of a small network, "
        "whatever the model is, and of the candidates alone, since no other member is known. Of "
        "more than 2,000 candidates blocks of equal size are taken alone, and find less. A row's "
        "score depends on the others asked. A row without a label scores 0 and is not called a "
        "member; `dual-encoder` scores it too, and then uses no labels. Posteriors of 0 count "
        "as the smallest other one."
    )

    k: Annotated[int, Ge(2)] = 16
    variance: Variance = "auto"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the victim's signals with the shadows'."""
        rows = question.examples
        return likelihood_ratio(
            self.signals(rows, ctx), oracle, rows, ctx.shadows,
            online=True, variance=self.variance, weigh=weights_of_traces,
        )  # fmt: skip

    def signals(self, rows: Examples, ctx: AttackContext) -> Ask:
        """Return what asks a model for the signals of the rows."""
        return of_posteriors(ctx, rows)


@dataclass(frozen=True)
class DualEncoder(DualLiRA):
    """The likelihood ratio of what a row itself adds to a model's embeddings.

    The adversary has embeddings and labels, and can train shadows on the candidate rows. One query
    per row, and `views` more on images that may be augmented.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        variance: of the distributions, see ``lira``.
        views: augmented views per row, shared with ``lira-encoder``.
    """

    name: ClassVar[str] = "dual-encoder"
    needs: ClassVar[Access] = Access.EMBEDDINGS

    views: Annotated[int, Ge(2)] = 10

    def signals(self, rows: Examples, ctx: AttackContext) -> Ask:
        """Return what asks a model for the signals of the rows."""
        return of_encoder(ctx, rows, self.views, self.needs)


@dataclass(frozen=True)
class DualHead(DualEncoder):
    """The likelihood ratio of what a row itself adds to a model's embeddings and posteriors.

    The adversary has both, and labels, and can train shadows on the candidate rows. Two queries per
    row, and `views` more on images that may be augmented.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        variance: of the distributions, see ``lira``.
        views: augmented views per row, shared with ``lira-encoder``.
    """

    name: ClassVar[str] = "dual-head"
    needs: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attacks."""
    return [DualLiRA(), DualEncoder(), DualHead()]
