"""The matrix of a panel as a heat map: its texts are the board's, whole, with a shade each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.boards.html.markup import inline
from privbench.boards.matrix import (
    WIDEST,
    aim_text,
    attack_text,
    least_leak_first,
    spot_text,
    strongest_first,
    with_error,
)
from privbench.ground.text import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from privbench.boards.panel import Aim, AttackColumn, DefenseRow, Panel, Spot

#: Number of shades; the last one is the most leak.
SHADES = 10


@dataclass(frozen=True)
class Box:
    """One attack on one defense.

    Attributes:
        text: as on the board.
        shade: from 0 to ``SHADES`` - 1; None without a number.
        outside: whether the defense claims nothing about this game.
        cells: anchors of what it shows; several where seeds have several settings.
        label: what it is, in words.
    """

    text: Markup
    shade: int | None = None
    outside: bool = False
    cells: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Heat:
    """A table with headings on two sides.

    Attributes:
        title: of the panel.
        corner: what the rows are.
        heads: of the columns.
        rows: heading and boxes.
        scale: what the shades mean; "" without any.
    """

    title: str
    corner: str
    heads: list[Markup]
    rows: list[tuple[Markup, list[Box]]]
    scale: str


def heat(panel: Panel, anchors: Mapping[str, str]) -> Heat:
    """Return the heat map of a panel; attacks are its columns, unless they are many and the most.

    Args:
        panel: of a board.
        anchors: trial -> anchor of its cell.
    """
    lines, attacks = least_leak_first(panel), panel.own
    upright = len(attacks) <= max(len(lines), WIDEST - 2)
    attacks = attacks if upright else strongest_first(panel, attacks)
    ends = {aim: _ends(panel, aim, lines, attacks) for aim in panel.aims}
    names = [inline(markdown(line.title)) for line in lines]
    heads = [inline(attack_text(panel, attack)) for attack in attacks]
    useful = [Box(inline(with_error(line.accuracy, len(line.accuracies)))) for line in lines]
    boxes = [
        [_box(panel, line, attack, ends[attack.aim], anchors) for attack in attacks]
        for line in lines
    ]
    scale = _told(panel, ends, attacks)
    accuracy = inline("test accuracy")
    if upright:
        rows = [(name, [*row, end]) for name, row, end in zip(names, boxes, useful, strict=True)]
        return Heat(panel.title, "defense", [*heads, accuracy], rows, scale)
    turned = [*map(list, zip(*boxes, strict=True)), useful]
    rows = list(zip([*heads, accuracy], turned, strict=True))
    return Heat(panel.title, "attack", names, rows, scale)


def shades(panel: Panel, aim: Aim) -> dict[tuple[int, int], tuple[float, int | None]]:
    """Return row and column -> mean over seeds and shade; rows are as in ``least_leak_first``."""
    lines, attacks = least_leak_first(panel), panel.own
    ends = _ends(panel, aim, lines, attacks)
    return {
        (down, across): (found.value, _shade(spot, ends))
        for down, line in enumerate(lines) for across, attack in enumerate(attacks)
        if attack.aim == aim and (spot := line.spots.get(attack)) and (found := spot.estimate)
    }  # fmt: skip


def _box(
    panel: Panel,
    line: DefenseRow,
    attack: AttackColumn,
    ends: tuple[float, float],
    anchors: Mapping[str, str],
) -> Box:
    spot = line.spots.get(attack)
    text = inline(spot_text(spot, panel))
    if spot is None:
        return Box(text)
    cells = dict.fromkeys(anchors[one.trial] for one in spot.records if one.trial in anchors)
    label = f"{panel.metric[attack.aim]} of {attack.name} against {line.title}"
    return Box(text, _shade(spot, ends), spot.over.outside, tuple(cells), label)


def _ends(
    panel: Panel, aim: Aim, lines: Sequence[DefenseRow], attacks: Sequence[AttackColumn]
) -> tuple[float, float]:
    """The numbers of the least and the most leak: for an AUC, chance and certainty."""
    known = [
        found.value
        for line in lines for attack in attacks
        if attack.aim == aim and (spot := line.spots.get(attack)) and (found := spot.estimate)
    ]  # fmt: skip
    if panel.metric[aim] == "AUC":
        return 0.5, 1.0
    low, high = min(known, default=0.0), max(known, default=1.0)
    return (low, high) if panel.higher[aim] else (high, low)


def _shade(spot: Spot, ends: tuple[float, float]) -> int | None:
    found = spot.estimate
    if found is None:
        return None
    least, most = ends
    if least == most:
        return None
    share = (found.value - least) / (most - least)
    return min(max(int(share * SHADES), 0), SHADES - 1)


def _told(
    panel: Panel, ends: Mapping[Aim, tuple[float, float]], attacks: Sequence[AttackColumn]
) -> str:
    told = [
        f"{aim_text(aim)}: {panel.metric[aim]} from "
        f"{ends[aim][0]:.3g} (pale) to {ends[aim][1]:.3g} (strong)"
        for aim in dict.fromkeys(attack.aim for attack in attacks)
        if ends[aim][0] != ends[aim][1]
    ]
    return "; ".join(told)
