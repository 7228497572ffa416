"""Audited epsilon: what a few training runs show about a claim of differential privacy.

Steinke, Nasr, Jagielski: Privacy Auditing with One (1) Training Run. NeurIPS 2023, theorem 5.2 and
the procedure of section 4. Independent coin flips decide membership (``inclusion`` of the
protocol). The guesses are fixed before the truth is seen: the highest-scoring coins as "in" and as
many of the lowest-scoring ones as "out". A quarter of the coins is guessed for the audited epsilon.

Choosing the attack, the threshold or the number of guesses on the evaluated scores is wrong: it
reports a positive epsilon for mechanisms that leak nothing. A bound at 97.5 % (one side of a 95 %
interval) exceeds the true value at most once in forty audits. It can refute a claim but never prove
one. Several attacks on one board are several audits: name one beforehand.

**Several runs are one run with more coins.** Runs k = 1..K with coins u_1..u_K are one mechanism
u -> (M_1(u_1), ..., M_K(u_K)). If (a) all coins are fair and independent of each other, and of the
rows, (b) every run has randomness of its own, and (c) every M_k is (epsilon, delta)-DP, then a
flipped coin changes one of the outputs only, so the joint mechanism is (epsilon, delta)-DP in each
of the sum of all coins, and theorem 5.2 holds for the sums of coins, guesses and right guesses. The
same holds for f-DP. Rows may occur in several runs, since the theorem is about coins and holds for
all fixed rows, but one coin must not decide in two runs: here the seed of a run keys its coins, its
batches and its noise, so seeds are independent as far as their hash is. Runs of one seed (of other
attacks or defenses) share their coins and are never pooled. The number of seeds must be fixed
beforehand: adding seeds until a claim falls is choosing again.

**What is tested.** ``audited_epsilon`` bounds epsilon at the claim's delta. ``audited_mu`` bounds
the mu of Gaussian DP (see ``curves``), from a quarter of the coins and from 80 % of them, each at
half the error. ``audit_p`` is the p-value of the claim itself: of its privacy profile where the
claim has one (``profile``, pairs that all hold at once), otherwise of its pair. A claim below 2.5 %
is refuted. A ceiling below the claim means that even a perfect attack could not refute it by
``audited_epsilon``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbench.measure.games import curves
from privbench.measure.games.metrics import Estimate, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray


#: Probability that a bound exceeds the true value: the lower side of a two-sided 95 % interval.
ERROR = 0.025
#: Share of the coins that are guessed for the audited epsilon.
SHARE = 0.25
#: Shares for mu and the profile: a profile with large deltas may reveal a quarter of the coins.
SHARES = (SHARE, 0.8)
#: Precision of the bisection in epsilon.
_PRECISION = 1e-6
_LARGEST = 64.0


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


def guesses(
    scores: NDArray[np.float64], member: NDArray[np.bool_], share: float = SHARE
) -> Guesses:
    """Guess "in" for the highest-scoring coins and "out" for as many of the lowest-scoring.

    Args:
        scores: (n,) higher means more likely a member; ties are ordered by position.
        member: (n,) the truth, each an independent fair coin.
        share: of the coins that is guessed, in (0, 1]; half of it as "in".

    >>> guesses(np.arange(16.0), np.arange(16) >= 15)
    Guesses(coins=16, made=4, right=3)
    """
    n = len(scores)
    side = max(int(n * share) // 2, 1) if n > 1 else 0
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


def pooled(runs: Iterable[Guesses]) -> Guesses:
    """Return the guesses of independent runs as those of one; see the module for what this needs.

    >>> pooled([Guesses(16, 4, 3), Guesses(20, 4, 4)])
    Guesses(coins=36, made=8, right=7)
    """
    runs = list(runs)
    return Guesses(
        *(sum(getattr(run, name) for run in runs) for name in ("coins", "made", "right"))
    )


def loosest(claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the claim that every run satisfies if each satisfies its own.

    The largest epsilon and delta; of profiles, which must name the same deltas, the largest epsilon
    at each. A profile that only some runs have is left out.
    """
    made: dict[str, Any] = {
        "epsilon": max(float(claim["epsilon"]) for claim in claims),
        "delta": max(float(claim.get("delta", 0.0)) for claim in claims),
    }
    profiles = [[(float(e), float(d)) for e, d in claim.get("profile", ())] for claim in claims]
    deltas = {tuple(delta for _, delta in profile) for profile in profiles}
    if len(deltas) == 1 and profiles[0]:
        made["profile"] = [
            (max(profile[i][0] for profile in profiles), delta)
            for i, delta in enumerate(next(iter(deltas)))
        ]
    return made


