"""Hostile suites, options and hyperparameters: one short sentence each, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.grid.suite import parse_settings, read_suite, suite_from
from privbench.ground.errors import BadInputError
from privbench.plugins import registry as plugins

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.plugins.registry import Registry


def refused(tmp_path: Path, text: str) -> str:
    """The sentence about a suite, which is short."""
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError) as caught:
        read_suite(path)
    said = str(caught.value).replace(str(path), "s.yaml")
    assert "\n" not in said
    assert len(said) < 300
    said.encode()
    return said


@pytest.fixture
def dry(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What a dry run on the command line refuses."""
    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> str:
        done = CliRunner().invoke(main, ["run", "--dry-run", *args])
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.splitlines()
        return str(line)

    return call


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("attacks: " + "[" * 5000 + "]" * 5000, "nested more than"),
        ("attacks:\n" + "".join(f"{' ' * i}-\n" for i in range(1, 300)), "nested more than"),
        ("attacks: [{a: &v {k: 1}}, {b: *v}]", r"write out what '\*v' stands for"),
        ("attacks: [a] #" + "x" * 200_000, "longer than"),
        ('attacks: ["\\ud800"]', "half a character"),
        ('attacks: ["\\UFFFFFFFF"]', "fix the YAML"),
        ("attacks: [a]\nattacks: [b]", "'attacks' is there twice"),
        ("attacks:\n- a: {k: 1, k: 2}", "'k' is there twice"),
        ("attacks: [a]\n3: x", "keys must be text"),
        ("attacks: [a]\n? [x]\n: y", "keys must be text"),
        ("attacks: [!!timestamp x]", "fix the YAML"),
        ("attacks: [!!bool x]", "fix the YAML"),
        ("attacks: [!!int '']", "fix the YAML"),
        ("attacks: [!!binary '=']", "fix the YAML"),
        ("attacks: [a]\nseeds: yes", "seeds must be .*, not 'yes'"),
        ("attacks: [a]\nseeds: true", "seeds must be .*, not True"),
        ("attacks: [a]\nseeds: '5'", "seeds must be .*, not '5'"),
        ("attacks: [a]\nseeds: 1:30", "seeds must be .*, not '1:30'"),
        ("attacks: [a]\nseeds: 5.0", "seeds must be .*, not 5.0"),
        ("attacks: [a]\nseeds: [true]", "seeds must be .*, not True"),
        ("attacks: [a]\nseeds: " + "9" * 4000, "seeds must be .*, not <a whole number of"),
        ("attacks: [a]\nseeds: " + "9" * 9000, "fix the YAML"),
        ("attacks: [a]\nseeds: 2000000", "seeds must be a count from 1 to 1,000"),
        ("attacks: [a]\nseeds: [4294967296]", "seeds must be .* below 4,294,967,296"),
        ("attacks: [a]\nbaseline: 1", "baseline must be true or false, not 1"),
        ("attacks: [a]\nbaseline: off", "baseline must be true or false, not 'off'"),
        ("attacks: [a]\nname: [" + "x, " * 9000 + "x]", "name must be text, not "),
        ("attacks: " + "x" * 9000, "attacks must be a list of names.*\\.\\.\\."),
        ("attacks: [a]\n" + "x" * 100 + ": 1", "unknown key in suite .*…"),
        ("attacks: [a]\nadversaries: [{adaptive: 1}]", "adversaries must be"),
    ],
)
def test_suites(tmp_path: Path, text: str, sentence: str) -> None:
    import re

    said = refused(tmp_path, text)
    assert re.search(sentence, said), said


def test_plain_values_of_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    values = "[1e-3, 1E2, .5, 0o17, 0x1F, 010, -3, true, no, ~, 2026-01-02, 1_000, 12:30, '5']"
    path.write_text(f"attacks: [{{a: {{v: {values}}}}}]", encoding="utf-8")
    (attack,) = read_suite(path).attacks
    want = [1e-3, 100.0, 0.5, 15, 31, 10, -3, True, "no", None, "2026-01-02", "1_000", "12:30", "5"]
    assert attack == {"a": {"v": want}}
    assert [type(v) for v in attack["a"]["v"]] == [type(v) for v in want]


def test_a_setting_is_given_once() -> None:
    with pytest.raises(BadInputError, match=r"--set a\.x is given twice: give it once"):
        parse_settings(["a.x=1", "a.y=2", "a.x=3"])


