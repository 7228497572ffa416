"""Examples, and the card that describes a dataset.

This module does not import torch at the top, so that records and leaderboards load fast.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from privbench.ground.errors import BadInputError, no_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from torch import Tensor

    from privbench.measure.data.augmentation import Augmentation

#: Bytes of a mapped x that are read at a time.
BLOCK = 1 << 25


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known about a dataset before it is loaded; planning reads nothing else.

    >>> card = Card(name="mine", kind="image", shape=(3, 32, 32), classes=10, scale=255,
    ...             sources={"train": 800, "test": 200})
    >>> card.rows
    1000

    Attributes:
        name: name of the dataset.
        kind: ``image`` (c, h, w), ``binary`` or ``real`` (features,).
        shape: shape of one example, without the batch axis.
        classes: number of classes of the task; None if there is no task.
        scale: the stored integer that means 1.0 (255 for 8-bit images, 1 for binary columns).
        attributes: sensitive attribute -> number of values.
        sensitive: attributes that Talos censors and attribute inference guesses by default.
        sources: named origins of rows ("train", "test", ...) -> number of rows.
        limits: the strongest augmentation that keeps label and attributes; None allows none. Of its
            probabilities only zeros matter (see ``Augmentation.within``).
        mean: per-channel mean of x in [0, 1], subtracted before the backbone; () for none.
        std: per-channel standard deviation, by which x is then divided; () for none.
        groups: one-hot column groups as (start, stop); () if there are none.
        content: digest of the files that the rows are read from, if they may change: another
            content is another trial. "" where name and version of the dataset say what it holds.
    """

    name: str
    kind: Literal["image", "binary", "real"]
    shape: tuple[int, ...]
    classes: int | None
    scale: float
    attributes: Mapping[str, int] = field(default_factory=dict)
    sensitive: tuple[str, ...] = ()
    sources: Mapping[str, int]
    limits: Augmentation | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    groups: tuple[tuple[int, int], ...] = ()
    content: str = ""

    def __post_init__(self) -> None:
        """Refuse a kind that does not exist: it would be taken for a table.

        Raises:
            BadInputError: naming the kinds.
        """
        if wrong := no_choice(f"kind of '{self.name}'", self.kind, ("image", "binary", "real")):
            raise BadInputError(wrong)

    @property
    def rows(self) -> int:
        """Return the number of rows of all sources together."""
        return sum(self.sources.values())


