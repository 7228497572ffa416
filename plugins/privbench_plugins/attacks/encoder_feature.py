"""Encoder feature: a classifier on the embedding itself, the simplest baseline of encoder attacks.

Liu, Jia, Qu, Gong: EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive
Learning. CCS 2021, section 5: the last of its five baselines, two of which are for encoders. The
paper's text on this one was not available: its definition here (the row's unchanged feature vector,
fed into the classifier of EncoderMI-V) is from memory.

The adversary queries the encoder for embeddings and owns one shadow encoder with known members
and nonmembers. Steps:

1. Compute the embedding of each row, not augmented.
2. Standardise each dimension by its mean and standard deviation over the shadow's rows.
3. Train a network with two hidden layers of 256 on the shadow; apply it to the victim's embeddings.

Deviations: see the class. What to expect: near 0.5 if victim and shadow were trained separately.
Dimension 7 of the shadow does not correspond to dimension 7 of the victim, so what the network
learns does not transfer, except what does not depend on the axes (a norm, a common
initialisation). The attack is therefore a floor for ``encodermi-*``, whose similarities do not
depend on the axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
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
from privbench.toolbox.classifiers import member_odds, scale

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class EncoderFeature(MembershipAttack):
    """Trains a network on the raw embedding.

    Access: embeddings, one shadow encoder; no labels. One query per row.

    Attributes:
        hidden: neurons of each of the two hidden layers.
        epochs: passes over the shadow's rows.
        batch: rows per update.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        steps: minimum number of updates, so that a small shadow set does not leave the network
            undertrained.
    """

    name: ClassVar[str] = "encoder-feature"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
        "Liu, Jia, Qu, Gong", "CCS 2021", "section 5, baseline on features (recalled)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Implemented from memory, without the paper's text. Embeddings are standardised by the "
        "shadow's mean and deviation. At least 1,000 updates, which the paper's 300 epochs of "
        "20,000 rows exceed by far and 300 epochs of a small shadow set do not."
    )

    hidden: Annotated[int, Ge(1)] = 256
    epochs: Annotated[int, Ge(1)] = 300
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-4
    weight_decay: Annotated[float, Ge(0)] = 1e-6
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request one shadow encoder."""
        return Shadows(1)

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the network's log-odds of "member"; 0 decides."""
        (shadow,) = ctx.shadows
        asked = oracle.embeddings(question.examples)
        inside = shadow.oracle.embeddings(shadow.world.members)
        if inside.shape[1] != asked.shape[1]:
            raise BadInputError(
                f"{self.name} needs a shadow with embeddings as wide as the victim's "
                f"({asked.shape[1]}), and the adversary's target makes {inside.shape[1]}: change "
                "the width of that target, such as supervised.hidden=[64] of an MLP"
            )
        outside = shadow.oracle.embeddings(shadow.nonmembers)
        centre, spread = scale(torch.cat([inside, outside]))
        scores = member_odds(
            ctx.init(partial(mlp, [len(centre), self.hidden, self.hidden, 2]), "network"),
            *((x - centre) / spread for x in (inside, outside, asked)),
            epochs=self.epochs, steps=self.steps, batch=self.batch, lr=self.lr,
            weight_decay=self.weight_decay, generator=ctx.generator("batches"),
        )  # fmt: skip
        return Membership(scores, scores >= 0)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [EncoderFeature()]
