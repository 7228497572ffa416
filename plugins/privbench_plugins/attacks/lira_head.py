"""LiRA on a head and its encoder: logits in directions that few embeddings have, and close views.

Suri, Zhang, Evans: Do Parameters Reveal More than Loss for Membership Inference? TMLR 2024, the
inverse Hessian attack (IHA). Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses
are Misleading. CCS 2024, the attack on encoders (``lira-encoder``). The likelihood ratio follows
Carlini and others, IEEE S&P 2022.

A head is a linear map of embeddings. A member moves it by the inverse Hessian times the member's
gradient: most in directions that few embeddings have, where noise on the weights moves it no more
than elsewhere. A row's own logits add up all directions, so such noise hides the move from
``lira``. An encoder that trained on a row puts views of it close together. These are two traces of
one training, and a row that leaves little of the one may leave the other. The adversary here sees
embeddings and posteriors, knows true labels, and owns k shadow models trained on subsets of the
candidate rows. Steps:

1. For each model, a ridge regression of log-posteriors on embeddings, over all candidates, at five
   strengths. What it leaves unexplained lies mostly in directions that are rarer than the strength,
   or is no linear function of the embeddings.
2. Six bands of a row's logits, from rare directions to common ones: what the weakest regression
   leaves, what each next one leaves in addition, and the rest.
3. Signals of a row: its bands along ``onehot(label) - mean posterior of the shadows``, the way that
   training on the row pushes its logits, made a unit vector so that all rows are in one unit.
4. On images that may be augmented one more signal: how close the embeddings of ten views of the row
   lie, as in ``lira-encoder``.
5. Add up the signals by the weights that tell shadows with a row best from shadows without it
   (Fisher's discriminant, as views in ``lira``). Score: the log-likelihood ratio.

Deviations: see the class. What to expect: more than ``lira`` with the same shadows where a head is
trained on a public encoder. On digits (2 seeds, ``privbench run --attack lira --attack lira-head
--defense laplace --set laplace.epsilon=100 --protocol alm --seeds 2``) AUC .937 without a defense
(``lira`` .837), and .648 with noise on the weights (.585). On CIFAR-10 (leaderboards/experiments/
stronger.md) .866 (.825), and .676 (.558). On networks that train both see the board
digits-defenses-supervised. 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.head import of_bands
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio
from privbench.toolbox.similarity import VIEWS, has_views, similarity

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LiRAHead(MembershipAttack):
    """The likelihood ratio of a row's logits, by rare directions of embeddings, and of its views.

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
        "One score of two papers' signals; that of the second as in `lira-encoder`. The adversary "
        "of the first has the weights and all other training rows, and needs no shadows. "
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
        logits = of_bands(ctx.shadows, rows)

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            found = logits(oracle, rows)
            if not has_views(ctx.card):
                return found
            views = oracle.embeddings(ctx.views(rows, VIEWS, self.views))
            return torch.cat([found, similarity(views).unsqueeze(1)], dim=1)

        return likelihood_ratio(ask, oracle, rows, ctx.shadows, online=True, variance=self.variance)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAHead()]
