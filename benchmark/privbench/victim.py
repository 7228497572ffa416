"""From target and defenses to a served victim, one artifact per phase of training."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from privbench import augmentation, context, data, keyed, model, nets, split, training
from privbench import refit as refitting
from privbench.access import Access
from privbench.context import DefenseContext, TargetContext, seeded
from privbench.contracts import Release
from privbench.data import Examples, as_float
from privbench.digests import digest, source_digest
from privbench.keyed import fold, row_keys, salt, uniform
from privbench.model import Model
from privbench.refit import refit
from privbench.store import Key
from privbench.training import Phase, Stream, Training, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from privbench.contracts import Defense, Target
    from privbench.data import Card
    from privbench.oracle import Served
    from privbench.protocol import Protocol
    from privbench.split import World
    from privbench.store import Store
    from privbench.training import Progress

#: Rows per forward pass of a served victim. Fixed, and the last pass is filled up: a row's answer
#: differs in the last bits between batch sizes, and must not depend on what was asked beside it.
ROWS_PER_PASS = 256


class Victim:
    """A trained model as the outside meets it: eval mode, no gradients, releases in between.

    Attributes:
        model: the raw model.
        key: digest of all that the answers depend on.
        grants: what it answers.
        facts: what its making recorded: seconds, phases, notes, claims.
    """

    def __init__(
        self,
        card: Card,
        trained: Model,
        *,
        key: str,
        grants: Access,
        releases: Sequence[Release] = (),
        seed: int = 0,
        facts: Mapping[str, Any] | None = None,
        asker: str = "",
    ) -> None:
        """``seed`` keys the draws of the releases, ``asker`` as well those of fresh ones."""
        self.card = card
        self.model = trained.eval().requires_grad_(False)
        self.key = key
        self.grants = grants
        self.facts = dict(facts or {})
        self._releases = tuple(releases)
        self._seed = seed
        self._asker = asker
        self._asked = 0

    def embeddings(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) float32 of x (n, *shape), integer or float in [0, 1]."""
        return self._passes(x, self._embed)

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Log of the released posteriors, (n, k) float64."""
        return self._passes(x, self._log_posteriors)

    def labels(self, x: Tensor) -> Tensor:
        """Released classes (n,) int64; releases that keep labels are not asked for posteriors."""
        kept = all(r.keeps_labels for r in self._releases if r.of == "posterior")
        ask = self._undefended_log_posteriors if kept else self._log_posteriors
        return self._passes(x, lambda rows: ask(rows).argmax(-1))

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of the summed loss with respect to x (n, *shape), as float in [0, 1]."""
        device = next(self.model.parameters()).device
        x = as_float(x.to(device), self.card.scale).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(_Differentiable(self), x).sum(), x)
        return gradient

    def weights(self) -> Mapping[str, Tensor]:
        """Copies of the trained tensors by name."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def sibling(self, seed: int) -> Victim:
        """The same model behind releases that another party owns."""
        return Victim(
            self.card,
            self.model,
            key=digest([self.key, "sibling", seed]),
            grants=self.grants,
            releases=[release.sibling(seed) for release in self._releases],
            seed=salt(self._seed, "sibling", seed),
            facts=self.facts,
        )

    @property
    def fresh(self) -> bool:
        """Whether asking twice draws twice, so that answers must not be kept."""
        return any(release.fresh for release in self._releases)

    def session(self, asker: str) -> Victim:
        """The same victim with its count of queries at zero: what one asker meets.

        Fresh draws depend on asker and count, and so would otherwise on who asked before.
        """
        return Victim(
            self.card, self.model, key=self.key, grants=self.grants, releases=self._releases,
            seed=self._seed, facts=self.facts, asker=asker,
        )  # fmt: skip

    def unreleased(self) -> Victim:
        """The same model with nothing in between: how a naive adversary sees its own rows."""
        return Victim(
            self.card, self.model, key=digest([self.key, "unreleased"]), grants=self.grants
        )

    @property
    def releases(self) -> tuple[Release, ...]:
        """What stands between the model and the outside, in order."""
        return self._releases

    def _passes(self, x: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        device = next(self.model.parameters()).device
        parts = []
        with torch.no_grad(), _exact(device):
            for start in range(0, len(x), ROWS_PER_PASS):
                rows = x[start : start + ROWS_PER_PASS].to(device)
                held = len(rows)
                if held < ROWS_PER_PASS:
                    filler = rows[:1].expand(ROWS_PER_PASS - held, *rows.shape[1:])
                    rows = torch.cat([rows, filler])
                parts.append(ask(as_float(rows, self.card.scale))[:held])
        self._asked += 1
        return torch.cat(parts)

    def _embed(self, x: Tensor) -> Tensor:
        return self._released("embedding", x, self.model.encode(x).float())

    def _log_posteriors(self, x: Tensor) -> Tensor:
        log_p = self._undefended_log_posteriors(x)
        if not any(release.of == "posterior" for release in self._releases):
            return log_p
        released = self._released("posterior", x, log_p.exp())
        return released.clamp_min(torch.finfo(released.dtype).tiny).log()

    def _undefended_log_posteriors(self, x: Tensor) -> Tensor:
        """Of released embeddings, before any release of posteriors."""
        return self.model.logits(self._embed(x)).double().log_softmax(-1)

    def _released(self, of: str, x: Tensor, value: Tensor) -> Tensor:
        for release in self._releases:
            if release.of == of:
                keys = fold(row_keys(x, self.card.scale), salt(self._seed, release.place))
                if release.fresh:
                    keys = fold(keys, salt(self._seed, "asked", self._asker, self._asked))
                value = release(x, value, uniform(keys, release.uniforms))
        return value


class _Behind(Model):
    """A model whose embeddings are released ones: what a later release learns from."""

    def __init__(self, victim: Victim) -> None:
        nn.Module.__init__(self)
        self.parts = victim.model.parts
        self.scale = victim.model.scale
        self._victim = victim

    def encode(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) of x (n, *shape)."""
        return self._victim.embeddings(x)


