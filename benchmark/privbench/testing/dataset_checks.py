"""Checks of datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.data.split import cut

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.methods.dataset import Dataset


def card_agrees(data: Dataset, *, root: Path | None) -> None:
    """The card says what ``load`` returns: shape, scale, sources, classes, attributes, range."""
    card, rows = data.card(root), data.load(root)
    assert card.name == data.name
    assert tuple(rows.x.shape) == (card.rows, *card.shape)
    assert rows.scale == card.scale
    assert rows.x.device.type == "cpu"
    assert torch.bincount(rows.source, minlength=len(card.sources)).tolist() == list(
        card.sources.values()
    )
    if card.classes is not None:
        assert int(rows.y.max()) == card.classes - 1
        assert int(rows.y.min()) >= -1
    assert set(rows.attributes) == set(card.attributes)
    assert set(card.sensitive) <= set(card.attributes)
    for name, values in card.attributes.items():
        assert int(rows.attributes[name].max()) < values
        assert int(rows.attributes[name].min()) >= -1
    x = rows.x[:64].float() / card.scale
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1


def loads_alike(data: Dataset, *, root: Path | None) -> None:
    """Loading twice gives the same rows."""
    first, second = data.load(root), data.load(root)
    names = tuple(first.attributes)
    assert first.digest(attributes=names) == second.digest(attributes=names)


def protocol_fits(data: Dataset, *, root: Path | None) -> None:
    """The default protocol fits, and the parts of its split are disjoint."""
    card, protocol = data.card(root), data.protocols["default"]
    parts = cut(data.load(root), card, protocol, 0)
    seen = [part.index for part in (parts.candidates, parts.pool, parts.reference, parts.public)]
    together = torch.cat(seen)
    assert len(set(together.tolist())) == len(together), "parts of the split overlap"
