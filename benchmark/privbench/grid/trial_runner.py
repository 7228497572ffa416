"""Runs one trial: build the victim, pose the question, run the attack, score its answer."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from privbench.grid import keys
from privbench.grid.devices import make_deterministic
from privbench.grid.materials import Materials
from privbench.grid.origins import named_answer, others_in, others_serving
from privbench.grid.outcome import encodable, new_record, numbers, reason
from privbench.grid.per_sample import gathered
from privbench.grid.same_answers import SameAnswers
from privbench.grid.trial import Trial, learning_from_reference
from privbench.ground.errors import PluginError
from privbench.ground.store.machine import peak_memory
from privbench.measure.games import left_out
from privbench.measure.games.controls import Pixels
from privbench.measure.training.numerics import USUAL, Numerics
from privbench.measure.training.process_state import threads
from privbench.measure.victims.build import Builder
from privbench.measure.victims.play import (
    Match,
    NeededModels,
    ShadowTrainer,
    Trainer,
    as_adversary_sees,
    key_as_adversary_sees,
)
from privbench.measure.victims.served import Victim
from privbench.plugins.canary import refuse_changed
from privbench.results.provenance import now
from privbench.results.record import Cost, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from privbench.grid.isolated import IsolatedAttack
    from privbench.grid.messages import Role
    from privbench.ground.store.artifacts import Artifact
    from privbench.ground.store.store import Key, Store
    from privbench.measure.data.examples import Examples
    from privbench.measure.games.game import Game, Metrics
    from privbench.measure.methods.oracle import Served
    from privbench.measure.training.phase import Progress
    from privbench.measure.victims.spec import VictimSpec


@dataclass(frozen=True)
class _Scored:
    """The answer about a victim, or about several together, and what the game says of it.

    Attributes:
        metrics: of the answer.
        answer: as the game unpacks it.
        truth: of the question.
        sizes: number of rows of each kind.
        notes: of the attack.
        spent: seconds that the shadows took, by artifact.
        made_on: machines of answers and shadows.
        queries_per_sample: to the victims.
        queries_own: queries about the adversary's own rows.
    """

    metrics: Metrics
    answer: Any
    truth: Any
    sizes: dict[str, int]
    notes: Mapping[str, Any]
    spent: dict[str, float]
    made_on: list[Any]
    queries_per_sample: float
    queries_own: int


class TrialRunner:
    """Runs trials. Everything that trials share is computed once and kept in the store.

    Attributes:
        store: store of artifacts.
        builder: builds victims.
        materials: what trials share.
        same_answers: finds victims that answer otherwise than a fresh process.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        root: Path | None = None,
        progress: Progress | None = None,
        numerics: Numerics = USUAL,
        isolated: IsolatedAttack | None = None,
    ) -> None:
        """Create a runner.

        Args:
            store: store of artifacts.
            device: device of all models.
            root: folder of datasets.
            progress: shows training.
            numerics: of each trial.
            isolated: the process in which attacks answer; None for this one.
        """
        if device.type == "cuda":
            make_deterministic()
        self.store, self.device, self.root = store, device, root
        self.isolated = isolated
        self.builder = Builder(store, device, numerics, progress=progress)
        self.materials = Materials(store, self.builder, root=root)
        self.same_answers = SameAnswers(self.builder)

    def run(self, trial: Trial) -> Record:
        """Run a trial; any error inside the cell gives a failed record.

        Raises:
            KeyboardInterrupt: the only exception that is not recorded.
        """
        with threads(self.builder.numerics.threads):
            return self._run(trial)

    def _run(self, trial: Trial) -> Record:
        record = new_record(trial, self.device)
        begun, shared_before = time.perf_counter(), self._shared
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            refuse_changed()
            self._fill(record, trial)
            refuse_changed(others_in(trial.cell))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - failure is data, and so is sys.exit()
            cost, record = record.cost, new_record(trial, self.device)  # without its numbers so far
            record.cost, record.status, record.reason = cost, "failed", reason(error)
            record.traceback = encodable(traceback.format_exc())
        shared = self._shared - shared_before  # other trials need the victims too
        record.cost.seconds = time.perf_counter() - begun - shared
        record.cost.peak_bytes = self._peak()
        record.provenance["finished"] = now()
        return record

    def _peak(self) -> int:
        """The most bytes of memory that a trial took, of the process and that of its attack."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return peak_memory() + (self.isolated.peak if self.isolated else 0)

    @property
    def _shared(self) -> float:
        """Seconds spent on victims so far."""
        return self.materials.making + self.same_answers.seconds

    def make(self, trial: Trial, role: Role, last: str) -> None:
        """Make a node of the graph for the trial.

        That is the baselines, or the stages of a victim up to the key with digest ``last``.
        """
        with threads(self.builder.numerics.threads):
            if role.name == "baselines":
                self.materials.baselines(trial.cell, trial.seed)
                return
            spec = self.every_spec(trial)[role.name]
            if role.inner is not None:
                inner = [
                    needed for stage in self.builder.draft(spec).stages for needed in stage.inner
                ]
                spec = inner[role.inner]
            whole = role.inner is None and last == self.builder.keys(spec).stages[-1].digest
            if whole and role.name.startswith("victim"):
                self._checked_victims(trial, [spec])  # also where they are trained
            else:
                self.builder.make_until(spec, last)

    def _checked_victims(
        self, trial: Trial, specs: Sequence[VictimSpec]
    ) -> tuple[list[Victim], dict[str, str]]:
        """Build or load victims, and compare what those of plugins answer, see ``SameAnswers``.

        The second value says why no fresh process could be asked; {} if one was.
        """
        victims, notes = [], {}
        if who := others_serving(trial.cell):
            self.same_answers.prepare()
            _refuse_untrained(self.builder, specs[0])
        for spec in specs:
            victims.append(self.materials.victim(spec))
            if not who:
                continue
            parts = self.materials.split(trial.cell, trial.seed)
            if why_not := self.same_answers.check(spec, victims[-1], parts, who):
                notes["fresh process"] = f"not asked: {why_not}"
        return victims, notes

    def _fill(self, record: Record, trial: Trial) -> None:
        cell = trial.cell
        # Rows: which are members, and which are the adversary's.
        needed = self.materials.needed(cell, trial.seed)
        parts = needed.split
        record.split = parts.hashes()
        # Victims: several if the game asks about a property of what a model was trained on.
        specs = needed.victims()
        victims, unchecked = self._checked_victims(trial, specs)
        victim, game = victims[0], needed.game
        # The attack's answer, and what the game says of it.
        scored = self._answers_scored(needed, game, victims)
        record.metrics = numbers(scored.metrics)
        audit = game.audit(victim.facts["claims"], scored.answer, scored.truth, parts)
        record.metrics |= numbers(audit)
        record.metrics |= numbers(self._left_out(needed, game))
        # How it came about: sizes, notes, claims, machines, updates, cost.
        record.sizes = scored.sizes
        stages = {d.name: sorted(d.stages()) for d in cell.defenses if d.stages()}
        record.notes = {
            **({"stages": stages} if stages else {}), **victim.facts["notes"], **scored.notes,
            **unchecked,
        }  # fmt: skip
        if reused := learning_from_reference(cell):
            record.notes["reference accuracy"] = f"optimistic: {reused} learns from these rows"
        record.claims = victim.facts["claims"]
        made_on = [machine for each in victims for machine in each.facts["made_on"]]
        record.provenance["made_on"] = _distinct(made_on + scored.made_on)
        record.updates = _updates(victim)
        record.cost = Cost(
            seconds_training=sum((_spent(victims) | scored.spent).values()),
            seconds_victim=sum(_spent(victims[:1]).values()),
            queries_per_sample=scored.queries_per_sample,
            queries_own=scored.queries_own,
        )
        # Controls: the same attack where there is nothing to find.
        controls: dict[str, Metrics] = {}
        answers = {"victim": scored.answer}
        for name in game.controls:
            control = self._answers_scored(needed, game, self.materials.control(name, needed))
            controls[name] = game.controlled(name, control.metrics, parts)
            record.controls[name] = numbers(controls[name])
            answers[name] = control.answer
        # What a guess without the victim reaches, and what the victim is good for.
        record.baselines = self.materials.baselines(cell, trial.seed)
        record.utility, record.cost.seconds_per_query = self.materials.utility(needed, victim)
        record.flags = list(game.suspicions(controls, record.sizes))
        # Again, after all queries: a plugin may have changed meanwhile.
        self._checked_victims(trial, specs)
        # Answers row by row, so that a new metric needs no new run.
        content = gathered(game, cell, parts, scored.truth, answers)
        if content:
            record.attach(content)

    def specs(self, trial: Trial) -> dict[str, VictimSpec]:
        """All victims that the trial needs; no shadows if the store holds its answers."""
        specs = self.every_spec(trial)
        shadows = [name for name in specs if name.startswith("shadow")]
        if shadows and self._answered(self.materials.needed(trial.cell, trial.seed)):
            return {name: spec for name, spec in specs.items() if name not in shadows}
        return specs

    def every_spec(self, trial: Trial) -> dict[str, VictimSpec]:
        """The victims, their nulls and the shadows, whatever the store holds, by role."""
        needed = self.materials.needed(trial.cell, trial.seed)
        specs = _named("victim", needed.victims())
        if "null" in needed.game.controls:
            specs |= _named("null", needed.nulls())
        shadows = needed.shadows()
        return specs | {f"shadow {i}": spec for i, (spec, _) in enumerate(shadows)}

    # ---- one game ---------------------------------------------------------------------------

    def _left_out(self, needed: NeededModels, game: Game) -> Metrics:
        """Return the leak on canaries with every shadow in the victim's place; see ``left_out``."""
        shadows, wanted = needed.shadows(), needed.cell.attack.shadows
        planted = needed.split.protocol.canaries and needed.cell.attack.max_rows is None
        if not planted or wanted.origin != "online" or wanted.count < left_out.FEWEST:
            return {}
        scores, member = [], []
        for i, (spec, _) in enumerate(shadows):
            judges = [shadows[j] for j in left_out.judges(i, len(shadows))]
            scored = self._answers_scored(needed, game, [self.materials.victim(spec)], judges)
            scores.append(scored.answer.scores)
            member.append(spec.world.contains(needed.split.candidates))
        return left_out.left_out(torch.stack(scores).cpu().numpy(),
                                 torch.stack(member).cpu().numpy())  # fmt: skip

    def _answers_scored(
        self,
        needed: NeededModels,
        game: Game,
        victims: Sequence[Served],
        shadows: Sequence[tuple[VictimSpec, Examples]] | None = None,
    ) -> _Scored:
        """Pose the question about each victim, get the answers and score them together.

        Without ``shadows`` the attack gets all that it declared.
        """
        shadows = needed.shadows() if shadows is None else shadows
        truth, answers = None, []
        for served in victims:
            truth, answer = self._ask(needed, game, served, shadows)
            answers.append(answer)
        recorded = [self.builder.recorded(spec) for spec, _ in shadows]
        made_on = [answer.facts["made_on"] for answer in answers]
        made_on += [machine for shadow in recorded for machine in shadow["made_on"]]
        sizes = game.sizes(truth)
        queries = sum(answer.facts["queries"] for answer in answers)
        joined = game.unpack(_joined(answers))
        return _Scored(
            metrics=game.score(joined, truth), answer=joined, truth=truth, sizes=sizes,
            notes=answers[0].facts["notes"],
            spent={key: took for shadow in recorded for key, took in shadow["spent"].items()},
            made_on=made_on, queries_per_sample=queries / max(sum(sizes.values()), 1),
            queries_own=sum(answer.facts["queries_own"] for answer in answers),
        )  # fmt: skip

    def _ask(
        self,
        needed: NeededModels,
        game: Game,
        served: Served,
        shadows: Sequence[tuple[VictimSpec, Examples]],
    ) -> tuple[Any, Artifact]:
        """Return the truth, and the answer about one victim, from the store if it is there.

        The answer's key needs the shadows' keys only: a finished answer loads no shadow.
        """
        cell, parts, pool = needed.cell, needed.split, needed.pool
        attack = cell.attack
        if isinstance(served, Victim):
            served = served.session(attack.name)
        question, truth = game.pose(
            parts, served, max_rows=attack.max_rows, sensitive=cell.sensitive
        )
        own_view = as_adversary_sees(served, adaptive=cell.adversary.adaptive, seed=parts.seed)
        key, scope = self._answer_key(needed, shadows, str(served.key), str(own_view.key))
        match = Match(
            cell, served, own_view, question, pool.pool, pool.seed,
            Trainer(self.builder, needed.of_the_adversary()), self.store, self.device, scope,
            self._shadow_trainer(needed, shadows),
        )  # fmt: skip
        apart = self.isolated if self.isolated and self.isolated.takes(attack) else None
        answer = apart.answer if apart else Match.answer

        def compute() -> tuple[Any, dict[str, Any]]:
            made = answer(match, self.materials.shadows(cell, shadows))
            refuse_changed(others_in(cell))  # before anything else is computed here
            return named_answer(made, cell)

        return truth, self.store.make(key, compute)

    def _shadow_trainer(
        self, needed: NeededModels, shadows: Sequence[tuple[VictimSpec, Examples]]
    ) -> ShadowTrainer | None:
        """Return what trains shadows on candidates that an attack with online shadows chooses."""
        attack = needed.cell.attack
        if attack.shadows.origin != "online" or not shadows:
            return None
        candidates = needed.split.candidates.without_source()
        return ShadowTrainer(self.builder, shadows, candidates, attack)

    def _answer_key(
        self,
        needed: NeededModels,
        shadows: Sequence[tuple[VictimSpec, Examples]],
        served: str,
        own_key: str,
    ) -> tuple[Key, str]:
        """Return the key of an answer, and the digest of everything that the attack may read.

        Args:
            needed: models of the cell.
            shadows: those that the attack gets.
            served: key of the victim or control that the attack queries.
            own_key: key of the same, as it answers the adversary's own rows.
        """
        known = [self.builder.keys(spec) for spec, _ in shadows]
        return keys.of_answer(
            needed, served, own_key, [one.key for one in known],
            device=self.device.type, numerics=self.builder.numerics,
        )  # fmt: skip

    def _answered(self, needed: NeededModels) -> bool:
        """Return whether the store holds the answers about the victim and all controls.

        Answers about victims that are not there are not looked for: their keys need those of all
        shadows.
        """
        named = needed.game.controls
        specs = [*needed.victims(), *(needed.nulls() if "null" in named else ())]
        known = [self.builder.keys(spec) for spec in specs]
        if any(stage not in self.store for one in known for stage in one.stages):
            return False
        asked = [(one.key, one.released) for one in known]
        if "untrained" in named:
            asked.append((self.builder.keys(needed.undefended()).untrained, False))
        if "pixels" in named:
            asked.append((Pixels(needed.cell.card).key, False))
        for key, released in asked:
            own_key = key_as_adversary_sees(
                key, released=released, adaptive=needed.cell.adversary.adaptive,
                seed=needed.split.seed,
            )  # fmt: skip
            if self._answer_key(needed, needed.shadows(), key, own_key)[0] not in self.store:
                return False
        return True


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
    return {key: seconds for victim in victims for key, seconds in victim.facts["spent"].items()}


def _distinct(machines: list[Any]) -> list[Any]:
    return [machine for i, machine in enumerate(machines) if machine not in machines[:i]]


def _refuse_untrained(builder: Builder, spec: VictimSpec) -> None:
    """Raise PluginError if its defenses took all phases of the target away.

    Such a victim knows no member, and would look as if it were perfectly protected.
    """

    def trains(one: VictimSpec) -> bool:
        return any(phase.epochs for phase in builder.draft(one).phases)

    if not trains(spec) and trains(replace(spec, defenses=())):
        names = " or ".join(one.name for one in spec.defenses if "phases" in one.stages())
        raise PluginError(
            f"on_phases() of defense {names} returned no phase with epochs, so that nothing is "
            "trained: return the phases that it is given, changed or not"
        )


def _updates(victim: Victim) -> dict[str, int]:
    total: dict[str, int] = {}
    for phase in victim.facts["phases"]:
        for part, count in phase.get("updates", {}).items():
            total[part] = total.get(part, 0) + count
    return total
