"""Label-only boundary attack: members lie farther from the decision boundary.

Choquette-Choo, Tramer, Carlini, Papernot: Label-Only Membership Inference Attacks. ICML 2021,
section 3.3. Li, Zhang: Membership Leakage in Label-Only Exposures. CCS 2021, section 4.

The adversary sees only the predicted class, for any input of its choice, and knows the true labels
of the candidate rows. Steps:

1. A misclassified row has distance 0.
2. For any other row, HopSkipJump finds a nearby input of another class from labels alone: see
   ``privbench.toolbox.hopskipjump``. The L2 distance to it is the score.
3. The threshold is the best one on the distances of a shadow's members and nonmembers
   (Choquette-Choo and others). Without a shadow, it is a percentile of the distances of uniform
   noise inputs, each labelled with its predicted class (Li and Zhang).

Deviations: see the class. What to expect: about what one threshold on posteriors finds (``digits``,
``supervised``: AUC .633, where ``metric-confidence`` has .650 and ``lira`` .795,
leaderboards/digits-attacks.md), and just as much on victims that only mask posteriors; by far the
most expensive attack in queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from privbench import (
    Access,
    Ge,
    Le,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    as_float,
    best_threshold,
    hookimpl,
)
from privbench.toolbox.hopskipjump import Boundary, boundary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LabelOnlyBoundary(MembershipAttack):
    """Scores the L2 distance to the decision boundary, found by HopSkipJump from labels alone.

    Access: labels only, one shadow unless ``calibration`` is ``noise``. Cost: a correctly
    classified row takes about 1,430 queries at 7 iterations and 24,500 at 50; any other row one.

    Attributes:
        iterations: of HopSkipJump; 7 as the Talos authors ran it, 50 in Li and Zhang's paper.
        init_eval: queries to estimate the boundary's normal in the first iteration; iteration t
            takes sqrt(t) times as many.
        max_eval: maximum number of queries for the normal per iteration.
        budget: maximum number of queries per row; None for no limit.
        rows: maximum number of candidate rows; half as many members and half as many nonmembers
            of the shadow are used.
        starts: number of noise inputs to start from, followed by as many of the adversary's rows.
        calibration: where the threshold comes from: ``shadow``, or ``noise`` without any shadow.
        noise: number of noise inputs whose distances are measured for ``calibration: noise``.
        percentile: of those distances, in percent; rows at least this far away are called members.
    """

    name: ClassVar[str] = "label-only-boundary"
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    needs: ClassVar[Access] = Access.LABELS
    paper: ClassVar[Paper] = Paper(
        "Label-Only Membership Inference Attacks",
        "Choquette-Choo, Tramer, Carlini, Papernot", "ICML 2021",
        "section 3.3; and Li, Zhang: Membership Leakage in Label-Only Exposures, CCS 2021",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "7 iterations by default as in the Talos paper (`paper`: 50). Tolerances as in ART, "
        "bisections to 0.01 / sqrt(d) and radii of 0.01 of the distance. ART returns the last "
        "iterate before it is moved to the boundary; here every iterate is, and the nearest one "
        "counts (ART's distances are about 1.3 times ours). All rows share starts and directions. "
        "Where no noise input is of another class, a row of the adversary's own is the start; "
        "where that fails too, the row keeps the largest distance that there is, sqrt(d), and is "
        "counted in the notes (the authors' codes drop it or call it 0). Inputs stay in [0, 1]. "
        "The threshold is the exact optimum on the shadow (ART: one of 99 grid points)."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"iterations": 50}}

    iterations: Annotated[int, Ge(0)] = 7
    init_eval: Annotated[int, Ge(1)] = 100
    max_eval: Annotated[int, Ge(1)] = 10_000
    budget: Annotated[int, Ge(1)] | None = None
    rows: Annotated[int, Ge(2)] = 500
    starts: Annotated[int, Ge(1)] = 100
    calibration: Literal["shadow", "noise"] = "shadow"
    noise: Annotated[int, Ge(1)] = 100
    percentile: Annotated[float, Ge(0), Le(100)] = 50.0

    @property
    def shadows(self) -> Shadows:
        """Request one offline shadow, or none for calibration on noise."""
        return Shadows(1 if self.calibration == "shadow" else 0)

    @property
    def max_rows(self) -> int:
        """Limit the question to ``rows`` rows."""
        return self.rows

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the distance to the boundary, in [0, sqrt(d)]."""
        rows = question.examples
        found = self._boundary(oracle, _flat(rows), rows.y, ctx)
        scores = _finite(found.distance, _flat(rows))
        threshold = self._calibrated(oracle, ctx)
        notes = {
            "queries": float(found.queries.double().mean()),
            "failures": float(found.distance.isinf().sum()),
            "threshold": threshold,
        }
        return Membership(scores, scores >= threshold, notes)

    def _calibrated(self, oracle: Oracle, ctx: AttackContext) -> float:
        """Return the threshold from the shadow's rows or from noise, never from the question."""
        if self.calibration == "shadow":
            (shadow,) = ctx.shadows
            half = slice(0, self.rows // 2)
            sides = shadow.world.members.select(half), shadow.nonmembers.select(half)
            x = torch.cat([_flat(side) for side in sides])
            y = torch.cat([side.y for side in sides])
            distance = _finite(self._boundary(shadow.oracle, x, y, ctx).distance, x)
            inside = torch.arange(len(x)) < len(sides[0])
            return best_threshold(distance.cpu().numpy(), inside.numpy()).overall
        x = self._noise(self.noise, ctx, "calibration")
        y = torch.full((len(x),), -1, device=x.device)
        distance = _finite(self._boundary(oracle, x, y, ctx).distance, x)
        return float(distance.quantile(self.percentile / 100))

    def _boundary(self, oracle: Oracle, x: Tensor, y: Tensor, ctx: AttackContext) -> Boundary:
        noise = self._noise(self.starts, ctx, "starts")
        own = _flat(ctx.auxiliary.select(slice(0, self.starts)))
        return boundary(
            lambda inputs: oracle.labels(inputs.view(-1, *ctx.card.shape)),
            x, y, torch.cat([noise, own]), generator=ctx.generator("directions"),
            iterations=self.iterations, init_eval=self.init_eval, max_eval=self.max_eval,
            budget=self.budget, clip=(0.0, 1.0),
        )  # fmt: skip

    def _noise(self, n: int, ctx: AttackContext, purpose: str) -> Tensor:
        """Return uniform inputs (n, d) in [0, 1)."""
        generator = ctx.generator(purpose)
        width = _flat(ctx.auxiliary.select(slice(0, 1))).shape[1]
        return torch.rand(n, width, generator=generator, device=generator.device)


def _flat(rows: Examples) -> Tensor:
    """Return inputs (n, d) in [0, 1]."""
    return as_float(rows.x, rows.scale).flatten(1)


def _finite(distance: Tensor, x: Tensor) -> Tensor:
    """Replace infinite distances by the unit cube's diagonal, the largest possible distance."""
    return distance.clamp_max(x.shape[1] ** 0.5)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LabelOnlyBoundary()]
