"""Adversarial noise on chosen coordinates of an embedding: masked FGSM, in one step or several.

Chen, Qiang, Ruan: Adversarial Representation Sharing. arXiv:2203.14299, section 4, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def against_decoder(
    z: Tensor,
    x: Tensor,
    decode: Callable[[Tensor], Tensor],
    mask: Tensor,
    bound: float,
    *,
    iterations: int,
) -> Tensor:
    """Masked I-FGSM: return noise that moves decoded embeddings away from x.

    Signs are counted instead of adding up steps, so that rounding cannot exceed the bound.

    Args:
        z: (..., d) embeddings.
        x: (..., p) inputs.
        decode: (..., d) to (..., p), row by row.
        mask: (..., d) of zeros and ones.
        bound: largest shift of a coordinate.
        iterations: steps of length bound / iterations.

    >>> z, x = torch.tensor([0.5, -0.2, 0.1]), torch.tensor([0.0, 0.0, 0.1])
    >>> against_decoder(z, x, lambda z: z, torch.ones(3), 1.0, iterations=10).tolist()
    [1.0, -1.0, 0.0]
    """
    z, count = z.detach(), torch.zeros_like(z)
    for _ in range(iterations):
        moved = (z + bound * (count / iterations)).requires_grad_()
        with torch.enable_grad():
            error = (x - decode(moved)).square().sum()
        (gradient,) = torch.autograd.grad(error, moved)
        count = count + mask * gradient.sign()
    return bound * (count / iterations)


def against_classifier(
    z: Tensor, fixed: int, classify: Callable[[Tensor], Tensor], mask: Tensor, bound: float
) -> Tensor:
    """One masked step of FGSM: return noise that moves predictions towards a fixed value.

    Args:
        z: (..., d) embeddings.
        fixed: the fixed value.
        classify: (..., d) to logits (..., v), row by row.
        mask: (..., d) of zeros and ones.
        bound: how far each coordinate moves.
    """
    moved = z.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = -classify(moved).log_softmax(-1)[..., fixed].sum()
    (gradient,) = torch.autograd.grad(loss, moved)
    return -bound * mask * gradient.sign()


def combined(noises: Sequence[Tensor], weight: float) -> Tensor:
    """Return the mean of all noises; the others share that weight equally, the first has the rest.

    >>> combined([torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([0.0])], 0.5).tolist()
    [0.25]
    """
    first, *others = noises
    if not others:
        return first
    return (1 - weight) * first + weight * torch.stack(others).mean(0)
