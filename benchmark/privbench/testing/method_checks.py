"""Checks of what all methods have in common."""

from __future__ import annotations

import dataclasses

from privbench.ground.errors import BadInputError
from privbench.measure.methods.method import Method, Paper
from privbench.plugins.valid import KINDS, misfit


def is_frozen(method: Method) -> None:
    """It is a frozen dataclass, and equal fields make equal methods.

    Tried: building it again from its fields, comparing and hashing, and setting every field.
    """
    decorated: bool = dataclasses.is_dataclass(type(method))
    assert decorated, "decorate it with @dataclass(frozen=True)"
    again = type(method)(**method.hyperparameters())
    assert again == method, "equal fields must make equal methods"
    assert hash(again) == hash(method), "equal methods must have equal hashes: define no __hash__"
    assert again.digest == method.digest, (
        "two methods with equal fields have different digests: keep all settings in fields"
    )
    for name in [*method.hyperparameters(), "anything"]:
        try:
            setattr(method, name, 0)
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"attribute {name} can be set: use @dataclass(frozen=True)")


def is_described(method: Method) -> None:
    """It would load as a plugin, and its name, docstring, version and paper are there.

    Tried: its registration as a plugin; name, docstring, version, paper and deviations.
    """
    kind = next(kind for kind, base in KINDS.items() if isinstance(method, base))
    problem = misfit(kind, method)
    assert problem is None, problem
    assert type(method).__dict__.get("__doc__"), "the class has no docstring: write one"
    generated = f"{type(method).__name__}("
    assert not type(method).__doc__.startswith(generated), (  # type: ignore[union-attr]
        "the class has only the docstring that dataclass generates: write one"
    )
    assert method.version >= 1, f"version is {method.version}: count from 1"
    assert method.paper is None or isinstance(method.paper, Paper), (
        f"paper is {method.paper!r}: write Paper(title, authors, venue)"
    )
    assert isinstance(method.deviations, str), (
        f'deviations is {method.deviations!r}: write text, or "" for none'
    )
    assert type(method)().label == method.name, "every hyperparameter needs a default"


def refuses_unknown(method: Method) -> None:
    """``replace`` refuses a hyperparameter that does not exist.

    Tried: ``replace(no_such_hyperparameter=1)``.
    """
    try:
        method.replace(no_such_hyperparameter=1)
    except BadInputError:
        return
    raise AssertionError("replace() accepted an unknown hyperparameter: raise BadInputError")
