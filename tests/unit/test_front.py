"""The figure of the front in every program that shows SVG: axes, chance, names, draft."""

from __future__ import annotations

import functools
import io
import re
import shutil
import subprocess
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.textpath import TextPath
from PIL import Image
from tests.unit.test_board_files import drawn, grid, number, record, texts

from privbench.boards.board import Leaderboard
from privbench.boards.front import BEST, GREY, POINT, drawable, front, plain
from privbench.boards.front import painted as figure_of
from privbench.boards.panel import Guess
from privbench.boards.placing import Box, Room, chain, free, inside

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

    from privbench.results.record import Record

#: White, and what GitHub's dark pages stand on.
PAGES = ("#ffffff", "#0d1117")
RENDERER = shutil.which("rsvg-convert") or ""
needs_renderer = pytest.mark.skipif(
    not RENDERER, reason="no rsvg-convert here: apt-get install librsvg2-bin"
)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours by WCAG 2, from 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def crowded() -> list[Record]:
    """Eleven defenses of nearly equal utility and leak; each is on the front."""
    made = [record(value=0.7, accuracy=0.9)]
    return made + [
        record(defense=f"defense-number-{i}", value=0.69 - i / 200, accuracy=0.895 - i / 500)
        for i in range(11)
    ]


# ---- colours -------------------------------------------------------------------------------------


def test_every_colour_is_an_attribute_that_can_be_read_on_white_and_on_black() -> None:
    svg = drawn(grid())
    seen = set[str]()
    for one in svg.iter():
        assert "style" not in one.attrib
        for name in ("fill", "stroke"):
            colour = one.get(name, "none")
            assert re.fullmatch("none|#[0-9a-f]{6}", colour), (one.tag, name, colour)
            seen |= {colour} - {"none"}
        if one.tag.endswith("}text"):
            assert one.get("fill") == GREY
    assert {GREY, POINT, BEST} < seen
    for colour in seen:
        least = 4.3 if colour == GREY else 3.0
        for page in PAGES:
            assert contrast(colour, page) > least, (colour, page)


def test_a_style_raises_the_contrast_by_day_and_by_night() -> None:
    text = front(Leaderboard(grid()).panels)
    (style,) = re.findall("<style>(.*?)</style>", text)
    found = dict(re.findall(r"scheme:(\w+)\)\{\[fill=\"#\w+\"\]\{fill:(#\w+)\}", style))
    assert {*found} == {"light", "dark"}
    assert f'[fill="{GREY}"]' in style
    for name, page, other in (("light", *PAGES), ("dark", *PAGES[::-1])):
        assert contrast(found[name], page) > 6
        assert contrast(found[name], other) > 2.8  # a dark site in a light browser


# ---- chance --------------------------------------------------------------------------------------


def guesses(game: str, **baselines: dict[str, float]) -> list[Record]:
    made = [record(defense=d, game=game, value=v) for d, v in (("none", 0.8), ("x", 0.7))]
    for one in made:
        one.baselines = {
            name: {metric: number(value) for metric, value in values.items()}
            for name, values in baselines.items()
        }
    return made


def test_chance_is_a_half_for_an_auc_and_the_constant_answer_otherwise() -> None:
    for made, chance, constant in (
        (guesses("membership"), Guess("chance", 0.5), None),
        (guesses("property"), Guess("chance", 0.5), None),
        (guesses("attributes", majority={"accuracy": 0.4}), Guess("majority", 0.4), None),
        (guesses("attributes"), None, None),
        (guesses("reconstruction", mean_image={"mse": 0.07}), Guess("mean image", 0.07),
         Guess("mean image", 0.07)),
    ):  # fmt: skip
        if made[0].cell.game == "property":
            for one in made:
                one.metrics = {"auc": number(0.8)}
        (panel,) = Leaderboard(made).panels
        (aim,) = panel.aims
        assert (panel.chance[aim], panel.constant[aim]) == (chance, constant)
    assert str(Guess("mean image", 0.07)) == "mean image 0.070"


def test_a_dashed_line_stands_at_chance() -> None:
    """Its height among the ticks of the axis is that of the value."""
    for made, name, value in (
        (grid(), "chance", 0.5),
        (guesses("attributes", majority={"accuracy": 0.45}), "majority", 0.45),
        (guesses("reconstruction", mean_image={"mse": 0.9}), "mean image", 0.9),
    ):
        svg = drawn(made)
        assert name in texts(svg)
        (line,) = [one for one in svg.iter() if "stroke-dasharray" in one.attrib]
        places = re.findall(r"[ML] ([\d.]+) ([\d.]+)", line.get("d", ""))
        (left, height), (right, same) = [(float(x), float(y)) for x, y in places]
        assert height == same
        assert right - left > 200
        ticks = [
            (float(one.get("y", "")), float("".join(one.itertext())))
            for one in svg.iter()
            if one.tag.endswith("}text") and "end" in one.get("text-anchor", "")
        ]
        (low, at_low), (high, at_high) = ticks[0], ticks[-1]
        middle = 3.4  # from the middle of a number to its lower edge
        share = (height + middle - low) / (high - low)
        assert at_low + share * (at_high - at_low) == pytest.approx(value, abs=0.01)
    assert not [o for o in drawn(guesses("attributes")).iter() if "stroke-dasharray" in o.attrib]


