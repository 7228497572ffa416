"""The hyperparameters of a method as its card shows them: name, range, default, meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen, MultipleOf

from privbench.measure.methods.method import annotation

if TYPE_CHECKING:
    from privbench.measure.methods.method import Method

_BOUNDS: tuple[tuple[type, str, str], ...] = (
    (Ge, "ge", "≥ {:g}"), (Gt, "gt", "> {:g}"), (Le, "le", "≤ {:g}"), (Lt, "lt", "< {:g}"),
    (MultipleOf, "multiple_of", "multiple of {:g}"),
    (MinLen, "min_length", "at least {:g}"), (MaxLen, "max_length", "at most {:g}"),
)  # fmt: skip


class Hyperparameter(NamedTuple):
    """One field; ``values`` is its type with its range, in words."""

    name: str
    values: str
    default: str
    meaning: str


def hyperparameters(method: Method) -> list[Hyperparameter]:
    """Return the fields of a method, in order; defaults are those of its class."""
    meanings = _meanings(type(method))
    return [
        Hyperparameter(
            field.name, values(annotation(type(method), field.name)),
            short(getattr(method, field.name)), meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(method)  # type: ignore[arg-type]
    ]  # fmt: skip


def short(value: Any) -> str:
    """Return a value as text; of a dataclass, only the fields that are not the default.

    >>> from privbench import Augmentation
    >>> short(Augmentation(flip=0.5)), short("auto"), short(None)
    ('Augmentation(flip=0.5)', 'auto', 'None')
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return str(value)
    told = ", ".join(
        f"{field.name}={getattr(value, field.name)!r}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    )
    return f"{type(value).__name__}({told})"


def values(wanted: Any) -> str:
    """Return an annotation in words.

    >>> from typing import Annotated
    >>> values(Annotated[float, Gt(0), Le(1)]), values(Literal["a", "b"]), values(int | None)
    ('float > 0, ≤ 1', 'a, b', 'int or None')
    """
    metadata = getattr(wanted, "__metadata__", ())
    if metadata:
        bounds = [
            text.format(getattr(one, attribute))
            for one in metadata
            for kind, attribute, text in _BOUNDS
            if isinstance(one, kind)
        ]
        return f"{values(get_args(wanted)[0])} {', '.join(bounds)}".rstrip()
    if get_origin(wanted) is Literal:
        return ", ".join(map(str, get_args(wanted)))
    args = get_args(wanted)
    if args and type(None) in args:
        return " or ".join([*(values(one) for one in args if one is not type(None)), "None"])
    if args and get_origin(wanted) not in (tuple, list, dict):
        return " or ".join(values(one) for one in args)
    if args:
        inner = ", ".join("…" if one is ... else values(one) for one in args)
        return f"{get_origin(wanted).__name__} of {inner}"
    return "True, False" if wanted is bool else getattr(wanted, "__name__", str(wanted))


def _meanings(cls: type) -> dict[str, str]:
    """Field -> text of the ``Attributes:`` sections of a class and of its bases."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        _, _, section = inspect.cleandoc(vars(owner).get("__doc__") or "").partition("Attributes:")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split()).replace("``", "")
    return found
