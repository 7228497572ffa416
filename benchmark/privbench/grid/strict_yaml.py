"""YAML with the plain values of version 1.2, each key once, no alias, and bounded in size."""

from __future__ import annotations

import re
from typing import Any, ClassVar, NoReturn

import yaml
from yaml.constructor import ConstructorError

from privbench.ground.text import quoted

#: Characters of a text, and levels of nesting.
LONGEST = 100_000
DEEPEST = 30


def load(text: str) -> Any:
    """Read one document.

    Raises:
        yaml.YAMLError: if it is none, or exceeds a bound.
    """
    if len(text) > LONGEST:
        raise ConstructorError(problem=f"it is longer than {LONGEST:,} characters")
    loader = _StrictLoader(text)
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError):
        at = loader.get_mark()
        raise ConstructorError(problem="no such character", problem_mark=at) from None
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    """Differs from ``SafeLoader`` in what it refuses and in which words are no text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            _refuse(event, f"write out what {quoted(f'*{event.anchor}')} stands for")
        self._depth += 1
        if self._depth > DEEPEST:
            _refuse(event, f"nested more than {DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                _refuse(key, "keys must be text")
            if key.value in seen:
                _refuse(key, f"the key {quoted(key.value)} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def text(self, node: yaml.ScalarNode) -> str:
        value = str(self.construct_scalar(node))
        if any("\ud800" <= c <= "\udfff" for c in value):
            _refuse(node, f"{quoted(value)} holds half a character")
        return value

    def plain(self, node: yaml.ScalarNode) -> Any:
        """A value that is no text, after its tag."""
        name = node.tag.rpartition(":")[2]
        pattern, _, make = _PLAIN[name]
        value = str(self.construct_scalar(node))
        if not re.fullmatch(pattern, value, re.ASCII):
            _refuse(node, f"{quoted(value)} is no {name}")
        try:
            return make(value)
        except ValueError:  # Python reads no number of thousands of digits
            _refuse(node, f"a number of {len(value):,} digits")

    def unknown(self, node: yaml.Node) -> NoReturn:
        _refuse(node, f"unknown tag {quoted(node.tag)}")


def _refuse(at: Any, problem: str) -> NoReturn:
    raise ConstructorError(problem=problem, problem_mark=at.start_mark)


def _int(text: str) -> int:
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


#: The core schema of YAML 1.2: type -> (pattern, first characters, reader).
_PLAIN: dict[str, tuple[str, str, Any]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", _int),
    "float": (
        r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        _float,
    ),
}
for _name, (_pattern, _first, _) in _PLAIN.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    _firsts = [*_first, ""] if _name == "null" else [*_first]
    _StrictLoader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern})$", re.ASCII), _firsts)
    _StrictLoader.add_constructor(_tag, _StrictLoader.plain)
_StrictLoader.add_constructor("tag:yaml.org,2002:str", _StrictLoader.text)
for _name in ("seq", "map"):
    _made: Any = getattr(yaml.SafeLoader, f"construct_yaml_{_name}")
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_name}", _made)
_StrictLoader.add_constructor(None, _StrictLoader.unknown)
