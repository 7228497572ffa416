"""Checks of datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privbench.ground.errors import BadInputError
from privbench.measure.data.split import cut
from privbench.measure.data.validation import validated

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.methods.dataset import Dataset


def card_agrees(data: Dataset, *, root: Path | None) -> None:
    """The rows are what the card says and what the core can use, as it checks at every load.

    Tried: all rows of one load, against the card.
    """
    card = data.card(root)
    assert card.name == data.name, (
        f"the card is named '{card.name}' and the dataset '{data.name}': give both one name"
    )
    try:
        validated(data.load(root), card)
    except BadInputError as error:
        raise AssertionError(str(error)) from error


def loads_alike(data: Dataset, *, root: Path | None) -> None:
    """Loading twice gives the same rows, each time in new tensors.

    Tried: two loads, then zeros written into the first.
    """
    first, second = data.load(root), data.load(root)
    names = tuple(first.attributes)
    told = first.digest(attributes=names)
    assert told == second.digest(attributes=names), (
        "two calls of load() gave different rows: keep one order and draw nothing at random"
    )
    for tensor in (first.x, first.y, *first.attributes.values()):
        tensor.zero_()
    for rows in (second, data.load(root)):
        assert told == rows.rekeyed().digest(attributes=names), (
            "writing into the rows of one load() changed those of another: return new tensors"
        )


def protocol_fits(data: Dataset, *, root: Path | None) -> None:
    """The default protocol fits, and the parts of its split are disjoint.

    Tried: the split of the default protocol with seed 0.
    """
    card, protocol = data.card(root), data.protocols["default"]
    parts = cut(data.load(root), card, protocol, 0)
    seen = [part.index for part in (parts.candidates, parts.pool, parts.reference, parts.public)]
    together = torch.cat(seen)
    assert len(set(together.tolist())) == len(together), "parts of the split overlap"
