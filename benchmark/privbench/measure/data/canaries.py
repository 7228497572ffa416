"""Canaries: rows made to be remembered, whose membership the question is about.

An average row hides the worst case. Aerni, Zhang, Tramèr: Evaluations of Machine Learning Privacy
Defenses are Misleading. CCS 2024: attack rows that mimic the most vulnerable ones (mislabelled
samples for most defenses, samples of another distribution for self-supervised learning), while all
other members are members in every world.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from privbench.ground.errors import BadInputError, no_choice
from privbench.ground.text import shown

if TYPE_CHECKING:
    from torch import Tensor

    from privbench.measure.data.examples import Card, Examples

Kind = Literal["mislabelled", "noise", "file"]


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """The candidates of a protocol with canaries; each replaces one of its nonmembers.

    Attributes:
        kind: ``mislabelled``: the row with another class, drawn uniformly; ``noise``: every pixel
            or column drawn uniformly, one-hot groups a uniform category, and a uniform class;
            ``file``: rows of a NumPy archive with ``x`` (m, *shape), whole numbers from 0 to the
            card's scale or floats in [0, 1], and ``y`` (m,) classes.
        count: number of canaries.
        path: of the archive; relative to the current folder.
        sha256: of the archive, read when it is not given, so that another file is another protocol.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # of what a suite gives

    kind: Kind
    count: Annotated[int, Ge(4)]
    path: str | None = None
    sha256: str = ""

    def __post_init__(self) -> None:
        """Check the kind and the file.

        Raises:
            BadInputError: if the kind is none, or if there is no such file.
        """
        if wrong := no_choice("kind of canaries", self.kind, ("mislabelled", "noise", "file")):
            raise BadInputError(wrong)
        if (self.path is None) == (self.kind == "file"):
            raise BadInputError(
                "canaries: name the archive in `path` for kind 'file', and give none otherwise"
            )
        if self.path is not None and not self.sha256:
            object.__setattr__(self, "sha256", hashlib.sha256(self._bytes()).hexdigest())

    def _bytes(self) -> bytes:
        try:
            return Path(str(self.path)).read_bytes()
        except OSError as error:
            raise BadInputError(
                f"canaries: cannot read {shown(str(self.path), 200)} ({error.strerror}): "
                "give a .npz file"
            ) from None

    def made(self, rows: Examples, card: Card, seed: int) -> Examples:
        """Return the canaries that take the place of these rows (``count`` of them).

        They keep the rows' numbers and sources; those that are not mislabelled rows of the dataset
        have no attributes (-1).

        Raises:
            BadInputError: if the archive does not fit the dataset.
        """
        from privbench.measure.data.row_random import fold, uniform

        keys = fold(rows.keys ^ fold(rows.index, 1), seed)
        classes = card.classes or 0
        if self.kind == "mislabelled":
            other = (uniform(keys, 1)[:, 0] * (classes - 1)).long().clamp(max=classes - 2)
            return rows.with_y((rows.y + 1 + other) % classes)
        if self.kind == "noise":
            width = rows.x[0].numel()
            u = uniform(keys, width + 1)
            y = (u[:, width] * classes).long().clamp(max=classes - 1)
            x = _noise(u[:, :width], card).view(rows.x.shape)
        else:
            x, y = self._read(len(rows), card)
        if not rows.x.is_floating_point():
            x = (x * rows.scale).round()
        unknown = {name: column * 0 - 1 for name, column in rows.attributes.items()}
        x, y = x.to(rows.x), y.to(rows.y)
        return replace(rows, x=x, y=y, attributes=unknown)

    def _read(self, n: int, card: Card) -> tuple[Tensor, Tensor]:
        """Return x (n, *shape) in [0, 1] and y (n,) of the first n rows of the archive."""
        import io

        import numpy as np
        import torch

        told, held = f"canaries {shown(str(self.path), 200)}", self._bytes()
        if hashlib.sha256(held).hexdigest() != self.sha256:
            raise BadInputError(f"{told} changed since the run began: run the command again")
        try:
            archive = np.load(io.BytesIO(held), allow_pickle=False)
            x, y = np.asarray(archive["x"]), np.asarray(archive["y"])
        except Exception:  # noqa: BLE001 - whatever a file that is none raises
            raise BadInputError(f"{told}: give a .npz file with arrays x and y") from None
        if wrong := _misfit(x, y, n, card):
            raise BadInputError(f"{told}: {wrong}")
        scale = 1.0 if x.dtype.kind == "f" else card.scale
        return torch.from_numpy(x[:n] / scale), torch.from_numpy(y[:n].astype(np.int64))


def _misfit(x: Any, y: Any, n: int, card: Card) -> str:
    """Return what is wrong with the arrays of an archive; "" if nothing is."""
    if len(x.shape) != len(card.shape) + 1 or x.shape[1:] != tuple(card.shape):
        return f"x has shape {x.shape}: {card.name} needs (rows, {', '.join(map(str, card.shape))})"
    if len(x) < n or y.shape != (len(x),):
        return (
            f"x has {len(x)} rows and y has shape {y.shape}: {n} rows with a class each are asked"
        )
    if x.dtype.kind not in "uif" or y.dtype.kind not in "ui":
        return f"x holds {x.dtype} and y {y.dtype}: give numbers, and whole numbers as classes"
    most = 1.0 if x.dtype.kind == "f" else card.scale
    if not ((x >= 0) & (x <= most)).all():
        return f"x must lie between 0 and {most:g}"
    if not ((y >= 0) & (y < (card.classes or 0))).all():
        return f"y must lie between 0 and {(card.classes or 0) - 1}"
    return ""


def _noise(u: Tensor, card: Card) -> Tensor:
    """Uniform numbers u (n, width) as values in [0, 1] that the dataset could hold."""
    import torch

    x = (u * (card.scale + 1)).floor().clamp(max=card.scale) / card.scale
    for start, stop in card.groups:
        hot = u[:, start:stop].argmax(1)
        x[:, start:stop] = torch.nn.functional.one_hot(hot, stop - start).to(x)
    return x