@dataclass(frozen=True)
class Examples:
    """Rows of a dataset on one device; integer ``x`` stays integer until a model reads it.

    >>> import torch
    >>> x, y = torch.zeros(4, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    >>> rows = Examples.of(x, y, scale=255)
    >>> len(rows), rows.select(rows.y == 1).index
    (4, tensor([1, 3]))

    Attributes:
        x: (n, *shape) uint8, or float in [0, 1].
        y: (n,) int64 class, -1 if unlabelled; or (n, k) float for soft labels.
        attributes: name -> (n,) int64, -1 if missing.
        index: (n,) int64 position in the dataset; in a split, a number that identifies the row and
            reveals nothing else.
        source: (n,) int64 position in ``Card.sources``.
        scale: scale of the card.
        labelled_by: digest of the stage that computes y, if it is known before y is; ``digest``
            then uses it instead of y.
        mapped: the file that x is a memory map of; None if x is in memory. Such an x must not be
            written to. Its rows are read in blocks, and those selected are in memory.
    """

    x: Tensor
    y: Tensor
    attributes: Mapping[str, Tensor]
    index: Tensor
    source: Tensor
    scale: float
    labelled_by: str = ""
    mapped: mmap.mmap | None = None

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        attributes: Mapping[str, Tensor] | None = None,
        *,
        scale: float,
        source: Tensor | None = None,
        mapped: mmap.mmap | None = None,
    ) -> Examples:
        """Create examples from tensors; keys and positions are filled in.

        Raises:
            ValueError: if the lengths differ.
        """
        import torch

        n = len(x)
        attributes = dict(attributes or {})
        for name, column in {"y": y, **attributes}.items():
            if len(column) != n:
                raise ValueError(f"x has {n} rows but {name} has {len(column)}: pass equal lengths")
        index = torch.arange(n, device=x.device)
        source = torch.zeros_like(index) if source is None else source
        return cls(x, y, attributes, index, source, scale, mapped=mapped)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.x)

    @cached_property
    def keys(self) -> Tensor:
        """Return the (n,) int64 content hashes of the rows of x, which key all random streams."""
        import torch

        from privbench.measure.data.row_random import row_keys

        pieces = [row_keys(self.x[rows], self.scale) for rows in self.blocks()]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def blocks(self) -> Iterator[slice]:
        """Return slices that cover all rows: one slice, or a few MB of x at a time if it is mapped.

        Pages of a mapped file that were read are then given back, so that a pass over all rows
        takes the memory of one block.
        """
        return _blocks(len(self), _row_bytes(self.x), self.mapped)

    @property
    def device(self) -> torch.device:
        """Return the device of the rows."""
        return self.x.device

    def select(self, rows: Tensor | slice) -> Examples:
        """Return rows by position, mask or slice, in that order."""
        if self.mapped is None:
            return self._each(lambda column: column[rows])
        return self.unread(rows).read()

    def to(self, device: torch.device | str) -> Examples:
        """Copy to a device (does nothing if the rows are already there)."""
        if self.mapped is not None and self.device.type == str(device).partition(":")[0]:
            return self
        return self._each(lambda column: column.to(device))

    def without_x(self) -> Examples:
        """Return the same rows with nothing in x and the keys that they have: enough to deal."""
        return _keyed(replace(self, x=self.x.new_empty(len(self), 0), mapped=None), self.keys)

    def unread(self, rows: Tensor | slice) -> Unread:
        """Return rows by position, mask or slice, whose x stays where it is."""
        import torch

        at = torch.arange(len(self), device=self.device)[rows]
        return Unread(self.x, self.mapped, at, self.without_x().select(at))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """Apply one change to every column."""
        made = replace(
            self,
            mapped=None,
            x=change(self.x),
            y=change(self.y),
            attributes={name: change(column) for name, column in self.attributes.items()},
            index=change(self.index),
            source=change(self.source),
        )
        return _keyed(made, change(self.keys))

    def private(self) -> Examples:
        """Return a copy with tensors of its own, for code that might write into them."""
        made = Examples(
            self.x.clone(),
            self.y.clone(),
            {name: column.clone() for name, column in self.attributes.items()},
            self.index.clone(),
            self.source.clone(),
            self.scale,
            self.labelled_by,
        )
        return _keyed(made, self.keys.clone())

    def rekeyed(self) -> Examples:
        """Return the same rows with keys of what x holds now, whatever was written into it."""
        return replace(self)

    def with_y(self, y: Tensor) -> Examples:
        """Return the same rows with other labels, (n,) hard or (n, k) soft."""
        if len(y) != len(self):
            raise ValueError(f"y has {len(y)} labels for {len(self)} rows: pass one label per row")
        return _keyed(replace(self, y=y, labelled_by=""), self.keys)

    def renumbered(self, index: Tensor) -> Examples:
        """Return the same rows with other positions (n,) int64."""
        return _keyed(replace(self, index=index), self.keys)

    def without_attributes(self) -> Examples:
        """Return the same rows without attributes."""
        return _keyed(replace(self, attributes={}), self.keys)

    def without_source(self) -> Examples:
        """Return the same rows with one source for all, since the source can reveal membership."""
        return _keyed(replace(self, source=self.source * 0), self.keys)

    def digest(self, *, labels: bool = True, attributes: Sequence[str] = ()) -> str:
        """Return a content hash of the rows in order, the same on every machine.

        Args:
            labels: whether to include y.
            attributes: attributes to include.
        """
        parts = {"keys": self.keys}
        if self.x.is_floating_point():  # keys round x to multiples of 1 / scale
            parts["x"] = self.x
        if labels and not self.labelled_by:
            parts["y"] = self.y
        parts |= {n: self.attributes[n] for n in sorted(attributes) if n in self.attributes}
        total = hashlib.blake2b(digest_size=16)
        if labels:
            total.update(self.labelled_by.encode())
        for name, part in parts.items():
            total.update(str((name, tuple(part.shape), str(part.dtype))).encode())
            for rows in self.blocks():
                total.update(part[rows].contiguous().cpu().numpy().tobytes())
        return total.hexdigest()


