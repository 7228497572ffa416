"""Runs an attack against a victim: the models it needs, its context and its answer."""

from __future__ import annotations

import copy
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privbench.ground.errors import AccessDeniedError, PluginError
from privbench.measure.data.examples import join
from privbench.measure.data.row_random import salt
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.context import AttackContext, Shadow, seeded
from privbench.measure.methods.oracle import Oracle
from privbench.measure.victims.served import Victim, sibling_key, unreleased_key
from privbench.measure.victims.spec import VictimSpec
from privbench.measure.victims.stages import differing, load, state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from privbench.ground.store.store import Store
    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.split import Split, World
    from privbench.measure.games.game import Game
    from privbench.measure.methods.access import Access
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.oracle import Served
    from privbench.measure.methods.target import Target
    from privbench.measure.training.model import Model
    from privbench.measure.victims.build import Builder

_TWO = 2  # classes that a probe needs


@dataclass(frozen=True)
class NeededModels:
    """Which models a cell needs under one seed, as specs; ``grid.materials`` has them built.

    Attributes:
        cell: the cell.
        split: split of its dataset.
        pool: the same split with the adversary's pool, which may come from another dataset.
    """

    cell: Cell
    split: Split
    pool: Split

    @property
    def game(self) -> Game:
        """The game of the attack."""
        return GAMES[self.cell.attack.game]

    def victims(self) -> list[VictimSpec]:
        """The victims that the question is about."""
        worlds = self.game.victims(self.split, self.cell.sensitive)
        return [self._spec(world, self.cell.defenses) for world in worlds]

    def nulls(self) -> list[VictimSpec]:
        """The same target and defenses in worlds without candidates."""
        worlds = self.game.nulls(self.split, self.cell.sensitive)
        return [self._spec(world, self.cell.defenses) for world in worlds]

    def undefended(self) -> VictimSpec:
        """The victim without its defenses."""
        return self._spec(self.split.victim(), ())

    def shadows(self) -> list[tuple[VictimSpec, Examples]]:
        """The shadows that the attack declared, each with its nonmembers."""
        wanted, adversary = self.cell.attack.shadows, self.cell.adversary
        if wanted.origin == "offline":
            parts, sensitive = self.pool, self.cell.sensitive
            drawn = [self.game.offline(parts, i, sensitive) for i in range(wanted.count)]
        else:
            parts = self.split
            drawn = [parts.online(i) for i in range(wanted.count)]
        defenses = self.cell.defenses if adversary.adaptive else ()
        return [
            (self._spec(world, defenses, adversary.target, parts.card), others)
            for world, others in drawn
        ]

    def of_the_adversary(self) -> VictimSpec:
        """The model that the adversary trains on its own rows; the caller sets these rows.

        It is of the victim's target, or of the adversary's if the victim was trained elsewhere.
        """
        world = replace(self.pool.offline(0)[0], branch=1)
        target = self.cell.adversary.target if self.cell.protocol.trained_elsewhere else None
        return self._spec(world, (), target, self.pool.card)

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
class ShadowTrainer:
    """Trains shadows on candidates that the adversary chooses.

    Attributes:
        builder: builds them.
        drawn: the shadows that the attack gets, each with its nonmembers.
        candidates: all of them, without their source.
        attack: declares shadows; worlds are numbered after these.
    """

    builder: Builder
    drawn: Sequence[tuple[VictimSpec, Examples]]
    candidates: Examples
    attack: Attack

    def __call__(self, members: Examples, number: int) -> Shadow:
        """Train one, in a world that differs from a declared one in its members.

        Raises:
            PluginError: if there are no members, or if one of them is no candidate.
        """
        inside = torch.isin(self.candidates.index, members.index.to(self.candidates.index))
        known = torch.isin(members.index.to(self.candidates.index), self.candidates.index)
        if not len(members) or not known.all():
            raise PluginError(f"attack '{self.attack.name}' trains a shadow: its members must be "
                              "some of the candidates")  # fmt: skip
        like, _ = self.drawn[number % len(self.drawn)]
        held = like.world.members
        always = held.select(~torch.isin(held.index, self.candidates.index))
        parts = {**like.world.parts, "members": join([always, self.candidates.select(inside)])}
        index = self.attack.shadows.count + number
        world = replace(like.world, parts=parts, index=index)
        served = self.builder.victim(replace(like, world=world))
        others = self.candidates.select(~inside)
        return as_shadow(served, world.private(), others, asker=self.attack.name,
                         store=self.builder.store, models=len(self.drawn))  # fmt: skip


