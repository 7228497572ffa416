"""Likelihood ratios: how likely is a row's signal under shadows with it, and under those without?

The signals of a row over shadows get one distribution for the shadows that hold the row and one
for the others: a Gaussian, or a Student t that knows from how few shadows it was estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from privbench.measure.games.membership import Membership
from privbench.toolbox.likelihood import mean, observe, stand_in, threshold, weights_of_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import Shadow
    from privbench.measure.methods.oracle import Oracle
    from privbench.toolbox.likelihood import Ask, Evidence

Location = Literal["mean", "median"]
#: How the variance of a row's signal is estimated, see ``fit``.
Kind = Literal["pooled", "per-example", "bayes"]
#: The same, or by the number of shadows, see ``kind``.
Variance = Literal["auto", "pooled", "per-example", "bayes"]

#: Smallest standard deviation, in the signal's unit: shadows that agree to the last bit (with a
#: release that rounds) would make every other answer infinitely unlikely.
LEAST = 1e-3
#: Used as the logarithm's argument for a variance of 0.
NOTHING = 1e-12
#: With at least this many shadows of each sort for every row, ``auto`` estimates one variance per
#: row: the paper does so from 64 shadows on, half of which hold a row.
FEWEST = 32


# ---- the distribution of a row's signal ----------------------------------------------------------


@dataclass(frozen=True)
class Predictive:
    """What signal to expect of each row: a Student t, or a Gaussian where ``free`` is infinite.

    Attributes:
        centre: (n, v), NaN where nothing is known.
        scale: (n, v), at least ``LEAST``.
        free: (n, v) degrees of freedom, above 0.
    """

    centre: Tensor
    scale: Tensor
    free: Tensor

    def log_density(self, signal: Tensor) -> Tensor:
        """Return the log-density (n, v) of a signal (n, v)."""
        t, half = (signal - self.centre) / self.scale, self.free / 2
        gauss = -0.5 * t.square() - 0.5 * math.log(2 * math.pi)
        norm = torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * (math.pi * self.free).log()
        student = norm - (half + 0.5) * (t.square() / self.free).log1p()
        return torch.where(self.free.isinf(), gauss, student) - self.scale.log()

    def deviations(self, signal: Tensor) -> Tensor:
        """Return how many standard deviations of a Gaussian are as unlikely as the signal, (n, v).

        For a Student t an approximation: up to 6 within 1 % from 8 degrees of freedom on, within
        3 % from 4 on. Unlike the tail's probability, it does not end at 1.
        """
        t = (signal - self.centre) / self.scale
        bent = (self.free * (t.square() / self.free).log1p()).sqrt() * t.sign()
        bent = bent * (8 * self.free + 1) / (8 * self.free + 3)
        return torch.where(self.free.isinf(), t, bent)


def fit(
    known: Tensor, held: Tensor, location: Location, kind: Kind, others: Tensor | None = None
) -> Predictive:
    """Return the distribution of each row's signal over the shadows in ``held``.

    Args:
        known: (k, n, v) signals; NaN ones do not count.
        held: (k, n) bool, which of them count.
        location: of a row and view; also the centre that residuals are taken from.
        kind: ``pooled`` has one variance for all rows and views, that of the *residuals* (so it
            excludes the spread between rows). ``per-example`` has one for each row and view; a row
            that was observed once or never takes the pooled one. ``bayes`` is the posterior
            predictive under an inverse-gamma prior of a row's variance and a flat one of its mean:
            a Student t around the location. The prior is estimated by ``variance_prior``. With few
            shadows it is close to ``pooled``, with many to ``per-example``.
        others: (k, n) bool, which of them have about the same variances. If no row was observed
            twice in ``held``, the residuals are theirs; without these, all take the spread over
            all rows.

    Returns:
        Shapes (n, v); the centre is NaN where nothing counts.
    """
    mask = held.unsqueeze(-1) & ~known.isnan()
    centre, square, count = _residuals(known, mask, location)
    free = (count - 1).clamp_min(0)
    if others is not None and not free.any():
        _, square, seen = _residuals(known, others.unsqueeze(-1) & ~known.isnan(), location)
        free = (seen - 1).clamp_min(0)
    overall = square.sum() / free.sum()
    if not free.any():
        overall = mean((known - mean(known, mask, (0, 1))).square(), mask, (0, 1)).mean()
    beyond = torch.full_like(square, math.inf)
    if kind == "bayes":
        variance = overall
        if free.any():
            strength, usual = variance_prior(square[free > 0] / free[free > 0], free[free > 0])
            beyond = free + strength
            variance = torch.where(beyond.isinf(), usual, (strength * usual + square) / beyond)
        variance = variance * (1 + 1 / count.clamp_min(1))  # the mean is estimated too
    else:
        variance = torch.where((free > 0) & (kind == "per-example"), square / free, overall)
    return Predictive(centre, variance.sqrt().clamp_min(LEAST), beyond)


def _residuals(known: Tensor, mask: Tensor, location: Location) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's location, sum of squares around it, and number of signals, (n, v) each."""
    centre = _median(known, mask) if location == "median" else mean(known, mask, (0,))
    square = torch.where(mask, known - centre, 0.0).square().sum(0)
    return centre, square, mask.sum(0)


