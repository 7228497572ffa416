"""Text of users and plugins is shown as text: in the terminal, in markdown and in its HTML."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from privbench.api.console import Watcher, tables, terminal_console
from privbench.boards.board import Leaderboard
from privbench.boards.page import page
from privbench.cli.show import result_card
from privbench.ground.columns import Board, Column
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record

HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07", "\x9b31m", "<script>alert(1)</script>", "<img src=x onerror=y>",
    "![i](http://x/y.png)", "[l](javascript:x)", "![i][r] [r]: http://x", "<!-- c", "&lt;b&gt;",
    "\u202eevil\u2066", "\u200bzero\ufeff", "a:smile:b", "[bold]x[/bold]", "a\\|b", "a|b", "`code`",
    "**bold**", "_em_", "$x$", "two\nlines\r\n# head", "\u2028split\u0085", "~~gone~~", "\x00",
)  # fmt: skip
#: What a terminal or a browser acts on instead of showing it.
ACTIVE = "\x1b\x9b\x07\x00\r\u202e\u2066\u200b\ufeff\u2028\u0085"


def record(text: str, status: Any = "ok") -> Record:
    one = MethodRecord(name=f"x{text}", label=f"x{text}", version=1, fields={})
    cell = CellRecord(
        dataset=one, protocol={"name": text}, target=one, defenses=[one],
        knows=AdversaryRecord(),
        adversary="adaptive", attack=one, game=f"x{text}", sensitive=[], preset="cpu",
        access="LABELS", protects=[],
    )  # fmt: skip
    board = Board((Column(f"AUC {text}", "metrics", "auc"),))
    made = Record(trial=status, cell=cell, board=board, seed=0, status=status, reason=f"why {text}")
    made.provenance = {"commit": text}
    if status == "ok":
        made.metrics = {"auc": Number(value=0.7)}
    return made


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_boards(text: str) -> None:
    made = [record(text), record(text, "failed")]
    board = page(Leaderboard(made), f"T {text}", again=[f"s{text}"], table=f"t{text}")
    assert not set(board) & set(ACTIVE)
    assert ":smile:" not in board.split("```")[0]
    tame = page(Leaderboard([record("a"), record("a", "failed")]), "T", again=["s"], table="t")
    assert len(board.splitlines()) == len(tame.splitlines())
    html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(board)
    kept = {"h1", "h2", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "strong",
            "pre", "code", "a", "details", "summary"}  # fmt: skip
    assert set(re.findall(r"<([^\s/>]*)", html)) - {""} <= kept
    assert html.count("<details>") == html.count("<summary>") == html.count("</details>") == 3
    (link,) = re.findall(r'href="(.*?)"', html)
    assert link.startswith("t")  # the csv file
    assert html.count("<code>") == 2  # a sign in the legend, and the command
    assert "<strong>bold" not in html
    bodies = [part.split("</tbody>")[0] for part in html.split("<tbody>")[1:]]
    # the first ranking, all attacks, the whole ranking: rows, and cells
    assert [one.count("<tr>") for one in bodies] == [1, 2, 2]
    assert [one.count("<td") for one in bodies] == [2, 2 * 3, 2 * 6]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_the_terminal(text: str) -> None:
    out = io.StringIO()
    console = terminal_console(file=out, width=400)
    made = record(text)
    console.print(f"plain {text}", markup=False, emoji=False)
    for table in tables(Leaderboard([made]), 400):
        console.print(table)
    with Watcher(console, 2) as watcher:
        watcher.epoch(text, 0.5, 1, 10)
        watcher.trial(made, False)
        watcher.trial(record(text, "failed"), False)
    shown = out.getvalue()
    assert not set(shown) & set(ACTIVE)
    assert "😄" not in shown
    if text == "[bold]x[/bold]":
        assert shown.count(text) >= 3


def test_a_live_bar_shows_phases_as_text() -> None:
    out = io.StringIO()
    console = terminal_console(file=out, width=200, force_terminal=True)
    with Watcher(console, 1) as watcher:
        watcher.epoch("[red]p[/red]:smile:\x1b]0;t\x07", 1, 1, 10)
        watcher.epoch("[red]p[/red]:smile:\x1b]0;t\x07", 1, 1, 10)
    shown = out.getvalue()
    assert "[red]p[/red]:smile:" in shown
    assert "\x1b]0" not in shown


def test_cards(tmp_path: Any) -> None:
    from click.testing import CliRunner

    from privbench.cli.main import main

    for i, text in enumerate(HOSTILE):
        made = record(text, "failed")
        made.traceback = f"first\nsecond {text}"
        made.trial = str(i)
        path = made.write(tmp_path)
        done = CliRunner().invoke(main, ["show", str(path)])
        assert done.exit_code == 0, done.output
        assert not set(done.stdout) & set(ACTIVE)
        assert "first\nsecond" in done.stdout
        assert result_card(made)


def test_the_console_is_plain_rich() -> None:
    assert isinstance(terminal_console(), Console)
