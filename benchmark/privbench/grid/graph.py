"""The graph of everything that a grid needs; it is known before anything is made.

A node is a trial, the baselines of a question, or consecutive stages of a victim. Stages are in one
node if the same victims share them. An edge says that one node needs the result of another. A node
is named by the key of its last stage, so two trials that need the same victim need the same node,
and nothing is made twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privbench.grid.messages import Node, Role
from privbench.grid.origins import code_of, sealed
from privbench.measure.training.phase import Phase
from privbench.measure.victims.stages import LearnedRelease

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from privbench.grid.trial import Trial
    from privbench.grid.trial_runner import TrialRunner
    from privbench.ground.store.store import Key
    from privbench.measure.victims.build import Builder
    from privbench.measure.victims.spec import VictimSpec
    from privbench.measure.victims.stages import Stage


#: Models that an attack queries.
_ASKED = (Role("victim"), Role("null"), Role("shadow 0"))


@dataclass(frozen=True)
class _Chain:
    """The stages of a victim that leave an artifact: digests, names, and whether the store has it.

    ``shares`` names what a stage computes with ``ctx.once``, which other stages may compute too.
    ``inner`` holds the victims that must be trained before: position and identity.
    """

    digests: tuple[str, ...]
    names: tuple[str, ...]
    held: tuple[bool, ...]
    shares: tuple[str, ...]
    inner: tuple[tuple[int, str], ...]


def graph(trials: Sequence[Trial], runner: TrialRunner) -> dict[str, Node]:
    """Plan the trials; return all nodes by name, each after the nodes that it needs.

    A trial whose victims cannot be planned is a node without needs: running it records the error.
    """
    planner = _GraphPlanner(runner.builder)
    wanted: list[tuple[Trial, dict[Role, str]]] = []
    for trial in trials:
        try:
            roles = planner.roles(runner.specs(trial))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - running the trial says what is wrong, in its record
            roles = {}
        wanted.append((trial, roles))
    planner.users.update(
        digest for chain in planner.chains.values() for digest in chain.digests
    )  # by distinct victims
    # What a process with code of others makes is kept for its like, so others make it first.
    for trial, roles in sorted(wanted, key=lambda one: bool(code_of(sealed(one[0]).cell))):
        last = {
            role: planner.add(trial, role, identity)
            for role, identity in sorted(roles.items(), key=lambda item: item[0].inner is None)
        }
        needs = {name for role, name in last.items() if name and role.inner is None}
        after = planner.after(trial.digest, _shares(trial, roles))
        if roles:
            after |= planner.baselines(
                trial, runner.materials.baselines_key(trial.cell, trial.seed)
            )
        kind = f"attack {trial.cell.attack.name}"
        planner.nodes[trial.digest] = Node(trial.digest, trial.digest, None, kind, needs, after)
    return planner.nodes


def _shares(trial: Trial, roles: dict[Role, str]) -> list[str]:
    """Name what a trial stores that other trials would also compute.

    That is the victim's utility, the outputs of models for the question, and those for its views,
    which attacks of one module draw alike. All sets of shadows begin with the same shadow, so the
    first one represents the set.
    """
    cell = trial.cell
    module = type(cell.attack).__module__
    asked = [cell.attack.game, str(cell.attack.max_rows)]
    models = [roles[role] for role in _ASKED if role in roles]
    kinds = (cell.attack.needs | cell.attack.wants) & cell.access
    return [
        *(f"utility/{model}" for model in models[:1]),
        *("/".join([kind.name or "", model, *asked]) for model in models for kind in kinds),
        *("/".join(["views", model, module, *asked]) for model in models),
    ]


class _GraphPlanner:
    """Plans each distinct victim once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.chains: dict[str, _Chain] = {}
        self.users: Counter[str] = Counter()
        self.nodes: dict[str, Node] = {}
        self.first: dict[str, str] = {}  # what several nodes would compute -> the first of them

    def roles(self, specs: dict[str, VictimSpec]) -> dict[Role, str]:
        """Return the identity of every victim that a trial needs, including inner ones."""
        identities: dict[Role, str] = {}
        for name, spec in specs.items():
            identities[Role(name)] = self._chained(spec)
            for i, inner in self.chains[spec.identity].inner:
                identities[Role(name, i)] = inner
        return identities

    def _chained(self, spec: VictimSpec) -> str:
        """Plan the chain of a victim, and of those inside it; return its identity."""
        if spec.identity not in self.chains:
            stages = [stage for stage in self.builder.draft(spec).stages if stage.stored]
            needed = [(stage.key, inner) for stage in stages for inner in stage.inner]
            self.chains[spec.identity] = _Chain(
                tuple(stage.key.digest for stage in stages),
                tuple(stage.name for stage in stages),
                tuple(stage.key in self.builder.store for stage in stages),
                tuple(_once(stage) for stage in stages),
                tuple(
                    (i, self._chained(inner))
                    for i, (key, inner) in enumerate(needed)
                    if key not in self.builder.store
                ),
            )
        return spec.identity

    def add(self, trial: Trial, role: Role, identity: str) -> str | None:
        """Add the missing nodes of a chain; return the last one's name, None if none is missing.

        A run of stages ends where the number of victims that share them changes.
        """
        chain = self.chains[identity]
        needs = {name for _, inner in chain.inner if (name := self._last(self.chains[inner]))}
        last: str | None = None
        missing = [i for i, held in enumerate(chain.held) if not held]
        for run in _runs(missing, [self.users[digest] for digest in chain.digests]):
            name = chain.digests[run[-1]]
            if name not in self.nodes:
                after = self.after(name, [chain.shares[i] for i in run if chain.shares[i]])
                kind = ", ".join(chain.names[i] for i in run)
                self.nodes[name] = Node(name, trial.digest, role, kind, set(needs), after)
            needs, last = {*needs, name}, name
        return last

    def baselines(self, trial: Trial, key: Key) -> set[str]:
        """Add a node for the baselines, unless the store holds them; return its name."""
        if key.digest not in self.nodes:
            if key in self.builder.store:
                return set()
            role = Role("baselines")
            self.nodes[key.digest] = Node(key.digest, trial.digest, role, "baselines")
        return {key.digest}

    def after(self, name: str, shares: Iterable[str]) -> set[str]:
        """Return the nodes that compute first what this node would compute too."""
        return {self.first.setdefault(share, name) for share in shares} - {name}

    def _last(self, chain: _Chain) -> str | None:
        return next((d for d in reversed(chain.digests) if d in self.nodes), None)


def _once(stage: Stage) -> str:
    """Name what a stage may compute with ``ctx.once``; "" for a phase, which has no context."""
    if isinstance(stage.of, Phase):
        return ""
    defense = stage.of.defense if isinstance(stage.of, LearnedRelease) else stage.of
    return "/".join(["once", stage.previous, defense.family or defense.name])


def _runs(missing: Iterable[int], users: Sequence[int]) -> list[list[int]]:
    """Cut positions into runs that the same number of victims share.

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
