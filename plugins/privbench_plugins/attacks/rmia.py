"""RMIA: does the victim favour the row over random population rows more than shadows do?

Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference Attacks. ICML 2024, section 3.

The adversary sees posteriors, knows true labels, owns k shadow ("reference") models trained as the
target is, and has rows z of the population that the victim did not train on. Steps:

1. p(x | victim): the posterior of the true class, from a softmax (in the paper with a margin and
   Taylor polynomials instead of exponentials). p(x): its mean over shadows with and without x.
   Without shadows that hold x: ``p(x) = ((1 + a) mean_out + 1 - a) / 2``. Compute the same for
   every z, using only the shadows that did not train on z.
2. LR(x, z) = (p(x | victim) / p(x)) / (p(z | victim) / p(z)).
3. Score: the share of z with LR(x, z) >= gamma; between two steps of it, the ratio of x.

The pairs are never formed: with the ratios of all z sorted, the share is a binary search.

Deviations: see each class. What to expect: designed for few shadows, from which ``lira`` cannot
estimate a variance; 0.5 on a victim that answers members and nonmembers alike.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from privbench import (
    Access,
    Ge,
    Gt,
    Le,
    Membership,
    MembershipAttack,
    MultipleOf,
    Paper,
    Shadows,
    hookimpl,
)
from privbench.toolbox.likelihood import (
    Evidence,
    floored,
    log_confidence,
    observe,
    of_views,
    split,
    stand_in,
    threshold,
    weights_of_views,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench import Attack, AttackContext, Examples, MembershipQuestion, Oracle
    from privbench.toolbox.likelihood import Ask

DEVIATIONS = (
    "Logits are known only up to a constant, which is chosen to put the smallest at 0: there the "
    "Taylor polynomial rises, while far below 0 it would fall and score a confidently wrong row as "
    "a member. "
    "Order 4 of it has four powers, where the authors' code stops at the third. "
    "16 shadows, shared with `lira` (theirs: 1 to 254), and plain means over them instead of "
    "trimmed ones. By default the plain softmax, as in the authors' newer toolbox (there at "
    "temperature 1): the Taylor softmax of the paper finds fewer members. One view, the mirror "
    "image, joined as in `lira`; the paper lets 18 vote. z comes from the adversary's pool, not "
    "from the candidates' nonmembers. The threshold is the best on a shadow that the others "
    "score. A row without a label scores one half. Rows that dominate equally many z are ordered "
    "by their own ratio: a victim whose flat answers favour nothing by gamma would give all rows "
    "one score. "
)


@dataclass(frozen=True)
class _RMIA(MembershipAttack):
    """Base of both forms.

    Attributes:
        k: number of shadow models, each a full training.
        gamma: factor by which the victim must favour x over z; the authors' newer toolbox, with
            the plain softmax, uses 1. It moves the threshold, not the order of rows.
        a: estimates p(x) with training on x from p(x) without: ``a mean_out + 1 - a``. 0.3 was
            best on CIFAR-10, 0.6 on CIFAR-100, 0.2 on Purchase.
        population: maximum number of rows z; 0 for all labelled rows of the adversary.
        signal: ``softmax``, or ``taylor``, the soft-margin Taylor softmax of the paper.
        views: number of views queried in addition to the row itself, see ``lira``.
        temperature: divides the logits; 2 for CIFAR-10, 1 for CIFAR-100.
        margin: of the Taylor softmax: subtracted from the true class's logit.
        order: of the Taylor softmax: its highest power, even so that it is positive.
    """

    requires: ClassVar[tuple[str, ...]] = ("pool",)
    needs: ClassVar[Access] = Access.POSTERIORS
    paper: ClassVar[Paper] = Paper(
        "Low-Cost High-Power Membership Inference Attacks", "Zarifzadeh, Liu, Shokri",
        "ICML 2024", "section 3",
    )  # fmt: skip
    version: ClassVar[int] = 4
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"signal": "taylor", "views": 17}
    }

    k: Annotated[int, Ge(1)] = 16
    gamma: Annotated[float, Gt(0)] = 2.0
    a: Annotated[float, Ge(0), Le(1)] = 0.3
    population: Annotated[int, Ge(0)] = 0
    signal: Literal["softmax", "taylor"] = "softmax"
    views: Annotated[int, Ge(0)] = 1
    temperature: Annotated[float, Gt(0)] = 2.0
    margin: Annotated[float, Ge(0)] = 0.6
    order: Annotated[int, Ge(2), MultipleOf(2)] = 4

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
        """Score (n,) by the share of the population that each row dominates, see ``_ranks``."""
        z = self._population(ctx)
        ask = of_views(ctx, self.views, self._signal)
        of_x = observe(ask, oracle, ctx.shadows, question.examples)
        of_z = observe(ask, oracle, ctx.shadows, z)
        trained = of_x if self.online else of_z  # shadows hold some of these rows
        weights = weights_of_views(trained.known, trained.inside)
        scores = self._ranks(of_x.joined(weights), of_z.joined(weights), len(z))
        limit = self._threshold(question.examples, z, ctx, lambda o, rows: ask(o, rows) @ weights)
        decisions = None if limit is None else scores >= limit
        notes = {"population": float(len(z))} | ({} if limit is None else {"threshold": limit})
        return Membership(scores.nan_to_num(0.5), decisions, notes)

    def _threshold(
        self, asked: Examples, z: Examples, ctx: AttackContext, ask: Ask
    ) -> float | None:
        """Return the best threshold for a stand-in shadow, on z that it did not train on."""
        known = stand_in(ctx.shadows, asked if self.online else None)
        if known is None:
            return None
        steps, of_it = len(z), torch.cat([part.index for part in known.parts])
        z = z.select(~torch.isin(z.index, of_it))
        if len(z) == 0:
            return None
        scores = self._ranks(
            observe(ask, known.oracle, known.judges, *known.parts),
            observe(ask, known.oracle, known.judges, z),
            steps,
        )
        return threshold(scores, known.member)

    def _population(self, ctx: AttackContext) -> Examples:
        """Select up to ``population`` labelled rows of the adversary, in an order of their own."""
        rows = ctx.auxiliary.select(ctx.auxiliary.y >= 0)
        order = ctx.uniform(rows, 1, "population").squeeze(1).argsort(stable=True)
        return rows.select(order[: self.population or len(rows)])

    def _signal(self, log_p: Tensor, y: Tensor) -> Tensor:
        """Return log p(x | model), (n, ..., classes) -> (n, ...)."""
        if self.signal == "taylor":
            return log_taylor(log_p, y, self.temperature, self.margin, self.order)
        return log_confidence((log_p / self.temperature).log_softmax(-1), y)

    def _scores(self, x: Evidence, z: Evidence) -> Tensor:
        """Return the share of z that each x dominates; NaN where x cannot be scored.

        Offline, shadows that hold x do not count: no shadow holds a candidate, but judges hold
        some of a stand-in's members, and its scores must be of the same kind as the victim's.
        """
        return dominated(*self._ratios(x, z), self.gamma)

    def _ranks(self, x: Evidence, z: Evidence, steps: int) -> Tensor:
        """Return that share, and less than a step more the surer the victim is of x than p(x).

        Args:
            x: what was observed of the rows.
            z: what was observed of the population.
            steps: of the share, as many for the stand-in as for the victim, which has more z.
        """
        of_x, _ = self._ratios(x, z)
        return (self._scores(x, z) * steps + of_x.sigmoid()) / (steps + 1)

    def _ratios(self, x: Evidence, z: Evidence) -> tuple[Tensor, Tensor]:
        """Return log p(x | victim) - log p(x) and the same of z."""
        return (
            x.asked - log_prior(x.known, x.inside, self.a, outside_only=not self.online),
            z.asked - log_prior(z.known, z.inside, self.a, outside_only=True),
        )


@dataclass(frozen=True)
class RMIA(_RMIA):
    """Online RMIA: p(x) is the mean over shadows with the row and shadows without it.

    The adversary has posteriors and labels, and can train shadows on the candidate rows.
    Cost: at most 1 + `views` queries per row, and as many for each row of the population, once.
    """

    name: ClassVar[str] = "rmia"
    deviations: ClassVar[str] = DEVIATIONS + (
        "A row that no shadow holds has the p(x) of the offline form."
    )

    @property
    def online(self) -> bool:
        """Train shadows on subsets of the candidate rows."""
        return True


@dataclass(frozen=True)
class RMIAOffline(_RMIA):
    """Offline RMIA: p(x) is estimated from shadows without the row.

    The adversary has posteriors and labels, and trains shadows on its own rows only.
    Cost: at most 1 + `views` queries per row, and as many for each row of the population, once.
    """

    name: ClassVar[str] = "rmia-offline"
    deviations: ClassVar[str] = DEVIATIONS

    @property
    def online(self) -> bool:
        """Train shadows on the adversary's own rows."""
        return False


