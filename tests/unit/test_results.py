"""Results in Python: rows, data frames, boards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import privbench
from privbench import BadInputError, Results
from privbench.measure.games.catalog import GAMES
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record

if TYPE_CHECKING:
    from pathlib import Path


def record(defense: str, seed: int, auc: float | None) -> Record:
    def named(name: str) -> MethodRecord:
        return MethodRecord(name=name, label=name, version=1, fields={})

    cell = CellRecord(
        dataset=named("digits"), protocol={"name": "default"}, target=named("supervised"),
        defenses=[named(defense)],
        knows=AdversaryRecord(), adversary="adaptive", attack=named("lira"), game="membership",
        sensitive=[], preset="cpu", access="POSTERIORS", protects=["membership"],
    )  # fmt: skip
    made = Record(trial=f"{defense}{seed}", cell=cell, seed=seed, status="ok", reason="",
                  board=GAMES["membership"].board)  # fmt: skip
    if auc is None:
        made.status, made.reason = "failed", "no data"
        return made
    made.metrics = {
        "auc": Number(value=auc, low=auc - 0.1, high=auc + 0.1),
        "tpr_at_fpr_0.01": Number(refused="too few nonmembers"),
    }
    made.controls = {"null": {"auc": Number(value=0.5)}}
    made.utility = {"test_accuracy": 0.9}
    return made


RECORDS = [record("none", 0, 0.8), record("none", 1, 0.7), record("talos", 0, None)]


def test_rows_are_flat_and_say_what_was_not_measured() -> None:
    first, _, last = Results(RECORDS).rows()
    assert first["defense"] == "none"
    assert (first["auc"], first["auc low"], first["auc high"]) == (0.8, 0.7000000000000001, 0.9)
    assert first["null auc"] == 0.5
    assert first["test_accuracy"] == 0.9
    assert first["tpr_at_fpr_0.01"] is None
    assert (last["status"], last["reason"]) == ("failed", "no data")
    assert "auc" not in last


def test_printed_they_fit_a_screen() -> None:
    long = record("d" * 300, 0, 0.7)
    told = str(Results([*RECORDS, long] * 30))
    lines = told.splitlines()
    assert lines[:4] == [
        "120 results:",
        "  AUC 0.800       lira × none × supervised × digits, seed 0",
        "  AUC 0.700       lira × none × supervised × digits, seed 1",
        "  failed          lira × talos × supervised × digits, seed 0",
    ]
    assert max(map(len, lines)) <= 100
    assert "  … and 94 more" in lines
    assert len(lines) < 30
    assert "to_dataframe()" in lines[-1]
    assert told == repr(Results([*RECORDS, long] * 30))


@pytest.mark.parametrize("absent", [[], ["pandas", "polars"]])
def test_a_data_frame_needs_a_library(absent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(RECORDS)
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    if absent:
        with pytest.raises(BadInputError, match=r"pip install 'privbench\[report\]', or use rows"):
            results.to_dataframe()
        return
    frame: Any = results.to_dataframe()
    assert len(frame) == 3
    assert frame.groupby("defense")["auc"].mean()["none"] == pytest.approx(0.75)
    assert frame["auc"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_what_only_the_last_of_many_trials_has_is_in_the_frame(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    pytest.importorskip(library)
    if library == "polars":  # used if only that is there
        monkeypatch.setitem(sys.modules, "pandas", None)
    skipped = [RECORDS[0].model_copy(update={"metrics": {}, "utility": {}}) for _ in range(150)]
    frame: Any = Results([*skipped, RECORDS[0]]).to_dataframe()
    assert type(frame).__module__.startswith(library)
    value = RECORDS[0].metrics["auc"].value
    assert len(frame) == 151
    assert list(frame["auc"])[-1] == value


def test_what_was_written_is_read_as_the_same_board(tmp_path: Path) -> None:
    for one in RECORDS:
        one.write(tmp_path)
    read = Results.read(tmp_path)
    assert {one.trial for one in read} == {one.trial for one in RECORDS}
    assert "| none | 0.750" in read.table()
    assert "none" in read.csv()
    assert privbench.Results is Results
    with pytest.raises(BadInputError):
        Results.read(tmp_path / "absent")
