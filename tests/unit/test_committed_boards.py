"""Every committed board is what its committed results give, byte for byte."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.scripts import ROOT
from tests.unit.scripts import script as loaded
from tests.unit.test_rows import record

from privbench.boards.submission import check
from privbench.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def script() -> Any:
    return loaded("regenerate.py")


def test_committed_boards_are_those_of_their_results() -> None:
    assert script().stale() == [], "run: uv run python leaderboards/regenerate.py"


def test_committed_submissions_are_as_their_scores_say(registry: Any) -> None:
    del registry  # it knows the games of plugins
    for path in sorted(ROOT.glob("leaderboards/submissions/*.jsonl")):
        assert check(path).differences == [], path.name


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one suite, its results as `merge` writes them, and its board."""
    folder, root = tmp_path / "run", tmp_path / "checkout"
    folder.mkdir()
    for seed in range(5):
        for defense, auc, cost in (("none", 0.8, 0.0), ("talos", 0.6, 0.0), ("noise", 0.5, 0.4)):
            made = record("loud", defense, seed, auc=auc + seed / 100)
            made.utility["test_accuracy"] -= cost
            made.write(folder)
    results = root / "leaderboards" / "results"
    results.mkdir(parents=True)
    suites = root / "leaderboards" / "suites"
    suites.mkdir()
    (suites / "tiny.yaml").write_text("name: Tiny\nattacks: [lira]\nseeds: 5\n", encoding="utf-8")
    out = str(results / "tiny.jsonl")
    assert CliRunner().invoke(main, ["merge", str(folder), "--out", out]).exit_code == 0
    (root / "leaderboards" / "README.md").write_text(
        "# Boards\n<!-- boards -->\nold\n<!-- end of boards -->\nEnd.\n", encoding="utf-8"
    )
    script().write(root)
    return root


FILES = ["leaderboards/tiny.md", "leaderboards/tiny.csv", "leaderboards/tiny.svg"]
FRONT = "leaderboards/README.md"


def test_the_front_page_says_what_each_board_found(checkout: Path) -> None:
    page = (checkout / FRONT).read_text(encoding="utf-8")
    assert page.startswith("# Boards\n<!-- boards -->\n\n| data | ")
    assert page.endswith("|\n\n<!-- end of boards -->\nEnd.\n")
    rows = [[one.strip() for one in line.split("|")[1:-1]] for line in page.splitlines()]
    assert [row for row in rows if row and row[0] in ("digits", "[tiny](tiny.md)")] == [
        ["digits", "membership", "simclr: AUC 0.820 by loud ([tiny](tiny.md))",
         "simclr: talos, 0.820 to 0.620 ([tiny](tiny.md))", "0.0 points"],  # not noise: 40 points
        ["[tiny](tiny.md)", "simclr on digits", "1", "2", "5"],
    ]  # fmt: skip
    (checkout / FRONT).write_text(page.replace("0.820", "0.720"), encoding="utf-8")
    assert script().stale(checkout) == [FRONT]


def test_a_board_that_was_just_written_is_right(checkout: Path) -> None:
    assert script().stale(checkout) == []
    page = (checkout / "leaderboards" / "tiny.md").read_text(encoding="utf-8")
    assert page.startswith("# Tiny\n")
    assert "privbench run leaderboards/suites/tiny.yaml" in page
    assert str(checkout) not in page
    before = {name: (checkout / name).read_bytes() for name in FILES}
    script().write(checkout)
    assert before == {name: (checkout / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_differs_is_named(name: str, checkout: Path) -> None:
    content = (checkout / name).read_bytes()
    (checkout / name).write_bytes(content + b"\n")
    assert script().stale(checkout) == [name]
    (checkout / name).unlink()
    assert script().stale(checkout) == [name]


def test_other_results_or_another_suite_make_a_board_stale(checkout: Path) -> None:
    suite = checkout / "leaderboards" / "suites" / "tiny.yaml"
    suite.write_text("name: Other\nattacks: [lira]\nseeds: 5\n", encoding="utf-8")
    assert script().stale(checkout) == ["leaderboards/tiny.md"]
    script().write(checkout)
    results = checkout / "leaderboards" / "results"
    lines = (results / "tiny.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (results / "tiny.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    assert script().stale(checkout)[:2] == FILES[:2]
    assert FRONT in script().stale(checkout)


def test_a_figure_that_nothing_draws_is_stale_and_removed(checkout: Path) -> None:
    folder = checkout / "leaderboards"
    lines = (folder / "results" / "tiny.jsonl").read_text(encoding="utf-8").splitlines(True)
    few = [line for line in lines if '"defenses":[{"fields":{},"label":"none"' in line]
    assert 0 < len(few) < len(lines)
    (folder / "results" / "tiny.jsonl").write_text("".join(few), encoding="utf-8")
    shutil.copy(folder / "tiny.svg", folder / "tiny.old")
    assert FILES[2] in script().stale(checkout)
    script().write(checkout)
    assert not (folder / "tiny.svg").exists()
    assert script().stale(checkout) == []
