"""Label-only LiRA: a row's robustness under labels alone, judged against shadow models.

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, sections IV and V, algorithm 1. Choquette-Choo, Tramer, Carlini, Papernot: Label-Only
Membership Inference Attacks. ICML 2021, section 3.3.

The adversary sees only the predicted class, for any input of its choice, knows true labels, and
owns k shadow models trained as the target is. Steps:

1. Signal of a row: how far the model's decision lies from it. Either copies with noise of several
   levels are asked, up to the noise under which shadows lose half of what they know, and the
   signal is the mean over levels of the log-odds that a copy keeps the *true* class (weights by
   ``weights_of_views`` found fewer members of a forest); or HopSkipJump finds the distance to the
   decision boundary.
2. Every shadow is asked the same about the same rows, with the same noise.
3. The score compares the victim's signal with those of shadows with the row and without it, as LiRA
   does (``privbench.toolbox.likelihood_ratio``).

The papers' attacks take one threshold for all rows, so rows that every model classifies well look
like members. Here each row has its own, and a release that hides or alters posteriors changes
nothing.

Deviations: see the class. What to expect: less than ``lira`` finds in posteriors, and the same
where they are hidden or altered: on ``digits`` AUC .732, without a defense, behind
``confidence-masking`` and behind ``memguard`` (``lira`` without a defense .794,
leaderboards/digits-defenses-supervised.md). On Location-30 (seed 0) it finds 51.3 % of the members
at 1 % of false alarms (``lira``: 77 %), with levels of 1, 2, 4, 8 and 16 columns 17.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

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
    as_float,
    hookimpl,
)
from privbench.toolbox.copies import fitting_levels, kept
from privbench.toolbox.hopskipjump import boundary
from privbench.toolbox.likelihood_ratio import Variance, likelihood_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle

#: Rows of the adversary's own from which HopSkipJump starts, asked once a model.
STARTS = 100
#: Directions of its first iteration.
DIRECTIONS = 25


@dataclass(frozen=True)
class LabelLiRA(MembershipAttack):
    """Compares a row's robustness to noise with that under shadows with the row and without it.

    Access: labels only. Cost: at most `queries` queries per candidate row, of the victim and of
    every shadow (one more where a label is missing; `boundary` also asks about 100 own rows once,
    and without `levels` every shadow answers up to 10,500 queries about own rows).

    Attributes:
        k: number of shadow models, each a full training.
        online: train shadows on subsets of the candidate rows; else on the adversary's own rows.
        signal: ``noise`` asks about noisy copies; ``boundary`` measures distances by HopSkipJump.
        queries: per row; copies are as many as each level can have, and HopSkipJump stops before
            an iteration that could exceed it.
        levels: standard deviations of Gaussian noise, on inputs in [0, 1]; for binary tables,
            expected numbers of flipped columns. None for five that fit the model, see
            ``privbench.toolbox.copies.fitting_levels``.
        variance: of the shadows' signals, see ``lira``.
        rows: maximum number of candidate rows.
    """

    name: ClassVar[str] = "label-lira"
    version: ClassVar[int] = 4
    needs: ClassVar[Access] = Access.LABELS
    requires: ClassVar[tuple[str, ...]] = ("pool",)
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "algorithm 1; with the signals of Choquette-Choo, Tramer, Carlini, Papernot: Label-Only "
        "Membership Inference Attacks, ICML 2021, section 3.3",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "The signal is a row's robustness in place of the scaled logit, so labels suffice. A share "
        "of copies becomes log-odds with half a copy added to each side. "
        "A misclassified row has distance 0 and keeps it. "
        "Shadows, variance and thresholds are those of `lira`."
    )

    k: Annotated[int, Ge(2)] = 16
    online: bool = True
    signal: Literal["noise", "boundary"] = "noise"
    queries: Annotated[int, Ge(8)] = 240
    levels: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] | None = None
    variance: Variance = "bayes"
    rows: Annotated[int, Ge(2)] = 1000

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online or offline shadows."""
        return Shadows(self.k, "online" if self.online else "offline")

    @property
    def max_rows(self) -> int:
        """Limit the question to ``rows`` rows."""
        return self.rows

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the victim's signals with the shadows'."""
        levels = (self.levels or fitting_levels(ctx)) if self.signal == "noise" else ()

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            found = (
                kept(oracle, rows, ctx, levels, self.queries)
                if levels
                else self._distance(oracle, rows, ctx)
            )
            return found.masked_fill((rows.y < 0)[:, None].to(found.device), torch.nan)

        return likelihood_ratio(
            ask, oracle, question.examples, ctx.shadows, online=self.online, variance=self.variance
        )

    def _distance(self, oracle: Oracle, rows: Examples, ctx: AttackContext) -> Tensor:
        """Return the L2 distance (n, 1) float64 to the decision boundary, in [0, sqrt(d)]."""
        x, own = (as_float(one.x, one.scale).flatten(1) for one in (rows, ctx.auxiliary))
        found = boundary(
            lambda inputs: oracle.labels(inputs.view(-1, *ctx.card.shape)),
            x, rows.y, own[:STARTS], generator=ctx.generator("directions"),
            iterations=self.queries, init_eval=DIRECTIONS, budget=self.queries,
        )  # fmt: skip
        return found.distance.clamp_max(x.shape[1] ** 0.5)[:, None]


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LabelLiRA()]
