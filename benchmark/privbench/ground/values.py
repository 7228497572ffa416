"""Values that users give are checked, never converted: neither ``true`` nor '5' is a number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from annotated_types import Ge, Le, Lt
from pydantic import Strict, ValidationError

from privbench.ground.text import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter

#: The largest whole number and the largest other number, where an annotation names no upper end.
MOST_WHOLE = 1_000_000
MOST = 1e9

#: A number in a result: finite, and no larger than means and intervals can be computed of.
Measured = Annotated[float, Strict(), Ge(-1e15), Le(1e15)]
Count = Annotated[int, Strict(), Ge(0), Le(10**15)]


def misfit(
    adapter: TypeAdapter[Any], given: Any, *, bounded: bool = False, whole: int = MOST_WHOLE
) -> tuple[Any, str]:
    """The value as its annotation wants it and "", or what to give instead.

    A value that JSON can hold is checked as in a JSON file: a list may stand for a tuple, and a
    mapping for a dataclass, but no kind of value for another.

    Args:
        adapter: of the annotation.
        given: by the user.
        bounded: whether the annotation itself names the upper end.
        whole: the largest whole number otherwise.
    """
    try:
        text = json.dumps(given, allow_nan=False)
    except TypeError:
        text = None  # an object of Python
    except (ValueError, RecursionError):
        return None, f"give finite numbers, not {quoted(given)}"
    if not bounded and (most := _above(given, whole)):
        return None, f"give {most:,.0f} or less, not {quoted(given)}"
    try:
        if text is None:
            return adapter.validate_python(given, strict=True), ""
        return adapter.validate_json(text, strict=True), ""
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        widest = next((one for one in wrong if one["type"] == "float_type"), wrong[0])
        return None, f"{demand(widest)}, not {quoted(given)}"


def is_bounded(annotation: Any) -> bool:
    """Whether the annotation, or that of the elements of a tuple, names an upper end."""
    named = getattr(annotation, "__metadata__", ())
    return any(isinstance(part, Le | Lt) for part in named) or (
        get_origin(annotation) is tuple and all(is_bounded(one) or one is ... for one in
                                                get_args(annotation))
    )  # fmt: skip


def _above(given: Any, whole: int) -> float:
    """The limit that a number inside the value exceeds; 0 if none does."""
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list | tuple):
        return max((_above(one, whole) for one in given), default=0)
    if isinstance(given, int | float):
        most = whole if isinstance(given, int) else MOST
        return most if abs(given) > most else 0
    return 0


#: Type of a pydantic error -> what the user should give.
_DEMANDS = {
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give {le} or less",
    "less_than": "give less than {lt}",
    "literal_error": "give {expected}",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "string_type": "give text",
    "string_unicode": "give text",
    "json_invalid": "give text without halves of characters",
    "none_required": "give null",
    "tuple_type": "give a list",
    "dataclass_type": "give {{field: value}}",
    "too_short": "give {min_length} or more of them",
}


def demand(error: Mapping[str, Any]) -> str:
    """What the user should give instead, in one clause."""
    told = _DEMANDS.get(error["type"])
    return told.format(**error.get("ctx", {})) if told else error["msg"].lower()
