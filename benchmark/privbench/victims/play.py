"""An attack plays its game against a victim: what it is given, and what it answers."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from privbench.data.row_random import salt
from privbench.games.catalog import GAMES
from privbench.games.oracle import Oracle
from privbench.methods.context import AttackContext, seeded
from privbench.victims.served import Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch import Tensor

    from privbench.data.examples import Examples
    from privbench.data.split import Split
    from privbench.games.oracle import Served
    from privbench.methods.cell import Cell
    from privbench.methods.context import Shadow
    from privbench.methods.target import Target
    from privbench.store.store import Store
    from privbench.training.model import Model


@dataclass(frozen=True)
class Match:
    """What an answer is made from.

    Attributes:
        cell: with the attack.
        served: who is asked: the victim, or a control in its place.
        auxiliary_served: the same as it answers the adversary's own rows.
        question: of the game.
        split: with the adversary's pool.
        train: trains a target on rows of the adversary's choice.
        store, device, scope: see ``AttackContext``.
    """

    cell: Cell
    served: Served
    auxiliary_served: Served
    question: Any
    split: Split
    train: Callable[[Examples, Target | None], Model]
    store: Store
    device: torch.device
    scope: str

    def answer(self, shadows: tuple[Shadow, ...]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Let the attack answer; tensors and facts for the store."""
        cell, attack, split = self.cell, self.cell.attack, self.split
        access = (attack.needs | attack.wants) & cell.access
        asked = Oracle(self.served, access, asker=attack.name, store=self.store)
        own = Oracle(self.auxiliary_served, access, asker=attack.name, store=self.store)
        game = GAMES[attack.game]
        ctx = AttackContext(
            card=cell.card, protocol=cell.protocol, sensitive=cell.sensitive, device=self.device,
            store=self.store, seed=salt(split.seed, "attack", attack.name), scope=self.scope,
            # Shadows stay in memory for other attacks; this one may change its own copy.
            shadows=tuple(replace(s, model=copy.deepcopy(s.model)) for s in shadows),
            auxiliary=game.auxiliary(split), auxiliary_oracle=own, data_seed=split.seed,
            train=self.train,
        )  # fmt: skip
        answer = seeded(partial(attack.answer, asked, self.question, ctx), ctx.salt("global"))
        given = getattr(self.question, "embeddings", None)
        return game.pack(answer), {
            "queries": asked.queries + (0 if given is None else len(given)),
            "queries_own": own.queries,
            "notes": _worded({**ctx.notes, **answer.notes}),
        }


def as_adversary_sees(served: Served, *, adaptive: bool, seed: int) -> Served:
    """The victim as it answers rows that the adversary itself releases."""
    if not isinstance(served, Victim) or not served.releases:
        return served
    return served.sibling(salt(seed, "adversary")) if adaptive else served.unreleased()


def utility(victim: Victim, split: Split) -> dict[str, float]:
    """Test accuracy, accuracy on what the classifier trained on, and their difference."""
    trained_on = split.victim().parts[split.protocol.classifier]
    right = {}
    asked = victim.session("utility")
    for name, rows in (("test", split.test), ("train", trained_on)):
        labelled = rows.select(rows.y >= 0)
        guess = asked.labels(labelled.x)
        right[f"{name}_accuracy"] = float((guess == labelled.y).double().mean())
    return {**right, "gap": right["train_accuracy"] - right["test_accuracy"]}


def _worded(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Notes with words for numbers that JSON does not have (an infinite threshold)."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in notes.items()
    }
