"""Controls: replacements for the victim, on which the same attack is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.ground.errors import AccessDeniedError
from privbench.measure.data.examples import Card, as_float

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from privbench.measure.methods.oracle import Served


class Pixels:
    """A victim whose embedding is the raw input: shows what an attack gains without a model."""

    def __init__(self, card: Card) -> None:
        """Create the control for data of that card."""
        from privbench.measure.methods.access import Access

        self.card = card
        self.grants = Access.EMBEDDINGS | Access.GRADIENTS
        self.key = "pixels"

    def embeddings(self, x: Tensor) -> Tensor:
        """Return x flattened, in [0, 1]."""
        return as_float(x, self.card.scale).flatten(1)

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Raise AccessDeniedError: there is no classifier."""
        raise AccessDeniedError(
            f"the raw pixels control has no posteriors ({len(x)} rows asked): ask for embeddings"
        )

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Return the gradient of the summed loss with respect to x (n, *shape), float in [0, 1]."""
        x = as_float(x, self.card.scale).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(self, x).sum(), x)
        return gradient

    def weights(self) -> Mapping[str, Tensor]:
        """Raise AccessDeniedError: there is no model."""
        raise AccessDeniedError("the raw pixels control has no weights: ask for embeddings")
