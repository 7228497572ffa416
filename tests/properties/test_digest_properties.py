"""A digest changes if and only if a value does."""

import copy
import json
from dataclasses import make_dataclass
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privbench.ground.store.canonical import canonical, digest, leaves, loads, plain
from privbench.ground.store.store import Key

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.text(), VALUES, min_size=1, max_size=4)


def exact(value: Any) -> Any:
    """Rebuild with types beside scalars, so that == tells 1, 1.0, True, 0.0 and -0.0 apart."""
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    if isinstance(value, list):
        return [exact(one) for one in value]
    return type(value), repr(value)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(one) for one in value] if isinstance(value, list) else value


@settings(max_examples=50)
@given(VALUES, VALUES)
def test_equal_texts_are_equal_values(a: Any, b: Any) -> None:
    assert (canonical(a) == canonical(b)) == (exact(a) == exact(b))


@settings(max_examples=50)
@given(FIELDS, st.data())
def test_a_changed_leaf_changes_the_digest_and_is_named(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    changed: Any = copy.deepcopy(fields)
    at, node = [], changed
    while isinstance(node, (dict, list)) and node:
        places = list(node) if isinstance(node, dict) else range(len(node))
        at.append(data.draw(st.sampled_from(places)))
        node = node[at[-1]]
    new = data.draw(SCALARS)
    assume(exact(new) != exact(node))
    holder = changed
    for place in at[:-1]:
        holder = holder[place]
    holder[at[-1]] = new

    assert Key("once", changed).digest != Key("once", fields).digest
    old_leaves, new_leaves = leaves(loads(canonical(fields))), leaves(loads(canonical(changed)))
    assert len({path for path, _ in old_leaves.items() ^ new_leaves.items()}) == 1


@settings(max_examples=50)
@given(VALUES)
def test_order_of_keys_is_irrelevant(value: Any) -> None:
    assert digest(shuffled(value)) == digest(value)


@settings(max_examples=50)
@given(VALUES)
def test_text_is_strict_json_and_reads_back(value: Any) -> None:
    def refuse(word: str) -> Any:
        raise AssertionError(word)

    json.loads(canonical(value), parse_constant=refuse)
    assert exact(loads(canonical(value))) == exact(value)
    assert exact(plain(plain(value))) == exact(plain(value))


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abc"), SCALARS, min_size=1), st.sampled_from("xyz"))
def test_a_dataclass_counts_by_name_and_fields(values: dict[str, Any], name: str) -> None:
    names = sorted(values)
    one = make_dataclass("One", names, frozen=True)(**values)
    other = make_dataclass("Other", names, frozen=True)(**values)
    more = make_dataclass("One", [*names, name], frozen=True)(**values, **{name: 1})
    same = make_dataclass("One", names[::-1], frozen=True)(**values)
    assert digest(one) == digest(same)
    assert len({digest(one), digest(other), digest(more), digest(values)}) == 4
