"""The front: worst-case leak against utility, one point a defense, as an SVG figure."""

from __future__ import annotations

import io
import math
import re
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from privbench.boards.matrix import ranked
from privbench.boards.panel import foremost
from privbench.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from privbench.boards.panel import Aim, Line, Panel

#: At most this many pictures side by side, and rows of them.
_ACROSS, _DOWN = 3, 4
#: Size of one picture, in inches.
_WIDTH, _HEIGHT = 5.2, 4.0
#: Accuracy that may be lost within the picture; whatever loses more stands at its left edge.
_USEFUL = 0.25
#: Names that fit one below the other, and characters of one.
_LABELS, _LONG = 22, 48
#: Stands for the text's colour while matplotlib draws; the file says what it is by day and night.
INK, FAINT, POINT, BEST = "#010203", "#a0a1a2", "#3b76c4", "#d1603d"
_STYLE = (
    "<style>svg{color:#24292f;--faint:#b7bec6}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3;--faint:#59626d}}</style>"
)


def front(panels: Sequence[Panel]) -> str:
    """Return the figure as SVG text, the same bytes for the same results; "" if there is nothing.

    Rows are panels, columns are what attacks are after. To the right is more utility, down is less
    leak, so the best defenses stand at the lower right. Those that no other defense beats in both
    are named and orange; the one that leaks most is named, too. Thin lines join the settings of a
    defense. Triangles at the left edge lose even more accuracy.

    Args:
        panels: of a board; the first few are drawn.
    """
    drawn = drawable(panels)
    return coloured(saved(partial(painted, drawn))) if drawn else ""


def front_png(panels: Sequence[Panel]) -> bytes:
    """Return the same figure as PNG on white; b"" if there is nothing."""
    drawn = drawable(panels)
    return saved(partial(painted, drawn), "png") if drawn else b""


def saved(paint: Callable[[], Figure], form: str = "svg") -> bytes:
    """Return a figure as a file, the same bytes for the same numbers, whatever the user's settings.

    Args:
        paint: draws it.
        form: ``svg``, on nothing, or ``png``, on white.
    """
    with plain():
        file = io.BytesIO()
        unsaid = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        paint().savefig(file, format=form, transparent=form == "svg", dpi=200, metadata=unsaid)
    return file.getvalue()


@contextmanager
def plain() -> Iterator[None]:
    """Draw in the style of the boards, whatever the user's settings."""
    import matplotlib as mpl

    style: dict[Any, Any] = {"svg.hashsalt": "privbench", "svg.fonttype": "none", "font.size": 9,
             "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT,
             "xtick.color": INK, "ytick.color": INK}  # fmt: skip
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that matplotlib's font lacks are in the reader's
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        yield


def painted(drawn: Sequence[tuple[Panel, list[Aim]]]) -> Figure:
    """Return the figure of ``drawable`` panels; at least one."""
    from privbench.boards.picture import Picture

    across = max(len(aims) for _, aims in drawn)
    figure = Picture(figsize=(_WIDTH * across, _HEIGHT * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), across, squeeze=False)
    for row, (panel, aims) in zip(axes, drawn, strict=True):
        for i, axis in enumerate(row):
            if i < len(aims):
                _draw(axis, panel, aims[i])
            else:
                axis.set_axis_off()
    return figure


def drawable(panels: Sequence[Panel]) -> list[tuple[Panel, list[Aim]]]:
    """Return the panels that the figure shows, and what attacks are after in each."""
    known = [(panel, _aims(panel)) for panel in foremost(panels)]
    return [(panel, aims) for panel, aims in known if aims][:_DOWN]


def _aims(panel: Panel) -> list[Aim]:
    """What can be drawn: at least two defenses have a leak and an accuracy."""
    return [aim for aim in panel.aims if len(_places(panel.lines, aim)) > 1][:_ACROSS]


def _places(lines: Sequence[Line], aim: Aim) -> list[tuple[Line, float, float]]:
    """The lines with a place: utility and leak."""
    return [
        (line, line.accuracy.value, leak)
        for line in lines
        if line.accuracy is not None and (leak := line.leak(aim)) is not None
    ]


