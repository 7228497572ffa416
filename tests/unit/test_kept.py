"""A finished grid is shown again without planning it, but only while nothing has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from privbench.grid import kept
from privbench.grid.kept import FinishedGrids
from privbench.ground.judges import Wanted
from privbench.ground.store import stamps
from privbench.ground.store.store import Store
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Record

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
from privbench.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("status", end.code, "torch" in sys.modules)
"""


def _cli(tmp_path: Path) -> list[str]:
    command = ["run", "--target", "supervised", "--attack", "metric-loss",
               "--set", "supervised.epochs=1", "--out", str(tmp_path / "out")]  # fmt: skip
    environment = {**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    # On a busy machine a line says every few seconds how far training is.
    return [line for line in done.stdout.splitlines() if not line.startswith("  [")]


@pytest.mark.end_to_end
def test_a_finished_grid_is_shown_without_torch(tmp_path: Path) -> None:
    first, second = _cli(tmp_path), _cli(tmp_path)
    assert first[-1] == "status 0 True"
    assert second[-1] == "status 0 False"
    assert first[0].startswith("[1/1]")
    assert second[0] == f"{first[0].split(' (')[0]} (kept)"
    assert second[1:-3] == first[1:-3]  # the tables
    assert second[-2] == first[-2]  # what was found
    (result,) = (tmp_path / "out").glob("*.json")
    (note,) = (tmp_path / "store" / "finished").iterdir()
    Store(tmp_path / "store").gc(older_than_days=1)
    assert note.exists()
    os.utime(note, (0, 0))
    Store(tmp_path / "store").gc(older_than_days=1)
    assert not note.exists()
    result.unlink()
    assert _cli(tmp_path)[-1] == "status 0 True"
    assert result.exists()


def _record(trial: str, status: Any = "ok", reason: str = "") -> Record:
    method = MethodRecord(name="m", label="m", version=1, fields={})
    cell = CellRecord(
        dataset=method, protocol={}, target=method, defenses=[], adversary="adaptive",
        knows=AdversaryRecord(),
        attack=method, game="membership", sensitive=[], preset="cpu", access="", protects=[],
    )  # fmt: skip
    return Record(trial=trial, cell=cell, seed=0, status=status, reason=reason)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A file that was imported; its last change was before this process began."""
    file = tmp_path / "plugin.py"
    file.write_text("a = 1\n")
    os.utime(file, ns=(10**18, 10**18))
    return file


def _noted(tmp_path: Path, code: Path, **request: Any) -> FinishedGrids:
    notes = FinishedGrids(tmp_path / "notes", {"seeds": 2, **request}, None)
    stat = code.stat()
    notes.add([("a", None), ("b", "no classes")], {str(code): (stat.st_mtime_ns, stat.st_size)},
              {"none": [Wanted("lira", "lira", 1, "membership", {"k": 2})]})  # fmt: skip
    _record("a").write(tmp_path / "out")
    _record("b", "skipped", "no classes").write(tmp_path / "out")
    return notes


def test_all_results_of_a_finished_grid_are_found(tmp_path: Path, code: Path) -> None:
    found = _noted(tmp_path, code).find(tmp_path / "out")
    assert found is not None
    assert [record.trial for record in found.records] == ["a", "b"]
    assert found.judging["none"][0].fields == {"k": 2}
    assert not list((tmp_path / "notes").glob("*.tmp"))


def test_another_request_is_another_grid(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = _noted(tmp_path, code)
    assert FinishedGrids(tmp_path / "notes", {"seeds": 2}, None).path == notes.path
    assert FinishedGrids(tmp_path / "notes", {"seeds": 3}, None).path != notes.path
    (tmp_path / "data").mkdir()
    empty = FinishedGrids(tmp_path / "notes", {"seeds": 2}, tmp_path / "data").path
    (tmp_path / "data" / "faces").mkdir()
    assert FinishedGrids(tmp_path / "notes", {"seeds": 2}, tmp_path / "data").path != empty
    (tmp_path / "data" / "nowhere").symlink_to(tmp_path / "gone")
    assert FinishedGrids(tmp_path / "notes", {"seeds": 2}, tmp_path / "data").path != empty
    monkeypatch.setenv("PRIVBENCH_DISABLE_PLUGINS", "talos")
    assert FinishedGrids(tmp_path / "notes", {"seeds": 2}, None).path != notes.path


def test_a_change_of_code_or_results_ends_a_note(tmp_path: Path, code: Path) -> None:
    notes, out = _noted(tmp_path, code), tmp_path / "out"
    _record("b", "skipped", "another reason").write(out)
    assert notes.find(out) is None
    _record("b", "failed").write(out)
    assert notes.find(out) is None
    _record("b").write(out)
    assert notes.find(out) is not None
    code.write_text("a = 2\n")
    assert notes.find(out) is None
    _noted(tmp_path, code)
    os.utime(code, ns=(10**18, 10**18))
    assert notes.find(out) is not None
    code.unlink()
    assert notes.find(out) is None


def test_a_damaged_note_is_no_note(tmp_path: Path, code: Path) -> None:
    notes = _noted(tmp_path, code)
    notes.path.write_text('{"trials": [["a"]], "files": {}}')
    assert notes.find(tmp_path / "out") is None
    notes.path.write_bytes(b"\xff")
    assert notes.find(tmp_path / "out") is None


def test_code_edited_while_it_was_imported_is_not_noted(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_STARTED", 10**18 - 1)
    assert not _noted(tmp_path, code).path.exists()


def test_imported_modules_count() -> None:
    assert {__file__, kept.__file__} <= set(stamps.imported_files())


def test_a_note_does_not_count_once_a_file_that_the_suite_names_has_changed(tmp_path: Path) -> None:
    """Weights or canaries: the suite says the same, and the trials are others."""
    weights, folder = tmp_path / "weights.pt", tmp_path / "hf"
    folder.mkdir()
    weights.write_text("one")
    (folder / "config.json").write_text("one")
    (folder / "class" / "more").mkdir(parents=True)
    (folder / "class" / "more" / "1.png").write_text("one")

    def path() -> Path:
        named = {
            "targets": [{"clip": {"weights": str(weights)}}],
            "set": {"hf": {"w": str(folder)}},
        }
        suite = {**named, "name": "no\0path", "attacks": ["x" * 5000]}
        return FinishedGrids(tmp_path / "notes", {"suite": suite}, None).path

    before = path()
    assert path() == before
    weights.write_text("other")
    other = path()
    assert other != before
    (folder / "config.json").write_text("other")
    third = path()
    assert third not in (before, other)
    (folder / "class" / "more" / "1.png").write_text("other")
    assert path() not in (before, other, third)
