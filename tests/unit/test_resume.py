"""Killed in the middle, a grid goes on where it stopped and ends with the same results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from privbench.api.session import Session
from privbench.grid.suite import suite_from
from privbench.measure.training.loop import Training
from privbench.plugins import registry as plugins
from privbench.testing import TinyImages

SUITE = {
    "datasets": ["tiny-images"],
    "targets": [{"simclr": {"backbone": "mlp", "epochs": 3}}],
    "defenses": ["talos"],
    "attacks": [{"nn-mia": {"steps": 20, "epochs": 1}}, "encodermi-t"],
    "seeds": 2,
}


@pytest.fixture(autouse=True)
def _with_tiny_images(monkeypatch: pytest.MonkeyPatch, tiny_registry: plugins.Registry) -> None:
    monkeypatch.setattr(plugins, "load", lambda *_, **__: tiny_registry)


def _session(out: Path) -> Session:
    options = {"out": out, "data_root": None, "device": "cpu", "compiled": False}
    return Session.of(suite_from(SUITE, "the suite"), (), options, console=Console(quiet=True))


def _run(out: Path) -> tuple[dict[str, str], int]:
    """Result digest of every trial, and how many phases were trained."""
    session = _session(out)
    trained: list[int] = []
    original = Training.run

    def counted(self: Training, *args: Any) -> Any:
        trained.append(1)
        return original(self, *args)

    Training.run = counted  # type: ignore[method-assign,assignment]
    try:
        assert session.run() == 0
    finally:
        Training.run = original  # type: ignore[method-assign]
    return {record.trial: record.digest for record in session.records}, len(trained)


def _killed_at(phase: int, out: Path) -> None:
    """Run this file in a process that is killed with SIGKILL when it starts that many phases.

    A fork of the test process would hang: OpenMP's threads do not survive it.
    """
    child = subprocess.run([sys.executable, __file__, str(phase), str(out)], check=False)
    assert child.returncode == -signal.SIGKILL, "the child ended before it was killed"


def _run_until(phase: int, out: Path) -> None:
    registry = plugins.load()
    registry.add("dataset", TinyImages(), plugins.Plugin("kit", "privbench.testing", "privbench"))
    plugins.load = lambda *_, **__: registry
    original, started = Training.run, [0]

    def fatal(self: Training, *args: Any) -> Any:
        started[0] += 1
        if started[0] == phase:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *args)

    Training.run = fatal  # type: ignore[method-assign,assignment]
    _session(out).run()


@pytest.mark.end_to_end
@pytest.mark.skipif(
    "PRIVBENCH_TEST_ROUNDING" in os.environ, reason="the killed process injects no rounding errors"
)
def test_a_killed_run_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "one"))
    whole, all_phases = _run(tmp_path / "whole")
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "two"))
    for phase in (2, 6):
        _killed_at(phase, tmp_path / "killed")
    resumed, rest = _run(tmp_path / "killed")
    assert resumed == whole
    assert 0 < rest < all_phases


@pytest.mark.end_to_end
def test_the_same_again_trains_nothing_and_more_seeds_train_only_theirs(tmp_path: Path) -> None:
    first, trained = _run(tmp_path / "out")
    again, nothing = _run(tmp_path / "out")
    assert again == first
    assert nothing == 0
    fresh_results, still_nothing = _run(tmp_path / "other")  # results gone, store kept
    assert fresh_results == first
    assert still_nothing == 0
    monkey = {**SUITE, "seeds": 3}
    options = {"out": tmp_path / "out", "data_root": None, "device": "cpu", "compiled": False}
    session = Session.of(suite_from(monkey, "the suite"), (), options, console=Console(quiet=True))
    session.run()
    kept = [record for record in session.records if record.seed < 2]
    assert {record.trial: record.digest for record in kept} == first
    assert trained == 2 * 3 * 2 * 2  # seeds x (victim, null, shadow) x phases x (none, talos)


if __name__ == "__main__":
    _run_until(int(sys.argv[1]), Path(sys.argv[2]))
