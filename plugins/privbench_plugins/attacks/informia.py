"""InfoRMIA: how many nats more than random population rows does the victim know of the row?

Tao, Shokri: (Token-Level) InfoRMIA: Stronger Membership Inference and Memorization Assessment for
LLMs. ICLR 2026 as Information-Theoretic Membership Inference for Granular Quantification of
Memorization, the form for a whole row.

The adversary sees posteriors, knows true labels, owns k shadow ("reference") models trained as the
target is, and has rows z of the population that the victim did not train on. Steps:

1. p(x | victim): the posterior of the true class. p(x): its mean over shadows with and without x.
   Without shadows that hold x: ``p(x) = ((1 + a) mean_out + 1 - a) / 2``. Compute the same for
   every z, using only the shadows that did not train on z.
2. Score: ``log p(x | victim) / p(x)`` minus the mean of ``log p(z | victim) / p(z)`` over all z,
   weighted by p(z).

``rmia`` counts the z that x dominates, a step function of the same ratio. So on one victim the two
rank rows alike, apart from ties: the count ends at 1 and has steps of 1/|Z|, the score here has
neither. The mean over z is the same for every x: it moves no rank, and lets a threshold be carried
from one model to another.

Deviations: see each class. What to expect: about what ``rmia`` with the same signal reaches, with
fewer z; 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from privbench import (
    Access,
    Ge,
    Gt,
    Le,
    Membership,
    MembershipAttack,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.likelihood import (
    Evidence,
    log_confidence,
    observe,
    of_views,
    stand_in,
    threshold,
    weights_of_views,
)

if TYPE_CHECKING:
    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle
    from privbench.toolbox.likelihood import Ask

DEVIATIONS = (
    "Checked against the abstract and two public reimplementations, which agree on the formula, "
    "not against the text or code of the authors. 16 shadows, shared with `rmia`. Nats, not bits. "
    "The temperature is 2, as in `rmia`. One view, the mirror image, joined as in `lira`. "
    "Logarithms are exact where the reimplementations raise "
    "small probabilities to 1e-12. z comes from the adversary's pool. The threshold is the best on "
    "a shadow that the others score. A row without a label scores 0. "
)


@dataclass(frozen=True)
class _InfoRMIA(MembershipAttack):
    """Base of both forms.

    Attributes:
        k: number of shadow models, each a full training.
        a: estimates p(x) with training on x from p(x) without: ``a mean_out + 1 - a``.
        population: maximum number of rows z; 0 for all labelled rows of the adversary.
        temperature: divides the logits.
        views: number of views queried in addition to the row itself, see ``lira``.
    """

    requires: ClassVar[tuple[str, ...]] = ("pool",)
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Information-Theoretic Membership Inference for Granular Quantification of Memorization",
        "Tao, Shokri", "ICLR 2026", "InfoRMIA of a whole row",
    )  # fmt: skip
    version: ClassVar[int] = 2

    k: Annotated[int, Ge(1)] = 16
    a: Annotated[float, Ge(0), Le(1)] = 0.3
    population: Annotated[int, Ge(0)] = 0
    temperature: Annotated[float, Gt(0)] = 2.0
    views: Annotated[int, Ge(0)] = 1

    @property
    @abstractmethod
    def online(self) -> bool:
        """Whether shadows are trained on subsets of the candidate rows."""

    @property
    def shadows(self) -> Shadows:
        """Request ``k`` online or offline shadows."""
        return Shadows(self.k, "online" if self.online else "offline")

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) by the information about each row above that about the population."""
        z = self._population(ctx)
        ask = of_views(ctx, self.views, self._signal)
        of_x = observe(ask, oracle, ctx.shadows, question.examples)
        of_z = observe(ask, oracle, ctx.shadows, z)
        trained = of_x if self.online else of_z  # shadows hold some of these rows
        weights = weights_of_views(trained.known, trained.inside)
        of_z = of_z.joined(weights)
        scores = self._scores(of_x.joined(weights), of_z)
        limit = self._threshold(question.examples, z, ctx, lambda o, rows: ask(o, rows) @ weights)
        decisions = None if limit is None else scores >= limit
        notes = {"population": float(len(z)), "nats of the population": float(self._usual(of_z))}
        notes |= {} if limit is None else {"threshold": limit}
        return Membership(scores.nan_to_num(0.0), decisions, notes)

    def _threshold(
        self, asked: Examples, z: Examples, ctx: AttackContext, ask: Ask
    ) -> float | None:
        """Return the best threshold for a stand-in shadow, on z that it did not train on."""
        known = stand_in(ctx.shadows, asked if self.online else None)
        if known is None:
            return None
        of_it = torch.cat([part.index for part in known.parts])
        z = z.select(~torch.isin(z.index, of_it))
        if len(z) == 0:
            return None
        scores = self._scores(
            observe(ask, known.oracle, known.judges, *known.parts),
            observe(ask, known.oracle, known.judges, z),
        )
        return threshold(scores, known.member)

    def _population(self, ctx: AttackContext) -> Examples:
        """Select up to ``population`` labelled rows of the adversary, in an order of their own."""
        rows = ctx.auxiliary.select(ctx.auxiliary.y >= 0)
        order = ctx.uniform(rows, 1, "population").squeeze(1).argsort(stable=True)
        return rows.select(order[: self.population or len(rows)])

    def _signal(self, log_p: Tensor, y: Tensor) -> Tensor:
        """Return log p(x | model), (n, ..., classes) -> (n, ...)."""
        return log_confidence((log_p / self.temperature).log_softmax(-1), y)

    def _scores(self, x: Evidence, z: Evidence) -> Tensor:
        """Return the scores (n,) in nats; NaN where x cannot be scored.

        Offline, shadows that hold x do not count, as none holds a candidate.
        """
        return x.asked - self._log_prior(x, outside_only=not self.online) - self._usual(z)

    def _usual(self, z: Evidence) -> Tensor:
        """Return the mean log ratio of the z, weighted by p(z); NaN without a z that counts.

        A z that every shadow trained on does not count.
        """
        log_p = self._log_prior(z, outside_only=True)
        some = ~(log_p.isnan() | z.asked.isnan())
        if not some.any():
            return log_p.new_tensor(math.nan)
        return (log_p[some].softmax(0) * (z.asked - log_p)[some]).sum()

    def _log_prior(self, rows: Evidence, *, outside_only: bool) -> Tensor:
        """Return log p(x), (n,): the average with and without training on x; NaN where unknown."""
        mean_in, mean_out = (log_mean(rows.known, held) for held in (rows.inside, ~rows.inside))
        share, rest = (math.log(part) if part else -math.inf for part in (self.a, 1 - self.a))
        guess = torch.logaddexp(mean_out + share, torch.full_like(mean_out, rest))
        if outside_only:
            mean_in = guess
        else:
            mean_in = torch.where(mean_in.isnan(), guess, mean_in)
            mean_out = torch.where(mean_out.isnan(), mean_in, mean_out)
        return torch.logaddexp(mean_in, mean_out) - math.log(2)


