"""Whether the facts that a method states about itself have values that mean something.

The planner only compares them. ``protects = "membership"`` would be eleven games of one letter,
and an output that is no known one would be none.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from privbench.ground.errors import PluginError, no_choice
from privbench.ground.judges import Judge
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack, Shadows
from privbench.measure.methods.defense import Defense, Release
from privbench.measure.methods.method import _written as written
from privbench.measure.methods.strength import Strength
from privbench.measure.methods.target import Target
from privbench.plugins.requirements import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privbench.measure.methods.method import Method

STAGES = ("data", "labels", "build", "phases", "weights", "release")


def wrong_fact(method: Method) -> str | None:
    """Explain which fact of a method has a value that means nothing; None if none has."""
    problem = next(_wrong(method), None)
    return f"{type(method).__name__}: {problem}" if problem else None


def _wrong(method: Any) -> Iterator[str]:
    yield from _fields(method)
    if type(method.version) is not int:
        yield f"version is {method.version!r}: write a whole number"
    yield from _names("requires", method.requires, REQUIREMENTS)
    if isinstance(method, Attack):
        yield from _access(method, "needs", "wants")
        yield from _shadows(method)
        point: object = method.decides_at
        if not isinstance(point, str):
            yield f"decides_at is {point!r}: write text, such as 'FPR 0.01'"
    elif isinstance(method, Target):
        yield from _access(method, "grants")
        yield from _flags(method, "contrastive", "labelled_encoder")
    elif isinstance(method, Defense):
        yield from _names("protects", method.protects, sorted(GAMES))
        judges: object = method.judged_by
        if not isinstance(judges, tuple) or not all(isinstance(one, Judge) for one in judges):
            yield f"judged_by is {judges!r}: write a tuple of Judge(attack, why)"
        yield from _flags(
            method, "uses_attributes", "control", "claims_epsilon", "uses_training_data"
        )
        yield from _release(method.release_class)
        yield from _strength(method)
        stages: object = method.stages()
        if not isinstance(stages, set | frozenset):
            yield f"stages() is {stages!r}: write a frozenset of names"
        else:
            yield from _known("stages()", sorted(stages, key=str), STAGES)


def _fields(method: Any) -> Iterator[str]:
    """Hyperparameters without a default, facts that became hyperparameters, and the reverse."""
    kind = type(method)
    bases = [one for one in kind.__mro__ if one.__module__.startswith("privbench.measure.")]
    facts = {
        name for base in bases for name in (*vars(base), *written(base))
        if not isinstance(vars(base).get(name), property)
    }  # fmt: skip
    held = {one.name: one for one in fields(method)} if is_dataclass(method) else {}
    for name, one in held.items():
        if name in facts - {"strength"}:  # see ``_strength``
            yield f"{name} is a hyperparameter: write `{name}: ClassVar[…] = …`"
        elif one.init and one.default is MISSING and one.default_factory is MISSING:
            yield f"{name} has no default: write one, such as `{name}: int = 3`"
    typed = {name for base in kind.__mro__ for name in written(base) if name not in held}
    typed |= {*written(kind)}
    for name, value in vars(kind).items():
        plain = isinstance(value, bool | int | float | str) and not name.startswith("_")
        if plain and not any(name in vars(base) for base in bases) and name not in typed:
            which = type(value).__name__
            yield (f"{name} = {value!r} has no type: write `{name}: {which} = …` for a "
                   f"hyperparameter, or `{name}: ClassVar[{which}] = …`")  # fmt: skip


def _names(what: str, given: Any, known: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield f"{what} is {given!r}: write a tuple of names, ({given!r},)"
    elif not isinstance(given, tuple | list):
        yield f"{what} is {given!r}: write a tuple of names"
    else:
        yield from _known(what, given, known)


def _known(what: str, given: Any, known: Any) -> Iterator[str]:
    for name in given:
        if name not in known:
            yield f"{what} has {name!r}: choose from {', '.join(known)}"


def _access(method: Any, *facts: str) -> Iterator[str]:
    for fact in facts:
        value = getattr(method, fact)
        if not isinstance(value, Access):
            yield f"{fact} is {value!r}: write it with Access, such as Access.POSTERIORS"


def _flags(owner: Any, *facts: str) -> Iterator[str]:
    for fact in facts:
        value = getattr(owner, fact)
        if not isinstance(value, bool | property):  # a property of a class answers for instances
            yield f"{fact} is {value!r}: write True or False"


def _shadows(attack: Attack) -> Iterator[str]:
    try:
        given: object = attack.shadows
    except PluginError as error:
        yield str(error)
    except Exception:  # noqa: BLE001, S110 - planning asks again, and then it costs its cells only
        pass
    else:
        if not isinstance(given, Shadows):
            yield f"shadows is {given!r}: return Shadows(count, origin)"


def _strength(defense: Defense) -> Iterator[str]:
    given: object = defense.strength
    if "strength" in defense.hyperparameters():
        yield "strength is a hyperparameter: rename it, and write `strength` for its Strength"
    elif given is None:
        return
    elif not isinstance(given, Strength):
        yield f'strength is {given!r}: write Strength("field", "up", (0.5, 1.0)), or None'
    elif problem := given.problem(defense):
        yield f"strength: {problem}"


def _release(made: Any) -> Iterator[str]:
    if made is None:
        return
    if not (inspect.isclass(made) and issubclass(made, Release)):
        yield f"release_class is {made!r}: a subclass of Release is needed"
    elif wrong := no_choice(f"{made.__name__}.of", getattr(made, "of", None),
                            ("embedding", "posterior")):  # fmt: skip
        yield wrong
    else:
        yield from _flags(made, "feeds_classifier", "keeps_labels", "fresh")