def assessed(
    claims: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[float, Guesses]]
) -> dict[str, Estimate | Refused]:
    """Return what the guesses of all runs together say about the claims.

    Args:
        claims: one for each run.
        runs: for each run, share of the coins -> guesses.

    Returns:
        ``claimed_epsilon``; ``audited_epsilon`` and ``audit_ceiling``, the bound of a perfect
        attack; ``audited_mu`` and ``audit_p``; and the counts, from which runs can be pooled. With
        a profile also ``claimed_mu``, and how much the one mu and the one pair exaggerate the risk
        of the profile (``mu_regret``, ``epsilon_regret``).
    """
    claim = loosest(claims)
    total = {share: pooled(run[share] for run in runs) for share in SHARES}
    of, delta = total[SHARE], claim["delta"]
    made = {
        "claimed_epsilon": claim["epsilon"],
        "audited_epsilon": bound(of, delta),
        "audit_ceiling": bound(Guesses(of.coins, of.made, of.made), delta),
        "audited_mu": max(
            curves.mu_bound(one.coins, one.made, one.right, ERROR / len(SHARES))
            for one in total.values()
        ),
        "audit_p": min(1.0, len(SHARES) * min(_p_of_claim(one, claim) for one in total.values())),
    }
    if "profile" in claim:
        made["claimed_mu"] = curves.summarised(claim["profile"])
        made["mu_regret"] = curves.regret(claim["profile"], curves.gaussian(made["claimed_mu"]))
        pair = [(claim["epsilon"], claim["delta"])]
        made["epsilon_regret"] = curves.regret(claim["profile"], curves.lines(pair))
    made |= {name: getattr(total[share], part) for name, (share, part) in COUNTS.items()}
    return {name: Estimate(*[float(value)] * 3) for name, value in made.items()}


def _p_of_claim(of: Guesses, claim: Mapping[str, Any]) -> float:
    if "profile" in claim:
        return curves.p_value(of.coins, of.made, of.right, curves.lines(claim["profile"]))
    return p_value(of, claim["epsilon"], claim["delta"])


#: Name of a metric -> the share of the coins and the count that it holds.
COUNTS = {
    "audit_coins": (SHARE, "coins"),
    "audit_made": (SHARE, "made"),
    "audit_right": (SHARE, "right"),
    "audit_made_most": (SHARES[1], "made"),
    "audit_right_most": (SHARES[1], "right"),
}


def counted(counts: Mapping[str, float]) -> dict[float, Guesses]:
    """Return the guesses of a run from its metrics named in ``COUNTS``."""
    given = {(share, part): int(counts[name]) for name, (share, part) in COUNTS.items()}
    coins = given[SHARE, "coins"]
    return {share: Guesses(coins, given[share, "made"], given[share, "right"]) for share in SHARES}


def contradiction(claim: Mapping[str, Any]) -> str | None:
    """Return how a claim contradicts its own profile, or None.

    No number of guesses finds a delta of 1e-5 that a claim forgot: the accountant does.
    """
    epsilon, delta = float(claim["epsilon"]), float(claim.get("delta", 0.0))
    profile = [(float(e), float(d)) for e, d in claim.get("profile", ())]
    if profile and not any(e <= epsilon * (1 + 1e-9) and d <= delta for e, d in profile):
        least = min(profile, key=lambda pair: abs(pair[0] - epsilon))
        return (
            f"the claim ({epsilon:g}, {delta:g}) contradicts its own privacy profile, which has no "
            f"epsilon this small at a delta this small: its nearest pair is "
            f"({least[0]:g}, {least[1]:g})"
        )
    return None
