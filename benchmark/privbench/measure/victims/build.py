"""Builds victims stage by stage; a stage that was built before is loaded from the store."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from privbench.ground.store.source import digest
from privbench.measure.methods.access import Access
from privbench.measure.methods.context import DefenseContext, seeded
from privbench.measure.training.leave_one_out import refit
from privbench.measure.training.loop import Training
from privbench.measure.training.numerics import USUAL, Numerics
from privbench.measure.training.phase import Phase, Stream, TrainingError
from privbench.measure.victims.plan import Planner
from privbench.measure.victims.reloaded import check_reload
from privbench.measure.victims.served import Behind, Victim
from privbench.measure.victims.stages import Draft, LearnedRelease, Stage, differing, load, state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor, nn

    from privbench.ground.store.artifacts import Artifact
    from privbench.ground.store.store import Key, Store
    from privbench.measure.data.examples import Examples
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Progress
    from privbench.measure.victims.spec import VictimSpec

    Made = tuple[Mapping[str, Tensor], Mapping[str, Any]]


@dataclass(frozen=True)
class VictimKeys:
    """The keys of a victim, which are known before anything is trained.

    Attributes:
        key: key of its answers.
        untrained: key of the answers of the untrained model.
        stages: keys of the artifacts that it consists of.
        released: whether releases change the model's answers.
    """

    key: str
    untrained: str
    stages: tuple[Key, ...]
    released: bool


class Builder(Planner):
    """Plans and builds victims.

    Attributes:
        trained_phases: number of phases that this builder has trained.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        numerics: Numerics = USUAL,
        *,
        progress: Progress | None = None,
    ) -> None:
        """See the class; ``progress`` shows training."""
        super().__init__(store, device, numerics)
        self.progress = progress
        self.trained_phases = 0
        self._keys: dict[str, VictimKeys] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {**vars(self), "progress": None, "trained_phases": 0, "_keys": {}}

    # ---- results ---------------------------------------------------------------------------

    def victim(self, spec: VictimSpec) -> Victim:
        """Build all stages and serve the result."""
        draft = self._made(spec)
        return Victim(
            spec.card, draft.model, key=draft.key, grants=access(spec.target, spec.defenses),
            releases=[one.release for one in draft.releases],
            seed=draft.world.salt("release"), facts=draft.record(),
        )  # fmt: skip

    def untrained(self, spec: VictimSpec) -> Victim:
        """Return the undefended target before any training."""
        draft = self.draft(replace(spec, defenses=()), bare=True)
        self._load_own(draft)
        return Victim(
            spec.card, draft.model, key=_untrained_key(draft), grants=spec.target.grants
        )  # fmt: skip

    def fresh(self, spec: VictimSpec, seed: int) -> Model:
        """Return the undefended target before any training, with initial weights of that seed.

        Of a target that was trained elsewhere, it is the one with random weights.
        """
        bare = spec.protocol.trained_elsewhere
        model, _ = self._build(replace(spec, defenses=()), (), seed, bare=bare)
        return model

    def train_on(self, spec: VictimSpec, examples: Examples) -> Model:
        """Train the undefended target with these rows as its members."""
        examples = examples.rekeyed()  # of what they hold now: the model is kept under these keys
        world = spec.world.replace(members=examples, downstream=examples)
        return self._made(replace(spec, world=world, defenses=())).model

    def planned(self, spec: VictimSpec) -> dict[Key, bool]:
        """Return the keys of all stages, inner victims first, and whether the store holds them."""
        draft = self.draft(spec)
        keys: dict[Key, bool] = {}
        for stage in draft.stages:
            for inner in stage.inner:
                keys |= self.planned(inner)
            if stage.stored:
                keys[stage.key] = stage.key in self.store
        return keys

    def keys(self, spec: VictimSpec) -> VictimKeys:
        """Return the keys of a victim before it is built; cached by identity.

        ``draft`` is what will be done, ``planned`` which artifacts of it the store holds.
        """
        if spec.identity not in self._keys:
            draft = self.draft(spec)
            keys = tuple(stage.key for stage in draft.stages if stage.stored)
            self._keys[spec.identity] = VictimKeys(
                draft.key, _untrained_key(draft), keys, bool(draft.releases)
            )
        return self._keys[spec.identity]

    def recorded(self, spec: VictimSpec) -> dict[str, Any]:
        """Return build seconds by artifact, and machines, of the stages that the store holds."""
        spent: dict[str, float] = {}
        made_on: list[Any] = []
        for key in self.keys(spec).stages:
            fact = self.store.facts(key)
            if fact is not None:
                spent |= {key.digest: fact["seconds"], **fact.get("spent", {})}
                made_on.append(fact["made_on"])
        return {"spent": spent, "made_on": made_on}

    # ---- building --------------------------------------------------------------------------

    def _made(self, spec: VictimSpec) -> Draft:
        draft = self.make_until(spec, None)
        draft.model.eval().requires_grad_(False)
        return draft

    def make_until(self, spec: VictimSpec, last: str | None) -> Draft:
        """Build the stages up to the one whose key has digest ``last``; None for all."""
        draft = self.draft(spec)
        for stage in draft.labels:
            self.store.make(stage.key, partial(self._run_labels, stage))
            if stage.key.digest == last:
                return draft
        if draft.labels:
            draft = self.draft(spec)  # now with the labels
            if any(stage.key not in self.store for stage in draft.labels):
                raise TrainingError("the labels of inner models were deleted during the run")
        for stage in draft.stages:
            self.make(draft, stage)
            if stage.key.digest == last:
                return draft
        if last is not None:
            raise TrainingError(f"no stage has the key {last}: the code changed during the run")
        return draft

    def make(self, draft: Draft, stage: Stage) -> None:
        """Build or load the next stage of a draft, and update the draft."""
        draft.model.eval().requires_grad_(False)
        if stage.after_encoder and not draft.initial:
            draft.keep_initial()
        artifact: Artifact | None = None
        if stage.key.kind == "phase":
            if not stage.public:
                self._load_own(draft)
            artifact = self.store.make(stage.key, partial(self._run_phase, draft, stage))
            load(draft.model, artifact.tensors)
        elif stage.key.kind == "trained":
            artifact = self.store.make(stage.key, partial(self._run_weights, draft, stage))
            draft.model.load_state_dict(artifact.tensors)
            draft.model.eval().requires_grad_(False)
        elif stage.key.kind == "labels":
            artifact = self.store.find(stage.key)
        elif isinstance(stage.of, LearnedRelease):
            if stage.stored:
                artifact = self.store.make(stage.key, partial(self._run_release, draft, stage))
                stage.of.release.load_state_dict(artifact.tensors)
                stage.of.release.eval().requires_grad_(False)
            draft.fitted.append(stage.of)
        if artifact is not None:
            name, key = stage.name, stage.key.digest
            draft.facts.append({"phase": name, "key": key, **artifact.facts})

    def _run_labels(self, stage: Stage) -> Made:
        assert stage.before and not isinstance(stage.of, Phase | LearnedRelease)  # noqa: PT018, S101 - a stage of labels
        models = [self.victim(inner) for inner in stage.inner]
        spent = {key: s for victim in models for key, s in victim.facts["spent"].items()}
        ctx = self._context(stage.before, stage.of)
        trained = [victim.model for victim in models]
        give = partial(stage.of.relabel, ctx.world.members, trained, ctx)
        y, facts = ctx.timed(partial(seeded, give, ctx.salt("data")))
        facts["spent"] |= spent
        names = {stage.of.digest: f"defense {stage.of.label}"}
        return {"y": y}, {"notes": ctx.notes, "claims": ctx.claims, "names": names, **facts}

    def _run_phase(self, draft: Draft, stage: Stage) -> Made:
        phase = stage.of
        assert isinstance(phase, Phase)  # noqa: S101 - a phase's stage
        rows = draft.rows(phase).to(self.device).private()
        if phase.reads == "embeddings":
            phase, rows = self._embedded(draft, phase, rows)
        if self.numerics.compiled:
            draft.model["encoder"].compile()
        run = Training(
            draft.model, phase, rows, draft.seed(phase, public=stage.public),
            bf16=self.numerics.precision == "bf16",
        )  # fmt: skip
        others = set(draft.model.parts) - set(stage.changed)
        before = state(draft.model, others)
        facts = run.run(self.progress, self.store.unfinished(stage.key))
        self.trained_phases += 1
        if changed := differing(draft.model, before):
            raise TrainingError(
                f"phase '{phase.name}' changed '{changed}': name the part in `trains` or `live`"
            )
        return state(draft.model, stage.changed), {**facts, "names": draft.names()}

    def _run_weights(self, draft: Draft, stage: Stage) -> Made:
        defense = stage.of
        assert not isinstance(defense, Phase | LearnedRelease)  # noqa: S101 - a stage of weights
        ctx = self._context(draft.spec, defense, stage.previous, refit=partial(self._refit, draft))
        change = partial(defense.on_trained, draft.model, draft.phases, ctx.world, ctx)
        tensors, facts, _ = _recorded(change, ctx, ctx.salt("trained"))
        return tensors, {**facts, "names": draft.names()}

    def _run_release(self, draft: Draft, stage: Stage) -> Made:
        one = stage.of
        assert isinstance(one, LearnedRelease)  # noqa: S101 - a stage of a release
        ctx = self._context(draft.spec, one.defense, stage.previous)

        behind = self._behind(draft)

        def fit() -> nn.Module:
            learned = copy.deepcopy(one.release)  # what is served gets the stored state only
            learned.requires_grad_(True).train()
            learned.fit(behind, ctx.world, ctx)
            return learned.eval()

        before = state(draft.model, draft.model.parts)
        tensors, facts, learned = _recorded(fit, ctx, ctx.salt("release"))
        if changed := differing(draft.model, before):
            raise TrainingError(
                f"fit() of {one.defense.name}'s release changed '{changed}' of the model: train a "
                "copy, or change weights in on_trained"
            )
        check_reload(learned, one, tensors, behind, draft.world.members)
        return tensors, {**facts, "names": draft.names()}

    def _embedded(self, draft: Draft, phase: Phase, rows: Examples) -> tuple[Phase, Examples]:
        """Replace x by embeddings of the frozen encoder.

        This applies to the phase's rows, its streams and its monitor. If the classifier trains on
        released embeddings, they pass through the release.
        """
        fed = [one.release for one in draft.fitted if one.release.feeds_classifier]
        frozen = self._serving(draft, fed)

        def embed(examples: Examples) -> Examples:
            return replace(examples, x=frozen.embeddings(examples.x))

        steps, monitor = dict(phase.steps), phase.monitor
        made: dict[int, Stream] = {}  # steps that share a stream still share it
        for name, step in steps.items():
            for stream in step.streams.values():
                made.setdefault(id(stream), replace(stream, rows=embed(stream.rows)))
            streams = {n: made[id(stream)] for n, stream in step.streams.items()}
            steps[name] = replace(step, streams=streams)
        if monitor:
            held = {name: embed(examples) for name, examples in monitor.rows.items()}
            monitor = replace(monitor, rows=held)
        return replace(phase, steps=steps, monitor=monitor), embed(rows)

    def _refit(
        self, draft: Draft, phase: Phase, dropped: Tensor, exchanged: Tensor
    ) -> dict[str, Tensor]:
        if phase.reads != "embeddings":
            raise TrainingError(f"phase '{phase.name}' cannot be refitted: it trains the encoder")
        seed = draft.seed(phase, public=False)
        phase, rows = self._embedded(draft, phase, draft.rows(phase).to(self.device))
        return refit(
            draft.model, phase, rows, initial=draft.initial, seed=seed,
            dropped=dropped.to(self.device), exchanged=exchanged.to(self.device),
        )  # fmt: skip

    def _behind(self, draft: Draft) -> Model:
        """Return the model that a release learns from; its embeddings pass the earlier releases."""
        released = [one.release for one in draft.fitted if one.release.of == "embedding"]
        return Behind(self._serving(draft, released)) if released else draft.model

    def _serving(self, draft: Draft, releases: Sequence[Any]) -> Victim:
        return Victim(
            draft.spec.card, draft.model, key="", grants=Access.EMBEDDINGS, releases=releases,
            seed=draft.world.salt("release"), asker="training",
        )  # fmt: skip

    def _load_own(self, draft: Draft) -> None:
        """Load this world's initial weights, after the phases that all worlds share."""
        load(draft.model, draft.own)
        draft.own = {}


def _untrained_key(draft: Draft) -> str:
    return digest([draft.base, draft.seeds, "untrained"])


def access(target: Target, defenses: Sequence[Defense]) -> Access:
    """Return the access that a victim of that target grants under these defenses."""
    granted = target.grants
    for defense in defenses:
        granted = defense.access(granted)
    return granted


def _recorded(
    change: Callable[[], nn.Module], ctx: DefenseContext, seed: int
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], nn.Module]:
    """The state that a defense makes, with what it noted and claimed meanwhile; and its module."""
    changed, timing = ctx.timed(partial(seeded, change, seed))
    facts = {"notes": ctx.notes, "claims": ctx.claims, **timing}
    return {n: t.detach().contiguous() for n, t in changed.state_dict().items()}, facts, changed
