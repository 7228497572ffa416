"""What contexts account for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.ground.errors import PluginError
from privbench.ground.store.store import Store
from privbench.measure.methods.context import TargetContext
from privbench.testing import CPU, AnyAttack, TinyImages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True)
class Sized(AnyAttack):
    """Has a hyperparameter, and computes with it."""

    k: int = 3

    def tensor(self) -> Mapping[str, Tensor]:
        return {"a": torch.tensor([float(self.k)])}

    def forgets(self, ctx: TargetContext) -> float:
        return float(ctx.once("size", self.tensor)["a"])

    def hides(self, ctx: TargetContext) -> float:
        return float(ctx.once("size", lambda: self.tensor())["a"])  # noqa: PLW0108

    def names(self, ctx: TargetContext) -> float:
        return float(ctx.once("size", self.tensor, k=self.k)["a"])


def context(store: Store) -> TargetContext:
    data = TinyImages()
    return TargetContext(
        card=data.card(None), protocol=data.protocols["default"], sensitive=(), device=CPU,
        store=store, seed=1, scope="s",
    )  # fmt: skip


def test_shared_work_has_what_it_computes_with_in_its_key(tmp_path: Path) -> None:
    ctx = context(Store(tmp_path))
    assert [Sized(k).names(ctx) for k in (2, 3, 2)] == [2, 3, 2]
    for asked in (Sized.forgets, Sized.hides):
        with pytest.raises(PluginError, match=r"once\('size'\) computes with .*no hyperparameter"):
            asked(Sized(), ctx)

    def scaled(by: float, one: Tensor) -> Mapping[str, Tensor]:
        return {"a": by * one}

    found = []
    for i in (2, 3):
        found.append(ctx.once("loop", lambda: {"a": torch.full((1,), float(i))})["a"])  # noqa: B023
        found.append(ctx.once("partial", partial(scaled, i, torch.ones(1)))["a"])
        found.append(ctx.once("inner", around(i))["a"])
    assert torch.cat(found).tolist() == [2, 2, 2, 3, 3, 3]


def around(i: int) -> Any:
    return lambda: {"a": torch.full((1,), float(i))}


class _Clock:
    now = 0.0


def test_seconds_of_shared_work_count_once_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own: 10 s of work, of which another computation, shared by all, took 7."""
    clock = _Clock()
    monkeypatch.setattr("privbench.measure.methods.context.time.perf_counter", lambda: clock.now)
    store = Store(tmp_path)

    def inner() -> Mapping[str, Tensor]:
        clock.now += 7
        return {"a": torch.ones(1)}

    def work(ctx: TargetContext) -> Tensor:
        found = ctx.once("outer", lambda: {"b": outer(ctx)})["b"]
        clock.now += 1
        return found

    def outer(ctx: TargetContext) -> Tensor:
        clock.now += 2
        return ctx.once("inner", inner)["a"] + 1

    for first in (True, False):
        ctx = context(store)
        made, timing = ctx.timed(partial(work, ctx))
        assert made == 2
        assert timing["seconds"] == 1
        assert sorted(timing["spent"].values()) == [2, 7]
        assert (ctx.spent, ctx.waited) == ({}, 0.0)
        assert clock.now == (10 if first else 11)