def as_shadow(
    victim: Victim, world: World, others: Examples, *, asker: str, store: Store, models: int
) -> Shadow:
    """Return a victim as a shadow of an attack, which asks so many ``models`` at a time.

    If candidates lack labels, no label of a candidate is shown, as in the question.
    """
    rows = (world.members, others)
    if world.origin == "online" and any(bool((one.y < 0).any()) for one in rows):
        members, others = (one.with_y(torch.full_like(one.y, -1)) for one in rows)
        world = world.replace(members=members)
    oracle = Oracle(victim.session(asker), victim.grants, asker=asker, store=store, models=models)
    return Shadow(world, others, oracle, victim.model)


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
        train_shadow: trains a shadow on chosen candidates; None without online shadows.
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
    train_shadow: ShadowTrainer | None = None

    def oracles(self) -> tuple[Oracle, Siblings]:
        """Return what the attack asks: about the question, and about the adversary's own rows."""
        attack = self.cell.attack
        access = (attack.needs | attack.wants) & self.cell.access
        return Oracle(self.served, access, asker=attack.name, store=self.store), Siblings(
            self.served, self.auxiliary_served, access, adaptive=self.cell.adversary.adaptive,
            seed=self.seed, asker=attack.name, store=self.store,
        )  # fmt: skip

    def answer(self, shadows: tuple[Shadow, ...]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Run the attack; return tensors and facts for the store."""
        cell, attack = self.cell, self.cell.attack
        asked, own = self.oracles()
        game = GAMES[attack.game]
        ctx = AttackContext(
            card=cell.card, protocol=cell.protocol, sensitive=cell.sensitive, device=self.device,
            store=self.store, seed=salt(self.seed, "attack", attack.name), scope=self.scope,
            shadows=tuple(_private(shadow) for shadow in shadows),
            auxiliary=self.auxiliary.private(), auxiliary_oracle=own.oracles[0],
            siblings=own.ask_for, data_seed=self.seed, train=self.train,
            build=self.train.untrained, train_shadow=self.train_shadow,
        )  # fmt: skip
        question = copy.deepcopy(self.question)
        with _untouched(self.served, attack.name, asked, own):
            answer = seeded(partial(attack.answer, asked, question, ctx), ctx.salt("global"))
        given = getattr(self.question, "embeddings", None)
        return game.pack(answer), {
            "queries": asked.queries + (0 if given is None else len(given)),
            "queries_own": sum(oracle.queries for oracle in own.oracles),
            "notes": _worded({**ctx.notes, **answer.notes}),
        }


class Siblings:
    """The victim as it answers the adversary's own rows: one oracle for each release of these.

    Attributes:
        oracles: those that were asked for so far; the first is ``AttackContext.auxiliary_oracle``.
    """

    def __init__(
        self, served: Served, first: Served, access: Access, *, adaptive: bool, seed: int,
        asker: str, store: Store | None,
    ) -> None:  # fmt: skip
        """Begin with ``first``: the victim ``served`` as the adversary sees it."""
        self._oracle = partial(Oracle, access=access, asker=asker, store=store)
        self._served = served if adaptive else None
        self._seed = seed
        self.oracles = [self._oracle(first)]

    def ask_for(self, n: int) -> tuple[Oracle, ...]:
        """Return n oracles, or a single one if there are no others: see ``AttackContext``."""
        served = self._served
        if isinstance(served, Victim) and served.releases:
            for index in range(len(self.oracles), n):
                sibling = as_adversary_sees(served, adaptive=True, seed=self._seed, index=index)
                self.oracles.append(self._oracle(sibling, models=n))
        return tuple(self.oracles[:n])


@contextmanager
def _untouched(served: Served, attack: str, asked: Oracle, own: Siblings) -> Iterator[None]:
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
            for oracle in (asked, *own.oracles):
                oracle.forget()
    if changed:
        raise AccessDeniedError(f"attack '{attack}' changed '{changed}' of the victim: only ask it")


def _private(shadow: Shadow) -> Shadow:
    """The shadow with a model and rows of its own: others in memory are for other attacks."""
    return replace(
        shadow, model=copy.deepcopy(shadow.model), world=shadow.world.private(),
        nonmembers=shadow.nonmembers.private(),
    )  # fmt: skip


def as_adversary_sees(served: Served, *, adaptive: bool, seed: int, index: int = 0) -> Served:
    """Return the victim as it answers rows that the adversary itself releases.

    An adaptive adversary may release them any number of times, with masks and keys that depend on
    ``index``. The key of index 0 stands for all of them: it determines the others.
    """
    if not isinstance(served, Victim) or not served.releases:
        return served
    if not adaptive:
        return served.unreleased()
    return served.sibling(salt(seed, "adversary", *([index] if index else [])))


def key_as_adversary_sees(key: str, *, released: bool, adaptive: bool, seed: int) -> str:
    """Return the key of what ``as_adversary_sees`` returns, for a victim that is not built yet.

    ``released`` says whether releases change the model's answers.
    """
    if not released:
        return key
    return sibling_key(key, salt(seed, "adversary")) if adaptive else unreleased_key(key)


def utility(victim: Victim, split: Split, world: World) -> dict[str, float]:
    """Return the accuracy on test, reference and the classifier's training rows, and the gap.

    The gap is the accuracy on training rows minus that on test rows. Training rows come from the
    world of the victim; test and reference rows from the split.

    Settings are chosen by the accuracy on reference rows, so that test rows stay unseen. Without
    such rows it is missing. A defense that learns from them makes it optimistic.

    ``test_rows`` is the number of test rows; ``seconds_per_query`` is how long the victim took for
    the label of a row.
    """
    trained_on = world.parts[split.protocol.classifier]
    right = {}
    asked, queries, begun = victim.session("utility"), 0, time.perf_counter()
    parts = {"test": split.test, "train": trained_on, "reference": split.reference}
    for name, rows in parts.items():
        labelled = rows.select(rows.y >= 0)
        if name == "reference" and not len(labelled):
            continue
        guess = asked.labels(labelled.x)
        right[f"{name}_accuracy"] = float((guess == labelled.y).double().mean())
        queries += len(labelled)
    return {
        "seconds_per_query": (time.perf_counter() - begun) / max(queries, 1),
        **right, "gap": right["train_accuracy"] - right["test_accuracy"],
        "test_rows": float((split.test.y >= 0).sum()),
    }  # fmt: skip


def probe(victim: Victim, split: Split) -> Tensor:
    """Return whether a linear probe of the encoder is right, (n,) bool for the test rows.

    The probe is a ridge classifier of the standardised embeddings, before any release; it learns
    from the classifier's training rows, which also choose its penalty (leaving one out).
    (0,) if there is nothing to learn: fewer than two classes.
    """
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    trained_on = split.victim().parts[split.protocol.classifier]
    known, asked = (rows.select(rows.y >= 0) for rows in (trained_on, split.test))
    if len(set(known.y.tolist())) < _TWO or not len(asked):
        return torch.zeros(0, dtype=torch.bool)
    bare = victim.unreleased()
    known_h, asked_h = (bare.embeddings(rows.x).double().cpu().numpy() for rows in (known, asked))
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(np.logspace(-2, 5, 15)))
    guess = model.fit(known_h, known.y.cpu().numpy()).predict(asked_h)
    return torch.from_numpy(guess == asked.y.cpu().numpy())


def gain(trained: Tensor, untrained: Tensor) -> dict[str, float]:
    """Return what training gave the encoder: the probe's accuracy on both, and a p-value.

    The p-value is that of the one-sided sign test over the rows where the two probes differ:
    how likely so many rows are won if training gives nothing. {} if there are no rows.
    """
    if not len(trained):
        return {}
    from scipy.stats import binomtest

    won, lost = (int(count) for count in wins(trained, untrained).values())
    p = binomtest(won, won + lost, alternative="greater").pvalue if won + lost else 1.0
    return {
        "probe_accuracy": float(trained.double().mean()),
        "untrained_accuracy": float(untrained.double().mean()),
        "probe_p_value": float(p),
    }


def wins(trained: Tensor, untrained: Tensor) -> dict[str, float]:
    """Count the rows that only one of the two probes gets right."""
    won, lost = int((trained & ~untrained).sum()), int((untrained & ~trained).sum())
    return {"probe_wins": float(won), "probe_losses": float(lost)}


def _worded(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON lacks (such as an infinite threshold) by words."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in notes.items()
    }
