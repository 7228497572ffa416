"""The scheduler on a simulated clock: exact small cases, bounds that hold for every order."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbench.grid.messages import Node, Role
from privbench.grid.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "leaderboards" / "experiments" / "how_far"


@pytest.fixture(scope="module")
def simulated() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("simulated")
    sys.path.remove(str(FOLDER))


def _nodes(needs: dict[str, set[str]], trials: set[str] | None = None) -> dict[str, Node]:
    stands_for: Any = SimpleNamespace()
    last = trials or set()
    return {
        name: Node(name, stands_for, None if name in last else Role("victim"), name[0], before)
        for name, before in needs.items()
    }


def _chain(n: int) -> dict[str, Node]:
    return _nodes({f"c{i}": {f"c{i - 1}"} if i else set() for i in range(n)})


def _apart(n: int) -> dict[str, Node]:
    return _nodes({f"a{i}": set() for i in range(n)})


def test_a_chain_takes_its_length_with_any_number_of_workers(simulated: Any) -> None:
    for workers in (1, 3, 64):
        found = simulated.simulate(_chain(7), workers, lambda _: 2.0)
        assert (found.makespan, found.path, found.work) == (14.0, 14.0, 14.0)
        assert found.utilisation == pytest.approx(1 / workers)
        assert found.ratio == 1.0


@pytest.mark.parametrize(("nodes", "workers"), [(12, 4), (13, 4), (3, 8), (64, 64), (65, 64)])
def test_equal_nodes_take_as_many_rounds_as_they_fill(
    simulated: Any, nodes: int, workers: int
) -> None:
    found = simulated.simulate(_apart(nodes), workers, lambda _: 5.0)
    assert found.makespan == 5.0 * math.ceil(nodes / workers)
    assert found.utilisation == pytest.approx(nodes * 5.0 / (workers * found.makespan))


def test_a_diamond_waits_for_its_longer_side(simulated: Any) -> None:
    nodes = _nodes({"top": set(), "left": {"top"}, "right": {"top"}, "end": {"left", "right"}},
                   {"end"})  # fmt: skip
    seconds = {"top": 1.0, "left": 2.0, "right": 5.0, "end": 1.0}
    found = simulated.simulate(nodes, 2, lambda node: seconds[node.name])
    assert (found.makespan, found.path, found.work, found.first) == (7.0, 7.0, 9.0, 7.0)


def test_a_node_given_up_takes_along_what_needs_it_and_not_what_waits_for_it() -> None:
    nodes = _nodes({"lost": set(), "needs": {"lost"}, "waits": set()}, {"needs", "waits"})
    nodes["waits"].after.add("lost")
    schedule = Schedule(nodes)
    schedule.given_up(nodes["lost"])
    assert schedule.pending == {"waits"}
    assert schedule.next(busy=0) is nodes["waits"]


def test_the_coordinator_hands_out_one_node_at_a_time(simulated: Any) -> None:
    found = simulated.simulate(_apart(10), 100, lambda _: 1.0, hand_out=0.5)
    assert found.makespan == 6.0, "the last of ten begins after 5 s"


@given(
    seconds=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=25),
    workers=st.integers(1, 6),
    edges=st.sets(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=40),
)
def test_no_schedule_beats_the_bound_or_exceeds_grahams(
    simulated: Any, seconds: list[float], workers: int, edges: set[tuple[int, int]]
) -> None:
    n = len(seconds)
    needs = {f"x{j}": {f"x{i}" for i, k in edges if k == j and i < j} for j in range(n)}
    cost = {f"x{i}": value for i, value in enumerate(seconds)}
    found = simulated.simulate(_nodes(needs), workers, lambda node: cost[node.name])
    assert found.work == pytest.approx(sum(seconds))
    assert found.utilisation <= 1 + 1e-12
    assert found.makespan >= found.bound * (1 - 1e-12)
    graham = found.work / workers + (1 - 1 / workers) * found.path
    assert found.makespan <= graham * (1 + 1e-12)
    assert found.lost == 0


def test_second_tries_are_alone_on_one_machine_and_side_by_side_on_several(simulated: Any) -> None:
    nodes = _apart(8)
    dies = lambda _node, attempt: None if attempt else 0.5  # noqa: E731
    alone = simulated.simulate(nodes, 4, lambda _: 2.0, dies=dies, alone=True)
    beside = simulated.simulate(nodes, 4, lambda _: 2.0, dies=dies, alone=False)
    assert alone.makespan == 2 * 1.0 + 8 * 2.0
    assert beside.makespan == 2 * 1.0 + 2 * 2.0
    assert alone.wasted == beside.wasted == 8.0


def test_a_second_try_on_several_machines_is_not_left_to_the_end(simulated: Any) -> None:
    nodes = _chain(4) | _apart(16)
    dies = lambda node, attempt: 0.5 if node.name == "c0" and not attempt else None  # noqa: E731
    found = simulated.simulate(nodes, 2, lambda _: 2.0, dies=dies, alone=False)
    assert found.makespan == (20 * 2.0 + 1.0 + 1.0) / 2, "the chain ends with the rest, not after"


def test_the_first_trial_is_over_before_a_longer_path_of_the_next_begins() -> None:
    victim = Role("victim")
    nodes = {
        name: Node(name, name[0], role=victim if name[1:] else None, kind="", needs=needs)
        for name, needs in (
            ("a1", set[str]()), ("a", {"a1"}), ("b1", set()), ("b2", {"b1"}), ("b", {"b2", "a1"}),
        )
    }  # fmt: skip
    schedule, made = Schedule(nodes), []
    while node := schedule.next(0):
        made.append(node.name)
        schedule.done(node, 1.0)
    assert made == ["a1", "a", "b1", "b2", "b"]


def test_seconds_left_are_the_means_of_each_kind_at_a_cost_that_does_not_grow() -> None:
    nodes = _nodes({"a1": set(), "a2": set(), "b1": set(), "b2": set(), "c1": set()})
    schedule = Schedule(nodes)
    for name, seconds in (("a1", 2.0), ("b1", 10.0)):
        schedule.done(nodes[name], seconds)
    assert schedule.seconds_left(2) == (2.0 + 10.0 + 6.0) / 2, "an unknown kind: the mean of all"
    assert set(schedule.seconds) == {"a", "b"}
    assert all(isinstance(seconds, float) for seconds in schedule.seconds.values())
