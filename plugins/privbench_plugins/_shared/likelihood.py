"""Likelihood ratios: signals of rows, and how shadow models judge them.

Signals are float64 tensors (shadows, rows, views) with a mask (shadows, rows) of who was a
member; statistics run over the shadows of a row, never over a loop of rows. The signal of a row
without a label is NaN: it is left out of all statistics, and the row gets a neutral score.

A threshold comes from a *stand-in*: the first shadow takes the victim's place and the other shadows
judge it, except those that share no member with it. These come from the same draw (worlds are
drawn in complementary blocks), so none of their members is a member of the stand-in: they would
reveal its membership.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from privbench import Membership, best_threshold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench import Examples, Oracle, Shadow

    Ask = Callable[[Oracle, Examples], Tensor]

Location = Literal["mean", "median"]
Variance = Literal["auto", "per-example", "pooled"]

#: Log of the value used for a posterior of exactly 0: the floor of the authors' LiRA code.
FLOOR = math.log(1e-45)
#: Log-posterior that a served victim returns for a posterior that a release has set to 0.
ZERO = torch.tensor(torch.finfo(torch.float64).tiny, dtype=torch.float64).log().item()
#: Smallest standard deviation, in the signal's unit: shadows that agree to the last bit (with a
#: release that rounds) would make every other answer infinitely unlikely.
LEAST = 1e-3
#: With at least this many shadows, ``auto`` estimates one variance per row.
MANY = 64


# ---- signals -------------------------------------------------------------------------------------


def log_confidence(log_p: Tensor, y: Tensor) -> Tensor:
    """Return log p_y: (n, ..., k), (n,) -> (n, ...), finite; NaN where y is -1."""
    return floored(split(log_p, y)[0])


def scaled_logit(log_p: Tensor, y: Tensor) -> Tensor:
    """Return ``log p_y - log(1 - p_y)``, which is ``z_y - logsumexp`` of the other logits.

    Args:
        log_p: (n, ..., k) log-posteriors or logits.
        y: (n,) classes, -1 where unknown.

    Returns:
        (n, ...), finite; NaN where y is -1.

    >>> float(scaled_logit(torch.tensor([[1000.0, 0, 0]]).double(), torch.tensor([0])))
    999.3068528194401
    """
    own, others = split(log_p, y)
    return floored(own) - floored(others.logsumexp(-1))


def hinge(log_p: Tensor, y: Tensor) -> Tensor:
    """Return ``z_y`` minus the largest other logit: (n, ..., k), (n,) -> (n, ...); NaN for y = -1.

    >>> hinge(torch.tensor([[5.0, 2, 3]]), torch.tensor([1])).tolist()
    [-3.0]
    """
    own, others = split(log_p, y)
    return floored(own) - floored(others.amax(-1))


def split(log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values (n, ...) float64 of y, NaN where y is -1, and all others (-inf at y)."""
    log_p = log_p.double()
    log_p = log_p.masked_fill(log_p == ZERO, -math.inf)
    at = y.to(log_p.device).view(-1, *[1] * (log_p.ndim - 1)).expand(*log_p.shape[:-1], 1)
    some = at.clamp_min(0)
    own = log_p.gather(-1, some).masked_fill(at < 0, math.nan)
    return own.squeeze(-1), log_p.scatter(-1, some, -math.inf)


def floored(value: Tensor) -> Tensor:
    """Replace the log of 0 by ``FLOOR``."""
    return value.masked_fill((value == -math.inf) | (value == ZERO), FLOOR)


