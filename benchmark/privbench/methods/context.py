"""Services that the core hands to targets, defenses and attacks."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from privbench.data.row_random import fold, salt, uniform
from privbench.games.oracle import Views, views_seed
from privbench.store.source import source_digest
from privbench.store.store import Key
from privbench.training.loop import seeded_globally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from privbench.data.augmentation import Augmentation
    from privbench.data.examples import Card, Examples
    from privbench.data.protocol import Protocol
    from privbench.data.split import World
    from privbench.games.oracle import Oracle
    from privbench.methods.target import Target
    from privbench.store.store import Store
    from privbench.training.model import Model
    from privbench.training.phase import Phase


class Context:
    """What targets, defenses and attacks have in common.

    Attributes:
        card: of the dataset.
        protocol: that cut it.
        sensitive: attributes of the cell.
        device: where tensors live.
        notes: facts that go into the record.
        spent: digest of an artifact that others share -> seconds that making it took, whenever.
        waited: seconds that making them, or loading them, took just now.
    """

    def __init__(
        self,
        *,
        card: Card,
        protocol: Protocol,
        sensitive: tuple[str, ...],
        device: torch.device,
        store: Store | None,
        seed: int,
        scope: str,
    ) -> None:
        """``seed`` is of (seed, world, method name); ``scope`` names all that ``once`` may read."""
        self.card = card
        self.protocol = protocol
        self.sensitive = sensitive
        self.device = device
        self.notes: dict[str, Any] = {}
        self.spent: dict[str, float] = {}
        self.waited = 0.0
        self._store = store
        self._seed = seed
        self._scope = scope

    def salt(self, *purpose: str | int) -> int:
        """A seed for a purpose of this method in this world."""
        return salt(self._seed, *purpose)

    def generator(self, *purpose: str | int) -> torch.Generator:
        """A fresh generator on the device for that purpose; the same each time it is asked for."""
        return torch.Generator(device=self.device).manual_seed(self.salt(*purpose))

    def uniform(self, rows: Examples, m: int, *purpose: str | int) -> Tensor:
        """(n, m) numbers in [0, 1) keyed by the rows' content: permuted rows, permuted numbers."""
        return uniform(fold(rows.keys, self.salt(*purpose)), m)

    def init(self, build: Callable[[], nn.Module], *purpose: str | int) -> nn.Module:
        """Build a module whose initial weights are drawn for that purpose only."""
        module: nn.Module = seeded(build, self.salt("init", *purpose))
        return module.to(self.device)

    def once(
        self, name: str, build: Callable[[], Mapping[str, Tensor]], **fields: Any
    ) -> Mapping[str, Tensor]:
        """Compute once and keep: for work that several settings share.

        Args:
            name: of the computation.
            build: makes named tensors; its source code is part of the key.
            fields: all settings that ``build`` depends on besides data, seed and world.
        """
        if self._store is None:
            return build()
        named = {"name": name, "function": source_digest(build), "fields": fields}
        made_on = {"torch": torch.__version__, "device": self.device.type}
        key = Key("once", {"scope": self._scope, "seed": self._seed, **made_on, **named})
        begun = time.perf_counter()
        held = self._store.make(key, lambda: self.timed(build))
        self.waited += time.perf_counter() - begun
        self.spent |= {key.digest: held.facts["seconds"], **held.facts["spent"]}
        return {n: tensor.to(self.device) for n, tensor in held.tensors.items()}

    def timed(self, build: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        """What ``build`` makes; its own seconds, and those ``spent`` on artifacts it asked for."""
        before, begun = (self.spent, self.waited), time.perf_counter()
        self.spent, self.waited = {}, 0.0
        try:
            made = build()
            seconds = time.perf_counter() - begun - self.waited
            return made, {"seconds": seconds, "spent": self.spent}
        finally:
            self.spent, self.waited = before

    def note(self, **facts: Any) -> None:
        """Put facts beside the numbers in the record."""
        self.notes.update(facts)


class TargetContext(Context):
    """For targets: ``protocol`` says which rows the encoder and the classifier see."""


class DefenseContext(Context):
    """For defenses.

    Attributes:
        world: the world being trained in.
        claims: privacy claims that go into the record.
    """

    def __init__(
        self,
        *,
        world: World,
        refit: Callable[[Phase, Tensor, Tensor], dict[str, Tensor]] | None = None,
        **common: Any,
    ) -> None:
        """See ``Context``; ``refit`` is there for ``Defense.on_trained`` only."""
        super().__init__(**common)
        self.world = world
        self.claims: list[Mapping[str, Any]] = []
        self._refit = refit

    def module(self, model: Model, name: str, build: Callable[[], nn.Module]) -> None:
        """Add a part to the model, with initial weights of its own, unless it is there already."""
        if name not in model:
            model.parts[name] = self.init(build, name)

    def refit(self, phase: Phase, dropped: Tensor, exchanged: Tensor) -> dict[str, Tensor]:
        """Train a phase again without single rows, all trainings at once; in ``on_trained`` only.

        Args:
            phase: one that reads embeddings, with one plain step: see ``leave_one_out``.
            dropped: (r,) int64 positions in the phase's rows, trained without; -1 drops none.
            exchanged: (r,) int64 positions that are left out instead, the dropped row standing in
                their slot; -1 for none.

        Returns:
            Name -> (r, ...) tensors of the parts that the phase trains.
        """
        if self._refit is None:
            raise RuntimeError("refit is there in on_trained only: before, nothing is trained")
        return self._refit(phase, dropped, exchanged)

    def claim(self, **terms: Any) -> None:
        """State a claim of differential privacy.

        Terms: ``epsilon``, ``delta``, ``adjacency`` (``add/remove`` or ``replace-one``), ``phase``
        (names joined by +, as in a protocol's), and whatever else belongs beside them.
        """
        self.claims.append(terms)


@dataclass(frozen=True)
class Shadow:
    """A model of the adversary's, served as the victim is.

    Attributes:
        world: what it trained on; ``world.contains(rows)`` says who was a member.
        nonmembers: as many rows of the pool that it did not train on (the remaining candidates,
            for worlds drawn over the candidates).
        oracle: the shadow, released as the adversary can; grants all that the target grants.
        model: the raw model, for gradients and weights: the adversary owns it.
    """

    world: World
    nonmembers: Examples
    oracle: Oracle
    model: Model


class AttackContext(Context):
    """For attacks.

    Attributes:
        shadows: exactly as many as were declared.
        auxiliary: rows of the adversary with labels and attributes.
        auxiliary_oracle: the victim as it answers the adversary's own rows, which the adversary may
            release with its own randomness.
    """

    def __init__(
        self,
        *,
        shadows: tuple[Shadow, ...],
        auxiliary: Examples,
        auxiliary_oracle: Oracle,
        data_seed: int,
        train: Callable[[Examples, Target | None], Model],
        **common: Any,
    ) -> None:
        """See ``Context``; ``train`` trains a target on rows of the attacker's choice."""
        super().__init__(**common)
        self.shadows = shadows
        self.auxiliary = auxiliary
        self.auxiliary_oracle = auxiliary_oracle
        self._data_seed = data_seed
        self._train = train

    @property
    def own(self) -> Oracle:
        """The name of ``auxiliary_oracle`` in 0.1.0."""
        warnings.warn("ctx.own is now called ctx.auxiliary_oracle", DeprecationWarning, 2)
        return self.auxiliary_oracle

    def views(self, rows: Examples, augmentation: Augmentation, n: int) -> Views:
        """n views per row under the augmentation, narrowed to what keeps label and attributes."""
        allowed = augmentation.within(self.card.limits or type(augmentation)())
        return Views(rows, allowed, n, views_seed(self._data_seed))

    def train(self, examples: Examples, target: Target | None = None) -> Model:
        """Train the victim's target (or another) on these rows as members of a new world."""
        return self._train(examples, target)


def seeded(build: Callable[[], Any], seed: int) -> Any:
    """Run ``build`` with torch's global generators seeded, and put them back after."""
    with seeded_globally(seed):
        return build()
