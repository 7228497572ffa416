"""Digits holds 1,797 real handwritten digits, 8x8, that are part of scikit-learn.

They are the test part of Alpaydin and Kaynak: Optical Recognition of Handwritten Digits. UCI
Machine Learning Repository, 1998. Each pixel counts the ink of a 4x4 block of the scan, 0 to 16.
Licence: scikit-learn distributes them with the library (BSD 3-Clause); the original is under UCI's
terms.

Two attributes are measured from the image, exactly, because it consists of integers:
- ``slant``: the shear of the ink, from its second moments (what deslanting removes);
- ``weight``: the amount of ink.

Each is 1 for the upper half of its class and 0 for the lower half, with ties broken by position.
They are balanced within each class (counts differ by at most one), so the class says nothing about
them.

Views are crop, small shift and blur. Excluded are flips, because digits are chiral and a flip
mirrors the slant; hue and greyscale, which grey images do not have; and brightness and contrast,
which change the ink. Views keep the class, and mostly keep an attribute: after one view at the
limits, slant (weight) is on its side of the class median in 73 % (72 %) of rows, after only the
crop in 81 % (75 %), the shift 88 % (83 %), the blur 96 % (96 %); slant after a flip in 31 %. (The
median is that of the plain rows for slant, and that of the views for weight.)

What to expect: on pixels, logistic regression (threefold cross-validation over all rows) predicts
``slant`` in 79 % and ``weight`` in 94 % of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from privbench import Augmentation, Card, Dataset, Examples, Paper, Protocol, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

#: The encoder trains on public rows and only the classifier on members: a private classifier is a
#: private victim. It has as many members as the rows allow, since noise for an epsilon needs many.
_PUBLIC = Protocol(
    name="public-encoder", members=300, nonmembers=300, reference=50, public=197, pool=650,
    test=300, encoder=("public",), classifier="members", inclusion="coin",
)  # fmt: skip


@dataclass(frozen=True)
class Digits(Dataset):
    """Loads small real handwritten digits: the built-in default, without download."""

    name: ClassVar[str] = "digits"
    paper: ClassVar[Paper] = Paper(
        "Optical Recognition of Handwritten Digits", "Alpaydin, Kaynak", "UCI 1998"
    )
    # An encoder memorises few members; many nonmembers make confidence intervals narrow.
    protocols: ClassVar[Mapping[str, Protocol]] = {
        "default": Protocol(
            name="default", members=100, nonmembers=400, reference=100, pool=897, test=300
        ),
        # Coins test adjacency by adding or removing a row, pairs by replacing one.
        "public-encoder": _PUBLIC,
        "public-encoder-pairs": replace(_PUBLIC, name="public-encoder-pairs", inclusion="pairs"),
    }

    def card(self, root: Path | None) -> Card:
        """Describe the dataset."""
        del root
        return Card(
            name=self.name,
            kind="image",
            shape=(1, 8, 8),
            classes=10,
            scale=16,
            attributes={"slant": 2, "weight": 2},
            sensitive=("slant",),
            sources={"all": 1_797},
            limits=Augmentation(
                crop=(0.8, 1.0), shift=1, blur=1.0, blur_sigma=(0.1, 1.0), blur_kernel=3
            ),
        )  # fmt: skip

    def load(self, root: Path | None) -> Examples:
        """Read the data: x (1797, 1, 8, 8) uint8 in 0..16."""
        from sklearn.datasets import load_digits

        del root
        bunch = load_digits()
        x, y = torch.from_numpy(bunch.images).byte(), torch.from_numpy(bunch.target).long()
        attributes = {"slant": upper_half(skew(x), y), "weight": upper_half(ink(x), y)}
        return Examples.of(x[:, None], y, attributes, scale=self.card(None).scale)


def ink(x: Tensor) -> Tensor:
    """Return the sum of each image: (n, h, w) integers -> (n,) int64."""
    return x.long().sum((1, 2))


def skew(x: Tensor) -> Tensor:
    """Return the columns that ink moves right per row upwards: (n, h, w) integers -> (n,) float64.

    This is the covariance of column and height divided by the variance of height, mu11 / mu02:
    positive if the image leans right, negated by a horizontal flip, 0 if only one row has ink.

    >>> slash = torch.eye(4, dtype=torch.uint8).flip(1)
    >>> skew(torch.stack([slash, slash.flip(1)])).tolist()
    [1.0, -1.0]
    """
    x = x.long()
    columns = torch.arange(x.shape[2])
    heights = torch.arange(x.shape[1]).flip(0)
    total = ink(x)
    by_row, by_column = x.sum(2), x.sum(1)
    right, up = (by_column * columns).sum(1), (by_row * heights).sum(1)
    # Both moments times the squared ink: they stay integers, and the factor cancels in the ratio.
    mu11 = total * ((x * columns).sum(2) * heights).sum(1) - right * up
    mu02 = total * (by_row * heights**2).sum(1) - up**2
    return mu11.double() / mu02.clamp(min=1)


def upper_half(value: Tensor, y: Tensor) -> Tensor:
    """Return 1 for values in the upper half of their class, otherwise 0: (n,), (n,) -> (n,) int64.

    Equal values rank by position; in a class of odd size the middle value is 0.

    >>> upper_half(torch.tensor([5, 1, 7, 30, 20, 1]), torch.tensor([0, 0, 0, 1, 1, 0])).tolist()
    [1, 0, 1, 1, 0, 0]
    """
    order = value.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]
    sizes = y.bincount()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    rank -= (sizes.cumsum(0) - sizes)[y]
    return (2 * rank >= sizes[y]).long()


@hookimpl
def privbench_datasets() -> list[Dataset]:
    """Offer the dataset."""
    return [Digits()]
