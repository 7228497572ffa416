"""A claimed epsilon of one's own model, tested by the coins that decided what it was trained on.

Each attack guesses "in" for the coins with its highest scores and "out" for as many of those with
its lowest, and theorem 5.2 of Steinke, Nasr and Jagielski (``measure.games.audit``) bounds how many
guesses are right if the claim holds. Several attacks and several numbers of guesses are tried, each
at its share of the error (Bonferroni): this costs less than choosing the attack on half of the
coins, because a bound depends on the logarithm of its error and on the number of coins itself.

The guesses may depend on the coins through the model only. So ties go by fingerprint of the row,
and an attack that leaves some candidates without a score is not used: which rows it asks about
depends on how many members there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from privbench.api.own_model.coins import read_coins
from privbench.ground.errors import BadInputError
from privbench.ground.text import shown
from privbench.measure.games.audit import Guesses, guesses, p_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privbench.api.own_model.rows import Rows

#: Probability that a claim that holds is refuted: one-sided confidence of 95 %.
ERROR = 0.05
#: Shares of the coins that each attack guesses.
SHARES = (0.05, 0.125, 0.25, 0.5, 1.0)
_LARGEST = 64.0  # epsilon
_PAIR = 2
_HOW = "give epsilon and delta, such as 2,1e-5"


@dataclass(frozen=True)
class Verdict:
    """What the coins say about a claim.

    Attributes:
        epsilon: of the claim, for adding or removing one row.
        delta: of the claim.
        coins: number of candidates.
        attacks: number of attacks that guessed, for which everything is corrected.
        attack: the one with the largest bound.
        guesses: of this attack: coins, guesses made, right guesses.
        p_value: of the claim.
        lower: the largest epsilon that is refuted at this delta with 95 % confidence.
        ceiling: what a perfect attack would reach.
        refuted: whether the claim is.

    ``str`` of it says this in one or two sentences.
    """

    epsilon: float
    delta: float
    coins: int
    attacks: int
    attack: str
    guesses: Guesses
    p_value: float
    lower: float
    ceiling: float
    refuted: bool

    def __str__(self) -> str:
        """The verdict, and what it rests on."""
        of = self.guesses
        claim = f"the claim (ε = {_told(self.epsilon)}, δ = {_told(self.delta)})"
        rests = (
            f"{self.attack} is right in {of.right:,} of {of.made:,} guesses on {of.coins:,} coins"
            + (f"; corrected for {self.attacks} attacks" if self.attacks > 1 else "")
        )
        if self.refuted:
            return (
                f"{claim[0].upper()}{claim[1:]} is refuted: with 95 % confidence ε is at least "
                f"{_down(self.lower)} ({rests})."
            )
        vain = ""
        if self.ceiling <= self.epsilon:
            vain = (
                f" With {self.coins:,} coins nothing can refute it: a perfect attack would show "
                f"ε ≥ {_down(self.ceiling)}."
            )
        return (
            f"{claim[0].upper()}{claim[1:]} is not refuted (the lower bound is ε ≥ "
            f"{_down(self.lower)}); not refuted is not proven ({rests}).{vain}"
        )


def _told(number: float) -> str:
    """Write a number as people do: 1e-5, not 1e-05."""
    mantissa, e, exponent = f"{number:g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def _down(bound: float) -> str:
    """Write a lower bound with two decimals, rounded down."""
    return f"{math.floor(bound * 100) / 100:.2f}"


@dataclass(frozen=True)
class Claim:
    """A claim, and where its coins are among the rows of an audit.

    Attributes:
        epsilon, delta: of the claim.
        places: (m,) of the candidates among all rows, members first; ordered by fingerprint.
        included: (m,) the coins.
    """

    epsilon: float
    delta: float
    places: NDArray[np.int64]
    included: NDArray[np.bool_]

    def tested(self, scores: Mapping[str, NDArray[np.float64]]) -> Verdict:
        """Test the claim.

        Args:
            scores: attack -> (m,) scores of the candidates, higher for members; at least one
                attack, each chosen before the coins were looked at.
        """
        m = len(self.included)
        made = {
            (name, share): guesses(column, self.included, share)
            for name, column in scores.items() for share in SHARES
        }  # fmt: skip
        level = ERROR / len(made)
        values = {at: p_value(of, self.epsilon, self.delta) for at, of in made.items()}
        first, *others = sorted(made, key=lambda at: values[at])
        best, bound = first, lower(made[first], level, self.delta)
        for at in others:
            if p_value(made[at], bound, self.delta) < level:
                best, bound = at, lower(made[at], level, self.delta)
        p = min(1.0, len(made) * min(values.values()))
        return Verdict(
            self.epsilon, self.delta, m, len(scores), best[0], made[best], p, bound,
            ceiling(m, level, self.delta), p < ERROR,
        )  # fmt: skip


def lower(of: Guesses, error: float, delta: float) -> float:
    """Return the largest epsilon that guesses refute at an error; 0 if they refute none.

    >>> round(lower(Guesses(100, 100, 100), 0.025, 0.0), 2)
    3.28
    """
    from scipy.optimize import brentq

    if p_value(of, 0.0, delta) >= error:
        return 0.0
    return float(brentq(lambda e: p_value(of, e, delta) - error, 0.0, _LARGEST))


def most(coins: int) -> float:
    """Return what one perfect attack would show by so many coins, at the smallest delta.

    >>> round(most(500), 1)
    4.7
    """
    return ceiling(coins, ERROR / len(SHARES), 0.0)


@cache
def ceiling(coins: int, error: float, delta: float) -> float:
    """Return the largest epsilon that a perfect attack refutes at an error."""
    ranks = np.arange(coins, dtype=np.float64)
    perfect = (guesses(ranks, ranks >= coins // 2, share) for share in SHARES)
    return max(lower(of, error, delta) for of in perfect)


def claimed(
    claim: str | Sequence[float] | None, coins: str | Path | None, rows: Rows
) -> Claim | None:
    """Return the claim with its coins; None if nothing is claimed.

    Args:
        claim: (epsilon, delta), or a text "epsilon,delta".
        coins: seed file of ``privbench.coins``.
        rows: of the audit.

    Raises:
        BadInputError: if the claim is none, or the coins are about other rows.
    """
    if claim is None and coins is None:
        return None
    if claim is None:
        raise BadInputError(f"coins: they test a claim: {_HOW}")
    epsilon, delta = _pair(claim)
    if coins is None:
        raise BadInputError("claim: it is tested by coins that were tossed before training: give "
                            "the seed file of `privbench coins`")  # fmt: skip
    tossed = read_coins(coins)
    place = {source: _places(rows, source) for source in ("members", "nonmembers")}
    included = tossed.included
    known = place["members"].keys() | place["nonmembers"].keys()
    if not known.intersection(tossed.candidates):
        advice = "give the rows that were tossed, as they were"
        if not rows.finite_numbers:
            advice = "coins are about arrays of numbers, so give such members and nonmembers (.npz)"
        raise BadInputError(f"coins {shown(str(coins), 200)}: they are about other rows: none of "
                            f"their {len(included):,} candidates is among the members or "
                            f"nonmembers: {advice}")  # fmt: skip
    at = []
    for one, inside in zip(tossed.candidates, included, strict=True):
        at.append(place["members" if inside else "nonmembers"].get(one, -1))
    places = np.array(at)
    _refuse_missing(tossed.candidates, included, places, place)
    return Claim(epsilon, delta, places, included)


def _places(rows: Rows, source: str) -> dict[str, int]:
    at = rows.of(source)
    return {rows.fingerprints[i]: i for i in reversed(range(at.start, at.stop))}


def _refuse_missing(
    candidates: Sequence[str], included: NDArray[np.bool_], places: NDArray[np.int64],
    place: Mapping[str, Mapping[str, int]],
) -> None:  # fmt: skip
    """Refuse members that the coins exclude, and files that lack a candidate."""
    for source, other, wanted, what in (
        ("members", "nonmembers", included, "include"),
        ("nonmembers", "members", ~included, "exclude"),
    ):
        lacking = [candidates[i] for i in np.flatnonzero(wanted & (places < 0)).tolist()]
        if not lacking:
            continue
        wrong = sum(one in place[other] for one in lacking)
        where = f"; {wrong:,} of them are among the {other}" if wrong else ""
        raise BadInputError(f"{source}: {len(lacking):,} of the {int(wanted.sum()):,} rows that "
                            f"the coins {what} are not among them{where}: give the two files that "
                            "`privbench coins` wrote, and train on the first")  # fmt: skip


def _pair(claim: str | Sequence[float]) -> tuple[float, float]:
    told = f"claim {shown(claim) if isinstance(claim, str) else shown(str(claim))}"
    parts = claim.split(",") if isinstance(claim, str) else claim
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != _PAIR or not all(map(math.isfinite, numbers)):
        raise BadInputError(f"{told}: it is not a pair of numbers: {_HOW}")
    epsilon, delta = numbers
    if epsilon <= 0:
        raise BadInputError(f"{told}: epsilon must be above 0: {_HOW}")
    if delta == 0:
        raise BadInputError(f"{told}: delta is 0, which no training with Gaussian noise reaches: "
                            "give the delta of your accountant, such as 1e-5")  # fmt: skip
    if not 0 < delta < 1:
        raise BadInputError(f"{told}: delta must be between 0 and 1: {_HOW}")
    return epsilon, delta
