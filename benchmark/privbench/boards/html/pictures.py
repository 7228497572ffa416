"""The figures of a report as files, for papers: fronts, matrices and ROC curves."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from privbench.boards.front import (
    BEST,
    FAINT,
    INK,
    POINT,
    coloured,
    drawable,
    entitle,
    front,
    front_png,
    saved,
)
from privbench.boards.html.curves import has_scores, roc, smallest_rate
from privbench.boards.html.heat import SHADES, shades
from privbench.boards.matrix import aim_text, least_leak_first
from privbench.ground.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from privbench.boards.board import Leaderboard
    from privbench.boards.html.curves import Roc
    from privbench.boards.panel import Aim, Panel
    from privbench.results.record import Record
    from privbench.results.samples import Columns

#: Curves of one picture, the strongest attacks first, and characters of a name.
_CURVES, _LONG = 6, 32
#: Inches of a matrix: a column, a row, and the room for names.
_CELL, _ROW, _NAMES, _NARROWEST = 0.75, 0.26, 2.2, 4.0
_ACROSS = 3  # pictures side by side
_COLOURS = (BEST, POINT, "#4c9a6a", "#9a6bb5", "#b58b2f", "#7f8790")


def figures(
    board: Leaderboard,
    form: str,
    *,
    samples: Callable[[Record], Columns | None] = lambda _: None,
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file, the same bytes for the same results.

    Args:
        board: with results of any status, which can stand on one.
        form: ``svg`` or ``png``.
        samples: result -> its per-sample scores; None if there are none.
    """
    for i, panel in enumerate(board.foremost, 1):
        for aim in panel.aims:
            mine = replace(panel, attacks=[one for one in panel.attacks if one.aim == aim])
            name = f"{i}-{re.sub('[^a-z]+', '-', aim_text(aim).lower()).strip('-')}.{form}"
            if drawable([mine]):
                yield (
                    f"front-{name}",
                    front_png([mine]) if form == "png" else front([mine]).encode(),
                )
            if mine.own:
                yield f"matrix-{name}", _file(partial(_matrix, mine, aim), form)
            if curves := curves_of(mine, samples):
                yield f"roc-{name}", _file(partial(_roc, mine, curves), form)


def _file(paint: Callable[[], Figure], form: str) -> bytes:
    return saved(paint, form) if form == "png" else coloured(saved(paint)).encode()


def _matrix(panel: Panel, aim: Aim) -> Figure:
    """Attacks across, defenses down, each with the mean over seeds."""
    from matplotlib.figure import Figure

    lines, attacks = least_leak_first(panel), panel.own
    size = max(_NAMES + _CELL * len(attacks), _NARROWEST), _NAMES / 2 + _ROW * len(lines)
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    for (down, across), (value, shade) in shades(panel, aim).items():
        alpha = 0.0 if shade is None else 0.05 + 0.6 * shade / (SHADES - 1)
        axis.fill_between([across - 0.5, across + 0.5], down - 0.5, down + 0.5, color=BEST,
                          alpha=alpha, linewidth=0)  # fmt: skip
        axis.text(across, down, f"{value:.3f}", ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.5, len(attacks) - 0.5)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xticks(range(len(attacks)), [shown(one.name, _LONG) for one in attacks], rotation=35,
                    ha="right", rotation_mode="anchor", parse_math=False)  # fmt: skip
    axis.set_yticks(range(len(lines)), [shown(one.title, _LONG) for one in lines], parse_math=False)
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    entitle(axis, panel, panel.metric[aim])
    return figure


def curves_of(
    panel: Panel, samples: Callable[[Record], Columns | None]
) -> list[tuple[str, Roc, float]]:
    """Name, curve and smallest rate of the strongest attacks without a defense."""
    made: list[tuple[str, Roc, float]] = []
    spots = panel.rows[0].spots
    known = [(of.value, one) for one in panel.own if one in spots and (of := spots[one].estimate)]
    for _, attack in sorted(known, key=lambda item: (-item[0], item[1].name)):
        given = [samples(one) for one in spots[attack].records if one.status == "ok"]
        mine = [one for one in given if one is not None and has_scores(one)]
        if mine and len(made) < _CURVES:
            made.append((attack.name, roc(mine), min(map(smallest_rate, mine))))
    return made


def _roc(panel: Panel, curves: Sequence[tuple[str, Roc, float]]) -> Figure:
    return rocs([(panel, curves)])


def rocs(drawn: Sequence[tuple[Panel, Sequence[tuple[str, Roc, float]]]]) -> Figure:
    """Return the figure of the ROC curves of panels; at least one."""
    from privbench.boards.picture import Picture

    across = min(len(drawn), _ACROSS)
    down = -(-len(drawn) // across)
    figure = Picture(figsize=(4.2 * across, 4.0 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis, (panel, curves) in zip(axes, drawn, strict=False):
        _draw_roc(axis, panel, curves)
    for axis in axes[len(drawn) :]:
        axis.set_axis_off()
    return figure


def _draw_roc(axis: Any, panel: Panel, curves: Sequence[tuple[str, Roc, float]]) -> None:
    least = min(rate for _, _, rate in curves)
    axis.plot([least, 1], [least, 1], color=INK, linewidth=0.8, linestyle="--", label="chance")
    for (name, of, _), colour in zip(curves, _COLOURS, strict=False):
        rates = [*of.fpr, 1.0]
        axis.fill_between(
            rates, [*of.low, 1.0], [*of.high, 1.0], color=colour, alpha=0.15, linewidth=0
        )
        axis.plot(rates, [*of.tpr, 1.0], color=colour, linewidth=1.4, label=shown(name, _LONG))
    axis.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1),
             xlabel="false positive rate", ylabel="true positive rate")  # fmt: skip
    axis.grid(visible=True, color=FAINT, linewidth=0.3)
    legend = axis.legend(loc="lower right", frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    entitle(axis, panel, "without a defense")
