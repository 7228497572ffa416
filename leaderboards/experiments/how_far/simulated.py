# ruff: noqa: INP001 - modules of a script
"""Workers on a simulated clock: the nodes are simulated, every decision is the real scheduler's."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from heapq import heappop, heappush
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from privbench.grid.executors import Workers
from privbench.grid.messages import Done, Lost
from privbench.grid.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from privbench.grid.messages import Message, Node, Setup
    from privbench.grid.planned import Planned

#: All that a schedule needs of a plan where nodes leave no record.
_PLANNED = cast("Any", SimpleNamespace(trained_phases=0))


@dataclass(frozen=True)
class Figures:
    """What a simulation found; seconds are of the simulated clock.

    Attributes:
        makespan: from the start to the end of the last node.
        work: worker-seconds of the nodes, each made once.
        path: seconds of the longest path through the graph.
        wasted: worker-seconds of tries that died.
        workers: how many.
        first: when the first trial ended; infinite if none did.
        lost: nodes that were not made.
    """

    makespan: float
    work: float
    path: float
    wasted: float
    workers: int
    first: float
    lost: int

    @property
    def bound(self) -> float:
        """No order of the nodes is faster, if all are made: work per worker, longest path."""
        return max(self.work / self.workers, self.path)

    @property
    def ratio(self) -> float:
        """Makespan against ``bound``."""
        return self.makespan / self.bound if self.bound else 1.0

    @property
    def utilisation(self) -> float:
        """Share of the workers' time in which a node was made that counts."""
        return self.work / (self.workers * self.makespan) if self.makespan else 1.0


class Simulated(Workers):
    """Workers that need no time: a node ends when the simulated clock says so."""

    timeout = None

    def __init__(
        self,
        workers: int,
        cost: Callable[[Node], float],
        *,
        dies: Callable[[Node, int], float | None] = lambda _node, _attempt: None,
        hand_out: float = 0.0,
        alone: bool = True,
    ) -> None:
        """Start at 0 s.

        Args:
            workers: how many.
            cost: seconds that a node takes.
            dies: for a node and the number of the try, from 0: the share of its seconds after
                which its worker dies; None if it does not.
            hand_out: seconds of the coordinator for each node; it handles one at a time.
            alone: see ``Workers``.
        """
        self.workers, self.cost, self.dies, self.hand_out = workers, cost, dies, hand_out
        self.alone = alone
        self.clock = self.wasted = self.work = 0.0
        self.first = math.inf
        self.made = 0
        self.tries: dict[str, int] = {}
        self.running: list[tuple[float, int, Node, Message]] = []  # a heap
        self.given = 0

    def start(self, setup: Setup) -> None:
        """Nothing to prepare."""

    def stop(self) -> None:
        """Nothing to end."""

    def free(self) -> int:
        """Workers without a node."""
        return self.workers - len(self.running)

    def busy(self) -> int:
        """Workers with a node."""
        return len(self.running)

    def give(self, node: Node, planned: Planned) -> None:
        """Begin a node now."""
        del planned
        attempt = self.tries[node.name] = self.tries.get(node.name, -1) + 1
        seconds, share = self.cost(node), self.dies(node, attempt)
        message: Message = Done(seconds) if share is None else Lost("its worker died")
        self.clock += self.hand_out
        self.given += 1
        lasts = seconds if share is None else share * seconds
        heappush(self.running, (self.clock + lasts, self.given, node, message))
        if share is None:
            self.work += seconds
        else:
            self.wasted += lasts

    def listen(self) -> Iterator[tuple[Node, int, Message]]:
        """Go on to the end of the next node."""
        end, _, node, message = heappop(self.running)
        self.clock = max(self.clock, end)
        if isinstance(message, Done):
            self.made += 1
            if node.role is None:
                self.first = min(self.first, self.clock)
        yield node, 0, message


def simulate(
    nodes: Mapping[str, Node], workers: int, cost: Callable[[Node], float], **more: Any
) -> Figures:
    """Let the scheduler work a graph off; nothing is made."""
    there = Simulated(workers, cost, **more)
    for _ in there.work_off(Schedule(dict(nodes)), _PLANNED):
        pass
    return Figures(
        there.clock, there.work, longest(nodes, cost), there.wasted, workers, there.first,
        len(nodes) - there.made,
    )  # fmt: skip


def longest(nodes: Mapping[str, Node], cost: Callable[[Node], float]) -> float:
    """Seconds of the longest path; a node comes after all that it needs or waits for."""
    ends: dict[str, float] = {}
    for name, node in nodes.items():
        before = max((ends[other] for other in node.needs | node.after), default=0.0)
        ends[name] = before + cost(node)
    return max(ends.values(), default=0.0)


def uniform(*words: object) -> float:
    """A number in (0, 1) that these words determine, on every machine alike."""
    text = "/".join(map(str, words)).encode()
    found = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(found) + 0.5) / 2**64
