"""Where names stand in a picture: beside their points, never over each other.

All lengths are in points of print, from the lower left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Place = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top

#: From a point to its name; between the rings of places around a point, and how many there are.
GAP, _STEP, _RINGS = 6.0, 6.0, 7
#: Boxes along a line.
_MOST = 400
#: Directions of the places around a point, in eighths of a half-turn, the preferred first.
_DIRECTIONS = (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11)


@dataclass
class Room:
    """A picture, and what of it is taken.

    Attributes:
        frame: its box, which names do not leave.
        names: and the lines to them; no other name or line to one touches them.
        points: which no name touches; lines to names avoid them near the point.
        lines: which names avoid where a place near the point allows it.
    """

    frame: Box
    names: list[Box] = field(default_factory=list)
    points: list[Box] = field(default_factory=list)
    lines: list[Box] = field(default_factory=list)

    def take(self, at: Place, size: Place) -> tuple[Box, bool] | None:
        """Take the best free place of a name: right of its point, left, above, below, further away.

        >>> Room((-50, -50, 50, 50)).take((0, 0), (20, 8))
        ((6.0, -4.0, 26.0, 4.0), False)
        >>> Room((-50, -50, 50, 50), points=[(5, -9, 50, 9)]).take((0, 0), (20, 8))
        ((-26.0, -4.0, -6.0, 4.0), False)

        Args:
            at: the point.
            size: width and height of the name.

        Returns:
            The place, and whether a line must join it to the point; None if no place is free.
        """
        names, solid = self.names, [*self.names, *self.points]
        near, far = _around(at, size), _anywhere(at, size, self.frame)
        for boxes, under, crossed in (
            (near, [*solid, *self.lines], solid), (near, solid, solid), (far, solid, names),
        ):  # fmt: skip
            for box in boxes:
                if inside(box, self.frame) and free([box], under):
                    end = nearest(at, box)
                    away = math.dist(at, end) > GAP + 1
                    line = chain(at, end) if away else []
                    if free(line, crossed):
                        names += [box, *line]
                        return box, away
        return None

    def along(self, at: Place, size: Place) -> tuple[Box, bool]:
        """Take the best place of the name of a level line: an end of it, above or below."""
        width, height = size
        boxes = [
            (x, y, x + width, y + height)
            for x in (self.frame[0] + 3, self.frame[2] - 3 - width)
            for y in (at[1] + 2, at[1] - 2 - height)
        ]
        taken = [*self.names, *self.points, *self.lines]
        box = next((one for one in boxes if free([one], taken)), boxes[0])
        self.names.append(box)
        return box, False


def inside(box: Box, frame: Box) -> bool:
    """Whether a box is in a frame."""
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


def free(boxes: Iterable[Box], taken: Sequence[Box]) -> bool:
    """Whether no box has a place in common with what is taken.

    >>> free([(0, 0, 2, 2)], [(1, 1, 3, 3)]), free([(0, 0, 2, 2)], [(2, 0, 3, 2)])
    (False, True)
    """
    return not any(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a in boxes for b in taken
    )


def nearest(at: Place, box: Box) -> Place:
    """Return the place of a box that is nearest to a point."""
    return min(max(at[0], box[0]), box[2]), min(max(at[1], box[1]), box[3])


def chain(start: Place, end: Place, gap: float = GAP) -> list[Box]:
    """Return small boxes along a line, from a gap after its start on; a few hundred at most."""
    length = math.dist(start, end)
    apart = max(2, int(length / _MOST))  # of a line that leaves the picture, few are inside
    shares = [step / length for step in range(int(gap), int(length), apart)]
    return [
        around((start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1])), 1.0)
        for s in shares
    ]


def around(at: Place, radius: float) -> Box:
    """Return the box of a marker."""
    return at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius


def _around(at: Place, size: Place) -> list[Box]:
    """Places of a name near its point, the preferred first."""
    (x, y), (width, height) = at, size
    made = []
    for ring in range(_RINGS):
        gap = GAP + ring * _STEP
        for direction in _DIRECTIONS:
            across, up = math.cos(direction * math.pi / 8), math.sin(direction * math.pi / 8)
            left = round(x + across * (gap + width / 2) - width / 2, 3)
            bottom = round(y + up * (gap + height / 2) - height / 2, 3)
            made.append((left, bottom, left + width, bottom + height))
    return made


def _anywhere(at: Place, size: Place, frame: Box) -> Iterator[Box]:
    """Places of a name in the whole picture, the nearest to its point first."""
    width, height = size
    across = range(int((frame[2] - frame[0] - width) / _STEP) + 1)
    down = range(int((frame[3] - frame[1] - height) / _STEP) + 1)
    made = (
        (x, y, x + width, y + height)
        for x in (frame[0] + i * _STEP for i in across)
        for y in (frame[1] + i * _STEP for i in down)
    )
    yield from sorted(made, key=lambda box: (math.dist(at, nearest(at, box)), box))