def test_python_is_as_strict() -> None:
    for seeds in (True, "5", 2_000_000, [2**40], [True]):
        with pytest.raises(BadInputError, match="here: seeds must be"):
            suite_from({"attacks": ["a"], "seeds": seeds}, "here")
    assert suite_from({"attacks": ("a",), "seeds": [3]}, "here").seed_list == [3]
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(BadInputError, match="here: attacks must be"):
        suite_from({"attacks": nested}, "here")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("simclr.epochs=1" + "0" * 100, "simclr.epochs: give 1,000,000 or less"),
        ("simclr.epochs=true", "simclr.epochs: give a whole number, not True"),
        ("simclr.epochs='5'", "simclr.epochs: give a whole number, not '5'"),
        ("simclr.epochs=1:30", "simclr.epochs: give a whole number, not '1:30'"),
        ("simclr.epochs=5.0", "simclr.epochs: give a whole number, not 5.0"),
        ("simclr.lr=.inf", "simclr.lr: give finite numbers, not inf"),
        ("simclr.lr=.nan", "simclr.lr: give finite numbers, not nan"),
        ("simclr.lr=1e300", "simclr.lr: give 1,000,000,000 or less, not 1e+300"),
        ("simclr.lr=1e999", "simclr.lr: give finite numbers, not inf"),
        ("simclr.lr='1'", "simclr.lr: give a number, not '1'"),
        ("simclr.cosine=1", "simclr.cosine: give true or false, not 1"),
        ("simclr.cosine=yes", "simclr.cosine: give true or false, not 'yes'"),
        ("simclr.augmentation={crop: [.inf, 1]}", "simclr.augmentation: give finite numbers"),
        ("simclr.augmentation={shift: 1" + "0" * 30 + "}", "augmentation: give 1,000,000 or less"),
        ("selena.models=1001", "selena.models: give 1000 or less, not 1001"),
        ("lira.k=1", "lira.k: give 2 or more, not 1"),
        ("lira.k=999999", "lira asks for 999999 shadows: choose 1,000 or fewer"),
        ("lira.k=[" + "1, " * 9000 + "1]", "lira.k: give a whole number, not [1, 1"),
        (
            "lira.variance=" + "x" * 9000,
            "lira.variance: give 'auto', 'pooled', 'per-example' or 'bayes'",
        ),
    ],
)
def test_hyperparameters(dry: Any, setting: str, sentence: str) -> None:
    said = dry("--attack", "lira", "--defense", "selena", "--set", setting)
    assert sentence in said
    assert len(said) < 300


@pytest.mark.timeout(20)
def test_counts(dry: Any, tmp_path: Path) -> None:
    assert "1<=x<=1000" in dry("--attack", "lira", "--seeds", "2000000")
    assert len(dry("--attack", "lira", "--seeds", "9" * 5000)) < 300
    many = ", ".join(f"lira: {{k: {k}}}" for k in range(2, 900))
    many = "[" + ", ".join(f"{{{one}}}" for one in many.split(", ")) + "]"
    text = f"attacks: {many}\nseeds: 1000\n"
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert "this grid has more than 120,000 trials" in dry("s.yaml")
    assert "--jobs" in dry("--attack", "lira", "--jobs", "9" * 5000)
    assert "--jobs" in dry("--attack", "lira", "--jobs", "1000000")
    assert "--shard" in dry("--attack", "lira", "--shard", f"1/{'9' * 5000}")
    assert "--timeout" in dry("--attack", "lira", "--timeout", "nan")
    assert "--timeout" in dry("--attack", "lira", "--timeout", "inf")
    assert "device" in dry("--attack", "lira", "--device", "cpu:9999999999999999999999")


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({"members": True}, "members: give a number"),
        ({"members": "80"}, "members: give a number"),
        ({"members": float("nan")}, "give finite numbers"),
        ({"members": 10**100}, "give 1,000,000,000 or less"),
        ({"shadow": "5"}, "shadow: give a whole number, not '5'"),
        ({"name": "x" * 200}, "name: give at most 80 characters"),
        ({"encoder": 3}, "encoder: "),
    ],
)
def test_protocols(registry: Registry, protocol: dict[str, Any], sentence: str) -> None:
    from privbench.grid.plan import plan

    given = {"name": "mine", "members": 80, "nonmembers": 80, "pool": 400, **protocol}
    suite = suite_from({"attacks": ["lira"], "protocols": [given]}, "here")
    with pytest.raises(BadInputError) as caught:
        plan(suite, registry, root=None, device="cpu")
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


def test_ages_are_numbers() -> None:
    for days in ("nan", "inf"):
        done = CliRunner().invoke(main, ["cache", "gc", "--older-than", days])
        assert done.exit_code == 2
        assert "--older-than" in done.stderr


def test_names_are_echoed_short(dry: Any) -> None:
    said = dry("--attack", "x" * 5000)
    assert len(said) < 1000
    assert "x" * 81 not in said
    said = dry("--attack", "a\x1b]0;title\x07\u202eb\udcff")
    assert said.isprintable()
