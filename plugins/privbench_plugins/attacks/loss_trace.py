"""Loss trace: how the loss of a row went while the victim was trained, read from its checkpoints.

Pollock, Shilov, Dodd, de Montjoye: Free Record-Level Privacy Risk Evaluation Through Artifact-Based
Methods. arXiv:2411.05743. Liu, Zhao, Backes, Zhang: Membership Inference Attacks by Exploiting Loss
Trajectory. CCS 2022.

The adversary is white-box and has the checkpoints that the training left behind (target
``supervised-checkpoints``). The trace of a row is its cross-entropy, without augmentation, at each
checkpoint and at last under the served model. No truth enters: members and nonmembers among the
candidates are treated alike. Two scores:

- ``classifier`` (the default): boosted trees tell traces of members from those of nonmembers,
  learned on shadows that kept checkpoints too. This is the attack of Liu and others, whose
  adversary has no checkpoints and distils the victim to imitate them.
- ``iqr``: LT-IQR, the distance between the upper and the lower quartile of the trace. No shadows.

*LT-IQR is no membership score, and its paper does not say so.* The paper ranks the rows that a
model was trained on by how vulnerable they are: it finds the members that LiRA detects at a false
positive rate of .1 %, with a precision of 92 % among the first 1 % on CIFAR-10. It never compares
members with nonmembers. Here the question holds both, and a nonmember's loss moves as much: that of
an unusual one rises while others fall. On ``digits`` the AUC of ``iqr`` is below .5 (.39 to .41 on
3 seeds). Use it for what the paper does: among the scores of members in a record's per-sample file,
the largest are of the rows at risk.

Deviations: see the class. What to expect of ``classifier``: on ``digits``, AUC .74 (seeds 0 and 1)
where ``metric-loss`` has .64, ``lira-offline`` .72 and ``lira`` .78. The same trees on the last
loss alone have .71, and .74 with the trace (seed 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch.nn import functional as F

from privbench import Access, Ge, Le, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench.toolbox.kept_checkpoints import losses, reopened

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

#: Depth of a tree.
_DEPTH = 3


@dataclass(frozen=True)
class LossTrace(MembershipAttack):
    """Scores rows by their losses at the checkpoints of the victim's training.

    Attributes:
        score: ``classifier``, learned on shadows; or ``iqr``, which ranks members by their risk.
        k: number of shadows of the classifier, each a full training.
        points: losses of a trace that the classifier reads, evenly spaced over the training.
        trees: number of trees of the classifier.
    """

    name: ClassVar[str] = "loss-trace"
    needs: ClassVar[Access] = Access.WEIGHTS | Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Free Record-Level Privacy Risk Evaluation Through Artifact-Based Methods",
        "Pollock, Shilov, Dodd, de Montjoye", "arXiv:2411.05743", "LT-IQR: score `iqr`",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The paper ranks members only; the score for membership, `classifier`, is that of Liu and "
        "others (CCS 2022), with checkpoints instead of distilled models and trees instead of a "
        "network. A trace has 20 losses by default; the paper has one of each of 100 epochs."
    )

    score: Literal["classifier", "iqr"] = "classifier"
    k: Annotated[int, Ge(1)] = 4
    points: Annotated[int, Ge(1), Le(1000)] = 20
    trees: Annotated[int, Ge(1), Le(10_000)] = 60

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` offline shadows for the classifier."""
        return Shadows(self.k if self.score == "classifier" else 0)

    def incompatible(self, cell: Cell) -> str | None:
        """Require checkpoints, of shadows too."""
        for target in (cell.target, cell.adversary.target):
            if target and not getattr(target, "checkpoints", 0):
                return (
                    f"{self.name} reads checkpoints that the target keeps, and {target.name} keeps "
                    "none: use supervised-checkpoints"
                )
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by log-odds of the trees, which decide above 0; or by LT-IQR, in nats."""
        victim = reopened(ctx.untrained(self.name), oracle.weights())
        asked = trace(oracle, victim, question.examples)
        ctx.note(losses_of_a_trace=asked.shape[1])
        if self.score == "iqr":
            return Membership(iqr(asked))
        known = [
            trace(shadow.oracle, shadow.model, rows)
            for shadow in ctx.shadows
            for rows in (shadow.world.members, shadow.nonmembers)
        ]
        held = [i % 2 == 0 for i, one in enumerate(known) for _ in range(len(one))]
        odds = self._odds(
            torch.cat([resampled(one, self.points) for one in known]), torch.tensor(held),
            resampled(asked, self.points),
        )  # fmt: skip
        return Membership(odds, odds > 0)

    def _odds(self, known: Tensor, held: Tensor, asked: Tensor) -> Tensor:
        """Return log-odds (n,) of traces (n, points), learned on traces whose truth is known."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        trees = HistGradientBoostingClassifier(
            max_depth=_DEPTH, max_iter=self.trees, early_stopping=False, random_state=0
        ).fit(known.cpu().numpy(), held.numpy())
        return torch.from_numpy(trees.decision_function(asked.cpu().numpy())).to(asked.device)


def trace(oracle: Oracle, model: Model, rows: Examples) -> Tensor:
    """Return the losses of rows, (n, checkpoints + 1) float64, in nats; the last is the oracle's.

    A row without a label is read as of the class that the oracle finds most likely.
    """
    log_p = oracle.log_posteriors(rows)
    y = rows.y.to(log_p.device)
    y = torch.where(y < 0, log_p.argmax(1), y)
    last = F.nll_loss(log_p, y, reduction="none")
    return torch.cat([losses(model, rows.x.to(log_p.device), y), last[:, None]], dim=1)


def iqr(traces: Tensor) -> Tensor:
    """Return upper minus lower quartile of each trace: (n, t) -> (n,), 0 for a single loss.

    Quartiles between two losses are interpolated linearly, as by numpy and pandas.

    >>> iqr(torch.tensor([[2.0, 1.0, 0.0, 4.0, 3.0]])).tolist()
    [2.0]
    """
    quartiles: Tensor = traces.quantile(traces.new_tensor([0.25, 0.75]), dim=1)
    return quartiles[1] - quartiles[0]


def resampled(traces: Tensor, points: int) -> Tensor:
    """Return traces (n, t) at evenly spaced points from the first loss to the last, (n, points).

    >>> resampled(torch.tensor([[0.0, 4.0, 6.0]]), 5).tolist()
    [[0.0, 2.0, 4.0, 5.0, 6.0]]
    """
    drawn: Tensor = F.interpolate(traces[:, None], points, mode="linear", align_corners=True)
    return drawn[:, 0]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [LossTrace()]
