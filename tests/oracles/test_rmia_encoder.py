"""RMIA on encoders: ratios and shares by hand, and encoders that put members elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privbench import Examples, MembershipQuestion
from privbench.measure.games.metrics import auc
from privbench.toolbox.likelihood import Evidence
from privbench_plugins.attacks.lira_encoder import LiRAEncoder
from privbench_plugins.attacks.rmia_encoder import RMIAEncoder, dominated, ratios

N, Z, WIDTH, CLASSES = 400, 60, 32, 4


def evidence(asked: list[float], known: list[list[float]], inside: list[list[int]]) -> Evidence:
    signals = torch.tensor(asked).double(), torch.tensor(known).double()
    return Evidence(*signals, torch.tensor(inside).bool())


def test_rows_that_lack_shadows_of_a_sort_take_the_usual_difference() -> None:
    # rows: held by the first; by the second; by none; by both. Members are 2 and 4 higher: 3.
    x = evidence([3, 3, 3, 3], [[2, 0, 1, 5], [0, 4, 2, 6]], [[1, 0, 0, 1], [0, 1, 0, 1]])
    z = evidence([1, 1], [[0, 9], [2, 0]], [[0, 1], [0, 0]])
    of_x, of_z = ratios(x, z)
    assert of_x.tolist() == [3 - 1, 3 - 2, 3 - (1.5 + 1.5), 3 - (5.5 - 1.5)]
    assert of_z.tolist() == [1 - (1 + 1.5), 1 - (0 + 1.5)]  # who holds a z does not count for it


def test_a_z_that_all_shadows_hold_is_left_out() -> None:
    x = evidence([3], [[2], [0]], [[1], [0]])
    z = evidence([1, 1], [[0, 9], [2, 0]], [[0, 1], [0, 1]])
    assert len(ratios(x, z)[1]) == 1


@given(st.lists(st.integers(-3, 3), min_size=1), st.lists(st.integers(-3, 3), max_size=20))
def test_share_is_that_of_all_pairs_and_then_the_row_s_own_ratio(
    x: list[int], z: list[int]
) -> None:
    of_x, of_z = (torch.tensor(part, dtype=torch.float64) for part in (x, z))
    found = dominated(of_x, of_z)
    pairs = [sum(one >= other for other in z) for one in x]
    assert (found * (len(z) + 1)).floor().tolist() == pairs
    order = torch.tensor(x).argsort(stable=True)
    assert (found[order].diff()[torch.tensor(x)[order].diff() > 0] > 0).all()


class _Placed:
    """An encoder that moves its members by chance by ``far``; other encoders move other rows."""

    def __init__(self, held: Tensor, draw: torch.Generator, far: float) -> None:
        self.x = torch.randn(N + Z, WIDTH, generator=draw).double()
        self.x[:N] += held.double().unsqueeze(1) * far * torch.randn(N, WIDTH, generator=draw)
        self.x *= torch.linspace(0.5, 2, N + Z)[:, None]  # some rows always lie farther out

    def embeddings(self, rows: Examples) -> Tensor:
        return self.x[rows.index]


def found(
    attack: Any, k: int, far: float, *, labels: bool = True, own: bool = True, seed: int = 8
) -> Any:
    """Return the answer of an attack with k shadows, and which rows are members."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (N + Z,), generator=draw)
    every = Examples.of(torch.zeros(N + Z, 1), y, scale=1.0)
    sets = [torch.randperm(N, generator=draw) < N // 2 for _ in range(k + 1)]
    made = [_Placed(held, draw, far) for held in sets]

    def world(held: Tensor) -> Any:
        held = torch.cat([held, torch.zeros(Z, dtype=torch.bool)])
        return SimpleNamespace(contains=lambda rows: held[rows.index], members=every.select(held))

    rows, z = every.select(slice(N)), every.select(slice(N, None))
    rows, z = (part if some else part.with_y(torch.full_like(part.y, -1))
               for part, some in ((rows, labels), (z, own)))  # fmt: skip
    shadows = [SimpleNamespace(oracle=one, world=world(held))
               for one, held in zip(made[1:], sets[1:], strict=True)]  # fmt: skip
    ctx: Any = SimpleNamespace(
        shadows=shadows,
        card=SimpleNamespace(kind="table", classes=CLASSES),
        auxiliary=z,
        uniform=lambda rows, n, _: torch.rand(len(rows), n, generator=draw),
    )
    return attack.answer(made[0], MembershipQuestion(rows, "encoder"), ctx), sets[0]


def value(*args: Any, **named: Any) -> float:
    answer, member = found(*args, **named)
    of = auc(answer.scores.numpy(), member.numpy()).value
    assert of is not None
    return of


def test_with_two_shadows_it_finds_more_than_a_likelihood_ratio() -> None:
    mine = [value(RMIAEncoder(k=2), 2, 0.7, seed=seed) for seed in range(6)]
    other = [value(LiRAEncoder(k=2, online=True), 2, 0.7, seed=seed) for seed in range(6)]
    assert sum(mine) / 6 > sum(other) / 6 + 0.005


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_it_needs_no_labels(labels: bool, own: bool) -> None:
    answer, member = found(RMIAEncoder(), 16, 0.8, labels=labels, own=own)
    assert answer.scores.isfinite().all()
    assert answer.notes["population"] == Z
    assert (answer.decisions == member).double().mean() > 0.65
    assert value(RMIAEncoder(), 16, 0.8, labels=labels, own=own) > 0.75
    assert abs(value(RMIAEncoder(), 16, 0.0, labels=labels, own=own) - 0.5) < 0.08
