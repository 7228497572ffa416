"""HopSkipJump: exact distances of linear classifiers, counts of queries, order of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from privbench.toolbox import hopskipjump
from privbench.toolbox.hopskipjump import Boundary, boundary


class Linear:
    """Class 1 where w x + b > 0; remembers what it was asked."""

    def __init__(self, w: Tensor, b: float) -> None:
        self.w, self.b = w.double(), b
        self.asked = 0
        self.low, self.high = math.inf, -math.inf

    def __call__(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        self.asked += len(x)
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        return self.margin(x).gt(0).long()

    def distance(self, x: Tensor) -> Tensor:
        distance: Tensor = self.margin(x).abs() / torch.linalg.vector_norm(self.w)
        return distance

    def margin(self, x: Tensor) -> Tensor:
        return x.double() @ self.w + self.b


def cube(n: int, d: int, seed: int = 0) -> tuple[Linear, Tensor, Tensor]:
    """A plane through the middle of the unit cube, and rows in its inner part."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(d, generator=generator)
    x = 0.3 + 0.4 * torch.rand(n, d, generator=generator)
    return Linear(w, float(-w.sum() / 2)), x, torch.rand(50, d, generator=generator)


def run(decide: Any, x: Tensor, y: Tensor, starts: Tensor, **more: Any) -> Boundary:
    given = {"iterations": 7, "generator": torch.Generator().manual_seed(3), **more}
    return boundary(decide, x, y, starts, **given)


def test_distance_to_a_line() -> None:
    plane = Linear(torch.tensor([3.0, 4.0]), -5.0)
    x, start = torch.tensor([[3.0, 4.0]]), torch.tensor([[9.0, 9.0], [-4.0, 1.0], [0.0, 0.0]])
    for iterations in (7, 20):
        found = run(plane, x, torch.tensor([1]), start, iterations=iterations, clip=None)
        assert 4 <= float(found.distance) <= 4 * 1.05
    # from the start (-4, 1), the first of another class, without any refinement: the bisection
    # meets 3u + 4v = 5 at (3, 4) + s (-7, -3) with s = 20 / 33
    raw = run(plane, x, torch.tensor([1]), start, iterations=0, clip=None)
    assert float(raw.distance) == pytest.approx(20 / 33 * math.hypot(7, 3), rel=0.01)


@pytest.mark.parametrize("d", [2, 64])
def test_distance_in_the_cube_is_a_close_upper_bound(d: int) -> None:
    plane, x, starts = cube(40, d)
    y = plane(x)
    exact = plane.distance(x)
    found = run(plane, x, y, starts, iterations=20)
    assert (found.distance >= exact * (1 - 1e-5)).all()
    far = exact > 0.02
    assert float((found.distance / exact)[far].median()) < 1.05
    few = run(plane, x, y, starts, iterations=1)
    assert float(few.distance.sum()) > float(found.distance.sum())


