"""LiRA on an encoder and its head: all that training on a row leaves in embeddings and posteriors.

Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses are Misleading. CCS 2024, the
attack on encoders (``lira-encoder``). Suri, Zhang, Evans: Do Parameters Reveal More than Loss for
Membership Inference? TMLR 2024, the inverse Hessian attack (IHA). The likelihood ratio follows
Carlini and others, IEEE S&P 2022.

Training leaves several traces, and a row that leaves little of one may leave another. The adversary
here sees embeddings and posteriors, knows true labels, and owns k shadow models trained on subsets
of the candidate rows. Steps:

1. Signals of the embeddings, as ``lira-encoder`` has them online: similarity of views, leverage,
   and what regressions on the embeddings leave of the label.
2. A head is a linear map of embeddings. A member moves it by the inverse Hessian times the member's
   gradient: most in directions that few embeddings have, where noise on the weights moves it no
   more than elsewhere. A row's own logits add up all directions, so such noise hides the move from
   ``lira``. So: a ridge regression of log-posteriors on embeddings, over all candidates, at five
   strengths. Six bands of a row's logits, from rare directions to common ones: what the weakest
   regression leaves, what each next one leaves in addition, and the rest. Their signals are the
   bands along ``onehot(label) - mean posterior of the shadows``, the way that training on the row
   pushes its logits, made a unit vector so that all rows are in one unit.
3. The signal of ``lira``: ``log p_y - log(1 - p_y)``.
4. Add up the signals by the weights that tell shadows with a row best from shadows without it
   (Fisher's discriminant). Score: the log-likelihood ratio.

Deviations: see the class. What to expect: SimCLR on digits (3 seeds, ``privbench run --attack
lira-head --attack lira-encoder --set lira-encoder.online=true --attack lira --target simclr
--defense talos --seeds 3``): AUC .991 (.984, .834), under ``talos`` .782 (.760, .686). Where a head
is trained on a public encoder, more than ``lira`` (digits, 2 seeds, ``--attack lira --attack
lira-head --defense laplace --set laplace.epsilon=100 --protocol alm --seeds 2``): .919 (.839), and
.652 (.585) with noise on the weights. On CIFAR-10 (leaderboards/experiments/stronger.md) .866
(.825), and .676 (.558), by bands alone. On networks that train both see the board
digits-defenses-supervised. 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio
from privbench.toolbox.traces import of_traces, weights_of_traces

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LiRAHead(MembershipAttack):
    """The likelihood ratio of a row's place, its views, and its logits in rare directions.

    The adversary has embeddings, posteriors and labels, and can train shadows on the candidate
    rows. A row is called a member if the ratio is at least 1. Two queries per row, and `views` more
    on images that may be augmented.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        views: augmented views per row, shared with ``lira-encoder``.
        variance: of the distributions, see ``lira``.
    """

    name: ClassVar[str] = "lira-head"
    version: ClassVar[int] = 2
    needs: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Do Parameters Reveal More than Loss for Membership Inference?", "Suri, Zhang, Evans",
        "TMLR 2024", "the inverse Hessian attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "One score of two papers' signals and of our own; for those of embeddings see "
        "`lira-encoder`. The adversary of the inverse Hessian attack has the weights and all other "
        "training rows, and needs no shadows. "
        "Here the head is read from its answers, the Hessian is that of a linear regression on the "
        "candidates' embeddings (the authors': of the loss, damped), its damping is a mix of five "
        "that shadows choose, and shadows say what a row's score is without it. A row without a "
        "label scores 0 and is not called a member. A row's score depends on the others asked. "
        "Posteriors of 0 count as the smallest other one, so that they do not rule the regression."
    )

    k: Annotated[int, Ge(2)] = 16
    views: Annotated[int, Ge(2)] = 10
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
        ask = of_traces(ctx, rows, views=self.views, posteriors=True)
        return likelihood_ratio(
            ask, oracle, rows, ctx.shadows,
            online=True, variance=self.variance, weigh=weights_of_traces,
        )  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAHead()]
