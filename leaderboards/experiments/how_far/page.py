# ruff: noqa: INP001, T201 - a script
"""Writes the tables of docs/how-far-it-goes.md from ``measured.json`` and by simulation.

``uv run python leaderboards/experiments/how_far/page.py`` replaces what stands between the markers
of a table, and prints the tables that have no markers on the page; equal measurements give the same
bytes. With ``--check`` it writes nothing and fails if the page would change.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from math import ceil, exp
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import TYPE_CHECKING, Any

from grid import measured, repeated
from simulated import Figures, simulate, uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privbench.grid.messages import Node

PAGE = Path(__file__).parents[3] / "docs" / "how-far-it-goes.md"
CELLS, SMALL, WORKERS = 100_000, 5_000, 64
#: Seconds on a GPU of a node of each class. Assumptions, not measurements.
GPU = {
    "contrastive training": 3200.0, "supervised training": 200.0, "other stage": 60.0,
    "attack": 30.0, "baselines": 10.0,
}  # fmt: skip
#: Bytes of the weights of a ResNet-18 with 11.2 million parameters in float32.
RESNET18 = 44_800_000
#: Machines that the 64 GPUs are in.
GPUS_PER_MACHINE = 8
DAY, HOUR = 86_400.0, 3_600.0


def class_of(sort: Any) -> str:
    """The class of a node in the table of assumptions."""
    if sort.is_attack:
        return "attack"
    if sort.kind == "baselines":
        return "baselines"
    if "encoder" in sort.kind.split(", "):
        contrastive = sort.target == "simclr"
        return "contrastive training" if contrastive else "supervised training"
    return "other stage"


class Costs:
    """Measured seconds of nodes; a sort that was not measured has those of similar ones."""

    def __init__(self, found: Sequence[Sequence[Any]], sorts: Sequence[Any]) -> None:
        """``found`` has kind, target, defense and seconds; ``sorts`` are all sorts of the graph."""
        self.by: dict[tuple[str, ...], list[float]] = {}
        for kind, target, defense, seconds in found:
            for key in ((kind, target, defense), (kind, target), (kind,)):
                self.by.setdefault(key, []).extend(seconds)
        self.of_class: dict[str, list[float]] = {}
        for sort in sorts:
            if exact := self.by.get((sort.kind, sort.target, sort.defense)):
                self.of_class.setdefault(class_of(sort), []).extend(exact)
        self.middle = {name: median(many) for name, many in self.of_class.items()}

    @cache  # noqa: B019 - one object lives as long as the script
    def known(self, sort: Any) -> list[float]:
        """Measured seconds for a sort."""
        keys = (sort.kind, sort.target, sort.defense), (sort.kind, sort.target), (sort.kind,)
        for key in keys:
            if key in self.by:
                return self.by[key]
        return self.of_class[class_of(sort)]

    def cpu(self, node: Node) -> float:
        """Seconds on this CPU: one of those measured, drawn by the node's name."""
        sort: Any = node.trial
        known = self.known(sort)
        return known[int(uniform("cost", node.name) * len(known))]

    def gpu(self, node: Node) -> float:
        """The assumed seconds of the class, times how far this sort is from the class's median."""
        sort: Any = node.trial
        name = class_of(sort)
        return GPU[name] * self.cpu(node) / self.middle[name]


class Once:
    """A cost that is computed once per node."""

    def __init__(self, cost: Callable[[Node], float]) -> None:
        """``cost`` of a node."""
        self.cost, self.known = cost, dict[str, float]()

    def __call__(self, node: Node) -> float:
        """Seconds of a node."""
        name = node.name
        if name not in self.known:
            self.known[name] = self.cost(node)
        return self.known[name]


def heavy(cost: Callable[[Node], float], sigma: float = 1.5) -> Callable[[Node], float]:
    """Multiply by a lognormal number of mean 1: the largest hundredth is over ten."""
    normal = NormalDist(-(sigma**2) / 2, sigma)
    return lambda node: cost(node) * exp(normal.inv_cdf(uniform("tail", node.name)))


def straggling(cost: Callable[[Node], float]) -> Callable[[Node], float]:
    """One node in a hundred takes ten times as long: a slow machine."""
    return lambda node: cost(node) * (10 if uniform("slow", node.name) < 0.01 else 1)  # noqa: PLR2004


def dying(share: float) -> Callable[[Node, int], float | None]:
    """That share of the nodes loses its worker once, at some point of its work."""

    def dies(node: Node, attempt: int) -> float | None:
        lost = attempt == 0 and uniform("dies", node.name) < share
        return uniform("when", node.name) if lost else None

    return dies


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def time_of(seconds: float) -> str:
    """A time in words."""
    for unit, size in (("d", DAY), ("h", HOUR), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.2g} s"