@dataclass(frozen=True)
class Unread:
    """Rows whose x stays where it is, perhaps in a file, until some of them are selected.

    Attributes:
        x: (m, *shape), whose rows they are among.
        mapped: see ``Examples``.
        at: (n,) int64 positions of the rows in x.
        columns: the rows without x, on the device where they are read to.
    """

    x: Tensor
    mapped: mmap.mmap | None
    at: Tensor
    columns: Examples

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.at)

    def those(self, rows: Tensor) -> Unread:
        """Return rows by position or mask, in that order, still unread."""
        at = self.at[rows.to(self.at.device)]
        return Unread(self.x, self.mapped, at, self.columns.select(rows))

    def select(self, rows: Tensor) -> Examples:
        """Read rows by position or mask, in that order."""
        return self.those(rows).read()

    def to(self, device: torch.device | str) -> Unread:
        """Say where rows are read to."""
        return replace(self, columns=self.columns.to(device))

    def read(self) -> Examples:
        """Read all rows, in blocks if x is mapped.

        Raises:
            BadInputError: if the mapped file has changed since the keys were computed.
        """
        import torch

        # A page that is read brings its neighbours with it: count 64 kB a row at least.
        size = max(1 << 16, _row_bytes(self.x))
        x = self.x.new_empty(len(self), *self.x.shape[1:])
        for rows in _blocks(len(self), size, self.mapped):
            torch.index_select(self.x, 0, self.at[rows], out=x[rows])
        made = replace(self.columns, x=x.to(self.columns.device))
        if self.mapped is not None and not torch.equal(made.keys, self.columns.keys):
            raise BadInputError("a data file changed while it was used: run the command again")
        return _keyed(made, self.columns.keys)

    def digest(self) -> str:
        """Return the digest of the rows; of a mapped x only the keys count."""
        whole = self.mapped is None and self.x.is_floating_point()
        return (self.read() if whole else self.columns).digest()


def _blocks(n: int, size: int, mapped: mmap.mmap | None) -> Iterator[slice]:
    """Yield slices that cover n rows of that many bytes each, see ``Examples.blocks``."""
    step = max(1, BLOCK // max(1, size)) if mapped is not None else max(1, n)
    for start in range(0, max(1, n), step):
        yield slice(start, min(start + step, n))
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def _row_bytes(x: Tensor) -> int:
    return x.element_size() * math.prod(x.shape[1:])


def adopted(rows: Examples, source: Card, card: Card) -> tuple[Examples, Card]:
    """Convert rows of one dataset to the shape and scale of another; return them and their card.

    Images are resized (bilinear, antialiased). If the numbers of channels differ, grey images get
    three equal channels and colour images become their luma. Attributes and sources are dropped.

    Raises:
        BadInputError: if one dataset is a table and the columns are not the same.
    """
    import torch

    mapped = None
    if source.shape == card.shape and source.scale == card.scale:
        x, mapped = rows.x, rows.mapped
    elif source.kind == card.kind == "image":
        x = torch.cat([_as_image(rows.x[some], rows.scale, card) for some in rows.blocks()])
    else:
        raise BadInputError(
            f"rows of '{source.name}' {source.shape} cannot be converted to the shape {card.shape} "
            f"of '{card.name}': for images use an image dataset, for tables one with the same "
            "columns"
        )
    made = Examples.of(x, rows.y, scale=card.scale, mapped=mapped)
    named = replace(
        card, name=source.name, classes=source.classes, attributes={}, sensitive=(),
        sources={"all": len(rows)}, limits=source.limits,
    )  # fmt: skip
    return made, named


def _as_image(x: Tensor, scale: float, card: Card) -> Tensor:
    """Return images in the channels, size and scale of a card."""
    import torch
    from torch.nn.functional import interpolate

    x = as_float(x, scale)
    if x.shape[1] != card.shape[0]:
        luma = x.new_tensor([0.299, 0.587, 0.114])
        x = x.expand(-1, card.shape[0], -1, -1) if x.shape[1] == 1 else (
            (x * luma[:, None, None]).sum(1, keepdim=True)
        )  # fmt: skip
    x = interpolate(x, size=card.shape[1:], mode="bilinear", antialias=True)
    return (x.clamp(0, 1) * card.scale).round().to(torch.uint8)


def join(parts: Sequence[Examples]) -> Examples:
    """Concatenate rows of one dataset."""
    import torch

    made = Examples(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        {
            name: torch.cat([part.attributes[name] for part in parts])
            for name in parts[0].attributes
        },
        torch.cat([part.index for part in parts]),
        torch.cat([part.source for part in parts]),
        parts[0].scale,
    )
    return _keyed(made, torch.cat([part.keys for part in parts]))


def _keyed(rows: Examples, keys: Tensor) -> Examples:
    """Reuse known keys; ``dataclasses.replace(rows, x=...)`` computes new ones."""
    vars(rows)["keys"] = keys
    return rows


def as_float(x: Tensor, scale: float) -> Tensor:
    """Return a new tensor with x as the float in [0, 1] that models read.

    >>> import torch
    >>> as_float(torch.tensor([0, 51, 255], dtype=torch.uint8), 255)
    tensor([0.0000, 0.2000, 1.0000])
    """
    return x.clone() if x.is_floating_point() else x.float().div_(scale)
