"""Runs one trial: build the victim, pose the question, run the attack, score its answer."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import torch

from privbench.boards.records import Cost, Number, Record
from privbench.data.examples import Examples, adopted
from privbench.data.split import Split, cut
from privbench.data.validation import validated
from privbench.errors import BadInputError
from privbench.games import left_out
from privbench.games.catalog import GAMES
from privbench.games.controls import Pixels
from privbench.games.oracle import Oracle
from privbench.grid.cell import Trial, code_digest, dataset_of, learning_from_reference
from privbench.grid.outcome import encodable, new_record, reason
from privbench.grid.per_sample import gathered
from privbench.grid.plugins import named_answer
from privbench.grid.seal import commitment
from privbench.methods.context import Shadow
from privbench.store.source import digest, source_digest
from privbench.store.store import Key
from privbench.training.process_state import known, threads
from privbench.victims.build import Builder
from privbench.victims.play import (
    Match,
    Models,
    Trainer,
    as_adversary_sees,
    gain,
    key_as_adversary_sees,
    probe,
    utility,
)
from privbench.victims.served import Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from privbench.games.game import Game, Metrics
    from privbench.games.oracle import Served
    from privbench.grid.graph import Role
    from privbench.grid.isolated import Apart
    from privbench.methods.cell import Cell
    from privbench.methods.dataset import Dataset
    from privbench.methods.target import Target
    from privbench.store.artifacts import Artifact
    from privbench.store.store import Store
    from privbench.training.phase import Progress
    from privbench.victims.spec import VictimSpec


class TrialRunner:
    """Runs trials. Everything that trials share is computed once and kept in the store.

    Attributes:
        store: store of artifacts.
        builder: builds victims.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        root: Path | None = None,
        progress: Progress | None = None,
        compiled: bool = False,
        threads: int = 1,
        apart: Apart | None = None,
        nonce: str = "",
    ) -> None:
        """Create a runner.

        Args:
            store: store of artifacts.
            device: device of all models.
            root: folder of datasets.
            progress: shows training.
            compiled: whether encoders are compiled by torch.compile.
            threads: number of threads of each trial.
            apart: the process in which attacks answer; None for this one.
            nonce: of sealed splits; "" for splits that follow from the seed.
        """
        self.apart = apart
        self.nonce = nonce
        self.store = store
        self.device = device
        self.root = root
        self.builder = Builder(store, device, progress=progress, compiled=compiled, threads=threads)
        self._examples: dict[str, Examples] = {}
        self._splits: dict[str, Split] = {}
        self._victims: dict[str, Victim] = {}
        self._making = 0.0  # seconds to build or load the victims and shadows of this trial

    def run(self, trial: Trial) -> Record:
        """Run a trial; any error inside the cell gives a failed record.

        Raises:
            KeyboardInterrupt: the only exception that is not recorded.
        """
        with threads(self.builder.threads):
            return self._run(trial)

    def _run(self, trial: Trial) -> Record:
        record = new_record(trial, self.device)
        begun, self._making = time.perf_counter(), 0.0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            self._check_seal(trial)
            self._fill(record, trial)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - failure is data, and so is sys.exit()
            record.status, record.reason = "failed", reason(error)
            record.traceback = encodable(traceback.format_exc())
        record.cost.seconds = time.perf_counter() - begun - self._making
        record.cost.peak_bytes = _peak(self.device) + (self.apart.peak if self.apart else 0)
        return record

    def make(self, trial: Trial, role: Role, last: str) -> None:
        """Make a node of the graph for the trial.

        That is the baselines, or the stages of a victim up to the key with digest ``last``.
        """
        self._check_seal(trial)
        with threads(self.builder.threads):
            if role.name == "baselines":
                self._baselines(trial.cell, trial.seed)
                return
            spec = self._specs(trial)[role.name]
            if role.inner is not None:
                inner = [one for stage in self.builder.draft(spec).stages for one in stage.inner]
                spec = inner[role.inner]
            self.builder.make_until(spec, last)

    def _check_seal(self, trial: Trial) -> None:
        if trial.sealed != commitment(self.nonce):
            raise BadInputError("this trial was sealed by another run: run the command again")

    def _fill(self, record: Record, trial: Trial) -> None:
        cell = trial.cell
        models = self.models(cell, trial.seed)
        parts = models.split
        record.split = parts.hashes()
        victims = [self._victim(spec) for spec in models.victims()]
        made, game = victims[0], models.game
        metrics, facts = self._play(models, game, victims)
        record.metrics = _numbers(metrics)
        audit = game.audit(made.facts["claims"], facts["answer"], facts["truth"], parts)
        record.metrics |= _numbers(audit)
        record.metrics |= _numbers(self._left_out(models, game))
        record.sizes = facts["sizes"]
        stages = {d.name: sorted(d.stages()) for d in cell.defenses if d.stages()}
        record.notes = {
            **({"stages": stages} if stages else {}), **made.facts["notes"], **facts["notes"],
        }  # fmt: skip
        if reused := learning_from_reference(cell):
            record.notes["reference accuracy"] = f"optimistic: {reused} learns from these rows"
        record.claims = made.facts["claims"]
        made_on = [machine for one in victims for machine in one.facts["made_on"]]
        record.provenance["made_on"] = _distinct(made_on + facts["made_on"])
        record.updates = _updates(made)
        record.cost = Cost(
            seconds_training=sum((_spent(victims) | facts["spent_shadows"]).values()),
            queries_per_sample=facts["queries_per_sample"],
            queries_own=facts["queries_own"],
        )
        controls: dict[str, Metrics] = {}
        answers = {"victim": facts["answer"]}
        for name in game.controls:
            scored, told = self._play(models, game, self._control(name, models))
            controls[name] = game.controlled(name, scored, parts)
            record.controls[name] = _numbers(controls[name])
            answers[name] = told["answer"]
        record.baselines = self._baselines(cell, trial.seed)
        record.utility = self._utility(models, made)
        record.flags = [
            *game.suspicions(controls, record.sizes), *idle_encoder(cell.target, record.utility),
        ]  # fmt: skip
        content = gathered(game, cell, parts, facts["truth"], answers)
        if content:
            record.attach(content)

    # ---- what trials share ------------------------------------------------------------------

    def split(self, cell: Cell, seed: int) -> Split:
        """Split the cell's dataset; equal for all cells of that dataset, protocol and seed."""
        at = digest([dataset_of(cell).digest, cell.protocol, seed])
        if at not in self._splits:
            rows = self._rows(dataset_of(cell))
            self._splits[at] = cut(rows, cell.card, cell.protocol, seed, self.nonce)
        return self._splits[at]

    def _rows(self, dataset: Dataset) -> Examples:
        if dataset.digest not in self._examples:
            with known(0):
                rows = validated(dataset.load(self.root), dataset.card(self.root))
            self._examples[dataset.digest] = rows.to(self.device)
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

    def models(self, cell: Cell, seed: int) -> Models:
        """Return the models that the cell needs under that seed."""
        parts = self.split(cell, seed)
        return Models(cell, parts, self.adversary_split(cell, parts))

    def _victim(self, spec: VictimSpec, room: int = 64) -> Victim:
        """Build or load a victim; at most ``room`` of them stay in memory."""
        at = spec.identity
        if at not in self._victims:
            while len(self._victims) >= room:
                self._victims.pop(next(iter(self._victims)))
            begun = time.perf_counter()
            try:
                self._victims[at] = self.builder.victim(spec)
            finally:
                self._making += time.perf_counter() - begun
        return self._victims[at]

    def _shadows(
        self, cell: Cell, worlds: Sequence[tuple[VictimSpec, Examples]]
    ) -> tuple[Shadow, ...]:
        """Build or load the shadows that the attack declared."""
        shadows = []
        for spec, others in worlds:
            made = self._victim(spec, room=64 + len(worlds))
            asker = cell.attack.name
            mine = Oracle(
                made.session(asker), made.grants, asker=asker, store=self.store, models=len(worlds)
            )
            shadows.append(Shadow(spec.world, others, mine, made.model))
        return tuple(shadows)

    def _control(self, name: str, models: Models) -> list[Served]:
        if name == "null":
            return [self._victim(spec) for spec in models.nulls()]
        if name == "untrained":
            return [self.builder.untrained(models.undefended())]
        return [Pixels(models.cell.card)]

    def specs(self, trial: Trial) -> dict[str, VictimSpec]:
        """All victims that the trial needs; no shadows if the store holds its answers."""
        specs = self._specs(trial)
        shadows = [name for name in specs if name.startswith("shadow")]
        if shadows and self._answered(self.models(trial.cell, trial.seed)):
            return {name: spec for name, spec in specs.items() if name not in shadows}
        return specs

    def _specs(self, trial: Trial) -> dict[str, VictimSpec]:
        """The victims, their nulls and the shadows."""
        models = self.models(trial.cell, trial.seed)
        specs = _named("victim", models.victims())
        if "null" in models.game.controls:
            specs |= _named("null", models.nulls())
        shadows = models.shadows()
        return specs | {f"shadow {i}": spec for i, (spec, _) in enumerate(shadows)}

    # ---- one game ---------------------------------------------------------------------------

    def _left_out(self, models: Models, game: Game) -> Metrics:
        """Return the leak on canaries with every shadow in the victim's place; see ``left_out``."""
        shadows, wanted = models.shadows(), models.cell.attack.shadows
        planted = models.split.protocol.canaries and models.cell.attack.max_rows is None
        if not planted or wanted.origin != "online" or wanted.count < left_out.FEWEST:
            return {}
        scores, member = [], []
        for i, (spec, _) in enumerate(shadows):
            judges = [shadows[j] for j in left_out.judges(i, len(shadows))]
            _, facts = self._play(models, game, [self._victim(spec)], judges)
            scores.append(facts["answer"].scores)
            member.append(spec.world.contains(models.split.candidates))
        return left_out.left_out(torch.stack(scores).cpu().numpy(),
                                 torch.stack(member).cpu().numpy())  # fmt: skip

    def _play(
        self,
        models: Models,
        game: Game,
        victims: Sequence[Served],
        shadows: Sequence[tuple[VictimSpec, Examples]] | None = None,
    ) -> tuple[Metrics, dict[str, Any]]:
        """Pose the question about each victim, get the answers and score them together.

        Without ``shadows`` the attack gets all that it declared.
        """
        shadows = models.shadows() if shadows is None else shadows
        truth, held = None, []
        for served in victims:
            truth, answer = self._ask(models, game, served, shadows)
            held.append(answer)
        recorded = [self.builder.recorded(spec) for spec, _ in shadows]
        facts = dict(held[0].facts)
        facts["sizes"] = game.sizes(truth)
        facts["spent_shadows"] = {k: s for one in recorded for k, s in one["spent"].items()}
        facts["made_on"] = [answer.facts["made_on"] for answer in held]
        facts["made_on"] += [machine for one in recorded for machine in one["made_on"]]
        facts["queries_own"] = sum(answer.facts["queries_own"] for answer in held)
        total = max(sum(facts["sizes"].values()), 1)
        facts["queries_per_sample"] = sum(answer.facts["queries"] for answer in held) / total
        facts["answer"], facts["truth"] = game.unpack(_joined(held)), truth
        return game.score(facts["answer"], truth), facts

    def _ask(
        self,
        models: Models,
        game: Game,
        served: Served,
        shadows: Sequence[tuple[VictimSpec, Examples]],
    ) -> tuple[Any, Artifact]:
        """Return the truth, and the answer about one victim, from the store if it is there.

        The answer's key needs the shadows' keys only: a finished answer loads no shadow.
        """
        cell, parts, pool = models.cell, models.split, models.pool
        attack = cell.attack
        if isinstance(served, Victim):
            served = served.session(attack.name)
        question, truth = game.pose(
            parts, served, max_rows=attack.max_rows, sensitive=cell.sensitive
        )
        own = as_adversary_sees(served, adaptive=cell.adversary.adaptive, seed=parts.seed)
        key, scope = self._answer_key(models, shadows, str(served.key), str(own.key))
        match = Match(
            cell, served, own, question, pool.pool, pool.seed,
            Trainer(self.builder, models.of_the_adversary()), self.store, self.device, scope,
        )  # fmt: skip
        answer = self.apart.answer if self.apart else Match.answer
        return truth, self.store.make(
            key, lambda: named_answer(answer(match, self._shadows(cell, shadows)), cell)
        )

    def _answer_key(
        self, models: Models, shadows: Sequence[tuple[VictimSpec, Examples]], served: str, own: str
    ) -> tuple[Key, str]:
        """Return the key of an answer, and the digest of everything that the attack may read.

        Args:
            models: models of the cell.
            shadows: those that the attack gets.
            served: key of the victim or control that the attack queries.
            own: key of the same, as it answers the adversary's own rows.
        """
        cell, parts = models.cell, models.split
        given = {
            "victim": served, "own": own,
            "shadows": [self.builder.plan(spec).key for spec, _ in shadows],
            "sensitive": list(cell.sensitive), "dataset": dataset_of(cell).digest,
            "card": cell.card, "protocol": cell.protocol, "split": parts.digest, "seed": parts.seed,
            "pool": models.pool.digest, "access": str(cell.access),
            "target": cell.target.digest, "code": code_digest(), "torch": torch.__version__,
            "device": self.device.type, "threads": self.builder.threads,
        }  # fmt: skip
        return Key("answer", {"attack": cell.attack.digest, **given}), digest(given)

    def _answered(self, models: Models) -> bool:
        """Return whether the store holds the answers about the victim and all controls."""
        named = models.game.controls
        specs = [*models.victims(), *(models.nulls() if "null" in named else ())]
        asked = [(plan.key, plan.released) for plan in map(self.builder.plan, specs)]
        if "untrained" in named:
            asked.append((self.builder.plan(models.undefended()).untrained, False))
        if "pixels" in named:
            asked.append((Pixels(models.cell.card).key, False))
        for key, released in asked:
            own = key_as_adversary_sees(
                key, released=released, adaptive=models.cell.adversary.adaptive,
                seed=models.split.seed,
            )  # fmt: skip
            if self._answer_key(models, models.shadows(), key, own)[0] not in self.store:
                return False
        return True

    # ---- baselines and utility ----------------------------------------------------------------

    def baselines_key(self, cell: Cell, seed: int) -> Key:
        """Return the key of the baselines; all cells of a question share them."""
        parts = self.split(cell, seed)
        return Key("baselines", {
            "split": parts.digest, "seed": parts.seed, "game": cell.attack.game,
            "rules": source_digest(type(GAMES[cell.attack.game])),
            "dataset": dataset_of(cell).digest,
            "max_rows": cell.attack.max_rows, "sensitive": list(cell.sensitive),
            "code": code_digest(), "torch": torch.__version__, "device": self.device.type,
            "threads": self.builder.threads,
        })  # fmt: skip

    def _baselines(self, cell: Cell, seed: int) -> dict[str, dict[str, Number]]:
        game, parts = GAMES[cell.attack.game], self.split(cell, seed)

        def compute() -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
            question, truth = game.pose(
                parts, Pixels(cell.card), max_rows=cell.attack.max_rows, sensitive=cell.sensitive
            )
            made = game.baselines(parts, question, truth)
            return {}, {"metrics": {name: _dumped(metrics) for name, metrics in made.items()}}

        key = self.baselines_key(cell, seed)
        return {
            name: {m: Number(**value) for m, value in metrics.items()}
            for name, metrics in self.store.make(key, compute).facts["metrics"].items()
        }

    def _utility(self, models: Models, made: Victim) -> dict[str, float]:
        """Return accuracies of the victim and what training gave its encoder.

        See ``utility`` and ``gain`` of ``victims.play``.
        """
        cell, parts = models.cell, models.split
        if cell.card.classes is None or "classifier" not in made.model:
            return {}
        key = Key("utility", {"victim": made.key, "split": parts.digest, "code": code_digest()})

        world = models.victims()[0].world
        facts = self.store.make(key, lambda: ({}, utility(made, parts, world))).facts
        named = ("test_accuracy", "train_accuracy", "reference_accuracy", "gap", "test_rows")
        told = {name: facts[name] for name in named if name in facts}
        untrained = self.builder.plan(models.undefended()).untrained
        return told | gain(
            self._probe(made.key, parts, lambda: made),
            self._probe(untrained, parts, lambda: self.builder.untrained(models.undefended())),
        )

    def _probe(self, encoder: str, parts: Split, build: Callable[[], Victim]) -> Tensor:
        """Return the probe's answers, see ``probe``; ``encoder`` is the key of what is built."""
        key = Key("probe", {"encoder": encoder, "split": parts.digest, "code": code_digest()})
        return self.store.make(key, lambda: ({"right": probe(build(), parts)}, {})).tensors["right"]


