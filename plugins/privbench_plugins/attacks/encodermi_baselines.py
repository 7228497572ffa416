"""EncoderMI's baselines A, B, C: attacks on a downstream classifier on top of the encoder.

Liu, Jia, Qu, Gong: EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive
Learning. CCS 2021, section 5.1, "Compared methods".

The adversary queries the encoder for embeddings, owns one shadow encoder with known members and
nonmembers, and has labelled rows of a downstream task. Steps:

1. Train linear classifiers on embeddings of the downstream rows: one on the victim's embeddings,
   one on the shadow's. The encoders are not changed.
2. Describe each row by the classifier's outputs: A, its sorted posteriors; B, whether it is
   correct on the row and on augmented views of it; C, its posteriors for one adversarial example
   per class.
3. Train a network with two hidden layers of 256 on the shadow's members and nonmembers; apply it
   to the candidate rows.

The downstream rows are the protocol's downstream part. If there is none, they are the rows of the
adversary's pool that are neither members nor nonmembers of the shadow.

Deviations: see each class. What to expect: a weak attack. The encoder's members are not members of
the classifier, which was trained on other rows, and most of what the encoder remembers is not in
the classifier's outputs (table 1 of the paper: A has accuracy .551 on CIFAR10, .543 on STL10, .473
on Tiny-ImageNet).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, cast

import torch
from torch import nn

from privbench import (
    Access,
    Augmentation,
    BadInputError,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    hookimpl,
    mlp,
)
from privbench.toolbox.classifiers import fit, logits, member_odds, scale
from privbench.toolbox.pgd import PGD, of_network

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import (
        Attack,
        AttackContext,
        Cell,
        Examples,
        MembershipQuestion,
        Oracle,
        Shadow,
        Views,
    )

PAPER = Paper(
    "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
    "Liu, Jia, Qu, Gong", "CCS 2021", "section 5.1, compared methods",
)  # fmt: skip
#: Augmentation of EncoderMI's views.
VIEWS = Augmentation(crop=(0.2, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
#: Deviations of all three baselines.
OURS = (
    "The downstream classifier is linear, on standardised embeddings, by Adam (the paper's is not "
    "described where it could be read). Features are standardised by the shadow's mean and "
    "deviation. At least 600 updates of the network, which 300 epochs of the paper's 20,000 rows "
    "exceed by far and those of a small shadow set do not. Network and training are EncoderMI-V's."
)


@dataclass(frozen=True)
class Downstream:
    """The adversary's linear classifier on the embeddings of an encoder.

    Attributes:
        oracle: the encoder.
        head: maps embeddings (n, d) to logits (n, k).
    """

    oracle: Oracle
    head: nn.Linear

    def log_posteriors(self, x: Tensor | Examples | Views) -> Tensor:
        """Return log-posteriors (n, k) float64, or (n, views, k); one query per row and view."""
        h = self.oracle.embeddings(x)
        return logits(self.head, h.flatten(0, -2)).log_softmax(1).view(*h.shape[:-1], -1)


@dataclass(frozen=True)
class _Baseline(MembershipAttack):
    """Base of the three baselines: two downstream classifiers, and a network on their outputs.

    Attributes:
        head_epochs: passes of a downstream classifier over its rows.
        head_batch: rows per update of a downstream classifier.
        head_lr: its learning rate of Adam.
        head_updates: its minimum number of updates.
        epochs: passes of the network over the shadow's rows.
        batch: rows per update of the network.
        lr: its learning rate of Adam.
        weight_decay: its L2 penalty.
        hidden: neurons of each of its two hidden layers.
        updates: its minimum number of updates, so that a small shadow set does not leave it
            undertrained.
    """

    needs: ClassVar[Access] = Access.EMBEDDINGS
    requires: ClassVar[tuple[str, ...]] = ("classes",)
    paper: ClassVar[Paper] = PAPER

    head_epochs: Annotated[int, Ge(1)] = 100
    head_batch: Annotated[int, Ge(1)] = 512
    head_lr: Annotated[float, Gt(0)] = 1e-2
    head_updates: Annotated[int, Ge(0)] = 300
    epochs: Annotated[int, Ge(1)] = 300
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-4
    weight_decay: Annotated[float, Ge(0)] = 1e-6
    hidden: Annotated[int, Ge(1)] = 256
    updates: Annotated[int, Ge(0)] = 600

    @property
    def shadows(self) -> Shadows:
        """Request one shadow encoder."""
        return Shadows(1)

    def incompatible(self, cell: Cell) -> str | None:
        """Require rows to train the downstream classifiers on."""
        if cell.pool is not None and cell.pool.classes is None:
            return (
                f"{self.name} trains a downstream classifier, and the adversary's rows of "
                f"{cell.pool.name} have no labels"
            )
        classes = cell.card.classes or 0
        sizes = cell.protocol.sizes(cell.card)
        spare = sizes["downstream"] or sizes["pool"] - 2 * sizes["members"]
        if spare < classes and cell.adversary.dataset is None:
            return (
                f"{self.name} trains a classifier of {classes} classes, and protocol "
                f"'{cell.protocol.name}' leaves {spare} rows for that (no downstream part, a pool "
                f"of {sizes['pool']} for a shadow's {sizes['members']} members and as many others)"
            )
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the network's log-odds of "member"; 0 decides."""
        (shadow,) = ctx.shadows
        rows = downstream_rows(shadow, ctx.auxiliary)
        theirs = Downstream(oracle, self._head(ctx.auxiliary_oracle, rows, ctx))
        mine = Downstream(shadow.oracle, self._head(shadow.oracle, rows, ctx))
        sides = shadow.world.members, shadow.nonmembers
        inside, outside = (self._features(mine, side, mine, ctx) for side in sides)
        asked = self._features(theirs, question.examples, mine, ctx)
        centre, spread = scale(torch.cat([inside, outside]))
        scores = member_odds(
            ctx.init(partial(mlp, [len(centre), self.hidden, self.hidden, 2]), "network"),
            *((x - centre) / spread for x in (inside, outside, asked)),
            epochs=self.epochs, steps=self.updates, batch=self.batch, lr=self.lr,
            weight_decay=self.weight_decay, generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0, {"downstream rows": float(len(rows))})

    def _head(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> nn.Linear:
        """Train a linear classifier on standardised embeddings; return one for raw embeddings."""
        h = oracle.embeddings(rows)
        y = rows.y.to(h.device)
        centre, spread = scale(h)
        build = partial(nn.Linear, h.shape[1], int(y.max()) + 1)
        head = cast("nn.Linear", ctx.init(build, "downstream"))
        fit(
            head, (h - centre) / spread, y, epochs=self.head_epochs, steps=self.head_updates,
            batch=self.head_batch, lr=self.head_lr, generator=ctx.generator("downstream batches"),
        ).requires_grad_(False)  # fmt: skip
        head.weight.div_(spread)
        head.bias.sub_(head.weight @ centre)
        return head

    @abstractmethod
    def _features(
        self, side: Downstream, rows: Examples, mine: Downstream, ctx: AttackContext
    ) -> Tensor:
        """Return features (n, f) float32 of the rows by ``side``; ``mine`` is the shadow's side."""


@dataclass(frozen=True)
class EncoderMIBaselineA(_Baseline):
    """Baseline A: a network on the sorted posteriors of a downstream classifier.

    Access: embeddings, one shadow encoder, labelled downstream rows; no labels of the candidate
    rows. Cost: one query per row, and one per downstream row.
    """

    name: ClassVar[str] = "encodermi-baseline-a"
    deviations: ClassVar[str] = OURS

    def _features(
        self, side: Downstream, rows: Examples, mine: Downstream, ctx: AttackContext
    ) -> Tensor:
        del mine, ctx
        return side.log_posteriors(rows).exp().float().sort(1, descending=True).values


@dataclass(frozen=True)
class EncoderMIBaselineB(_Baseline):
    """Baseline B: a network on e + 1 bits: is the classifier correct on the row and on each view?

    Access: embeddings, one shadow encoder, labelled downstream rows, and the true labels of the
    candidate rows. Cost: e + 1 queries per row (11), and one per downstream row. Where some
    rows have no label, the game shows none, and each row has its predicted class as the label.

    Attributes:
        e: augmented views per row.
        augmentation: how views are made, narrowed to what the dataset allows.
    """

    name: ClassVar[str] = "encodermi-baseline-b"
    misses_planted: ClassVar[str] = (
        "it asks whether a classifier trained on other rows is right about them"
    )
    requires: ClassVar[tuple[str, ...]] = ("classes", "images")
    deviations: ClassVar[str] = (
        f"{OURS} The views are those of EncoderMI's own attacks; the paper does not say which."
    )

    e: Annotated[int, Ge(1)] = 10
    augmentation: Augmentation = VIEWS

    def incompatible(self, cell: Cell) -> str | None:
        """Require one set of classes for all rows."""
        if cell.adversary.dataset is not None:
            return f"{self.name} compares classes, and those of another dataset's pool are others"
        return super().incompatible(cell)

    def _features(
        self, side: Downstream, rows: Examples, mine: Downstream, ctx: AttackContext
    ) -> Tensor:
        del mine
        plain = side.log_posteriors(rows).argmax(1)
        views = side.log_posteriors(ctx.views(rows, self.augmentation, self.e)).argmax(2)
        return bits(torch.cat([plain[:, None], views], dim=1), rows.y.to(plain.device))


@dataclass(frozen=True)
class EncoderMIBaselineC(PGD, _Baseline):
    """Baseline C: a network on the posteriors of one adversarial example per downstream class.

    Access: embeddings, one shadow encoder, labelled downstream rows; no labels of the candidate
    rows, so each of the k classes is a target, and one network serves all classes. Examples are
    crafted on the shadow and its downstream classifier, those for the victim too. Cost: k queries
    per row, and one per downstream row.
    """

    name: ClassVar[str] = "encodermi-baseline-c"
    misses_planted: ClassVar[str] = (
        "it crafts examples on the shadow's encoder, and the leak is near the members themselves"
    )
    deviations: ClassVar[str] = (
        f"{OURS} Steps and step size of the adversarial examples, which the paper does not give, "
        "are those of Song, Shokri and Mittal's code (20 of 1/255)."
    )

    def _features(
        self, side: Downstream, rows: Examples, mine: Downstream, ctx: AttackContext
    ) -> Tensor:
        (shadow,) = ctx.shadows
        gradient = of_network(lambda x: mine.head(shadow.model.encode(x).float()))
        k = mine.head.out_features
        classes = torch.arange(k, device=ctx.device).expand(len(rows), k)
        made = self.answers(side.log_posteriors, rows, classes, gradient, ctx, targeted=True)
        return made.exp().float().flatten(1)


def downstream_rows(shadow: Shadow, auxiliary: Examples) -> Examples:
    """Return labelled rows that are neither members nor nonmembers of either encoder.

    Raises:
        BadInputError: if they have fewer than two classes.
    """
    rows = shadow.world.parts.get("downstream")
    if rows is None or not len(rows):
        taken = torch.cat([shadow.world.members.index, shadow.nonmembers.index])
        rows = auxiliary.select(~torch.isin(auxiliary.index, taken))
    rows = rows.select(rows.y >= 0)
    classes = int(rows.y.bincount().count_nonzero())
    if classes < 2:  # noqa: PLR2004
        raise BadInputError(
            "encodermi-baseline-* needs downstream rows with labels of two classes or more, and "
            f"has {len(rows)} of {classes}: give the protocol a downstream part or a larger pool"
        )
    return rows


def bits(predicted: Tensor, y: Tensor) -> Tensor:
    """Mark correct predictions: (n, 1 + e) classes, the row's own first, to float32 0 and 1.

    >>> bits(torch.tensor([[1, 1, 2], [0, 0, 2]]), torch.tensor([2, -1])).tolist()
    [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    y = torch.where(y < 0, predicted[:, 0], y)
    return (predicted == y[:, None]).float()


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the three baselines."""
    return [EncoderMIBaselineA(), EncoderMIBaselineB(), EncoderMIBaselineC()]
