"""What a suite names: methods with their hyperparameters, stacks, adversaries and protocols.

It needs no torch, and no class of a method: the registry may be the index of methods.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter

from privbench.grid.suite import STRONGEST_ATTACKS
from privbench.ground.errors import BadInputError, UnknownNameError, nearest
from privbench.ground.judges import STRONGEST, judges_of
from privbench.ground.text import LONGEST, shown
from privbench.ground.values import misfit
from privbench.measure.data import protocol as protocols
from privbench.measure.methods.adversary import Adversary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from privbench.grid.suite import AdversarySpec, Ref, Suite
    from privbench.measure.methods.attack import Attack
    from privbench.measure.methods.dataset import Dataset
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.method import Method
    from privbench.measure.methods.target import Target
    from privbench.plugins.registry import Registry

_NO_PRESET = "; no method of this run has another one"
MOST_ROWS = 1_000_000_000
_NEEDED = ("members", "nonmembers", "pool")  # parts of a protocol that have no default


class Resolver:
    """Turns names into methods and applies the preset and the settings to them.

    Attributes:
        datasets, targets, attacks, adversaries: of the grid.
        stacks: defenses, from the inner to the outer, of the grid.
        controls: positive controls that the grid adds, as stacks.
    """

    def __init__(self, suite: Suite, registry: Registry) -> None:
        """Look up all that the suite names, except protocols.

        Raises:
            UnknownNameError: for a name or hyperparameter that does not exist.
            BadInputError: for a value out of range.
            PluginError: for a method of a broken plugin.
        """
        self.suite = suite
        self.registry = registry
        self._used: set[str] = set()
        self._presets: set[str] = {"cpu"}
        self.datasets: list[Dataset] = [self._method("dataset", ref) for ref in suite.datasets]
        self.targets: list[Target] = [self._method("target", ref) for ref in suite.targets]
        self.stacks = self._stacks()
        self.controls = [stack for stack in self._controls() if stack not in self.stacks]
        self.attacks = self._attacks()
        self.adversaries = [self._adversary(spec) for spec in suite.adversaries]
        if suite.preset not in self._presets:
            hint = "" if nearest(suite.preset, self._presets) else _NO_PRESET
            raise UnknownNameError("preset", suite.preset, self._presets, hint)
        for name in suite.set:
            if name not in self._used:
                near = nearest(name, self._used)
                if near is None or registry.offers([("", name)]):
                    registry.find(name)
                    raise BadInputError(f"--set {name}: this run has no {name}: it has "
                                        f"{', '.join(sorted(self._used))}")  # fmt: skip
                raise UnknownNameError("method in --set", name, self._used)

    def refuse_sensitive(self, dataset: str, attributes: Iterable[str]) -> None:
        """Refuse attributes to guess that a dataset does not have.

        Raises:
            UnknownNameError: for such a name.
        """
        known = [*attributes]
        for name in self.suite.sensitive or ():
            if name not in known:
                raise UnknownNameError(f"sensitive attribute of {dataset}", name, known)

    def protocol(self, named: str | dict[str, Any], dataset: Dataset) -> protocols.Protocol:
        """Return a protocol that the suite names or writes in full.

        Raises:
            UnknownNameError: for a name or part that does not exist.
            BadInputError: for a value out of range.
        """
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

    def _method(self, kind: str, ref: Ref) -> Any:
        name, given = _named(kind, ref)
        method: Method = self.registry.get(kind, name)
        self._used.add(name)
        self._presets |= set(method.presets)
        return method.preset(self.suite.preset).replace(**{**self.suite.set.get(name, {}), **given})

    def _attacks(self) -> list[Attack]:
        """The attacks; ``strongest`` stands for those that judge the defenses of the suite."""
        made: list[Attack] = []
        for ref in self.suite.attacks:
            refs = self._judges() if ref == STRONGEST_ATTACKS else [ref]
            made += [self._method("attack", one) for one in refs]
        return [one for i, one in enumerate(made) if one not in made[:i]]

    def _judges(self) -> list[Ref]:
        """The installed judges of all defenses; without any, the strongest attacks of all games."""
        of = [judge for stack in self.stacks for one in stack for judge in judges_of(one)]
        of = of or [judge for judges in STRONGEST.values() for judge in judges]
        here = [judge for judge in of if self.registry.offers([("attack", judge.attack)])]
        return [*{judge.label: judge.entry for judge in here}.values()]

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
