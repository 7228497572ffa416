"""The built site: strict links, nothing from elsewhere, and every page in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def test_every_method_and_every_public_name_is_there(site: Path) -> None:
    import privbench
    from privbench.plugins import registry

    known = registry.load()
    for kind in ("attack", "defense", "target", "dataset"):
        text = (site / "methods" / f"{kind}s.html").read_text("utf-8")
        assert all(f'id="{method.name}"' in text for method in known.all(kind))
        prose = re.sub(r"<(code|pre).*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\*\*\w*[A-Za-z]|``|<p>Attributes", prose), "markup that is shown"
    api = (site / "api.html").read_text("utf-8")
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
        for path in sorted(site.rglob("*.html")):
            if path.name != "404.html":  # its links are from the root of a host
                page.goto(f"{address}/{path.relative_to(site)}")
                page.wait_for_load_state("networkidle")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, path.name
        browser.close()
    assert told == []