def size_of(count: float) -> str:
    """A number of bytes in words."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


class Page:
    """All tables."""

    def __init__(self) -> None:
        """Read the measurements; build the graph of the large grid."""
        self.found = measured()
        shape = self.found["shape"]
        self.one = repeated(shape, 1)
        self.sorts = [node.trial for node in self.one.values()]
        self.costs = Costs(self.found["nodes"], list(dict.fromkeys(self.sorts)))
        self.run = sum(sort.is_attack for sort in self.sorts)  # type: ignore[attr-defined]
        self.seeds = ceil(CELLS / self.run)
        self.counts: dict[str, int] = {}
        for sort in self.sorts:
            self.counts[class_of(sort)] = self.counts.get(class_of(sort), 0) + 1
        self.makespan: dict[str, float] = {}

    def per_cell(self) -> str:
        """Cost of a cell: what all nodes of one seed take, by class, divided by its cells."""
        rows, total = [], 0.0
        for name, count in self.counts.items():
            known = self.costs.of_class[name]
            took = sum(self.costs.cpu(n) for n in self.one.values() if class_of(n.trial) == name)
            total += took
            rows.append([
                name, len(known), f"{median(known):.3g}", f"{fmean(known):.3g}",
                f"{max(known):.3g}", f"{count / self.run:.2f}", f"{took / self.run:.3g}",
            ])  # fmt: skip
        rows.append(["all", "", "", "", "", f"{len(self.one) / self.run:.2f}",
                     f"{total / self.run:.3g}"])  # fmt: skip
        return table(["node", "measured", "median s", "mean s", "largest s", "nodes per cell",
                      "CPU s per cell"], rows)  # fmt: skip

    def assumptions(self) -> str:
        """The assumed seconds on a GPU, and what they make of a cell."""
        rows, total = [], 0.0
        for name, seconds in GPU.items():
            took = sum(self.costs.gpu(n) for n in self.one.values() if class_of(n.trial) == name)
            total += took
            rows.append([name, f"{seconds:g}", f"{took / self.run:,.0f}"])
        return table(["node", "assumed GPU seconds", "GPU s per cell"],
                     [*rows, ["all", "", f"{total / self.run:,.0f}"]])  # fmt: skip

    def grids(self) -> str:
        """The simulated grids: their size, and what limits them."""
        rows = []
        cases = {
            "GPU costs, assumed": (CELLS, self.costs.gpu),
            "CPU costs, measured": (CELLS, self.costs.cpu),
            "GPU costs, one seed": (1, self.costs.gpu),
        }
        for name, (cells, cost) in cases.items():
            seeds = ceil(cells / self.run)
            nodes = repeated(self.found["shape"], seeds)
            found = simulate(nodes, WORKERS, Once(cost))
            self.makespan[name] = found.makespan
            rows.append([name, f"{self.run * seeds:,}", f"{len(nodes):,}", *_told(found)])
        return table(["grid", "cells", "nodes", *HEAD], rows)

    def sensitivity(self) -> str:
        """What unequal nodes and lost workers do to a smaller grid."""
        seeds = ceil(SMALL / self.run)
        nodes = repeated(self.found["shape"], seeds)
        gpu = Once(self.costs.gpu)
        cases: dict[str, tuple[Any, dict[str, Any]]] = {
            "as measured": (gpu, {}),
            "all nodes of a class equal": (Once(lambda n: GPU[class_of(n.trial)]), {}),
            "heavy tail": (Once(heavy(gpu)), {}),
            "1 % of nodes ten times slower": (Once(straggling(gpu)), {}),
            "1 % of workers die, second tries alone": (gpu, {"dies": dying(0.01)}),
            "1 % of workers die, side by side": (gpu, {"dies": dying(0.01), "alone": False}),
            "10 % of workers die, side by side": (gpu, {"dies": dying(0.1), "alone": False}),
        }
        rows = [[name, *_told(simulate(nodes, WORKERS, cost, **more))]
                for name, (cost, more) in cases.items()]  # fmt: skip
        return table(["case", *HEAD], rows)

    def coordinator(self) -> str:
        """Utilisation when the coordinator needs time for each node."""
        nodes = repeated(self.found["shape"], ceil(SMALL / self.run))
        rows = []
        for name, cost in (("GPU", Once(self.costs.gpu)), ("CPU", Once(self.costs.cpu))):
            shares = [simulate(nodes, WORKERS, cost, hand_out=one).utilisation for one in HAND_OUT]
            rows.append([name, *(f"{share:.3f}" for share in shares)])
        return table(["nodes", *(f"{one * 1e3:g} ms per node" for one in HAND_OUT)], rows)

    def planning(self) -> str:
        """Planning, as measured for one seed, and times the seeds."""
        told = self.found["planning"]
        rows = [
            ["plan: cells, reasons to skip", f"{told['plan']:.3g} s",
             time_of(told["plan"] * self.seeds)],
            ["graph: keys of all victims", f"{told['graph']:.3g} s",
             time_of(told["graph"] * self.seeds)],
            ["schedule", f"{told['schedule']:.2g} s", time_of(told["schedule"] * self.seeds)],
            ["memory, per further seed", f"{told['mib']:,.1f} MiB",
             f"{told['mib'] * self.seeds / 1024:,.1f} GiB"],
            ["a node as it is sent, mean and largest", size_of(told["sent"][0]),
             size_of(told["sent"][1])],
        ]  # fmt: skip
        head = f"one seed: {told['cells']:,} cells, {told['run']:,} run, {told['nodes']:,} nodes"
        return table(["work", head, f"{self.seeds} seeds"], rows)

    def artifacts(self) -> dict[str, float]:
        """Artifacts of each kind: those of the measured run, in proportion to its nodes."""
        made = sum(len(seconds) for *_, seconds in self.found["nodes"])
        return {
            kind: count / made * len(self.one) * self.seeds
            for kind, (count, _, _) in self.found["store"].items()
        }

    def store(self) -> str:
        """Bytes of the store, with the models of this CPU and with ResNet-18."""
        rows, cpu, gpu, files = [], 0.0, 0.0, 0.0
        for kind, count in self.artifacts().items():
            _, manifest, tensors = self.found["store"][kind]
            here = count * (manifest + tensors)
            there = count * (manifest + (RESNET18 if kind in ("phase", "trained") else tensors))
            cpu, gpu, files = cpu + here, gpu + there, files + count * (2 if tensors else 1)
            rows.append([kind, f"{count:,.0f}", f"{manifest:,}", f"{tensors:,}", size_of(here),
                         size_of(there)])  # fmt: skip
        rows.append(["all", f"{sum(self.artifacts().values()):,.0f}", "", "", size_of(cpu),
                     size_of(gpu)])  # fmt: skip
        results = self.found["results"]
        cells = self.run * self.seeds
        total = cells * (results["json"][1] + results["samples"][1])
        rows.append(["results", f"{2 * cells:,}", f"{results['json'][1]:,}",
                     f"{results['samples'][1]:,}", size_of(total), size_of(total)])  # fmt: skip
        return table(["kind", "artifacts", "manifest bytes", "tensor bytes", "models as here",
                      "phases of ResNet-18"], rows)  # fmt: skip

    def calls(self) -> str:
        """Calls on the file system per node, and per second of the simulated grids."""
        told = self.found["files"]
        nodes = len(self.one) * self.seeds
        rows = []
        kinds = sorted({*told["store"], *told["results"]})
        total = dict.fromkeys(self.makespan, 0.0)
        for kind in kinds:
            each = told["store"].get(kind, 0) / told["nodes"]
            result = told["results"].get(kind, 0) / told["trials"]
            every = each * nodes + result * self.run * self.seeds
            rates = []
            for name in list(self.makespan)[:2]:
                total[name] += every / self.makespan[name]
                rates.append(f"{every / self.makespan[name]:,.1f}")
            rows.append([kind, f"{each:.1f}", f"{result:.1f}", *rates])
        rows.append(["all", f"{sum(told['store'].values()) / told['nodes']:.1f}",
                     f"{sum(told['results'].values()) / told['trials']:.1f}",
                     *(f"{total[name]:,.1f}" for name in list(self.makespan)[:2])])  # fmt: skip
        return table(["call", "store, per node", "results, per cell", "per second, GPU costs",
                      "per second, CPU costs"], rows)  # fmt: skip

    def boards(self) -> str:
        """Reading results and rendering a board."""
        last = self.found["boards"][-1]
        times = CELLS / last["results"]
        scaled = {name: value * times for name, value in last.items()} | {"board": last["board"]}
        rows = [
            [f"{one['results']:,.0f}", f"{one['read']:,.1f}", f"{one['render']:,.1f}",
             f"{one['read mib']:,.0f}", f"{one['render mib']:,.0f}", size_of(one["board"])]
            for one in (*self.found["boards"], scaled)
        ]  # fmt: skip
        rows[-1][0] += " (in proportion)"
        return table(["results", "read, CPU s", "render, CPU s", "read, MiB", "render, MiB",
                      "board"], rows)  # fmt: skip


HAND_OUT = (0.0, 0.001, 0.01, 0.1, 1.0)
HEAD = ("makespan", "bound", "makespan / bound", "utilisation", "longest path", "first result")


def _told(found: Figures) -> list[str]:
    return [
        time_of(found.makespan), time_of(found.bound), f"{found.ratio:.4f}",
        f"{found.utilisation:.4f}", time_of(found.path), time_of(found.first),
    ]  # fmt: skip


TABLES = ("per_cell", "assumptions", "grids", "sensitivity", "coordinator", "planning", "store",
          "calls", "boards")  # fmt: skip


def filled(text: str) -> str:
    """The page with its tables; the others are printed."""
    page = Page()
    for name in TABLES:
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        made = getattr(page, name)()
        place = f"{begin}\n\n{made}\n\n{end}"
        text, count = pattern.subn(lambda _, place=place: place, text)
        if not count:
            print(f"{name}:\n\n{made}\n")
    return text


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv and after != before:
        raise SystemExit(f"{PAGE} is not what its measurements give: run page.py")
    PAGE.write_text(after, encoding="utf-8")
    print("the page is as its measurements give it" if after == before else f"wrote {PAGE}")
