"""HopSkipJump: the distance from a row to the decision boundary, from predicted labels alone.

Chen, Jordan, Wainwright: HopSkipJumpAttack: A Query-Efficient Decision-Based Attack. IEEE S&P
2020, algorithm 2, untargeted, L2. Start from an input of another class and bisect towards the row,
which ends on the boundary. Then, for t = 1, 2, ...:

1. Query floor(init_eval sqrt(t)) random directions at a small radius around the boundary point. The
   sum of those that lead to another class minus the sum of those that do not estimates the normal
   of the boundary.
2. Step distance / sqrt(t) along the normal, halving the step until it ends in another class.
3. Bisect towards the row again.

The smallest distance found is returned. It is an upper bound of the true one, since an input of
another class lies there.

All rows advance together: one batch of queries per bisection step and per block of directions.
Positions are float64, so that the order of the rows changes only the last bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: Approximate bytes of a block of perturbed inputs: on a CPU, what its cache holds.
BLOCK = {"cpu": 2 * 2**20, "cuda": 64 * 2**20}
#: Maximum number of halvings of a step.
HALVINGS = 30
#: First radius, as a share of the range of inputs.
FIRST = 0.1
#: Later radii, as a share of the distance; a bisection is finer by a factor of sqrt(d).
LATER = 0.01


@dataclass(frozen=True)
class Boundary:
    """Distances to the boundary, and the queries they took.

    Attributes:
        distance: (n,) float64 L2 distances; 0 where the row itself is misclassified, infinite
            where no start is of another class.
        queries: (n,) int64 queries per row, including its own label, excluding the starts.
        estimating: (n,) int64 queries among them that estimated a normal.
    """

    distance: Tensor
    queries: Tensor
    estimating: Tensor


def boundary(
    decide: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    starts: Tensor,
    *,
    generator: torch.Generator,
    iterations: int,
    init_eval: int = 100,
    max_eval: int = 10_000,
    budget: int | None = None,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Boundary:
    """Compute the distance of each row to the decision boundary.

    All rows use the same random directions, so a permuted x has permuted distances, and two models
    queried with equal generators are queried in the same directions.

    Args:
        decide: inputs (m, d) float32 -> classes (m,) int64.
        x: (n, d) rows.
        y: (n,) true classes; for -1 (unknown), the predicted class is used.
        starts: (s, d) inputs, in the range; each row starts from the first that is of another
            class. They are queried once for all rows.
        generator: on the device of x; draws the directions.
        iterations: number of repetitions of steps 1 to 3.
        init_eval: directions in the first iteration.
        max_eval: maximum number of directions per iteration.
        budget: maximum number of queries per row; a row stops before an iteration that could
            exceed it.
        clip: range of inputs; None for no clipping.
    """
    walk = _Walk(decide, x.double(), y, budget, clip)
    rows = walk.begin(starts.double())
    for t in range(1, iterations + 1):
        ways = min(math.isqrt(init_eval**2 * t), max_eval)
        rows = walk.affordable(rows, ways + 1 + walk.bisections)
        if not len(rows):
            break
        normal = walk.normals(rows, ways, t, generator)
        walk.step(rows, normal, t)
        walk.bisect(rows)
    return Boundary(walk.distance, walk.queries, walk.estimating)


class _Walk:
    """State of the search for every row of x. ``rows`` are always positions (m,) in x.

    Attributes:
        point: (n, d) an input of another class, where there is one.
        reach: (n,) its distance before the last bisection, which sets the next radius.
        distance: (n,) the smallest distance found so far.
        bisections: number of queries of a bisection.
    """

    def __init__(
        self,
        decide: Callable[[Tensor], Tensor],
        x: Tensor,
        y: Tensor,
        budget: int | None,
        clip: tuple[float, float] | None,
    ) -> None:
        n, self.d = x.shape
        self.decide, self.x, self.clip = decide, x, clip
        self.budget = math.inf if budget is None else budget
        self.bisections = math.ceil(math.log2(math.sqrt(self.d) / LATER))
        self.point = x.clone()
        self.reach = x.new_zeros(n)
        self.distance = x.new_zeros(n)
        self.queries = torch.ones(n, dtype=torch.int64, device=x.device)
        self.estimating = torch.zeros_like(self.queries)
        predicted = self.classes(x)
        y = y.to(x.device)
        self.y = torch.where(y < 0, predicted, y)
        self.right = predicted == self.y

    def classes(self, inputs: Tensor) -> Tensor:
        if not len(inputs):  # a model may reject an empty batch
            return torch.zeros(0, dtype=torch.int64, device=self.x.device)
        return self.decide(inputs.float()).to(self.x.device)

    def clipped(self, inputs: Tensor) -> Tensor:
        return inputs if self.clip is None else inputs.clamp(*self.clip)

    def other(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """Test whether inputs (m, d), one per row, are of another class; one query each."""
        self.queries[rows] += 1
        different: Tensor = self.classes(inputs) != self.y[rows]
        return different

    def affordable(self, rows: Tensor, queries: int) -> Tensor:
        """Return the rows whose budget allows this many more queries."""
        return rows[self.queries[rows] + queries <= self.budget]

    def gap(self, rows: Tensor) -> Tensor:
        """Return the distance (m,) from each row to its point."""
        gap: Tensor = torch.linalg.vector_norm(self.point[rows] - self.x[rows], dim=1)
        return gap

    def begin(self, starts: Tensor) -> Tensor:
        """Bisect correctly classified rows from their starts; return the rows that have a start."""
        different = self.classes(starts) != self.y[:, None]
        self.distance[self.right] = math.inf
        rows = (self.right & different.any(1)).nonzero().squeeze(1)
        self.point[rows] = starts[different[rows].int().argmax(1)]
        self.distance[rows] = self.gap(rows)
        rows = self.affordable(rows, self.bisections)
        self.bisect(rows)
        return rows

    def bisect(self, rows: Tensor) -> None:
        """Move points towards their rows as long as they stay in another class."""
        x, far = self.x[rows], self.point[rows]
        self.reach[rows] = self.gap(rows)
        low = x.new_zeros(len(rows), 1)
        high = x.new_ones(len(rows), 1)
        for _ in range(self.bisections):
            middle = (low + high) / 2
            other = self.other(rows, x + middle * (far - x))[:, None]
            high, low = torch.where(other, middle, high), torch.where(other, low, middle)
        self.point[rows] = x + high * (far - x)
        self.distance[rows] = torch.minimum(self.distance[rows], self.gap(rows))

    def step(self, rows: Tensor, normal: Tensor, t: int) -> None:
        """Step along the normals (m, d), halving each step until it ends in another class."""
        size = self.gap(rows)[:, None] / math.sqrt(t)
        for _ in range(HALVINGS):
            to = self.clipped(self.point[rows] + size * normal)
            other = self.other(rows, to)
            self.point[rows[other]] = to[other]
            rest = ~other & (self.queries[rows] + 1 + self.bisections <= self.budget)
            rows, normal, size = rows[rest], normal[rest], size[rest] / 2
            if not len(rows):
                break

    def normals(self, rows: Tensor, ways: int, t: int, generator: torch.Generator) -> Tensor:
        """Estimate unit normals (m, d) of the boundary at the points, towards the other class."""
        if t == 1:
            low, high = self.clip or (0.0, 1.0)
            radius = self.x.new_full((len(rows), 1), FIRST * (high - low))
        else:
            radius = LATER * self.reach[rows, None]
        votes = self.x.new_zeros(len(rows))
        sums = self.x.new_zeros(len(rows), 2, self.d)  # of inputs: weighted by votes, and plain
        everyone = torch.arange(len(rows), device=rows.device)
        held = max(1, BLOCK[self.x.device.type] // (8 * self.d))
        for start in range(0, ways, held):
            shape = min(held, ways - start), self.d
            u = torch.randn(shape, generator=generator, device=self.x.device, dtype=self.x.dtype)
            u /= torch.linalg.vector_norm(u, dim=1, keepdim=True)
            for part in torch.split(everyone, max(1, held // len(u))):
                some = rows[part]
                inputs = self.clipped(self.point[some, None] + radius[part, None] * u)
                other = self.classes(inputs.flatten(0, 1)).view(len(part), -1)
                vote = (other != self.y[some, None]).double() * 2 - 1
                votes[part] += vote.sum(1)
                sums[part] += torch.bmm(torch.stack([vote, torch.ones_like(vote)], 1), inputs)
        self.queries[rows] += ways
        self.estimating[rows] += ways
        # The mean vote is the baseline, unless all votes agree; with it, the point cancels out.
        mean = (votes / ways)[:, None]
        voted, looked = sums.unbind(1)
        agreed = mean * (looked - ways * self.point[rows])
        normal = torch.where(mean.abs() == 1, agreed, voted - mean * looked)
        return F.normalize(normal, eps=1e-300)
