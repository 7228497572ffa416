"""The boards as data for others: every number, columns that are described, a digest that fits."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.scripts import script

import privbench

if TYPE_CHECKING:
    from pathlib import Path

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def export() -> Any:
    return script("export.py")


def test_every_number_of_two_boards_is_there_once(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, names = privbench.published, ["ars-masks", "digits"]
    monkeypatch.setattr(privbench, "published", lambda name=None: real(name) if name else names)
    for place in ("one", "two"):
        done = CliRunner().invoke(export.main, ["--out", str(tmp_path / place)])
        assert done.exit_code == 0, done.output
    rows = parquet.read_table(tmp_path / "one" / export.FILE).to_pylist()
    found = {(r["board"], r["result"], r["part"], r["metric"]): r for r in rows}
    assert len(found) == len(rows)
    assert {row["board"] for row in rows} == {*names}
    for name in names:
        for record in real(name):
            for metric, number in record.metrics.items():
                row = found[name, record.digest, "metrics", metric]
                told = (row["value"], row["low"], row["high"], row["refused"] or None)
                assert told == (number.value, number.low, number.high, number.refused or None)
                assert (row["attack"], row["seed"]) == (record.cell.attack.label, record.seed)
    for file in (export.FILE, "croissant.json", "README.md"):
        one, two = ((tmp_path / place / file).read_bytes() for place in ("one", "two"))
        assert one == two, file


def test_the_description_names_the_columns_and_the_file(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = privbench.published
    monkeypatch.setattr(
        privbench, "published", lambda name=None: real(name) if name else ["ars-masks"]
    )
    CliRunner().invoke(export.main, ["--out", str(tmp_path)])
    schema = parquet.read_schema(tmp_path / export.FILE)
    told = json.loads((tmp_path / "croissant.json").read_text("utf-8"))
    (file,), (numbers,) = told["distribution"], told["recordSet"]
    assert file["sha256"] == hashlib.sha256((tmp_path / export.FILE).read_bytes()).hexdigest()
    assert [one["source"]["extract"]["column"] for one in numbers["field"]] == schema.names
    card = (tmp_path / "README.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", card, re.MULTILINE) == schema.names
    assert {path.name for path in tmp_path.iterdir()} == {
        export.FILE, "croissant.json", "README.md",
    }  # fmt: skip
