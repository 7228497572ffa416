"""Canonical text and digest of values, used for the keys of artifacts and trials."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any


def digest(value: Any) -> str:
    """Return 32 hex characters that change if and only if `canonical(value)` changes.

    >>> digest({"lr": 0.1, "epochs": 3}) == digest({"epochs": 3, "lr": 0.1})
    True
    """
    return checksum(plain(value))


def checksum(value: Any) -> str:
    """Return the digest of a value that is plain already, as JSON text is when it is parsed.

    Raises:
        ValueError: for NaN and infinities, which are no JSON.

    >>> checksum({"epsilon": {"$float": "inf"}}) == digest({"epsilon": float("inf")})
    True
    """
    return hashlib.blake2b(_dump(value).encode(), digest_size=16).hexdigest()


def canonical(value: Any) -> str:
    """Return JSON text that is the same in every process and different for different values.

    Numbers keep their type (`1`, `1.0` and `true` differ), so convert options first. Tuples become
    lists, sets become sorted lists, enums become their names; frozen dataclasses include the name
    of their class.

    Raises:
        TypeError: for any other value, with the path to it.

    >>> canonical({"b": (1, 2.0), "a": {"y", "x"}, "c": float("inf")})
    '{"a":["x","y"],"b":[1,2.0],"c":{"$float":"inf"}}'
    >>> canonical({"rows": [{"file": print}]})
    Traceback (most recent call last):
    ...
    TypeError: 'rows[0].file' is a builtin_function_or_method: give numbers, text or a digest
    """
    return _dump(plain(value))


def plain(value: Any, at: str = "") -> Any:
    """Return the value as None, bool, int, finite float, str, list and dict only.

    Args:
        value: as for `canonical`; `plain(plain(value)) == plain(value)`.
        at: path to the value, for error messages.

    Raises:
        TypeError: as for `canonical`.
    """
    if value is None or isinstance(value, (bool, int, float, str, Enum)):
        return _plain_scalar(value)
    if isinstance(value, Mapping):
        return _plain_mapping(value, at)
    if isinstance(value, (list, tuple)):
        return [plain(one, f"{at}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(one, f"{at}{{}}") for one in value), key=_dump)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_dataclass(value, at)
    advice = "give numbers, text or a digest"
    if isinstance(value, PurePath):
        advice = "a path does not identify the content of the file: give a digest of the content"
    raise TypeError(f"{_where(at)} is a {type(value).__name__}: {advice}")


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, Enum):  # before str and int: a StrEnum is both
        return value.name or "0"  # an empty Flag has no name
    if isinstance(value, float) and not math.isfinite(value):  # not valid in JSON
        return {"$float": float.__repr__(value)}
    if value is None or type(value) in {bool, int, float, str}:
        return value
    return json.loads(json.dumps(value))  # numpy.float64 and other subclasses become plain numbers


def _plain_mapping(value: Mapping[Any, Any], at: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, one in value.items():
        if not isinstance(key, (str, Enum)):
            kind = type(key).__name__
            raise TypeError(f"{_where(at)} has the key {key!r}, a {kind}: keys must be text")
        name = plain(key)
        if name in fields:
            raise TypeError(f"{_where(at)} has two keys called '{name}': rename one")
        fields[name] = plain(one, step(at, name))
    return fields


def _plain_dataclass(value: Any, at: str) -> dict[str, Any]:
    name = type(value).__name__
    if not value.__dataclass_params__.frozen:
        raise TypeError(f"{_where(at)} is a {name}: make it a @dataclass(frozen=True)")
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {"$type": name} | _plain_mapping(fields, at)


def _where(at: str) -> str:
    return f"'{at}'" if at else "the value"


def loads(text: str) -> Any:
    """Parse what `canonical` wrote; infinities and NaN become floats again.

    >>> loads(canonical({"epsilon": float("inf")}))
    {'epsilon': inf}
    """
    return json.loads(text, object_hook=lambda d: float(d["$float"]) if [*d] == ["$float"] else d)


def leaves(value: Any) -> dict[str, str]:
    """Return the canonical text of every innermost value by path, for a value from `loads`.

    >>> leaves({"lr": 0.1, "defense": [{"name": "talos"}]})
    {'lr': '0.1', 'defense[0].name': '"talos"'}
    """
    found: dict[str, str] = {}

    def walk(one: Any, at: str) -> None:
        if isinstance(one, dict) and one and [*one] != ["$float"]:
            for key, inner in one.items():
                walk(inner, step(at, key))
        elif isinstance(one, list) and one:
            for i, inner in enumerate(one):
                walk(inner, f"{at}[{i}]")
        else:
            found[at] = _dump(_plain_scalar(one) if isinstance(one, float) else one)

    walk(value, "")
    return found


def step(at: str, key: str) -> str:
    """Return the path of `key` inside `at`: `a.b`, or `a["b.c"]` if a dot would be ambiguous."""
    if not key.replace("-", "_").replace("$", "_").isidentifier():
        return f"{at}[{json.dumps(key)}]"
    return f"{at}.{key}" if at else key


_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
