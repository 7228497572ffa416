"""One broken plugin never breaks the rest, and is named when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from click.testing import CliRunner

from privbench import (
    Access,
    BadInputError,
    Defense,
    Membership,
    MembershipAttack,
    PrivbenchError,
    Release,
    hookimpl,
)
from privbench.cli.main import main
from privbench.ground.errors import PluginError, UnknownNameError
from privbench.plugins import registry as plugins
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.plugins.registry import Registry


@dataclass(frozen=True)
class Loud(MembershipAttack):
    """Calls a member whatever the victim is sure of.

    And says so at length.
    """

    name: ClassVar[str] = "loud"
    needs: ClassVar[Access] = Access.POSTERIORS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        return Membership(oracle.posteriors(question.examples).amax(1))


@dataclass(frozen=True)
class Soft(Loud):
    """Another."""

    name: ClassVar[str] = "soft"


@dataclass(frozen=True)
class Nothing(Defense):
    """Does nothing."""

    name: ClassVar[str] = "none"
    protects: ClassVar[tuple[str, ...]] = ()


class Bare(Loud):
    """Without a decorator, its fields would be ignored."""

    name: ClassVar[str] = "bare"
    steps: int = 3


@dataclass(frozen=True)
class Fussy(Nothing):
    """Requires what nobody knows."""

    name: ClassVar[str] = "fussy"
    requires: ClassVar[tuple[str, ...]] = ("class",)


@dataclass(frozen=True)
class Silent(Nothing):
    """Does not say what it releases."""

    name: ClassVar[str] = "silent"

    def release(self, card: Any, model: Any, ctx: Any) -> Release:
        raise NotImplementedError


@dataclass(frozen=True)
class Needless(MembershipAttack):
    """Does not say what it needs."""

    name: ClassVar[str] = "needless"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plugins with names of privbench's own offer is forgotten."""
    monkeypatch.setattr(plugins, "_ours", {})


def point(name: str, load: Callable[[], Any], value: str = "") -> Any:
    dist = SimpleNamespace(name="somebody")
    return SimpleNamespace(name=name, value=value or f"their.{name}", dist=dist, load=load)


def module(**functions: Any) -> Callable[[], ModuleType]:
    made = ModuleType("made")
    vars(made).update(functions)
    return lambda: made


def attacks(make: Callable[..., Any], hook: str = "privbench_attacks") -> Callable[[], ModuleType]:
    return module(**{hook: hookimpl(make)})


def fail(error: BaseException) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


GOOD = point("good", attacks(lambda: [Soft()]))


def privbench_atacks() -> list[Any]:
    return [Loud()]


def one() -> Any:
    return Loud()


def wants_more(oracle: Any) -> list[Any]:
    return [oracle]


BROKEN = {
    "import": (fail(ImportError("no\n module")), "import failed: ImportError: no module"),
    "exits": (fail(SystemExit(3)), "import failed: SystemExit: 3"),
    "misspelt": (
        module(privbench_atacks=hookimpl(privbench_atacks)),
        "unknown hook 'privbench_atacks': did you mean 'privbench_attacks'?",
    ),
    "argument": (attacks(wants_more), "invalid hook: "),
    "class": (attacks(lambda: [Loud]), "returned the class Loud: return an instance"),
    "foreign": (attacks(lambda: [3]), "returned 3: return instances of Attack"),
    "kind": (attacks(lambda: [Loud()], "privbench_defenses"), "return instances of Defense"),
    "bare": (attacks(lambda: [Bare()]), "decorate it with @dataclass(frozen=True)"),
    "needless": (attacks(lambda: [Needless()]), "has no needs"),
    "fussy": (
        attacks(lambda: [Fussy()], "privbench_defenses"),
        "Fussy: requires has 'class': choose from classes, ",
    ),
    "silent": (attacks(lambda: [Silent()], "privbench_defenses"), "but has no release_class"),
    "alone": (attacks(one), "privbench_attacks returned a Loud: return a list"),
    "none": (attacks(lambda: None), "privbench_attacks returned None: return a list"),
    "hookless": (module(privbench_attacks=lambda: [Loud()]), "implements no privbench hook"),
    "raises": (
        attacks(lambda: [vars(Loud)["x"]]),
        "privbench_attacks raised KeyError: 'x'",
    ),
    "leaves": (attacks(fail(SystemExit(1))), "privbench_attacks raised SystemExit: 1"),
}