@dataclass(frozen=True)
class InfoRMIA(_InfoRMIA):
    """Online InfoRMIA: p(x) is the mean over shadows with the row and shadows without it.

    The adversary has posteriors and labels, and can train shadows on the candidate rows.
    Cost: at most 1 + `views` queries per row, and as many for each row of the population, once.
    """

    name: ClassVar[str] = "informia"
    deviations: ClassVar[str] = DEVIATIONS + (
        "A row that no shadow holds has the p(x) of the offline form."
    )

    @property
    def online(self) -> bool:
        """Train shadows on subsets of the candidate rows."""
        return True


@dataclass(frozen=True)
class InfoRMIAOffline(_InfoRMIA):
    """Offline InfoRMIA: p(x) is estimated from shadows without the row.

    The adversary has posteriors and labels, and trains shadows on its own rows only.
    Cost: at most 1 + `views` queries per row, and as many for each row of the population, once.
    """

    name: ClassVar[str] = "informia-offline"
    deviations: ClassVar[str] = DEVIATIONS

    @property
    def online(self) -> bool:
        """Train shadows on the adversary's own rows."""
        return False


def log_mean(log_p: Tensor, held: Tensor) -> Tensor:
    """Return the log of the mean of p (k, n) over the shadows in ``held`` (k, n); NaN without any.

    >>> log_mean(torch.tensor([[0.5], [0.25]]).log(), torch.tensor([[True], [True]])).exp()
    tensor([0.3750])
    """
    count = held.sum(0).to(log_p.dtype)
    total = log_p.masked_fill(~held, -math.inf).logsumexp(0)
    return (total - count.log()).masked_fill(count == 0, math.nan)


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both forms."""
    return [InfoRMIA(), InfoRMIAOffline()]
