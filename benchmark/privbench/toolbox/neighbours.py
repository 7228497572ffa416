"""Likelihood ratios given the neighbours: a member nearby changes how a model answers a row.

A member nearby of the row's class pulls its signal up, one of another class pulls it down. What is
believed of the neighbours is subtracted before the row is judged; see the attack ``lira-joint``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from privbench.measure.data.examples import as_float
from privbench.toolbox.likelihood import FLOOR, Evidence, mean
from privbench.toolbox.likelihood_ratio import log_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Examples
    from privbench.toolbox.likelihood_ratio import Kind

#: Trees of the forest that says which rows are near, and least rows of a leaf.
TREES, LEAF = 200, 5
#: Penalty of the regression, in rows.
RIDGE = 10.0
ROUNDS = 2
#: Signals from here on are of posteriors of 0 or 1.
SATURATED = -FLOOR - 1
_BLOCK = 256  # rows whose neighbours are sought at a time


def bounded(evidence: Evidence) -> Evidence:
    """Return signals that are no larger than those of posteriors between 0 and 1.

    A posterior of exactly 0 or 1 has a signal of about 103, which would rule the regression.

    >>> known = torch.tensor([[[2.0]], [[103.6]]])
    >>> one = bounded(Evidence(torch.tensor([[-103.6]]), known, torch.ones(2, 1)))
    >>> one.asked.tolist(), one.known.flatten().tolist()
    ([[-2.0]], [2.0, 2.0])
    """
    size = evidence.known.abs()
    inner = size[size < SATURATED]
    most = float(inner.max()) if len(inner) else float("inf")
    return Evidence(
        evidence.asked.clamp(-most, most), evidence.known.clamp(-most, most), evidence.inside
    )


@dataclass(frozen=True)
class Pulls:
    """Which rows pull the signal of a row, and how near they are.

    Attributes:
        rows: (n, m) int64, the nearest first.
        pull: (n, m) float64: share of trees in which both have one leaf, negative for a row of
            another class.
    """

    rows: Tensor
    pull: Tensor

    def felt(self, member: Tensor) -> Tensor:
        """Return the pulls (..., n, m) if rows are members with probability ``member`` (..., n)."""
        return self.pull * (member[..., self.rows] - 0.5)


def pulls(rows: Examples, most: int) -> Pulls:
    """Return the neighbours of labelled rows (n,), at most ``most`` of each and none itself."""
    from scipy.sparse import csr_array
    from sklearn.ensemble import RandomForestClassifier

    x = as_float(rows.x.cpu(), rows.scale).flatten(1).numpy()
    y = rows.y.cpu()
    forest = RandomForestClassifier(TREES, min_samples_leaf=LEAF, random_state=0).fit(x, y.numpy())
    n, sizes = len(x), [tree.tree_.node_count for tree in forest.estimators_]
    leaves = forest.apply(x) + np.cumsum([0, *sizes[:-1]])
    place = np.arange(n + 1) * TREES
    of = csr_array((np.ones(leaves.size, np.float32), leaves.ravel(), place), (n, sum(sizes)))
    near, shares = [], []
    for start in range(0, n, _BLOCK):
        shared = torch.from_numpy((of[start : start + _BLOCK] @ of.T).toarray()) / TREES
        shared[torch.arange(len(shared)), torch.arange(start, start + len(shared))] = -1.0
        found = shared.sort(dim=1, descending=True, stable=True)
        near.append(found.indices[:, : min(most, n - 1)].clone())
        shares.append(found.values[:, : min(most, n - 1)].clone())
    at, share = torch.cat(near), torch.cat(shares).double()
    return Pulls(at, torch.where(y[at] == y[:, None], share, -share))


def joint(evidence: Evidence, near: Pulls, chosen: Kind) -> tuple[Tensor, Tensor]:
    """Return log-likelihood ratios (n,) given the neighbours, and how strongly each pulls (m,).

    Args:
        evidence: signals (n, 1) of the victim and (k, n, 1) of shadows, none NaN.
        near: the neighbours.
        chosen: see ``likelihood_ratio.kind``.
    """
    inside = evidence.inside
    felt = near.felt(inside.double())
    weights = _ridge(_left(felt, inside), _left(evidence.known, inside))
    known = evidence.known - felt @ weights
    usual = inside.double().mean().logit(1e-6)  # of a row, before anything is known of it
    scores = log_ratio(evidence, kind=chosen)
    believed = (scores + usual).sigmoid()
    for _ in range(ROUNDS):
        asked = evidence.asked - near.felt(believed) @ weights
        scores = log_ratio(Evidence(asked, known, inside), kind=chosen)
        believed = (believed + (scores + usual).sigmoid()) / 2
    return scores.nan_to_num(0.0), weights[:, 0]


def _left(values: Tensor, inside: Tensor) -> Tensor:
    """Return what is left of (k, n, m) after the mean over shadows with, or without, each row."""
    held = inside.unsqueeze(-1)
    with_it, without = (mean(values, m, (0,)) for m in (held, ~held))
    return values - torch.where(held, with_it, without)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the weights (m, 1) of a ridge regression of y (k, n, 1) on x (k, n, m)."""
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    usual = x.square().mean().clamp_min(torch.finfo(x.dtype).tiny)
    penalty = RIDGE * usual * torch.eye(x.shape[1], dtype=x.dtype)
    weights: Tensor = torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    return weights
