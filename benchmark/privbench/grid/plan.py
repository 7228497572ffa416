"""Turns a suite into planned trials."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter

from privbench.grid.cell import Trial
from privbench.grid.compatible import why_not
from privbench.grid.outcome import encodable
from privbench.ground.errors import BadInputError, PluginError, PrivbenchError, UnknownNameError
from privbench.ground.text import LONGEST, shown
from privbench.ground.values import misfit
from privbench.measure.data import protocol as protocols
from privbench.measure.methods.access import BLACK_BOX
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.process_state import restored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from privbench.grid.suite import AdversarySpec, Ref, Suite
    from privbench.measure.data.examples import Card
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.method import Method
    from privbench.measure.methods.target import Target
    from privbench.plugins.registry import Registry


MOST_TRIALS = 120_000
MOST_SHADOWS = 1_000
MOST_ROWS = 1_000_000_000
_NEEDED = ("members", "nonmembers", "pool")  # parts of a protocol that have no default


@dataclass(frozen=True)
class Planned:
    """A trial, and the reason if it is skipped or has failed already.

    Attributes:
        trial: what is to run.
        skip: why it is skipped.
        failed: what went wrong when a plugin was asked about its cell, and the traceback.
    """

    trial: Trial
    skip: str | None = None
    failed: tuple[str, str] | None = None


def plan(
    suite: Suite,
    registry: Registry,
    *,
    root: Path | None,
    device: str,
    threads: int = 1,
    compiled: bool = False,
) -> list[Planned]:
    """All trials of the grid, with a reason if skipped; nothing is loaded or trained.

    Args:
        suite: what to run.
        registry: of methods.
        root: folder of datasets.
        device: where trials run.
        threads: of each trial.
        compiled: whether encoders are compiled by torch.compile.

    Raises:
        UnknownNameError: for a name or hyperparameter that does not exist.
        BadInputError: for a value out of range, or if no cell of the grid can run.
    """
    with restored():
        resolve = _Resolver(suite, registry)
        cells = []
        for cell in resolve.cells(root):
            cells.append(cell)
            if len(cells) * len(suite.seed_list) > MOST_TRIALS:
                raise BadInputError(
                    f"this grid has more than {MOST_TRIALS:,} trials: split it into several suites"
                )
        resolve.check_settings()
        if suite.match_utility is not None:
            _check_matching(cells)
        judged = [_judged(cell) for cell in cells]
    planned: dict[str, Planned] = {}
    for seed in suite.seed_list:
        for cell, (skip, failed) in zip(cells, judged, strict=True):
            trial = Trial(cell, seed, device, threads, compiled)
            planned.setdefault(trial.digest, Planned(trial, skip, failed))
    if all(skip for skip, _ in judged):
        listed = sorted({skip for skip, _ in judged if skip})
        raise BadInputError(f"nothing in this grid can run: {'; '.join(listed)}")
    return list(planned.values())


def _check_matching(cells: Iterable[Cell]) -> None:
    """Refuse to match utility where there is nothing to compare, or no rows to compare it on."""
    cells = list(cells)
    if not any(all(d.name == "none" for d in cell.defenses) for cell in cells):
        raise BadInputError(
            "match_utility compares defenses with 'none': leave out `baseline: false`"
        )
    for cell in cells:
        if not cell.protocol.parts()["reference"].count(cell.card):
            raise BadInputError(
                "match_utility compares accuracy on reference rows, and protocol "
                f"'{shown(cell.protocol.name)}' has none on {cell.card.name}: give it `reference`"
            )


def _judged(cell: Cell) -> tuple[str | None, tuple[str, str] | None]:
    """Return why a cell is skipped, and what went wrong when its methods were asked.

    A plugin that raises here costs its own cells and no others.
    """
    try:
        _ = cell.attack.shadows.count, cell.attack.max_rows  # asked by everything that follows
        why = why_not(cell)
        return None if why is None else encodable(why), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - failure is data, and so is sys.exit()
        told = str(error) if isinstance(error, PrivbenchError) else _raised(error)
        return None, (encodable(told), encodable(traceback.format_exc()))


def _raised(error: BaseException) -> str:
    return (
        f"a plugin raised {type(error).__name__} while the grid was planned "
        f"({shown(str(error), 160)}): fix the plugin or leave its method out"
    )


def _asked(what: str, call: Callable[..., Any], *given: Any) -> Any:
    """Ask a plugin what every cell of the grid needs; an exception in it ends planning.

    Raises:
        PluginError: one sentence that says what was asked.
    """
    try:
        return call(*given)
    except PrivbenchError:
        raise
    except Exception as error:
        raise PluginError(f"{what}: {_raised(error)}") from error


class _Resolver:
    """Turns names into methods and applies the preset and the settings to them."""

    def __init__(self, suite: Suite, registry: Registry) -> None:
        self.suite = suite
        self.registry = registry
        self.used: set[str] = set()
        self.presets: set[str] = {"cpu"}

    def cells(self, root: Path | None) -> Iterator[Cell]:
        suite = self.suite
        datasets: list[Dataset] = [self._method("dataset", ref) for ref in suite.datasets]
        targets: list[Target] = [self._method("target", ref) for ref in suite.targets]
        stacks = self._stacks()
        controls = [stack for stack in self._controls() if stack not in stacks]
        attacks = self._attacks()
        adversaries = [self._adversary(spec) for spec in suite.adversaries]
        if suite.preset not in self.presets:
            raise UnknownNameError("preset", suite.preset, self.presets)
        for dataset in datasets:
            card: Card = _asked(f"dataset '{dataset.name}'", dataset.card, root)
            sensitive = self._sensitive(card)
            for named in suite.protocols:
                protocol = self._protocol(named, dataset)
                for target in targets:
                    for stack in (*stacks, *controls):
                        for attack in attacks:
                            elsewhere = protocol.trained_elsewhere
                            mine = _distinct(
                                adversaries, dataset, target, stack, attack, elsewhere=elsewhere
                            )
                            for adversary in mine:
                                cell = Cell(
                                    card, protocol, target, stack, adversary, attack, sensitive,
                                    dataset, suite.preset, _pool(adversary, root),
                                )  # fmt: skip
                                if stack not in controls or _suits(cell):
                                    yield cell

    def check_settings(self) -> None:
        """Reject settings for a method that the grid does not use."""
        for name in self.suite.set:
            if name not in self.used:
                raise UnknownNameError("method in --set", name, self.used)

    def _method(self, kind: str, ref: Ref) -> Any:
        name, given = _named(kind, ref)
        method: Method = self.registry.get(kind, name)
        self.used.add(name)
        self.presets |= set(method.presets)
        return method.preset(self.suite.preset).replace(**{**self.suite.set.get(name, {}), **given})

    def _stacks(self) -> list[tuple[Defense, ...]]:
        stacks: list[tuple[Defense, ...]] = []
        if self.suite.baseline or not (self.suite.defenses or self.suite.sweep):
            stacks.append((self._method("defense", "none"),))
        for ref in self.suite.defenses:
            names = [name.strip() for name in ref.split("+")] if isinstance(ref, str) else [ref]
            stack = tuple(self._method("defense", name) for name in names)
            if len({d.name for d in stack}) < len(stack):
                raise BadInputError(
                    f"defense '{shown(ref)}' stacks a method on itself: name it once"
                )
            if len(stack) > 1 and "none" in names:
                raise BadInputError(
                    f"defense '{shown(ref)}' stacks 'none', which does nothing: remove it"
                )
            if stack not in stacks:
                stacks.append(stack)
        for ref in self.suite.sweep:
            stacks += [(one,) for one in self._swept(ref) if (one,) not in stacks]
        return stacks

    def _swept(self, ref: Ref) -> list[Defense]:
        """The settings of a defense, from the weakest to the strongest."""
        name, given = _named("defense", ref)
        if "+" in name:
            raise BadInputError(
                f"sweep '{shown(name)}': a stack has no strength of its own; sweep one defense"
            )
        defense: Defense = self.registry.get("defense", name)
        strength = defense.strength
        if strength is None:
            raise BadInputError(
                f"sweep '{name}': this defense has one setting only; list it under defenses"
            )
        values = given.get(strength.field)
        if strength.field in self.suite.set.get(name, {}) or not isinstance(values, list | None):
            raise BadInputError(
                f"sweep '{name}': it runs over {strength.field}: give no single value; a suite may "
                f"list others, `sweep: [{{{name}: {{{strength.field}: [...]}}}}]`"
            )
        others = {field: value for field, value in given.items() if field != strength.field}
        base: Defense = self._method("defense", {name: others})
        if values is not None:
            strength = replace(strength, sweep=tuple(values))
            if problem := strength.problem(base):
                raise BadInputError(f"sweep '{name}': {problem}")
        return strength.settings(base)

    def _attacks(self) -> list[Attack]:
        attacks: list[Attack] = [self._method("attack", ref) for ref in self.suite.attacks]
        for attack in attacks:
            if _shadows(attack) > MOST_SHADOWS:
                raise BadInputError(
                    f"{attack.name} asks for {shown(attack.shadows.count)} shadows: "
                    f"choose {MOST_SHADOWS:,} or fewer"
                )
        return attacks

    def _controls(self) -> list[tuple[Defense, ...]]:
        """All positive controls, if the suite wants them."""
        if not self.suite.controls:
            return []
        known: list[Defense] = self.registry.all("defense")
        return [(self._method("defense", one.name),) for one in known if one.control]

    def _adversary(self, spec: str | AdversarySpec) -> Adversary:
        if isinstance(spec, str):
            return Adversary(adaptive=spec != "naive", white_box=spec == "white-box")
        target = self._method("target", spec.target) if spec.target is not None else None
        dataset = self._method("dataset", spec.dataset) if spec.dataset is not None else None
        return Adversary(spec.adaptive, target, dataset, spec.white_box)

    def _protocol(self, named: str | dict[str, Any], dataset: Dataset) -> protocols.Protocol:
        if isinstance(named, str):
            return protocols.protocol_named(named, dataset.protocols)
        where = f"protocol '{shown(named.get('name', 'custom'))}'"
        known = [field.name for field in fields(protocols.Protocol)]
        for key in named:
            if key not in known:
                raise UnknownNameError(f"part of {where}", key, known)
        wanted = get_type_hints(protocols.Protocol, include_extras=True)
        checked = {
            key: misfit(TypeAdapter(wanted[key]), named[key], whole=MOST_ROWS) for key in named
        }
        wrong = [f"{key}: {problem}" for key, (_, problem) in checked.items() if problem]
        wrong += [f"{key}: give a number" for key in _NEEDED if key not in named]
        if len(str(named.get("name", ""))) > LONGEST:
            wrong.append(f"name: give at most {LONGEST} characters")
        if wrong:
            raise BadInputError(f"{where}: {'; '.join(wrong)}")
        made = protocols.Protocol(**{key: value for key, (value, _) in checked.items()})
        negative = [f"{key} {part.size}" for key, part in made.parts().items() if part.size < 0]
        if negative:
            raise BadInputError(f"{where}: {', '.join(negative)}: give 0 rows or more")
        return made

    def _sensitive(self, card: Card) -> tuple[str, ...]:
        if self.suite.sensitive is None:
            return card.sensitive
        for name in self.suite.sensitive:
            if name not in card.attributes:
                raise UnknownNameError(f"sensitive attribute of {card.name}", name, card.attributes)
        return tuple(dict.fromkeys(self.suite.sensitive))


def _named(kind: str, ref: Ref) -> tuple[str, dict[str, Any]]:
    """The name of a method and the hyperparameters that are given with it."""
    if isinstance(ref, str):
        return ref, {}
    if len(ref) != 1:
        raise BadInputError(
            f"{kind} {shown(ref)}: write a name, or one name with its hyperparameters"
        )
    ((name, given),) = ref.items()
    return name, given


def _suits(cell: Cell) -> bool:
    """Whether the attack of the cell can find what its control plants."""
    (control,) = cell.defenses
    return _asked(f"defense '{control.name}'", control.incompatible, cell) is None


def _pool(adversary: Adversary, root: Path | None) -> Card | None:
    """Card of the dataset of the adversary's pool, if that is another than the victim's."""
    dataset = adversary.dataset
    return _asked(f"dataset '{dataset.name}'", dataset.card, root) if dataset else None


def _distinct(
    adversaries: Iterable[Adversary],
    dataset: Dataset,
    target: Target,
    stack: tuple[Defense, ...],
    attack: Attack,
    *,
    elsewhere: bool,
) -> Iterator[Adversary]:
    """Adversaries that differ in this cell: naive equals adaptive without a defense.

    Without shadows, their target does not matter, and adaptive and naive differ only if a release
    changes the outputs for the adversary's own rows. Gradients and weights matter only to attacks
    that use them. Giving the victim's own target or dataset is the same as leaving it out. An
    attack may train models without asking for shadows: if the victim was trained ``elsewhere``, all
    of them are of the adversary's target.
    """
    undefended = all(d.stages() == frozenset() for d in stack)
    releases = any("release" in d.stages() for d in stack)
    shadowless = _shadows(attack) == 0
    unused = shadowless and not (elsewhere and "trainable" in attack.requires)
    seen = set()
    for adversary in adversaries:
        kept = replace(
            adversary,
            adaptive=adversary.adaptive or undefended or (shadowless and not releases),
            target=None if unused or adversary.target == target else adversary.target,
            dataset=None if adversary.dataset == dataset else adversary.dataset,
            white_box=adversary.white_box and bool((attack.needs | attack.wants) & ~BLACK_BOX),
        )
        if kept not in seen:
            seen.add(kept)
            yield kept


def _shadows(attack: Attack) -> int:
    """Return how many shadows an attack needs; 1 if it cannot say so, which fails its cells."""
    try:
        return int(attack.shadows.count)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - told for each of its cells, see ``_judged``
        return 1
