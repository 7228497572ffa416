"""LpLA: how likely is the norm of a row's embedding among members, and among nonmembers?

Sun, Hu, Luo, Zhang, Zhang, Yuan, Zhang: When Better Features Mean Greater Risks: The
Performance-Privacy Trade-Off in Contrastive Learning. AsiaCCS 2025, the embedding Lp-norm
likelihood attack.

The adversary queries the encoder for embeddings, and owns k shadow encoders trained as the target
is. It needs neither labels nor views. Steps:

1. Signal of a row: the p-norm of its embedding.
2. Fit one Gaussian to the norms of the shadows' members and one to those of their nonmembers.
3. Score: log-likelihood ratio of the row's norm under the first to that under the second.

Deviations: see the class. What to expect: one query per row and one shadow, but one distribution
for all rows, so less than ``lira-encoder``; nothing on an encoder that releases embeddings of one
length, and 0.5 on an untrained one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Access, Ge, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.likelihood_ratio import fit

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LpLA(MembershipAttack):
    """The likelihood ratio of the embedding's norm among members to that among nonmembers.

    The adversary has embeddings, and shadow encoders trained on its own rows. A row is called a
    member if the ratio is at least 1. Cost: one query per row.

    Attributes:
        k: number of shadow encoders, each a full training.
        p: of the norm; the larger, the closer to the largest component.
    """

    name: ClassVar[str] = "lpla"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "When Better Features Mean Greater Risks: The Performance-Privacy Trade-Off in "
        "Contrastive Learning", "Sun, Hu, Luo, Zhang, Zhang, Yuan, Zhang", "AsiaCCS 2025",
        "embedding Lp-norm likelihood attack (LpLA)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Only the abstract could be checked (the authors' repository holds no code): that the "
        "densities are Gaussians of a shadow's members and nonmembers, p = 2, one shadow and the "
        "threshold 0 are choices made here."
    )

    k: Annotated[int, Ge(1)] = 1
    p: Annotated[float, Ge(1)] = 2.0

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` offline shadows."""
        return Shadows(self.k, "offline")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the log-likelihood ratio of each row's norm."""
        asked = self._norms(oracle, question.examples)
        members = [self._norms(s.oracle, s.world.members) for s in ctx.shadows]
        others = [self._norms(s.oracle, s.nonmembers) for s in ctx.shadows]
        scores = log_ratio(asked, torch.cat(members), torch.cat(others))
        notes = {
            "mean norm of members": float(torch.cat(members).mean()),
            "mean norm of nonmembers": float(torch.cat(others).mean()),
        }
        return Membership(scores, scores >= 0, notes)

    def _norms(self, oracle: Oracle, rows: Examples) -> Tensor:
        """Return the p-norms (n,) float64 of the rows' embeddings."""
        return torch.linalg.vector_norm(oracle.embeddings(rows).double(), self.p, dim=1)  # type: ignore[no-any-return]


def log_ratio(asked: Tensor, members: Tensor, others: Tensor) -> Tensor:
    """Return the log-likelihood ratio (n,) of numbers under two Gaussians.

    Args:
        asked: (n,).
        members: (m,) numbers that the first Gaussian is fitted to.
        others: (l,) numbers that the second is fitted to.

    >>> one, two = torch.tensor([3.0, 5.0]), torch.tensor([-1.0, 1.0])
    >>> [round(float(ratio), 5) for ratio in log_ratio(torch.tensor([2.0, 4.0]), one, two)]
    [0.0, 4.0]
    """
    first, second = (
        fit(drawn[:, None, None], torch.ones_like(drawn[:, None]).bool(), "mean", "per-example")
        for drawn in (members, others)
    )
    return (first.log_density(asked[:, None]) - second.log_density(asked[:, None])).squeeze(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LpLA()]
