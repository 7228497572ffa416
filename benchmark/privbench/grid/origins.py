"""The methods of a cell by name, and where each comes from."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import pickle
import platform
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid.keys import code_digest, dataset_of
from privbench.grid.sealed import SealedAttack
from privbench.grid.trial import plain
from privbench.ground.store.source import digest, source_digest
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Shadows
from privbench.plugins.plugin_file import PREFIX, file_of, loaded_files
from privbench.results.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from privbench.grid.trial import Trial
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.method import Method


#: The distribution whose code all processes may load.
OURS = "privbench"
#: That of a class of a script or a notebook, which other processes may not find.
NONE = "none"


def origins(cell: Cell) -> dict[str, dict[str, str]]:
    """Kind and name of each method -> its distribution, version of that, and source digest.

    A method of a plugin file has the file's name as distribution, and its SHA-256 as version. One
    of no installed distribution (from a notebook) has the distribution ``none``.
    """
    return {f"{kind} {method.name}": _origin_of(method) for kind, method in _methods(cell)}


def others_in(cell: Cell) -> str:
    """Return the methods of a cell that do not come with privbench, in words; "" for none."""
    return " or ".join(name for name, of in origins(cell).items() if not _ours(of))


def sealed(trial: Trial) -> Trial:
    """The trial, its attack sealed if that comes from another package, and its game does not."""
    cell, attack = trial.cell, trial.cell.attack
    origin, game = _origin_of(attack), GAMES.get(attack.game)
    if not of_others(attack) or game is None or not _ours(_origin(type(game))):
        return trial
    # Plain values only: a subclass of str would bring its code along.
    told = json.loads(json.dumps({
        "name": attack.name, "label": attack.label, "version": attack.version,
        "digest": attack.digest, "game": attack.game, "decides_at": attack.decides_at,
        "max_rows": attack.max_rows, "origin": origin,
        "fields": {name: plain(value) for name, value in attack.hyperparameters().items()},
    }))  # fmt: skip
    count, source = json.loads(json.dumps([attack.shadows.count, attack.shadows.origin]))
    closed: Any = SealedAttack(
        **told, needs=Access(attack.needs.value), wants=Access(attack.wants.value),
        shadows=Shadows(count, source), packed=pickle.dumps(attack),
    )  # fmt: skip
    return replace(trial, cell=replace(cell, attack=closed))


def is_of_others(module: str) -> bool:
    """Whether a module belongs to a plugin file, or to another package that offers plugins."""
    if file_of(module) or module.startswith(PREFIX):
        return True
    return _distributions().get(module.partition(".")[0], (OURS, ""))[0] != OURS


def code_of(cell: Cell, *, with_sealed: bool = False) -> str:
    """Digest of the code of others that a process loads for the cell; "" for none.

    That of a sealed attack is not loaded, and counts only if asked for.
    """
    of = {f"{kind} {method.name}": _origin_of(method) for kind, method in _methods(cell)
          if with_sealed or not isinstance(method, SealedAttack)}  # fmt: skip
    if game := GAMES.get(cell.attack.game):
        of[f"game {cell.attack.game}"] = _origin(type(game))
    found = sorted([name, *sorted(one.items())] for name, one in of.items() if not _ours(one))
    return digest(found) if found else ""


def code_here(cells: Iterable[Cell]) -> str:
    """Digest of the code of others that this process has loaded, for cells or before; "" for none.

    It may have changed what any method computes here.
    """
    found = {code_of(cell, with_sealed=True) for cell in cells} - {""}
    files = sorted(file.module for file in loaded_files())
    return digest([sorted(found), files]) if found or files else ""


def origin_of(method: Method) -> str:
    """Return the distribution of a method, or its plugin file, as results name it."""
    sealed: object = method  # in the place of an attack
    if isinstance(sealed, SealedAttack):
        return sealed.origin["distribution"]
    return _distribution_of(type(method).__module__)[0]


def of_others(method: Method) -> bool:
    """Whether a method comes from another package."""
    return origin_of(method) != OURS


def can_be_sent(cells: Iterable[Cell]) -> bool:
    """Whether other processes find the classes of all methods: none is of a script or notebook."""
    methods = {id(method): method for cell in cells for _, method in _methods(cell)}
    return all(origin_of(method) != NONE for method in methods.values())


def _ours(origin: Mapping[str, str]) -> bool:
    return origin["distribution"] == OURS


def _origin_of(method: Method) -> dict[str, str]:
    sealed: object = method  # in the place of an attack
    return dict(sealed.origin) if isinstance(sealed, SealedAttack) else _origin(type(method))


def others_serving(cell: Cell) -> str:
    """Return the target and the defenses of a cell that do not come with privbench, in words."""
    made_of = [("target", cell.target), *(("defense", defense) for defense in cell.defenses)]
    return " or ".join(f"{kind} {method.name}" for kind, method in made_of if of_others(method))


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
    distribution, version = _distribution_of(cls.__module__)
    return {"distribution": distribution, "version": version, "source": source_digest(cls)}


def _distribution_of(module: str) -> tuple[str, str]:
    """Distribution and version of the code of a module; of a plugin file, its name and digest."""
    if file := file_of(module):
        return file.name, f"sha256:{file.sha256}"
    return _distributions().get(module.partition(".")[0], (NONE, ""))


@functools.cache
def _distributions() -> Mapping[str, tuple[str, str]]:
    """Top-level package -> name and version of the distribution whose entry point names it."""
    found = {OURS: (OURS, importlib.metadata.version(OURS))}
    for point in importlib.metadata.entry_points(group="privbench"):
        if point.dist is not None:
            package = point.value.partition(":")[0].partition(".")[0]
            found.setdefault(package, (point.dist.name, point.dist.version))
    return found


def provenance_of(trial: Trial, device: torch.device) -> dict[str, Any]:
    """Versions, machine, time, how it ran, and where the methods of the cell come from."""
    how = {"code": code_digest(), **asdict(trial.numerics)}
    return {**provenance(_named(device)), **how, "plugins": origins(trial.cell)}


def _named(device: torch.device) -> str:
    """Kind and name of a device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{device.type} ({name or platform.machine()})"


def named_answer(made: tuple[Any, Mapping[str, Any]], cell: Cell) -> tuple[Any, dict[str, Any]]:
    """An answer for the store; its facts also name the methods in its key."""
    tensors, facts = made
    return tensors, {**facts, "names": names(cell)}
