"""LiRA on an encoder: where it puts a row and the row's views, judged against shadow encoders.

Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses are Misleading. CCS 2024,
the adaptive attack on self-supervised learning; the likelihood ratio follows Carlini and others,
IEEE S&P 2022.

The adversary queries the encoder for embeddings and owns k shadow encoders trained as the target
is. No labels are needed; online, they add to what is found. Steps:

1. Make n augmented views of each row. Compute their embeddings (from the backbone, not from the
   projection head) and the cosine c of every pair.
2. Signal: mean over pairs of ``log((1 + c) / (1 - c))``, which spreads the cosines near 1.
3. Online there are more signals, which are our own: an encoder puts a member where few other rows
   lie, to tell it apart. Five are the log-odds of a row's leverage among the embeddings of all rows
   in question, for five strengths of ridge regression. If all rows have labels, five more are what
   these regressions leave of its label, in bands (``privbench.toolbox.traces``).
4. Online, add up the signals by the weights that tell shadows with a row best from shadows without
   it (Fisher's discriminant).
5. Offline score (default): standard deviations above shadows that did not train on the row. Online
   score: log-likelihood ratio of shadows that did to shadows that did not.

Deviations: see the class. What to expect: better than ``encodermi-*``, which use one level of
similarity for all rows; in the paper, TPR at 0.1 % FPR on SimCLR rises from 5.8 % (confidence of a
linear head) to 18.2 % with the signal of step 2, and to 40.6 % on canaries. On digits (3 seeds of
SimCLR, online) that signal alone finds 42.7 % of members at 1 % of false alarms, all find 76.3 %.
0.5 on an untrained encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from privbench import (
    Access,
    Augmentation,
    Ge,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.likelihood_ratio import Location, Variance, likelihood_ratio
from privbench.toolbox.traces import (
    VIEWS,
    has_views,
    of_traces,
    similarity,
    weights_of_traces,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LiRAEncoder(MembershipAttack):
    """Scores views' similarity, and online a row's place, by a likelihood ratio over shadows.

    The adversary has embeddings, and shadow encoders trained on its own rows (or, online, on the
    candidate rows). Cost: `n` queries per row on images that may be augmented; with all
    signals one more.

    Attributes:
        k: number of shadow encoders, each a full training.
        n: views per row, giving n(n-1)/2 cosines.
        online: whether shadows are trained on subsets of the candidate rows.
        signals: online, ``all``; ``views`` is the similarity of views alone, as offline.
        augmentation: how views are made (the adversary's guess of the provider's augmentation),
            narrowed to what the dataset allows.
        variance: of the Gaussians: ``pooled`` uses one for all rows, ``per-example`` one per row.
            ``bayes`` replaces both Gaussians by Student t distributions whose variances lie between
            those two, the closer to a row's own the more shadows it has: Brännvall,
            Exponential-Family Membership Inference, arXiv 2603.11799. ``auto`` is ``per-example``
            if every row has 32 shadows without it and, online, 32 with it (half of the paper's 64),
            else ``bayes``.
        location: mean or median of the signals.
    """

    name: ClassVar[str] = "lira-encoder"
    version: ClassVar[int] = 4
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Evaluations of Machine Learning Privacy Defenses are Misleading",
        "Aerni, Zhang, Tramèr", "CCS 2024", "adaptive attack on self-supervised learning",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Offline by default, with 16 shadows (`paper`: online, 64, views alone). Online a row's "
        "place among the others counts too, so its score depends on them. All pairs of 10 views "
        "give one signal; the authors average 6 pairs for each of 18 flips and shifts, and average "
        "the likelihood ratios of these. All rows are asked about, not the worst placed canaries. "
        "With fewer than 32 shadows of a sort the variance is that of `bayes`. The threshold "
        "of the offline form is the best on a shadow that the others judge."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"k": 64, "online": True, "signals": "views"}
    }

    k: Annotated[int, Ge(2)] = 16
    n: Annotated[int, Ge(2)] = 10
    online: bool = False
    signals: Literal["all", "views"] = "all"
    augmentation: Augmentation = VIEWS
    variance: Variance = "auto"
    location: Location = "mean"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online or offline shadows."""
        return Shadows(self.k, "online" if self.online else "offline")

    @property
    def places(self) -> bool:
        """Whether a row's place among the others counts."""
        return self.online and self.signals == "all"

    def incompatible(self, cell: Cell) -> str | None:
        """Require images that may be augmented, if views are all that is compared."""
        if not (self.places or has_views(cell.card)):
            return (
                f"{self.name} compares augmented views, and {cell.card.name} allows none: set "
                "online=true and signals=all"
            )
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the signals with the shadows'."""
        rows = question.examples
        if self.places:
            ask = of_traces(
                ctx, rows, views=self.n, augmentation=self.augmentation, posteriors=False
            )
            return likelihood_ratio(
                ask, oracle, rows, ctx.shadows, online=True,
                location=self.location, variance=self.variance, weigh=weights_of_traces,
            )  # fmt: skip

        def similar(oracle: Oracle, rows: Examples) -> Tensor:
            views = ctx.views(rows, self.augmentation, self.n)
            return similarity(oracle.embeddings(views)).unsqueeze(1)

        return likelihood_ratio(
            similar, oracle, rows, ctx.shadows,
            online=self.online, location=self.location, variance=self.variance,
        )  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAEncoder()]
