"""Audited epsilon: what one training run proves about a claim of differential privacy.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, theorem 5.2 and
the procedure of section 4. Every candidate's membership is a coin of its own (``inclusion`` of the
protocol), and guesses are fixed before any truth is seen: of n coins the quarter about which the
attack is surest, the highest-scoring eighth as "in", the lowest-scoring eighth as "out".

Picking the attack, the threshold or the number of guesses on the evaluated scores is wrong: it
reports a positive epsilon for mechanisms that leak nothing. A bound at 97.5 % (one side of a 95 %
interval) is above the truth once in forty runs, and never proves a claim: it can only refute one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom, rankdata

from privbench.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from privbench.data.split import Split

#: Chance that a bound is above the truth: the lower side of a two-sided 95 % interval.
ERROR = 0.025
#: Of the coins, how many are guessed.
SHARE = 0.25
#: Of the bisection in epsilon.
_PRECISION = 1e-6
_LARGEST = 64.0

#: How a protocol's ``inclusion`` changes one member, in the words of a claim.
ADJACENCY = {"coin": "add/remove", "pairs": "replace-one"}


@dataclass(frozen=True)
class Guesses:
    """What an attack said of the coins it was surest of.

    Attributes:
        coins: fair ones that decided the members.
        made: guesses.
        right: those that were right.
    """

    coins: int
    made: int
    right: int


def guesses(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> Guesses:
    """Guess "in" for the highest-scoring eighth and "out" for the lowest-scoring one.

    Args:
        scores: (n,) higher means more likely a member; ties go by position.
        member: (n,) the truth, each a fair coin of its own.

    >>> guesses(np.arange(16.0), np.arange(16) >= 15)
    Guesses(coins=16, made=4, right=3)
    """
    n = len(scores)
    side = max(int(n * SHARE) // 2, 1) if n > 1 else 0
    order = np.argsort(scores, kind="stable")
    right = int(member[order[n - side :]].sum() + (~member[order[:side]]).sum())
    return Guesses(n, 2 * side, right)


def p_value(of: Guesses, epsilon: float, delta: float = 0.0) -> float:
    """Chance of so many right guesses or more, at most, if (epsilon, delta) held.

    Theorem 5.2: for delta = 0 the tail of a binomial of ``made`` guesses, each right with
    probability e^epsilon / (1 + e^epsilon); delta adds at most 2 coins delta times the largest
    mean chance of the i counts just below ``right``.
    """
    q = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(of.right - 1, of.made, q))
    if delta == 0 or of.right == 0:
        return min(tail, 1.0)
    back = binom.pmf(of.right - np.arange(1, of.right + 1), of.made, q).cumsum()
    worst = float((back / np.arange(1, of.right + 1)).max())
    return min(tail + 2 * of.coins * delta * worst, 1.0)


def bound(of: Guesses, delta: float = 0.0) -> float:
    """Largest epsilon that the guesses refute at that delta; 0 where they refute none.

    A perfect attack on 100, 500 and 1,000 coins, guessing all:

    >>> [round(bound(Guesses(n, n, n)), 2) for n in (100, 500, 1000)]
    [3.28, 4.91, 5.6]
    """
    low, high = 0.0, _LARGEST
    if p_value(of, low, delta) >= ERROR:
        return 0.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if p_value(of, middle, delta) < ERROR:
            low = middle
        else:
            high = middle
    return low


def audited(
    claims: Sequence[Mapping[str, Any]],
    scores: NDArray[np.float64],
    truth: NDArray[np.bool_],
    split: Split,
) -> dict[str, Estimate | Refused]:
    """Claimed epsilon, audited epsilon and the ceiling of a perfect attack, where one is claimed.

    Args:
        claims: of the defenses; those without ``epsilon`` (distortion budgets) get no audit.
        scores: (n,) of the attack.
        truth: (n,) who was a member.
        split: its protocol says how members were drawn.
    """
    claims = [claim for claim in claims if "epsilon" in claim]
    if not claims:
        return {}
    if len(claims) > 1:
        refused = Refused(f"{len(claims)} claims of an epsilon, which do not add up to one")
        return {"claimed_epsilon": refused, "audited_epsilon": refused, "audit_ceiling": refused}
    (claim,) = claims
    epsilon, delta = float(claim["epsilon"]), float(claim.get("delta", 0.0))
    made: dict[str, Estimate | Refused] = {"claimed_epsilon": Estimate(epsilon, epsilon, epsilon)}
    reason = _untestable(claim, len(truth), split)
    if reason:
        return {**made, "audited_epsilon": Refused(reason), "audit_ceiling": Refused(reason)}
    if split.protocol.inclusion == "pairs":
        first, second = split.pairs.T.cpu().numpy()
        ranks = rankdata(scores)  # finite, where scores may not be
        scores, truth = ranks[first] - ranks[second], truth[first]
    of = guesses(scores, truth)
    found, ceiling = bound(of, delta), bound(Guesses(of.coins, of.made, of.made), delta)
    return {
        **made,
        "audited_epsilon": Estimate(found, found, found),
        "audit_ceiling": Estimate(ceiling, ceiling, ceiling),
    }


def _untestable(claim: Mapping[str, Any], asked: int, split: Split) -> str | None:
    """Why this cell says nothing about the claim, or None."""
    protocol = split.protocol
    adjacency, covered = claim.get("adjacency", "add/remove"), str(claim.get("phase", ""))
    if ADJACENCY.get(protocol.inclusion) != adjacency:
        wanted = next((p for p, a in ADJACENCY.items() if a == adjacency), None)
        return (
            f"the claim is about {adjacency}, and members of protocol '{protocol.name}' are drawn "
            f"by {protocol.inclusion}" + (f": use one with inclusion '{wanted}'" if wanted else "")
        )
    open_phases = set(protocol.phase.split("+")) - set(covered.split("+"))
    if open_phases:
        return (
            f"the claim covers {covered or 'no phase'}, and members also train "
            f"{'+'.join(sorted(open_phases))}"
        )
    if asked < len(split.candidates):
        return f"the attack was asked about {asked} of {len(split.candidates)} coins"
    return None
