"""Runs an attack against a victim: the models it needs, its context and its answer."""

from __future__ import annotations

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from privbench.data.row_random import salt
from privbench.errors import AccessDeniedError
from privbench.games.catalog import GAMES
from privbench.games.oracle import Oracle
from privbench.methods.context import AttackContext, seeded
from privbench.victims.served import Victim, sibling_key, unreleased_key
from privbench.victims.spec import VictimSpec
from privbench.victims.stages import differing, load, state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import Tensor

    from privbench.data.examples import Card, Examples
    from privbench.data.split import Split, World
    from privbench.games.oracle import Served
    from privbench.methods.cell import Cell
    from privbench.methods.context import Shadow
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target
    from privbench.store.store import Store
    from privbench.training.model import Model
    from privbench.victims.build import Builder


@dataclass(frozen=True)
class Models:
    """The models that a cell needs under one seed.

    Attributes:
        cell: the cell.
        split: split of its dataset.
        pool: the same split with the adversary's pool, which may come from another dataset.
    """

    cell: Cell
    split: Split
    pool: Split

    def victim(self) -> VictimSpec:
        """The victim."""
        return self._spec(self.split.victim(), self.cell.defenses)

    def null(self) -> VictimSpec:
        """The same target and defenses in a world without candidates."""
        return self._spec(self.split.null(), self.cell.defenses)

    def undefended(self) -> VictimSpec:
        """The victim without its defenses."""
        return self._spec(self.split.victim(), ())

    def shadows(self) -> list[tuple[VictimSpec, Examples]]:
        """The shadows that the attack declared, each with its nonmembers."""
        wanted, adversary = self.cell.attack.shadows, self.cell.adversary
        parts = self.pool if wanted.origin == "offline" else self.split
        draw = parts.offline if wanted.origin == "offline" else parts.online
        defenses = self.cell.defenses if adversary.adaptive else ()
        drawn = [draw(i) for i in range(wanted.count)]
        return [
            (self._spec(world, defenses, adversary.target, parts.card), others)
            for world, others in drawn
        ]

    def of_the_adversary(self) -> VictimSpec:
        """The model that the adversary trains on its own rows; the caller sets these rows."""
        world = replace(self.pool.offline(0)[0], branch=1)
        return self._spec(world, (), None, self.pool.card)

    def _spec(
        self,
        world: World,
        defenses: tuple[Defense, ...],
        target: Target | None = None,
        card: Card | None = None,
    ) -> VictimSpec:
        cell = self.cell
        return VictimSpec(
            card or cell.card, cell.protocol, world, target or cell.target, defenses,
            cell.sensitive,
        )  # fmt: skip


@dataclass(frozen=True)
class Trainer:
    """Trains models for the adversary.

    Attributes:
        builder: builds them.
        spec: what it builds, on other rows and perhaps of another target.
    """

    builder: Builder
    spec: VictimSpec

    def __call__(self, rows: Examples, target: Target | None) -> Model:
        """Train the target, by default the victim's, with these rows as its members."""
        spec = replace(self.spec, target=target) if target else self.spec
        return self.builder.train_on(spec, rows)

    def untrained(self, seed: int) -> Model:
        """Build the victim's target with initial weights of that seed."""
        return self.builder.fresh(self.spec, seed)


@dataclass(frozen=True)
class Match:
    """Everything that an attack's answer depends on.

    Attributes:
        cell: the cell, with the attack.
        served: the victim or a control.
        auxiliary_served: the same, as it answers the adversary's own rows.
        question: the question of the game.
        auxiliary: the adversary's rows.
        seed: seed of the split.
        train: trains a target on rows that the adversary chooses.
        store, device, scope: see ``AttackContext``.
    """

    cell: Cell
    served: Served
    auxiliary_served: Served
    question: Any
    auxiliary: Examples
    seed: int
    train: Trainer
    store: Store
    device: torch.device
    scope: str

    def answer(self, shadows: tuple[Shadow, ...]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Run the attack; return tensors and facts for the store."""
        cell, attack = self.cell, self.cell.attack
        access = (attack.needs | attack.wants) & cell.access
        asked = Oracle(self.served, access, asker=attack.name, store=self.store)
        own = Oracle(self.auxiliary_served, access, asker=attack.name, store=self.store)
        game = GAMES[attack.game]
        ctx = AttackContext(
            card=cell.card, protocol=cell.protocol, sensitive=cell.sensitive, device=self.device,
            store=self.store, seed=salt(self.seed, "attack", attack.name), scope=self.scope,
            shadows=tuple(_private(shadow) for shadow in shadows),
            auxiliary=self.auxiliary.private(), auxiliary_oracle=own, data_seed=self.seed,
            train=self.train, build=self.train.untrained,
        )  # fmt: skip
        question = copy.deepcopy(self.question)
        with _untouched(self.served, attack.name, asked, own):
            answer = seeded(partial(attack.answer, asked, question, ctx), ctx.salt("global"))
        given = getattr(self.question, "embeddings", None)
        return game.pack(answer), {
            "queries": asked.queries + (0 if given is None else len(given)),
            "queries_own": own.queries,
            "notes": _worded({**ctx.notes, **answer.notes}),
        }


@contextmanager
def _untouched(served: Served, attack: str, *oracles: Oracle) -> Iterator[None]:
    """Put the victim's weights back if the attack changed them, and fail it.

    What its oracles kept for other attacks is forgotten.

    Raises:
        AccessDeniedError: naming the attack.
    """
    if not isinstance(served, Victim):
        yield
        return
    before, changed = state(served.model, served.model.parts), None
    try:
        yield
    finally:
        if changed := differing(served.model, before):
            load(served.model, before, assign=True)
            for oracle in oracles:
                oracle.forget()
    if changed:
        raise AccessDeniedError(f"attack '{attack}' changed '{changed}' of the victim: only ask it")


def _private(shadow: Shadow) -> Shadow:
    """The shadow with a model and rows of its own: others in memory are for other attacks."""
    return replace(
        shadow, model=copy.deepcopy(shadow.model), world=shadow.world.private(),
        nonmembers=shadow.nonmembers.private(),
    )  # fmt: skip


def as_adversary_sees(served: Served, *, adaptive: bool, seed: int) -> Served:
    """Return the victim as it answers rows that the adversary itself releases."""
    if not isinstance(served, Victim) or not served.releases:
        return served
    return served.sibling(salt(seed, "adversary")) if adaptive else served.unreleased()


def key_as_adversary_sees(key: str, *, released: bool, adaptive: bool, seed: int) -> str:
    """Return the key of what ``as_adversary_sees`` returns, for a victim that is not built yet.

    ``released`` says whether releases change the model's answers.
    """
    if not released:
        return key
    return sibling_key(key, salt(seed, "adversary")) if adaptive else unreleased_key(key)


def utility(victim: Victim, split: Split) -> dict[str, float]:
    """Return the accuracy on test rows and on the classifier's training rows, and the gap."""
    trained_on = split.victim().parts[split.protocol.classifier]
    right = {}
    asked = victim.session("utility")
    for name, rows in (("test", split.test), ("train", trained_on)):
        labelled = rows.select(rows.y >= 0)
        guess = asked.labels(labelled.x)
        right[f"{name}_accuracy"] = float((guess == labelled.y).double().mean())
    return {**right, "gap": right["train_accuracy"] - right["test_accuracy"]}


def _worded(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON lacks (such as an infinite threshold) by words."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in notes.items()
    }
