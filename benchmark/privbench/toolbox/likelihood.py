"""Evidence of membership: signals of rows by the attacked model and by shadow models.

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
from typing import TYPE_CHECKING

import torch

from privbench.measure.data.augmentation import Augmentation
from privbench.measure.games.metrics import best_threshold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext, Shadow
    from privbench.measure.methods.oracle import Oracle

    Ask = Callable[[Oracle, Examples], Tensor]
    Signal = Callable[[Tensor, Tensor], Tensor]

#: The first view of a row, and LiRA's flips and shifts, narrowed to what the dataset allows.
MIRROR, VIEWS = Augmentation(flip=1.0), Augmentation(flip=0.5, shift=4)
#: Added to the variances of views, relative to their mean, so that equal views can be joined.
_RIDGE = 1e-6
#: Log of the value used for a posterior of exactly 0: the floor of the authors' LiRA code.
FLOOR = math.log(1e-45)
#: Log-posterior that a served victim returns for a posterior that a release has set to 0.
ZERO = torch.tensor(torch.finfo(torch.float64).tiny, dtype=torch.float64).log().item()


# ---- signals -------------------------------------------------------------------------------------


def log_confidence(log_p: Tensor, y: Tensor) -> Tensor:
    """Return log p_y: (n, ..., k), (n,) -> (n, ...), finite; NaN where y is -1.

    >>> log_confidence(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([0, 0])).exp()
    tensor([0.5000, 0.9000], dtype=torch.float64)
    """
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


def of_views(ctx: AttackContext, views: int, signal: Signal = scaled_logit) -> Ask:
    """Return what asks the signal (n, v) of each row and of views of it.

    Args:
        ctx: of the attack.
        views: images are asked in up to so many views beside themselves, so ``v - 1``: the mirror
            image, where the dataset allows it, and then random ``VIEWS``.
        signal: (log_p (n, ..., classes), y (n,)) -> (n, ...).
    """
    limits = ctx.card.limits if ctx.card.kind == "image" else None
    mirrored = views > 0 and limits is not None and MIRROR.within(limits).flip > 0
    others = max(0, views - 1) if limits is not None else 0

    def ask(oracle: Oracle, rows: Examples) -> Tensor:
        signals = [signal(oracle.log_posteriors(rows), rows.y).unsqueeze(1)]
        for augmentation, n in ((MIRROR, int(mirrored)), (VIEWS, others)):
            if n:
                answers = oracle.log_posteriors(ctx.views(rows, augmentation, n))
                signals.append(signal(answers, rows.y))
        return torch.cat(signals, dim=1)

    return ask


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

    def joined(self, weights: Tensor) -> Evidence:
        """Return the same with one signal for each row: the sum of its views' by weights.

        Args:
            weights: (v,), so that signals are (n,) and (shadows, n), or (v, 1) for (n, 1) and
                (shadows, n, 1).
        """
        return Evidence(self.asked @ weights, self.known @ weights, self.inside)


def observe(ask: Ask, oracle: Oracle, shadows: Sequence[Shadow], *parts: Examples) -> Evidence:
    """Query the oracle and every shadow on the rows of all parts, concatenated."""
    asked = torch.cat([ask(oracle, rows) for rows in parts])
    known, inside = watch(ask, shadows, *parts)
    return Evidence(asked, known, inside.to(asked.device))


def watch(ask: Ask, shadows: Sequence[Shadow], *parts: Examples) -> tuple[Tensor, Tensor]:
    """Query every shadow on all parts: signals (k, n, ...) and which shadow holds a row (k, n)."""
    known = [torch.cat([ask(shadow.oracle, rows) for rows in parts]) for shadow in shadows]
    inside = [torch.cat([s.world.contains(rows) for rows in parts]) for s in shadows]
    return torch.stack(known), torch.stack(inside)


def weights_of_views(known: Tensor, inside: Tensor) -> Tensor:
    """Return how much each view's signal counts, (v,) from 0 to 1, with a sum of 1.

    Of all weights from 0 on they are those whose sum tells a row's shadows with it best from its
    shadows without it (Fisher's linear discriminant), in units of each row's own spread over
    shadows of one sort. A view on which shadows were not trained so counts little, two that err
    alike count as one. Views that never vary do not count. Where shadows show no difference, or no
    row has shadows of both sorts and several of one, all views count alike. They have four
    decimals, so that the order of the rows hardly changes them.

    Args:
        known: (k, n, v) signals; NaN ones do not count.
        inside: (k, n) bool.

    >>> inside = torch.tensor([[True], [True], [False], [False]])
    >>> noise = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, -2.0], [-1.0, 2.0]]).double()
    >>> weights_of_views(noise[:, None] + 1.0 * inside[..., None], inside)
    tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    from scipy.optimize import nnls

    views = known.shape[-1]
    alike = known.new_full((views,), 1 / views)
    if views == 1:
        return alike
    known = known.double()
    held = inside.to(known.device).unsqueeze(-1)
    centres = [mean(known, side & ~known.isnan(), (0,)) for side in (held, ~held)]
    gap = centres[0] - centres[1]
    some = ~gap.isnan().any(-1)
    residual = torch.where(held, known - centres[0], known - centres[1])[:, some]
    spread = residual.square().mean((0, 2)).sqrt()
    varied = spread > _RIDGE
    if not varied.any():
        return alike
    residual = (residual[:, varied] / spread[varied, None]).flatten(0, 1)
    of = residual.T @ residual / len(residual)
    least = of.diagonal() > _RIDGE * of.diagonal().max()
    mean_gap = torch.where(least, (gap[some][varied] / spread[varied, None]).mean(0), 0.0)
    root = torch.linalg.cholesky(of + _RIDGE * torch.eye(views).to(of))
    target = torch.linalg.solve_triangular(root, mean_gap[:, None], upper=False)[:, 0]
    found, _ = nnls(root.T.cpu().numpy(), target.cpu().numpy())
    weights = torch.from_numpy(found).to(alike)
    return (weights / weights.sum()).round(decimals=4) if weights.sum() > 0 else alike


def mean(known: Tensor, mask: Tensor, over: tuple[int, ...]) -> Tensor:
    """Average (k, n, v) over some axes where ``mask`` (k, n, v) holds; NaN where it never does."""
    return torch.where(mask, known, 0.0).sum(over) / mask.sum(over)


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
