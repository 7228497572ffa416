"""LiRA on a classifier's head: what its logits hold in directions that few embeddings have.

Suri, Zhang, Evans: Do Parameters Reveal More than Loss for Membership Inference? TMLR 2024, the
inverse Hessian attack (IHA); the likelihood ratio follows Carlini and others, IEEE S&P 2022.

A head is a linear map of embeddings. A member moves it by the inverse Hessian times the member's
gradient: most in directions that few embeddings have, where noise on the weights moves it no more
than elsewhere. A row's own logits add up all directions, so such noise hides the move from
``lira``. The adversary here sees embeddings and posteriors, knows true labels, and owns k shadow
models trained on subsets of the candidate rows. Steps:

1. For each model, a ridge regression of log-posteriors on embeddings, over all candidates, at five
   strengths. What it leaves unexplained lies mostly in directions that are rarer than the strength,
   or is no linear function of the embeddings.
2. Six bands of a row's logits, from rare directions to common ones: what the weakest regression
   leaves, what each next one leaves in addition, and the rest.
3. Signals of a row: its bands along ``onehot(label) - mean posterior of the shadows``, the way that
   training on the row pushes its logits, made a unit vector so that all rows are in one unit.
4. Add up the bands by the weights that tell shadows with a row best from shadows without it
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
from torch.nn import functional as F

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood import ZERO
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

#: Strengths of the ridge regressions, in units of the mean variance of an embedding's numbers.
STRENGTHS = (0.003, 0.03, 0.3, 3.0, 30.0)
#: Embeddings that vary by less, as a share of their mean square, do not vary; nor do zeros.
RESOLUTION, TINY = 1e-14, 1e-30


@dataclass(frozen=True)
class LiRAHead(MembershipAttack):
    """The likelihood ratio of a row's logits, with the rare directions of the embeddings apart.

    The adversary has embeddings, posteriors and labels, and can train shadows on the candidate
    rows. A row is called a member if the ratio is at least 1. Two queries per row.

    Attributes:
        k: number of shadow models, each a full training, shared with ``lira``.
        variance: of the distributions, see ``lira``.
    """

    name: ClassVar[str] = "lira-head"
    needs: ClassVar[Access] = Access.POSTERIORS | Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Do Parameters Reveal More than Loss for Membership Inference?", "Suri, Zhang, Evans",
        "TMLR 2024", "the inverse Hessian attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The authors' adversary has the weights and all other training rows, and needs no shadows. "
        "Here the head is read from its answers, the Hessian is that of a linear regression on the "
        "candidates' embeddings (the authors': of the loss, damped), its damping is a mix of five "
        "that shadows choose, and shadows say what a row's score is without it. A row without a "
        "label scores 0 and is not called a member. A row's score depends on the others asked. "
        "Posteriors of 0 count as the smallest other one, so that they do not rule the regression."
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
        """Score (n,) by comparing the victim's bands with the shadows'."""
        rows = question.examples
        usual = torch.stack([shadow.oracle.posteriors(rows) for shadow in ctx.shadows]).mean(0)
        pull = F.normalize(F.one_hot(rows.y.clamp_min(0), usual.shape[1]) - usual, dim=1)
        pull[rows.y < 0] = torch.nan

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            return bands(oracle.embeddings(rows), oracle.log_posteriors(rows), pull)

        return likelihood_ratio(ask, oracle, rows, ctx.shadows, online=True, variance=self.variance)


def bands(embeddings: Tensor, log_p: Tensor, pull: Tensor) -> Tensor:
    """Return how far each band of a row's logits goes along its pull, the rarest directions first.

    Args:
        embeddings: (n, d).
        log_p: (n, classes) log-posteriors.
        pull: (n, classes) direction in logits.

    Returns:
        (n, 6) float64. Their sum is the product of ``pull`` and the logits, after the mean of all
        rows was taken from these.

    >>> spread = torch.tensor([[10.0, 0.0], [-10.0, 0.0], [0.0, 0.1], [0.0, -0.1]])
    >>> log_p = (spread @ torch.tensor([[0.1, 0.0], [10.0, 0.0]])).log_softmax(1)
    >>> towards = torch.tensor([[1.0, -1.0]] * 4)
    >>> bands(spread, log_p, towards)[[0, 2]].round(decimals=2)  # a common direction, a rare one
    tensor([[0.0000, 0.0100, 0.1200, 0.4700, 0.3400, 0.0600],
            [0.9400, 0.0600, 0.0100, 0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    x, y = embeddings.double(), log_p.double()
    some = y > ZERO
    y = torch.where(some, y, torch.where(some, y, 0.0).min())
    y = y - y.mean(1, keepdim=True)
    least = RESOLUTION * x.square().mean() + TINY
    x, y = x - x.mean(0), y - y.mean(0)
    own, shared = x.T @ x / len(x), x.T @ y / len(x)
    unit = torch.maximum(own.diagonal().mean(), least)
    eye = torch.eye(len(own), dtype=own.dtype, device=own.device)
    left = [y - x @ torch.linalg.solve(own + part * unit * eye, shared) for part in STRENGTHS]
    along = (torch.stack([*left, y], dim=1) * pull.unsqueeze(1)).sum(2)
    return along.diff(dim=1, prepend=torch.zeros_like(along[:, :1]))


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAHead()]
