"""All results of a suite in one file: the same bytes, and what is damaged is named."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.test_rows import record

from privbench.cli.main import main
from privbench.ground.store.canonical import checksum
from privbench.results.files import read_all
from privbench.results.one_file import dumped
from privbench.results.record import DamagedResultError, Number

if TYPE_CHECKING:
    from pathlib import Path


def some() -> list[Any]:
    made = [record(seed=seed, auc=2 / 3 + seed / 10) for seed in range(3)]
    made += [record("white", status="skipped", reason="white needs WEIGHTS")]
    made[0].traceback = "Traceback: of this machine"
    return made


def test_results_come_back_rounded_and_without_what_is_of_one_machine(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text(dumped(some()), encoding="utf-8")
    found = {one.trial: one for one in read_all([path])}
    for one in some():
        back = found[one.trial]
        assert back.cell == one.cell
        assert back.status == one.status
        assert back.traceback == ""
    first = found[some()[0].trial]
    assert first.metrics["auc"] == Number(value=0.666667, low=0.6, high=0.8)
    assert first.metrics["tpr_at_fpr_0.001"].refused
    assert dumped(list(found.values())) == path.read_text(encoding="utf-8")


def test_the_order_of_results_does_not_matter() -> None:
    want = dumped(some())
    for seed in range(5):
        shuffled = some()
        random.Random(seed).shuffle(shuffled)
        assert dumped(shuffled) == want
    lines = [json.loads(line) for line in want.splitlines()]
    assert [line["trial"] for line in lines] == sorted(line["trial"] for line in lines)
    assert {line["schema_version"] for line in lines} == {3}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line[:-5], "line 2: it is not JSON"),
        (lambda line: line.replace("0.766667", "0.966667"), "line 2: it has changed since"),
        (lambda line: line.replace('"schema_version":3', '"schema_version":9'),
         "line 2: it has schema 9"),
        (lambda line: _signed(line, seed=-1), "line 2: seed: "),
        (lambda line: line.replace("0.766667", "NaN"), "line 2: it is not JSON"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, change: Any, told: str) -> None:
    lines = dumped(some()).splitlines()
    damaged = change(lines[1])
    assert damaged != lines[1]
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join([lines[0], damaged, *lines[2:]]), encoding="utf-8")
    with pytest.raises(DamagedResultError, match=told):
        read_all([path])


def _signed(line: str, **changes: Any) -> str:
    """The line with other values under a checksum that fits."""
    values = json.loads(line) | changes
    del values["checksum"]
    return json.dumps(values | {"checksum": checksum(values)})


def test_merge_writes_the_file_and_boards_read_it(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "published.jsonl"
    folder.mkdir()
    for one in some():
        one.write(folder)
    run = CliRunner()
    done = run.invoke(main, ["merge", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "4 results in" in done.output
    assert out.read_text(encoding="utf-8") == dumped(some())
    assert [path.name for path in tmp_path.iterdir() if path != folder] == ["published.jsonl"]
    boards = [run.invoke(main, ["leaderboard", str(at)]) for at in (folder, out)]
    assert [board.exit_code for board in boards] == [0, 0]
    assert boards[0].output == boards[1].output
    again = run.invoke(main, ["merge", str(out), "--out", str(tmp_path / "again.jsonl")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
