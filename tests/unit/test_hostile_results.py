"""Hostile result files: refused in one sentence, or shown as what they are."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.ground.store.canonical import checksum
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record

if TYPE_CHECKING:
    from pathlib import Path


def plain(**fields: Any) -> dict[str, Any]:
    """A result as the values of its file, under a checksum that fits if they can be one."""
    one = MethodRecord(name="loud", label="loud", version=1, fields={})
    cell = CellRecord(
        dataset=one, protocol={"name": "default"}, target=one, defenses=[one],
        knows=AdversaryRecord(),
        adversary="adaptive", attack=one, game="membership", sensitive=[], preset="cpu",
        access="LABELS", protects=[],
    )  # fmt: skip
    made = Record(trial="t", cell=cell, seed=0, status="ok")
    made.metrics = {"auc": Number(value=0.7, low=0.6, high=0.8)}
    values = {**made.model_dump(mode="json"), **fields}
    with contextlib.suppress(ValueError):  # values that no checksum is of are refused before
        values["checksum"] = checksum(values)
    return values


def boards(tmp_path: Path, *results: Any) -> str:
    """What `leaderboard` and `show` say; they refuse in one sentence or show."""
    folder = tmp_path / "results"
    folder.mkdir()
    for i, result in enumerate(results):
        text = result if isinstance(result, str) else json.dumps(result)
        (folder / f"{i}.json").write_text(text, encoding="utf-8")
    said = ""
    for args in (("leaderboard", "."), ("show", "0.json")):
        path = str(folder / args[1])
        done = CliRunner().invoke(main, [args[0], path])
        assert done.exit_code in (0, 2), done.exception
        said += done.stderr
    return said.replace(str(folder), "")


def test_a_game_that_no_board_shows(tmp_path: Path) -> None:
    game = plain()["cell"] | {"game": "skipped"}
    assert "plays 'skipped'" in boards(tmp_path, plain(cell=game))


def test_skipped_for_an_unknown_game(tmp_path: Path) -> None:
    game = plain()["cell"] | {"game": "skipped"}
    assert boards(tmp_path, plain(cell=game, status="skipped", reason="no", metrics={})) == ""


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"metrics": {"auc": {"value": float("nan")}}}, "is not a privbench result"),
        ({"metrics": {"auc": {"value": 0.5, "high": float("inf")}}}, "is not a privbench result"),
        ({"metrics": {"auc": {"value": 1e300}}}, "metrics.auc.value"),
        ({"metrics": {"auc": {"value": True}}}, "metrics.auc.value"),
        ({"metrics": {"auc": {"value": "0.5"}}}, "metrics.auc.value"),
        ({"utility": {"test_accuracy": 1e300}}, "utility.test_accuracy"),
        ({"updates": {"encoder": 10**400}}, "updates.encoder"),
        ({"cost": {"seconds": 1e308}}, "cost.seconds"),
        ({"seed": "0"}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": -1}, "seed"),
        ({"notes": {"x": "\ud800"}}, "is not a privbench result"),
    ],
)
def test_numbers(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    said = boards(tmp_path, plain(**fields))
    assert sentence in said
    assert all(len(line) < 300 for line in said.splitlines())


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps(plain()).replace('"notes": {}', '"notes": ' + '{"a":' * 990 + "1" + "}" * 990),
        json.dumps(plain()).replace("0.7", "1e999"),
        json.dumps(plain()).replace("0.7", "NaN"),
        json.dumps(plain()).replace('"seed": 0', '"seed": ' + "9" * 9000),
        '{"schema_version": "' + "x" * 100_000 + '"}',
        '{"schema_version": [[[]]]}',
    ],
    ids=range(7),
)
def test_files(tmp_path: Path, text: str) -> None:
    said = boards(tmp_path, text)
    assert said
    assert all(len(line) < 300 for line in said.splitlines())
