"""What a suite may say, and what is said back where it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from privbench.grid.suite import Suite, parse_settings, read_suite, suite_from
from privbench.ground.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults() -> None:
    suite = suite_from({"attacks": ["a"]}, "here")
    assert (suite.datasets, suite.targets, suite.defenses) == (["digits"], ["simclr"], [])
    assert (suite.seed_list, suite.preset, suite.baseline) == ([0], "cpu", True)


@pytest.mark.parametrize(("seeds", "want"), [(3, [0, 1, 2]), ([5, 2], [5, 2])])
def test_seeds_are_a_count_or_a_list(seeds: Any, want: list[int]) -> None:
    assert Suite(attacks=["a"], seeds=seeds).seed_list == want


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "here: attacks is missing: it must be a list of names"),
        ({"attaks": ["a"]}, r"unknown key in here 'attaks': did you mean 'attacks'\?"),
        ({"attacks": "a"}, "here: attacks must be a list of names.*, not 'a'"),
        ({"attacks": None}, "attacks must be a list of names.*, not None"),
        ({"attacks": []}, "attacks must be .*at least one, or `strongest`, not \\[\\]"),
        ({"attacks": ["a", 3]}, "attacks must be .*, not 3$"),
        ({"attacks": [{"a": 3}]}, "attacks must be .*, not {'a': 3}"),
        ({"attacks": ["a"], "seeds": 0}, "seeds must be a count from 1 .*, not 0"),
        ({"attacks": ["a"], "seeds": []}, "seeds must be a count from 1 to 1,000 or a list"),
        ({"attacks": ["a"], "seeds": [-1]}, "seeds must be a count from 1 to 1,000 or a list"),
        ({"attacks": ["a"], "seeds": "many"}, "seeds must be a count from 1 .*, not 'many'"),
        ({"attacks": ["a"], "adversaries": ["naif"]}, "adversaries must be .*, not 'naif'"),
        ({"attacks": ["a"], "set": {"a": 3}}, "set must be {method: {field: value}}"),
        ({"attacks": ["a"], "sweep": "talos"}, "sweep must be a list of defenses.*, not 'talos'"),
        ({"attacks": ["a"], "match_utility": 2}, "match_utility must be a number from 0 to 1"),
        ({"attacks": ["a"], "match_utility": "0.1"}, "match_utility must be a number.*not '0.1'"),
        ({"attacks": ["a"], "match_utility": float("nan")}, "match_utility must be a number"),
        ({"attacks": ["a"], "match_utility": True}, "match_utility must be a number.*not True"),
        ({"attacks": 1, "datasets": 2}, "datasets must be .*; attacks must be"),
    ],
)
def test_misfits_in_one_sentence(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        suite_from(values, "here")
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attacks: [a\nseeds: 3", "line 2, column 6"),
        ("attacks: [a]\n\tseeds: 3", "line 2, column 1"),
        ("- a\n- b", "is a list: write keys"),
        ("", "is empty: write keys"),
        ("attacks: !!python/object:os.system [a]", "line 1, column 10"),
        ("attacks: [a]\natacks: [b]", "unknown key in suite .*did you mean 'attacks'"),
        ("attacks: [\x00]", "not YAML"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=message) as caught:
        read_suite(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("attacks:\n- a\n- talos: {adversarial_factor: 5}\n", encoding="utf-8")
    suite = read_suite(path)
    assert suite.name == "my"
    assert suite.attacks == ["a", {"talos": {"adversarial_factor": 5}}]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"no suite at .*--attack"):
        read_suite(tmp_path / "none.yaml")
    with pytest.raises(BadInputError, match="cannot read suite"):
        read_suite(tmp_path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(BadInputError, match="it is not UTF-8 text"):
        read_suite(tmp_path / "x")


def test_settings_are_read_as_yaml() -> None:
    given = ["a.x=2", "a.y=[0.2, 1]", "b.z=text", "a.w="]
    assert parse_settings(given) == {"a": {"x": 2, "y": [0.2, 1], "w": None}, "b": {"z": "text"}}


@pytest.mark.parametrize("bad", ["a", "a.x", "a=1", ".x=1", "a.=1", "=", "a.x=["])
def test_malformed_settings(bad: str) -> None:
    with pytest.raises(BadInputError, match="--set") as caught:
        parse_settings([bad])
    assert bad in str(caught.value)