class _Differentiable:
    """The victim with gradients flowing from its answers to x."""

    def __init__(self, victim: Victim) -> None:
        self.card = victim.card
        self.grants = victim.grants
        self.key = None
        self.embeddings = victim._embed  # noqa: SLF001 - one class in two roles
        self.log_posteriors = victim._log_posteriors  # noqa: SLF001
        self.gradients = victim.gradients
        self.weights = victim.weights


@dataclass(frozen=True)
class Job:
    """One victim or shadow to be made.

    Attributes:
        card: of the dataset.
        protocol: that cut it.
        world: that it is trained in.
        target: its recipe.
        defenses: in the order in which they act; () for none.
        sensitive: attributes of the cell.
    """

    card: Card
    protocol: Protocol
    world: World
    target: Target
    defenses: tuple[Defense, ...] = ()
    sensitive: tuple[str, ...] = ()


@dataclass
class _Making:
    """A job under way: what has been built and what the next artifact's key depends on.

    Attributes:
        job: with the world as the defenses changed it.
        model: as trained so far.
        phases: all of them, in order.
        contexts: one per defense.
        previous: digest of all that the model depends on so far.
        seeds: part -> seed of its initial weights.
        own: initial weights, of this world, of the parts that only later phases train; the phases
            shared by all worlds run before these are loaded.
        initial: weights of all parts as the phases after the encoder's found them.
        releases: with the defense that each is of.
        fitted: those that have learned what they need.
        touched: parts that have been trained.
        facts: what each stage recorded.
    """

    job: Job
    model: Model
    phases: list[Phase]
    contexts: list[DefenseContext]
    previous: str
    seeds: dict[str, int]
    own: dict[str, Tensor]
    initial: dict[str, Tensor] = field(default_factory=dict)
    releases: list[tuple[Release, Defense, DefenseContext]] = field(default_factory=list)
    fitted: list[Release] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    facts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def world(self) -> World:
        """As the defenses changed it."""
        return self.job.world

    def halves(self) -> tuple[tuple[list[Phase], list[_Entry]], tuple[list[Phase], list[_Entry]]]:
        """Phases, then the releases fitted after them: up to the encoder's last, and the rest.

        Releases of embeddings learn before those of posteriors, which stand behind them.
        """
        at = max((i + 1 for i, p in enumerate(self.phases) if p.trains("encoder")), default=0)
        early = [entry for entry in self.releases if entry[0].classifier_trains_on_it]
        late = [entry for entry in self.releases if not entry[0].classifier_trains_on_it]
        late.sort(key=lambda entry: entry[0].of)
        return (self.phases[:at], early), (self.phases[at:], late)

    def start_of_the_rest(self) -> None:
        """Keep the weights that the phases after the encoder's start from."""
        self.initial = {**_state(self.model, self.model.parts), **self.own}


