# ruff: noqa: INP001, T201 - a script
"""Measures what the page needs to know of this machine, and writes ``measured.json``.

``uv run python leaderboards/experiments/how_far/measure.py PART ...`` measures parts (``nodes``,
``files``, ``planning``, ``boards``) and leaves the others as they are. Seconds are CPU seconds of
one thread, which other work on the same machine changes less than seconds on the clock.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from grid import MEASURED, SUITE, graph_of, planned, runner, shape

from privbench.boards.board import Leaderboard
from privbench.boards.page import page
from privbench.grid.executors import Workers
from privbench.grid.here import PlannedHere
from privbench.grid.run import execute
from privbench.grid.schedule import Schedule
from privbench.grid.worker import make
from privbench.ground.store.source import digest
from privbench.results.files import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.grid.messages import Message, Node, Setup
    from privbench.grid.trial import Trial


PUBLISHED = Path(__file__).parents[2] / "results" / "digits-operating-points.jsonl"


class Here(Workers):
    """Makes one node after the other in this process, and notes the CPU seconds of each."""

    timeout = None

    def __init__(self) -> None:
        """Nothing is made yet."""
        self.node, self.planned = None, None
        self.took: list[tuple[Node, Trial, float]] = []

    def start(self, setup: Setup) -> None:
        """Nothing to prepare."""

    def free(self) -> int:
        """One node at a time."""
        return 1 - self.busy()

    def busy(self) -> int:
        """How many nodes are being made."""
        return int(self.node is not None)

    def give(self, node: Node, planned: PlannedHere) -> None:
        """Keep the node for ``listen``."""
        self.node, self.planned = node, planned

    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """Make the node."""
        node, begun = self.node, time.process_time()
        trial = self.planned.trial(node.trial)
        message = make(node, trial, self.planned.runner)
        self.took.append((node, trial, time.process_time() - begun))
        self.node = None
        yield node, 0, message

    def stop(self) -> None:
        """Nothing to end."""


def nodes() -> dict[str, Any]:
    """CPU seconds of each kind of node, and bytes of what it leaves, at the suite's own sizes.

    All attacks without a defense, and all defenses under two attacks; fewer shadows, because one
    costs what another costs.
    """
    few = [{"lira": {"k": 2}} if "lira" in a else {"rmia": {"k": 2}} if "rmia" in a else a
           for a in SUITE["attacks"]]  # fmt: skip
    grids = [
        planned(attacks=few, defenses=[], adversaries=["adaptive"]),
        planned(attacks=["metric-loss", "nn-mia"], adversaries=["adaptive"]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        made_by = runner(Path(folder) / "store")
        here, wall, cpu = Here(), time.perf_counter(), time.process_time()
        records = [
            record
            for items in grids
            for record in execute(PlannedHere(items, made_by), Path(folder) / "out", executor=here)
        ]
        clocks = time.perf_counter() - wall, time.process_time() - cpu
        failed = sorted({record.reason for record in records if record.status == "failed"})
        if failed:
            raise SystemExit(f"some cells failed: {failed}")
        store = _sizes(Path(folder) / "store")
        results = _files(Path(folder) / "out", "*.json"), _files(Path(folder) / "out", "*.saf*")
    took = defaultdict(list)
    for node, trial, seconds in here.took:
        cell = trial.cell
        took[node.kind, cell.target.name, cell.defense].append(round(seconds, 4))
    return {
        "nodes": [[*key, seconds] for key, seconds in sorted(took.items())],
        "store": store,
        "results": {"json": results[0], "samples": results[1]},
        "clock": {"wall": round(clocks[0], 1), "cpu": round(clocks[1], 1)},
        "machine": {"cpu": _processor(), "python": platform.python_version()},
    }


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def _sizes(store: Path) -> dict[str, list[float]]:
    """Kind of artifact -> number, mean bytes of its manifest, mean bytes of its tensors."""
    found = defaultdict(list)
    for manifest in store.glob("[a-z]*/??/*/manifest.json"):
        tensors = manifest.with_name("tensors.safetensors")
        size = tensors.stat().st_size if tensors.exists() else 0
        found[manifest.parts[-4]].append((manifest.stat().st_size, size))
    return {
        kind: [len(many), round(fmean(m for m, _ in many)), round(fmean(t for _, t in many))]
        for kind, many in sorted(found.items())
    }


def _files(folder: Path, pattern: str) -> list[float]:
    sizes = [path.stat().st_size for path in folder.glob(pattern)]
    return [len(sizes), round(fmean(sizes))]


#: System calls that a shared file system answers, by what they ask of it.
CALLS = {
    "look up": ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
                "readlink", "readlinkat"),
    "create, rename, remove": ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink",
                               "unlinkat", "rmdir"),
    "sync": ("fsync", "fdatasync"),
    "lock": ("flock",),
    "touch": ("utimensat",),
    "list": ("getdents64",),
}  # fmt: skip


def files() -> dict[str, Any]:
    """Calls on the store and on the results, per node, counted by strace in one worker."""
    small = {"supervised": {"epochs": 2}, "simclr": {"epochs": 2}}
    grid = {
        **SUITE, "defenses": ["label-smoothing", "alm"], "adversaries": ["adaptive"],
        "attacks": ["metric-loss", "nn-mia", {"lira": {"k": 2}}, "encodermi-t"], "set": small,
    }  # fmt: skip
    items = planned(**{key: grid[key] for key in ("defenses", "adversaries", "attacks", "set")})
    count = len(graph_of(items))
    trials = sum(not item.skip for item in items)
    with tempfile.TemporaryDirectory() as folder:
        suite, log = Path(folder) / "suite.json", Path(folder) / "strace"
        suite.write_text(json.dumps(grid))
        script = str(Path(sys.executable).parent / "privbench")
        watched = ",".join(name for names in CALLS.values() for name in names)
        subprocess.run(  # noqa: S603 - this project's own program
            ["/usr/bin/strace", "-f", "-y", "--seccomp-bpf", "-e", f"trace=open,openat,{watched}",
             "-o", str(log), script, "run", str(suite), "--jobs", "1", "--executor", "processes",
             "--out", f"{folder}/out"],
            check=True, stdout=subprocess.DEVNULL, cwd=folder,
            env={**os.environ, "PRIVBENCH_CACHE": f"{folder}/store"},
        )  # fmt: skip
        found = {
            place: _calls(log, f"{folder}/{name}")
            for place, name in (("store", "store"), ("results", "out"))
        }
    return {"files": {"nodes": count, "trials": trials, **found}}


def _calls(log: Path, place: str) -> dict[str, int]:
    kinds = {name: kind for kind, names in CALLS.items() for name in names}
    found: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"\d+ +(\w+)\(", line)
        if match is None or place not in line:
            continue
        if match[1] in ("open", "openat"):
            found["create, rename, remove" if "O_CREAT" in line else "open"] += 1
        else:
            found[kinds[match[1]]] += 1
    return dict(sorted(found.items()))


def planning() -> dict[str, Any]:
    """CPU seconds of the plan and of its graph for one seed, and the graph's shape.

    Memory is what two more seeds add, so that imported libraries do not count.
    """
    begun = time.process_time()
    items = planned()
    middle = time.process_time()
    made = graph_of(items)
    ended = time.process_time()
    trials = {item.trial.digest: item.trial for item in items}
    sizes = [len(pickle.dumps((node, trials[node.trial]))) for node in made.values()]
    begun_schedule = time.process_time()
    Schedule(made)
    scheduled = time.process_time() - begun_schedule
    before, begun_more = _peak(), time.process_time()
    graph_of(planned(seeds=3))
    told = {
        "cells": len(items), "run": sum(not i.skip for i in items), "nodes": len(made),
        "plan": round(middle - begun, 2), "graph": round(ended - middle, 2),
        "schedule": round(scheduled, 3),
        "three seeds": round(time.process_time() - begun_more, 2),
        "mib": round((_peak() - before) / 2 / 1024, 1), "sent": [round(fmean(sizes)), max(sizes)],
    }  # fmt: skip
    return {"planning": told, "shape": shape(made, items)}


def boards() -> dict[str, Any]:
    """CPU seconds and memory to read results and to render a board, for several numbers of them.

    Copies of published results, each with another seed; each number in a process of its own.
    """
    code = "import sys; from measure import board; print(board(int(sys.argv[1])))"
    found = [
        subprocess.run(  # noqa: S603 - this script itself
            [sys.executable, "-c", code, str(copies)],
            check=True, capture_output=True, text=True, cwd=Path(__file__).parent,
        ).stdout.splitlines()[-1]
        for copies in (1, 4, 16)
    ]  # fmt: skip
    return {"boards": [json.loads(line) for line in found]}


def board(copies: int) -> str:
    """One row of ``boards``, as JSON."""
    seeds = 5
    published = read_all([PUBLISHED])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for copy in range(copies):
            for record in published:
                trial = digest([record.trial, copy])
                changed = {"trial": trial, "seed": record.seed + seeds * copy}
                record.model_copy(update=changed).write(folder)
        count, size = _files(folder, "*.json")
        del published
        before, begun = _peak(), time.process_time()
        records = read_all([folder])
        middle, memory = time.process_time(), _peak()
        text = page(Leaderboard(records), "board")
        ended = time.process_time()
    return json.dumps({
        "results": count, "bytes": size, "read": round(middle - begun, 2),
        "render": round(ended - middle, 2), "read mib": round((memory - before) / 1024),
        "render mib": round((_peak() - memory) / 1024), "board": len(text),
    })  # fmt: skip


def _peak() -> int:
    """Most KiB of memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


PARTS = {"nodes": nodes, "files": files, "planning": planning, "boards": boards}

if __name__ == "__main__":
    for part in sys.argv[1:]:
        told = PARTS[part]()
        known = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
        rows = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted((known | told).items())]
        MEASURED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        print(f"measured {part}")
