"""Hyperparameters at the ends of their ranges: a dry run refuses or plans them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from privbench.plugins.registry import Registry

pytestmark = pytest.mark.timeout(0)  # each case has a limit of its own

ENDS: tuple[Any, ...] = (
    1_000_000,
    1e9,
    0,
    1,
    2,
    -1,
    1e-9,
    1e-320,
    0.999999,
    "x",
    [1],
    [],
    [1_000_000] * 3,
)


def test_extremes(fuzz: Any, registry: Registry) -> None:
    spots = [
        (kind, method.name, field)
        for kind in ("target", "defense", "attack")
        for method in registry.all(kind)
        for field in method.hyperparameters()
    ]
    fuzz.count = max(1, fuzz.count // 5)  # each builds networks
    for chance in fuzz.cases():
        kind, name, field = chance.choice(spots)
        setting = f"{name}.{field}={chance.choice(ENDS)}"
        args = ["run", "--dry-run", "--set", setting, f"--{kind}", name]
        if kind != "attack":
            args += ["--attack", "metric-loss"]
        if kind != "target":
            args += ["--target", chance.choice(("supervised", "simclr"))]
        fuzz.command(args)
