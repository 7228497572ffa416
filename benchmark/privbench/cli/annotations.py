"""Annotations of hyperparameters as JSON and back, so that a value is checked without its class.

The annotation that is read back gives the same sentences about wrong values: both are checked by
``privbench.ground.values.misfit``.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types

_PLAIN = {one.__name__: one for one in (bool, int, float, str)}
#: Bound -> its fields, in order.
_BOUNDS = {
    "Ge": ("ge",), "Gt": ("gt",), "Le": ("le",), "Lt": ("lt",), "MultipleOf": ("multiple_of",),
    "MinLen": ("min_length",), "MaxLen": ("max_length",), "Len": ("min_length", "max_length"),
}  # fmt: skip


def written(annotation: Any) -> Any:  # noqa: PLR0911 - one for each form
    """Return an annotation as JSON.

    >>> written(Annotated[int, annotated_types.Ge(1)] | None)
    ['any', [['bounded', ['type', 'int'], [['Ge', 1]]], ['none']]]

    Raises:
        TypeError: for one that has no such form; its values are checked by the class only.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in (None, type(None)):
        return ["none"]
    if annotation in (bool, int, float, str):
        return ["type", annotation.__name__]
    if hasattr(annotation, "__metadata__"):
        bounds = [_bound(one) for one in annotation.__metadata__]
        return ["bounded", written(args[0]), bounds]
    if origin is Literal and all(isinstance(one, str | int | None) for one in args):
        return ["choice", list(args)]
    if origin in (Union, types.UnionType):
        return ["any", [written(one) for one in args]]
    if origin is tuple and args[-1:] == (...,):
        return ["many", written(args[0])]
    if origin is tuple:
        return ["tuple", [written(one) for one in args]]
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        hints = get_type_hints(annotation, include_extras=True)
        needed = [f.name for f in dataclasses.fields(annotation)
                  if f.default is f.default_factory is dataclasses.MISSING]  # fmt: skip
        fields = {f.name: written(hints[f.name]) for f in dataclasses.fields(annotation)}
        return ["fields", annotation.__name__, fields, needed]
    raise TypeError(f"{annotation!r} has no form in JSON")


def _bound(one: Any) -> list[Any]:
    name = type(one).__name__
    if name not in _BOUNDS or type(one) is not getattr(annotated_types, name):
        raise TypeError(f"{one!r} has no form in JSON")
    return [name, *(getattr(one, field) for field in _BOUNDS[name])]


def read(form: Any) -> Any:  # noqa: PLR0911 - one for each form
    """Return the annotation that was written.

    >>> read(["bounded", ["type", "int"], [["Ge", 1]]])
    typing.Annotated[int, Ge(ge=1)]

    Raises:
        ValueError: for anything that ``written`` does not return.
    """
    match form:
        case ["none"]:
            return None
        case ["type", str(name)] if name in _PLAIN:
            return _PLAIN[name]
        case ["bounded", inner, list(bounds)] if bounds:
            return Annotated[(read(inner), *map(_read_bound, bounds))]
        case ["choice", list(choices)] if choices and all(
            isinstance(one, str | int | None) for one in choices
        ):
            return Literal[tuple(choices)]
        case ["any", list(forms)] if forms:
            return Union[tuple(map(read, forms))]  # noqa: UP007 - of a list
        case ["many", inner]:
            return tuple[read(inner), ...]  # type: ignore[misc]
        case ["tuple", list(forms)]:
            return tuple[tuple(map(read, forms))]  # type: ignore[misc]
        case ["fields", str(name), dict(fields), list(needed)] if name.isidentifier():
            made = [(field, read(inner)) for field, inner in fields.items() if field in needed]
            made += [(field, read(inner), None) for field, inner in fields.items()  # type: ignore[misc]
                     if field not in needed]  # fmt: skip
            try:
                return dataclasses.make_dataclass(name, made)
            except TypeError as error:  # a field that is no name
                raise ValueError(str(error)) from None
    raise ValueError(f"{form!r} is no annotation")


def _read_bound(form: Any) -> Any:
    match form:
        case [str(name), *values] if name in _BOUNDS and len(values) == len(_BOUNDS[name]):
            if all(isinstance(one, int | float | None) for one in values):
                return getattr(annotated_types, name)(*values)
    raise ValueError(f"{form!r} is no bound")
