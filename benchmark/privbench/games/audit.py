"""Audited epsilon: what one training run shows about a claim of differential privacy.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, theorem 5.2 and
the procedure of section 4. Independent coin flips decide membership (``inclusion`` of the
protocol). The guesses are fixed before the truth is seen: a quarter of the n coins is guessed, the
highest-scoring eighth as "in" and the lowest-scoring eighth as "out".

Choosing the attack, the threshold or the number of guesses on the evaluated scores is wrong: it
reports a positive epsilon for mechanisms that leak nothing. A bound at 97.5 % (one side of a 95 %
interval) exceeds the true value once in forty runs. It can refute a claim but never prove one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from privbench.data.split import Split

#: Probability that a bound exceeds the true value: the lower side of a two-sided 95 % interval.
ERROR = 0.025
#: Share of the coins that are guessed.
SHARE = 0.25
#: Precision of the bisection in epsilon.
_PRECISION = 1e-6
_LARGEST = 64.0

#: Protocol ``inclusion`` -> the adjacency of a claim that it can test.
ADJACENCY = {"coin": "add/remove", "pairs": "replace-one"}


@dataclass(frozen=True)
class Guesses:
    """The guesses on the coins about which the attack is most certain.

    Attributes:
        coins: number of fair coins that decided membership.
        made: number of guesses.
        right: number of correct guesses.
    """

    coins: int
    made: int
    right: int


def guesses(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> Guesses:
    """Guess "in" for the highest-scoring eighth and "out" for the lowest-scoring one.

    Args:
        scores: (n,) higher means more likely a member; ties are ordered by position.
        member: (n,) the truth, each an independent fair coin.

    >>> guesses(np.arange(16.0), np.arange(16) >= 15)
    Guesses(coins=16, made=4, right=3)
    """
    n = len(scores)
    side = max(int(n * SHARE) // 2, 1) if n > 1 else 0
    order = np.argsort(scores, kind="stable")
    right = int(member[order[n - side :]].sum() + (~member[order[:side]]).sum())
    return Guesses(n, 2 * side, right)


def p_value(of: Guesses, epsilon: float, delta: float = 0.0) -> float:
    """Bound the probability of at least this many correct guesses if (epsilon, delta) holds.

    Theorem 5.2: for delta = 0, the tail of a binomial of ``made`` guesses, each correct with
    probability e^epsilon / (1 + e^epsilon). A positive delta adds at most 2 * coins * delta times
    the largest mean probability, over i, of the i counts just below ``right``.
    """
    q = 1 / (1 + np.exp(-epsilon))
    from scipy.stats import binom

    tail = float(binom.sf(of.right - 1, of.made, q))
    if delta == 0 or of.right == 0:
        return min(tail, 1.0)
    back = binom.pmf(of.right - np.arange(1, of.right + 1), of.made, q).cumsum()
    worst = float((back / np.arange(1, of.right + 1)).max())
    return min(tail + 2 * of.coins * delta * worst, 1.0)


def bound(of: Guesses, delta: float = 0.0) -> float:
    """Return the largest epsilon that the guesses refute at that delta; 0 if they refute none.

    Example: a perfect attack that guesses all of 100, 500 or 1,000 coins.

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
    """Return the claimed epsilon, the audited epsilon and the ceiling of a perfect attack.

    Empty if no defense claims an epsilon.

    Args:
        claims: claims of the defenses. Those without ``epsilon`` are ignored: distortion budgets
            are not differential privacy and are not audited.
        scores: (n,) scores of the attack.
        truth: (n,) true membership.
        split: the split, whose protocol says how members were drawn.
    """
    claims = [claim for claim in claims if "epsilon" in claim]
    if not claims:
        return {}
    if len(claims) > 1:
        refused = Refused(f"{len(claims)} claims of an epsilon: only a single one can be audited")
        return {"claimed_epsilon": refused, "audited_epsilon": refused, "audit_ceiling": refused}
    (claim,) = claims
    epsilon, delta = float(claim["epsilon"]), float(claim.get("delta", 0.0))
    made: dict[str, Estimate | Refused] = {"claimed_epsilon": Estimate(epsilon, epsilon, epsilon)}
    reason = _untestable(claim, len(truth), split)
    if reason:
        return {**made, "audited_epsilon": Refused(reason), "audit_ceiling": Refused(reason)}
    if split.protocol.inclusion == "pairs":
        first, second = split.pairs.T.cpu().numpy()
        from scipy.stats import rankdata

        ranks = rankdata(scores)  # ranks are finite even where scores are not
        scores, truth = ranks[first] - ranks[second], truth[first]
    of = guesses(scores, truth)
    found, ceiling = bound(of, delta), bound(Guesses(of.coins, of.made, of.made), delta)
    return {
        **made,
        "audited_epsilon": Estimate(found, found, found),
        "audit_ceiling": Estimate(ceiling, ceiling, ceiling),
    }


def _untestable(claim: Mapping[str, Any], asked: int, split: Split) -> str | None:
    """Return why this cell cannot test the claim, or None if it can."""
    protocol = split.protocol
    adjacency, covered = claim.get("adjacency", "add/remove"), str(claim.get("phase", ""))
    if ADJACENCY.get(protocol.inclusion) != adjacency:
        wanted = next((p for p, a in ADJACENCY.items() if a == adjacency), None)
        return (
            f"the claim uses {adjacency} adjacency, but protocol '{protocol.name}' draws members "
            f"by {protocol.inclusion}"
            + (f": use a protocol with inclusion '{wanted}'" if wanted else "")
        )
    open_phases = set(protocol.phase.split("+")) - set(covered.split("+"))
    if open_phases:
        return (
            f"the claim covers {covered or 'no phase'}, but members are also used to train "
            f"{'+'.join(sorted(open_phases))}"
        )
    if asked < len(split.candidates):
        return (
            f"the attack scored {asked} of {len(split.candidates)} candidates: an audit needs all"
        )
    return None
