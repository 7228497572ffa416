"""Names in a plugin's class that were probably meant to be members of the core's class.

A hook under a misspelt name is never called: the defense would do nothing, on a clean board.
"""

from __future__ import annotations

import dataclasses
import difflib

#: Similarity of two names, from which one is taken for the other.
ALIKE = 0.8


def misspelt(cls: type, base: type) -> str | None:
    """Explain which name of a plugin's class is near a member of its base; None if none is.

    A name is free if it begins with an underscore or is a hyperparameter, or if the class defines
    the member itself too.

    Args:
        cls: class of the plugin.
        base: class of the core that it extends; torch's classes above it do not count.
    """
    core = {owner for owner in cls.__mro__ if _of_core(owner)}
    own = {name for owner in set(cls.__mro__) - core - set(base.__mro__) for name in vars(owner)}
    known = {name for owner in core for name in _members(owner)}
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    have = known | {name for owner in core for name in dir(owner)}
    for name in sorted(own - have - fields):
        if name.startswith("_") or name.isupper():
            continue
        near = difflib.get_close_matches(name.lower(), sorted(known - own), n=1, cutoff=ALIKE)
        if near:
            return (
                f"{cls.__name__}.{name} is no member of {base.__name__}: did you mean '{near[0]}'? "
                f"If not, name it _{name}"
            )
    return None


def _of_core(owner: type) -> bool:
    name = owner.__module__
    return name.startswith("privbench.") and not name.startswith("privbench.testing.")


def _members(owner: type) -> set[str]:
    """Return the public names that a class defines or only annotates."""
    names = {*vars(owner), *vars(owner).get("__annotations__", {})}
    return {name for name in names if not name.startswith("_")}
