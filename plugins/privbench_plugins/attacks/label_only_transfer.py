"""Label-only transfer attack: query a local copy of the victim, trained on the victim's labels.

Li, Zhang: Membership Leakage in Label-Only Exposures. CCS 2021, section 3.

The adversary sees only the predicted classes of its own rows, and knows the victim's target (how
it is trained) and the true labels of the candidate rows. It never queries the victim on the
candidate rows. Steps:

1. Query the victim for the classes of all auxiliary rows.
2. Train a model on these rows with these labels, as the target is trained.
3. The score is minus that model's cross-entropy loss on the row's *true* label.

There is no threshold: the local model's losses on its own training rows say nothing about its
losses on the victim's, and no row's membership in the victim is known.

Deviations: see the class. What to expect: the attack sees only how members' labels change the
predictions nearby, and only if the auxiliary rows are dense enough. Li and Zhang had auxiliary
sets as large as the victim's training set or larger; with few rows or in many dimensions the
attack stays at chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional as F

from privbench import Access, Membership, MembershipAttack, Paper, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import (
        Attack,
        AttackContext,
        Examples,
        MembershipQuestion,
        Model,
        Oracle,
    )

#: Rows per forward pass of the local model.
ROWS = 1024


@dataclass(frozen=True)
class LabelOnlyTransfer(MembershipAttack):
    """Scores rows by the loss of a local model trained on the victim's labels for other rows.

    Access: labels only, no shadow. Cost: one training, one query per auxiliary row, and none per
    candidate row.
    """

    name: ClassVar[str] = "label-only-transfer"
    misses_planted: ClassVar[str] = (
        "it asks the victim about its own rows only, where nothing is planted"
    )
    requires: ClassVar[tuple[str, ...]] = ("pool", "trainable")
    needs: ClassVar[Access] = Access.LABELS
    paper: ClassVar[Paper] = Paper(
        "Membership Leakage in Label-Only Exposures", "Li, Zhang", "CCS 2021", "section 3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The local model is trained with the victim's own target, undefended. No decisions, since "
        "every threshold would need rows of known membership."
    )

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by minus the local model's loss."""
        known = ctx.auxiliary
        local = ctx.train(known.with_y(oracle.labels(known).to(known.device)))
        return Membership(-losses(local, question.examples))


def losses(model: Model, rows: Examples) -> Tensor:
    """Return the cross-entropy (n,) float64, from logits so that it never saturates or ties at 0.

    Where y is -1 (unknown), the class that the model itself predicts is used.
    """
    model.eval()
    with torch.no_grad():
        parts = torch.split(rows.x, ROWS)
        logits = torch.cat([model.logits(model.encode(x)).double() for x in parts])
    y = rows.y.to(logits.device)
    return F.cross_entropy(logits, torch.where(y < 0, logits.argmax(1), y), reduction="none")


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LabelOnlyTransfer()]
