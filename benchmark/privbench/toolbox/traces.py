"""What training on a row leaves in a model's embeddings, and in the logits of its head.

Each trace is a signal of a row that lies elsewhere in models that were trained on the row:

- ``similarity``: an encoder puts the views of a member close together (Aerni, Zhang, Tramèr:
  Evaluations of Machine Learning Privacy Defenses are Misleading, CCS 2024).
- ``Axes.leverage``: it puts a member where few other embeddings lie, as an encoder learns to tell
  its members apart.
- ``bands`` of labels: a member's embedding says its label, more than those of the other rows
  explain.
- ``bands`` of logits: a head is a linear map of embeddings. A member moves it by the inverse
  Hessian times the member's gradient, most in directions that few embeddings have (Suri, Zhang,
  Evans, TMLR 2024, the inverse Hessian attack).

The second and third are our own. They compare a row with all rows in question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional as F

from privbench.measure.data.augmentation import Augmentation
from privbench.toolbox.likelihood import ZERO, mean, scaled_logit

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle
    from privbench.toolbox.likelihood import Ask

#: The same as EncoderMI's, so that attacks share the answers.
VIEWS = Augmentation(crop=(0.2, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grey=0.2)
#: Smallest distance of a cosine from 1 or -1 that is used (float64 cosines are exact to 1e-16).
NEAREST = 1e-12
#: Strengths of the ridge regressions, in units of the mean variance of an embedding's numbers.
STRENGTHS = (0.003, 0.03, 0.3, 3.0, 30.0)
#: Embeddings that vary by less, as a share of their mean square, do not vary; nor do zeros.
RESOLUTION, TINY = 1e-14, 1e-30
#: Embeddings of more numbers are averaged over neighbouring ones to so many.
WIDEST = 2048
#: Embeddings longer than so many times the median are shortened to that: one row hides no other.
LONGEST = 10
#: Signals that vary by less over shadows do not vary.
STILL = 1e-9
#: Added to the variances of standardised signals, so that equal ones can be joined.
RIDGE = 1e-2


# ---- views ---------------------------------------------------------------------------------------


def has_views(card: Card) -> bool:
    """Whether rows are images that may be augmented."""
    return card.kind == "image" and card.limits is not None


def similarity(embeddings: Tensor) -> Tensor:
    """Return the mean over pairs of views of ``log((1 + c) / (1 - c))``, where c is their cosine.

    Args:
        embeddings: (rows, n, d).

    Returns:
        (rows,) float64, within ±28.4, so finite for equal views.

    >>> similarity(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [3.0, 4.0]]]))
    tensor([0.0000, 1.3863], dtype=torch.float64)
    """
    unit = F.normalize(embeddings.double(), dim=-1)
    n = unit.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=unit.device)
    cosines = (unit @ unit.transpose(1, 2))[:, first, second]
    near, far = (1 + cosines).clamp_min(NEAREST), (1 - cosines).clamp_min(NEAREST)
    return (near.log() - far.log()).mean(1)


# ---- rare directions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Axes:
    """Embeddings of n rows along their principal axes; their unit and mean do not count.

    Attributes:
        at: (n, r) float64 places, with mean 0 along each axis.
        variance: (r,) along each axis.
        unit: () mean variance of an embedding's numbers, above 0.
    """

    at: Tensor
    variance: Tensor
    unit: Tensor

    @classmethod
    def of(cls, embeddings: Tensor) -> Self:
        """Decompose embeddings (n, d); numbers that are not finite count as 0."""
        x = embeddings.double()
        x = torch.where(x.isfinite(), x, 0.0)
        if x.shape[1] > WIDEST:
            x = F.adaptive_avg_pool1d(x.unsqueeze(0), WIDEST).squeeze(0)
        x = x / x.abs().max().clamp_min(TINY)
        length = x.norm(dim=1, keepdim=True)
        x = x * (LONGEST * length.median() / length.clamp_min(TINY)).clamp(TINY, 1)
        x = x / x.abs().max().clamp_min(TINY)
        least = RESOLUTION * x.square().mean() + TINY
        x = x - x.mean(0)
        n, d = x.shape
        unit = torch.maximum(x.square().mean(), least)
        if d > n:
            variance, axes = torch.linalg.eigh(x @ x.T / n)
            variance = variance.clamp_min(0)
            return cls(axes * (n * variance).sqrt(), variance, unit)
        variance, axes = torch.linalg.eigh(x.T @ x / n)
        return cls(x @ axes, variance.clamp_min(0), unit)

    def leverage(self) -> Tensor:
        """Return the log-odds of each row's leverage (n, 5) in a ridge regression of each strength.

        The leverage says how much a row's own value counts in what the regression predicts for that
        row, from 0 to 1: much for rows in directions that few others have.

        >>> rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]] * 2 + [[0.0, 1.0], [0.0, -1.0]])
        >>> Axes.of(rows).leverage()[:, 0].sigmoid().round(decimals=2)
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.5000, 0.5000], dtype=torch.float64)
        """
        squares = self.at.square() / len(self.at)
        parts = [(squares / (self.variance + part * self.unit)).sum(1) for part in STRENGTHS]
        share = torch.stack(parts, dim=1).clamp(TINY, 1 - NEAREST)
        return share.log() - (-share).log1p()

    def left(self, values: Tensor) -> Tensor:
        """Return what ridge regressions leave of values (n, c), and these themselves: (n, 6, c).

        Values are taken from their mean over all rows; the weakest regression comes first.
        """
        y = values - values.mean(0)
        shared = self.at.T @ y / len(self.at)
        left = [
            y - self.at @ (shared / (self.variance + part * self.unit).unsqueeze(1))
            for part in STRENGTHS
        ]
        return torch.stack([*left, y], dim=1)


def bands(axes: Axes, log_p: Tensor, pull: Tensor) -> Tensor:
    """Return how far each band of a row's logits goes along its pull, the rarest directions first.

    What the weakest regression leaves lies mostly in directions that few embeddings have, or is no
    linear function of them; then what each next one leaves in addition, and the rest.

    Args:
        axes: of the embeddings of n rows.
        log_p: (n, classes) log-posteriors.
        pull: (n, classes) direction in logits.

    Returns:
        (n, 6) float64. Their sum is the product of ``pull`` and the logits, after the mean of all
        rows was taken from these.

    >>> spread = torch.tensor([[10.0, 0.0], [-10.0, 0.0]] * 2 + [[0.0, 0.1], [0.0, -0.1]])
    >>> log_p = (spread @ torch.tensor([[0.1, 0.0], [10.0, 0.0]])).log_softmax(1)
    >>> towards = torch.tensor([[1.0, -1.0]] * 6)
    >>> bands(Axes.of(spread), log_p, towards)[[0, 4]].round(decimals=2)  # a common one, a rare one
    tensor([[0.0000, 0.0100, 0.1200, 0.4700, 0.3400, 0.0600],
            [0.9700, 0.0300, 0.0000, 0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    y = log_p.double()
    some = y > ZERO
    y = torch.where(some, y, torch.where(some, y, 0.0).min())
    along = (axes.left(y - y.mean(1, keepdim=True)) * pull.unsqueeze(1)).sum(2)
    return along.diff(dim=1, prepend=torch.zeros_like(along[:, :1]))


# ---- all of them ---------------------------------------------------------------------------------


def of_traces(
    ctx: AttackContext, rows: Examples, *, views: int, augmentation: Augmentation = VIEWS,
    posteriors: bool, more: Callable[[Axes, Tensor | None], Tensor] | None = None,
) -> Ask:  # fmt: skip
    """Return what asks a model for the traces (n, v) of these rows, all at once.

    Args:
        ctx: of an attack with shadows that were trained on subsets of the rows.
        rows: the rows in question.
        views: of each row, where rows are images that may be augmented.
        augmentation: of the views.
        posteriors: whether traces in logits count too, along ``pulls``.
        more: further signals (n, v) of a model, from the axes of its embeddings and its
            log-posteriors; None if posteriors do not count.
    """
    known = rows.y >= 0
    labelled = ctx.card.classes is not None and bool(known.all())
    truth = F.one_hot(rows.y.clamp_min(0), ctx.card.classes or -1).double()
    aside = F.normalize(truth - truth.mean(0), dim=1)
    pull = pulls(ctx, rows) if posteriors else torch.empty(0)

    def ask(oracle: Oracle, rows: Examples) -> Tensor:
        axes = Axes.of(oracle.embeddings(rows))
        found = [axes.leverage()]
        if has_views(ctx.card):
            copies = oracle.embeddings(ctx.views(rows, augmentation, views))
            found.append(similarity(copies).unsqueeze(1))
        if labelled:
            found.append(bands(axes, truth, aside)[:, :-1])  # the last one is the label itself
        log_p = None
        if posteriors:
            log_p = oracle.log_posteriors(rows)
            found += [bands(axes, log_p, pull), scaled_logit(log_p, rows.y).unsqueeze(1)]
        if more is not None:
            found.append(more(axes, log_p).to(found[0].device))
        return torch.cat(found, dim=1)

    return ask


def pulls(ctx: AttackContext, rows: Examples) -> Tensor:
    """Return the way that training on each row pushes its logits, (n, classes) unit vectors.

    That is ``onehot(label) - mean posterior of the shadows``; NaN for a row without a label.
    """
    usual = torch.stack([shadow.oracle.posteriors(rows) for shadow in ctx.shadows]).mean(0)
    y = rows.y.to(usual.device)
    pull = F.normalize(F.one_hot(y.clamp_min(0), usual.shape[1]) - usual, dim=1)
    return pull.masked_fill((y < 0).unsqueeze(1), torch.nan)


def weights_of_traces(known: Tensor, inside: Tensor) -> Tensor:
    """Return how much each signal counts, (v,).

    The sum of all tells shadows with a row best from shadows without it (Fisher's linear
    discriminant), in units of each signal's spread over shadows of one sort, and of each row's.
    Unlike ``weights_of_views`` it takes signals of any unit, and those that are lower for members.
    Where no row with shadows of both sorts has two that differ of one sort, the spread is that of
    the difference between both, over rows: so few shadows do not tell a row's own.
    Signals that never vary do not count. Where no row has shadows of both sorts, all weights are
    equal. Weights have four decimals in those units, so that the order of the rows hardly changes
    them.

    Args:
        known: (k, n, v) signals; NaN ones do not count.
        inside: (k, n) bool.

    >>> inside = torch.tensor([[True], [True], [False], [False]])
    >>> noise = torch.tensor([[1.0, 20.0], [-1.0, -20.0], [1.0, -20.0], [-1.0, 20.0]]).double()
    >>> gap = torch.tensor([1.0, -20.0]) * inside[..., None]
    >>> weights_of_traces(noise[:, None] + gap, inside).round(decimals=2)
    tensor([ 0.5000, -0.0200], dtype=torch.float64)
    """
    held = inside.to(known.device).unsqueeze(-1)
    centres = [mean(known, side & ~known.isnan(), (0,)) for side in (held, ~held)]
    gap = centres[0] - centres[1]
    some = ~gap.isnan().any(-1)
    residual = torch.where(held, known - centres[0], known - centres[1])[:, some].nan_to_num(0.0)
    gap = gap[some]
    twice = bool((residual.square().mean((0, 1)).sqrt() > STILL).any())
    if not twice:
        residual = (gap - gap.mean(0)).unsqueeze(0)
    unit = residual.square().mean((0, 1)).sqrt()
    counts = unit > STILL
    alike = torch.full_like(unit, 1 / len(unit))
    if not counts.any():
        return alike
    scale = torch.where(counts, unit, torch.inf)
    residual, gap = residual / scale, gap / scale
    spread = residual.square().mean((0, 2)).sqrt() if twice else torch.ones_like(gap[:, 0])
    varied = spread > STILL
    standard = (residual[:, varied] / spread[varied, None]).flatten(0, 1)
    of = standard.T @ standard / len(standard)
    target = (gap[varied] / spread[varied, None]).mean(0)
    of.diagonal().add_(RIDGE)
    found = torch.linalg.solve(of, target)
    most = found.abs().sum()
    return (found / most).round(decimals=4) / scale if most > 0 else alike
