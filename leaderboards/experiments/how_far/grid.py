# ruff: noqa: INP001 - modules of a script
"""The grid that the page is about, and its graph for any number of seeds."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from privbench.grid.graph import graph
from privbench.grid.messages import Node, Role
from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.plugins.registry import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.grid.plan import PlannedTrial

HERE = Path(__file__).parent
MEASURED = HERE / "measured.json"
#: Two targets, a defense of each kind, an attack of each family; no method twice as heavy as it is.
SUITE: dict[str, Any] = {
    "datasets": ["digits"],
    "targets": ["supervised", "simclr"],
    "defenses": [
        "confidence-masking", "memguard", "label-smoothing", "relaxloss", {"selena": {"models": 5,
        "held_out": 2}}, "alm", "talos", "ars", "early-stopping",
    ],
    "attacks": [
        "shokri", "nn-mia", "posterior-label-mia", "metric-loss", "metric-modified-entropy",
        {"lira": {"k": 8}}, {"rmia": {"k": 8}}, "quantile", "label-only-augment",
        "label-only-boundary", "encodermi-v", "encodermi-s", "encodermi-t", "encoder-feature",
        "lpla", "attribute-inference",
    ],
    "adversaries": ["adaptive", "naive"],
}  # fmt: skip


def planned(**changes: Any) -> list[PlannedTrial]:
    """The trials of the suite, with some of its entries changed."""
    return plan(suite_from({**SUITE, **changes}, "grid"), load(), root=None, device="cpu")


def runner(store: Path) -> TrialRunner:
    """A runner on this CPU."""
    return TrialRunner(Store(store), torch.device("cpu"))


def graph_of(items: list[PlannedTrial]) -> dict[str, Node]:
    """The graph of the trials that run, on an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        return graph([i.trial for i in items if not (i.skip or i.failed)], runner(Path(folder)))


def shape(nodes: Mapping[str, Node], items: list[PlannedTrial]) -> dict[str, Any]:
    """A graph as plain values: of each node its sort and the places of what it waits for."""
    cells = {item.trial.digest: item.trial.cell for item in items}
    sorts: dict[tuple[str, str, str], int] = {}
    places = {name: place for place, name in enumerate(nodes)}
    rows = []
    for node in nodes.values():
        cell = cells[node.trial]
        sort = node.kind, cell.target.name, cell.defense
        needs = sorted(places[name] for name in node.needs)
        after = sorted(places[name] for name in node.after - node.needs)
        rows.append([sorts.setdefault(sort, len(sorts)), needs, after])
    return {"sorts": [list(sort) for sort in sorts], "nodes": rows}


@dataclass(frozen=True)
class Sort:
    """What decides the cost of a node; it stands for the node's trial."""

    kind: str
    target: str
    defense: str

    @property
    def is_attack(self) -> bool:
        """Whether the node is a trial."""
        return self.kind.startswith("attack ")


def repeated(one: Mapping[str, Any], seeds: int) -> dict[str, Node]:
    """The graph of so many seeds: copies of the shape of one, because seeds share no node."""
    sorts = [Sort(*sort) for sort in one["sorts"]]
    nodes = {}
    for seed in range(seeds):
        for place, (number, needs, after) in enumerate(one["nodes"]):
            sort, name = sorts[number], f"{seed}/{place}"
            nodes[name] = Node(
                name, cast("Any", sort), None if sort.is_attack else Role("victim"), sort.kind,
                {f"{seed}/{other}" for other in needs}, {f"{seed}/{other}" for other in after},
            )  # fmt: skip
    return nodes


def measured() -> dict[str, Any]:
    """What ``measure.py`` found."""
    return dict(json.loads(MEASURED.read_text(encoding="utf-8")))
