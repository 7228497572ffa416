"""The sensitivity sampler: how far a trained classifier moves when one row is replaced.

Yang, Gohari, Topcu (ALM, 2022), algorithm 2, after Rubinstein and Alda (ICML 2017). m times: train
on the private rows without row i, and again without row j, for random i and j, and measure the
distance between the two. All trainings run at once (``DefenseContext.refit``) from the same initial
weights. The two trainings of a pair use the same batches except for one slot, where one has i and
the other j. If a batch holds all rows, their order does not matter, and each row is left out only
once, however many pairs it is in.

The result is a *sampled local sensitivity* of one private set: a lower bound of the largest
distance over its own pairs, which says nothing about other sets. Rubinstein and Alda's confidence
(their gamma) needs fresh rows in every draw and does not apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


def sample(
    refit: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
    n: int,
    m: int,
    generator: torch.Generator,
    *,
    whole: bool = False,
) -> dict[str, Tensor]:
    """Measure distances between classifiers trained without one row and without another.

    Args:
        refit: maps (r,) dropped positions and (r,) positions exchanged for them, or -1, to
            name -> (r, ...) trained tensors, as ``DefenseContext.refit`` does.
        n: private rows.
        m: number of pairs to draw.
        generator: on the device of the tensors.
        whole: whether every batch holds all rows.

    Returns:
        ``pairs`` (m, 2) int64, never a row with itself; and (m,) float64 distances: ``l1`` and
        ``l2`` of all weights and biases as one vector, ``matrix-1`` (largest column sum) and
        ``matrix-2`` (spectral norm) of the weight matrices alone, summed over matrices. Matrices
        are (inputs, outputs), as in the paper's framework, not as torch stores them.
    """
    pairs = draw(n, m, generator)
    if whole:
        dropped, at = torch.unique(pairs, return_inverse=True)
        exchanged = torch.full_like(dropped, -1)
    else:  # without i; then without j, and i in its slot
        dropped = pairs[:, :1].expand(-1, 2).flatten()
        exchanged = torch.stack([torch.full_like(pairs[:, 1], -1), pairs[:, 1]], dim=1).flatten()
        at = torch.arange(2 * m, device=pairs.device).view(-1, 2)
    trained = {name: tensor.double() for name, tensor in refit(dropped, exchanged).items()}
    flat = torch.cat([tensor.flatten(1) for _, tensor in sorted(trained.items())], dim=1)
    apart = flat[at[:, 0]] - flat[at[:, 1]]
    matrices = [(t[at[:, 0]] - t[at[:, 1]]).mT for t in trained.values() if t.ndim == 3]  # noqa: PLR2004
    none = torch.zeros(m, dtype=torch.float64, device=flat.device)
    return {
        "pairs": pairs,
        "l1": apart.abs().sum(1),
        "l2": apart.norm(dim=1),
        "matrix-1": sum((torch.linalg.matrix_norm(d, 1) for d in matrices), start=none),
        "matrix-2": sum((torch.linalg.matrix_norm(d, 2) for d in matrices), start=none),
    }


def draw(n: int, m: int, generator: torch.Generator) -> Tensor:
    """Draw random pairs (m, 2) of different positions below n, n at least 2.

    >>> pairs = draw(2, 100, torch.Generator().manual_seed(0))
    >>> sorted(set(map(tuple, pairs.tolist())))
    [(0, 1), (1, 0)]
    """
    device = generator.device
    first = torch.randint(n, (m,), generator=generator, device=device)
    step = torch.randint(1, n, (m,), generator=generator, device=device)
    return torch.stack([first, (first + step) % n], dim=1)
