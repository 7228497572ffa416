"""A new package of plugins works as it is written, and a check says what to change."""

from __future__ import annotations

import importlib
import sys
import tomllib
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.cli.plugins import EXAMPLES
from privbench.measure.games.catalog import GAMES
from privbench.plugins import registry as plugins
from privbench.plugins.valid import KINDS
from privbench.testing import checks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Kinds whose whole kit takes seconds; of the others, the checks that train nothing run here.
QUICK = {"attack", "dataset", "game"}
#: Kind -> kind and name of the method that a package of it offers.
OFFERED = {"game": ("attack", "my-game-confidence")}
UNTRAINED = ("is frozen", "says what it is", "refuses unknown", "shapes", "never widens")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in an empty folder; forget the modules that are imported from it."""
    monkeypatch.chdir(tmp_path)
    before, games = set(sys.modules), dict(GAMES)
    yield
    GAMES.clear()
    GAMES.update(games)
    for name in set(sys.modules) - before:
        if name.startswith("privbench_my_"):
            del sys.modules[name]


def written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plugins.Registry:
    """Write a package; return what its entry point offers."""
    done = CliRunner().invoke(main, ["new", kind, f"my-{kind}"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / f"privbench-my-{kind}"
    config = tomllib.loads((folder / "pyproject.toml").read_text())
    [(name, value)] = config["project"]["entry-points"]["privbench"].items()
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    return plugins.load(entry_points=[EntryPoint(name, value, plugins.GROUP)])


def test_every_kind_has_a_template() -> None:
    assert set(EXAMPLES) == {*KINDS, "game"}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_new_package_passes_its_own_tests(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = written(kind, tmp_path, monkeypatch)
    assert [plugin.problems for plugin in registry.plugins] == [[]]
    offered, name = OFFERED.get(kind, (kind, f"my-{kind}"))
    method = registry.get(offered, name)
    for check in checks(method):
        if kind in QUICK or check.name.startswith(UNTRAINED):
            check()
    text = "".join(
        file.read_text()
        for file in (tmp_path / f"privbench-my-{kind}").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    assert "$" not in text  # every placeholder is filled in
    assert f"from privbench_my_{kind}.my_{kind} import {type(method).__name__}\n" in text


def test_the_kit_judges_an_attack_on_a_game_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = written("game", tmp_path, monkeypatch).get("attack", "my-game-confidence")
    tried = {check.name: check for check in checks(method)}
    answer = type(method).answer

    def reversed_sign(self: Any, *given: Any) -> Any:
        made = answer(self, *given)
        return type(made)(-made.scores)

    monkeypatch.setattr(type(method), "answer", reversed_sign)
    with pytest.raises(AssertionError, match=r"that of a guess is 0\.500: check the sign"):
        tried["beats chance on a planted victim"]()
    game = type(GAMES["my-game"])
    monkeypatch.setattr(type(method), "answer", answer)
    monkeypatch.setattr(game, "nulls", game.victims)  # null victims that saw the members
    with pytest.raises(AssertionError, match="the truth leaks into the attack"):
        tried["stays at chance on a null victim"]()


@pytest.mark.parametrize(
    "name", ["My-Attack", "my_attack", "-x", "a--b", "x" * 41, "../up", "", "import", "membership"]
)
def test_names_that_make_no_package_are_refused(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["new", "attack", "--", name])
    assert done.exit_code == 2
    assert "cannot be called" in done.output
    assert not [*tmp_path.iterdir()]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["new", "attack", "lira"])
    assert done.exit_code == 2
    assert "attack 'lira' exists already: choose another name" in done.output
    assert not [*tmp_path.iterdir()]
    assert CliRunner().invoke(main, ["new", "defense", "lira"]).exit_code == 0  # another kind


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "privbench-mine").mkdir()
    done = CliRunner().invoke(main, ["new", "attack", "mine"])
    assert done.exit_code == 2
    assert "privbench-mine exists" in done.output
    assert not [*(tmp_path / "privbench-mine").iterdir()]


def test_check_runs_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = written("dataset", tmp_path, monkeypatch)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    for name in ("my-dataset", "dataset_my_dataset", "privbench_my_dataset"):
        done = CliRunner().invoke(main, ["check", name])
        assert done.exit_code == 0, done.output
        assert "ok      card agrees with the data" in done.output
        assert "6 checks, 0 failed" in done.output
    kind: Any = type(registry.get("dataset", "my-dataset"))
    monkeypatch.setattr(kind, "load", lambda *_, **__: 1 / 0)
    done = CliRunner().invoke(main, ["check", "my-dataset"])
    assert done.exit_code == 1
    assert "FAILED  card agrees with the data: " in done.output
    assert "ZeroDivisionError" in done.output


def test_check_names_what_is_broken_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = written("attack", tmp_path, monkeypatch)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    done = CliRunner().invoke(main, ["check", "my-atack"])
    assert done.exit_code == 2
    assert "did you mean 'my-attack'?" in done.output
    registry.plugins[0].broke("import failed: no")
    done = CliRunner().invoke(main, ["check", "privbench_my_attack"])
    assert done.exit_code == 2
    assert "is broken: import failed: no" in done.output
