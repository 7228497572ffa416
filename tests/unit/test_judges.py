"""By which attacks defenses are judged: what classes say, suites run and `doc` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from privbench.cli.index import index
from privbench.cli.main import main
from privbench.grid.judging import judging
from privbench.grid.resolver import Resolver
from privbench.grid.suite import suite_from
from privbench.ground.errors import BadInputError
from privbench.ground.judges import EVERY, STRONGEST, Judge, judges, judges_of
from privbench.measure.methods.access import Access
from privbench.measure.methods.attack import Attack
from privbench.measure.methods.defense import Defense
from privbench.plugins.facts import wrong_fact
from privbench.plugins.registry import Plugin, Registry


def test_every_defense_names_attacks_that_exist(registry: Registry) -> None:
    for defense in registry.all("defense"):
        assert bool(defense.judged_by) != (defense.name == "none" or defense.control), defense.name
        for judge in judges_of(defense):
            attack = registry.get("attack", judge.attack).replace(**judge.fields)
            assert attack.game in STRONGEST
            assert judge.why.endswith("."), judge.why
            assert len(judge.why) < 100, judge.why


def test_all_judges_of_a_game_judge_all_defenses(registry: Registry) -> None:
    known = judging(registry)
    named = {one.label for one in judges(known, ["talos", "memguard"], "membership")}
    assert named == {"rmia", "lira-encoder(online=True)", "label-lira", "nn-mia",
                     "metric-modified-entropy", "lira", "lira-head"}  # fmt: skip
    assert [one.label for one in judges(known, ["unheard-of"], "reconstruction")] == [
        "reconstruction"
    ]
    assert judges(known, ["talos"], "unheard-of") == []
    (property_inference,) = (one for one in known[EVERY] if one.game == "property")
    assert {*property_inference.fields} == {
        *registry.get("attack", "property-inference").hyperparameters()
    }


@dataclass(frozen=True)
class Lira(Attack):
    """Another package's attack with the name of a judge."""

    name: ClassVar[str] = "lira"
    game: ClassVar[str] = "membership"
    needs: ClassVar[Access] = Access.LABELS

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Any:
        """Never asked."""


def test_what_privbench_names_is_its_own_attack(registry: Registry) -> None:
    assert {one.origin for of in judging(registry).values() for one in of} == {"privbench"}
    found = Registry()
    found.add("attack", Lira(), Plugin("theirs", "theirs", "theirs"))
    found.add("defense", Mine(), Plugin("theirs", "theirs", "theirs"))
    (ours,) = (one for one in judging(found)[EVERY] if one.attack == "lira")
    assert (ours.origin, ours.version) == ("privbench", 0)
    (theirs,) = judging(found)["mine"]
    assert theirs.attack == "lira"
    assert theirs.origin not in ("", "privbench")


def named(found: Resolver) -> list[str]:
    return [one.label for one in found.attacks]


@pytest.mark.parametrize("attacks", ["strongest", ["strongest"]])
def test_strongest_is_all_that_judge_the_defenses(registry: Registry, attacks: Any) -> None:
    suite = suite_from({"attacks": attacks, "defenses": ["memguard", "ars"]}, "the test")
    wanted = [
        "label-lira", "nn-mia", "metric-modified-entropy", "lira", "rmia",
        "lira-encoder(online=True)", "lira-head", "reconstruction",
        "reconstruction(rows=own, coordinates=quiet)",
    ]  # fmt: skip
    assert named(Resolver(suite, registry)) == wanted
    assert [one.name for one in Resolver(suite, index([])).attacks] == [
        one.partition("(")[0] for one in wanted
    ]


def test_strongest_stands_beside_other_attacks_and_each_runs_once(registry: Registry) -> None:
    suite = {"attacks": ["rmia", "strongest", "shokri"], "defenses": ["uniform-noise"]}
    found = Resolver(suite_from(suite, "the test"), registry)
    assert named(found) == ["rmia", "reconstruction", "shokri"]
    found = Resolver(suite_from({"attacks": "strongest"}, "the test"), registry)
    assert {one.game for one in found.attacks} == {*STRONGEST}
    with pytest.raises(BadInputError, match="attacks must be a list of names"):
        suite_from({"attacks": "strong"}, "the test")


def test_a_judge_that_is_not_installed_is_left_out_of_the_strongest(registry: Registry) -> None:
    @dataclass(frozen=True)
    class Fenced(Mine):
        name: ClassVar[str] = "fenced"
        judged_by: ClassVar[Any] = (Judge("of-nobody", "Who?"), Judge("shokri", "Why not?"))

    found = Registry()
    for kind in ("dataset", "target", "attack", "defense"):
        for method in registry.all(kind):
            found.add(kind, method, Plugin("ours", "ours", "ours"))
    found.add("defense", Fenced(), Plugin("theirs", "theirs", "theirs"))
    suite = suite_from({"attacks": "strongest", "defenses": ["fenced"]}, "the test")
    labels = named(Resolver(suite, found))
    assert "shokri" in labels
    assert "of-nobody" not in labels
    assert suite.names is None  # judges may come from any package


def test_doc_prints_them(registry: Registry) -> None:
    for name in ("memguard", "laplace", "talos"):
        told = CliRunner().invoke(main, ["doc", name]).output
        _, _, listed = " ".join(told.split()).partition("(`attacks: strongest` in a suite runs")
        for judge in judges_of(registry.get("defense", name)):
            assert f" {judge.label}: {judge.why}" in listed
    assert "Judged by" not in CliRunner().invoke(main, ["doc", "none"]).output


@dataclass(frozen=True)
class Mine(Defense):
    """Does nothing."""

    name: ClassVar[str] = "mine"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    judged_by: ClassVar[Any] = (Judge("lira", "Why not?"),)


@pytest.mark.parametrize("given", [("lira",), [Judge("lira", "Why not?")], "lira", None])
def test_judges_in_another_form(given: Any) -> None:
    assert wrong_fact(Mine()) is None
    wrong = type("Wrong", (Mine,), {"judged_by": given})
    assert "write a tuple of Judge(attack, why)" in str(wrong_fact(wrong()))
