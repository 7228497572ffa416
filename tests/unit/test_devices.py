"""Several nodes on one GPU, by the memory that nodes of their kind took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from privbench.grid.devices import PROCESS_BYTES, Devices, room
from privbench.grid.executors import Workers
from privbench.grid.messages import Done, PhaseProgress
from privbench.grid.worker import Reporter
from privbench.testing import CPU

GIB = 2**30


def _gpus(*bytes_: int) -> Devices:
    return Devices({f"cuda:{i}": size for i, size in enumerate(bytes_)})


def test_the_first_node_of_a_kind_is_made_alone() -> None:
    devices = _gpus(8 * GIB)
    assert devices.place("encoder") == "cuda:0"
    devices.begin("cuda:0", "encoder")
    assert devices.place("encoder") is None
    assert devices.place("attack lira") is None
    devices.end("cuda:0", "encoder", GIB)
    devices.begin("cuda:0", "encoder")
    assert devices.place("encoder") == "cuda:0"
    assert devices.place("attack lira") == "cuda:0", "it counts as the largest so far"
    devices.begin("cuda:0", "attack lira")
    devices.peaks["encoder"] = 7 * GIB
    assert devices.place("baselines") is None


def test_the_second_waits_until_the_first_has_trained_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = _gpus(8 * GIB)
    said: list[PhaseProgress] = []
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: {"cuda:0": GIB}[device])
    reporter = Reporter(said.append, "cuda:0")
    devices.begin("cuda:0", "encoder")
    for done in (0.5, 1.0, 1.5):
        assert devices.place("encoder") is None
        reporter.said = 0.0
        reporter.epoch("encoder", done, 10, 100)
        devices.learn("encoder", said[-1].peak_bytes)
    assert [one.peak_bytes for one in said] == [None, None, GIB]
    assert devices.place("encoder") == "cuda:0"
    Reporter(said.append).epoch("encoder", 2.0, 10, 100)
    assert said[-1].peak_bytes is None, "the CPU has no such limit"


def test_nodes_share_a_device_as_far_as_measured_memory_allows() -> None:
    devices = _gpus(4 * (GIB + PROCESS_BYTES) - 1)
    devices.peaks["encoder"] = GIB
    for _ in range(3):
        assert devices.place("encoder") == "cuda:0"
        devices.begin("cuda:0", "encoder")
    assert devices.place("encoder") is None
    devices.end("cuda:0", "encoder", 2 * GIB)
    assert devices.peaks == {"encoder": 2 * GIB}, "the largest of a kind counts"
    assert devices.place("encoder") is None
    devices.end("cuda:0", "encoder", None)
    assert devices.peaks == {"encoder": 2 * GIB}
    assert devices.place("encoder") == "cuda:0"
    devices.begin("cuda:0", "encoder")
    devices.peaks["encoder"] = 100 * GIB
    assert devices.place("encoder") is None
    for _ in range(2):
        devices.end("cuda:0", "encoder", GIB)
    assert devices.place("encoder") == "cuda:0", "even one that is too large is tried alone"


def test_idle_devices_come_first_and_then_the_one_with_most_room() -> None:
    devices = _gpus(4 * GIB, 16 * GIB)
    devices.peaks["encoder"] = GIB
    first = devices.place("encoder")
    devices.begin(str(first), "encoder")
    second = devices.place("encoder")
    assert {first, second} == {"cuda:0", "cuda:1"}
    devices.begin(str(second), "encoder")
    assert devices.place("encoder") == "cuda:1"


def test_the_cpu_has_no_limit() -> None:
    devices = Devices({"cpu": room("cpu")})
    for _ in range(20):
        assert devices.place("encoder") == "cpu"
        devices.begin("cpu", "encoder")


class _Gpu(Workers):
    """Makes nodes of 3 GiB on a GPU of 8 GiB; says how many it made at a time."""

    timeout = None

    def __init__(self) -> None:
        self.devices = _gpus(8 * GIB)
        self.made: list[Any] = []
        self.most = 0

    def start(self, setup: Any) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""

    def free(self) -> int:
        return 8 - len(self.made)

    def busy(self) -> int:
        return len(self.made)

    def fits(self, node: Any) -> bool:
        return self.devices.place(node.kind) is not None

    def give(self, node: Any, planned: Any) -> None:
        del planned
        self.devices.begin("cuda:0", node.kind)
        self.made.append(node)
        self.most = max(self.most, len(self.made))

    def listen(self) -> Any:
        node = self.made.pop(0)
        self.devices.end("cuda:0", node.kind, 3 * GIB)
        yield node, 0, Done(record=node.record)


def test_devices_are_those_of_cuda() -> None:
    from privbench.api.planning import _devices
    from privbench.ground.errors import BadInputError

    assert _devices(None, CPU) == ()
    with pytest.raises(BadInputError, match="--devices 0,1 needs --device cuda"):
        _devices("0,1", CPU)


def test_a_result_of_another_trial_is_not_taken(monkeypatch: Any) -> None:
    from privbench.grid import executors
    from privbench.grid.messages import CHANGED
    from privbench.results.record import Record

    monkeypatch.setattr(Record, "model_validate_json", lambda trial: SimpleNamespace(trial=trial))
    monkeypatch.setattr(executors, "failed", lambda blank, reason: (blank, reason))
    node: Any = SimpleNamespace(name="a", trial="a")
    schedule: Any = SimpleNamespace(done=lambda *_: None)
    planned: Any = SimpleNamespace(blank=lambda digest: f"blank {digest}")
    found: Any = list(executors._settled(schedule, node, Done(record="b"), planned))
    assert found == [("blank a", CHANGED)]


def test_nodes_wait_for_room(monkeypatch: Any) -> None:
    from privbench.results.record import Record

    nodes = {
        str(i): SimpleNamespace(name=str(i), kind="encoder", needs=set(), after=set(), role=None,
                                record=f"{i}", trial=f"{i}")
        for i in range(9)
    }  # fmt: skip
    monkeypatch.setattr(Record, "model_validate_json", lambda trial: SimpleNamespace(trial=trial))
    planned: Any = SimpleNamespace(trained_phases=0, setup=None, nodes=lambda _: nodes)
    gpu = _Gpu()
    ran = [record.trial for record in gpu.run(planned, ["1"])]
    assert sorted(ran) == sorted(nodes)
    assert gpu.most == 2
