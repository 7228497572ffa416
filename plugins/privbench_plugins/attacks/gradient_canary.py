"""Gradient canaries: the white-box audit of DP-SGD by gradients that the adversary chooses.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023; Nasr, Hayes,
Steinke, Balle, Tramèr, Jagielski, Carlini, Terzis: Tight Auditing of Differentially Private Machine
Learning. USENIX Security 2023.

The privacy analysis of DP-SGD holds for any gradients and for an adversary that sees every noisy
step. This attack is that adversary, so its bound comes close to the claim where attacks on
posteriors find nothing: ``dp-sgd`` with ``gradient_canaries`` puts a canary, a random direction of
its own, in place of each member's gradient before clipping, and keeps the steps with the model. The
score of a row is the log-likelihood ratio of its canary's projections z on the steps, in units of
``clip``, for a row that each step uses with probability q, under noise sigma:

    sum over steps of log(1 - q + q exp((z - 1/2) / sigma^2)).

Canaries of other rows are nearly orthogonal: the b that a step uses on average add b / width to
sigma^2, where width is the number of coordinates that hold canaries.

It is a test of the implementation and of the accounting, not of a model that anyone would release:
nothing useful is learned from canaries. Members must be drawn by coins (``inclusion: coin``); see
the suite ``digits-audit-gradients``.

Deviations: see the class. What to expect: AUC .5 on a model that was trained without the rows, and
near Phi(2^-0.5 / sigma) for one step of the whole data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from privbench import Access, Membership, MembershipAttack, Paper, hookimpl
from privbench.toolbox.gradient_canaries import PART, directions

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, MembershipQuestion, Oracle

#: Rows whose canaries are made at a time.
_ROWS = 4096
#: Noise below this counts as this much.
_LEAST = 1e-6


@dataclass(frozen=True)
class GradientCanary(MembershipAttack):
    """Scores rows by the likelihood ratio of their canaries in the noisy steps of DP-SGD.

    The adversary is white-box: it reads the steps, which are stored with the weights.
    """

    name: ClassVar[str] = "gradient-canary"
    needs: ClassVar[Access] = Access.WEIGHTS
    paper: ClassVar[Paper] = Paper(
        "Privacy Auditing with One (1) Training Run", "Steinke, Nasr, Jagielski", "NeurIPS 2023"
    )
    deviations: ClassVar[str] = (
        "Every member's gradient is a canary's, where the paper also trains on ordinary rows, so "
        "the model is of no use; canaries lie in the first 4,096 coordinates of the gradient; "
        "the score is the likelihood ratio of all steps instead of the sum of projections."
    )

    def incompatible(self, cell: Cell) -> str | None:
        """Require a defense that plants canaries."""
        if any(getattr(one, "gradient_canaries", False) for one in cell.defenses):
            return None
        return (
            f"{self.name} reads canaries that the defense plants: "
            "use dp-sgd with gradient_canaries: true"
        )

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by log-likelihood ratios; above 0 a row is decided to be a member."""
        held, keys = oracle.weights(), question.examples.keys
        parts = [name.removesuffix(".steps") for name in held
                 if PART in name and name.endswith(".steps")]  # fmt: skip
        scores = torch.zeros(len(keys), dtype=torch.float64)
        for part in parts:
            steps = held[f"{part}.steps"].cpu()
            noise, rate, batch = (
                float(held[f"{part}.{name}"]) for name in ("noise", "rate", "batch")
            )
            spread = math.hypot(noise, math.sqrt(batch / steps.shape[1]))
            for start in range(0, len(keys), _ROWS):
                rows = slice(start, start + _ROWS)
                z = directions(keys[rows].cpu(), steps.shape[1]) @ steps.T
                scores[rows] += log_ratios(z, rate, spread)
        ctx.note(canary_phases=len(parts))
        return Membership(scores, scores > 0)


def log_ratios(z: Tensor, rate: float, noise: float) -> Tensor:
    """Return the log-likelihood ratios of members to nonmembers, (n,) float64.

    Args:
        z: (n, steps) projections in units of ``clip``.
        rate: probability with which a step uses a row, in (0, 1].
        noise: standard deviation in these units.
    """
    gain = ((z.double() - 0.5) / max(noise, _LEAST) ** 2).clamp(max=700)
    out, used = torch.tensor([1.0 - rate, rate], dtype=torch.float64).log()
    return torch.logaddexp(out, used + gain).sum(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer the attack."""
    return [GradientCanary()]
