"""The grid as tasks of Ray: a cluster of two nodes on this machine, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

GRID = {
    "datasets": ["digits"],
    "protocols": [
        {"name": "small", "members": 40, "nonmembers": 40, "reference": 20, "pool": 300, "test": 40}
    ],
    "targets": [{"supervised": {"epochs": 2}}],
    "defenses": [{"selena": {"models": 3, "held_out": 1}}],
    "attacks": ["metric-loss", {"lira": {"k": 2}}, "looks"],
}

#: An attack that looks for what holds the truth, and for code of an earlier answer.
LOOKS = """
import gc
from dataclasses import dataclass
from typing import ClassVar
from privbench import Access, Membership, MembershipAttack, hookimpl

EARLIER = []

@dataclass(frozen=True)
class Looks(MembershipAttack):
    'Looks around.'
    name: ClassVar[str] = "looks"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle, question, ctx):
        held = {type(thing).__name__ for thing in gc.get_objects()}
        found = sorted(held & {"Materials", "Answering", "TrialRunner"})
        ctx.note(found=found, earlier=len(EARLIER))
        EARLIER.append(1)
        return Membership(oracle.posteriors(question.examples).amax(1))

@hookimpl
def privbench_attacks():
    return [Looks()]
"""


def _main(folder: Path) -> dict[str, Any]:
    """Run the grid here and on a cluster of two nodes; digests of results, and where it ran."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    import ray as untyped
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    from privbench import run
    from privbench.grid.cluster import Ray

    alone = []
    stop = Ray.stop

    def noted(self: Ray) -> None:
        alone.append(self.alone)
        stop(self)

    Ray.stop = noted  # type: ignore[method-assign]
    ray: Any = untyped
    ray_constants.ENABLE_RAY_CLUSTER = False  # else it asks for this machine's outer address
    local = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
    cluster: Any = Cluster(initialize_head=True, head_node_args=local)
    cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
    (folder / "looks.py").write_text(LOOKS)
    plugins = [folder / "looks.py"]
    os.environ["PRIVBENCH_CACHE"] = str(folder / "a")
    serial = run(GRID, out=folder / "x", device="cpu", plugins=plugins)
    os.environ["PRIVBENCH_CACHE"] = str(folder / "b")
    there = run(GRID, out=folder / "y", device="cpu", executor="ray", address=cluster.address,
                plugins=plugins)  # fmt: skip
    ray.init(cluster.address, log_to_driver=False)
    nodes = len([node for node in ray.nodes() if node["Alive"]])
    ray.shutdown()
    cluster.shutdown()
    phases = [len(list((folder / s).glob("phase/*/*/manifest.json"))) for s in "ab"]
    return {
        "serial": [record.digest for record in serial],
        "ray": [record.digest for record in there],
        "reasons": sorted({record.reason for record in there}),
        "looked": [one.notes for one in there if one.cell.attack.name == "looks"],
        "phases": phases, "nodes": nodes, "alone": alone,
    }  # fmt: skip


@pytest.mark.end_to_end
def test_a_cluster_of_two_nodes_gives_the_results_of_a_serial_run(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRIVBENCH_TEST")}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["reasons"] == [""]
    assert found["ray"] == found["serial"]
    assert len(found["looked"]) == 2
    assert all(one["found"] == [] and one["earlier"] == 0 for one in found["looked"])
    assert found["nodes"] == 2
    assert found["alone"] == [False], "second tries run side by side on several machines"
    assert found["phases"][0] == found["phases"][1]


@pytest.mark.slow
def test_an_address_where_no_cluster_answers_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps(GRID))
    command = [
        str(Path(sys.executable).parent / "privbench"), "run", str(suite), "--out",
        str(tmp_path / "out"), "--device", "cpu", "--executor", "ray", "--address", "127.0.0.1:1",
        "--attack", "metric-loss",
    ]  # fmt: skip
    environment = {**os.environ, "PRIVBENCH_CACHE": str(tmp_path / "store")}
    begun = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert time.monotonic() - begun < 60  # imports included; Ray alone would try for minutes
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "--address 127.0.0.1:1: no Ray cluster answers there" in sentence


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]))))
