"""Shadows in rounds: rows of which the adversary is sure make shadows closer to the victim.

Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li: Cascading and Proxy Membership Inference Attacks.
NDSS 2026, the cascading attack. The steps stand in ``privbench doc cmia``.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le

from privbench.measure.data.row_random import fold, uniform
from privbench.measure.games.membership import Membership, MembershipAttack
from privbench.measure.methods.attack import Shadows
from privbench.measure.methods.method import Paper
from privbench.toolbox.likelihood import Evidence, observe, watch
from privbench.toolbox.likelihood_ratio import Variance  # noqa: TC001 - of a field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.games.membership import MembershipQuestion
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle
    from privbench.toolbox.likelihood import Ask

    Judge = Callable[[Evidence], Tensor]


@dataclass(frozen=True)
class Cascade(MembershipAttack):
    """Base of attacks that train new shadows on the candidate rows, round after round.

    What is sure comes from shadows of which the adversary knows the members. A subclass says what
    it asks, and how it scores.

    Attributes:
        k: number of shadow models of a round, each a full training.
        rounds: number of rounds.
        share: largest share of the rows that are not sure yet which a round takes for members, and
            for nonmembers.
        tolerance: number of members of a shadow that may lie beyond its limit for nonmembers, and
            of nonmembers beyond that for members.
        variance: see ``lira``.
    """

    paper: ClassVar[Paper] = Paper(
        "Cascading and Proxy Membership Inference Attacks",
        "Du, Li, Chen, Zhang, Yuan, Xiao, Ribeiro, Li", "NDSS 2026", "the cascading attack",
    )  # fmt: skip

    k: Annotated[int, Ge(2)] = 16
    rounds: Annotated[int, Ge(1)] = 4
    share: Annotated[float, Gt(0), Le(1)] = 0.2
    tolerance: Annotated[int, Ge(0)] = 1
    variance: Variance = "bayes"

    @property
    def shadows(self) -> Shadows:
        """Request the ``k`` online shadows of the first round."""
        return Shadows(self.k, "online")

    @abstractmethod
    def asks(self, ctx: AttackContext, rows: Examples) -> Ask:
        """Return what tells the signals (n, v) of these rows (n,)."""

    @abstractmethod
    def judge(self, rows: Examples) -> Judge:
        """Return what scores (n,) these rows by the signals (n, v) of them, NaN for no score."""

    def answer(
        self, oracle: Oracle, question: MembershipQuestion, ctx: AttackContext
    ) -> Membership:
        """Score (n,) the log-likelihood ratio of "member" to "nonmember" over all rounds."""
        order = question.examples.index.argsort()  # a forest depends on the order of its rows
        rows = question.examples.select(order)
        scores = torch.zeros(len(rows), dtype=torch.float64)
        if len(rows) < 2 or bool((rows.y < 0).any()):  # noqa: PLR2004 - a row needs a neighbour
            return Membership(scores, torch.zeros(len(rows), dtype=torch.bool))
        ask, judge = self.asks(ctx, rows), self.judge(rows)
        seen, latest = _on_cpu(observe(ask, oracle, ctx.shadows, rows)), len(ctx.shadows)
        size, sure = int(seen.inside[0].sum()), torch.zeros(len(rows), dtype=torch.int64)
        for number in range(1, self.rounds):
            new = sure + self._sure(seen, latest, judge, sure == 0)
            need = size - int((new == 1).sum())
            if new.equal(sure) or not 0 < need <= int((new == 0).sum()):
                break
            sure, latest = new, self.k
            hands = deal(rows, sure == 0, need, ctx.salt("deal", number))
            for i, hand in zip(range(self.k), hands, strict=False):
                members = rows.select(hand | (sure == 1))
                shadow = ctx.train_shadow(members, (number - 1) * self.k + i)
                seen = _joined(seen, _on_cpu(Evidence(seen.asked, *watch(ask, [shadow], rows))))
        scores[order.cpu()] = judge(seen).nan_to_num(0.0)
        notes = {"shadows": float(len(seen.known)), "sure members": float((sure == 1).sum()),
                 "sure nonmembers": float((sure == -1).sum())}  # fmt: skip
        return Membership(scores, scores >= 0, notes)

    def _sure(self, seen: Evidence, latest: int, judge: Judge, free: Tensor) -> Tensor:
        """Return which of the free rows now surely are members, 1, and which are not, -1: (n,).

        The limits are those of the ``latest`` shadows.
        """
        known, inside, limits = seen.known, seen.inside, []
        for i in range(len(known) - latest, len(known)):
            # those of the same deal share no free member with it, and would tell its members
            judges = (inside & inside[i] & free).any(1)
            judges[i] = False
            if judges.any():
                scores = judge(Evidence(known[i], known[judges], inside[judges]))
                limits.append(beyond(scores[free], inside[i][free], self.tolerance))
        scores = judge(seen).masked_fill(~free, math.nan)
        most, found = int(free.sum() * self.share), torch.zeros_like(free, dtype=torch.int64)
        for sign, side in zip((-1, 1), zip(*limits, strict=True), strict=False):
            finite = [limit for limit in side if math.isfinite(limit)]
            if finite:
                limit = math.fsum(finite) / len(finite)
                passed = (sign * scores >= sign * limit).nonzero()[:, 0]
                furthest = (sign * scores[passed]).argsort(descending=True, stable=True)[:most]
                found[passed[furthest]] = sign
        return found


def _on_cpu(seen: Evidence) -> Evidence:
    return Evidence(seen.asked.cpu(), seen.known.cpu(), seen.inside.cpu())


def _joined(seen: Evidence, more: Evidence) -> Evidence:
    """Return the evidence of all shadows of both."""
    return Evidence(seen.asked, torch.cat([seen.known, more.known]),
                    torch.cat([seen.inside, more.inside]))  # fmt: skip


def beyond(scores: Tensor, member: Tensor, tolerance: int) -> tuple[float, float]:
    """Return up to which score few are members, and from which on few are nonmembers.

    Args:
        scores: (n,); NaN ones do not count.
        member: (n,) bool.
        tolerance: how many "few" are.

    Returns:
        The largest such score and the smallest; -inf and inf where there is none.

    >>> scores = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> beyond(scores, torch.tensor([False, True, False, False, True]), 0)
    (1.0, 5.0)
    >>> beyond(scores, torch.tensor([True, True, False, False, False]), 0)
    (-inf, inf)
    """
    some = ~scores.isnan()
    scores, member = scores[some], member[some]
    ends = []
    for sign, wrong in ((1, member), (-1, ~member)):
        rising, order = (sign * scores).sort()
        few = wrong[order].cumsum(0) <= tolerance
        last = torch.searchsorted(rising, rising, right=True) - 1  # equal scores pass together
        passed = rising[few[last]]
        ends.append(sign * float(passed[-1]) if len(passed) else -sign * math.inf)
    return ends[0], ends[1]


def deal(rows: Examples, free: Tensor, need: int, seed: int) -> Iterator[Tensor]:
    """Draw subsets of ``need`` free rows each, without end.

    Each holds every class about as often as the free rows do. They are dealt: as many as the free
    rows fill have no row in common, then all rows are dealt again.

    Args:
        rows: (n,).
        free: (n,) bool.
        need: at least 1 and at most the number of free rows.
        seed: of the draws, which depend on what a row holds and on its number.

    Yields:
        Masks (n,) bool.
    """
    places = free.nonzero()[:, 0]
    hands, some = len(places) // need, rows.select(places.to(rows.y.device))
    dealt = torch.arange(hands * need) * len(places) // (hands * need)
    for times in itertools.count():
        keys = fold(some.keys ^ fold(some.index, 1), seed, times)
        first = fold(some.y, seed, times)  # a random order of the classes
        shuffled = keys.argsort()
        by_class = places[shuffled[first[shuffled].argsort(stable=True)].cpu()]
        start = int(uniform(fold(keys.amin()[None], 1), 1)[0, 0] * len(places))
        by_class = by_class.roll(start)
        for i in range(hands):
            hand = torch.zeros(len(rows), dtype=torch.bool)
            hand[by_class[dealt[i::hands]]] = True
            yield hand
