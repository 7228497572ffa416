"""Which node of a graph is made next, and what the end of one means for the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privbench.grid.messages import Node


class Schedule:
    """The first trials first, so that results come early; of a trial, the longest path first.

    A node that killed its worker runs once more, alone if need be.
    """

    def __init__(self, nodes: dict[str, Node]) -> None:
        """All nodes of a graph; those that a node needs come before it."""
        self.nodes = nodes
        self.left = {name: node.needs | node.after for name, node in nodes.items()}
        self.needed_by: dict[str, list[str]] = defaultdict(list)
        self.before: dict[str, list[str]] = defaultdict(list)
        for node in nodes.values():
            for needed in node.needs:
                self.needed_by[needed].append(node.name)
            for earlier in node.needs | node.after:
                self.before[earlier].append(node.name)
        self.depth = depths(nodes)
        self.order = {name: i for i, name in enumerate(nodes)}
        self.first = dict(self.order)  # place of the first trial that a node is for
        for name in reversed(self.order):  # a node comes after all that it needs
            if nodes[name].role is not None:
                served = (self.first[later] for later in self.before[name])
                self.first[name] = min(served, default=self.order[name])
        self.pending = set(nodes)
        self.kinds = Counter(node.kind for node in nodes.values())  # of pending nodes
        self.made = Counter[str]()  # by kind
        self.seconds: dict[str, float] = defaultdict(float)  # that these took
        self.ready: list[tuple[int, int, int, str]] = []  # a heap
        self.suspects: list[str] = []  # each killed a worker once
        self.suspected: set[str] = set()
        for name, left in self.left.items():
            if not left:
                self._push(name)

    @property
    def over(self) -> bool:
        """Whether every node is made or given up."""
        return not self.pending

    def next(self, busy: int, *, alone: bool = True) -> Node | None:
        """The node to make now, if any.

        Args:
            busy: how many workers make a node now.
            alone: whether suspects wait until no other node is ready and all workers are idle;
                else they come when it is their turn.
        """
        while self.suspects and not alone:
            self._push(self.suspects.pop())
        while self.ready:
            name = heappop(self.ready)[-1]
            if name in self.pending:
                return self.nodes[name]
        if self.suspects and not busy:
            return self.nodes[self.suspects.pop()]
        return None

    def wait(self, node: Node) -> None:
        """Hand a node back that cannot be made yet."""
        if node.name in self.suspected:
            self.suspects.append(node.name)
        else:
            self._push(node.name)

    def done(self, node: Node, seconds: float) -> None:
        """A node is made; ``seconds`` is what it took."""
        self.made[node.kind] += 1
        self.seconds[node.kind] += seconds
        self._settled(node.name)

    def died(self, node: Node, *, again: bool) -> list[str]:
        """A worker died over a node. Try once more if ``again``, then give up what needs it."""
        if again and node.name not in self.suspected:
            self.suspected.add(node.name)
            self.suspects.append(node.name)
            return []
        return self.given_up(node)

    def given_up(self, node: Node) -> list[str]:
        """Give up a node and all that needs it; digests of the trials among them."""
        lost, todo = set[str](), [node.name]
        while todo:
            name = todo.pop()
            if name in self.pending:
                lost.add(name)
                todo += self.needed_by[name]
        self.pending -= lost
        ordered = sorted(lost, key=self.order.__getitem__)
        for name in ordered:
            self._settled(name)
        return [name for name in ordered if self.nodes[name].role is None]

    def seconds_left(self, workers: int) -> float | None:
        """Seconds until all is made, from the nodes measured so far; None before the first."""
        if not self.made:
            return None
        usual = {kind: self.seconds[kind] / n for kind, n in self.made.items()}
        other = sum(self.seconds.values()) / self.made.total()
        return sum(n * usual.get(kind, other) for kind, n in self.kinds.items()) / workers

    def _push(self, name: str) -> None:
        heappush(self.ready, (self.first[name], -self.depth[name], self.order[name], name))

    def _settled(self, name: str) -> None:
        """Nothing waits for the node any longer."""
        self.pending.discard(name)
        self.kinds[self.nodes[name].kind] -= 1
        for later in self.before[name]:
            self.left[later].discard(name)
            if not self.left[later] and later in self.pending:
                self._push(later)


def depths(nodes: dict[str, Node]) -> dict[str, int]:
    """Return the number of nodes on the longest path from each node to a trial."""
    longest = dict.fromkeys(nodes, 1)
    for name in reversed(list(nodes)):  # a node comes after all that it needs
        for needed in nodes[name].needs | nodes[name].after:
            longest[needed] = max(longest[needed], longest[name] + 1)
    return longest
