"""Records and artifacts name the plugins behind them."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.grid.here import PlannedHere
from privbench.grid.outcome import new_record
from privbench.grid.plan import plan
from privbench.grid.run import execute
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.source import source_digest
from privbench.ground.store.store import Store
from privbench.results.files import read

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.grid.trial import Trial
    from privbench.plugins.registry import Registry
    from privbench.results.record import Record

SUITE = {
    "datasets": ["digits"], "targets": ["supervised"], "defenses": ["label-smoothing"],
    "attacks": ["metric-loss"], "set": {"supervised": {"epochs": 1}}, "baseline": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(registry: Registry, tmp_path_factory: Any) -> tuple[Record, Store, Path, Trial]:
    folder = tmp_path_factory.mktemp("named")
    store = Store(folder / "store")
    planned = plan(suite_from(SUITE, "test"), registry, root=None, device="cpu")
    (record,) = execute(
        PlannedHere(planned, TrialRunner(store, torch.device("cpu"))), folder / "out"
    )
    return record, store, folder / "out", planned[0].trial


def test_a_record_names_distribution_version_and_source(ran: Any) -> None:
    record, _, out, trial = ran
    assert record.status == "ok", record.reason
    named = read(record.path(out)).provenance["plugins"]
    assert list(named) == [
        "dataset digits", "target supervised", "defense label-smoothing", "attack metric-loss",
    ]  # fmt: skip
    assert named["attack metric-loss"] == {
        "distribution": "privbench", "version": importlib.metadata.version("privbench"),
        "source": source_digest(type(trial.cell.attack)),
    }  # fmt: skip


def test_of_a_failed_trial_too_and_of_plugins_that_are_not_installed(ran: Any) -> None:
    from privbench.testing import TinyTarget

    trial = replace(ran[3], cell=replace(ran[3].cell, target=TinyTarget()))
    named = new_record(trial, torch.device("cpu")).provenance["plugins"]
    assert named["target tiny-target"]["distribution"] == "privbench"
    stranger: Any = type("Theirs", (TinyTarget,), {"__module__": "their.script"})
    trial = replace(ran[3], cell=replace(ran[3].cell, target=stranger()))
    named = new_record(trial, torch.device("cpu")).provenance["plugins"]
    assert named["target tiny-target"]["distribution"] == "none"


def test_plugins_are_no_part_of_a_result(ran: Any) -> None:
    """Old files have none, and equal runs have equal digests."""
    record = ran[0]
    old = record.model_copy(update={"provenance": {}})
    assert old.digest == record.digest


def test_why_names_methods_and_stages(ran: Any) -> None:
    _, store, _, trial = ran
    cell = trial.cell
    seen = set()
    for row in store.list():
        said = str(store.why(row.digest))
        seen.add(row.kind)
        if row.kind == "phase":
            assert "made_by[0] = target supervised(epochs=1)" in said
            assert "made_by[1] = defense label-smoothing" in said
            assert "previous = untrained supervised(epochs=1)" in said
            assert cell.defenses[0].digest not in said
        if row.kind == "answer":
            assert "attack = attack metric-loss" in said
            assert "dataset = dataset digits" in said
            assert cell.attack.digest not in said
    assert {"phase", "answer"} <= seen
