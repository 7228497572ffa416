"""LiRA on an encoder: members' views lie closer together than they would without training on them.

Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy Defenses are Misleading. CCS 2024,
the adaptive attack on self-supervised learning; the likelihood ratio follows Carlini and others,
IEEE S&P 2022.

The adversary queries the encoder for embeddings and owns k shadow encoders trained as the target
is. No labels are needed. Steps:

1. Make n augmented views of each row. Compute their embeddings (from the backbone, not from the
   projection head) and the cosine c of every pair.
2. Signal: mean over pairs of ``log((1 + c) / (1 - c))``, which spreads the cosines near 1.
3. Offline score (default): standard deviations above shadows that did not train on the row. Online
   score: log-likelihood ratio of shadows that did to shadows that did not.

Deviations: see the class. What to expect: better than ``encodermi-*``, which use one level of
similarity for all rows; in the paper, TPR at 0.1 % FPR on SimCLR rises from 5.8 % (confidence of a
linear head) to 18.2 % with this signal, and to 40.6 % on canaries. 0.5 on an untrained encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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
from privbench.toolbox.similarity import VIEWS, has_views, similarity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, Examples, MembershipQuestion, Oracle


@dataclass(frozen=True)
class LiRAEncoder(MembershipAttack):
    """Scores the similarity of a row's views by a likelihood ratio over shadow encoders.

    The adversary has embeddings, and shadow encoders trained on its own rows (or, online, on the
    candidate rows). Cost: `n` queries per row.

    Attributes:
        k: number of shadow encoders, each a full training.
        n: views per row, giving n(n-1)/2 cosines.
        online: whether shadows are trained on subsets of the candidate rows.
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
    version: ClassVar[int] = 3
    needs: ClassVar[Access] = Access.EMBEDDINGS
    paper: ClassVar[Paper] = Paper(
        "Evaluations of Machine Learning Privacy Defenses are Misleading",
        "Aerni, Zhang, Tramèr", "CCS 2024", "adaptive attack on self-supervised learning",
    )  # fmt: skip
    deviations: ClassVar[str] = (
        "Offline by default, with 16 shadows (`paper`: online, 64). All pairs of 10 views give one "
        "signal; the authors average 6 pairs for each of 18 flips and shifts, and average the "
        "likelihood ratios of these. All rows are asked about, not the worst placed canaries. With "
        "fewer than 32 shadows of a sort the variance is that of `bayes`. The threshold "
        "of the offline form is the best on a shadow that the others judge."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"k": 64, "online": True}}

    k: Annotated[int, Ge(2)] = 16
    n: Annotated[int, Ge(2)] = 10
    online: bool = False
    augmentation: Augmentation = VIEWS
    variance: Variance = "auto"
    location: Location = "mean"

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online or offline shadows."""
        return Shadows(self.k, "online" if self.online else "offline")

    def incompatible(self, cell: Cell) -> str | None:
        """Require images that may be augmented."""
        if not has_views(cell.card):
            return f"{self.name} compares augmented views, and {cell.card.name} allows none"
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by comparing the similarity of each row's views with the shadows'."""

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            views = ctx.views(rows, self.augmentation, self.n)
            return similarity(oracle.embeddings(views)).unsqueeze(1)

        return likelihood_ratio(
            ask, oracle, question.examples, ctx.shadows,
            online=self.online, location=self.location, variance=self.variance,
        )  # fmt: skip


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register the attack."""
    return [LiRAEncoder()]
