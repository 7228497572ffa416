"""LiRA: how likely is the victim's answer under shadows that trained on the row, and under others?

Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership Inference Attacks From First Principles.
IEEE S&P 2022, sections IV and V, algorithm 1.

The adversary sees posteriors, knows true labels, and owns k shadow models trained as the victim is.
Steps:

1. Signal of a row (and of augmented views of it): ``log p_y - log(1 - p_y)``, from log-posteriors
   as ``z_y - logsumexp`` of the others, which neither overflows nor saturates.
2. Ask every shadow about every row. Online, shadows are drawn over the rows themselves: fit one
   Gaussian to the signals of those that trained on the row and one to the others' signals.
   Offline, shadows hold none of the rows: fit only the latter.
3. Online score: log-likelihood ratio. Offline score: standard deviations above the mean.
4. Both are means over views.

Deviations: see each class. What to expect: online the strongest of the posterior attacks at low
FPR (authors' demonstration, CIFAR-10, 16 shadows, pooled variance: 5.9 % TPR at 0.1 % FPR online,
3.0 % offline, where one threshold for all rows has 0.09 %); 0.5 on a victim that answers members
and strangers alike. Each shadow costs a full training, once
for all attacks that use worlds of that origin.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge

from privbench import Access, Augmentation, Membership, MembershipAttack, Paper, Shadows, hookimpl
from privbench_plugins._shared.likelihood import (
    Location,
    Variance,
    gaussian_attack,
    scaled_logit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Cell, Examples, MembershipQuestion, Oracle

VIEWS = Augmentation(flip=0.5, shift=4)
DEVIATIONS = (
    "16 shadows, as the authors' demonstration (`paper`: 256). Location is the mean, as in the "
    "paper (their code: the median). The pooled variance is of residuals from each row's location, "
    "with as many degrees of freedom as they leave; the released code takes the spread between "
    "rows with it, and takes the nonmembers' from the members' signals. Views are random flips and "
    "shifts (theirs: all 18 combinations of fixed ones), pictures only. "
)


@dataclass(frozen=True)
class _LiRA(MembershipAttack):
    """What both forms share.

    Attributes:
        k: shadow models, each a full training.
        views: augmented views (flips, shifts of up to 4 pixels, narrowed to what the dataset
            allows) asked about beside the row itself; 0 for none. Only of pictures.
        variance: of the Gaussians. ``pooled`` has one for all rows, ``per-example`` one for each;
            ``auto`` pools below 64 shadows.
        location: of the Gaussians.
    """

    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Membership Inference Attacks From First Principles",
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr", "IEEE S&P 2022",
        "sections IV and V, algorithm 1",
    )  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"k": 256, "views": 17}}

    k: Annotated[int, Ge(1)] = 16
    views: Annotated[int, Ge(0)] = 0
    variance: Variance = "auto"
    location: Location = "mean"

    @property
    @abstractmethod
    def online(self) -> bool:
        """Whether shadows are drawn over the rows asked about."""

    @property
    def shadows(self) -> Shadows:
        """As many as ``k`` says."""
        return Shadows(self.k, "online" if self.online else "offline")

    def incompatible(self, cell: Cell) -> str | None:
        """There must be classes to have posteriors of."""
        if cell.card.classes is None:
            return f"{self.name} reads class posteriors, and {cell.card.name} has no classes"
        return None

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by what the shadows say of the victim's signal."""
        views = self.views if ctx.card.kind == "image" else 0

        def ask(oracle: Oracle, rows: Examples) -> Tensor:
            signals = [scaled_logit(oracle.log_posteriors(rows), rows.y).unsqueeze(1)]
            if views:
                answers = oracle.log_posteriors(ctx.views(rows, VIEWS, views))
                signals.append(scaled_logit(answers, rows.y))
            return torch.cat(signals, dim=1)

        return gaussian_attack(
            ask, oracle, question.examples, ctx.shadows,
            online=self.online, location=self.location, variance=self.variance,
        )  # fmt: skip


@dataclass(frozen=True)
class LiRA(_LiRA):
    """Online: the likelihood ratio of shadows with the row to shadows without it.

    The adversary has posteriors and labels, and can train shadows on the very rows asked about.
    A member is called where the ratio is at least 1. Cost: 1 + `views` queries per row.
    """

    name: ClassVar[str] = "lira"
    deviations: ClassVar[str] = DEVIATIONS + (
        "Worlds hold as many members as the victim's, so that a row is in fewer than half of them "
        "where nonmembers outnumber members; one that is in none takes its own mean as a "
        "nonmember, moved by the mean difference between members and nonmembers."
    )

    @property
    def online(self) -> bool:
        """Shadows are drawn over the rows asked about."""
        return True


@dataclass(frozen=True)
class LiRAOffline(_LiRA):
    """Offline: how many standard deviations the row is above shadows without it.

    The adversary has posteriors and labels, and shadows on rows of its own only. The threshold is
    the best on a shadow that the others judge. Cost: 1 + `views` queries per row.
    """

    name: ClassVar[str] = "lira-offline"
    deviations: ClassVar[str] = DEVIATIONS + (
        "The score is the z-score, which ranks as the paper's Φ(z) but does not end at 1 (with "
        "views, a mean of z instead of Φ(z)); the released code has -log density, which calls a "
        "row far *below* the nonmembers a member too. The paper gives no threshold."
    )

    @property
    def online(self) -> bool:
        """Shadows are of the adversary's own rows."""
        return False


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Offer both forms."""
    return [LiRA(), LiRAOffline()]
