"""What contexts account for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from privbench.ground.store.store import Store
from privbench.measure.methods.context import TargetContext
from privbench.testing import CPU, TinyImages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest
    from torch import Tensor


class _Clock:
    now = 0.0


def test_seconds_of_shared_work_count_once_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own: 10 s of work, of which another computation, shared by all, took 7."""
    clock = _Clock()
    monkeypatch.setattr("privbench.measure.methods.context.time.perf_counter", lambda: clock.now)
    data, store = TinyImages(), Store(tmp_path)

    def fresh() -> TargetContext:
        return TargetContext(
            card=data.card(None), protocol=data.protocols["default"], sensitive=(), device=CPU,
            store=store, seed=1, scope="s",
        )  # fmt: skip

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
        ctx = fresh()
        made, timing = ctx.timed(partial(work, ctx))
        assert made == 2
        assert timing["seconds"] == 1
        assert sorted(timing["spent"].values()) == [2, 7]
        assert (ctx.spent, ctx.waited) == ({}, 0.0)
        assert clock.now == (10 if first else 11)
