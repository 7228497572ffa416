"""What each row itself adds to a model, once all other rows have explained what they can.

A network that was trained from random weights is, to first order, its start plus one kernel
function for each training row: ``f(x) = f0(x) + sum over members of k(x, x_i) a_i``, with the
neural tangent kernel k (Jacot, Gabriel, Hongler: Neural Tangent Kernel, NeurIPS 2018). Members have
a dual coefficient ``a_i``, other rows have none. The logits of a row are a sum to which all rows
nearby add; its coefficient is not. The coefficients are the logits of all rows in question, times
the inverse of the kernel between them.

The kernel is that of a network of three layers with ReLUs, in closed form (Cho, Saul: Kernel
Methods for Deep Learning, NeurIPS 2009, the arc-cosine kernels). It needs the rows alone, and no
model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional as F

from privbench.measure.data.examples import as_float
from privbench.measure.methods.access import Access
from privbench.toolbox.likelihood import ZERO, scaled_logit
from privbench.toolbox.traces import of_traces, pulls

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import AttackContext
    from privbench.measure.methods.oracle import Oracle
    from privbench.toolbox.likelihood import Ask
    from privbench.toolbox.traces import Axes

#: Strengths of the ridge, in units of the kernel's mean diagonal.
STRENGTHS = (0.01, 0.1, 0.3, 1.0)
#: Those of them at which what embeddings say of labels is looked at.
MIDDLE = (0.1, 0.3)
#: Most rows whose kernel is decomposed at once: of more, each block explains itself.
BLOCK = 2000
#: Hidden layers of the network, and the constant input beside the rows' numbers, in units of a
#: row's length.
LAYERS, BIAS = 2, 0.3
#: Added to root mean squares of inputs in [0, 1], and the least mean length of a row.
LEAST = 1e-2
#: Added to squared lengths before a logarithm, and the least scale of embeddings.
SHORTEST, TINY = 1e-6, 1e-12


def tangent(x: Tensor) -> Tensor:
    """Return the tangent kernel (n, n) float64 of rows (n, d) in [0, 1], with mean diagonal 1.

    Each column is divided by the root of its root mean square, as Adam makes the weights of small
    inputs count.

    >>> tangent(torch.tensor([[0.9, 0.0], [0.9, 0.0], [0.0, 0.1], [0.9, 0.1]])).round(decimals=2)
    tensor([[1.2200, 1.2200, 0.1400, 1.1000],
            [1.2200, 1.2200, 0.1400, 1.1000],
            [0.1400, 0.1400, 0.2100, 0.2100],
            [1.1000, 1.1000, 0.2100, 1.3500]], dtype=torch.float64)
    """
    a = x.double()
    a = a / (a.square().mean(0).sqrt() + LEAST).sqrt()
    length = a.norm(dim=1).mean().clamp_min(LEAST)
    kernel = arc_cosines(torch.cat([a, BIAS * length * torch.ones_like(a[:, :1])], 1))
    return kernel / kernel.diagonal().mean()


def arc_cosines(x: Tensor) -> Tensor:
    """Return the tangent kernel (n, n) of a ReLU network without biases, for inputs (n, d)."""
    similar = x @ x.T / x.shape[1]
    kernel = similar.clone()
    for _ in range(LAYERS):
        root = similar.diagonal().sqrt()
        norm = root[:, None] * root
        cosine = (similar / norm).clamp(-1, 1)
        angle = cosine.acos()
        slope = 1 - angle / math.pi
        similar = norm * (cosine * slope + (1 - cosine.square()).clamp_min(0).sqrt() / math.pi)
        kernel = similar + kernel * slope
    return kernel


@dataclass(frozen=True)
class Duals:
    """Takes values of rows apart into what each row adds.

    Attributes:
        order: (n,) the rows by their keys, in which they are cut into blocks of equal size.
        blocks: eigenvalues (b,) and eigenvectors (b, b) of the kernel of each block of rows.
    """

    order: Tensor
    blocks: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, rows: Examples) -> Self:
        """Decompose the kernel of the rows."""
        order = rows.keys.argsort(stable=True)
        x = as_float(rows.x, rows.scale).flatten(1)
        x = x[order.to(x.device)]
        parts = torch.tensor_split(x, math.ceil(len(x) / BLOCK))
        return cls(order.to(x.device), tuple(torch.linalg.eigh(tangent(part)) for part in parts))

    def coefficients(self, values: Tensor, strength: float) -> Tensor:
        """Return the dual coefficients (n, c) float64 of values (n, c).

        They are ``(K + strength I)^-1 values``, with K of each block alone, and values from their
        mean over all rows.
        """
        y = (values.double() - values.double().mean(0)).to(self.order.device)[self.order]
        parts = torch.tensor_split(y, len(self.blocks))
        made = torch.cat([
            axes @ ((axes.T @ part) / (spectrum + strength).unsqueeze(1))
            for (spectrum, axes), part in zip(self.blocks, parts, strict=True)
        ])  # fmt: skip
        return torch.empty_like(made).index_copy_(0, self.order, made)


def of_logits(duals: Duals, log_p: Tensor, y: Tensor, pull: Tensor) -> Tensor:
    """Return the signals (n, 20) of log-posteriors: five for each strength.

    The coefficient along the row's pull and on its label, that of the posteriors along the pull,
    and the logarithm of how long the coefficient is, in all and across the pull: training on soft
    labels, which the adversary does not know, pushes in another direction.

    Args:
        duals: of the n rows.
        log_p: (n, classes) log-posteriors.
        y: (n,) classes, -1 where unknown.
        pull: (n, classes) of ``pulls``. Where it is NaN, so are signals.
    """
    some = log_p > ZERO
    z = torch.where(some, log_p, torch.where(some, log_p, 0.0).min())
    z, p = z - z.mean(1, keepdim=True), log_p.exp().nan_to_num(0.0)
    device = duals.order.device
    pull, truth = pull.to(device), F.one_hot(y.clamp_min(0), log_p.shape[1]).to(device)
    found = []
    for strength in STRENGTHS:
        a = duals.coefficients(z, strength)
        along = (a * pull).sum(1)
        across = a - along.unsqueeze(1) * pull
        found += [along, (a * truth).sum(1), (duals.coefficients(p, strength) * pull).sum(1)]
        found += [(one.square().sum(1) + SHORTEST).log() for one in (a, across)]
    return torch.stack(found, 1)


def of_embeddings(duals: Duals, axes: Axes, truth: Tensor | None) -> Tensor:
    """Return the signals of embeddings: (n, 4), or with labels (n, 14).

    The logarithm of how long the coefficient of the embedding is, for each strength; and at two of
    them the coefficient along the label of what five ridge regressions on the embeddings say of it.

    Args:
        duals: of the n rows.
        axes: of the embeddings.
        truth: (n, classes) one-hot labels; None if some are unknown.
    """
    h = axes.at / axes.at.square().sum(1).mean().sqrt().clamp_min(TINY)
    lengths = [duals.coefficients(h, one).square().sum(1) for one in STRENGTHS]
    found = [(one + SHORTEST).log() for one in lengths]
    if truth is not None:
        truth = truth.to(axes.at.device)
        left = axes.left(truth)
        along = F.normalize(truth - truth.mean(0), dim=1).to(duals.order.device)
        told = [left[:, -1] - one for one in left[:, :-1].unbind(1)]
        found += [(duals.coefficients(one, strength) * along).sum(1)
                  for strength in MIDDLE for one in told]  # fmt: skip
    return torch.stack(found, 1)


def of_posteriors(ctx: AttackContext, rows: Examples) -> Ask:
    """Return what asks a model for the signals (n, 21) of rows: ``of_logits``, and that of LiRA."""
    duals, pull = Duals.of(rows), pulls(ctx, rows)

    def ask(oracle: Oracle, rows: Examples) -> Tensor:
        log_p = oracle.log_posteriors(rows)
        added = of_logits(duals, log_p, rows.y, pull).to(log_p.device)
        return torch.cat([added, scaled_logit(log_p, rows.y).unsqueeze(1)], dim=1)

    return ask


def of_encoder(ctx: AttackContext, rows: Examples, views: int, needs: Access) -> Ask:
    """Return what asks a model for the signals (n, v) of rows: ``of_embeddings`` and ``of_traces``.

    Args:
        ctx: of the attack.
        rows: all that are in question.
        views: of each row, where they may be augmented.
        needs: with posteriors, ``of_logits`` are added.
    """
    posteriors = Access.POSTERIORS in needs
    duals, pull = Duals.of(rows), pulls(ctx, rows) if posteriors else torch.empty(0)
    truth = None
    if ctx.card.classes is not None and bool((rows.y >= 0).all()):
        truth = F.one_hot(rows.y, ctx.card.classes).double()

    def added(axes: Axes, log_p: Tensor | None) -> Tensor:
        found = [of_embeddings(duals, axes, truth)]
        if log_p is not None:
            found.append(of_logits(duals, log_p, rows.y, pull))
        return torch.cat(found, dim=1)

    return of_traces(ctx, rows, views=views, posteriors=posteriors, more=added)
