"""Posterior-label MIA: a deep network on the posteriors and the true label, from one shadow.

Yang, Gohari, Topcu: Additive Logistic Mechanism for Privacy-Preserving Self-Supervised Learning.
arXiv 2022, appendices A.1 and B: the attack that its noise was measured with.

The adversary sees the posteriors of the rows asked about, knows their true labels, and owns one
shadow model: the victim's target trained on rows of its own. Steps:

1. Ask the shadow about members and as many nonmembers of it, 2,000 rows together at most.
2. A record is the posterior vector followed by the true label, one-hot.
3. One network with five hidden ReLU layers, for all classes, learns "in" and "out" from the
   records; put it to the records of the victim.

Deviations: see the class. What to expect: like ``nn-mia``, but what belongs together in a record
(the posterior of the true class) the network must find out by itself, for each class anew: read it
beside ``metric-modified-entropy``, which is told. The paper has accuracies of .62 (CIFAR10), .61
(STL10) and .71 (CIFAR100) on fine-tuned SimCLR models without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import nn

from privbench import Access, Membership, MembershipAttack, Paper, Shadows, hookimpl, mlp
from privbench_plugins._shared.classifiers import fit, log_odds, logits

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class PosteriorLabelMIA(MembershipAttack):
    """A network with five hidden layers on posteriors and one-hot label.

    Access: posteriors and true labels, one shadow. One query per row.

    Attributes:
        pairs: records at most, half of them of members.
        depth: hidden ReLU layers.
        hidden: neurons of each; the paper does not say.
        epochs: passes over the records; the paper does not say.
        batch: records per update; Keras' default.
        lr: Adam's.
        steps: updates at least, so that a small shadow set does not leave the network untrained.
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
        """One, in a world of the adversary's own."""
        return Shadows(1)

    def incompatible(self, cell: Cell) -> str | None:
        """There must be classes to have posteriors of."""
        if cell.card.classes is None:
            return f"{self.name} reads class posteriors, and {cell.card.name} has no classes"
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the network's log-odds of "in"; 0 decides."""
        (shadow,) = ctx.shadows
        sides = shadow.world.members, shadow.nonmembers
        half = min(self.pairs // 2, *map(len, sides))
        x = torch.cat([_records(shadow.oracle, _some(rows, half, ctx)) for rows in sides])
        y = (torch.arange(2 * half, device=x.device) < half).long()
        widths = [x.shape[1], *[self.hidden] * self.depth, 2]
        network = fit(
            ctx.init(partial(_network, widths), "network"), x, y, epochs=self.epochs,
            steps=self.steps, batch=self.batch, lr=self.lr, generator=ctx.generator("batches"),
        )  # fmt: skip
        scores = log_odds(logits(network, _records(oracle, question.examples)))
        return Membership(scores, scores >= 0, {"pairs": float(2 * half)})


def _some(rows: Examples, n: int, ctx: AttackContext) -> Examples:
    """n of the rows, whatever order they are in."""
    return rows.select(ctx.uniform(rows, 1, "pairs").squeeze(1).argsort(stable=True)[:n])


def _records(oracle: Oracle, rows: Examples) -> Tensor:
    p = oracle.posteriors(rows)
    return paired(p, rows.y.to(p.device))


def paired(posteriors: Tensor, y: Tensor) -> Tensor:
    """Posteriors followed by the one-hot label; y = -1 (unknown) is all zeros.

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
    """ReLU network with Keras' initial weights: Glorot's, zero biases."""
    network = mlp(widths)
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [PosteriorLabelMIA()]
