"""The JSON schema of results is that of the code, and readers refuse what is too large."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from tests.unit.test_rows import everything, record

from privbench.cli.main import main
from privbench.grid import run as grid
from privbench.ground.store.canonical import checksum
from privbench.results import limits
from privbench.results.files import each_line, read, read_all
from privbench.results.one_file import dumped
from privbench.results.record import DamagedResultError, Record
from privbench.results.schema import dumped as schema_text
from privbench.results.schema import schema

COMMITTED = Path(__file__).parents[2] / "docs" / "result.schema.json"


def signed(values: dict[str, Any]) -> str:
    """The text of a file with these values, under a checksum that fits."""
    values = {name: value for name, value in values.items() if name != "checksum"}
    return json.dumps(values | {"checksum": checksum(values)})


def plain(**changes: Any) -> dict[str, Any]:
    return record(trial="t").model_dump(mode="json") | changes


# ---- the schema ----------------------------------------------------------------------------------


def test_the_committed_schema_is_that_of_the_code() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == schema_text(), (
        "run: uv run python -m privbench.results.schema > docs/result.schema.json"
    )


def test_every_field_is_described() -> None:
    found = schema()
    for part in (found, *found["$defs"].values()):
        assert part["description"]
        for field in part["properties"].values():
            assert len(field.get("description", "")) > 5 or "const" in field


def test_results_satisfy_the_schema(tmp_path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    check = jsonschema.Draft202012Validator(schema())
    for one in everything():
        check.validate(json.loads(one.write(tmp_path).read_text(encoding="utf-8")))
    for line in dumped(everything()).splitlines():
        check.validate(json.loads(line))


@pytest.mark.parametrize(
    "changes",
    [{"seed": -1}, {"trial": "../evil"}, {"status": "fine"}, {"own": 1}, {"schema_version": 9},
     {"metrics": {"auc": {"value": "0.5"}}}, {"metrics": {"auc": {"value": 1e16}}}],
    ids=str,
)  # fmt: skip
def test_what_the_reader_refuses_the_schema_refuses(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    values = json.loads(signed(plain(**changes)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, schema())
    path = tmp_path / "t.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(DamagedResultError):
        read(path)


# ---- what is too large ---------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = {
    "bytes": (plain(notes={"x": ["y" * 1000] * 5000}), "it has more than 4,194,304 bytes"),
    "depth": (plain(notes={"x": nested(31)}), "it nests lists and mappings more than 32 deep"),
    "text": (plain(notes={"x": "y" * 200_001}), "it holds text of more than 200,000 characters"),
    "name": (plain(utility={"x" * 1001: 0.5}), "it holds a name of more than 1,000 characters"),
    "field": (plain(phase="x" * 1001), "phase: string should have at most 1000 characters"),
    "trial": (plain(trial="../../evil"), "is no name of a file"),
    "hidden": (plain(trial=".evil"), "is no name of a file"),
    "long trial": (plain(trial="x" * 201), "is no name of a file"),
    "checksum": (
        plain(samples={"bytes": 5, "blake2b": "x"}), "samples.blake2b: string should match pattern",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("lines", [False, True])
def test_a_hostile_file_is_refused_in_one_sentence(name: str, lines: bool, tmp_path: Path) -> None:
    values, told = HOSTILE[name]
    path = tmp_path / ("r.jsonl" if lines else "r.json")
    path.write_text(signed(values) + "\n", encoding="utf-8")
    for command in (["leaderboard", str(path)], ["merge", str(path), "--out", str(tmp_path / "m")]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 2, done.output
        assert ("line 1: " in done.stderr) == lines
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_what_is_just_small_enough_is_read(tmp_path: Path) -> None:
    notes = {"x" * 1000: ["y" * 200_000] * 20, "deep": nested(30)}
    path = tmp_path / "r.json"
    path.write_text(signed(plain(notes=notes, trial="x" * 200)), encoding="utf-8")
    assert read(path).notes == notes


def test_a_file_of_too_many_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(dumped(everything()), encoding="utf-8")
    count = len(everything())
    monkeypatch.setattr(limits, "MOST_RECORDS", count)
    assert len(read_all([path])) == count
    monkeypatch.setattr(limits, "MOST_RECORDS", count - 1)
    with pytest.raises(DamagedResultError, match=f"it has more than {count - 1} lines"):
        read_all([path])


def test_one_line_at_a_time_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(dumped(everything()) + "x" * 50_000_000, encoding="utf-8")
    lines = each_line(path)
    assert [number for number, _ in itertools.islice(lines, 3)] == [1, 2, 3]
    with pytest.raises(DamagedResultError, match="it has more than 4,194,304 bytes"):
        list(lines)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_result(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r.json")
    for name in (tmp_path, tmp_path / "r.json", "/dev/zero"):
        done = CliRunner().invoke(main, ["leaderboard", str(name)])
        assert done.exit_code == 2
        assert "it is not a file" in done.stderr


# ---- what a run writes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "notes", [{"x": ["y" * 1000] * 5000}, {"x": nested(40)}, {"x" * 2000: 1}], ids=range(3)
)
def test_a_run_writes_no_result_that_it_could_not_read(
    notes: dict[str, Any], tmp_path: Path
) -> None:
    made: Record = record(trial="t")
    made.notes = notes
    written = grid._written(made, tmp_path)
    assert written.status == "failed"
    assert "let the methods note less" in written.reason
    assert read(tmp_path / "t.json").reason == written.reason


def test_a_run_keeps_the_beginning_of_a_long_reason() -> None:
    from privbench.grid.outcome import reason

    told = reason(ValueError("\ud800" * 500_000))
    assert told.startswith("ValueError: \\ud800")
    assert len(told) == limits.LONGEST_TEXT