# ---- names ---------------------------------------------------------------------------------------


def boxes(svg: ET.Element) -> list[tuple[str, Box]]:
    """Texts with their boxes, y upward, but for those that are turned."""
    made = []
    for one in svg.iter():
        told = "".join(one.itertext())
        if not one.tag.endswith("}text") or "rotate(-90" in one.get("transform", ""):
            continue
        size = float(one.get("font-size", "").removesuffix("px"))
        found: Any = TextPath((0, 0), told, size=size).get_extents()
        moved = re.findall(r"translate\(([\d.-]+) ([\d.-]+)\)", one.get("transform", ""))
        x, y = map(float, moved[0] if moved else (one.get("x", ""), one.get("y", "")))
        y = -y
        anchor = one.get("text-anchor", "start")
        x -= {"start": 0.0, "middle": found.width / 2, "end": found.width}[anchor]
        made.append((told, (x, y, x + found.width, y + found.height)))
    return made


@pytest.mark.parametrize("made", [grid(), crowded()], ids=["few", "many"])
def test_names_stand_beside_their_points_and_never_over_each_other(made: list[Record]) -> None:
    svg = drawn(made)
    known = boxes(svg)
    for (one, a), (other, b) in combinations(known, 2):
        assert free([a], [b]), (one, other)
    wide, high = map(float, svg.get("viewBox", "").split()[2:])
    for told, box in known:
        assert inside(box, (0, -high, wide, 0)), told
    names = {told: box for told, box in known if re.match("none|good|shut|defense", told)}
    assert len(names) == (3 if len(made) < 12 else 12)
    points = [
        (float(one.get("x", "")), -float(one.get("y", "")))
        for one in svg.iter()
        if one.tag.endswith("}use") and one.get("fill") in (BEST, POINT)
    ]
    for told, box in names.items():
        near = [free([box], [(x - 24, y - 24, x + 24, y + 24)]) for x, y in points]
        assert len(made) > 10 or not all(near), told
        assert free([box], [(x - 2, y - 2, x + 2, y + 2) for x, y in points]), told


def test_a_defense_that_certainly_changes_the_leak_is_named_also_behind_the_front_line() -> None:
    places = {"none": (0.8, 0.9, 0.0), "best": (0.6, 0.9, 0.01), "vague": (0.7, 0.82, 0.2),
              "sure": (0.7, 0.8, 0.01)}  # fmt: skip
    made = [
        record(defense=name, seed=seed, value=leak + spread * (seed % 2), accuracy=accuracy)
        for name, (leak, accuracy, spread) in places.items()
        for seed in range(5)
    ]
    assert {"none", "best", "sure"} <= {*texts(drawn(made))}
    assert "vague" not in texts(drawn(made))


def test_a_name_goes_right_left_above_below_and_then_further_away() -> None:
    picture, size = (0.0, 0.0, 100.0, 100.0), (20.0, 8.0)
    room = Room(picture, points=[(48, 48, 52, 52)])
    got = [room.take((50, 50), size) for _ in range(4)]
    middles = [((b[0] + b[2]) / 2, (b[1] + b[3]) / 2) for b, _ in filter(None, got)]
    assert middles == [(66, 50), (34, 50), (50, 60), (50, 40)]
    assert not any(away for _, away in filter(None, got))
    large = Room(picture, points=[(40, 40, 60, 60)])
    assert large.take((50, 50), size) == ((30, 60, 50, 68), True)  # joined by a line
    assert all(inside(one, picture) for one in room.names)
    assert room.take((50, 50), (120, 8)) is None  # wider than the picture


def test_a_full_picture_takes_no_name() -> None:
    room = Room((0, 0, 100, 40))
    names: list[Box] = []
    while (found := room.take((50, 20), (30, 8))) is not None:
        names.append(found[0])
    assert 3 < len(names) < 20
    assert all(free([one], [other]) for one, other in combinations(names, 2))


def test_a_line_is_avoided_where_that_is_possible_near_the_point() -> None:
    assert len(chain((0, 50), (1e18, 50))) < 1_000  # far out of the picture
    line = chain((0, 50), (100, 50), gap=0)
    assert all(a[0] < b[0] for a, b in pairwise(line))
    found = Room((0, 0, 100, 100), lines=line).take((50, 50), (20, 8))
    assert found is not None
    assert free([found[0]], line)


