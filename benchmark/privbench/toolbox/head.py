"""What the logits of a classifier's head hold in directions that few embeddings have.

A head is a linear map of embeddings. A member moves it by the inverse Hessian times the member's
gradient: most in directions that few embeddings have (Suri, Zhang, Evans, TMLR 2024, the inverse
Hessian attack).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from privbench.toolbox.likelihood import ZERO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.context import Shadow
    from privbench.measure.methods.oracle import Oracle

#: Strengths of the ridge regressions, in units of the mean variance of an embedding's numbers.
STRENGTHS = (0.003, 0.03, 0.3, 3.0, 30.0)
#: Embeddings that vary by less, as a share of their mean square, do not vary; nor do zeros.
RESOLUTION, TINY = 1e-14, 1e-30


def of_bands(shadows: Sequence[Shadow], rows: Examples) -> Callable[[Oracle, Examples], Tensor]:
    """Return what asks a model for the bands (n, 6) of these rows.

    A row's pull is ``onehot(label) - mean posterior of the shadows``, the way that training on the
    row pushes its logits, made a unit vector; NaN for a row without a label.
    """
    usual = torch.stack([shadow.oracle.posteriors(rows) for shadow in shadows]).mean(0)
    pull = F.normalize(F.one_hot(rows.y.clamp_min(0), usual.shape[1]) - usual, dim=1)
    pull[rows.y < 0] = torch.nan
    return lambda oracle, rows: bands(oracle.embeddings(rows), oracle.log_posteriors(rows), pull)


def bands(embeddings: Tensor, log_p: Tensor, pull: Tensor) -> Tensor:
    """Return how far each band of a row's logits goes along its pull, the rarest directions first.

    Args:
        embeddings: (n, d).
        log_p: (n, classes) log-posteriors.
        pull: (n, classes) direction in logits.

    Returns:
        (n, 6) float64. Their sum is the product of ``pull`` and the logits, after the mean of all
        rows was taken from these.

    >>> spread = torch.tensor([[10.0, 0.0], [-10.0, 0.0], [0.0, 0.1], [0.0, -0.1]])
    >>> log_p = (spread @ torch.tensor([[0.1, 0.0], [10.0, 0.0]])).log_softmax(1)
    >>> towards = torch.tensor([[1.0, -1.0]] * 4)
    >>> bands(spread, log_p, towards)[[0, 2]].round(decimals=2)  # a common direction, a rare one
    tensor([[0.0000, 0.0100, 0.1200, 0.4700, 0.3400, 0.0600],
            [0.9400, 0.0600, 0.0100, 0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    x, y = embeddings.double(), log_p.double()
    some = y > ZERO
    y = torch.where(some, y, torch.where(some, y, 0.0).min())
    y = y - y.mean(1, keepdim=True)
    least = RESOLUTION * x.square().mean() + TINY
    x, y = x - x.mean(0), y - y.mean(0)
    own, shared = x.T @ x / len(x), x.T @ y / len(x)
    unit = torch.maximum(own.diagonal().mean(), least)
    eye = torch.eye(len(own), dtype=own.dtype, device=own.device)
    left = [y - x @ torch.linalg.solve(own + part * unit * eye, shared) for part in STRENGTHS]
    along = (torch.stack([*left, y], dim=1) * pull.unsqueeze(1)).sum(2)
    return along.diff(dim=1, prepend=torch.zeros_like(along[:, :1]))