_Entry = tuple[Release, "Defense", DefenseContext]


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
            facts=self._facts(making),
        )

    def train_on(self, job: Job, examples: Examples) -> Model:
        """Train the job's target, undefended, on rows of the caller's choice as its members."""
        world = job.world.replace(members=examples, downstream=examples)
        making = self._begin(replace(job, world=world, defenses=()))
        self._train(making, making.phases)
        return making.model

    def phases(self, job: Job) -> dict[Key, bool]:
        """Keys of the job's phases, and whether the store holds them; no phase is trained."""
        making = self._begin(job)
        keys = []
        for phases, releases in making.halves():
            keys += [key for _, key, _, _ in self._plan(making, phases)]
            for entry in releases:
                making.previous = self._release_key(making, entry).digest
        return {key: key in self.store for key in keys}

    def _begin(self, job: Job) -> _Making:
        """Build model, phases and releases; the job's own phases are not trained."""
        contexts = [self._defense_context(job, d) for d in job.defenses]
        acting = list(zip(job.defenses, contexts, strict=True))
        for defense, ctx in acting:
            ctx.world = job.world
            on_data = partial(defense.on_data, job.world, ctx)
            job = replace(job, world=seeded(on_data, ctx.salt("data")))
        for defense, ctx in acting:
            ctx.world = job.world
            ctx._scope = digest([_base(job), self._substrate(), self._seen(job, defense)])  # noqa: SLF001
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
        seeds, own = self._share(job, built, phases)
        base = digest([_base(job), self._substrate()])
        making = _Making(job, built, phases, contexts, base, seeds, own)
        for defense, ctx in acting:
            make = partial(defense.release, job.card, built, ctx)
            release = seeded(make, ctx.salt("release", "init"))
            if release is not None:
                release.place = len(making.releases)
                release.to(self.device).eval().requires_grad_(False)
                making.releases.append((release, defense, ctx))
        return making

    def _share(
        self, job: Job, built: Model, phases: Sequence[Phase]
    ) -> tuple[dict[str, int], dict[str, Tensor]]:
        """Start from weights that are equal in all worlds where all worlds share phases.

        Returns:
            Seeds of the parts; and the world's own weights of parts that only later phases train.
        """
        seeds = dict.fromkeys(built.parts, job.world.salt("init"))
        shared = _shared_phases(phases)
        if not shared:
            return seeds, {}
        later = _touched(phases[shared:]) - _touched(phases[:shared])
        own = {
            f"{part}.{name}": tensor.clone()
            for part in sorted(later)
            for name, tensor in built[part].state_dict().items()
        }
        common = replace(job, world=_common_world(job.world))
        contexts = [self._defense_context(common, defense) for defense in job.defenses]
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

    def _train(self, making: _Making, phases: Sequence[Phase]) -> None:
        """Run phases in order, from the last one that the store holds."""
        plan = self._plan(making, phases)
        done = next((i for i in reversed(range(len(plan))) if self.store.find(plan[i][1])), -1)
        if done >= 0:
            held = self.store.find(plan[done][1])
            assert held is not None  # noqa: S101 - found a moment ago
            self._load_own(making, public=plan[done][2])
            self._load(making.model, held.tensors)
        for phase, key, public, touched in plan[done + 1 :]:
            self._load_own(making, public=public)
            run = partial(self._run_phase, making, phase, touched, public=public)
            self._load(making.model, self.store.make(key, run).tensors)
        for _, key, _, _ in plan:
            held = self.store.find(key)
            if held is not None:
                making.facts.append({"phase": key.fields["phase"], **held.facts})
        making.model.eval().requires_grad_(False)

    def _plan(
        self, making: _Making, phases: Sequence[Phase]
    ) -> list[tuple[Phase, Key, bool, list[str]]]:
        """Each phase with its key, whether all worlds share it, and the parts changed so far."""
        plan = []
        shared = {id(phase) for phase in making.phases[: _shared_phases(making.phases)]}
        for phase in phases:
            public = id(phase) in shared
            key = self._phase_key(making, phase, public=public)
            making.previous = key.digest
            making.touched |= _touched([phase])
            plan.append((phase, key, public, sorted(making.touched)))
        return plan

    def _phase_key(self, making: _Making, phase: Phase, *, public: bool) -> Key:
        fresh = _touched([phase]) - making.touched
        reads = phase.reads_attributes
        streams = {
            f"{step}.{name}": stream.rows.digest(attributes=reads)
            for step, s in phase.steps.items()
            for name, stream in s.streams.items()
        }
        watched = phase.monitor.rows if phase.monitor else {}
        makers = [d for d in making.job.defenses if d.digest in phase.made_by]
        fields = {
            "phase": phase.name,
            "previous": making.previous,
            "made_by": list(phase.made_by),
            "rows": self._rows(making.world, phase).digest(
                labels=phase.reads_labels, attributes=reads
            ),
            "attributes": list(reads),
            "streams": streams,
            "monitor": {name: rows.digest() for name, rows in watched.items()},
            # A defense may have looked at all of its world when it changed the phase.
            "world": [self._seen(making.job, d) for d in makers],
            "seed": self._phase_seed(making, phase, public=public),
            "init": {name: making.seeds.get(name) for name in sorted(fresh)},
        }
        return Key("phase", fields)

    def _run_phase(
        self, making: _Making, phase: Phase, touched: Sequence[str], *, public: bool
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        rows = self._rows(making.world, phase)
        if phase.reads == "embeddings":
            phase, rows = self._embedded(making, phase, rows)
        if self.compiled:
            making.model["encoder"].compile()
        run = Training(
            making.model, phase, rows, self._phase_seed(making, phase, public=public),
            bf16=self.device.type == "cuda",
        )  # fmt: skip
        before = _state(making.model, set(making.model.parts) - set(touched))
        facts = run.run(self.progress)
        self.trained_phases += 1
        for name, tensor in _state(making.model, set(making.model.parts) - set(touched)).items():
            if not torch.equal(tensor, before[name]):
                raise TrainingError(
                    f"phase '{phase.name}' changed '{name}': name the part in `trains` or `live`"
                )
        return _state(making.model, touched), facts

    def _embedded(self, making: _Making, phase: Phase, rows: Examples) -> tuple[Phase, Examples]:
        """Embeddings of the frozen encoder, released where the classifier is to train on that.

        They take the place of x in the phase's rows, in its streams and in what it monitors.
        """
        frozen = Victim(
            making.job.card, making.model, key="", grants=Access.EMBEDDINGS,
            releases=[r for r in making.fitted if r.classifier_trains_on_it],
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

    def _after_training(self, making: _Making) -> None:
        """Let defenses change the weights."""
        for defense, ctx in zip(making.job.defenses, making.contexts, strict=True):
            if "weights" not in defense.stages():
                continue
            key = self._change_key("trained", making, defense, ctx)
            ctx._scope = digest([making.previous, self._seen(making.job, defense)])  # noqa: SLF001
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
            making.facts.append({"phase": f"{defense.name}: weights", **artifact.facts})

    def _refit(
        self, making: _Making, phase: Phase, dropped: Tensor, exchanged: Tensor
    ) -> dict[str, Tensor]:
        if phase.reads != "embeddings":
            raise TrainingError(f"phase '{phase.name}' cannot be refitted: it trains the encoder")
        seed = self._phase_seed(making, phase, public=False)
        phase, rows = self._embedded(making, phase, self._rows(making.world, phase))
        return refit(
            making.model, phase, rows, initial=making.initial, seed=seed,
            dropped=dropped.to(self.device), exchanged=exchanged.to(self.device),
        )  # fmt: skip

    def _fit(self, making: _Making, entry: _Entry) -> None:
        """Let a release learn, from the defender's world."""
        release, defense, ctx = entry
        key = self._release_key(making, entry)
        if type(release).fit is not Release.fit:
            ctx._scope = digest([making.previous, self._seen(making.job, defense)])  # noqa: SLF001

            def fit() -> Release:
                release.requires_grad_(True).train()
                release.fit(self._behind(making), making.world, ctx)
                return release

            artifact = self.store.make(key, partial(_recorded, fit, ctx, ctx.salt("release")))
            release.load_state_dict({n: t.to(self.device) for n, t in artifact.tensors.items()})
            release.eval().requires_grad_(False)
            making.facts.append({"phase": f"release of {release.of}", **artifact.facts})
        making.previous = key.digest
        making.fitted.append(release)

    def _behind(self, making: _Making) -> Model:
        """The model as a release meets it: behind the embeddings that are released already."""
        released = [r for r in making.fitted if r.of == "embedding"]
        if not released:
            return making.model
        return _Behind(Victim(
            making.job.card, making.model, key="", grants=Access.EMBEDDINGS, releases=released,
            seed=making.world.salt("release"), asker="training",
        ))  # fmt: skip

    def _release_key(self, making: _Making, entry: _Entry) -> Key:
        return self._change_key("release", making, *entry[1:])

    def _change_key(self, kind: str, making: _Making, by: Defense, ctx: DefenseContext) -> Key:
        """Key of what a defense makes of the model as it stands."""
        return Key(kind, {
            "previous": making.previous, "by": by.digest, "seed": ctx.salt(kind),
            "world": self._seen(making.job, by), "init": making.seeds,
        })  # fmt: skip

    def _seen(self, job: Job, defense: Defense) -> dict[str, Any]:
        """What a defense may look at in its world."""
        sensitive = job.sensitive if defense.uses_attributes else ()
        return {"sensitive": list(sensitive), "world": job.world.digest(sensitive)}

    def _substrate(self) -> dict[str, Any]:
        """What every trained number depends on besides methods and data."""
        return {
            "core": core_digest(),
            "torch": torch.__version__,
            "device": self.device.type,
            "compiled": self.compiled,
        }

    def _load_own(self, making: _Making, *, public: bool) -> None:
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

    def _rows(self, world: World, phase: Phase) -> Examples:
        rows = phase.rows
        seen = world.parts[rows] if isinstance(rows, str) else world.members.select(rows)
        return seen.to(self.device)

    def _phase_seed(self, making: _Making, phase: Phase, *, public: bool) -> int:
        world = _common_world(making.world) if public else making.world
        return world.salt("phase", phase.name)

    def _common(self, job: Job, name: str) -> dict[str, Any]:
        return {
            "card": job.card, "protocol": job.protocol, "device": self.device,
            "store": self.store, "seed": job.world.salt("method", name),
            "sensitive": (), "scope": digest([_base(job), self._substrate(), job.world.digest()]),
        }  # fmt: skip

    def _defense_context(self, job: Job, defense: Defense) -> DefenseContext:
        def fit(worlds: Sequence[World]) -> list[Model]:
            models = []
            for i, world in enumerate(worlds, start=1):
                making = self._begin(replace(job, world=replace(world, branch=i), defenses=()))
                self._train(making, making.phases)
                models.append(making.model.eval())
            return models

        common = self._common(job, defense.family or defense.name)
        if defense.uses_attributes:  # others do not hear of them: so `none` is shared by all
            common["sensitive"] = job.sensitive
        common["scope"] = digest([_base(job), self._substrate(), self._seen(job, defense)])
        return DefenseContext(world=job.world, fit=fit, **common)

    def _facts(self, making: _Making) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        claims: list[Any] = []
        for ctx in making.contexts:
            notes |= ctx.notes
            claims += ctx.claims
        for fact in making.facts:
            notes |= fact.get("notes", {})
            claims += fact.get("claims", [])
        return {
            "seconds": sum(fact.get("seconds", 0.0) for fact in making.facts),
            "phases": [
                {k: f[k] for k in ("phase", "epochs", "updates", "seconds") if k in f}
                for f in making.facts
            ],
            "notes": notes,
            "claims": claims,
        }


def _touched(phases: Sequence[Phase]) -> set[str]:
    """Parts whose state these phases change."""
    return {
        part
        for phase in phases
        for step in phase.steps.values()
        for part in step.trains + step.live
    }


def _shared_phases(phases: Sequence[Phase]) -> int:
    """How many leading phases are the same in every world: public rows, touched by no defense."""
    count = 0
    for phase in phases:
        if not isinstance(phase.rows, str) or phase.rows != "public" or len(phase.made_by) > 1:
            break
        count += 1
    return count


def _common_world(world: World) -> World:
    """Whose seeds the phases have that all worlds share."""
    return replace(world, origin="public", index=0, branch=0)


def _state(trained: Model, parts: Iterable[str]) -> dict[str, Tensor]:
    """Copies of the tensors of these parts."""
    return {
        f"{part}.{name}": tensor.detach().clone(memory_format=torch.contiguous_format)
        for part in parts
        for name, tensor in trained[part].state_dict().items()
    }


def _recorded(
    change: Callable[[], nn.Module], ctx: DefenseContext, seed: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state that a defense makes, and what it notes and claims meanwhile, for the store."""
    before = ctx.notes, ctx.claims
    ctx.notes, ctx.claims = {}, []
    changed: nn.Module = seeded(change, seed)
    facts = {"notes": ctx.notes, "claims": ctx.claims}
    ctx.notes, ctx.claims = before
    return {n: t.detach().contiguous() for n, t in changed.state_dict().items()}, facts


def _base(job: Job) -> dict[str, Any]:
    """What the untrained model and its phases depend on besides the world."""
    return {
        "target": job.target.digest,
        "built_by": [d.digest for d in job.defenses if "build" in d.stages()],
        "card": job.card,
        "protocol": job.protocol,
    }


@cache
def core_digest() -> str:
    """Digest of the modules of the core that make and serve models."""
    return source_digest(
        augmentation, context, data, keyed, model, nets.backbones, nets.layers, nets.resnet, split,
        training, refitting, Victim,
    )  # fmt: skip


def _exact(device: torch.device) -> Any:
    """Full float32 while serving: TF32 would make answers depend on the card."""
    if device.type == "cuda":
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return nullcontext()
