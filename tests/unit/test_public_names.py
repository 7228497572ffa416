"""Every public name says what it is, with an example that ``--doctest-modules`` runs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import privbench

ROOT = Path(__file__).parents[2]
#: Made by pluggy, so that its documentation is that of its module.
BY_MODULE = {"hookimpl"}
OURS = [name for name, home in privbench.HOME.items() if home.startswith("privbench.")]


@pytest.mark.parametrize("name", OURS)
def test_a_public_name_has_an_example(name: str) -> None:
    value = getattr(privbench, name)
    home = importlib.import_module(privbench.HOME[name])
    text = (home if name in BY_MODULE else value).__doc__ or ""
    assert ">>> " in text, f"{name} has no example in its docstring"
    assert text.split(">>> ")[0].strip(), "say what it is before the example"
    assert name in BY_MODULE or value.__module__.startswith(privbench.HOME[name])


@pytest.mark.parametrize("name", ["Results", "Plot"])
def test_every_method_that_one_calls_in_a_notebook_has_an_example(name: str) -> None:
    called = {key: one for key, one in vars(getattr(privbench, name)).items() if key[0] != "_"}
    documented = [key for key, one in called.items() if ">>> " in (one.__doc__ or "")]
    fields = {"match_utility", "judging", "folders", "records", "bound"}
    assert documented == [key for key in called if key not in fields]


def test_every_home_is_under_the_doctests() -> None:
    """The examples are collected where the tests are configured to look."""
    import tomllib

    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in options["addopts"]
    assert "benchmark" in options["testpaths"]


def test_the_names_of_type_checkers_are_those_of_the_program() -> None:
    assert set(privbench.__all__) == {"API_VERSION", *privbench.HOME} == set(dir(privbench))
    assert len(privbench.HOME) > 90
    for name, home in privbench.HOME.items():
        assert getattr(privbench, name) is getattr(importlib.import_module(home), name)


def test_help_names_only_what_there_is() -> None:
    named = re.findall(r"``(\w+)``", str(privbench.__doc__))
    assert len(named) > 30
    assert set(named) <= set(privbench.__all__)
    assert {"run", "load", "audit", "hookimpl"} <= set(named)


def test_the_page_of_helpers_lists_every_module_of_the_toolbox() -> None:
    from privbench import toolbox

    page = (ROOT / "docs" / "plugins" / "helpers.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", page.partition("| Module of `privbench.toolbox` |")[2]))
    assert {module.name for module in pkgutil.iter_modules(toolbox.__path__)} <= listed
