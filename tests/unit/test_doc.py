"""``privbench doc``, and the reference of class variables, say what the code says."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
from click.testing import CliRunner

import privbench
from privbench import HOME, Ge, Lt
from privbench.cli.doc import _method, _public
from privbench.cli.main import main
from privbench.measure.data.protocol import PROTOCOLS
from privbench.measure.games.catalog import GAMES
from privbench.plugins.hyperparameters import hyperparameters, values
from privbench.plugins.requirements import REQUIREMENTS
from privbench.plugins.variables import OWNERS, VARIABLES, Variable, of, page, settable

if TYPE_CHECKING:
    from privbench.plugins.registry import Registry

REFERENCE = Path(__file__).parents[2] / "docs" / "plugins" / "class-variables.md"


def told(*args: str, want: int = 0) -> str:
    done = CliRunner().invoke(main, ["doc", *args])
    assert done.exit_code == want, done.output
    return done.output


@pytest.mark.parametrize("owner", OWNERS)
def test_every_class_variable_is_in_the_table_and_no_other(owner: str) -> None:
    assert {one.name for one in VARIABLES if one.owner == owner} == settable(owner)


@pytest.mark.parametrize("one", VARIABLES, ids=lambda one: f"{one.owner}.{one.name}")
def test_help_of_a_class_lists_its_variables(one: Variable) -> None:
    cls = OWNERS[one.owner]
    if isinstance(inspect.getattr_static(cls, one.name, None), property):
        assert inspect.getdoc(inspect.getattr_static(cls, one.name))
    else:
        assert f"\n    {one.name}: " in str(inspect.getdoc(cls))


def test_the_reference_is_the_generated_page() -> None:
    made = page()
    assert REFERENCE.read_text(encoding="utf-8") == made, (
        "write it by `python -m privbench.plugins.variables`"
    )
    assert all(f"| `{name}` |" in made for name in REQUIREMENTS)


def test_a_method_is_on_one_screen_with_ranges_and_defaults(registry: Registry) -> None:
    text = told("talos")
    assert "talos: defense, version 2, from plugin defense_talos of privbench" in text
    assert "adversarial_factor = 3.0 (float ≥ 0): λ of equation 8" in text
    assert "Class variables: uses_attributes = True" in text
    assert "talos: protocol of every dataset" in text  # two things of one name
    long = {}
    for kind in ("attack", "defense", "target", "dataset"):
        for method in registry.all(kind):
            if method.name not in {"csv", "npz", "imagefolder"}:
                lines = [*_method(kind, method, registry, full=False, root=None)]
                shown, long[method.name] = "\n".join(lines), len(lines)
                assert all(name.name in shown for name in hyperparameters(method))
    assert max(long.values()) < 100, long


def test_the_full_text_is_that_of_class_and_module(registry: Registry) -> None:
    brief, full = told("talos"), told("--full", "talos")
    talos = registry.get("defense", "talos")
    for text in (inspect.getdoc(type(talos)), sys.modules[type(talos).__module__].__doc__):
        assert inspect.cleandoc(str(text)) in full
    assert "alternating by epoch would halve" not in brief
    assert [line for line in full.splitlines() if line.startswith("  lr = ")]


def test_every_dataset_says_where_its_data_and_their_licence_are_from(registry: Registry) -> None:
    for dataset in registry.all("dataset"):
        text = " ".join(told("--full", dataset.name).split())
        assert re.search("[Ll]icence|terms allow", text), dataset.name


def test_class_variables_are_shown_only_where_they_differ(registry: Registry) -> None:
    assert dict(of(registry.get("target", "simclr"))) == {
        "contrastive": "True", "labelled_encoder": "False",
    }  # fmt: skip
    assert dict(of(registry.get("attack", "shokri"))) == {}


@pytest.mark.parametrize("name", [*GAMES, *PROTOCOLS, "default"])
def test_games_and_protocols_are_explained(name: str) -> None:
    assert told(name).startswith(f"{name}: ")


def test_a_protocol_says_who_sees_what() -> None:
    text = told("encodermi")
    for line in ("Members: 10000 from train", "Nonmembers: 10000 from test",
                 "Classifier sees: downstream", "The question is about: encoder"):  # fmt: skip
        assert line in text


def test_unknown_names_are_suggested() -> None:
    assert "unknown name 'simcrl': did you mean 'simclr'?" in told("simcrl", want=2)
    assert "did you mean 'classifier_phase'?" in told("clasifier_phase", want=2)
    assert "`privbench list` shows methods" in told("![x](y)", want=2)  # no list of hundreds


def test_every_public_name_is_explained() -> None:
    for name in HOME:
        first, _, *rest = _public(name)
        assert first.startswith(f"{name}: ")
        assert first.endswith(f"from privbench import {name}")
        assert str(inspect.getdoc(getattr(privbench, name))).splitlines()[0] in rest
    assert "audit: protocol of every dataset" in (both := told("audit"))
    assert "audit: function, from privbench import audit" in both


def test_a_public_class_is_explained_with_its_methods_and_without_quoted_types() -> None:
    text = told("privbench.Release")
    assert "Release.fit(self, model: Model, world: World, ctx: DefenseContext) -> None" in text
    assert "Learn what the release needs, from the defender's world only." in text


@pytest.mark.parametrize("name", ["on_phases", "Defense.on_phases", "privbench.Defense.on_phases"])
def test_a_method_of_a_public_class_is_explained(name: str) -> None:
    text = told(name)
    assert text.startswith("Defense.on_phases(self, phases: ")
    assert str(inspect.getdoc(privbench.Defense.on_phases)).splitlines()[0] in text
    assert "did you mean 'on_phases'?" in told("onphases", want=2)


def test_a_method_of_several_classes_is_explained_for_each() -> None:
    text = told("score")
    assert "Game.score(" in text
    assert "Estimate.score" not in text


def test_class_variables_are_explained_with_their_values() -> None:
    text = told("protects")
    assert text.startswith("protects: class variable of a defense\n")
    assert "Values: a tuple of membership, attributes" in text
    assert text.rstrip().endswith("Default: needed")
    both = [one for one in VARIABLES if one.name == "presets"]
    assert told("presets").count("class variable of") == len(both) > 0


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (bool, "True, False"),
        (tuple[float, ...], "tuple of float, …"),
        (Annotated[int, Ge(1), Lt(5)] | None, "int ≥ 1, < 5 or None"),
    ],
)
def test_annotations_in_words(wanted: object, words: str) -> None:
    assert values(wanted) == words
