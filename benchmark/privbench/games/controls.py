"""Stand-ins for a victim, which an attack is put to as a control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.data.examples import Card, as_float
from privbench.errors import AccessDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench.games.oracle import Served


class Pixels:
    """A served victim whose embedding is the raw input: what it shows without any model."""

    def __init__(self, card: Card) -> None:
        """For data of that card."""
        from privbench.games.access import Access

        self.card = card
        self.grants = Access.EMBEDDINGS | Access.GRADIENTS
        self.key = "pixels"

    def embeddings(self, x: Tensor) -> Tensor:
        """Flattened x in [0, 1]."""
        return as_float(x, self.card.scale).flatten(1)

    def log_posteriors(self, x: Tensor) -> Tensor:
        """There is no classifier."""
        raise AccessDeniedError(f"raw pixels have no posteriors ({len(x)} rows asked)")

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of the summed loss with respect to x (n, *shape), as float in [0, 1]."""
        x = as_float(x, self.card.scale).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(self, x).sum(), x)
        return gradient

    def weights(self) -> Mapping[str, Tensor]:
        """There is no model."""
        raise AccessDeniedError("raw pixels have no weights")