def idle_encoder(target: Target, utility: Mapping[str, float]) -> tuple[str, ...]:
    """Flag a contrastive victim whose embedding tells no more than the untrained encoder's.

    It has learnt nothing, so what attacks find in it says nothing about such targets.
    """
    if not target.contrastive or "untrained_accuracy" not in utility:
        return ()
    trained, untrained = utility["probe_accuracy"], utility["untrained_accuracy"]
    if trained > untrained:
        return ()
    told = (
        f"its encoder tells no more than an untrained one: a linear probe has accuracy "
        f"{trained:.3f} on it and {untrained:.3f} untrained; train it for more updates"
    )
    return (told,)


def _numbers(metrics: Metrics) -> dict[str, Number]:
    return {name: Number.of(metric) for name, metric in metrics.items()}


def _named(name: str, specs: Sequence[VictimSpec]) -> dict[str, VictimSpec]:
    """Return the specs by role: ``victim``, ``victim 1``, ``victim 2``, ..."""
    return {f"{name} {i}" if i else name: spec for i, spec in enumerate(specs)}


def _joined(answers: Sequence[Artifact]) -> Mapping[str, Tensor]:
    """Join the tensors of the answers about several victims along their first axis."""
    if len(answers) == 1:
        return answers[0].tensors
    names = answers[0].tensors
    return {name: torch.cat([answer.tensors[name] for answer in answers]) for name in names}


def _spent(victims: Sequence[Victim]) -> dict[str, float]:
    """Return build seconds by artifact; victims may share some."""
    return {key: seconds for made in victims for key, seconds in made.facts["spent"].items()}


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