def log_prior(log_p: Tensor, inside: Tensor, a: float, *, outside_only: bool = False) -> Tensor:
    """Return log p(x): the average of p(x) with and without training on x.

    With training, p(x) is the mean over shadows that hold x; if there are none, or with
    ``outside_only``, it is ``a mean_out + 1 - a``.

    Args:
        log_p: (k, n) log p(x | shadow).
        inside: (k, n) bool.
        a: in [0, 1].
        outside_only: whether to leave out the shadows that hold x.

    Returns:
        (n,). Where all shadows hold x: the mean over them, or NaN with ``outside_only``.

    >>> p = torch.tensor([[0.5], [0.9]]).double().log()
    >>> inside = torch.tensor([[False], [True]])
    >>> [round(float(log_prior(p, inside, 0.3, outside_only=o).exp()), 6) for o in (True, False)]
    [0.675, 0.7]
    """
    mean_in, mean_out = _log_mean(log_p, inside), _log_mean(log_p, ~inside)
    share, rest = (math.log(part) if part else -math.inf for part in (a, 1 - a))
    guess = torch.logaddexp(mean_out + share, torch.full_like(mean_out, rest))
    if outside_only:
        return torch.logaddexp(guess, mean_out) - math.log(2)
    mean_in = torch.where(mean_in.isnan(), guess, mean_in)
    mean_out = torch.where(mean_out.isnan(), mean_in, mean_out)
    return torch.logaddexp(mean_in, mean_out) - math.log(2)


