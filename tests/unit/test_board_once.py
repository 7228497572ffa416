"""A board is computed once, whatever is shown of it."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from privbench.api.console import summarise
from privbench.boards import operating, panels, verdicts
from privbench.boards.as_json import document
from privbench.boards.board import Leaderboard
from privbench.boards.html.notebook import notebook
from privbench.boards.html.page import report
from privbench.results import seeds
from privbench.results.files import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parents[2] / "leaderboards" / "results"
#: Functions that run once for a board, and those that run once for each cell or each number.
BOARD = [(panels, "panels"), (operating, "groups"), (verdicts, "doubtful"),
         (verdicts, "planted_found"), (verdicts, "none_cells"), (verdicts, "nulls"),
         (verdicts, "probes")]  # fmt: skip
EACH = [(verdicts, "idle_encoder"), (verdicts, "null_p"), (operating, "choices"),
        (seeds, "estimate")]  # fmt: skip


class Calls:
    """How often functions were called, in all and with the same arguments."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.all = Counter[str]()
        self.same = Counter[tuple[Any, ...]]()
        self.kept: list[Any] = []  # so that no two objects have one id
        for module, name in (*BOARD, *EACH):
            patch.setattr(module, name, self.counted(name, getattr(module, name)))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            self.all[name] += 1
            self.kept.append(given)
            self.same[name, *map(id, given)] += 1
            return function(*given)

        return called


@pytest.mark.parametrize(
    ("name", "bound", "size"),
    [pytest.param("digits-operating-points", 0.02, 940, marks=pytest.mark.slow),
     ("digits", None, 80)],
)  # fmt: skip
def test_each_reduction_runs_once(
    name: str, bound: float | None, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = read_all([RESULTS / f"{name}.jsonl"])
    assert len(records) == size
    calls, board = Calls(monkeypatch), Leaderboard(records, bound)
    console = Console(file=io.StringIO(), width=120)
    assert summarise(console, board, tmp_path, name, trained=0) == ""
    document(board)
    if size < 100:  # a page of hundreds takes seconds
        report(board, name)
        notebook(board)
    assert {at: calls.all[at] for _, at in BOARD} == {at: 1 for _, at in BOARD}
    assert {at for at, count in calls.same.items() if count > 1} == set()
    numbers = sum(len(of.numbers) for of in board.cells.values())
    assert 0 < calls.all["estimate"] < numbers + len(board.cells)
    assert calls.all["idle_encoder"] == len(board.with_numbers)
