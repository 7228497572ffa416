"""One trial: make the victim, pose the question, let the attack answer, score."""

from __future__ import annotations

import copy
import math
import resource
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privbench.boards.provenance import provenance
from privbench.boards.records import Cost, Number, Record
from privbench.data import row_random as keyed
from privbench.data.examples import Card, Examples, adopted
from privbench.data.split import Split, World, cut
from privbench.errors import AccessDeniedError, BadInputError
from privbench.games.attributes import Attributes
from privbench.games.audit import audited
from privbench.games.catalog import GAMES
from privbench.games.controls import Pixels
from privbench.games.membership import Membership
from privbench.games.oracle import Oracle
from privbench.games.reconstruction import Reconstruction
from privbench.grid.cell import Trial, cell_record, code_digest, dataset_of
from privbench.methods.context import AttackContext, Shadow, seeded
from privbench.store.source import digest
from privbench.store.store import Key
from privbench.victims.build import Builder
from privbench.victims.served import Victim
from privbench.victims.spec import VictimSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from privbench.games.game import Game, Metrics
    from privbench.games.oracle import Served
    from privbench.grid.graph import Role
    from privbench.methods.cell import Cell
    from privbench.methods.dataset import Dataset
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target
    from privbench.store.store import Store
    from privbench.training.phase import Progress


