"""A result's trial again: the suite that plans it, and how it differs where it is another one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from privbench.grid.outcome import new_record
from privbench.grid.suite import Suite, suite_from
from privbench.grid.trial import cell_record, protocol_record
from privbench.ground.errors import BadInputError, UnknownNameError
from privbench.ground.text import shown
from privbench.measure.data.protocol import protocol_named
from privbench.measure.methods.access import BLACK_BOX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from privbench.check.challenge import Victim
    from privbench.grid.trial import Trial
    from privbench.measure.methods.attack import Attack
    from privbench.plugins.registry import Registry
    from privbench.results.record import CellRecord, MethodRecord, Record

_PARTS = ("members", "nonmembers", "reference", "public", "downstream", "pool", "test")


def suite_of(record: Record, registry: Registry) -> Suite:
    """Return the suite whose only trial is that of a result.

    Names are looked up in the registry, and values are checked as those of any suite.

    Raises:
        UnknownNameError: for a method or hyperparameter that does not exist here.
        BadInputError: for a value out of range.
    """
    cell, knows = record.cell, record.cell.knows

    def ref(method: MethodRecord) -> dict[str, Any]:
        return {method.name: method.fields}

    stack = [ref(one) for one in cell.defenses]
    alone = len(stack) == 1
    values: dict[str, Any] = {
        "name": "one trial",
        "datasets": [ref(cell.dataset)],
        "protocols": [_protocol(cell, registry)],
        "targets": [ref(cell.target)],
        "defenses": stack if alone else ["+".join(one.name for one in cell.defenses)],
        "set": {} if alone else {name: given for one in stack for name, given in one.items()},
        "attacks": [ref(cell.attack)],
        "adversaries": [
            {
                "adaptive": knows.adaptive, "white_box": knows.white_box,
                "target": ref(knows.target) if knows.target else None,
                "dataset": ref(knows.dataset) if knows.dataset else None,
            }
        ],
        "seeds": [record.seed],
        "preset": cell.preset,
        "sensitive": cell.sensitive,
        "baseline": False,
    }  # fmt: skip
    return suite_from(values, "the result")


def suite_against(victim: Victim, attack: Attack, registry: Registry) -> Suite:
    """Return the grid of a new attack against a victim, with all its seeds.

    Raises:
        UnknownNameError: for a method or hyperparameter of the results that does not exist here.
        BadInputError: for a value out of range.
    """
    return suite_of(victim.records[0], registry).model_copy(
        update={
            "attacks": [attack.name],
            "seeds": sorted({one.seed for one in victim.records}),
            "adversaries": ["white-box" if attack.needs & ~BLACK_BOX else "adaptive"],
        }
    )


def challengers(registry: Registry, names: Sequence[str]) -> list[Attack]:
    """Return the new attacks: those that were named, or else all of plugin files.

    Raises:
        UnknownNameError: for a name that does not exist.
        BadInputError: if there are none.
    """
    if names:
        return [registry.get("attack", name) for name in names]
    known: list[Attack] = registry.all("attack")
    mine = [one for one in known if registry.owner("attack", one.name).distribution == "file"]
    if not mine:
        raise BadInputError("no attack to try: write `privbench --plugin FILE.py challenge …`, or "
                            "name one by --attack")  # fmt: skip
    return mine


def _protocol(cell: CellRecord, registry: Registry) -> str | dict[str, Any]:
    """The name of the protocol if it is the same here, or else the protocol in full."""
    given = cell.protocol
    with contextlib.suppress(UnknownNameError):
        own = registry.get("dataset", cell.dataset.name).protocols
        known = protocol_record(protocol_named(str(given.get("name")), own))
        if given == known:
            return str(given["name"])
    sources = given.get("sources", {})
    if not isinstance(sources, dict):
        raise BadInputError(f"the result: sources of a protocol are {{part: name}}, "
                            f"not {shown(sources)}")  # fmt: skip
    return {
        name: {"size": size, "source": sources.get(name)} if name in _PARTS else size
        for name, size in given.items()
        if name != "sources"
    }


def differences(record: Record, trial: Trial, device: torch.device) -> list[str]:
    """Return in what a trial differs from that of a result, one clause each; [] if in nothing."""
    if trial.digest == record.trial:
        return []
    ours = new_record(trial, device)
    found = list(_differences(record, ours))
    found += _of_cells(record.cell, cell_record(trial.cell))
    there, here = record.provenance, ours.provenance
    if not found or there.get("code") != here["code"]:
        commits = [one.get("commit") or "unknown" for one in (there, here)]
        found.append(f"privbench's code (commit {_both(*commits)})")
    return found


def _differences(record: Record, ours: Record) -> Iterator[str]:
    there, here = record.provenance, ours.provenance
    for name in ("threads", "compiled", "precision"):
        if name in there and there[name] != here[name]:
            yield f"{name} {_both(there[name], here[name])}"
    for name, given in (("torch", _machine(there)), ("device", there)):
        now = (_machine(here) if name == "torch" else here)[name]
        if name in given and str(given[name]).split(" ")[0] != str(now).split(" ")[0]:
            yield f"{name} {_both(given[name], now)}"
    plugins = there.get("plugins")
    for name, now in here["plugins"].items():
        was = plugins.get(name) if isinstance(plugins, dict) else None
        if isinstance(was, dict) and was.get("source") != now["source"]:
            yield f"source code of {name}"


def _machine(provenance: dict[str, Any]) -> dict[str, Any]:
    made = provenance.get("machine")
    return made if isinstance(made, dict) else {}


def _of_cells(there: CellRecord, here: CellRecord) -> Iterator[str]:
    pairs = [("dataset", there.dataset, here.dataset), ("target", there.target, here.target)]
    pairs += [("defense", *both) for both in zip(there.defenses, here.defenses, strict=False)]
    pairs += [("attack", there.attack, here.attack)]
    for kind, was, now in pairs:
        if was.version != now.version:
            yield f"{kind} {shown(was.name)}, version {_both(was.version, now.version)}"
        for name in sorted({*was.fields, *now.fields}):
            old, new = (one.fields.get(name, "absent") for one in (was, now))
            if old != new:
                yield f"{kind} {shown(was.name)}, {shown(name)} {_both(old, new)}"
        if was.fields == now.fields and was.label != now.label:
            yield f"{kind} {shown(was.name)}, its label {_both(was.label, now.label)}"
    for name in ("protocol", "sensitive", "preset"):
        old, new = getattr(there, name), getattr(here, name)
        if old != new:
            yield f"{name} {_both(old, new)}"


def _both(there: object, here: object) -> str:
    return f"{shown(there)} there, {shown(here)} here"
