"""From target and defenses to a served victim, one artifact per phase of training."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privbench.data.row_random import salt
from privbench.games.access import Access
from privbench.methods.context import DefenseContext, TargetContext, seeded
from privbench.methods.defense import Release
from privbench.store.source import computing_digest, digest
from privbench.store.store import Key
from privbench.training.leave_one_out import refit
from privbench.training.loop import Training
from privbench.training.phase import Phase, Stream, TrainingError
from privbench.victims.making import Job, Making, common_world, shared_phases, state, touched
from privbench.victims.served import Behind, Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from privbench.data.examples import Examples
    from privbench.data.split import World
    from privbench.methods.defense import Defense
    from privbench.methods.target import Target
    from privbench.store.store import Store
    from privbench.training.model import Model
    from privbench.training.phase import Progress
    from privbench.victims.making import Entry


class _UntrainedError(Exception):
    """A dry run met models that would have to be trained before it could go on."""

    def __init__(self, phases: dict[Key, bool]) -> None:
        """With their phases, and whether the store holds them."""
        super().__init__(f"{len(phases)} phases come first")
        self.phases = phases


class Workshop:
    """Makes victims and shadows, taking from the store whatever was made before."""

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        progress: Progress | None = None,
        compiled: bool = False,
    ) -> None:
        """``compiled`` runs encoders through torch.compile while training."""
        self.store = store
        self.device = device
        self.progress = progress
        self.compiled = compiled
        self.trained_phases = 0

    def access(self, target: Target, defenses: Sequence[Defense]) -> Access:
        """What a victim of that making grants."""
        granted = target.grants
        for defense in defenses:
            granted = defense.access(granted)
        return granted

    def untrained(self, job: Job) -> Victim:
        """The target's encoder as it is before any training, undefended."""
        making = self._begin(replace(job, defenses=()))
        self._load_own(making, public=False)
        return Victim(
            job.card, making.model, key=digest([making.previous, making.seeds, "untrained"]),
            grants=job.target.grants,
        )  # fmt: skip

    def victim(self, job: Job) -> Victim:
        """Train (or load) and serve."""
        making = self._begin(job)
        (first, early), (rest, late) = making.halves()
        self._train(making, first)
        making.start_of_the_rest()
        for entry in early:
            self._fit(making, entry)
        self._train(making, rest)
        self._after_training(making)
        for entry in late:
            self._fit(making, entry)
        return Victim(
            job.card,
            making.model,
            key=digest([making.previous, making.seeds, making.world.salt("release")]),
            grants=self.access(job.target, job.defenses),
            releases=[release for release, _, _ in making.releases],
            seed=making.world.salt("release"),
            facts=making.told(),
        )

    def train_on(self, job: Job, examples: Examples) -> Model:
        """Train the job's target, undefended, on rows of the caller's choice as its members."""
        world = job.world.replace(members=examples, downstream=examples)
        making = self._begin(replace(job, world=world, defenses=()))
        self._train(making, making.phases)
        return making.model

    def phases(self, job: Job) -> dict[Key, bool]:
        """Keys of the job's phases, and whether the store holds them; no phase is trained.

        Where a defense trains models of its own before the phases can be known, and the store lacks
        them, their phases are there, and stand-ins for the job's.
        """
        try:
            making = self._begin(job, dry=True)
        except _UntrainedError as error:
            before = digest([key.digest for key in error.phases])
            plain = self._begin(replace(job, defenses=()))
            later = [
                key if public else Key(key.kind, {**key.fields, "before": before})
                for _, key, public, _ in plain.plan(plain.phases)
            ]
            return error.phases | {key: key in self.store for key in later}
        keys = []
        for phases, releases in making.halves():
            keys += [key for _, key, _, _ in making.plan(phases)]
            for entry in releases:
                making.previous = making.release_key(entry).digest
        return {key: key in self.store for key in keys}

    def _begin(self, job: Job, *, dry: bool = False) -> Making:
        """Build model, phases and releases; the job's own phases are not trained.

        Raises:
            _UntrainedError: if ``dry``, where a defense needs models that the store lacks.
        """
        contexts = [self._defense_context(job, d, dry=dry) for d in job.defenses]
        acting = list(zip(job.defenses, contexts, strict=True))
        for defense, ctx in acting:
            ctx.world = job.world
            on_data = partial(defense.on_data, job.world, ctx)
            job = replace(job, world=seeded(on_data, ctx.salt("data")))
        for defense, ctx in acting:
            ctx.world = job.world
            ctx._scope = digest([job.base(), self._substrate(), job.seen(defense)])  # noqa: SLF001
        seed = job.world.salt("init")
        built, target_ctx = self._build(job, contexts, seed)
        phases = [
            replace(phase, made_by=(job.target.digest,))
            for phase in job.target.phases(built, job.world, target_ctx)
        ]
        for defense, ctx in acting:
            before = {id(phase) for phase in phases}
            on_phases = partial(defense.on_phases, phases, built, job.world, ctx)
            phases = [
                p if id(p) in before else replace(p, made_by=(*p.made_by, defense.digest))
                for p in seeded(on_phases, ctx.salt("phases"))
            ]
        built.to(self.device)
        seeds, own = self._share(job, built, phases, dry=dry)
        base = digest([job.base(), self._substrate()])
        making = Making(job, built, phases, contexts, base, seeds, own)
        for defense, ctx in acting:
            make = partial(defense.release, job.card, built, ctx)
            release = seeded(make, ctx.salt("release", "init"))
            if release is not None:
                release.place = len(making.releases)
                release.to(self.device).eval().requires_grad_(False)
                making.releases.append((release, defense, ctx))
        return making

    def _share(
        self, job: Job, built: Model, phases: Sequence[Phase], *, dry: bool
    ) -> tuple[dict[str, int], dict[str, Tensor]]:
        """Start from weights that are equal in all worlds where all worlds share phases.

        Returns:
            Seeds of the parts; and the world's own weights of parts that only later phases train.
        """
        seeds = dict.fromkeys(built.parts, job.world.salt("init"))
        shared = shared_phases(phases)
        if not shared:
            return seeds, {}
        later = touched(phases[shared:]) - touched(phases[:shared])
        own = {
            f"{part}.{name}": tensor.clone()
            for part in sorted(later)
            for name, tensor in built[part].state_dict().items()
        }
        common = replace(job, world=common_world(job.world))
        contexts = [self._defense_context(common, defense, dry=dry) for defense in job.defenses]
        seed = common.world.salt("init")
        public, _ = self._build(common, contexts, seed)
        for name, part in public.parts.items():
            built[name].load_state_dict(part.state_dict())
            if name not in later:
                seeds[name] = seed
        return seeds, own

    def _build(
        self, job: Job, contexts: Sequence[DefenseContext], seed: int
    ) -> tuple[Model, TargetContext]:
        ctx = TargetContext(**self._common(job, job.target.name))
        built: Model = seeded(partial(job.target.build, job.card, ctx), seed)
        for defense, defense_ctx in zip(job.defenses, contexts, strict=True):
            built = seeded(partial(defense.on_build, built, defense_ctx), salt(seed, defense.name))
        if self.device.type == "cuda":
            built = built.to(memory_format=torch.channels_last)
        return built.to(self.device), ctx

    def _train(self, making: Making, phases: Sequence[Phase]) -> None:
        """Run phases in order, from the last one that the store holds."""
        plan = making.plan(phases)
        done = next((i for i in reversed(range(len(plan))) if self.store.find(plan[i][1])), -1)
        if done >= 0:
            held = self.store.find(plan[done][1])
            assert held is not None  # noqa: S101 - found a moment ago
            self._load_own(making, public=plan[done][2])
            self._load(making.model, held.tensors)
        for phase, key, public, changed in plan[done + 1 :]:
            self._load_own(making, public=public)
            run = partial(self._run_phase, making, phase, changed, public=public)
            self._load(making.model, self.store.make(key, run).tensors)
        for _, key, _, _ in plan:
            held = self.store.find(key)
            if held is not None:
                making.facts.append({"phase": key.fields["phase"], "key": key.digest, **held.facts})
        making.model.eval().requires_grad_(False)

    def _run_phase(
        self, making: Making, phase: Phase, changed: Sequence[str], *, public: bool
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        rows = making.rows(phase).to(self.device)
        if phase.reads == "embeddings":
            phase, rows = self._embedded(making, phase, rows)
        if self.compiled:
            making.model["encoder"].compile()
        run = Training(
            making.model, phase, rows, making.seed(phase, public=public),
            bf16=self.device.type == "cuda",
        )  # fmt: skip
        before = state(making.model, set(making.model.parts) - set(changed))
        facts = run.run(self.progress)
        self.trained_phases += 1
        for name, tensor in state(making.model, set(making.model.parts) - set(changed)).items():
            if not torch.equal(tensor, before[name]):
                raise TrainingError(
                    f"phase '{phase.name}' changed '{name}': name the part in `trains` or `live`"
                )
        return state(making.model, changed), facts

    def _embedded(self, making: Making, phase: Phase, rows: Examples) -> tuple[Phase, Examples]:
        """Embeddings of the frozen encoder, released where the classifier is to train on that.

        They take the place of x in the phase's rows, in its streams and in what it monitors.
        """
        frozen = Victim(
            making.job.card, making.model, key="", grants=Access.EMBEDDINGS,
            releases=[r for r, by, _ in making.fitted if by.feeds_classifier],
            seed=making.world.salt("release"), asker="training",
        )  # fmt: skip

        def embed(examples: Examples) -> Examples:
            return replace(examples, x=frozen.embeddings(examples.x))

        steps, monitor = dict(phase.steps), phase.monitor
        made: dict[int, Stream] = {}  # steps that share a stream go on sharing it
        for name, step in steps.items():
            for stream in step.streams.values():
                made.setdefault(id(stream), replace(stream, rows=embed(stream.rows)))
            streams = {n: made[id(stream)] for n, stream in step.streams.items()}
            steps[name] = replace(step, streams=streams)
        if monitor:
            held = {name: embed(examples) for name, examples in monitor.rows.items()}
            monitor = replace(monitor, rows=held)
        return replace(phase, steps=steps, monitor=monitor), embed(rows)

    def _after_training(self, making: Making) -> None:
        """Let defenses change the weights."""
        for defense, ctx in zip(making.job.defenses, making.contexts, strict=True):
            if "weights" not in defense.stages():
                continue
            key = making.changed_key(defense, ctx)
            ctx._scope = digest([making.previous, making.job.seen(defense)])  # noqa: SLF001
            ctx._refit = partial(self._refit, making)  # noqa: SLF001
            change = partial(
                defense.on_trained, making.model, making.phases, making.world, ctx
            )  # fmt: skip
            artifact = self.store.make(key, partial(_recorded, change, ctx, ctx.salt("trained")))
            making.model.load_state_dict(
                {n: t.to(self.device) for n, t in artifact.tensors.items()}
            )
            making.model.eval().requires_grad_(False)
            making.previous = key.digest
            making.facts.append(
                {"phase": f"{defense.name}: weights", "key": key.digest, **artifact.facts}
            )

    def _refit(
        self, making: Making, phase: Phase, dropped: Tensor, exchanged: Tensor
    ) -> dict[str, Tensor]:
        if phase.reads != "embeddings":
            raise TrainingError(f"phase '{phase.name}' cannot be refitted: it trains the encoder")
        seed = making.seed(phase, public=False)
        phase, rows = self._embedded(making, phase, making.rows(phase).to(self.device))
        return refit(
            making.model, phase, rows, initial=making.initial, seed=seed,
            dropped=dropped.to(self.device), exchanged=exchanged.to(self.device),
        )  # fmt: skip

    def _fit(self, making: Making, entry: Entry) -> None:
        """Let a release learn, from the defender's world."""
        release, defense, ctx = entry
        key = making.release_key(entry)
        if type(release).fit is not Release.fit:
            ctx._scope = digest([making.previous, making.job.seen(defense)])  # noqa: SLF001

            def fit() -> Release:
                release.requires_grad_(True).train()
                release.fit(self._behind(making), making.world, ctx)
                return release

            artifact = self.store.make(key, partial(_recorded, fit, ctx, ctx.salt("release")))
            release.load_state_dict({n: t.to(self.device) for n, t in artifact.tensors.items()})
            release.eval().requires_grad_(False)
            making.facts.append(
                {"phase": f"release of {release.of}", "key": key.digest, **artifact.facts}
            )
        making.previous = key.digest
        making.fitted.append(entry)

    def _behind(self, making: Making) -> Model:
        """The model as a release meets it: behind the embeddings that are released already."""
        released = [r for r, _, _ in making.fitted if r.of == "embedding"]
        if not released:
            return making.model
        return Behind(Victim(
            making.job.card, making.model, key="", grants=Access.EMBEDDINGS, releases=released,
            seed=making.world.salt("release"), asker="training",
        ))  # fmt: skip

    def _substrate(self) -> dict[str, Any]:
        """What every trained number depends on besides methods and data."""
        return {
            "code": computing_digest(__name__, "privbench.data.split"),
            "torch": torch.__version__,
            "device": self.device.type,
            "compiled": self.compiled,
        }

    def _load_own(self, making: Making, *, public: bool) -> None:
        """Once the phases that all worlds share are over, load the world's own initial weights."""
        if not public:
            self._load(making.model, making.own)
            making.own = {}

    def _load(self, built: Model, state: Mapping[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = tensor.to(self.device)
        for part, tensors in parts.items():
            built[part].load_state_dict(tensors)

    def _common(self, job: Job, name: str) -> dict[str, Any]:
        return {
            "card": job.card, "protocol": job.protocol, "device": self.device,
            "store": self.store, "seed": job.world.salt("method", name),
            "sensitive": (), "scope": digest([job.base(), self._substrate(), job.world.digest()]),
        }  # fmt: skip

    def _defense_context(self, job: Job, defense: Defense, *, dry: bool = False) -> DefenseContext:
        def fit(worlds: Sequence[World]) -> list[Model]:
            branches = [replace(world, branch=i) for i, world in enumerate(worlds, start=1)]
            jobs = [replace(job, world=branch, defenses=()) for branch in branches]
            if dry:
                phases = {key: held for one in jobs for key, held in self.phases(one).items()}
                if not all(phases.values()):
                    raise _UntrainedError(phases)
            models, begun = [], time.perf_counter()
            for one in jobs:
                making = self._begin(one)
                self._train(making, making.phases)
                ctx.spent |= making.told()["spent"]
                models.append(making.model.eval())
            ctx.waited += time.perf_counter() - begun
            return models

        common = self._common(job, defense.family or defense.name)
        if defense.uses_attributes:  # others do not hear of them: so `none` is shared by all
            common["sensitive"] = job.sensitive
        common["scope"] = digest([job.base(), self._substrate(), job.seen(defense)])
        ctx = DefenseContext(world=job.world, fit=fit, **common)  # fit adds to what it spent
        return ctx


def _recorded(
    change: Callable[[], nn.Module], ctx: DefenseContext, seed: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state that a defense makes, and what it notes and claims meanwhile, for the store."""
    before = ctx.notes, ctx.claims
    ctx.notes, ctx.claims = {}, []
    changed, timing = ctx.timed(partial(seeded, change, seed))
    facts = {"notes": ctx.notes, "claims": ctx.claims, **timing}
    ctx.notes, ctx.claims = before
    return {n: t.detach().contiguous() for n, t in changed.state_dict().items()}, facts
