"""Victims that the kit trains: tiny, for a few epochs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training import checkpoint
from privbench.plugins.requirements import reason_to_skip
from privbench.testing.fixtures import (
    AnyAttack,
    stored_as_floats,
    tiny_builder,
    tiny_split,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privbench.measure.data.split import Split, World
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.method import Method
    from privbench.measure.methods.target import Target
    from privbench.measure.victims.served import Victim
    from privbench.measure.victims.spec import VictimSpec


def shortened(method: Any) -> Any:
    """Return the method with at most three epochs, twenty updates, and patience for one epoch."""
    fields = {n: v for n, v in method.hyperparameters().items() if isinstance(v, int)}
    few = {name: min(value, 3) for name, value in fields.items() if name.endswith("epochs")}
    few |= {name: min(value, 20) for name, value in fields.items() if name.endswith("updates")}
    few |= {name: 1 for name in fields if name == "patience"}
    return method.replace(**few)


def trained(spec: VictimSpec, noise: int = 1) -> Victim:
    """Train a victim on a store of its own, while the global generator has that seed."""
    with tempfile.TemporaryDirectory() as tmp, torch.random.fork_rng(devices=[]):
        torch.manual_seed(noise)  # noqa: TID251 - to see that nothing depends on it
        return tiny_builder(tmp).victim(spec)


class _Stops:
    """Interrupts every phase once, in the middle."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()

    def epoch(self, phase: str, done: float, total: int, rows: int) -> None:
        """See ``Progress``."""
        del rows
        name = phase.partition(" (resumed")[0]
        if 2 * done >= total and name not in self.stopped:
            self.stopped.add(name)
            raise KeyboardInterrupt


def interrupted(spec: VictimSpec, noise: int = 1) -> Victim:
    """Train a victim as ``trained`` does, but stop every phase once and go on."""
    before = os.environ.get(checkpoint.SECONDS)
    os.environ[checkpoint.SECONDS] = "0"  # after every step
    stops = _Stops()
    try:
        with tempfile.TemporaryDirectory() as tmp, torch.random.fork_rng(devices=[]):
            while True:
                torch.manual_seed(noise)  # noqa: TID251 - as above
                with suppress(KeyboardInterrupt):
                    return tiny_builder(tmp, stops).victim(spec)
    finally:
        if before is None:
            del os.environ[checkpoint.SECONDS]
        else:
            os.environ[checkpoint.SECONDS] = before


@dataclass(frozen=True)
class Small:
    """A small victim of a target or a defense, trained once for all checks that look at it.

    Attributes:
        method: the target or the defense.
        plan: returns what the victim is trained from, as the kit's rows are stored now.
    """

    method: Any
    plan: Callable[[], VictimSpec]

    @cached_property
    def made(self) -> tuple[Victim, dict[str, Tensor], dict[str, Tensor]]:
        """The victim, its answers about 40 rows as trained, and those as read from the store."""
        spec, x = self.plan(), tiny_split().pool.x[:40]
        with tempfile.TemporaryDirectory() as tmp, torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)  # noqa: TID251 - as `trained` does
            victim = tiny_builder(tmp).victim(spec)
            return victim, answers(victim, x), answers(tiny_builder(tmp).victim(spec), x)

    @property
    def victim(self) -> Victim:
        """The victim as trained."""
        return self.made[0]

    def same_when_resumed(self, second: Victim) -> None:
        """Compare its weights with those of a training that was interrupted.

        Raises:
            AssertionError: if they differ.
        """
        other = second.model.state_dict()
        for name, value in self.victim.model.state_dict().items():
            assert torch.equal(value, other[name]), (
                f"{name} differs after a training that was interrupted and resumed: keep what "
                "changes while a phase runs in the model, its optimizers or `Training.generators`"
            )

    def same_when_stored(self) -> None:
        """Compare its answers with those from the store, and on rows that are stored as floats.

        Raises:
            AssertionError: if they differ.
        """
        _, first, second = self.made
        for name, answer in first.items():
            assert torch.equal(answer, second[name]), (
                f"{name} differ when it is loaded from the store instead of made: keep all state "
                "in parameters and buffers, and change weights only (no hooks, no attributes)"
            )
        with stored_as_floats():
            real = answers(trained(self.plan()), tiny_split().pool.x[:40])
        for name, answer in first.items():
            assert torch.allclose(answer, real[name], rtol=1e-3, atol=1e-4), (
                f"{name} differ if the same images are stored as floats in [0, 1] instead of whole "
                "numbers: read x through as_float(x, card.scale)"
            )


def answers(victim: Victim, x: Tensor) -> dict[str, Tensor]:
    """Return what a victim answers about these rows."""
    made = {"embeddings": victim.embeddings(x)}
    if "classifier" in victim.model:
        made["posteriors"] = victim.log_posteriors(x).exp()
    return made


def compatible(
    method: Method,
    target: Target,
    defenses: tuple[Defense, ...] = (),
    split: Split | None = None,
) -> bool:
    """Return whether the method is compatible with the kit's cell, or with one of that split."""
    return reason_to_skip(method, tiny_cell(target, defenses, split)) is None


class NotTriedError(Exception):
    """The method cannot run in the kit's cell, so that a check has nothing to try."""


def needs_compatible(method: Method, target: Target, defenses: tuple[Defense, ...] = ()) -> None:
    """Raise ``NotTriedError`` with the reason if the method cannot run in the kit's cell."""
    reason = reason_to_skip(method, tiny_cell(target, defenses))
    if reason is not None:
        raise NotTriedError(reason)


def tiny_cell(
    target: Target, defenses: tuple[Defense, ...] = (), split: Split | None = None
) -> Cell:
    """Return the kit's cell, or one of that split."""
    split = split or tiny_split()
    return Cell(
        split.card, split.protocol, target, defenses, Adversary(), AnyAttack(),
        split.card.sensitive,
    )  # fmt: skip


def copies(value: Any) -> list[Tensor]:
    """Return copies of all tensors in a value."""
    if isinstance(value, torch.Tensor):
        return [value.clone()]
    if isinstance(value, Mapping):
        return [one for held in value.values() for one in copies(held)]
    if is_dataclass(value):
        return [one for f in fields(value) for one in copies(getattr(value, f.name))]
    return []


def untouched(world: World, call: Callable[[World], object], what: str) -> None:
    """Assert that a call leaves the rows of its world as they were."""
    before = copies(world.parts)
    call(world)
    for old, new in zip(before, copies(world.parts), strict=True):
        assert torch.equal(old, new), f"{what} wrote into the world that it was given: copy rows"
