"""Victims that the kit trains: tiny, for a few epochs."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import torch

from privbench.methods.adversary import Adversary
from privbench.methods.cell import Cell
from privbench.methods.requirements import reason_to_skip
from privbench.testing.fixtures import (
    AnyAttack,
    tiny_builder,
    tiny_spec,
    tiny_split,
)

if TYPE_CHECKING:
    from privbench.method import Method
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target
    from privbench.victims.served import Victim


def shortened(method: Any) -> Any:
    """Return the method with at most three epochs."""
    fields = {n: v for n, v in method.hyperparameters().items() if isinstance(v, int)}
    few = {name: min(value, 3) for name, value in fields.items() if name.endswith("epochs")}
    return method.replace(**few)


def trained(target: Target, defenses: tuple[Defense, ...] = (), noise: int = 0) -> Victim:
    """Train a victim while the global generator has that seed."""
    with tempfile.TemporaryDirectory() as tmp, torch.random.fork_rng(devices=[]):
        torch.manual_seed(noise)  # noqa: TID251 - to see that nothing depends on it
        return tiny_builder(tmp).victim(tiny_spec(target, defenses))


def compatible(method: Method, target: Target, defenses: tuple[Defense, ...] = ()) -> bool:
    """Return whether the method is compatible with the kit's cell."""
    split = tiny_split()
    card = Cell(
        split.card, split.protocol, target, defenses, Adversary(), AnyAttack(),
        split.card.sensitive,
    )  # fmt: skip
    return reason_to_skip(method, card) is None
