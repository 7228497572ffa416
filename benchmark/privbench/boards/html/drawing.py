"""Curves and histograms as paths of SVG, a hundred times smaller and faster than a plotted figure.

The template draws the frames once; paths are in their coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.boards.html.curves import Histogram, Roc

#: Size of a frame, without the room for its labels.
WIDTH, HEIGHT = 200.0, 150.0


@dataclass(frozen=True)
class RocPaths:
    """Paths of a curve, and of the band around it."""

    curve: str
    band: str


@dataclass(frozen=True)
class HistogramPaths:
    """Outlines of both sides, closed at the bottom; the ends of the axis as text.

    ``logits``: whether the axis shows logits of scores.
    """

    members: str
    nonmembers: str
    low: str
    high: str
    logits: bool


@dataclass(frozen=True)
class Frame:
    """Axes from ``10 ** -decades`` to 1, both logarithmic."""

    decades: int

    @property
    def ticks(self) -> list[tuple[float, float, str]]:
        """Place from the left, place from the top, and text of each power of ten."""
        return [
            (_round(WIDTH * (1 - i / self.decades)), _round(HEIGHT * i / self.decades),
             f"{10.0**-i:g}") for i in range(self.decades + 1)
        ]  # fmt: skip

    def roc(self, of: Roc) -> RocPaths:
        """Return the paths of a curve; rates of 0 lie on the lower edge."""
        rates = [*of.fpr, 1.0]
        curve = self._line(rates, [*of.tpr, 1.0])
        upper, lower = self._places(rates, [*of.high, 1.0]), self._places(rates, [*of.low, 1.0])
        return RocPaths(curve, _path([*upper, *reversed(lower)]) + "Z")

    def _line(self, rates: Sequence[float], values: Sequence[float]) -> str:
        return _path(self._places(rates, values))

    def _places(self, rates: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
        return [
            (WIDTH * (1 + self._log(rate)), -HEIGHT * self._log(value))
            for rate, value in zip(rates, values, strict=True)
        ]

    def _log(self, value: float) -> float:
        """From -1 at the lower end to 0 at 1."""
        return max(math.log10(value) / self.decades, -1.0) if value > 0 else -1.0


def frame(smallest: float) -> Frame:
    """Return the frame for curves from this false-positive rate on.

    >>> frame(1 / 400).decades, frame(1 / 1000).decades
    (3, 3)
    """
    return Frame(max(1, math.ceil(-math.log10(smallest) - 1e-9)))


def bars(of: Histogram) -> HistogramPaths:
    """Return the outlines of a histogram; its largest bar has the frame's height."""
    most = max(*of.members, *of.nonmembers)
    return HistogramPaths(
        _outline(of.members, most), _outline(of.nonmembers, most), f"{of.low:.3g}",
        f"{of.high:.3g}", of.logits,
    )  # fmt: skip


def _outline(shares: Sequence[float], most: float) -> str:
    wide = WIDTH / len(shares)
    tops = [
        place for i, share in enumerate(shares)
        for place in ((i * wide, HEIGHT * (1 - share / most)),
                      ((i + 1) * wide, HEIGHT * (1 - share / most)))
    ]  # fmt: skip
    return _path([(0.0, HEIGHT), *tops, (WIDTH, HEIGHT)]) + "Z"


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_round(x):g} {_round(y):g}" for x, y in places)


def _round(value: float) -> float:
    return round(value, 1) + 0.0
