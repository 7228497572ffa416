"""The methods of a cell by name, and where each comes from."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid.keys import code_digest, dataset_of
from privbench.ground.store.source import source_digest
from privbench.plugins.plugin_file import file_of
from privbench.results.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from privbench.grid.cell import Trial
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.method import Method


def origins(cell: Cell) -> dict[str, dict[str, str]]:
    """Kind and name of each method -> its distribution, version of that, and source digest.

    A method of a plugin file has the file's name as distribution, and its SHA-256 as version. One
    of no installed distribution (from a notebook) has the distribution ``none``.
    """
    return {f"{kind} {method.name}": _origin(type(method)) for kind, method in _methods(cell)}


def strangers(cell: Cell) -> str:
    """Return the methods of a cell that do not come with privbench, in words; "" for none."""
    found = origins(cell).items()
    return " or ".join(name for name, of in found if of["distribution"] != "privbench")


def names(cell: Cell) -> dict[str, str]:
    """Digest of each method -> its kind and label, to explain keys that hold the digest."""
    return {method.digest: f"{kind} {method.label}" for kind, method in _methods(cell)}


def _methods(cell: Cell) -> list[tuple[str, Method]]:
    adversary = cell.adversary
    theirs = [("target", adversary.target), ("dataset", adversary.dataset)]
    return [
        ("dataset", dataset_of(cell)),
        ("target", cell.target),
        *(("defense", defense) for defense in cell.defenses),
        ("attack", cell.attack),
        *((kind, method) for kind, method in theirs if method is not None),
    ]


@functools.cache
def _origin(cls: type) -> dict[str, str]:
    if file := file_of(cls.__module__):
        told = {"distribution": file.name, "version": f"sha256:{file.sha256}"}
        return {**told, "source": source_digest(cls)}
    package = cls.__module__.partition(".")[0]
    distribution, version = _distributions().get(package, ("none", ""))
    return {"distribution": distribution, "version": version, "source": source_digest(cls)}


@functools.cache
def _distributions() -> Mapping[str, tuple[str, str]]:
    """Top-level package -> name and version of the distribution whose entry point names it."""
    found = {"privbench": ("privbench", importlib.metadata.version("privbench"))}
    for point in importlib.metadata.entry_points(group="privbench"):
        if point.dist is not None:
            package = point.value.partition(":")[0].partition(".")[0]
            found.setdefault(package, (point.dist.name, point.dist.version))
    return found


def provenance_of(trial: Trial, device: torch.device) -> dict[str, Any]:
    """Versions, machine, time, how it ran, and where the methods of the cell come from."""
    how = {"code": code_digest(), "threads": trial.threads, "compiled": trial.compiled}
    return {**provenance(_named(device)), **how, "plugins": origins(trial.cell)}


def _named(device: torch.device) -> str:
    """Kind and name of a device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{device.type} ({name or platform.machine()})"


def named_answer(made: tuple[Any, Mapping[str, Any]], cell: Cell) -> tuple[Any, dict[str, Any]]:
    """An answer for the store; its facts also name the methods in its key."""
    tensors, facts = made
    return tensors, {**facts, "names": names(cell)}