def variance_prior(variances: Tensor, free: Tensor) -> tuple[float, float]:
    """Estimate the prior of variances of which each was estimated with few degrees of freedom.

    The prior is a scaled inverse chi-square: as if ``strength`` more deviations of variance
    ``usual`` had been seen. Both follow from mean and variance of the logarithms of the estimates
    (moments of Smyth, 2004, as in the package limma).

    Args:
        variances: (m,) unbiased estimates.
        free: (m,) degrees of freedom of each, at least 1.

    Returns:
        strength, infinite if the variances differ no more than by chance; usual, then their mean.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    half = free.double() / 2
    logs = variances.clamp_min(NOTHING).log() - torch.special.digamma(half) + half.log()
    excess = float(logs.var() - torch.special.polygamma(1, half).mean()) if len(logs) > 1 else 0.0
    least, most = 1e-2, 1e6
    if excess <= polygamma(1, most):
        return math.inf, float((free * variances).sum() / free.sum())
    excess = min(excess, float(polygamma(1, least)))
    found = brentq(lambda x: polygamma(1, x) - excess, least, most, xtol=1e-9)
    usual = float(logs.mean().exp()) * math.exp(float(digamma(found))) / found
    return 2 * found, usual


def kind(variance: Variance, evidence: Evidence, *, online: bool) -> Kind:
    """Resolve ``auto``: per-example if every labelled row has ``FEWEST`` shadows of each sort.

    Otherwise ``bayes``, which needs no such number.

    Online, sorts are shadows with and without the row; offline, only those without it. What counts
    is the row with the fewest: in a world of a fifth of the rows, few shadows hold one.
    """
    if variance != "auto":
        return variance
    asked = ~evidence.asked.isnan().any(1)
    counts = [(~evidence.inside).sum(0)[asked]] + [evidence.inside.sum(0)[asked]] * online
    enough = asked.any() and min(int(count.min()) for count in counts) >= FEWEST
    return "per-example" if enough else "bayes"


def shrunk(
    member: Predictive, other: Predictive, with_it: Tensor, without: Tensor
) -> tuple[Predictive, Predictive]:
    """Return both distributions with gaps between them that lie closer to the usual gap.

    A gap between two means of eight shadows errs by half a standard deviation. Gaps in units of a
    row's standard deviation get a normal prior, whose mean and variance are estimated from all
    rows, and each becomes its posterior mean. Where the leak is weak they are nearly alike, where
    it is strong nearly unchanged. Both means follow from the gap and from all shadows of the row.

    Args:
        member: of ``fit`` with ``bayes``.
        other: the same, of the shadows without the row.
        with_it: (n, v) number of shadows that ``member`` comes from.
        without: (n, v) number of shadows that ``other`` comes from.
    """
    counts = with_it.double(), without.double()
    held, rest = (
        of.scale.square() / (1 + 1 / count.clamp_min(1))
        for of, count in zip((member, other), counts, strict=True)
    )
    scale = ((held + rest) / 2).sqrt()
    gap = (member.centre - other.centre) / scale
    error = (held / counts[0] + rest / counts[1]) / scale.square()
    some = ~gap.isnan()
    if not some.any():
        return member, other
    usual = (gap[some] / error[some]).sum() / (1 / error[some]).sum()
    spread = ((gap[some] - usual).square() - error[some]).mean().clamp_min(0)
    gap = (usual * error + spread * gap) / (error + spread) * scale
    weight = counts[0] / held, counts[1] / rest
    base = (weight[1] * other.centre + weight[0] * (member.centre - gap)) / (weight[0] + weight[1])
    left = 1 / (weight[0] + weight[1])
    return (
        Predictive(torch.where(some, base + gap, member.centre),
                   torch.where(some, (held + left).sqrt().clamp_min(LEAST), member.scale),
                   member.free),
        Predictive(torch.where(some, base, other.centre),
                   torch.where(some, (rest + left).sqrt().clamp_min(LEAST), other.scale),
                   other.free),
    )  # fmt: skip


# ---- scores --------------------------------------------------------------------------------------


def z_score(evidence: Evidence, location: Location = "mean", kind: Kind = "pooled") -> Tensor:
    """Return standard deviations of each signal above the nonmembers': mean over views, (n,).

    Only shadows that did not train on the row count; NaN if all did, or without a label.
    """
    without = fit(evidence.known, ~evidence.inside, location, kind)
    return without.deviations(evidence.asked).mean(1)


def log_ratio(evidence: Evidence, location: Location = "mean", kind: Kind = "pooled") -> Tensor:
    """Return the log-likelihood ratio of "member" to "nonmember": mean over views, (n,).

    For a row that was never a member, the member location is its nonmember location, shifted by
    the difference between the mean signals of all members and of all nonmembers; likewise in
    reverse for one that always was. Where no row has two shadows of one sort, its variances are
    taken from the other sort: members must not vary much more. NaN without a label.
    """
    known, inside = evidence.known, evidence.inside
    mask, some = inside.unsqueeze(-1), ~known.isnan()
    member = fit(known, inside, location, kind, ~inside)
    other = fit(known, ~inside, location, kind, inside)
    if kind == "bayes":
        member, other = shrunk(member, other, *((held & some).sum(0) for held in (mask, ~mask)))
    shift = mean(known, mask & some, (0, 1)) - mean(known, ~mask & some, (0, 1))
    never, always = member.centre.isnan(), other.centre.isnan()
    centre = torch.where(never, other.centre + shift, member.centre)
    member = Predictive(centre, member.scale, member.free)
    centre = torch.where(always, centre - shift, other.centre)
    other = Predictive(centre, other.scale, other.free)
    return (member.log_density(evidence.asked) - other.log_density(evidence.asked)).mean(1)


def likelihood_ratio(
    ask: Ask, oracle: Oracle, rows: Examples, shadows: Sequence[Shadow], *,
    online: bool, location: Location = "mean", variance: Variance = "auto",
    weigh: Callable[[Tensor, Tensor], Tensor] = weights_of_views,
) -> Membership:  # fmt: skip
    """Run LiRA (Carlini and others, IEEE S&P 2022, algorithm 1) on any signal.

    The ``answer`` of an attack that requests shadows which do not see the candidates:

    >>> def answer(self, oracle, question, ctx):
    ...     def confidence(oracle, rows):
    ...         return oracle.posteriors(rows).amax(1, keepdim=True).log()
    ...     return likelihood_ratio(
    ...         confidence, oracle, question.examples, ctx.shadows, online=False)

    Online (shadows trained on subsets of the rows) the score is ``log_ratio``, with threshold 0.
    Offline it is ``z_score``; the threshold is the best on a stand-in, and without a stand-in there
    are no decisions. A row without a label scores 0 and is not called a member.

    Args:
        ask: (oracle, rows) -> signals (n, v) in one unit, of v queries of each row; for example
            ``of_views`` of ``privbench.toolbox.likelihood``.
        oracle: the victim's.
        rows: the candidate rows.
        shadows: trained on subsets of the rows if online, else on the adversary's own rows.
        online: which of the two.
        location: see ``fit``.
        variance: see ``kind`` and ``fit``.
        weigh: of the signals: what the shadows answered (k, n, v), and who held a row (k, n), ->
            (v,). For signals of any unit ``weights_of_traces`` of ``privbench.toolbox.traces``.
    """
    evidence = observe(ask, oracle, shadows, rows)
    chosen = kind(variance, evidence, online=online)
    notes: dict[str, float | str] = {"variance": chosen}
    if online:
        notes["fewest shadows that hold a row"] = float(evidence.inside.sum(0).min())
        evidence = evidence.joined(weigh(evidence.known, evidence.inside)[:, None])
        scores = log_ratio(evidence, location, chosen)
        return Membership(scores.nan_to_num(0.0), scores >= 0, notes)
    known = stand_in(shadows, fewest=2)  # a standard deviation needs two
    if known is None:
        scores = z_score(evidence, location, chosen)
        return Membership(scores.nan_to_num(0.0), None, notes)
    trial = observe(ask, known.oracle, known.judges, *known.parts)
    weights = weigh(trial.known, trial.inside)[:, None]
    scores = z_score(evidence.joined(weights), location, chosen)
    limit = threshold(z_score(trial.joined(weights), location, chosen), known.member)
    decisions = scores >= limit
    return Membership(scores.nan_to_num(0.0), decisions, {**notes, "threshold": limit})


def _median(known: Tensor, mask: Tensor) -> Tensor:
    """Return the median (n, v) over shadows in ``mask`` (k, n, v); of two middle ones, the mean."""
    rising = known.masked_fill(~mask, math.inf).sort(0).values
    count = mask.sum(0)
    middle = torch.stack([(count - 1) // 2, count // 2]).clamp(0, len(known) - 1)
    return rising.gather(0, middle).mean(0).masked_fill(count == 0, math.nan)
