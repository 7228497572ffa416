"""``privbench doc``, and the reference of class variables, say what the code says."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
from click.testing import CliRunner

from privbench import Ge, Lt
from privbench.cli.cards import method_card, summary
from privbench.cli.main import main
from privbench.measure.data.protocol import PROTOCOLS
from privbench.measure.games.catalog import GAMES
from privbench.plugins.about import about
from privbench.plugins.hyperparameters import hyperparameters, values
from privbench.plugins.requirements import REQUIREMENTS
from privbench.plugins.variables import OWNERS, VARIABLES, Variable, of, page

if TYPE_CHECKING:
    from privbench.plugins.registry import Registry

REFERENCE = Path(__file__).parents[2] / "docs" / "plugins" / "class-variables.md"
#: What the core sets or computes.
OF_THE_CORE = {"place", "label", "identity", "digest"}


def told(*args: str, want: int = 0) -> str:
    done = CliRunner().invoke(main, ["doc", *args])
    assert done.exit_code == want, done.output
    return done.output


def settable(owner: str) -> set[str]:
    """Return the public class variables and properties of an owner, as its code has them."""
    cls = OWNERS[owner]
    annotated = {n for n, of in inspect.get_annotations(cls).items() if n not in OF_THE_CORE}
    properties = {n for n, of in vars(cls).items() if isinstance(of, property)}
    return {n for n in annotated | (properties - OF_THE_CORE) if not n.startswith("_")}


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
                lines = [*summary(about(kind, method).texts), *method_card(kind, method)]
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


@pytest.mark.slow
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
    assert "`privbench list` shows methods" in told("![x](y)", want=2)  # no list of hundreds


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
