"""The context: services that the core provides to targets, defenses and attacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from privbench.ground.errors import PluginError
from privbench.ground.store.source import source_digest, taken
from privbench.ground.store.store import Key
from privbench.measure.data.row_random import fold, salt, uniform
from privbench.measure.methods.method import Method
from privbench.measure.methods.oracle import Views, views_seed
from privbench.measure.training.process_state import known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from privbench.ground.store.store import Store
    from privbench.measure.data.augmentation import Augmentation
    from privbench.measure.data.examples import Card, Examples
    from privbench.measure.data.protocol import Protocol
    from privbench.measure.data.split import World
    from privbench.measure.methods.oracle import Oracle
    from privbench.measure.methods.target import Target
    from privbench.measure.training.model import Model
    from privbench.measure.training.phase import Phase


#: Values that can stand in a key as they are.
_PLAIN = (bool, int, float, str)


class Context:
    """The services that targets, defenses and attacks share.

    Attributes:
        card: card of the dataset.
        protocol: how the dataset was split.
        sensitive: sensitive attributes of the cell.
        device: device of the tensors.
        notes: facts for the record.
        spent: digest of a shared artifact -> build seconds, even if it was built in another run.
        waited: seconds spent in this run on building or loading shared artifacts.
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
        """Create a context.

        ``seed`` is derived from (seed, world, method name). ``scope`` identifies everything that
        ``once`` may read.
        """
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
        """Return a seed for this purpose, specific to this method and this world."""
        return salt(self._seed, *purpose)

    def generator(self, *purpose: str | int) -> torch.Generator:
        """Return a new generator on the device; the same purpose always gives the same stream."""
        return torch.Generator(device=self.device).manual_seed(self.salt(*purpose))

    def uniform(self, rows: Examples, m: int, *purpose: str | int) -> Tensor:
        """Return (n, m) numbers in [0, 1), keyed by row content; permuting rows permutes them."""
        return uniform(fold(rows.keys, self.salt(*purpose)), m)

    def init(self, build: Callable[[], nn.Module], *purpose: str | int) -> nn.Module:
        """Build a module whose initial weights depend on this purpose only."""
        module: nn.Module = seeded(build, self.salt("init", *purpose))
        return module.to(self.device)

    def once(
        self, name: str, build: Callable[[], Mapping[str, Tensor]], **fields: Any
    ) -> Mapping[str, Tensor]:
        """Compute once and store the result, for work that several settings share.

        Args:
            name: name of the computation.
            build: returns named tensors; its source code is part of the key, and so are numbers
                and texts that it takes from the function around it.
            fields: all hyperparameters that ``build`` depends on besides data, seed and world.

        Raises:
            PluginError: if ``build`` takes a method with hyperparameters from the function around
                it, and no field is given: another hyperparameter would get the same result.
        """
        around = dict(_around(build, set()))
        whole = [
            one for one in around.values() if isinstance(one, Method) and one.hyperparameters()
        ]
        if whole and not fields:
            raise PluginError(
                f"once('{name}') computes with {whole[0].name}, and its key has no hyperparameter "
                "of it: give each that it reads, such as once(…, epochs=self.epochs), or compute "
                "in a function that does not use the method"
            )
        if self._store is None:
            return build()
        named = {
            "name": name, "function": source_digest(build), "fields": fields,
            "taken": {at: one for at, one in around.items() if isinstance(one, _PLAIN)},
        }  # fmt: skip
        made_on = {"torch": torch.__version__, "device": self.device.type}
        key = Key("once", {"scope": self._scope, "seed": self._seed, **made_on, **named})
        begun = time.perf_counter()
        held = self._store.make(key, lambda: self.timed(build))
        self.waited += time.perf_counter() - begun
        self.spent |= {key.digest: held.facts["seconds"], **held.facts["spent"]}
        return {n: tensor.to(self.device) for n, tensor in held.tensors.items()}

    def timed(self, build: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        """Return the result of ``build``, its own seconds and the seconds of shared artifacts."""
        before, begun = (self.spent, self.waited), time.perf_counter()
        self.spent, self.waited = {}, 0.0
        try:
            made = build()
            seconds = time.perf_counter() - begun - self.waited
            return made, {"seconds": seconds, "spent": self.spent}
        finally:
            self.spent, self.waited = before

    def note(self, **facts: Any) -> None:
        """Add facts to the record, next to the metrics."""
        self.notes.update(facts)


def _around(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes from functions around it, by name; also what those take.

    >>> def scaled(k, add):
    ...     return lambda x: k * add(x)
    >>> dict(_around(scaled(3, scaled(2, abs)), set()))
    {'add.k': 2, 'k': 3}
    """
    if id(function) in seen:
        return
    seen.add(id(function))
    held: dict[str, Any] = {}
    if isinstance(function, partial):
        held = {"": function.func, **{str(i): one for i, one in enumerate(function.args)},
                **function.keywords}  # fmt: skip
    elif isinstance(function, MethodType):
        held = {"self": function.__self__, "": function.__func__}
    elif isinstance(function, FunctionType):
        held = taken(function)
    for name, value in held.items():
        if isinstance(value, partial | MethodType | FunctionType):
            yield from ((f"{name}.{at}", one) for at, one in _around(value, seen))
        elif not callable(value) or isinstance(value, Method):
            yield str(name), value


class TargetContext(Context):
    """Context of a target; ``protocol`` says which rows the encoder and the classifier see.

    >>> ctx = TargetContext(card=None, protocol=None, sensitive=(), device=torch.device("cpu"),
    ...                     store=None, seed=0, scope="")
    >>> layer = ctx.init(lambda: torch.nn.Linear(2, 2), "encoder")  # the same weights each time
    >>> torch.equal(layer.weight, ctx.init(lambda: torch.nn.Linear(2, 2), "encoder").weight)
    True
    """


class DefenseContext(Context):
    """Context of a defense.

    >>> from privbench.testing import tiny_split
    >>> split = tiny_split()
    >>> ctx = DefenseContext(
    ...     world=split.victim(), card=split.card, protocol=split.protocol, sensitive=(),
    ...     device=torch.device("cpu"), store=None, seed=0, scope="",
    ... )
    >>> len(ctx.world.members), torch.rand(2, generator=ctx.generator("noise")).shape
    (80, torch.Size([2]))
    >>> ctx.claim(epsilon=8.0, delta=1e-5, adjacency="add/remove", phase="encoder", guarantee=True)
    >>> ctx.claims[0]["epsilon"]
    8.0

    Attributes:
        world: the world of the current training.
        claims: privacy claims for the record.
    """

    def __init__(
        self,
        *,
        world: World,
        refit: Callable[[Phase, Tensor, Tensor], dict[str, Tensor]] | None = None,
        **common: Any,
    ) -> None:
        """Create a context; see ``Context``. Only ``Defense.on_trained`` gets a ``refit``."""
        super().__init__(**common)
        self.world = world
        self.claims: list[Mapping[str, Any]] = []
        self._refit = refit

    def module(self, model: Model, name: str, build: Callable[[], nn.Module]) -> None:
        """Add a part with its own initial weights to the model, unless it already has it."""
        if name not in model:
            model.parts[name] = self.init(build, name)

    def refit(self, phase: Phase, dropped: Tensor, exchanged: Tensor) -> dict[str, Tensor]:
        """Train a phase r more times in parallel, each time without one row.

        Available in ``on_trained`` only.

        Args:
            phase: a phase that reads embeddings and has one plain step; see ``leave_one_out``.
            dropped: (r,) int64 positions in the phase's rows to train without; -1 drops none.
            exchanged: (r,) int64 positions to leave out instead; the dropped row takes their slot.
                -1 for none.

        Returns:
            Name -> (r, ...) tensors of the parts that the phase trains.
        """
        if self._refit is None:
            raise RuntimeError("refit is not available here: call it in Defense.on_trained only")
        return self._refit(phase, dropped, exchanged)

    def claim(self, **terms: Any) -> None:
        """State a claim of differential privacy.

        Terms: ``epsilon``, ``delta``, ``adjacency`` (``add/remove`` or ``replace-one``), ``phase``
        (names joined by +, as in ``Protocol.phase``), ``guarantee`` (left out or false:
        the epsilon is nominal only), optionally ``profile`` (pairs (epsilon, delta) that all hold
        at once, the claimed one among them), and any further facts about the claim.
        """
        self.claims.append(terms)


@dataclass(frozen=True)
class Shadow:
    """A model that the adversary trained, served in the same way as the victim.

    >>> from privbench import Shadows
    >>> from privbench.testing import AnyAttack, arena, memoriser, tiny_split
    >>> class Two(AnyAttack):
    ...     shadows = Shadows(2, "offline")
    >>> _, ctx = arena(Two(), memoriser(tiny_split().victim()))
    >>> shadow = ctx.shadows[0]
    >>> len(shadow.world.members), len(shadow.nonmembers)
    (80, 80)
    >>> shadow.oracle.posteriors(shadow.world.members).shape
    torch.Size([80, 10])

    Attributes:
        world: what it trained on; ``world.contains(rows)`` says which rows were members.
        nonmembers: an equal number of pool rows that it did not train on (for worlds drawn over
            the candidates: the remaining candidates).
        oracle: the shadow behind the adversary's own release; grants all that the target grants.
        model: the raw model, for gradients and weights; the adversary owns it.
    """

    world: World
    nonmembers: Examples
    oracle: Oracle
    model: Model


class AttackContext(Context):
    """Context of an attack.

    >>> from privbench.testing import AnyAttack, arena, memoriser, tiny_split
    >>> _, ctx = arena(AnyAttack(), memoriser(tiny_split().victim()))
    >>> len(ctx.auxiliary), len(ctx.shadows)  # the adversary's rows, and the shadows it declared
    (400, 0)
    >>> ctx.uniform(ctx.auxiliary, 2, "noise").shape  # keyed by the rows
    torch.Size([400, 2])

    Attributes:
        shadows: the shadows that the attack declared, exactly that many.
        auxiliary: the adversary's rows, with labels and attributes.
        auxiliary_oracle: the victim's answers on the adversary's own rows, which the adversary may
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
        siblings: Callable[[int], tuple[Oracle, ...]] | None = None,
        build: Callable[[int], Model] | None = None,
        train_shadow: Callable[[Examples, int], Shadow] | None = None,
        **common: Any,
    ) -> None:
        """Create a context; see ``Context``.

        ``train`` trains a target on chosen rows; ``build`` makes the victim's, with that seed;
        ``train_shadow`` trains a shadow on chosen candidates.
        Without ``siblings`` there is no other oracle than ``auxiliary_oracle``.
        """
        super().__init__(**common)
        self.shadows = shadows
        self.auxiliary = auxiliary
        self.auxiliary_oracle = auxiliary_oracle
        self._data_seed = data_seed
        self._train = train
        self._siblings = siblings
        self._build = build
        self._train_shadow = train_shadow

    def siblings(self, n: int) -> tuple[Oracle, ...]:
        """Return up to n oracles of the victim, each with its own randomness at release.

        Each answers the adversary's own rows as another party would release them: with fresh masks
        and keys, none of them the victim's. The first is ``auxiliary_oracle``, and is the only one
        if the model has no release or the adversary is naive. Queries count as queries on own rows.

        Args:
            n: number of oracles, at least 1.
        """
        return self._siblings(n) if self._siblings else (self.auxiliary_oracle,)

    def views(self, rows: Examples, augmentation: Augmentation, n: int) -> Views:
        """Return n augmented views per row, limited to changes that keep label and attributes."""
        allowed = augmentation.within(self.card.limits or type(augmentation)())
        return Views(rows, allowed, n, views_seed(self._data_seed))

    def train(self, examples: Examples, target: Target | None = None) -> Model:
        """Train the victim's target (or another one) with these rows as members of a new world."""
        return self._train(examples, target)

    def train_shadow(self, members: Examples, number: int) -> Shadow:
        """Train one more shadow, as the declared ones, with chosen candidates as its members.

        For an attack that declares online shadows. With members that it is sure of, a shadow comes
        closer to the victim. Rows that every shadow holds are added, see ``Split.always``.

        Args:
            members: candidates that the shadow holds; labels and order do not count.
            number: from 0 on; another number is trained with other randomness.

        Raises:
            PluginError: if the attack declares no online shadows, or if a member is no candidate.
        """
        if self._train_shadow is None:
            raise PluginError("an attack that trains shadows declares some: Shadows(2, 'online')")
        return self._train_shadow(members, number)

    def untrained(self, *purpose: str | int) -> Model:
        """Build the victim's target, without defenses; the purpose decides its initial weights.

        For an attack that trains the model itself, by phases (``Training``).
        """
        if self._build is None:
            raise RuntimeError("this context cannot build models: pass `build` to AttackContext")
        return self._build(self.salt("untrained", *purpose))


def seeded(build: Callable[[], Any], seed: int) -> Any:
    """Run ``build`` in a known state of the process, with the global generators seeded."""
    with known(seed):
        return build()
