"""Posterior-label MIA: a deep network on the posteriors and the true label, trained on one shadow.

Yang, Gohari, Topcu: Additive Logistic Mechanism for Privacy-Preserving Self-Supervised Learning.
arXiv 2022, appendices A.1 and B: the attack with which the paper measures its noise.

The adversary sees the posteriors of the candidate rows, knows their true labels, and owns one
shadow model, trained as the target is on the adversary's own rows. Steps:

1. Query the shadow on its members and on as many nonmembers, at most 2,000 rows together.
2. A record is the posterior vector followed by the true label, one-hot.
3. Train one network with five hidden ReLU layers, for all classes, to separate "in" from "out"
   records; apply it to the records of the victim.

Deviations: see the class. What to expect: like ``nn-mia``, but the network must learn by itself,
separately for each class, which posterior of a record is that of the true class. Compare it with
``metric-modified-entropy``, which has this built in. The paper reports accuracies of .62 (CIFAR10),
.61 (STL10) and .71 (CIFAR100) on fine-tuned SimCLR models without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import nn

from privbench import Access, Ge, Gt, Membership, MembershipAttack, Paper, Shadows, hookimpl, mlp
from privbench.toolbox.classifiers import member_odds

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class PosteriorLabelMIA(MembershipAttack):
    """Trains a network with five hidden layers on posteriors and one-hot label.

    Access: posteriors and true labels, one shadow. One query per row.

    Attributes:
        pairs: maximum number of records, half of them of members.
        depth: number of hidden ReLU layers.
        hidden: neurons of each; the paper does not say.
        epochs: passes over the records; the paper does not say.
        batch: records per update; Keras' default.
        lr: learning rate of Adam.
        steps: minimum number of updates, so that a small shadow set does not leave the network
            undertrained.
    """

    name: ClassVar[str] = "posterior-label-mia"
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Additive Logistic Mechanism for Privacy-Preserving Self-Supervised Learning",
        "Yang, Gohari, Topcu", "arXiv 2022", "appendices A.1 and B",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The paper gives depth, records and learning rate, and leaves the rest to Keras: batch 32, "
        "Glorot's initial weights and Adam are its defaults; 64 neurons and 50 epochs are ours "
        "(Keras' default of one epoch is 63 updates). That the label is one-hot is ours, too. At "
        "least 1,000 updates."
    )

    pairs: Annotated[int, Ge(2)] = 2000
    depth: Annotated[int, Ge(1)] = 5
    hidden: Annotated[int, Ge(1)] = 64
    epochs: Annotated[int, Ge(1)] = 50
    batch: Annotated[int, Ge(1)] = 32
    lr: Annotated[float, Gt(0)] = 1e-3
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the network's log-odds of "in"; 0 decides."""
        (shadow,) = ctx.shadows
        sides = shadow.world.members, shadow.nonmembers
        half = min(self.pairs // 2, *map(len, sides))
        inside, outside = (_records(shadow.oracle, _some(rows, half, ctx)) for rows in sides)
        widths = [inside.shape[1], *[self.hidden] * self.depth, 2]
        scores = member_odds(
            ctx.init(partial(_network, widths), "network"), inside, outside,
            _records(oracle, question.examples), epochs=self.epochs, steps=self.steps,
            batch=self.batch, lr=self.lr, generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0, {"pairs": float(2 * half)})


def _some(rows: Examples, n: int, ctx: AttackContext) -> Examples:
    """Select n of the rows, independently of their order."""
    return rows.select(ctx.uniform(rows, 1, "pairs").squeeze(1).argsort(stable=True)[:n])


def _records(oracle: Oracle, rows: Examples) -> Tensor:
    p = oracle.posteriors(rows)
    return paired(p, rows.y.to(p.device))


def paired(posteriors: Tensor, y: Tensor) -> Tensor:
    """Append the one-hot label to the posteriors; y = -1 (unknown) is all zeros.

    Args:
        posteriors: (n, k).
        y: (n,) classes.

    Returns:
        (n, 2k) float32.

    >>> paired(torch.tensor([[0.25, 0.75]] * 2), torch.tensor([1, -1])).tolist()
    [[0.25, 0.75, 0.0, 1.0], [0.25, 0.75, 0.0, 0.0]]
    """
    label = y[:, None] == torch.arange(posteriors.shape[1], device=y.device)
    return torch.cat([posteriors, label.to(posteriors.dtype)], dim=1).float()


def _network(widths: list[int]) -> nn.Module:
    """Build a ReLU network with Keras' initial weights: Glorot's, zero biases."""
    network = mlp(widths)
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [PosteriorLabelMIA()]