def test_a_step_goes_towards_the_other_class_where_all_directions_agree() -> None:
    """Every input but the row's own is of another class, so no vote differs from another."""
    x = torch.tensor([[0.2, 0.7]])

    def decide(inputs: Tensor) -> Tensor:
        return (inputs - x).abs().amax(1).gt(1e-6).long()

    walk = hopskipjump._Walk(decide, x.double(), torch.zeros(1).long(), None, (0.0, 1.0))
    walk.point[:] = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    drawn = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    want = torch.nn.functional.normalize(drawn, dim=1).sum(0)  # as they stay in the range
    (normal,) = walk.normals(torch.tensor([0]), 5, 1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(normal, want / want.norm())


def test_a_step_is_halved_until_it_ends_in_another_class() -> None:
    x = torch.tensor([[0.2]])
    walk = hopskipjump._Walk(
        lambda inputs: ((inputs > 0.5) & (inputs < 0.705)).long()[:, 0], x.double(),
        torch.zeros(1).long(), None, (0.0, 1.0),
    )  # fmt: skip
    walk.point[:] = 0.6
    walk.step(torch.tensor([0]), torch.ones(1, 1).double(), 1)  # 1.0, 0.8 and 0.7
    assert float(walk.point) == pytest.approx(0.7)
    assert walk.queries.tolist() == [1 + 3]
    walk.step(torch.tensor([0]), -torch.ones(1, 1).double(), 1)  # back: 0.2, 0.45 and 0.575
    assert float(walk.point) == pytest.approx(0.575)
    walk.decide = lambda inputs: torch.zeros(len(inputs)).long()
    walk.step(torch.tensor([0]), torch.ones(1, 1).double(), 1)
    assert float(walk.point) == pytest.approx(0.575)
    assert walk.queries.tolist() == [1 + 3 + 3 + 30]  # no more halvings than that


def test_inputs_stay_in_the_range() -> None:
    plane, _, starts = cube(1, 6)
    x = torch.rand(30, 6, generator=torch.Generator().manual_seed(1)).round()  # corners
    y = plane(x)
    found = run(plane, x, y, starts)
    assert plane.low >= 0
    assert plane.high <= 1
    free = run(plane, x, y, starts, clip=None)
    assert plane.low < 0
    assert (free.distance >= plane.distance(x) * (1 - 1e-5)).all()
    assert float(found.distance.sum()) > float(free.distance.sum())  # the nearest may be outside


def test_queries_for_normals() -> None:
    plane, x, starts = cube(3, 8)
    y = plane(x)
    for iterations, queries in ((7, 1345), (40, 17145), (50, 23883)):
        found = run(plane, x, y, starts, iterations=iterations)
        assert found.estimating.tolist() == [queries] * 3
    capped = run(plane, x, y, starts, iterations=7, init_eval=10, max_eval=20)
    assert capped.estimating.tolist() == [10 + 14 + 17 + 20 * 4] * 3


def test_queries_add_up_to_what_was_asked() -> None:
    plane, x, starts = cube(20, 64)
    y = plane(x)
    y[:4] = 1 - y[:4]
    plane.asked = 0
    found = run(plane, x, y, starts)
    assert plane.asked == len(starts) + int(found.queries.sum())
    assert found.queries[:4].tolist() == [1] * 4  # misclassified: only their own label
    assert found.distance[:4].tolist() == [0.0] * 4
    # own label, 7 normals, 8 bisections of ten, 7 steps at least
    assert int(found.queries[4:].min()) >= 1 + 1345 + 80 + 7


def test_unknown_labels_stand_for_predicted_ones() -> None:
    plane, x, starts = cube(10, 8)
    known = run(plane, x, plane(x), starts)
    unknown = run(plane, x, torch.full((10,), -1), starts)
    assert torch.equal(known.distance, unknown.distance)
    assert (unknown.distance > 0).all()


def test_no_start_is_a_failure_and_nothing_is_dropped() -> None:
    plane, x, starts = cube(30, 8)
    y = plane(x)
    one_side = starts[plane(starts) == 1]
    found = run(plane, x, y, one_side)
    assert torch.equal(found.distance.isinf(), y == 1)
    assert (found.distance[y == 0] > 0).all()
    assert (found.queries[y == 1] == 1).all()


@pytest.mark.parametrize("budget", [1, 5, 15, 115, 150, 400, 1440])
def test_budget_holds_for_every_row(budget: int) -> None:
    plane, x, starts = cube(30, 64)
    y = plane(x)
    found = run(plane, x, y, starts, budget=budget)
    assert int(found.queries.max()) <= budget
    assert found.distance.isfinite().all()
    assert (found.distance >= plane.distance(x) * (1 - 1e-5)).all()
    assert (found.distance >= run(plane, x, y, starts).distance).all()


def test_a_permuted_question_and_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, x, starts = cube(12, 16)
    y = plane(x)
    whole = run(plane, x, y, starts, iterations=3).distance
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = run(plane, x[order], y[order], starts, iterations=3).distance
    torch.testing.assert_close(moved, whole[order])
    for directions in (500, 64):  # rows one by one, and directions in parts too
        monkeypatch.setitem(hopskipjump.BLOCK, "cpu", 8 * 16 * directions)
        parts = run(plane, x, y, starts, iterations=3)
        torch.testing.assert_close(parts.distance, whole)
        assert set(parts.estimating.tolist()) == {100 + 141 + 173}
    monkeypatch.setitem(hopskipjump.BLOCK, "cpu", 1)  # a direction is never split
    first = run(plane, x[:1], y[:1], starts, iterations=1)
    assert first.estimating.tolist() == [100]


def test_scaled_problem_has_scaled_distances() -> None:
    """Without a range nothing has a scale but the first radius, 0.1; far rows do not see it."""
    plane, x, starts = cube(10, 4)
    y = plane(x)
    middle = torch.full((4,), 0.5)
    wide = Linear(plane.w, plane.b)
    big, far = 100 * (x - middle) + middle, 100 * (starts - middle) + middle
    found = run(wide, big, y, far, clip=(-49.5, 50.5), iterations=10)
    near = run(plane, x, y, starts, clip=(0.0, 1.0), iterations=10)
    torch.testing.assert_close(found.distance / 100, near.distance, rtol=0.05, atol=1e-3)


def test_curved_boundary() -> None:
    """A ball of radius 0.3 about the centre of the cube; the row at distance r is 0.3 - r off."""
    d = 10
    generator = torch.Generator().manual_seed(0)
    away = torch.randn(20, d, generator=generator)
    r = torch.linspace(0.02, 0.25, 20)
    x = 0.5 + r[:, None] * away / away.norm(dim=1, keepdim=True)

    def ball(inputs: Tensor) -> Tensor:
        inner: Tensor = torch.linalg.vector_norm(inputs - 0.5, dim=1) < 0.3
        return inner.long()

    starts = torch.rand(20, d, generator=generator)
    found = run(ball, x, torch.ones(20).long(), starts, iterations=20)
    exact = (0.3 - r).double()
    assert (found.distance >= exact * (1 - 1e-4)).all()
    assert float((found.distance / exact).max()) < 1.15
