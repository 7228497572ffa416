"""The built site: strict links, nothing from elsewhere, and every page in a browser."""

from __future__ import annotations

import csv
import functools
import http.server
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import privbench
from privbench.results.seeds import Seeds
from privbench.results.statistics import paired

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("mkdocs", reason="the site is not built: uv sync --group docs")
pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with strict links."""
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_page_names_a_file_of_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text("utf-8"))
        assert not [tag for tag in tags if re.search(r"""(src|href)=["']?(https?:)?//""", tag)]
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text("utf-8")), style


def test_every_board_is_a_page_that_leads_to_its_numbers(site: Path) -> None:
    for name in privbench.published():
        page = (site / "boards" / f"{name}.html").read_text("utf-8")
        assert f'href="../explorer.html#board={name}"' in page
        assert (site / "boards" / f"{name}.csv").read_bytes() == (
            ROOT / "leaderboards" / f"{name}.csv"
        ).read_bytes()
    card = (site / "methods" / "defenses" / "talos.html").read_text("utf-8")
    assert 'href="../../explorer.html#defense=talos"' in card


def test_the_explorer_has_the_numbers_of_the_boards(site: Path) -> None:
    cells = explored(site)
    for board in ("digits", "low-fpr", "ars-adult"):
        text = (ROOT / "leaderboards" / f"{board}.csv").read_text("utf-8")
        names = ("dataset", "target", "defense", "attack", "game", "adversary", "protocol")
        rows = {tuple(row[name] for name in names): row for row in csv.DictReader(io.StringIO(text))
                if row["status"] == "ok" and row["planted leak"] == "no"}  # fmt: skip
        shown = {
            tuple(cell[name] for name in names): cell for cell in cells if cell["board"] == board
        }
        assert {*rows} == {*shown}
        for at, row in rows.items():
            main = {"membership": "auc", "attributes": "accuracy", "reconstruction": "mse"}[
                row["game"]
            ]
            cell = shown[at]
            assert sum(cell["values"]) / len(cell["values"]) == pytest.approx(
                float(row[main]), rel=1e-4
            )
            assert cell["seeds"] == [int(seed) for seed in row["seeds"].split()]
            assert (cell["low"] is None) == (len(cell["seeds"]) < 3)
            if cell["low"] is not None:
                assert cell["low"] == pytest.approx(float(row[f"{main}, low"]), rel=1e-4)
            if row["test_accuracy"]:
                assert cell["accuracy"] == pytest.approx(float(row["test_accuracy"]), rel=1e-4)


def test_curves_are_means_over_seeds_and_two_rates_without_them() -> None:
    rates = runpy.run_path(str(ROOT / "docs" / "hooks" / "boards.py"))["rates"]
    some = [one for one in privbench.published("low-fpr") if one.cell.attack.label == "quantile"]
    plain = [some[0].metrics[f"tpr_at_fpr_{rate}"].value for rate in (0.001, 0.01)]
    assert rates(Seeds(some)) == [[0.001, plain[0]], [0.01, plain[1]]]
    curves = ([(0.001, 0.1), (0.5, 0.8)], [(0.001, 0.3), (0.5, 0.9), (0.6, 1.0)])
    two = [some[0].model_copy(update={"roc": roc, "seed": i}) for i, roc in enumerate(curves)]
    assert rates(Seeds(two)) == [[0.001, 0.2], [0.5, 0.85]]
    assert len(rates(Seeds([*two, some[0].model_copy(update={"seed": 2})]))) == 2  # not all have it


def explored(site: Path) -> list[dict[str, Any]]:
    """What the explorer reads, a dictionary for each cell."""
    text = (site / "explorer" / "results.js").read_text("utf-8")
    given = json.loads(text.removeprefix("window.privbench = ").rstrip(";\n"))
    columns = {
        name: [of.get("texts", range(given["rows"]))[at] for at in of["at"]]
        if isinstance(of, dict)
        else of
        for name, of in given["columns"].items()
    }
    return [{name: column[i] for name, column in columns.items()} for i in range(given["rows"])]


def test_every_method_and_every_public_name_is_there(site: Path) -> None:
    from privbench.plugins import registry

    known = registry.load()
    for kind in ("attack", "defense", "target", "dataset"):
        table = (site / "methods" / f"{kind}s.html").read_text("utf-8")
        for method in known.all(kind):
            assert f'href="{kind}s/{method.name}.html"' in table
        assert kind != "attack" or all(
            f"<th>{head}</th>" in table for head in ("access", "shadows", "queries a row", "paper")
        )
        for method in known.all(kind):
            text = (site / "methods" / f"{kind}s" / f"{method.name}.html").read_text("utf-8")
            assert method.name in re.findall(r"<h1[^>]*>([\w-]+)", text)
            prose = re.sub(r"<(code|pre).*?</\1>", "", text, flags=re.DOTALL)
            assert not re.search(r"\*\*\w*[A-Za-z]|``|<p>Attributes", prose), "markup that is shown"
    api = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    ours = {n: home for n, home in privbench.HOME.items() if home.startswith("privbench.")}
    missing = [name for name, home in ours.items() if f'{home}.{name}"' not in api]
    assert not missing