def load(*points: Any, disable: tuple[str, ...] = ()) -> Registry:
    return plugins.load(disable, entry_points=points)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_plugin_is_one_line_and_the_rest_goes_on(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, problem = BROKEN[how]
    registry = load(point("attack_loud", loader), GOOD)
    bad, good = registry.plugins
    assert (bad.status, good.status) == ("broken", "ok")
    assert problem in bad.problems[0]
    assert registry.get("attack", "soft") == Soft()
    with pytest.raises(PluginError, match="plugin 'attack_loud' failed to load"):
        registry.get("attack", "loud")
    with pytest.raises(UnknownNameError, match=r"broken plugins: attack_loud"):
        registry.get("attack", "quite-other")

    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    listed = CliRunner().invoke(main, ["list", "plugins"])
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    assert len(lines) == 3, "one line each, below the heading"
    assert problem in lines[1]
    assert lines[1].split()[:3] == ["attack_loud", "broken", "somebody:"]


def test_annotations_need_not_be_text(tmp_path: Path) -> None:
    """Classes of Python 3.14 evaluate them when asked, unless the module says otherwise."""
    home = Path("plugins/privbench_plugins/defenses/confidence_masking.py")
    text = home.read_text("utf-8").replace("from __future__ import annotations\n", "")
    text = text.replace("if TYPE_CHECKING:", "if True:")  # before 3.14 they are evaluated at once
    own = tmp_path / "own.py"
    own.write_text(text.replace('"confidence-masking"', '"own"'), "utf-8")
    registry = plugins.load([own])
    with pytest.raises(BadInputError, match="mask"):
        type(registry.get("defense", "own"))(mask=3)


def test_traceback_of_a_broken_plugin_is_there_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load(point("bad", fail(ImportError("gone"))))
    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    assert "Traceback" not in CliRunner().invoke(main, ["list", "plugins"]).output
    assert "Traceback" in CliRunner().invoke(main, ["list", "plugins", "--errors"]).output


def test_a_broken_plugin_is_fatal_only_to_a_run_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = {"dataset": TinyImages(), "target": TinyTarget(), "defense": Nothing(), "attack": Soft()}
    points = [
        point(kind, module(**{f"privbench_{kind}s": hookimpl(lambda made=made: [made])}))
        for kind, made in tiny.items()
    ]
    registry = load(point("attack_loud", fail(ImportError("gone"))), *points)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: registry)
    grid = ["run", "--dataset", "tiny-images", "--target", "tiny-target", "--dry-run"]
    other = CliRunner().invoke(main, [*grid, "--attack", "soft"])
    assert other.exit_code == 0, other.output
    named = CliRunner().invoke(main, [*grid, "--attack", "loud"])
    assert named.exit_code == 2
    assert "attack 'loud' is unavailable: plugin 'attack_loud' failed to load" in named.stderr
    assert len(named.stderr.splitlines()) == 1


def test_ctrl_c_during_an_import_is_not_a_broken_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        load(point("bad", fail(KeyboardInterrupt())))


def test_of_two_methods_of_one_name_the_first_is_kept_and_the_second_listed() -> None:
    first, second = Loud(), Loud()
    registry = load(
        point("b", attacks(lambda: [second, Soft()])), point("a", attacks(lambda: [first]))
    )
    assert registry.get("attack", "loud") is first
    listed = {plugin.name: plugin for plugin in registry.plugins}
    assert listed["b"].status == "ok"
    assert listed["b"].methods == ["attack soft"]
    assert "attack 'loud' is already offered by plugin 'a'" in listed["b"].problems[0]
    assert listed["a"].problems == []


def test_ours_come_before_strangers() -> None:
    ours = Loud()
    registry = load(
        point("a", attacks(lambda: [Loud()])),
        point("z", attacks(lambda: [ours]), "privbench_plugins.attacks.z"),
    )
    assert registry.get("attack", "loud") is ours


def test_a_plugin_is_switched_off_by_argument_and_by_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loud = point("attack_loud", attacks(lambda: [Loud()]))
    for registry in (load(loud, GOOD, disable=("attack_loud",)), _by_variable(monkeypatch, loud)):
        assert {p.name: p.status for p in registry.plugins} == {
            "attack_loud": "disabled", "good": "ok",
        }  # fmt: skip
        assert [method.name for method in registry.all("attack")] == ["soft"]
        with pytest.raises(PluginError, match="plugin 'attack_loud' is disabled"):
            registry.get("attack", "loud")


def _by_variable(monkeypatch: pytest.MonkeyPatch, loud: Any) -> Registry:
    monkeypatch.setenv("PRIVBENCH_DISABLE_PLUGINS", " attack_loud ,")
    return load(loud, GOOD)


def test_no_other_package_is_imported_if_none_of_its_methods_is_wanted() -> None:
    ours = point("ours", attacks(lambda: [Loud()]), "privbench_plugins.attacks.loud")
    theirs = point("theirs", fail(KeyboardInterrupt()))
    plugins.load(entry_points=[theirs, ours], wanted={("attack", "loud")})
    for wanted in ({("attack", "loud"), ("", "other")}, {("defense", "loud")}, None):
        with pytest.raises(KeyboardInterrupt):
            plugins.load(entry_points=[theirs, ours], wanted=wanted)


def test_a_plugin_that_is_switched_off_is_not_imported() -> None:
    load(point("bad", fail(KeyboardInterrupt())), GOOD, disable=("bad",))


def test_switching_off_what_there_is_not_is_an_error() -> None:
    with pytest.raises(BadInputError, match=r"unknown plugin to disable 'god'.* 'good'\?"):
        load(GOOD, disable=("god",))


def test_a_name_is_found_in_every_kind_or_suggested() -> None:
    registry = load(GOOD)
    assert registry.find("soft") == [("attack", Soft())]
    with pytest.raises(PrivbenchError, match=r"unknown method 'sofd': did you mean 'soft'\?"):
        registry.find("sofd")


def test_an_empty_name_blames_nobody() -> None:
    registry = load(point("bad", fail(ImportError("gone"))), GOOD)
    with pytest.raises(UnknownNameError, match="unknown attack ''"):
        registry.get("attack", "")