# ---- shadows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Signals of the same rows by the attacked model and by shadows.

    Attributes:
        asked: (n, ...) by the attacked model.
        known: (k, n, ...) by the shadows.
        inside: (k, n) bool, which row was a member of which shadow.
    """

    asked: Tensor
    known: Tensor
    inside: Tensor


def observe(ask: Ask, oracle: Oracle, shadows: Sequence[Shadow], *parts: Examples) -> Evidence:
    """Query the oracle and every shadow on the rows of all parts, concatenated."""
    asked = torch.cat([ask(oracle, rows) for rows in parts])
    known = [torch.cat([ask(shadow.oracle, rows) for rows in parts]) for shadow in shadows]
    inside = [torch.cat([s.world.contains(rows) for rows in parts]) for s in shadows]
    return Evidence(asked, torch.stack(known), torch.stack(inside).to(asked.device))


@dataclass(frozen=True)
class StandIn:
    """A shadow in the victim's place.

    Attributes:
        oracle: of the shadow.
        judges: the shadows that judge it.
        parts: rows to query it on.
        member: (n,) bool, which of those are its members.
    """

    oracle: Oracle
    judges: tuple[Shadow, ...]
    parts: tuple[Examples, ...]
    member: Tensor


def stand_in(
    shadows: Sequence[Shadow], rows: Examples | None = None, fewest: int = 1
) -> StandIn | None:
    """Use the first shadow as a victim whose members are known.

    Args:
        shadows: of one origin.
        rows: to query, for shadows trained on subsets of these; None for the stand-in's members
            and nonmembers.
        fewest: minimum number of judges.

    Returns:
        None if fewer shadows may judge it, or if there are no members or no nonmembers.
    """
    first, *others = shadows
    judges = tuple(s for s in others if bool(s.world.contains(first.world.members).any()))
    parts = (first.world.members, first.nonmembers) if rows is None else (rows,)
    member = torch.cat([first.world.contains(part) for part in parts])
    if len(judges) < fewest or not member.any() or member.all():
        return None
    return StandIn(first.oracle, judges, parts, member)


def threshold(scores: Tensor, member: Tensor) -> float:
    """Return the best threshold on scores (n,) of a stand-in, ignoring NaN.

    It is infinite (no row is called a member) if this leaves no members or no nonmembers.
    """
    scores, member = scores.cpu(), member.cpu()
    scores, member = scores[~scores.isnan()], member[~scores.isnan()]
    if not member.any() or member.all():
        return math.inf
    return best_threshold(scores.numpy(), member.numpy()).overall


# ---- Gaussians of a row --------------------------------------------------------------------------


def normal(
    known: Tensor, held: Tensor, location: Location = "mean", *, pooled: bool = True
) -> tuple[Tensor, Tensor]:
    """Return location and standard deviation of each row's signals over the shadows in ``held``.

    Args:
        known: (k, n, v) signals.
        held: (k, n) bool, which of them count.
        location: of a row and view.
        pooled: use one standard deviation for all rows and views, from the *residuals* of the
            signals that count (so it excludes the spread between rows); else one for each row and
            view. A row that was observed once or never takes the pooled one. If no row was
            observed twice, there are no residuals, and it is the spread over all rows.

    Returns:
        (n, v) location, NaN where nothing counts; (n, v) standard deviation, at least ``LEAST``.
    """
    mask = held.unsqueeze(-1) & ~known.isnan()
    count = mask.sum(0)
    centre = _median(known, mask) if location == "median" else _mean(known, mask, (0,))
    square = torch.where(mask, known - centre, 0.0).square().sum(0)
    free = (count - 1).clamp_min(0)
    overall = square.sum() / free.sum()
    if not free.any():
        overall = _mean((known - _mean(known, mask, (0, 1))).square(), mask, (0, 1)).mean()
    variance = torch.where((free > 0) & (not pooled), square / free, overall)
    return centre, variance.sqrt().clamp_min(LEAST)


def z_score(evidence: Evidence, location: Location = "mean", *, pooled: bool = True) -> Tensor:
    """Return standard deviations of each signal above the nonmembers': mean over views, (n,).

    Only shadows that did not train on the row count; NaN if all did, or without a label.
    """
    centre, spread = normal(evidence.known, ~evidence.inside, location, pooled=pooled)
    return ((evidence.asked - centre) / spread).mean(1)


def log_ratio(evidence: Evidence, location: Location = "mean", *, pooled: bool = True) -> Tensor:
    """Return the log-likelihood ratio of "member" to "nonmember": mean over views, (n,).

    For a row that was never a member, the member location is its nonmember location, shifted by
    the difference between the mean signals of all members and of all nonmembers; likewise in
    reverse for one that always was. NaN without a label.
    """
    known, inside = evidence.known, evidence.inside
    mask, some = inside.unsqueeze(-1), ~known.isnan()
    mean_in, std_in = normal(known, inside, location, pooled=pooled)
    mean_out, std_out = normal(known, ~inside, location, pooled=pooled)
    shift = _mean(known, mask & some, (0, 1)) - _mean(known, ~mask & some, (0, 1))
    never, always = mean_in.isnan(), mean_out.isnan()
    mean_in = torch.where(never, mean_out + shift, mean_in)
    mean_out = torch.where(always, mean_in - shift, mean_out)
    gain = (evidence.asked - mean_out) / std_out, (evidence.asked - mean_in) / std_in
    return (0.5 * (gain[0].square() - gain[1].square()) + (std_out / std_in).log()).mean(1)


def gaussian_attack(
    ask: Ask, oracle: Oracle, rows: Examples, shadows: Sequence[Shadow], *,
    online: bool, location: Location, variance: Variance,
) -> Membership:  # fmt: skip
    """Run LiRA on any signal.

    Online (shadows trained on subsets of the rows) the score is ``log_ratio``, with threshold 0.
    Offline it is ``z_score``; the threshold is the best on a stand-in, and without a stand-in there
    are no decisions. A row without a label scores 0 and is not called a member.

    Args:
        ask: signal (n, v) of rows by an oracle.
        oracle: the victim's.
        rows: the candidate rows.
        shadows: trained on subsets of the rows if online, else on the adversary's own rows.
        online: which of the two.
        location: see ``normal``.
        variance: ``auto`` is per-example from ``MANY`` shadows on.
    """
    pooled = variance == "pooled" or (variance == "auto" and len(shadows) < MANY)
    evidence = observe(ask, oracle, shadows, rows)
    notes: dict[str, float | str] = {"variance": "pooled" if pooled else "per-example"}
    if online:
        scores = log_ratio(evidence, location, pooled=pooled)
        notes["fewest shadows that hold a row"] = float(evidence.inside.sum(0).min())
        return Membership(scores.nan_to_num(0.0), scores >= 0, notes)
    scores = z_score(evidence, location, pooled=pooled)
    known = stand_in(shadows, fewest=2)  # a standard deviation needs two
    if known is None:
        return Membership(scores.nan_to_num(0.0), None, notes)
    trial = observe(ask, known.oracle, known.judges, *known.parts)
    limit = threshold(z_score(trial, location, pooled=pooled), known.member)
    decisions = scores >= limit
    return Membership(scores.nan_to_num(0.0), decisions, {**notes, "threshold": limit})


def _mean(known: Tensor, mask: Tensor, over: tuple[int, ...]) -> Tensor:
    """Average (k, n, v) over some axes where ``mask`` (k, n, v) holds; NaN where it never does."""
    return torch.where(mask, known, 0.0).sum(over) / mask.sum(over)


def _median(known: Tensor, mask: Tensor) -> Tensor:
    """Return the median (n, v) over shadows in ``mask`` (k, n, v); of two middle ones, the mean."""
    rising = known.masked_fill(~mask, math.inf).sort(0).values
    count = mask.sum(0)
    middle = torch.stack([(count - 1) // 2, count // 2]).clamp(0, len(known) - 1)
    return rising.gather(0, middle).mean(0).masked_fill(count == 0, math.nan)