def _log_mean(log_p: Tensor, held: Tensor) -> Tensor:
    """Return the log of the mean of p over the shadows where held (k, n); NaN where none is."""
    total = log_p.masked_fill(~held, -math.inf).logsumexp(0)
    count = held.sum(0)
    return (total - count.log()).masked_fill(count == 0, math.nan)


def dominated(x: Tensor, z: Tensor, gamma: float) -> Tensor:
    """Return the share of z with ``exp(x - z) >= gamma``.

    Args:
        x: (n,) log ratios.
        z: (m,) log ratios; NaN ones are left out.
        gamma: minimum factor.

    Returns:
        (n,) float64; NaN where x is, or where no z is left.

    >>> dominated(torch.tensor([2.0, 1.0]).log(), torch.tensor([0.5, 1.0, 2.0]).log(), 2.0)
    tensor([0.6667, 0.3333], dtype=torch.float64)
    """
    rising = z[~z.isnan()].sort().values
    below = torch.searchsorted(rising, x - math.log(gamma), right=True)
    return (below.double() / len(rising)).masked_fill(x.isnan(), math.nan)


def log_taylor(log_p: Tensor, y: Tensor, temperature: float, margin: float, order: int) -> Tensor:
    """Return the log of the soft-margin Taylor softmax of the class y.

    ``T(z_y - m) / (T(z_y - m) + sum of T(z_j), j != y)``, where T is the Taylor polynomial of exp
    and z are the logits divided by the temperature, shifted so that the smallest is 0. It rises
    with z_y.

    Args:
        log_p: (n, ..., k).
        y: (n,), -1 where unknown.
        temperature: above 0.
        margin: m, at least 0.
        order: highest power, even.

    Returns:
        (n, ...), NaN where y is -1.
    """
    z = floored(log_p.double())
    z = (z - z.amin(-1, keepdim=True)) / temperature
    own, _ = split(z, y)
    mine = _exponential(own - margin, order)
    others = _exponential(z, order).sum(-1) - _exponential(own, order)
    return mine.log() - (mine + others).log()


def _exponential(x: Tensor, order: int) -> Tensor:
    """Return the Taylor polynomial of exp about 0."""
    total = term = torch.ones_like(x)
    for power in range(1, order + 1):
        term = term * x / power
        total = total + term
    return total


@hookimpl
def privbench_attacks() -> list[Attack]:
    """Register both forms."""
    return [RMIA(), RMIAOffline()]
