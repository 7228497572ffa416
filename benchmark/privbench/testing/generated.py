"""Generated data in place of a dataset: what a suite needs can then run where the files are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from privbench.ground.store.source import source_digest
from privbench.measure.data.examples import Card, Examples
from privbench.measure.methods.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from privbench.measure.data.protocol import Protocol


@dataclass(frozen=True)
class Generated(Dataset):
    """Rows drawn at random that fit a card: its shape, classes, attributes, sources and groups.

    Rows of a class are alike, so that training has something to learn. A source whose name says
    that it is unlabelled has no classes. The name is that of the card.

    Attributes:
        described: the card.
    """

    name: ClassVar[str] = "generated"
    protocols: ClassVar[Mapping[str, Protocol]] = {}

    described: Any

    def __post_init__(self) -> None:
        """Take the name of the card."""
        super().__post_init__()
        object.__setattr__(self, "name", self.described.name)

    @property
    def label(self) -> str:
        """Return the name."""
        return self.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return all that the rows depend on: the code and the card."""
        return {"source": source_digest(type(self)), "card": self.described}

    def card(self, root: Path | None) -> Card:
        """Return the card."""
        del root
        card: Card = self.described
        return card

    def load(self, root: Path | None) -> Examples:
        """Generate the rows, the same each time: x uint8, from 0 to the card's scale."""
        card, n = self.card(root), self.described.rows
        generator = torch.Generator().manual_seed(20211115)
        source = torch.arange(len(card.sources)).repeat_interleave(
            torch.tensor(list(card.sources.values()))
        )
        kind = torch.randint(card.classes or 1, (n,), generator=generator)
        bare = torch.tensor(["unlabel" in name for name in card.sources])[source]
        y = torch.where(bare, -1, kind) if card.classes else torch.full_like(kind, -1)
        attributes = {
            name: torch.randint(values, (n,), generator=generator)
            for name, values in card.attributes.items()
        }
        make = _images if card.kind == "image" else _columns
        return Examples.of(
            make(card, kind, generator), y, attributes, scale=card.scale, source=source
        )


def _images(card: Card, kind: Tensor, generator: torch.Generator) -> Tensor:
    """Return a smooth picture of each class, and noise of its own for each row."""
    plain = torch.rand((card.classes or 1), card.shape[0], 4, 4, generator=generator)
    smooth = nn.functional.interpolate(plain, size=card.shape[1:], mode="bilinear")
    pictures = (smooth * 0.8 * card.scale).round().byte()
    x = torch.randint(int(0.2 * card.scale), (len(kind), *card.shape), generator=generator,
                      dtype=torch.uint8)  # fmt: skip
    for rows in torch.split(
        torch.arange(len(kind)), 10_000
    ):  # a large set fits into memory once only
        x[rows] += pictures[kind[rows]]
    return x


def _columns(card: Card, kind: Tensor, generator: torch.Generator) -> Tensor:
    """Return columns that are on with probabilities of the class; one column of each group is."""
    plain = torch.rand((card.classes or 1), *card.shape, generator=generator)
    drawn = torch.rand(len(kind), *card.shape, generator=generator)
    x = (drawn < plain[kind]).byte() * int(card.scale)
    for start, stop in card.groups:
        best = (plain[kind, start:stop] + drawn[:, start:stop]).argmax(1)
        x[:, start:stop] = nn.functional.one_hot(best, stop - start).byte() * int(card.scale)
    return x
