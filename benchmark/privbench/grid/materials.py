"""What trials share: rows, splits, victims, baselines and accuracies, each made once and kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from privbench.grid import keys
from privbench.grid.keys import dataset_of
from privbench.grid.outcome import numbers
from privbench.ground.errors import PluginError
from privbench.measure.data.examples import Examples, adopted
from privbench.measure.data.split import Split, cut
from privbench.measure.data.validation import validated
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.controls import Pixels
from privbench.measure.training.process_state import known
from privbench.measure.victims.play import NeededModels, as_shadow, gain, probe, utility, wins
from privbench.results.record import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from privbench.ground.store.store import Key, Store
    from privbench.measure.games.game import Metrics
    from privbench.measure.methods.cell import Cell
    from privbench.measure.methods.context import Shadow
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.oracle import Served
    from privbench.measure.victims.build import Builder
    from privbench.measure.victims.served import Victim
    from privbench.measure.victims.spec import VictimSpec


class Materials:
    """What trials share.

    Attributes:
        store: store of artifacts.
        builder: builds victims.
        making: seconds spent so far to build or load victims.
    """

    def __init__(self, store: Store, builder: Builder, *, root: Path | None) -> None:
        """Start with nothing in memory.

        Args:
            store: store of artifacts.
            builder: builds victims.
            root: folder of datasets.
        """
        self.store, self.builder, self.root = store, builder, root
        self.making = 0.0
        self._examples: dict[str, Examples] = {}
        self._splits: dict[str, Split] = {}
        self._victims: dict[str, Victim] = {}

    def split(self, cell: Cell, seed: int) -> Split:
        """Split the cell's dataset; equal for all cells of that dataset, protocol and seed."""
        at = keys.of_split(cell, seed)
        if at not in self._splits:
            rows = self._rows(dataset_of(cell))
            self._splits[at] = cut(rows, cell.card, cell.protocol, seed, device=self.builder.device)
        return self._splits[at]

    def _rows(self, dataset: Dataset) -> Examples:
        """All rows, on the device; memory-mapped ones stay where they are."""
        if dataset.digest not in self._examples:
            with known(0):
                rows = validated(dataset.load(self.root), dataset.card(self.root))
            if rows.mapped is None:
                rows = rows.to(self.builder.device)
            self._examples[dataset.digest] = rows
        return self._examples[dataset.digest]

    def adversary_split(self, cell: Cell, parts: Split) -> Split:
        """The split with the adversary's pool, which may come from another dataset."""
        dataset = cell.adversary.dataset
        if dataset is None:
            return parts
        at = keys.of_pool(parts, dataset)
        if at not in self._splits:
            source = dataset.card(self.root)
            rows, card = adopted(self._rows(dataset), source, cell.card)
            self._splits[at] = parts.foreign(rows, card)
        return self._splits[at]

    def needed(self, cell: Cell, seed: int) -> NeededModels:
        """Return the models that the cell needs under that seed."""
        parts = self.split(cell, seed)
        return NeededModels(cell, parts, self.adversary_split(cell, parts))

    def victim(self, spec: VictimSpec, room: int = 64) -> Victim:
        """Build or load a victim; at most ``room`` of them stay in memory."""
        at = spec.identity
        if at not in self._victims:
            while len(self._victims) >= room:
                self._victims.pop(next(iter(self._victims)))
            begun = time.perf_counter()
            try:
                self._victims[at] = self.builder.victim(spec)
            finally:
                self.making += time.perf_counter() - begun
        return self._victims[at]

    def shadows(
        self, cell: Cell, worlds: Sequence[tuple[VictimSpec, Examples]]
    ) -> tuple[Shadow, ...]:
        """Build or load the shadows that the attack declared."""
        count, asker = len(worlds), cell.attack.name
        return tuple(
            as_shadow(self.victim(spec, room=64 + count), spec.world, others, asker=asker,
                      store=self.store, models=count)
            for spec, others in worlds
        )  # fmt: skip

    def control(self, name: str, needed: NeededModels) -> list[Served]:
        """Return what a control of that name puts in the victims' place."""
        if name == "null":
            return [self.victim(spec) for spec in needed.nulls()]
        if name == "untrained":
            return [self.builder.untrained(needed.undefended())]
        if name == "pixels":
            return [Pixels(needed.cell.card)]
        raise PluginError(f"{needed.game.name}: there is no control {name!r}: name null, "
                          "untrained or pixels")  # fmt: skip

    def baselines_key(self, cell: Cell, seed: int) -> Key:
        """Return the key of the baselines; all cells of a question share them."""
        return keys.of_baselines(
            cell, self.split(cell, seed), device=self.builder.device.type,
            threads=self.builder.numerics.threads,
        )  # fmt: skip

    def baselines(self, cell: Cell, seed: int) -> dict[str, dict[str, Number]]:
        """Return the metrics of each guess that does not see the victim."""
        game, parts = GAMES[cell.attack.game], self.split(cell, seed)

        def compute() -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
            question, truth = game.pose(
                parts, Pixels(cell.card), max_rows=cell.attack.max_rows, sensitive=cell.sensitive
            )
            guesses = game.baselines(parts, question, truth)
            return {}, {"metrics": {name: _dumped(metrics) for name, metrics in guesses.items()}}

        key = self.baselines_key(cell, seed)
        return {
            name: {m: Number(**value) for m, value in metrics.items()}
            for name, metrics in self.store.make(key, compute).facts["metrics"].items()
        }

    def utility(
        self, needed: NeededModels, victim: Victim
    ) -> tuple[dict[str, float], float | None]:
        """Return accuracies of the victim, what training gave its encoder, and seconds per query.

        See ``utility``, ``gain`` and ``wins`` of ``victims.play``. Wins are counted for contrastive
        targets only: boards do not rank one whose encoder learnt nothing.
        """
        cell, parts = needed.cell, needed.split
        if cell.card.classes is None or "classifier" not in victim.model:
            return {}, None
        key = keys.of_utility(victim.key, parts)
        world = needed.victims()[0].world
        facts = self.store.make(key, lambda: ({}, utility(victim, parts, world))).facts
        named = ("test_accuracy", "train_accuracy", "reference_accuracy", "gap", "test_rows")
        accuracies = {name: facts[name] for name in named if name in facts}
        if cell.protocol.trained_elsewhere:
            return accuracies, facts["seconds_per_query"]
        untrained = self.builder.keys(needed.undefended()).untrained
        probes = (
            self._probe(victim.key, parts, lambda: victim),
            self._probe(untrained, parts, lambda: self.builder.untrained(needed.undefended())),
        )
        counted = wins(*probes) if cell.target.contrastive else {}
        return accuracies | gain(*probes) | counted, facts["seconds_per_query"]

    def _probe(self, encoder: str, parts: Split, build: Callable[[], Victim]) -> Tensor:
        """Return the probe's answers, see ``probe``; ``encoder`` is the key of what is built."""
        key = keys.of_probe(encoder, parts)
        return self.store.make(key, lambda: ({"right": probe(build(), parts)}, {})).tensors["right"]


def _dumped(metrics: Metrics) -> dict[str, Any]:
    return {name: number.model_dump() for name, number in numbers(metrics).items()}
