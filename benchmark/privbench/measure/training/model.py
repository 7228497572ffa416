"""A model: named parts, of which ``encoder`` and ``classifier`` are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from privbench.measure.data.examples import as_float

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from privbench.measure.data.examples import Card


class Model(nn.Module):
    """A model: x → encoder → embedding → classifier → logits, plus parts used only in training.

    A target may subclass it (several owners, a decoder); a defense may add parts. Everything that
    training changes must be in ``parts``: only parts are stored.

    >>> from privbench.testing import TinyImages
    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    >>> card = TinyImages().card(None)
    >>> model = Model(card, {"encoder": encoder, "classifier": nn.Linear(8, 10)})
    >>> h = model.encode(torch.zeros(5, 1, 8, 8))
    >>> h.shape, model.logits(h).shape, "decoder" in model
    (torch.Size([5, 8]), torch.Size([5, 10]), False)

    Attributes:
        parts: name -> module: ``encoder`` (n, *shape) -> (n, d), ``classifier`` (n, d) -> (n, k)
            if there is a task, ``decoder`` (n, d) -> (n, *shape) if the target has one, and any
            others (``head``, ``adversary``, ...).
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, card: Card, parts: Mapping[str, nn.Module], *, normalise: bool = True
    ) -> None:
        """Create a model; ``normalise`` applies the card's channel means and deviations to x."""
        super().__init__()
        if "encoder" not in parts:
            raise ValueError(
                f"the model has no part named 'encoder', got {', '.join(parts)}: add one"
            )
        self.parts = nn.ModuleDict(dict(parts))
        self.scale = card.scale
        shape = (-1, *(1 for _ in card.shape[1:]))
        centred = normalise and bool(card.mean)
        self.register_buffer("mean", torch.tensor(card.mean).view(shape) if centred else None)
        self.register_buffer("std", torch.tensor(card.std).view(shape) if centred else None)

    def __getitem__(self, name: str) -> nn.Module:
        """Return a part by name."""
        return self.parts[name]

    def __contains__(self, name: str) -> bool:
        """Return whether there is a part with that name."""
        return name in self.parts

    def inputs(self, x: Tensor) -> Tensor:
        """Normalise x (n, *shape), stored integers or float in [0, 1], for the encoder."""
        x = as_float(x, self.scale)
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std

    def encode(self, x: Tensor) -> Tensor:
        """Return embeddings (n, d), before any release, of x (n, *shape), integer or in [0, 1]."""
        embedding: Tensor = self.parts["encoder"](self.inputs(x))
        return embedding

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits (n, k) of embeddings (n, d)."""
        logits: Tensor = self.parts["classifier"](h)
        return logits

    def decode(self, h: Tensor) -> Tensor:
        """Return reconstructions (n, *shape) of embeddings (n, d), if the target has a decoder."""
        decoded: Tensor = self.parts["decoder"](h)
        return decoded
