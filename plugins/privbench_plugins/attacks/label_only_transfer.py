"""Label-only transfer attack: a copy of the victim, made from its labels, is asked instead.

Li, Zhang: Membership Leakage in Label-Only Exposures. CCS 2021, section 3.

The adversary sees only the predicted classes of rows of its own, and knows the victim's recipe and
the true labels of the rows asked about, on which it never queries the victim. Steps:

1. Ask the victim for the classes of all auxiliary rows.
2. Train a model of the victim's recipe on them under these labels.
3. The score is minus that model's cross-entropy loss on the row's *true* label.

There is no threshold: the losses of the local model on its own training rows say nothing of its
losses on the victim's, and no row's membership in the victim is known.

Deviations: see the class. What to expect: only what members' labels change nearby, as far as the
auxiliary rows are dense enough to show it. Li and Zhang had auxiliary sets of the size of the
victim's own or larger; with few rows or in many dimensions it stays at chance.
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
        Cell,
        Examples,
        MembershipQuestion,
        Model,
        Oracle,
    )

#: Rows per forward pass of the local model.
ROWS = 1024


@dataclass(frozen=True)
class LabelOnlyTransfer(MembershipAttack):
    """The loss of a local model that was trained on the victim's labels for other rows.

    Needs labels only, and no shadow, but one training. A row asked about costs no query at all;
    the auxiliary rows cost one each.
    """

    name: ClassVar[str] = "label-only-transfer"
    needs: ClassVar[Access] = Access.LABELS
    paper: ClassVar[Paper] = Paper(
        "Membership Leakage in Label-Only Exposures", "Li, Zhang", "CCS 2021", "section 3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The local model has the victim's own recipe, undefended. No decisions, since there is no "
        "threshold that does not need rows of known membership."
    )

    def incompatible(self, cell: Cell) -> str | None:
        """There must be classes to copy."""
        if cell.card.classes is None:
            return f"{self.name} reads predicted classes, and {cell.card.name} has none"
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by minus the local model's loss."""
        known = ctx.auxiliary
        local = ctx.train(known.with_y(oracle.labels(known).to(known.device)))
        return Membership(-losses(local, question.examples))


def losses(model: Model, rows: Examples) -> Tensor:
    """Cross-entropy (n,) float64 from logits, so that it neither saturates nor ties at 0.

    Where y is -1 (unknown) it is that of the class which the model itself predicts.
    """
    model.eval()
    with torch.no_grad():
        parts = torch.split(rows.x, ROWS)
        logits = torch.cat([model.logits(model.encode(x)).double() for x in parts])
    y = rows.y.to(logits.device)
    return F.cross_entropy(logits, torch.where(y < 0, logits.argmax(1), y), reduction="none")


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [LabelOnlyTransfer()]
