"""How long the explorer takes to filter 10,000 rows and draw what is left.

    uv run --group docs mkdocs build --strict --quiet
    uv run python tests/benchmarks/explorer.py site

It repeats the published rows, types a word and chooses a defense in each view, and prints the
milliseconds from the event until the page has changed: median of nine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
REPEAT = """
const given = window.privbench, times = Math.ceil(10000 / given.rows);
const repeated = (list) => Array.from({ length: times }, () => list).flat();
for (const [name, column] of Object.entries(given.columns)) {
  if (Array.isArray(column)) given.columns[name] = repeated(column);
  else column.at = repeated(column.at);
}
given.rows *= times;
"""
MEASURE = """
() => {
  const root = document.getElementById('all-boards');
  const search = root.querySelector('input[type=search]');
  const box = root.querySelector('input[value=talos]');
  const took = [];
  for (let i = 0; i < 9; i += 1) {
    search.value = i % 2 ? 'digits' : '';
    const begun = performance.now();
    if (i % 3) search.dispatchEvent(new Event('input'));
    else box.click();
    document.body.offsetHeight;
    took.push(performance.now() - begun);
  }
  return took.sort((a, b) => a - b)[4];
}
"""


def main(site: Path) -> None:
    """Print a line for each view."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        copy = Path(shutil.copytree(site, folder, dirs_exist_ok=True))
        with (copy / "explorer" / "results.js").open("a", encoding="utf-8") as file:
            file.write(REPEAT)
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for show in ("table", "front", "roc", "compare"):
            page = browser.new_page()
            page.goto(f"{copy.as_uri()}/explorer.html#show={show}")
            rows = page.evaluate("window.privbench.rows")
            print(f"{show}: {page.evaluate(MEASURE):.0f} ms, {rows:,} rows")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
