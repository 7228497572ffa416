"""Dual label LiRA: what each row itself adds to a model that answers with labels only.

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, algorithm 1, with signals of our own.

A release that hides or alters posteriors keeps the classes that it predicts, and so what they are
for copies of a row with noise. ``label-lira`` reads how many copies keep the true class. Here all
classes that copies get stand in for the posteriors, and from these the adversary takes away what
rows nearby add, as ``dual-lira`` does. It knows true labels, and owns k shadow models trained on
subsets of the candidate rows. Steps:

1. Ask every model about copies of all rows with noise of several levels. The mean over levels of
   the logarithms of the classes' shares are the model's log-posteriors, to the adversary.
2. Signals of a row are their dual coefficients, as in ``dual-lira``, and the signal of
   ``label-lira``.
3. Add up the signals by the weights that tell shadows with a row best from shadows without it
   (Fisher's discriminant). Score: the log-likelihood ratio.

Deviations: see the class. What to expect: more than ``label-lira`` finds with the same queries and
shadows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import (
    Access,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    MinLen,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.copies import fitting_levels
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio
from privbench.toolbox.traces import weights_of_traces
from privbench.toolbox.votes import of_labels

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class DualLabel(MembershipAttack):
    """The likelihood ratio of what a row itself adds to the labels of its noisy copies.

    The adversary sees the predicted class for any input of its choice, knows true labels, and can
    train shadows on the candidate rows. A row is called a member if the ratio is at least 1. Cost:
    at most `queries` queries per row, of the victim and of every shadow, for all rows (`label-lira`
    asks about 1,000); one more of every shadow, which without `levels` also answers up to 10,500
    about own rows.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        queries: copies of a row, over all levels.
        levels: of the noise, see ``label-lira``; None for five that fit the model.
        variance: of the distributions, see ``lira``.
    """

    name: ClassVar[str] = "dual-label"
    needs: ClassVar[Access] = Access.LABELS
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "algorithm 1, with signals of our own",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The signals are our own: those of `dual-lira`, of what the classes of noisy copies say in "
        "place of posteriors, half a copy added to each class, and that of `label-lira`, whose "
        "noise and levels they have. A row's score depends on the others asked. A row without a "
        "label scores 0 and is not called a member."
    )

    k: Annotated[int, Ge(2)] = 16
    queries: Annotated[int, Ge(8)] = 240
    levels: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] | None = None
    variance: Variance = "bayes"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online shadows."""
        return Shadows(self.k, "online")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the victim's signals with the shadows'."""
        rows = question.examples
        ask = of_labels(ctx, rows, self.levels or fitting_levels(ctx), self.queries)
        return likelihood_ratio(
            ask, oracle, rows, ctx.shadows,
            online=True, variance=self.variance, weigh=weights_of_traces,
        )  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [DualLabel()]
