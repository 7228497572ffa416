"""EncoderMI: members' augmented views lie closer together in an encoder's feature space.

Liu, Jia, Qu, Gong: EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive
Learning. CCS 2021, section 4, algorithm 1.

The adversary queries the encoder for embeddings and owns one shadow encoder with known members
and nonmembers. Steps:

1. Make n augmented views of each row. Compute their embeddings (from the backbone, not from the
   projection head) and the n(n-1)/2 similarities of all pairs: cosines, or two alternatives that
   the paper compares with them.
2. Train a classifier of these similarities on the shadow: V, a network on the sorted vector; S, a
   network on the set; T, a threshold on the mean.

Deviations: see each class. What to expect: the signal is overfitting of the encoder, so the attack
needs small member sets and many epochs; an untrained encoder gives 0.5.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from privbench import (
    Access,
    Augmentation,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    best_threshold,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import member_odds

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

PAPER = Paper(
    "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
    "Liu, Jia, Qu, Gong", "CCS 2021", "section 4, algorithm 1",
)  # fmt: skip
VIEWS = Augmentation(crop=(0.2, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
Similarity = Literal["cosine", "correlation", "euclidean"]


@dataclass(frozen=True)
class _EncoderMI(MembershipAttack):
    """Base of the three variants: views, similarities, one shadow.

    Attributes:
        n: views per row, giving n(n-1)/2 similarities.
        augmentation: how views are made (the adversary's guess of the provider's augmentation),
            narrowed to what the dataset allows.
        similarity: of two embeddings: their cosine, their Pearson correlation, or minus their
            Euclidean distance.
    """

    needs: ClassVar[Access] = Access.EMBEDDINGS
    requires: ClassVar[tuple[str, ...]] = ("images",)
    paper: ClassVar[Paper] = PAPER

    n: Annotated[int, Ge(2)] = 10
    augmentation: Augmentation = VIEWS
    similarity: Similarity = "cosine"

    @property
    def shadows(self) -> Shadows:
        """Request one shadow encoder."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score rows by the similarities of their views; all fitting is done on the shadow."""
        (shadow,) = ctx.shadows
        inside = self._similarities(shadow.oracle, shadow.world.members, ctx)
        outside = self._similarities(shadow.oracle, shadow.nonmembers, ctx)
        asked = self._similarities(oracle, question.examples, ctx)
        return self._compare(asked, torch.cat([inside, outside]), len(inside), ctx)

    def _similarities(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> Tensor:
        """Return pairwise similarities (rows, n(n-1)/2)."""
        views = ctx.views(rows, self.augmentation, self.n)
        return pairwise(oracle.embeddings(views), self.similarity)

    @abstractmethod
    def _compare(
        self, asked: Tensor, known: Tensor, members: int, ctx: AttackContext
    ) -> Membership:
        """Score ``asked`` after fitting on ``known``, whose first ``members`` rows are members."""


@dataclass(frozen=True)
class EncoderMIThreshold(_EncoderMI):
    """EncoderMI-T: compares the mean similarity with the best threshold on the shadow.

    The threshold is the exact optimum over the shadow set (section 4.2): it minimises the number of
    members below it plus nonmembers at or above it; a row at the threshold counts as a member.
    """

    name: ClassVar[str] = "encodermi-t"
    deviations: ClassVar[str] = "Without blur in the attacker's views, as in the authors' module."

    def _compare(
        self, asked: Tensor, known: Tensor, members: int, ctx: AttackContext
    ) -> Membership:
        del ctx
        scores = asked.double().mean(1).cpu()
        means = known.double().mean(1).cpu()
        threshold = best_threshold(means.numpy(), (torch.arange(len(means)) < members).numpy())
        decisions = torch.from_numpy(threshold.decide(scores.numpy()))
        return Membership(scores, decisions, {"threshold": threshold.overall})


@dataclass(frozen=True)
class _Trained(_EncoderMI):
    """Base of V and S: a classifier of similarities, trained on the shadow.

    Attributes:
        epochs: passes over the shadow's rows.
        batch: rows per step.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        hidden: neurons per hidden layer.
        steps: minimum number of updates, so that a small shadow set does not leave it undertrained.
        clip: largest gradient norm; None for no clipping.
    """

    epochs: Annotated[int, Ge(1)] = 300
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-4
    weight_decay: Annotated[float, Ge(0)] = 1e-6
    hidden: Annotated[int, Ge(1)] = 256
    steps: Annotated[int, Ge(0)] = 3000
    clip: Annotated[float, Gt(0)] | None = None

    def _compare(
        self, asked: Tensor, known: Tensor, members: int, ctx: AttackContext
    ) -> Membership:
        # All similarities share one scale and shift, taken from the shadow, so that their level,
        # which is the signal, is kept. Standardising each set separately would remove it.
        centre, spread = known.mean(), known.std().clamp_min(1e-6)
        x, asked = (self._arranged((of - centre) / spread) for of in (known, asked))
        scores = member_odds(
            ctx.init(self._network, "classifier"), x[:members], x[members:], asked,
            epochs=self.epochs, steps=self.steps, batch=self.batch, lr=self.lr,
            weight_decay=self.weight_decay, clip=self.clip, generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0)

    def _arranged(self, similarities: Tensor) -> Tensor:
        return similarities

    @abstractmethod
    def _network(self) -> nn.Module:
        """Build untrained: similarities (rows, pairs) -> logits (rows, 2) of nonmember, member."""


@dataclass(frozen=True)
class EncoderMIVector(_Trained):
    """EncoderMI-V: a network on the sorted similarities (two hidden layers of 256)."""

    name: ClassVar[str] = "encodermi-v"
    deviations: ClassVar[str] = (
        "ReLU (the authors' code derives from a tanh network); similarities are shifted and scaled "
        "by one mean and deviation of the shadow's; at least 3,000 updates, which the paper's 300 "
        "epochs of 20,000 rows exceed by far and 300 epochs of a small shadow set do not."
    )

    def _arranged(self, similarities: Tensor) -> Tensor:
        return similarities.sort(1, descending=True).values

    def _network(self) -> nn.Module:
        return mlp([self.n * (self.n - 1) // 2, self.hidden, self.hidden, 2])


@dataclass(frozen=True)
class EncoderMISet(_Trained):
    """EncoderMI-S: a permutation-invariant network on the set of similarities.

    DeepSets as used by the authors (the equivariant point-cloud variant): three layers of
    tanh(W(x - maximum over the set)), the maximum over the set, then two layers with dropout.

    Attributes:
        dropout: dropout rate before each of the last two layers.
    """

    name: ClassVar[str] = "encodermi-s"
    deviations: ClassVar[str] = (
        "Elements are the similarities themselves, without the reference code's standardisation "
        "of each set (which deletes their level, the signal) and without its rotations and scales "
        "of point clouds; for the same reason the first layer does not subtract the maximum and "
        "the other two add their input back; "
        "Adam 1e-3, gradient norm 5 and weight decay 1e-7 as in the code (the paper says 1e-4), "
        "with torch's epsilon (theirs 1e-3); 64 neurons and at least 1,000 updates."
    )

    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 1e-7
    hidden: Annotated[int, Ge(1)] = 64
    steps: Annotated[int, Ge(0)] = 1000
    clip: Annotated[float, Gt(0)] | None = 5.0
    dropout: Annotated[float, Ge(0)] = 0.5

    def _network(self) -> nn.Module:
        return DeepSet(self.hidden, self.dropout)


class DeepSet(nn.Module):
    """Maps sets (n, pairs) of numbers to logits (n, 2), invariant to the order within a set."""

    def __init__(self, width: int, dropout: float) -> None:
        """Build the layers, each with ``width`` neurons."""
        super().__init__()
        self.first = nn.Linear(1, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.out = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout),
            nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map sets (n, pairs) to logits (n, 2)."""
        h = torch.tanh(self.first(x.unsqueeze(-1)))
        for layer in (self.second, self.third):
            h = torch.tanh(layer(h - h.amax(1, keepdim=True)) + h)
        logits: Tensor = self.out(h.amax(1))
        return logits


def pairwise(embeddings: Tensor, similarity: Similarity = "cosine") -> Tensor:
    """Return the similarities of all unordered pairs of views; higher is more similar.

    Args:
        embeddings: (rows, n, d).
        similarity: ``cosine``; ``correlation``, the cosine after each embedding's mean over its d
            coordinates is subtracted; or ``euclidean``, minus the distance.

    Returns:
        (rows, n(n-1)/2), pairs i < j in lexicographic order.

    >>> views = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]])
    >>> pairwise(views).tolist()
    [[0.0, 1.0, 0.0]]
    >>> pairwise(views, "correlation").round(decimals=4).tolist()
    [[-1.0, 1.0, -1.0]]
    >>> pairwise(views[:, ::2], "euclidean").tolist()
    [[-2.0]]
    """
    h = embeddings.float()
    if similarity == "euclidean":  # not by products, which lose the distance of close views
        alike = -torch.cdist(h, h, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        if similarity == "correlation":
            h = h - h.mean(-1, keepdim=True)
        unit = F.normalize(h, dim=-1)
        alike = unit @ unit.transpose(1, 2)
    n = h.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=h.device)
    return alike[:, first, second]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the three variants."""
    return [EncoderMIVector(), EncoderMISet(), EncoderMIThreshold()]
