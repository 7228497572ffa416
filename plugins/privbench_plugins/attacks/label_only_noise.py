"""Label-only noise attack: members are still classified correctly under noise.

Choquette-Choo, Tramer, Carlini, Papernot: Label-Only Membership Inference Attacks. ICML 2021,
section 3.3 (robustness to random noise).

The adversary sees only the predicted class, for any input of its choice, knows the true labels of
the candidate rows, and owns one shadow model. Steps:

1. Make N noisy copies of a row: Gaussian noise or, for a binary table, flips of each column with
   probability k/d.
2. The score is the share of copies whose predicted class is the row's *true* class, an estimate
   of the distance to the decision boundary.
3. Choose the noise level and the threshold with the best balanced accuracy on the shadow's members
   and nonmembers.

The share takes only N + 1 values, so many rows tie. Ties are kept; the metrics count them half.

Deviations: see the class. What to expect: a cheaper and coarser ``label-only-boundary``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch

from privbench import (
    Access,
    Ge,
    Gt,
    Membership,
    MembershipAttack,
    MinLen,
    Paper,
    Shadows,
    best_threshold,
    hookimpl,
)
from privbench.toolbox.copies import noisy, survivors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LabelOnlyNoise(MembershipAttack):
    """Scores the share of noisy copies that are still classified as the row's true class.

    Access: labels only, one shadow. Cost: ``copies`` queries per candidate row; for the shadow's
    rows, as many for each noise level.

    Attributes:
        copies: N, the number of noisy copies per row.
        sigmas: standard deviations of Gaussian noise to choose from, on inputs in [0, 1].
        flips: for binary tables instead: expected numbers of flipped columns to choose from.
        rows: maximum number of candidate rows; half as many members and half as many nonmembers
            of the shadow are used.
    """

    name: ClassVar[str] = "label-only-noise"
    needs: ClassVar[Access] = Access.LABELS
    paper: ClassVar[Paper] = Paper(
        "Label-Only Membership Inference Attacks",
        "Choquette-Choo, Tramer, Carlini, Papernot", "ICML 2021", "section 3.3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "100 copies by default (`paper`: 5,000, the default of the authors' command line). A row "
        "that is itself misclassified is scored like any other (their code gives it 0). All rows "
        "get the same noise, and all levels scale the same draws. A table that is not binary gets "
        "Gaussian noise in all columns; images and tables are clipped to [0, 1]."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"copies": 5000}}

    copies: Annotated[int, Ge(1)] = 100
    sigmas: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (
        0.02, 0.04, 0.06, 0.08, 0.1,
    )  # fmt: skip
    flips: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = tuple(range(1, 11))
    rows: Annotated[int, Ge(2)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, trained on the adversary's own rows."""
        return Shadows(1)

    @property
    def max_rows(self) -> int:
        """Limit the question to ``rows`` rows."""
        return self.rows

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the share of copies that keep the true class, in [0, 1]."""
        (shadow,) = ctx.shadows
        half = slice(0, self.rows // 2)
        inside, outside = shadow.world.members.select(half), shadow.nonmembers.select(half)
        member = torch.arange(len(inside) + len(outside)) < len(inside)
        best = (-1.0, 0.0, 0.0)
        for level in self.flips if ctx.card.kind == "binary" else self.sigmas:
            known = [self._share(shadow.oracle, side, level, ctx) for side in (inside, outside)]
            shares = torch.cat(known).cpu()
            threshold = best_threshold(shares.numpy(), member.numpy()).overall
            called = (shares >= threshold).double()
            gain = float(called[member].mean() - called[~member].mean())
            best = max(best, (gain, float(level), threshold), key=lambda one: one[0])
        _, level, threshold = best
        scores = self._share(oracle, question.examples, level, ctx)
        return Membership(scores, scores >= threshold, {"level": level, "threshold": threshold})

    def _share(self, oracle: Oracle, rows: Examples, level: float, ctx: AttackContext) -> Tensor:
        """Return the share (n,) float64 of copies whose predicted label is the true one."""
        copies = noisy(ctx, self.copies)(level)
        return survivors(oracle, rows, copies, self.copies).double().mean(1)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LabelOnlyNoise()]