@pytest.mark.skipif(not BROWSER, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_and_are_silent(site: Path, address: str, width: int, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    told: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": width, "height": 850},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page = context.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on(
            "request",
            lambda one: (
                told.append(one.url) if not one.url.startswith((address, "data:")) else None
            ),
        )
        folders: dict[Path, list[Path]] = {}
        for path in sorted(site.rglob("*.html")):
            folders.setdefault(path.parent, []).append(path)
        for path in [
            one for folder, of in folders.items() for one in (of if folder == site else of[:3])
        ]:
            if path.name != "404.html":  # its links are from the root of a host
                page.goto(f"{address}/{path.relative_to(site)}")
                page.wait_for_load_state("networkidle")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, path.name
        browser.close()
    assert told == []


@pytest.fixture
def page(address: str) -> Iterator[Any]:
    """The explorer in a browser; nothing may be written to its console."""
    if not BROWSER:
        pytest.skip("no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    told: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        made = browser.new_page(viewport={"width": 1280, "height": 850})
        made.on("console", lambda message: told.append(message.text))
        made.on("pageerror", lambda error: told.append(str(error)))
        made.goto(f"{address}/explorer.html")
        yield made
        browser.close()
    assert told == []


def test_the_explorer_is_used_with_the_keyboard_and_remembers_the_view(page: Any) -> None:
    page.get_by_label("Search all names").focus()
    page.keyboard.type("digits lira")
    while page.evaluate("document.activeElement.textContent") != "defense":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    while "talos" not in page.evaluate("document.activeElement.value ?? ''"):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    cells = page.locator(".numbers tbody tr")
    assert cells.count() > 0
    assert all("talos" in text and "lira" in text for text in cells.all_text_contents())
    assert "words=digits+lira" in page.url
    assert "defense=talos" in page.url
    told = page.get_by_role("status").text_content()
    page.reload()
    assert page.get_by_role("status").text_content() == told
    page.get_by_role("button", name="Clear filters").press("Enter")
    assert page.get_by_role("status").text_content() != told


def test_search_finds_the_page_of_a_method_first(page: Any) -> None:
    for name in ("lira", "memguard", "simclr", "utkface"):
        page.locator(".md-search__input").fill("")
        page.locator(".md-search__input").press_sequentially(name)
        page.wait_for_function(
            "name => document.querySelector('.md-search-result__item h1')?.textContent === name",
            arg=name,
        )
        first = page.locator(".md-search-result__item a").first.get_attribute("href")
        assert "/methods/" in first
        assert f"/{name}.html" in first


def test_an_anchor_of_the_page_or_a_wrong_address_changes_nothing(page: Any, address: str) -> None:
    page.goto(f"{address}/explorer.html#board=digits&show=front")
    told = page.get_by_role("status").text_content()
    page.locator("h1 .headerlink").evaluate("link => link.click()")
    assert page.get_by_role("status").text_content() == told
    for wrong in ("show=__proto__", "show=toString", "defense=gone", "explorer"):
        page.goto(f"{address}/index.html")
        page.goto(f"{address}/explorer.html#{wrong}")
        assert "1," in page.get_by_role("status").text_content()  # all cells, as a table
        assert page.locator(".numbers tbody tr").count() == 100


def test_the_explorer_compares_two_defenses_by_seed(page: Any, address: str, site: Path) -> None:
    page.goto(f"{address}/explorer.html#board=talos-sweep&show=compare&a=none&b=talos")
    page.wait_for_selector(".numbers tbody tr")
    row = page.locator(".numbers tbody tr", has_text="encodermi-t").text_content()
    ours, theirs = (
        next(
            dict(zip(cell["seeds"], cell["values"], strict=True))
            for cell in explored(site)
            if (cell["board"], cell["attack"], cell["defense"])
            == ("talos-sweep", "encodermi-t", of)
        )
        for of in ("talos", "none")
    )
    found = paired(ours, theirs)
    assert found is not None
    assert found.high is not None
    assert f"{found.mean:.3f} ± {found.high - found.mean:.3f}" in row


def test_what_is_chosen_is_downloaded_and_drawn(page: Any, address: str) -> None:
    page.goto(f"{address}/explorer.html#board=low-fpr&show=roc")
    assert page.locator("section svg[aria-label^='True-positive']").count() == 1
    with page.expect_download() as loading:
        page.get_by_role("button", name="Download csv").click()
    text = Path(loading.value.path()).read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["board"] for row in rows} == {"low-fpr"}
    assert max(float(row["value"]) for row in rows) > 0.9
    # The theme moves its search bar when a window is widened, and it is too wide while it moves.
    page.add_style_tag(content="* { transition: none !important }")
    for size in (390, 800, 1280):
        page.set_viewport_size({"width": size, "height": 850})
        for show in ("table", "front", "roc", "compare"):
            for view in (
                "",
                "board=digits&",
                "words=nothing-has-this&",
                "board=digits-operating-points&",
            ):
                page.goto(f"{address}/explorer.html#{view}show={show}")
                page.wait_for_timeout(50)
                assert page.evaluate("document.documentElement.scrollWidth") <= size, (show, view)
