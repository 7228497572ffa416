"""NN-MIA: one shadow, one small network on the two largest posteriors and on correctness.

He, Zhang: Quantifying and Mitigating Privacy Risks of Contrastive Learning. CCS 2021, section 3
(the network-based attack), after Salem and others: ML-Leaks. NDSS 2019, adversary 1.

The adversary sees the posteriors of the candidate rows, knows their true labels, and owns one
shadow model, trained as the target is on the adversary's own rows. Steps:

1. Query the shadow on its members and on as many nonmembers.
2. Compute three numbers per row: the two largest posteriors, descending, and whether the most
   likely class is the true one. They do not depend on which class it is.
3. Train one network for all classes on these; apply it to the same numbers from the victim.

Deviations: see the class. What to expect: weaker than ``shokri``, with one shadow training instead
of k. On ``digits`` AUC .643 with a ``supervised`` victim and .706 with ``simclr``
(leaderboards/digits-attacks.md); the paper has the reverse on CIFAR-100 with ResNet-18, .941
supervised and .640 contrastive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import Access, Ge, Gt, Membership, MembershipAttack, Paper, Shadows, hookimpl, mlp
from privbench.toolbox.classifiers import fan_in_normal, member_odds

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class NNMIA(MembershipAttack):
    """Trains a network on the two largest posteriors and a correctness bit.

    Attributes:
        hidden: neurons of each of the two hidden layers.
        epochs: passes over the shadow's rows.
        batch: rows per update.
        lr: learning rate of Adam.
        steps: minimum number of updates, so that a small shadow set does not leave the network
            undertrained.
    """

    name: ClassVar[str] = "nn-mia"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Quantifying and Mitigating Privacy Risks of Contrastive Learning", "He, Zhang",
        "CCS 2021", "section 3, NN-based attack",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "No ReLU on the two logits (the authors' code has one, which can stop all gradients); "
        "Adam at 1e-3 as in their code (the paper says 0.05). At least 1,000 updates: 100 epochs "
        "are 11,800 on the paper's 30,000 shadow rows of CIFAR10, but 100 on 200 rows, which "
        "leaves the network untrained (.87 on a toy where 1,000 updates reach 1)."
    )

    hidden: Annotated[int, Ge(1)] = 32
    epochs: Annotated[int, Ge(1)] = 100
    batch: Annotated[int, Ge(1)] = 256
    lr: Annotated[float, Gt(0)] = 1e-3
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the network's log-odds of "member"; 0 decides."""
        (shadow,) = ctx.shadows
        scores = member_odds(
            ctx.init(self._network, "network"),
            _features(shadow.oracle, shadow.world.members),
            _features(shadow.oracle, shadow.nonmembers),
            _features(oracle, question.examples),
            epochs=self.epochs, steps=self.steps, batch=self.batch, lr=self.lr,
            generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0)

    def _network(self) -> nn.Module:
        """Build 3 -> hidden -> hidden -> 2, weights from N(0, 1 / fan-in), zero biases."""
        return fan_in_normal(mlp([3, self.hidden, self.hidden, 2]))


def _features(oracle: Oracle, rows: Examples) -> Tensor:
    p = oracle.posteriors(rows)
    return talos_features(p, rows.y.to(p.device))


def talos_features(posteriors: Tensor, y: Tensor) -> Tensor:
    """Return the two largest posteriors, descending, and whether the most likely class is y.

    Args:
        posteriors: (n, k), k at least 2.
        y: (n,) true classes; -1 (unknown) counts as incorrect.

    Returns:
        (n, 3) float32.

    >>> talos_features(torch.tensor([[0.1, 0.6, 0.3]] * 2), torch.tensor([1, 0]))
    tensor([[0.6000, 0.3000, 1.0000],
            [0.6000, 0.3000, 0.0000]])
    """
    top, classes = posteriors.topk(2)
    correct = classes[:, :1] == y[:, None]
    return torch.cat([top, correct.to(top.dtype)], dim=1).float()


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [NNMIA()]