class TrialRunner:
    """Runs trials. Everything that trials share is made once and kept in the store.

    Attributes:
        store: of artifacts.
        builder: that makes victims.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        root: Path | None = None,
        progress: Progress | None = None,
        compiled: bool = False,
    ) -> None:
        """``root`` is the folder of data sets."""
        self.store = store
        self.device = device
        self.root = root
        self.builder = Builder(store, device, progress=progress, compiled=compiled)
        self._examples: dict[str, Examples] = {}
        self._splits: dict[str, Split] = {}
        self._victims: dict[str, Victim] = {}
        self._making = 0.0  # seconds that victims and shadows of this trial took to make or load

    def run(self, trial: Trial) -> Record:
        """Run a trial. What goes wrong inside the cell is data: a failed record.

        Raises:
            KeyboardInterrupt: and nothing else.
        """
        record = _record(trial, self.device)
        begun, self._making = time.perf_counter(), 0.0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            self._fill(record, trial)
        except (BadInputError, AccessDeniedError) as error:
            record.status, record.reason = "failed", str(error)
            record.traceback = traceback.format_exc()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - failure is data, and so is sys.exit()
            record.status, record.reason = "failed", f"{type(error).__name__}: {error}"
            record.traceback = traceback.format_exc()
        record.cost.seconds = time.perf_counter() - begun - self._making
        record.cost.peak_bytes = _peak(self.device)
        return record

    def make(self, trial: Trial, role: Role, last: str) -> None:
        """Make the stages of one of the trial's victims, up to the stage of that key."""
        spec = self.specs(trial)[role.name]
        if role.inner is not None:
            inner = [one for stage in self.builder.draft(spec).stages for one in stage.inner]
            spec = inner[role.inner]
        self.builder.make_until(spec, last)

    def _fill(self, record: Record, trial: Trial) -> None:
        cell = trial.cell
        parts = self.split(cell, trial.seed)
        record.split = parts.hashes()
        made = self._victim(cell, parts, parts.victim(), cell.defenses)
        game = GAMES[cell.attack.game]
        metrics, facts = self._play(cell, parts, game, made)
        record.metrics = _numbers(metrics)
        if cell.attack.game == "membership":
            scores = facts["answer"].scores.cpu().numpy()
            record.metrics |= _numbers(audited(made.facts["claims"], scores, facts["truth"], parts))
        record.sizes = facts["sizes"]
        stages = {d.name: sorted(d.stages()) for d in cell.defenses if d.stages()}
        record.notes = {
            **({"stages": stages} if stages else {}), **made.facts["notes"], **facts["notes"],
        }  # fmt: skip
        record.claims = made.facts["claims"]
        record.provenance["made_on"] = _distinct(made.facts["made_on"] + facts["made_on"])
        record.updates = _updates(made)
        record.cost = Cost(
            seconds_training=sum((made.facts["spent"] | facts["spent_shadows"]).values()),
            queries_per_sample=facts["queries_per_sample"],
            queries_own=facts["queries_own"],
        )
        for name in game.controls:
            control, _ = self._play(cell, parts, game, self._control(name, cell, parts))
            record.controls[name] = _numbers(control)
        record.baselines = self._baselines(cell, parts, game)
        record.utility = self._utility(cell, parts, made)

    # ---- what trials share ------------------------------------------------------------------

    def split(self, cell: Cell, seed: int) -> Split:
        """Cut the cell's dataset; equal for every cell of that dataset, protocol and seed."""
        at = digest([dataset_of(cell).digest, cell.protocol, seed])
        if at not in self._splits:
            rows = self._rows(dataset_of(cell))
            self._splits[at] = cut(rows, cell.card, cell.protocol, seed)
        return self._splits[at]

    def _rows(self, dataset: Dataset) -> Examples:
        if dataset.digest not in self._examples:
            self._examples[dataset.digest] = dataset.load(self.root).to(self.device)
        return self._examples[dataset.digest]

    def adversary_split(self, cell: Cell, parts: Split) -> Split:
        """The split with the adversary's pool, which may come from another dataset."""
        dataset = cell.adversary.dataset
        if dataset is None:
            return parts
        at = digest([parts.digest, dataset.digest, parts.seed])
        if at not in self._splits:
            source = dataset.card(self.root)
            rows, card = adopted(self._rows(dataset), source, cell.card)
            self._splits[at] = parts.foreign(rows, card)
        return self._splits[at]

    def _job(
        self,
        cell: Cell,
        world: World,
        defenses: tuple[Defense, ...],
        target: Target | None = None,
        card: Card | None = None,
    ) -> VictimSpec:
        return VictimSpec(
            card or cell.card, cell.protocol, world, target or cell.target, defenses,
            cell.sensitive,
        )  # fmt: skip

    def _victim(
        self,
        cell: Cell,
        parts: Split,
        world: World,
        defenses: tuple[Defense, ...],
        target: Target | None = None,
    ) -> Victim:
        target = target or cell.target
        at = digest([
            parts.card, dataset_of(cell).digest, cell.protocol, parts.digest, world.origin,
            world.index, target.digest, [d.digest for d in defenses],
            cell.sensitive if any(d.uses_attributes for d in defenses) else (),
        ])  # fmt: skip
        if at not in self._victims:
            if len(self._victims) >= 64:  # noqa: PLR2004 - bounds memory, not numbers
                self._victims.pop(next(iter(self._victims)))
            job = self._job(cell, world, defenses, target, parts.card)
            begun = time.perf_counter()
            try:
                self._victims[at] = self.builder.victim(job)
            finally:
                self._making += time.perf_counter() - begun
        return self._victims[at]

    def _shadows(self, cell: Cell, parts: Split) -> list[tuple[Victim, Shadow]]:
        """Exactly the shadows that the attack declared."""
        wanted = cell.attack.shadows
        if wanted.origin == "offline":
            parts = self.adversary_split(cell, parts)
        draw = parts.offline if wanted.origin == "offline" else parts.online
        defenses = cell.defenses if cell.adversary.adaptive else ()
        shadows = []
        for index in range(wanted.count):
            world, others = draw(index)
            made = self._victim(cell, parts, world, defenses, cell.adversary.target)
            mine = Oracle(
                made.session(cell.attack.name),
                made.grants,
                asker=cell.attack.name,
                store=self.store,
            )
            shadows.append((made, Shadow(world, others, mine, made.model)))
        return shadows

    def _control(self, name: str, cell: Cell, parts: Split) -> Served:
        if name == "null":
            return self._victim(cell, parts, parts.null(), cell.defenses)
        if name == "untrained":
            return self.builder.untrained(self._job(cell, parts.victim(), ()))
        return Pixels(cell.card)

    def specs(self, trial: Trial) -> dict[str, VictimSpec]:
        """Everything that the trial needs trained: the victim, its null and its shadows."""
        cell, parts = trial.cell, self.split(trial.cell, trial.seed)
        wanted, adversary = cell.attack.shadows, cell.adversary
        jobs = {"victim": self._job(cell, parts.victim(), cell.defenses)}
        if "null" in GAMES[cell.attack.game].controls:
            jobs["null"] = self._job(cell, parts.null(), cell.defenses)
        if wanted.origin == "offline":
            parts = self.adversary_split(cell, parts)
        draw = parts.offline if wanted.origin == "offline" else parts.online
        defenses = cell.defenses if adversary.adaptive else ()
        for i in range(wanted.count):
            jobs[f"shadow {i}"] = self._job(
                cell, draw(i)[0], defenses, adversary.target, parts.card
            )
        return jobs

    # ---- one game ---------------------------------------------------------------------------

    def _play(
        self, cell: Cell, parts: Split, game: Game, served: Served
    ) -> tuple[Metrics, dict[str, Any]]:
        """Pose, answer (from the store if it was answered before), score."""
        attack = cell.attack
        if isinstance(served, Victim):
            served = served.session(attack.name)
        question, truth = game.pose(
            parts, served, max_rows=attack.max_rows, sensitive=cell.sensitive
        )
        shadows = self._shadows(cell, parts)
        spent = {key: s for made, _ in shadows for key, s in made.facts["spent"].items()}
        made_on = [one for made, _ in shadows for one in made.facts["made_on"]]
        own = self._own(cell, served, parts.seed)
        mine = self.adversary_split(cell, parts)
        given = {
            "victim": served.key, "own": own.key, "shadows": [made.key for made, _ in shadows],
            "sensitive": list(cell.sensitive), "dataset": dataset_of(cell).digest,
            "card": cell.card, "protocol": cell.protocol, "split": parts.digest, "seed": parts.seed,
            "pool": mine.digest, "access": str(cell.access),
            "target": cell.target.digest, "code": code_digest(), "torch": torch.__version__,
            "device": self.device.type,
        }  # fmt: skip
        key = Key("answer", {"attack": attack.digest, **given})
        theirs = tuple(shadow for _, shadow in shadows)
        answering = partial(
            self._answer, cell, mine, (served, own), question, theirs, scope=digest(given)
        )  # fmt: skip
        held = self.store.make(key, answering)
        facts = dict(held.facts)
        facts["sizes"] = game.sizes(truth)
        facts["spent_shadows"] = spent
        facts["made_on"] = [facts["made_on"], *made_on]
        total = max(sum(facts["sizes"].values()), 1)
        facts["queries_per_sample"] = facts["queries"] / total
        facts["answer"], facts["truth"] = _unpacked(attack.game, held.tensors), truth
        return game.score(facts["answer"], truth), facts

    def _answer(
        self,
        cell: Cell,
        parts: Split,
        sides: tuple[Served, Served],
        question: Any,
        shadows: tuple[Shadow, ...],
        *,
        scope: str,
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        attack, (served, mine) = cell.attack, sides
        access = (attack.needs | attack.wants) & cell.access
        asked = Oracle(served, access, asker=attack.name, store=self.store)
        own = Oracle(mine, access, asker=attack.name, store=self.store)
        ctx = AttackContext(
            card=cell.card, protocol=cell.protocol, sensitive=cell.sensitive, device=self.device,
            store=self.store, seed=keyed.salt(parts.seed, "attack", attack.name),
            scope=scope,
            # Shadows stay in memory for other attacks; this one may do what it likes with its own.
            shadows=tuple(replace(s, model=copy.deepcopy(s.model)) for s in shadows),
            auxiliary=GAMES[attack.game].auxiliary(parts), auxiliary_oracle=own,
            data_seed=parts.seed, train=partial(self._train_for, cell, parts),
        )  # fmt: skip
        answer = seeded(partial(attack.answer, asked, question, ctx), ctx.salt("global"))
        given = getattr(question, "embeddings", None)
        queries = asked.queries + (0 if given is None else len(given))
        return _packed(answer), {
            "queries": queries,
            "queries_own": own.queries,
            "notes": _worded({**ctx.notes, **answer.notes}),
        }

    def _own(self, cell: Cell, served: Served, seed: int) -> Served:
        """The victim as it answers rows that the adversary itself releases."""
        if not isinstance(served, Victim) or not served.releases:
            return served
        if not cell.adversary.adaptive:
            return served.unreleased()
        return served.sibling(keyed.salt(seed, "adversary"))

    def _train_for(
        self, cell: Cell, parts: Split, examples: Examples, target: Target | None
    ) -> Any:
        world = replace(parts.offline(0)[0], branch=1)
        job = self._job(cell, world, (), target, parts.card)
        return self.builder.train_on(job, examples)

    # ---- beside the answer --------------------------------------------------------------------

    def _baselines(self, cell: Cell, parts: Split, game: Game) -> dict[str, dict[str, Number]]:
        """Baselines read no victim, so they are the same for every cell of a split and game."""
        key = Key("baselines", {
            "split": parts.digest, "seed": parts.seed, "game": game.name,
            "dataset": dataset_of(cell).digest,
            "max_rows": cell.attack.max_rows, "sensitive": list(cell.sensitive),
            "code": code_digest(),
        })  # fmt: skip

        def compute() -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
            question, truth = game.pose(
                parts, Pixels(cell.card), max_rows=cell.attack.max_rows, sensitive=cell.sensitive
            )
            made = game.baselines(parts, question, truth)
            return {}, {"metrics": {name: _dumped(metrics) for name, metrics in made.items()}}

        return {
            name: {m: Number(**value) for m, value in metrics.items()}
            for name, metrics in self.store.make(key, compute).facts["metrics"].items()
        }

    def _utility(self, cell: Cell, parts: Split, made: Victim) -> dict[str, float]:
        """Test accuracy, accuracy on what the classifier trained on, and their difference."""
        if cell.card.classes is None or "classifier" not in made.model:
            return {}
        key = Key("utility", {"victim": made.key, "split": parts.digest, "code": code_digest()})

        def compute() -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
            trained_on = parts.victim().parts[cell.protocol.classifier]
            right = {}
            asked = made.session("utility")
            for name, rows in (("test", parts.test), ("train", trained_on)):
                labelled = rows.select(rows.y >= 0)
                guess = asked.labels(labelled.x)
                right[f"{name}_accuracy"] = float((guess == labelled.y).double().mean())
            return {}, {**right, "gap": right["train_accuracy"] - right["test_accuracy"]}

        facts = self.store.make(key, compute).facts
        return {name: facts[name] for name in ("test_accuracy", "train_accuracy", "gap")}


def _record(trial: Trial, device: torch.device) -> Record:
    return Record(
        trial=trial.digest, cell=cell_record(trial.cell), seed=trial.seed, status="ok",
        phase=trial.cell.protocol.phase, provenance=provenance(device),
    )  # fmt: skip


def failed_record(trial: Trial, reason: str, device: torch.device) -> Record:
    """The record of a trial that could not even run."""
    record = _record(trial, device)
    record.status, record.reason = "failed", reason
    return record


def _worded(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Notes with words for numbers that JSON does not have (an infinite threshold)."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in notes.items()
    }


def _packed(answer: Any) -> dict[str, Tensor]:
    if isinstance(answer, Membership):
        tensors = {"scores": torch.as_tensor(answer.scores).double()}
        if answer.decisions is not None:
            tensors["decisions"] = torch.as_tensor(answer.decisions).bool()
        return tensors
    if isinstance(answer, Attributes):
        return {name: p.double() for name, p in answer.probabilities.items()}
    return {"x": answer.x}


def _unpacked(game: str, tensors: Mapping[str, Tensor]) -> Any:
    if game == "membership":
        return Membership(tensors["scores"], tensors.get("decisions"))
    if game == "attributes":
        return Attributes(dict(tensors))
    if game == "reconstruction":
        return Reconstruction(tensors["x"])
    raise BadInputError(f"no game is called '{game}': known are {', '.join(GAMES)}")


def _numbers(metrics: Metrics) -> dict[str, Number]:
    return {name: Number.of(metric) for name, metric in metrics.items()}


def _dumped(metrics: Metrics) -> dict[str, Any]:
    return {name: number.model_dump() for name, number in _numbers(metrics).items()}


def _distinct(machines: list[Any]) -> list[Any]:
    return [one for i, one in enumerate(machines) if one not in machines[:i]]


def _updates(made: Victim) -> dict[str, int]:
    total: dict[str, int] = {}
    for phase in made.facts["phases"]:
        for part, count in phase.get("updates", {}).items():
            total[part] = total.get(part, 0) + count
    return total


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