def best(places: Sequence[tuple[Line, float, float]], *, higher: bool) -> set[str]:
    """Return titles of the lines that no other line beats in utility and leak.

    Args:
        places: lines with their utility and leak.
        higher: whether a higher leak is a stronger attack.
    """
    sign = 1 if higher else -1

    def beaten(utility: float, leak: float) -> bool:
        return any(
            u >= utility and sign * v <= sign * leak and (u, v) != (utility, leak)
            for _, u, v in places
        )

    return {line.title for line, utility, leak in places if not beaten(utility, leak)}


def _draw(axis: Any, panel: Panel, aim: Aim) -> None:
    game, guessed = aim
    what = f"{game} of {guessed}" if guessed else game
    title = f"{panel.target} on {panel.dataset}", f"{what}, {panel.adversary} adversary"
    axis.set_title("\n".join(shown(line) for line in title), fontsize=9, parse_math=False)
    axis.set_xlabel("test accuracy")
    axis.set_ylabel(shown(f"worst case, {panel.metric[aim]}", _LONG), parse_math=False)
    axis.grid(visible=True, color=FAINT, linewidth=0.3)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if not panel.higher[aim]:
        axis.invert_yaxis()
    places = _places(ranked(panel), aim)
    left = max(utility for _, utility, _ in places) - _USEFUL
    for name in sorted({line.name for line in panel.curves}):
        settings = sorted((c for c in panel.curves if c.name == name), key=lambda c: c.strength)
        mine = _places(settings, aim)
        if len(mine) > 1:
            axis.plot([max(u, left) for _, u, _ in mine], [v for _, _, v in mine], color=FAINT,
                      linewidth=0.8, zorder=1)  # fmt: skip
    names = best(places, higher=panel.higher[aim]) | {"none"}
    for line, utility, leak in places:
        named = line.title in names
        colour = BEST if named and line.name != "none" else POINT
        for bar in _bars(line, aim, utility, leak) if utility >= left else ():
            axis.plot(*bar, color=colour, linewidth=0.6, alpha=0.5, zorder=2)
        shape = "<" if utility < left else "s" if line.name == "none" else "o"
        axis.plot([max(utility, left)], [leak], marker=shape, color=colour, linestyle="none",
                  markersize=6 if named else 4, zorder=3)  # fmt: skip
    right = max(utility for _, utility, _ in places)
    axis.set_xlim(left - 0.01, right + 0.03)
    loudest = max(places, key=lambda place: place[2] if panel.higher[aim] else -place[2])
    names.add(loudest[0].title)
    _label(axis, [(line.title, max(u, left), v) for line, u, v in places if line.title in names])


def _label(axis: Any, labels: Sequence[tuple[str, float, float]]) -> None:
    """Write names to the left of the points, one below the other, joined by thin lines."""
    low, high = sorted(axis.get_ylim())
    axis.set_ylim(*axis.get_ylim())
    apart = (high - low) / _LABELS
    down = -1 if axis.yaxis_inverted() else 1
    at = math.inf
    for name, utility, leak in sorted(labels, key=lambda label: (-down * label[2], label[0])):
        at = min(down * leak, at - apart)
        axis.annotate(
            shown(name, _LONG), (utility, leak), xytext=(0.5, down * at),
            textcoords=axis.get_yaxis_transform(),
            ha="right", va="center", fontsize=8, zorder=4, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkB": 4},
        )  # fmt: skip


def _bars(line: Line, aim: Aim, utility: float, leak: float) -> list[tuple[list[float], ...]]:
    """Intervals over seeds as pieces of lines, where there are several seeds."""
    made: list[tuple[list[float], ...]] = []
    found = line.worst.get(aim)
    if found is not None:
        made.append(([utility] * 2, [found.estimate.low, found.estimate.high]))
    accuracy = line.accuracy
    if accuracy is not None and len(line.accuracies) > 1:
        made.append(([accuracy.low, accuracy.high], [leak] * 2))
    return made


def coloured(file: bytes) -> str:
    """Return an SVG file with colours that follow the reader's light or dark mode."""
    svg = file.decode()
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    svg = re.sub(r"<\?xml.*?\?>\s*<!DOCTYPE.*?>\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"(<svg[^>]*>)", rf"\1{_STYLE}", svg, count=1)
