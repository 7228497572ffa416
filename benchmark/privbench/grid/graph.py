"""What has to be made for a grid, as a graph that is known before anything is made.

A node is a run of stages of one victim that the same victims share, or a trial. An edge says that
one node needs what another one makes. Nodes are named by the key of their last stage, so two
trials that need the same victim need the same node, and nothing is made twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.grid.cell import Trial
    from privbench.grid.trial import TrialRunner
    from privbench.victims.build import Builder
    from privbench.victims.spec import VictimSpec


@dataclass(frozen=True)
class Role:
    """Which victim of a trial: ``victim``, ``null``, ``shadow 3``; or one that it trains inside."""

    name: str
    inner: int | None = None


@dataclass
class Node:
    """Something to make.

    Attributes:
        name: digest of the key of its last stage, or of the trial.
        trial: that it is for; of several the first.
        role: of the victim in the trial; None for the trial itself.
        text: for people.
        needs: names of nodes that come before.
    """

    name: str
    trial: Trial
    role: Role | None
    text: str
    needs: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Chain:
    """A victim's stages that leave an artifact: digests of keys, names, and if held.

    ``inner`` holds the identities of victims that have to be trained before.
    """

    digests: tuple[str, ...]
    names: tuple[str, ...]
    held: tuple[bool, ...]
    inner: tuple[str, ...]


def graph(trials: Sequence[Trial], runner: TrialRunner) -> dict[str, Node]:
    """Plan the trials: all nodes by name, those that a node needs before it.

    A trial whose victims cannot be planned is a node without needs: it fails as data when it runs.
    """
    planner = _Planner(runner.builder)
    wanted: list[tuple[Trial, dict[Role, str]]] = []
    for trial in trials:
        try:
            roles = planner.roles(runner.specs(trial))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - running the trial says what is wrong, in its record
            roles = {}
        wanted.append((trial, roles))
    users = Counter(
        digest for chain in planner.chains.values() for digest in chain.digests
    )  # by distinct victims
    nodes: dict[str, Node] = {}
    for trial, roles in wanted:
        last = {
            role: planner.nodes(nodes, users, (trial, role), identity)
            for role, identity in sorted(roles.items(), key=lambda item: item[0].inner is None)
        }
        needs = {name for role, name in last.items() if name and role.inner is None}
        nodes[trial.digest] = Node(trial.digest, trial, None, "trial", needs)
    return nodes


def depths(nodes: dict[str, Node]) -> dict[str, int]:
    """How many nodes the longest path from each node to a trial has."""
    found = dict.fromkeys(nodes, 1)
    for name in reversed(list(nodes)):  # a node comes after all that it needs
        for needed in nodes[name].needs:
            found[needed] = max(found[needed], found[name] + 1)
    return found


class _Planner:
    """Plans each distinct victim once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.chains: dict[str, _Chain] = {}

    def roles(self, specs: dict[str, VictimSpec]) -> dict[Role, str]:
        """Identity of the chain of each victim that a trial needs, inner ones included."""
        found: dict[Role, str] = {}
        for name, spec in specs.items():
            chain = self._chain(spec)
            for i, inner in enumerate(chain.inner):
                found[Role(name, i)] = inner
            found[Role(name)] = spec.identity
        return found

    def _chain(self, spec: VictimSpec) -> _Chain:
        if spec.identity not in self.chains:
            stages = [stage for stage in self.builder.draft(spec).stages if stage.stored]
            self.chains[spec.identity] = _Chain(
                tuple(stage.key.digest for stage in stages),
                tuple(stage.name for stage in stages),
                tuple(stage.key in self.builder.store for stage in stages),
                tuple(
                    self._planned(inner)
                    for stage in stages
                    if stage.key not in self.builder.store
                    for inner in stage.inner
                ),
            )
        return self.chains[spec.identity]

    def _planned(self, spec: VictimSpec) -> str:
        self._chain(spec)
        return spec.identity

    def nodes(
        self,
        nodes: dict[str, Node],
        users: Counter[str],
        what: tuple[Trial, Role],
        identity: str,
    ) -> str | None:
        """Add what is missing of a chain; return the name of its last node, None if all is there.

        A run of stages ends where the number of victims that share them changes.
        """
        (trial, role), chain = what, self.chains[identity]
        needs = {
            name
            for inner in chain.inner
            if (name := self._last(nodes, self.chains[inner])) is not None
        }
        last: str | None = None
        missing = [i for i, held in enumerate(chain.held) if not held]
        for run in _runs(missing, [users[digest] for digest in chain.digests]):
            name = chain.digests[run[-1]]
            if name not in nodes:
                text = f"{role.name}: {', '.join(chain.names[i] for i in run)}"
                nodes[name] = Node(name, trial, role, text, set(needs))
            needs, last = {name}, name
        return last

    def _last(self, nodes: dict[str, Node], chain: _Chain) -> str | None:
        return next((d for d in reversed(chain.digests) if d in nodes), None)


def _runs(missing: Iterable[int], users: Sequence[int]) -> list[list[int]]:
    """Cut positions into runs that equally many victims share.

    >>> _runs([0, 1, 2, 3], [9, 9, 2, 1])
    [[0, 1], [2], [3]]
    """
    runs: list[list[int]] = []
    for i in missing:
        if runs and users[runs[-1][-1]] == users[i]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs
