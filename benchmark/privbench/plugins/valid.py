"""Whether what a plugin offers is a valid method, and what its author should change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privbench.ground.store.canonical import plain
from privbench.measure.methods.attack import Attack
from privbench.measure.methods.dataset import Dataset
from privbench.measure.methods.defense import Defense, Release
from privbench.measure.methods.method import Method
from privbench.measure.methods.target import Target
from privbench.plugins.facts import wrong_fact
from privbench.plugins.misspelt import misspelt

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters of a name.
_KEBAB = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
KINDS: Mapping[str, type[Method]] = {
    "dataset": Dataset,
    "target": Target,
    "defense": Defense,
    "attack": Attack,
}
#: Class attributes that the planner reads in addition to ``name``.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "dataset": ("protocols",),
    "target": (),
    "defense": ("protects",),
    "attack": ("game", "needs"),
}


def misfit(kind: str, method: Any) -> str | None:
    """Explain to the plugin author why this object is not valid; None if it is."""
    wanted, hook = KINDS[kind], f"privbench_{kind}s"
    if isinstance(method, type):
        return f"{hook} returned the class {method.__name__}: return an instance"
    if not isinstance(method, wanted):
        return f"{hook} returned {method!r}: return instances of {wanted.__name__}"
    return _incomplete(kind, method)


def _incomplete(kind: str, method: Any) -> str | None:
    """Explain what a method of the right class is missing; None if nothing."""
    name = type(method).__name__
    made = vars(type(method)).get("__dataclass_params__")
    if made is None or not made.frozen:
        lacking = "not frozen" if made else "not itself a dataclass"
        return f"{name} is {lacking}: decorate it with @dataclass(frozen=True)"
    if problem := _misnamed(getattr(method, "name", None)):
        return f"{name} {problem}"
    for wanted in _REQUIRED[kind]:
        if not hasattr(method, wanted):
            return f"{name} has no {wanted}: set `{wanted}: ClassVar`, see {KINDS[kind].__name__}"
    if problem := misspelt(type(method), KINDS[kind]) or wrong_fact(method) or _no_key(method):
        return problem
    if kind == "dataset" and "default" not in method.protocols:
        return f"{name} has no protocol 'default': add it to `protocols`"
    return _release_problem(method) if kind == "defense" else None


def _misnamed(name: object) -> str | None:
    if not isinstance(name, str) or not name:
        return "has no name: set `name: ClassVar[str]`"
    if not set(name) <= _KEBAB:
        return f"has the name {name!r}: use lower-case letters, digits and hyphens"
    return None


def _no_key(method: Method) -> str | None:
    """Explain which hyperparameter cannot stand in a key of the store; None if all can."""
    if type(method).identity is not Method.identity:
        return None  # it says itself what identifies it
    try:
        plain({"fields": method.hyperparameters()})
    except TypeError as error:
        return f"{type(method).__name__}: {error}"
    return None


def _release_problem(defense: Defense) -> str | None:
    """Explain what a defense says wrongly about its release; None if nothing."""
    cls = type(defense)
    if cls.release is not Defense.release and cls.release_class is Defense.release_class:
        return (
            f"{cls.__name__} overrides release() but has no release_class: set "
            "`release_class: ClassVar[type[Release]]` to the class that release() returns"
        )
    made = defense.release_class
    return misspelt(made, Release) if made else None
