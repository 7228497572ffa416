"""The front: worst-case leak against utility, one point a defense, as an SVG figure."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from privbench.boards.matrix import aim_text, least_leak_first
from privbench.boards.panel import foremost
from privbench.boards.placing import Room, around, chain, free, nearest
from privbench.ground.text import several, shown
from privbench.results.statistics import FEWEST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from privbench.boards.panel import Aim, DefenseRow, Panel
    from privbench.boards.placing import Box, Place

#: At most so many pictures side by side, panels, and pictures of one.
_ACROSS, _DOWN, _AIMS = 2, 4, 3
#: Size of one picture, in inches: two are as wide as a page of a website.
_WIDTH, _HEIGHT = 4.15, 3.8
#: Room for its scales and their names, and for its heading, in inches.
_LEFT, _RIGHT, _ABOVE, _BELOW = 0.68, 0.18, 0.62, 0.48
#: Accuracy that may be lost within the picture; whatever loses more stands at its left edge. The
#: least that is shown, so that equal accuracies do not look different.
_USEFUL, _NARROWEST = 0.25, 0.1
#: The least range of leaks that is shown: its scale needs three decimals, for which there is room.
_FLATTEST = 0.03
#: Room for names on both sides of the points, as a share of what they take.
_BESIDE = 0.25
#: A place where a line is interrupted.
_GAP = (math.nan, math.nan)
#: Characters of a line of a name, if that fits and otherwise; of a whole name, and of a heading.
_LINES, _LONG, _HEAD = (32, 20), 96, 58
#: Colours of text and of lines while matplotlib draws.
INK, FAINT = "#010203", "#a0a1a2"
#: What they are in a file: greys that can be read on white and on black where no style works.
GREY, _THIN = "#747a82", "#8b929a"
POINT, BEST = "#3b76c4", "#d1603d"
#: Text by day and by night; each can still be read on a page of the other kind.
_STYLE = (
    f'<style>@media(prefers-color-scheme:light){{[fill="{GREY}"]{{fill:#57606a}}}}'
    f'@media(prefers-color-scheme:dark){{[fill="{GREY}"]{{fill:#9198a1}}}}</style>'
)
#: What all of a file's elements share.
_ROOT = (
    'stroke-linejoin="round" stroke-linecap="butt" '
    "font-family=\"'DejaVu Sans', Verdana, sans-serif\""
)


def front(panels: Sequence[Panel]) -> str:
    """Return the figure as SVG text, the same bytes for the same results; "" if there is nothing.

    A picture for each panel and each of what attacks are after. To the right is more utility, down
    is less leak, so the best defenses stand at the lower right. Those that no other defense beats
    in both are named and orange; the one that leaks most is named, too. Thin lines join the
    settings of a defense. Triangles at the left edge lose even more accuracy. The dashed line is
    what guessing reaches. Fewer than ``FEWEST_SEEDS`` seeds are called a draft.

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

    pictures = [(panel, aim) for panel, aims in drawn for aim in aims]
    across = min(len(pictures), _ACROSS)
    down = -(-len(pictures) // across)
    wide, high = _WIDTH * across, _HEIGHT * down
    figure = Picture(figsize=(wide, high))
    beside, over = _LEFT + _RIGHT, _ABOVE + _BELOW
    edges = {"left": _LEFT / wide, "right": 1 - _RIGHT / wide,
             "bottom": _BELOW / high, "top": 1 - _ABOVE / high,
             "wspace": beside / (_WIDTH - beside), "hspace": over / (_HEIGHT - over)}  # fmt: skip
    axes = figure.subplots(down, across, squeeze=False, gridspec_kw=edges).ravel()
    for axis in axes[len(pictures) :]:
        axis.set_axis_off()
    for axis, (panel, aim) in zip(axes, pictures, strict=False):
        _draw(axis, panel, aim)
        _name(axis, panel, aim)
    return figure


def drawable(panels: Sequence[Panel]) -> list[tuple[Panel, list[Aim]]]:
    """Return the panels that the figure shows, and what attacks are after in each."""
    known = [(panel, _aims(panel)) for panel in foremost(panels)]
    return [(panel, aims) for panel, aims in known if aims][:_DOWN]


def _aims(panel: Panel) -> list[Aim]:
    """What can be drawn: at least two defenses have a leak and an accuracy."""
    return [aim for aim in panel.aims if len(_places(panel.rows, aim)) > 1][:_AIMS]


def _places(lines: Sequence[DefenseRow], aim: Aim) -> list[tuple[DefenseRow, float, float]]:
    """The lines with a place: utility and leak."""
    return [
        (line, line.accuracy.value, leak)
        for line in lines
        if line.accuracy is not None and (leak := line.leak(aim)) is not None
    ]


def best(places: Sequence[tuple[DefenseRow, float, float]], *, higher: bool) -> set[str]:
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


def entitle(axis: Any, panel: Panel, what: str) -> None:
    """Write above a picture what it shows of a panel, and whether that is a draft."""
    seeds = len(panel.seeds)
    lines = [f"{panel.target} on {panel.dataset}", f"{what}, {panel.adversary} adversary"]
    lines += [f"draft, {several(seeds, 'seed')}"] if seeds < FEWEST_SEEDS else []
    told = "\n".join(shown(line, _HEAD) for line in lines)
    axis.set_title(told, fontsize=9, parse_math=False)


def _draw(axis: Any, panel: Panel, aim: Aim) -> None:
    entitle(axis, panel, aim_text(aim))
    axis.set_xlabel("test accuracy")
    axis.set_ylabel(shown(f"worst case, {panel.metric[aim]}", _HEAD), parse_math=False)
    axis.grid(visible=True, color=FAINT, linewidth=0.6, alpha=0.4)
    axis.set_axisbelow(True)
    axis.margins(y=0.08)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if not panel.higher[aim]:
        axis.invert_yaxis()
    places = _places(least_leak_first(panel), aim)
    left, right = _ends(places)
    edge = {line.title for line, utility, _ in places if utility < left}
    if guess := panel.chance[aim]:
        axis.axhline(guess.value, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    joined: list[Place] = []
    for name in sorted({line.name for line in panel.curves}):
        settings = sorted((c for c in panel.curves if c.name == name), key=lambda c: c.rank)
        mine = _places(settings, aim)
        if len(mine) > 1:
            # Lines end at what stands at the left edge, and leave the picture otherwise.
            joined += [(max(u, left) if line.title in edge else u, v) for line, u, v in mine]
            joined.append(_GAP)
    axis.plot(*zip(*joined, strict=True), color=FAINT, linewidth=0.8, alpha=0.6, zorder=1)
    names = _front_line(panel, aim)
    marks: dict[tuple[int, str, str], list[Place]] = {}
    bars: dict[str, list[Place]] = {}
    for line, utility, leak in places:
        named = line.title in names
        colour = BEST if named and line.name != "none" else POINT
        if utility >= left:
            bars.setdefault(colour, []).extend(_bars(line, aim, utility, leak))
        shape = "<" if utility < left else "s" if line.name == "none" else "o"
        at = max(utility, left), leak
        marks.setdefault((6 if named else 4, colour, shape), []).append(at)
    for colour, ends in sorted(bars.items()):
        axis.plot(*zip(*ends, strict=True), color=colour, linewidth=0.6, alpha=0.5, zorder=2)
    for (size, colour, shape), points in sorted(marks.items()):
        axis.plot(*zip(*points, strict=True), marker=shape, color=colour, linestyle="none",
                  markersize=size, zorder=3)  # fmt: skip
    low, high = axis.dataLim.intervaly
    more = max(0.0, _FLATTEST - (high - low)) / 2
    axis.update_datalim([(left, low - more), (left, high + more)])
    wide = right - left
    axis.set_xlim(left - _BESIDE * wide, right + _BESIDE * wide)


def _ends(places: Sequence[tuple[DefenseRow, float, float]]) -> tuple[float, float]:
    """Least and most accuracy that a picture shows."""
    known = [utility for _, utility, _ in places]
    left, right = max(min(known), max(known) - _USEFUL), max(known)
    more = max(0.0, _NARROWEST - (right - left)) / 2
    return left - more, right + more


def _front_line(panel: Panel, aim: Aim) -> set[str]:
    """Titles of the lines that met all their judges and that no other such beats, and ``none``."""
    met = [line for line in least_leak_first(panel) if aim not in line.not_met]
    return best(_places(met, aim), higher=panel.higher[aim]) | {"none"}


def _name(axis: Any, panel: Panel, aim: Aim) -> None:
    """Write names beside their points, joined by a thin line where they are away, and at chance.

    The layout is fixed. A name that fits nowhere is left out.
    """
    places = _places(least_leak_first(panel), aim)
    left, _ = _ends(places)
    sign = 1 if panel.higher[aim] else -1
    loudest = max(places, key=lambda place: sign * place[2])[0].title
    certain = {title for title, at in panel.certain if at == aim}
    names = _front_line(panel, aim) | certain | {loudest}
    scale = 72 / axis.figure.dpi  # from pixels to points
    room = Room(tuple(scale * axis.bbox.extents))
    for drawn in axis.lines:
        ends = [*map(tuple, scale * drawn.get_transform().transform(drawn.get_xydata()))]
        if drawn.get_linestyle() == "None":
            room.points += [around(end, 3.5) for end in ends]
            continue
        pieces = (pair for pair in pairwise(ends) if math.isfinite(math.dist(*pair)))
        boxes = (box for pair in pieces for box in chain(*pair, gap=0))
        room.lines += [box for box in boxes if not free([box], [room.frame])]
    if guess := panel.chance[aim]:
        _write(axis, shown(guess.name, _LINES[0]), (left, guess.value), room.along)
    for line, utility, leak in sorted(places, key=lambda place: (-place[1], place[0].title)):
        told = shown(line.title, _LONG)
        if line.title in names:
            any(
                _write(axis, "\n".join(textwrap.wrap(told, wide, break_on_hyphens=False)),
                       (max(utility, left), leak), room.take)
                for wide in _LINES
            )  # fmt: skip


def _write(
    axis: Any, told: str, place: Place, take: Callable[[Place, Place], tuple[Box, bool] | None]
) -> bool:
    """Write a text where there is room for it; False if there is none."""
    scale = 72 / axis.figure.dpi
    made = axis.annotate(told, place, xytext=(0, 0), textcoords="offset points", fontsize=8,
                         va="bottom", zorder=4, parse_math=False)  # fmt: skip
    size = made.get_window_extent()
    at = tuple(scale * axis.transData.transform(place))
    found = take(at, (scale * size.width, scale * size.height))
    if found is None:
        made.remove()
        return False
    box, away = found
    made.set_position((box[0] - at[0], box[1] - at[1]))
    if away:
        end = nearest(at, box)
        line = {"arrowstyle": "-", "color": INK, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 4}
        axis.annotate("", place, xytext=(end[0] - at[0], end[1] - at[1]),
                      textcoords="offset points", arrowprops=line)  # fmt: skip
    return True


def _bars(line: DefenseRow, aim: Aim, utility: float, leak: float) -> list[Place]:
    """Intervals over seeds, where there are several: the ends of each and a gap."""
    made: list[Place] = []
    found = line.worst.get(aim)
    if found is not None:
        made += [(utility, found.estimate.low), (utility, found.estimate.high), _GAP]
    accuracy = line.accuracy
    if accuracy is not None and len(line.accuracies) > 1:
        made += [(accuracy.low, leak), (accuracy.high, leak), _GAP]
    return made


def coloured(file: bytes) -> str:
    """Return an SVG file whose colours work on white and on black, with and without a style.

    Colours are attributes, which every program reads; the style gives text more contrast where it
    works.
    """
    svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", file.decode(), flags=re.DOTALL)
    svg = re.sub(r'(<[^<>]*?) style="([^"]*)"', _plain, svg[svg.index("<svg") :])
    svg = svg.replace(INK, GREY).replace(FAINT, _THIN)
    return re.sub(r"<svg([^>]*)>", rf"<svg\1 {_ROOT}>{_STYLE}", svg, count=1)


def _plain(tag: re.Match[str]) -> str:
    """A tag with its declarations as attributes; the font is that of the file."""
    told = (one.split(": ", 1) for one in tag[2].split("; "))
    return tag[1] + "".join(f' {name}="{value}"' for name, value in told if name != "font-family")
