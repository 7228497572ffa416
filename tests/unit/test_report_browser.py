"""The report in a real browser: it sorts, filters, opens cells, and fits a phone."""

from __future__ import annotations

import base64
import io
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tests.unit.test_pages import everything, record
from tests.unit.test_report import with_samples

from privbench.boards import csv_table
from privbench.boards.board import Leaderboard
from privbench.boards.front import front
from privbench.boards.html.page import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not BROWSER,
        reason="no chromium here, so the report was not opened in a browser: apt-get "
        "install chromium",
    ),
]


def results() -> list[Any]:
    made = everything()
    made += [record("loud", "broken", status="failed", reason="ValueError: broken here")]
    made[-1].traceback = "Traceback (most recent call last)"
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        given = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield given
        given.close()


@pytest.fixture(scope="module")
def text() -> str:
    """The report."""
    made = results()
    return report(Leaderboard(made), "Report", samples=with_samples(made))


@pytest.fixture
def opened(browser: Any, text: str, tmp_path: Any) -> Iterator[Callable[..., Any]]:
    """Open the report; at the end, the console must be empty and nothing else was fetched."""
    path = tmp_path / "r.html"
    path.write_text(text, encoding="utf-8")
    told: list[str] = []
    contexts = []

    def fetched(request: Any) -> None:
        if request.url.split("#")[0] != path.as_uri():
            told.append(request.url)

    def open_(width: int = 1280, *, at: str = "", **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", fetched)
        page.goto(path.as_uri() + at)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert told == []


def column(page: Any, name: str) -> list[str]:
    """The texts of a column of the table of cells, of the rows that can be seen."""
    texts: list[str] = page.evaluate(
        """name => {
          const table = document.getElementById("table");
          const heads = [...table.tHead.rows[0].cells];
          const i = heads.findIndex((head) => head.textContent === name);
          return [...table.tBodies[0].rows].filter((row) => row.offsetParent)
            .map((row) => row.cells[i].textContent.trim());
        }""",
        name,
    )
    return texts


def test_sorting(opened: Any) -> None:
    page = opened()
    before = column(page, "number")
    button = page.get_by_role("button", name="number")
    for order in ("ascending", "descending"):
        button.click()
        assert page.locator(f"th[aria-sort={order}]").count() == 1
        got = [text for text in column(page, "number") if text]
        values = [float(text.split()[0]) for text in got]
        assert values == sorted(values, reverse=order == "descending")
        assert column(page, "number")[-1] == ""  # cells without a number are last
    assert sorted(column(page, "number")) == sorted(before)
    page.get_by_role("button", name="defense").focus()
    page.keyboard.press("Enter")
    assert column(page, "defense") == sorted(column(page, "defense"))


def test_filtering(opened: Any) -> None:
    page = opened()
    everything_ = len(csv_table.rows(Leaderboard(results())))
    assert len(column(page, "attack")) == everything_
    options = page.locator("#filters").get_by_label("defense").locator("option").all_inner_texts()
    assert options == ["all", "broken", "none", "planted", "talos"]
    page.locator("#filters").get_by_label("search").fill("talos loud")
    assert column(page, "attack") == ["loud"]
    assert page.locator("#count").inner_text() == f"1 of {everything_} cells."
    page.locator("#filters").get_by_label("search").fill("")
    page.locator("#filters").get_by_label("status").select_option("failed")
    assert {*column(page, "status")} == {"failed"}
    page.locator("#filters").get_by_label("defense").select_option("broken")
    assert column(page, "attack") == ["loud"]
    page.locator("#filters").get_by_label("status").select_option("all")
    page.locator("#filters").get_by_label("defense").select_option("talos")
    assert {*column(page, "defense")} == {"talos", "talos °"}
    page.locator("#filters").get_by_label("defense").select_option("all")
    assert len(column(page, "attack")) == everything_


def test_a_number_of_the_matrix_opens_its_cell(opened: Any) -> None:
    page = opened()
    assert page.locator(".cell[open]").count() == 0
    page.get_by_title("AUC of loud against none").click()
    cell = page.locator(".cell[open]")
    assert cell.count() == 1
    assert "loud against none" in cell.inner_text()
    assert cell.locator("svg").first.is_visible()
    assert cell.locator("svg").first.bounding_box()["width"] > 200
    assert page.evaluate("document.activeElement.id").startswith("cell-")
    page.locator("#table a", has_text="loud").first.click()
    assert page.locator(".cell[open]").count() == 1  # the other one was closed
    page.locator("#filters").get_by_label("status").select_option("failed")
    page.locator("#filters").get_by_label("defense").select_option("broken")
    page.locator("#table tbody tr:visible a").click()
    assert "ValueError: broken here" in page.locator(".cell[open]").inner_text()
    assert page.locator(".cell[open] pre").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_and_is_not_blank(opened: Any, width: int, scheme: str) -> None:
    page = opened(width, color_scheme=scheme)
    page.get_by_title("AUC of loud against none").click()
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert (wide, window) == (width, width)
    page.evaluate("scrollTo(0, 0)")
    shot = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), np.float64)
    ground = np.median(shot)
    assert ground > 200 if scheme == "light" else ground < 60
    assert (abs(shot - ground) > 100).mean() > 0.01  # text
    assert len(np.unique(np.flatnonzero((abs(shot - ground) > 60).any(1)) // 100)) >= 6


def test_colours_of_the_heat_map_are_those_of_the_policy(opened: Any) -> None:
    page = opened()
    grounds = page.evaluate(
        "[...document.querySelectorAll('.heat td')].map((e) => getComputedStyle(e).backgroundColor)"
    )
    assert len({*grounds}) > 2


def test_it_reads_without_a_script(opened: Any) -> None:
    page = opened(390, java_script_enabled=False)
    assert not page.locator("#filters").is_visible()
    assert page.locator("#table tbody tr").first.is_visible()
    page.get_by_title("AUC of loud against none").click()
    assert page.locator(".cell[open]").count() == 1


def test_downloads(opened: Any) -> None:
    page = opened()
    with page.expect_download() as found:
        page.get_by_role("link", name="results.csv").click()
    assert found.value.suggested_filename == "results.csv"
    with open(found.value.path(), encoding="utf-8", newline="") as file:  # noqa: PTH123
        assert file.read() == csv_table.table(Leaderboard(results()))


@pytest.mark.parametrize(("scheme", "page", "text"), [
    ("light", (255, 255, 255), (0x57, 0x60, 0x6A)), ("dark", (13, 17, 23), (0x91, 0x98, 0xA1)),
])  # fmt: skip
@pytest.mark.parametrize("inline", [False, True])
def test_the_front_is_drawn_by_day_and_by_night(
    browser: Any, scheme: Any, page: Any, text: Any, *, inline: bool
) -> None:
    """Names and numbers have the colour of the scheme; grid, chance and axes are there, too."""
    svg = front(
        Leaderboard([record(defense=d, value=v) for d, v in (("none", 0.8), ("x", 0.7))]).panels
    )
    packed = base64.b64encode(svg.encode()).decode()
    shown = svg if inline else f'<img src="data:image/svg+xml;base64,{packed}">'
    context = browser.new_context(color_scheme=scheme, device_scale_factor=3)
    opened = context.new_page()
    opened.set_content(f'<body style="margin:0;background:rgb{page}">{shown}</body>')
    image = np.asarray(Image.open(io.BytesIO(opened.screenshot())).convert("RGB")).astype(int)
    context.close()
    image = image[:1000, :1180]
    assert (np.abs(image - text).max(2) < 3).sum() > 1_000
    apart = np.abs(image - page).max(2) > 30
    assert sum(row.mean() > 0.4 for row in apart) > 8  # grid, chance and the lower axis
    assert sum(column.mean() > 0.4 for column in apart.T) > 8
