"""Encoder feature: a classifier on the embedding itself, the plain baseline of encoder attacks.

Liu, Jia, Qu, Gong: EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive
Learning. CCS 2021, section 5: the last of its five baselines, two of which are for encoders. The
text of that one was not at hand: what it is (the feature vector of the row as it is, into the
classifier of EncoderMI-V) is recalled.

The adversary queries the encoder for embeddings and owns one shadow encoder with known members
and nonmembers. Steps:

1. The embedding of each row, not augmented.
2. Each dimension less its mean over the shadow's rows, over its deviation.
3. A network with two hidden layers of 256, trained on the shadow; put to the victim's embeddings.

Deviations: see the class. What to expect: near 0.5 on encoders that were trained apart. Nothing
ties dimension 7 of the shadow to dimension 7 of the victim, so what the network learns does not
carry over; only what does not depend on the axes does (a norm, a common start). That makes it a
floor for ``encodermi-*``, whose similarities are free of axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge, Gt

from privbench import (
    Access,
    BadInputError,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    hookimpl,
    mlp,
)
from privbench_plugins._shared.classifiers import fit, log_odds, logits

if TYPE_CHECKING:
    from privbench import Attack, AttackContext, MembershipQuestion, Oracle


@dataclass(frozen=True)
class EncoderFeature(MembershipAttack):
    """A network on the raw embedding.

    Access: embeddings, one shadow encoder; no labels. One query per row.

    Attributes:
        hidden: neurons of each of the two hidden layers.
        epochs: passes over the shadow's rows.
        batch: rows per update.
        lr: Adam's.
        weight_decay: L2 penalty.
        steps: updates at least, so that a small shadow set does not leave the network untrained.
    """

    name: ClassVar[str] = "encoder-feature"
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive Learning",
        "Liu, Jia, Qu, Gong", "CCS 2021", "section 5, baseline on features (recalled)",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Recalled, not read. Embeddings are standardised by the shadow's mean and deviation. At "
        "least 1,000 updates, which the paper's 300 epochs of 20,000 rows exceed by far and 300 "
        "epochs of a small shadow set do not."
    )

    hidden: Annotated[int, Ge(1)] = 256
    epochs: Annotated[int, Ge(1)] = 300
    batch: Annotated[int, Ge(1)] = 100
    lr: Annotated[float, Gt(0)] = 1e-4
    weight_decay: Annotated[float, Ge(0)] = 1e-6
    steps: Annotated[int, Ge(0)] = 1000

    @property
    def shadows(self) -> Shadows:
        """One shadow encoder."""
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
                f"({asked.shape[1]}), and the adversary's target makes {inside.shape[1]}"
            )
        x = torch.cat([inside, shadow.oracle.embeddings(shadow.nonmembers)])
        y = (torch.arange(len(x), device=x.device) < len(inside)).long()
        # One shift and scale for both sides and for the victim, from the shadow: standardising
        # each by itself would delete what tells them apart.
        centre, spread = x.mean(0), x.std(0, correction=0)
        spread = torch.where(spread > 1e-6 * x.abs().amax(0), spread, 1)
        network = fit(
            ctx.init(partial(mlp, [x.shape[1], self.hidden, self.hidden, 2]), "network"),
            (x - centre) / spread, y, epochs=self.epochs, steps=self.steps, batch=self.batch,
            lr=self.lr, weight_decay=self.weight_decay, generator=ctx.generator("batches"),
        )  # fmt: skip
        scores = log_odds(logits(network, (asked - centre) / spread))
        return Membership(scores, scores >= 0)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [EncoderFeature()]
