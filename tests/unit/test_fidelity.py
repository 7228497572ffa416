"""Published numbers beside ours: selections, tests of findings, and the committed page."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from tests.unit.scripts import ROOT, script
from tests.unit.test_rows import record

from privbench.measure.games.catalog import GAMES
from privbench.results.statistics import Difference


@pytest.fixture(scope="module")
def fidelity() -> Any:
    return script("fidelity.py")


@pytest.mark.slow
def test_the_committed_files_are_those_of_the_committed_results(fidelity: Any) -> None:
    for name, text in fidelity.committed().items():
        found = (ROOT / "leaderboards" / name).read_text("utf-8")
        assert found == text, "run: uv run python leaderboards/fidelity.py"


def results(**auc: list[float]) -> list[Any]:
    """Results of the attack `loud`, by defense and seed."""
    return [
        record("loud", defense, seed, auc=value)
        for defense, values in auc.items()
        for seed, value in enumerate(values)
    ]


def published(fidelity: Any, **values: Any) -> Any:
    given = {
        "papers": {"p": {"short": "P", "cite": "a paper"}}, "tables": [], "quoted": [],
        "findings": [],
    }  # fmt: skip
    return fidelity.Published.model_validate(given | values)


TABLE: dict[str, Any] = {
    "paper": "p", "where": "table 1", "certainty": "text", "quantity": "AUC",
    "number": "metrics.auc", "protocol": "theirs", "suite": "ours", "cell": {"attack": "loud"},
    "columns": [
        {"defense": "none"}, {"defense": "talos"}, {"defense": "none", "dataset": "places"},
    ],
    "missing": {"places": "no data"},
    "rows": [{"values": [0.8, 0.6, 0.9]}],
}  # fmt: skip


def test_a_value_is_the_mean_over_seeds(fidelity: Any) -> None:
    suites = {"ours": results(none=[0.7, 0.8, 0.9], talos=[0.5, 0.6, 0.4])}
    none, talos, places = fidelity.values(published(fidelity, tables=[TABLE]), suites)
    assert (none.ours.value, none.seeds) == (pytest.approx(0.8), 3)
    assert talos.ours.value == pytest.approx(0.5)
    assert (places.ours, places.why) == (None, "no data")
    page = fidelity.page(published(fidelity, tables=[TABLE]), suites)
    assert page.index("loud × none") < page.index("loud × talos")  # the closer one first
    assert "2 are measured here. 2 of these are leaks by the paper's attacker: 0 agree, 0 " in page
    rows = list(
        csv.DictReader(fidelity.table(published(fidelity, tables=[TABLE]), suites).split("\n"))
    )
    assert [(row["published"], row["ours"], row["seeds"]) for row in rows] == [
        ("0.8", "0.8", "3"), ("0.6", "0.5", "3"), ("0.9", "", ""),
    ]  # fmt: skip
    assert rows[1]["difference"] == "-0.1"


def number(fidelity: Any, theirs: float, ours: list[float], **table: Any) -> Any:
    """One published AUC beside ours."""
    given = {**TABLE, "columns": [{"defense": "none"}], "rows": [{"values": [theirs]}], **table}
    (one,) = fidelity.values(published(fidelity, tables=[given]), {"ours": results(none=ours)})
    return one


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (0.82, [0.80, 0.81, 0.8, 0.79, 0.8], "agrees"),  # .8 ± .009
        (0.84, [0.80, 0.81, 0.8, 0.79, 0.8], "differs"),
        (0.835, [0.80, 0.81, 0.8, 0.79, 0.8], "open"),  # .805 is within the interval
        (0.825, [0.80, 0.81, 0.8, 0.79, 0.8], "open"),  # .025 apart, but .791 is .034 apart
        (0.80, [0.7, 0.8, 0.9, 0.8, 0.8], "open: ± 0.088"),  # equal means of wide intervals
        (0.80, [0.8, 0.8], "open: no interval"),
    ],
)
def test_agreement_is_an_equivalence(
    fidelity: Any, theirs: float, ours: list[float], verdict: str
) -> None:
    assert number(fidelity, theirs, ours).verdict == verdict
    wide = number(fidelity, theirs, ours, margin=0.1).verdict
    assert wide == ("open: no interval" if len(ours) == 2 else "agrees")


def test_numbers_that_say_nothing_of_an_attack_stand_apart(fidelity: Any) -> None:
    good = [0.8, 0.81, 0.8]
    assert number(fidelity, 0.8, good).section == fidelity.LEAKS
    assert number(fidelity, 0.51, [0.5, 0.52, 0.51]).section == fidelity.AT_CHANCE
    assert number(fidelity, 0.51, good).section == fidelity.LEAKS  # only theirs finds nothing
    assert number(fidelity, 0.8, [0.5, 0.52, 0.51]).section == fidelity.LEAKS
    other = {"attacker": "it also sees labels"}
    assert number(fidelity, 0.8, good, **other).section == fidelity.OTHERS
    utility = {"number": "utility.test_accuracy"}
    assert number(fidelity, 0.9, good, **utility).section == fidelity.UTILITY
    lost = number(fidelity, 0.8, good, certainty="unclear")
    assert lost.section == fidelity.UNCLEAR
    tables = [TABLE, {**TABLE, **other, "where": "table 2"}]
    page = fidelity.page(
        published(fidelity, tables=tables), {"ours": results(none=good, talos=good)}
    )
    leaks, others = (page.split(f"## {name}\n")[1] for name in (fidelity.LEAKS, fidelity.OTHERS))
    assert "it also sees labels" in others
    assert "it also sees labels" not in leaks.split("\n## ")[0]
    assert "2 of these are leaks by the paper's attacker" in page


@pytest.mark.parametrize(
    ("higher", "theirs", "guess", "nothing"),
    [
        (True, 0.44, 0.42, True), (True, 0.44, 0.35, False),
        (False, 0.9, 0.7, True),  # an error above that of the mean image
        (False, 0.5, 0.7, False),
    ],
)  # fmt: skip
def test_chance_is_that_of_the_game(
    fidelity: Any, higher: bool, theirs: float, guess: float, nothing: bool
) -> None:
    """Ours is .43 for accuracies, .69 for errors."""
    name, value = ("accuracy", 0.43) if higher else ("mse", 0.69)
    made = results(none=[value, value + 0.001])
    for one in made:
        assert one.board is not None
        one.metrics = {name: one.metrics["auc"]}
        one.baselines = {"majority" if higher else "mean_image": {
            name: one.metrics[name].model_copy(update={"value": guess})}}  # fmt: skip
        one.board = GAMES["attributes" if higher else "reconstruction"].board
    table = {**TABLE, "columns": [{"defense": "none"}], "rows": [{"values": [theirs]}],
             "number": f"metrics.{name}"}  # fmt: skip
    (found,) = fidelity.values(published(fidelity, tables=[table]), {"ours": made})
    assert found.section == (fidelity.AT_CHANCE if nothing else fidelity.LEAKS)


def test_the_auc_stands_beside_a_balanced_accuracy(fidelity: Any) -> None:
    suites = {"ours": results(none=[0.9, 0.95], talos=[0.6, 0.6])}
    for one in suites["ours"]:
        one.metrics["balanced_accuracy"] = one.metrics["auc"].model_copy(update={"value": 0.6})
    given = published(fidelity, tables=[{**TABLE, "number": "metrics.balanced_accuracy"}])
    assert [one.auc for one in fidelity.values(given, suites)] == [0.925, 0.6, None]
    page = fidelity.page(given, suites)
    assert "| published | ours | our AUC | difference |" in page
    assert "| 0.600 | 0.925 | -0.200 |" in page


def test_one_seed_has_the_interval_over_its_rows_or_none(fidelity: Any) -> None:
    table = {**TABLE, "columns": [{"defense": "none"}], "rows": [{"values": [0.8]}]}
    (alone,) = results(none=[0.7])
    alone.utility["test_rows"] = 100
    shown = {"metrics.auc": "0.700 [0.600, 0.800]", "utility.test_accuracy": "0.900 [0.824, 0.951]",
             "utility.gap": "0.100"}  # fmt: skip
    found: list[dict[str, str]] = []
    for number, text in shown.items():
        given = published(fidelity, tables=[{**table, "number": number}])
        assert f" | {text} | " in fidelity.page(given, {"ours": [alone]})
        found += csv.DictReader(fidelity.table(given, {"ours": [alone]}).split("\n"))
    assert [(row["low"] == "", row["high"] == "") for row in found] == [
        (False, False), (False, False), (True, True),
    ]  # fmt: skip


def test_a_number_that_was_not_measured_has_no_number_of_ours(fidelity: Any) -> None:
    found = fidelity.values(published(fidelity, tables=[TABLE]), {})
    assert [one.ours for one in found] == [None] * 3
    assert found[0].why == "suite ours has not been run"


def test_a_selection_of_nothing_or_of_several_cells_is_an_error(fidelity: Any) -> None:
    suites = {"ours": results(none=[0.7], talos=[0.5])}
    for cell, reason in (({"attack": "quiet"}, "no result"), ({"attack": "loud"}, "several")):
        table = TABLE | {"cell": cell, "columns": [{}], "rows": [{"values": [0.5]}]}
        with pytest.raises(LookupError, match=reason):
            fidelity.values(published(fidelity, tables=[table]), suites)


def finding(fidelity: Any, **values: Any) -> Any:
    return fidelity.Finding.model_validate(
        {
            "paper": "p", "text": "talos lowers it", "suites": ["ours"], "number": "metrics.auc",
            "more": {"defense": "none"}, "less": {"defense": "talos"},
        }
        | values
    )  # fmt: skip


@pytest.mark.parametrize(
    ("talos", "verdict"),
    [
        ([0.5, 0.6, 0.68], "borne out"),
        ([0.9, 0.95, 1.0], "contradicted"),
        ([0.5, 0.9, 0.9], "undecided"),
    ],
)
def test_a_finding_is_tested_by_seed(fidelity: Any, talos: list[float], verdict: str) -> None:
    suites = {"ours": results(none=[0.7, 0.8, 0.85], talos=talos)}
    (tested,) = fidelity.tests(finding(fidelity), suites)
    assert tested.verdict == verdict
    assert (tested.pairs, tested.difference.seeds) == (1, 3)


def test_two_seeds_decide_nothing(fidelity: Any) -> None:
    suites = {"ours": results(none=[0.8, 0.8], talos=[0.1, 0.2])}
    (tested,) = fidelity.tests(finding(fidelity), suites)
    assert tested.verdict == "undecided: too few seeds"


@pytest.mark.parametrize(
    ("margin", "talos", "verdict"),
    [
        (0, [0.7, 0.8, 0.85], "borne out"),
        (0, [0.7, 0.8, 0.86], "contradicted"),
        (0.1, [0.71, 0.79, 0.86], "borne out"),
        (0.1, [0.4, 0.5, 0.56], "contradicted"),
        (0.1, [0.6, 0.7, 0.76], "undecided"),
    ],
)
def test_equal_means_within_the_margin(
    fidelity: Any, margin: float, talos: list[float], verdict: str
) -> None:
    suites = {"ours": results(none=[0.7, 0.8, 0.85], talos=talos)}
    (tested,) = fidelity.tests(finding(fidelity, equal=margin), suites)
    assert tested.verdict == verdict


def test_a_finding_of_nothing_in_a_suite_that_was_run_is_an_error(fidelity: Any) -> None:
    with pytest.raises(LookupError, match="no results of ours are compared"):
        fidelity.tests(finding(fidelity, less={"defense": "olympus"}), {"ours": results(none=[1])})
    assert fidelity.tests(finding(fidelity), {}) == []


def test_curves_are_compared_where_they_have_equal_utility(fidelity: Any) -> None:
    """One curve leaks 2u, the other u: at u = .3 and .7, inside the first, they differ by u."""
    records = []
    for seed in range(3):
        for name, factor, at in (("none", 2, (0.2, 0.8)), ("talos", 1, (0.1, 0.3, 0.7))):
            for u in at:
                one = record("loud", name, seed, auc=0.0)
                one = one.model_copy(update={"utility": {"test_accuracy": u}})
                number = one.metrics["auc"].model_copy(update={"value": factor * u})
                records.append(one.model_copy(update={"metrics": {"auc": number}}))
    (tested,) = fidelity.tests(finding(fidelity, at="utility.test_accuracy"), {"ours": records})
    assert tested.difference.mean == pytest.approx(0.5)
    assert tested.pairs == 2


def test_what_papers_published_is_read_strictly(fidelity: Any) -> None:
    with pytest.raises(ValueError, match="certainly"):
        published(fidelity, tables=[TABLE | {"certainly": "text"}])


def test_settings_of_one_attack_are_paired_by_its_name(fidelity: Any) -> None:
    """Every attack gains from a setting, but the worst with it has less than the best without."""
    suites: dict[str, list[Any]] = {"ours": []}
    for name, plain in (("a", 0.5), ("b", 0.9)):
        for setting, more in (("", 0.0), ("(n=20)", 0.05)):
            for seed in range(3):
                one = record(name, "none", seed, auc=plain + more + seed / 1000)
                attack = one.cell.attack.model_copy(update={"label": name + setting})
                one.cell = one.cell.model_copy(update={"attack": attack})
                suites["ours"].append(one)
    asked = finding(fidelity, by="attack", more={"attack": "?(n=20)"}, less={"attack": "?"})
    (tested,) = fidelity.tests(asked, suites)
    assert tested.pairs == 2
    assert tested.difference.mean == pytest.approx(0.05)


def test_only_attacks_that_ran_are_named(fidelity: Any) -> None:
    asked = finding(fidelity, attacks=["loud", "absent"])
    suites = {"ours": results(none=[0.7, 0.8, 0.85], talos=[0.5, 0.6, 0.68])}
    (tested,) = fidelity.tests(asked, suites)
    assert tested.attacks == ("loud",)
    assert "absent" not in fidelity.page(published(fidelity, findings=[asked]), suites)


def test_findings_are_corrected_for_their_number(fidelity: Any) -> None:
    """Holm: of three with p .01, .03 and .04 the last two become .06."""
    made = [
        fidelity.Tested(finding(fidelity, equal=equal), "s", "d", (), one, 1)
        for p, equal in ((0.01, None), (0.03, None), (0.04, None), (0.5, 0.3))
        for one in [Difference(0.1, 0.01, 0.2, p, 5)]
    ]
    assert {one.verdict for one in made} == {"borne out"}
    assert [one.verdict for one in fidelity.corrected(made)] == [
        "borne out", *["undecided, by Holm's correction"] * 2, "borne out",
    ]  # fmt: skip