def test_close_accuracies_are_shown_a_tenth_apart_and_far_ones_cut() -> None:
    def ends(*values: float) -> tuple[float, float]:
        names = ("none", "a", "b")
        made = [record(defense=n, accuracy=v) for n, v in zip(names, values, strict=False)]
        (axis,) = figure_of(drawable(Leaderboard(made).panels)).axes
        left, right = axis.get_xlim()
        beside = (right - left) / 6  # a quarter of what is between
        return round(left + beside, 9), round(right - beside, 9)

    assert ends(0.9, 0.88) == (0.84, 0.94)
    assert ends(0.9, 0.7) == (0.7, 0.9)
    assert ends(0.9, 0.7, 0.1) == (0.65, 0.9)


@pytest.mark.parametrize("values", [(0.519, 0.5, 0.51), (0.5004, 0.5, 0.5002), (0.9, 0.6, 0.5)])
def test_scale_and_heading_stay_in_the_picture(values: tuple[float, ...]) -> None:
    made = [record(defense=n, value=v) for n, v in zip(("none", "a", "b"), values, strict=True)]
    with plain():
        figure = figure_of(drawable(Leaderboard(made).panels))
        figure.draw_without_rendering()
        (axis,) = figure.axes
        scale, heading = (text.get_window_extent() for text in (axis.yaxis.label, axis.title))
    assert scale.x0 >= 0
    assert heading.y1 <= figure.bbox.y1


# ---- draft ---------------------------------------------------------------------------------------


def test_fewer_than_five_seeds_are_a_draft() -> None:
    def told(seeds: int) -> list[str]:
        made = [record(defense=d, seed=seed, value=v) for seed in range(seeds)
                for d, v in (("none", 0.8), ("x", 0.7))]  # fmt: skip
        return [text for text in texts(drawn(made)) if "draft" in text]

    assert told(1) == ["draft, 1 seed"]
    assert told(4) == ["draft, 4 seeds"]
    assert told(5) == []


# ---- as programs show it -------------------------------------------------------------------------


def test_two_pictures_are_as_wide_as_a_page_and_more_stand_below() -> None:
    made = grid()
    made += [record("guess", d, game="attributes", value=v) for d, v in (("none", 0.8), ("x", 0.6))]
    made += [record("copy", d, game="reconstruction") for d in ("none", "x")]
    one, three = drawn(grid()), drawn(made)

    def size(svg: ET.Element) -> list[float]:
        return [
            float(svg.get(name, "").removesuffix("pt")) * 96 / 72 for name in ("width", "height")
        ]

    assert 760 < size(three)[0] < 800
    assert size(three) == pytest.approx([2 * edge for edge in size(one)])
    small = min(float(one.get("font-size", "9").removesuffix("px")) for one in three.iter())
    assert small * 96 / 72 > 10


@functools.cache
def shown(page: str) -> np.ndarray:
    """The figure as librsvg draws it, (h, w, 3)."""
    done = subprocess.run(
        [RENDERER, "-b", page, "-w", "1195"], input=front(Leaderboard(grid()).panels).encode(),
        capture_output=True, check=True,
    )  # fmt: skip
    return np.asarray(Image.open(io.BytesIO(done.stdout)).convert("RGB")).astype(int)


def painted(page: str, left: float, top: float, right: float, bottom: float) -> float:
    """Share of a box, in points of print, that differs from the page."""
    image = shown(page)
    scale = image.shape[1] / 298.8
    part = image[
        round(top * scale) : round(bottom * scale), round(left * scale) : round(right * scale)
    ]
    ground = [int(page[i : i + 2], 16) for i in (1, 3, 5)]
    return float((np.abs(part - ground).max(2) > 30).mean())


@needs_renderer
@pytest.mark.parametrize("page", PAGES)
def test_librsvg_shows_axes_grid_chance_and_names(page: str) -> None:
    svg = drawn(grid())
    lines: dict[str, list[tuple[float, ...]]] = {}
    for one in svg.iter():
        found = re.findall(r"([\d.]+) ([\d.]+)", one.get("d", ""))
        if len(found) == 2 and one.get("stroke") and one.get("fill") == "none":
            axis = one.get("stroke-linejoin") == "miter"
            what = "chance" if "stroke-dasharray" in one.attrib else one.get("stroke-opacity", "")
            lines.setdefault("axis" if axis else what, []).append((*map(float, sum(found, ())),))
    assert len(lines["axis"]) == 2
    for what, least in (("axis", 0.3), ("chance", 0.15), ("0.4", 0.1)):
        assert lines[what]
        for x, y, to_x, to_y in lines[what]:
            box = min(x, to_x) - 1, min(y, to_y) - 1, max(x, to_x) + 1, max(y, to_y) + 1
            assert painted(page, *box) > least, (what, box)
    for told, (left, bottom, right, top) in boxes(svg):
        assert painted(page, left, -top, right, -bottom) > 0.1, told
