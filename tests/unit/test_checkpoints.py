"""A phase that is killed goes on from its checkpoint and ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench import TargetContext
from privbench.ground.errors import BadInputError, WriteError
from privbench.measure.methods.context import seeded
from privbench.measure.training import checkpoint
from privbench.measure.training.loop import Training
from privbench.testing import TinyTarget, tiny_split

if TYPE_CHECKING:
    from pathlib import Path


class Stops:
    """Interrupts a training after so many steps; notes the names of the phase."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.names: list[str] = []

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """See ``Progress``."""
        del done, total, rows
        self.names.append(phase)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def training() -> Training:
    split = tiny_split()
    ctx = TargetContext(
        card=split.card, protocol=split.protocol, sensitive=(), device=torch.device("cpu"),
        store=None, seed=0, scope="",
    )  # fmt: skip
    model = seeded(lambda: TinyTarget().build(split.card, ctx), 0)
    (phase,) = TinyTarget().phases(model, split.victim(), ctx)
    return Training(model, replace(phase, epochs=4), split.victim().members, seed=3)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(checkpoint.SECONDS, "0")
    return tmp_path / "x" / "checkpoint"


def weights(run: Training) -> list[Any]:
    return [one.clone() for one in run.model.state_dict().values()]


@pytest.mark.parametrize("after", [1, 2, 3, 7])  # of 8 steps, two an epoch
def test_what_goes_on_ends_alike(path: Path, after: int) -> None:
    whole = training()
    told = whole.run()
    with pytest.raises(KeyboardInterrupt):
        training().run(Stops(after), path)
    rest, seen = training(), Stops(-1)
    told_of_rest = rest.run(seen, path)
    assert len(seen.names) == 8 - after
    epoch = (after - 1) // 2 + 1
    assert seen.names[0].endswith(f" (resumed at epoch {epoch} of 4)"), seen.names[0]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(rest), strict=True))
    assert told_of_rest["updates"] == told["updates"]
    assert told_of_rest["epochs"] == told["epochs"] == 4
    assert told_of_rest["seconds"] > 0


def test_a_damaged_checkpoint_counts_as_none(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        training().run(Stops(4), path)
    whole, again = training(), training()
    whole.run()
    path.write_bytes(path.read_bytes()[:-9])
    seen = Stops(-1)
    again.run(seen, path)
    assert len(seen.names) == 8
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(again), strict=True))


def test_a_checkpoint_that_cannot_be_written_ends_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise WriteError(28, "no space", str(path))

    monkeypatch.setattr(checkpoint, "write", full)
    assert training().run(None, path)["epochs"] == 4


@pytest.mark.parametrize("given", ["soon", "-1", "nan"])
def test_a_wrong_number_of_seconds(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(checkpoint.SECONDS, given)
    with pytest.raises(BadInputError, match=f"{checkpoint.SECONDS} is '?{given}'?: set"):
        checkpoint.seconds()


def test_nested_values_come_back() -> None:
    value = {"a": [1, (2.5, None)], 3: {"t": torch.arange(3)}, "inf": float("inf")}
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(checkpoint.flattened(value, "s", tensors))
    back = checkpoint.nested(json.loads(text), tensors)
    assert torch.equal(back[3].pop("t"), value[3].pop("t"))  # type: ignore[attr-defined]
    assert back == value


RUN = """
import json, signal, sys, privbench
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
made = privbench.run({"attacks": ["metric-loss"], "targets": [{"simclr": {"epochs": 500}}]},
                     out=sys.argv[1], jobs=int(sys.argv[2]), device="cpu")
print(json.dumps([[r.digest, r.status, r.reason] for r in made]))
"""


def start(folder: Path, store: str, jobs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder / f"out-{store}"), str(jobs)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PRIVBENCH_CACHE": str(folder / store), "OMP_NUM_THREADS": "1",
             checkpoint.SECONDS: str(SECONDS)},
    )  # fmt: skip


def unfinished(folder: Path, store: str) -> list[Path]:
    return [*(folder / store).glob("phase/??/.unfinished-*")]


#: Jobs and signal. SIGKILL leaves the last checkpoint; the others write one first.
KILLS = [(1, signal.SIGTERM), (2, signal.SIGKILL), (2, signal.SIGINT)]
#: Between checkpoints, several of which fit into a training.
SECONDS = 0.5


@pytest.mark.timeout(1200)
@pytest.mark.end_to_end
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    whole, _ = start(tmp_path, "whole", 1).communicate(timeout=300)
    for jobs, number in KILLS:
        store = f"store-{jobs}-{number}"
        begun = start(tmp_path, store, jobs)
        while begun.poll() is None and not unfinished(tmp_path, store):
            time.sleep(0.05)
        assert begun.poll() is None, f"{store} was too fast to be interrupted"
        sent = time.time() - 0.02  # a file's time is that of the last tick
        begun.send_signal(number)
        begun.communicate(timeout=60)
        assert begun.returncode != 0
        time.sleep(0.5 if jobs == 1 else 3)  # workers end after the parent
        paths = unfinished(tmp_path, store)
        assert paths, store
        assert number == signal.SIGKILL or min(one.stat().st_mtime for one in paths) >= sent, store
        assert all(checkpoint.read(path) for path in paths)
        again, said = start(tmp_path, store, jobs).communicate(timeout=300)
        assert again == whole, (store, said)
        assert unfinished(tmp_path, store) == [], store
