"""From target and defenses to a served victim, one artifact per phase of training."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privbench import augmentation, model, training
from privbench.access import Access
from privbench.context import DefenseContext, TargetContext, seeded
from privbench.contracts import Release
from privbench.data import Examples, as_float
from privbench.digests import digest, source_digest
from privbench.keyed import fold, row_keys, salt, uniform
from privbench.store import Key
from privbench.training import Phase, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from privbench.contracts import Defense, Target
    from privbench.data import Card
    from privbench.model import Model
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
    ) -> None:
        """``seed`` keys the draws of the releases."""
        self.card = card
        self.model = trained.eval().requires_grad_(False)
        self.key = key
        self.grants = grants
        self.facts = dict(facts or {})
        self._releases = tuple(releases)
        self._seed = seed
        self._asked = 0

    def embeddings(self, x: Tensor) -> Tensor:
        """Released embeddings (n, d) float32 of x (n, *shape), integer or float in [0, 1]."""
        return self._passes(x, self._embed)

    def log_posteriors(self, x: Tensor) -> Tensor:
        """Log of the released posteriors, (n, k) float64."""
        return self._passes(x, self._log_posteriors)

    def gradients(self, x: Tensor, loss: Callable[[Served, Tensor], Tensor]) -> Tensor:
        """Gradient of the summed loss with respect to x (n, *shape), as float in [0, 1]."""
        x = as_float(x, self.card.scale).clone().requires_grad_()
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
        logits = self.model.logits(self._embed(x)).double()
        log_p = logits.log_softmax(-1)
        if not any(release.of == "posterior" for release in self._releases):
            return log_p
        released = self._released("posterior", x, log_p.exp())
        return released.clamp_min(torch.finfo(released.dtype).tiny).log()

    def _released(self, of: str, x: Tensor, value: Tensor) -> Tensor:
        for i, release in enumerate(self._releases):
            if release.of == of:
                keys = fold(row_keys(x, self.card.scale), salt(self._seed, i))
                if release.fresh:
                    keys = fold(keys, self._asked + 1)
                value = release(x, value, uniform(keys, release.uniforms))
        return value


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
    """A job under way: what has been built and what the next artifact's key depends on."""

    job: Job
    world: World
    model: Model
    phases: list[Phase]
    contexts: list[DefenseContext]
    previous: str
    seeds: dict[str, int]
    releases: list[tuple[Release, DefenseContext, str]] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    facts: list[dict[str, Any]] = field(default_factory=list)


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
        return Victim(
            job.card, making.model, key=digest([making.previous, making.seeds, "untrained"]),
            grants=job.target.grants,
        )  # fmt: skip

    def victim(self, job: Job) -> Victim:
        """Train (or load) and serve."""
        making = self._begin(job)
        first_reader = next(
            (i for i, p in enumerate(making.phases) if p.reads == "embeddings"),
            len(making.phases),
        )
        early = [r for r in making.releases if r[0].classifier_trains_on_it]
        late = [r for r in making.releases if not r[0].classifier_trains_on_it]
        self._train(making, making.phases[:first_reader])
        for release in early:
            self._fit(making, release)
        self._train(making, making.phases[first_reader:], [r[0] for r in early])
        self._after_training(making)
        for release in late:
            self._fit(making, release)
        return Victim(
            job.card,
            making.model,
            key=digest([making.previous, [r[2] for r in making.releases]]),
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

    def _begin(self, job: Job) -> _Making:
        """Build model, phases and releases; nothing is trained."""
        contexts = [self._defense_context(job, d) for d in job.defenses]
        world = job.world
        for defense, ctx in zip(job.defenses, contexts, strict=True):
            world = defense.on_data(world, ctx)
        job = replace(job, world=world)
        target_ctx = TargetContext(**self._common(job, job.target.name))
        seed = world.salt("init")
        built = self._build(job, target_ctx, contexts, seed)
        phases = [
            replace(phase, made_by=(job.target.digest,))
            for phase in job.target.phases(built, world, target_ctx)
        ]
        for defense, ctx in zip(job.defenses, contexts, strict=True):
            before = {id(phase) for phase in phases}
            phases = [
                p if id(p) in before else replace(p, made_by=(*p.made_by, defense.digest))
                for p in defense.on_phases(phases, built, world, ctx)
            ]
        built.to(self.device)
        seeds = dict.fromkeys(built.parts, seed)
        shared = _touched(phases[: _shared_phases(phases)])
        if shared:  # pre-trained once for all worlds, so from weights that are equal in all worlds
            public_seed = salt(world.seed, "public", "init")
            public = self._build(job, target_ctx, contexts, public_seed)
            for name in shared & set(public.parts):
                built[name].load_state_dict(public[name].state_dict())
                seeds[name] = public_seed
        makers = [d for d in job.defenses if "build" in d.stages()]
        base = {
            "target": job.target.digest,
            "built_by": [d.digest for d in makers],
            "card": [job.card.shape, job.card.classes, job.card.scale, job.card.mean, job.card.std],
        }
        making = _Making(job, world, built, phases, contexts, digest(base), seeds)
        for defense, ctx in zip(job.defenses, contexts, strict=True):
            release = defense.release(job.card, built, ctx)
            if release is not None:
                making.releases.append((release.to(self.device), ctx, defense.digest))
        return making

    def _build(
        self, job: Job, ctx: TargetContext, contexts: Sequence[DefenseContext], seed: int
    ) -> Model:
        built: Model = seeded(partial(job.target.build, job.card, ctx), seed)
        for defense, defense_ctx in zip(job.defenses, contexts, strict=True):
            built = seeded(partial(defense.on_build, built, defense_ctx), salt(seed, defense.name))
        if self.device.type == "cuda":
            built = built.to(memory_format=torch.channels_last)
        return built.to(self.device)

    def _train(
        self, making: _Making, phases: Sequence[Phase], early: Sequence[Release] = ()
    ) -> None:
        """Run phases in order, from the last one that the store holds."""
        plan = self._plan(making, phases, early)
        done = next((i for i in reversed(range(len(plan))) if self.store.find(plan[i][1])), -1)
        if done >= 0:
            self._load(making.model, self.store.find(plan[done][1]).tensors)  # type: ignore[union-attr]
        for phase, key, public, touched in plan[done + 1 :]:
            run = partial(self._run_phase, making, phase, early, touched, public=public)
            artifact = self.store.make(key, run)
            self._load(making.model, artifact.tensors)
        for _, key, _, _ in plan:
            held = self.store.find(key)
            if held is not None:
                making.facts.append({"phase": key.fields["phase"], **held.facts})

    def phases(self, job: Job) -> dict[Key, bool]:
        """Keys of the job's phases, and whether the store holds them; nothing is trained."""
        making = self._begin(job)
        early = [r[0] for r in making.releases if r[0].classifier_trains_on_it]
        plan = self._plan(making, making.phases, early)
        return {key: key in self.store for _, key, _, _ in plan}

    def _plan(
        self, making: _Making, phases: Sequence[Phase], early: Sequence[Release]
    ) -> list[tuple[Phase, Key, bool, list[str]]]:
        """Each phase with its key, whether all worlds share it, and the parts changed so far."""
        plan = []
        shared = _shared_phases(making.phases)
        for phase in phases:
            public = making.phases.index(phase) < shared
            key = self._phase_key(making, phase, early, public=public)
            making.previous = key.digest
            making.touched |= _touched([phase])
            plan.append((phase, key, public, sorted(making.touched)))
        return plan

    def _phase_key(
        self, making: _Making, phase: Phase, early: Sequence[Release], *, public: bool
    ) -> Key:
        fresh = _touched([phase]) - making.touched
        streams = {
            f"{step}.{name}": stream.rows.digest()
            for step, s in phase.steps.items()
            for name, stream in s.streams.items()
        }
        rows = self._rows(making.world, phase)
        fields = {
            "phase": phase.name,
            "previous": making.previous,
            "made_by": list(phase.made_by),
            "rows": rows.digest(labels=phase.reads_labels, attributes=phase.reads_attributes),
            "streams": streams,
            # A defense may have looked at all of its world when it changed the phase.
            "world": making.world.digest() if len(phase.made_by) > 1 else None,
            "seed": self._phase_seed(making, phase, public=public),
            "init": {name: making.seeds.get(name) for name in sorted(fresh)},
            "released": [r[2] for r in making.releases if r[0] in early]
            if phase.reads == "embeddings" else [],
            **_substrate(self.device, compiled=self.compiled),
        }  # fmt: skip
        return Key("phase", fields)

    def _run_phase(
        self,
        making: _Making,
        phase: Phase,
        early: Sequence[Release],
        touched: Sequence[str],
        *,
        public: bool,
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        rows = self._rows(making.world, phase)
        if phase.reads == "embeddings":
            rows = replace(rows, x=self._embedded(making, rows, early))
        if self.compiled:
            making.model["encoder"].compile()
        run = Training(
            making.model, phase, rows, self._phase_seed(making, phase, public=public),
            bf16=self.device.type == "cuda",
        )  # fmt: skip
        facts = run.run(self.progress)
        self.trained_phases += 1
        state = {
            f"{name}.{key}": tensor.detach().contiguous()
            for name in touched
            for key, tensor in making.model[name].state_dict().items()
        }
        return state, facts

    def _embedded(self, making: _Making, rows: Examples, early: Sequence[Release]) -> Tensor:
        """Embeddings of the frozen encoder, released where the classifier is to train on that."""
        frozen = Victim(
            making.job.card, making.model, key="", grants=Access.EMBEDDINGS,
            releases=early, seed=making.world.salt("release"),
        )  # fmt: skip
        return frozen.embeddings(rows.x)

    def _after_training(self, making: _Making) -> None:
        """Let defenses change the weights."""
        for defense, ctx in zip(making.job.defenses, making.contexts, strict=True):
            if "weights" not in defense.stages():
                continue
            key = Key("trained", {
                "previous": making.previous, "by": defense.digest,
                "world": making.world.digest(), "seed": ctx.salt("trained"),
                **_substrate(self.device, compiled=self.compiled),
            })  # fmt: skip
            ctx._scope = digest([making.previous, making.world.digest()])  # noqa: SLF001

            def change(defense: Defense = defense, ctx: DefenseContext = ctx) -> Any:
                model = defense.on_trained(making.model, making.phases, making.world, ctx)
                state = {n: t.detach().contiguous() for n, t in model.state_dict().items()}
                return state, {"notes": ctx.notes, "claims": ctx.claims}

            artifact = self.store.make(key, change)
            making.model.load_state_dict(
                {n: t.to(self.device) for n, t in artifact.tensors.items()}
            )
            making.previous = key.digest
            making.facts.append({"phase": f"{defense.name}: weights", **artifact.facts})

    def _fit(self, making: _Making, entry: tuple[Release, DefenseContext, str]) -> None:
        """Let a release learn, from the defender's world."""
        release, ctx, by = entry
        if type(release).fit is Release.fit:
            return
        key = Key("release", {
            "previous": making.previous, "by": by, "world": making.world.digest(),
            "seed": ctx.salt("release"), **_substrate(self.device, compiled=self.compiled),
        })  # fmt: skip
        ctx._scope = digest([making.previous, making.world.digest()])  # noqa: SLF001

        def fitted() -> Any:
            making.model.eval()
            release.fit(making.model, making.world, ctx)
            state = {n: t.detach().contiguous() for n, t in release.state_dict().items()}
            return state, {"notes": ctx.notes, "claims": ctx.claims}

        artifact = self.store.make(key, fitted)
        release.load_state_dict({n: t.to(self.device) for n, t in artifact.tensors.items()})
        release.eval().requires_grad_(False)
        making.facts.append({"phase": f"release of {release.of}", **artifact.facts})

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
        if public:
            return salt(making.world.seed, "public", "phase", phase.name)
        return making.world.salt("phase", phase.name)

    def _common(self, job: Job, name: str) -> dict[str, Any]:
        return {
            "card": job.card, "protocol": job.protocol, "sensitive": job.sensitive,
            "device": self.device, "store": self.store, "seed": job.world.salt("method", name),
            "scope": job.world.digest(),
        }  # fmt: skip

    def _defense_context(self, job: Job, defense: Defense) -> DefenseContext:
        def fit(worlds: Sequence[World]) -> list[Model]:
            models = []
            for i, world in enumerate(worlds, start=1):
                making = self._begin(replace(job, world=replace(world, branch=i), defenses=()))
                self._train(making, making.phases)
                models.append(making.model.eval())
            return models

        return DefenseContext(world=job.world, fit=fit, **self._common(job, defense.name))

    def _facts(self, making: _Making) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        claims: list[Any] = []
        for ctx in making.contexts:
            notes |= ctx.notes
            claims += ctx.claims
        for fact in making.facts:
            notes |= fact.get("notes", {})
            claims += [c for c in fact.get("claims", []) if c not in claims]
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
        if phase.rows != "public" or len(phase.made_by) > 1:
            break
        count += 1
    return count


def _substrate(device: torch.device, *, compiled: bool) -> dict[str, Any]:
    """What every trained number depends on besides methods and data."""
    return {
        "core": source_digest(training, model, augmentation),
        "torch": torch.__version__,
        "device": device.type,
        "compiled": compiled,
    }


def _exact(device: torch.device) -> Any:
    """Full float32 while serving: TF32 would make answers depend on the card."""
    if device.type == "cuda":
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return nullcontext()
