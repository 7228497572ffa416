"""Groups that leak more than the rest: found where planted, and rarely where there are none."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom, mannwhitneyu, norm

import privbench
from privbench.api.own_model import words
from privbench.api.own_model.document import Document
from privbench.api.own_model.rows import Rows, read_rows
from privbench.api.own_model.subgroups import Group, Subgroups, _grouped, p_value, subgroups
from privbench.cli.main import main
from privbench.results.record import Number

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRIES = 60  # simulated audits


def columns(scores: Any, member: Any, label: Any, keys: Any = None) -> dict[str, Any]:
    return {
        "row": np.arange(len(scores)) if keys is None else keys, "label": label,
        "truth.member": np.array(member), "victim.scores": np.array(scores, np.float64),
    }  # fmt: skip


def rows_of(groups: NDArray[Any], half: int) -> Rows:
    """Rows whose classes are the groups, as many members as nonmembers."""
    y = groups.astype(np.int64)
    return Rows(np.zeros((len(y), 1), np.float32), y, {"members": half, "nonmembers": half})


def of_groups(scores: Floats, groups: NDArray[Any]) -> Subgroups:
    """Compare groups of scores, those of members first."""
    half = len(scores) // 2
    member = np.arange(2 * half) < half
    asked = columns(scores, member, groups.astype(int))
    return subgroups("a", asked, range(2 * half), rows_of(groups, half))


# ---- exact ---------------------------------------------------------------------------------------


def delong(inside: list[float], outside: list[float]) -> tuple[Fraction, Fraction]:
    """AUC and its variance from the table of all pairs, equations 4 to 6 of DeLong et al."""
    psi = [[Fraction(2 * (a > b) + (a == b), 2) for b in outside] for a in inside]
    v10 = [sum(line, Fraction()) / len(outside) for line in psi]
    v01 = [sum((line[j] for line in psi), Fraction()) / len(inside) for j in range(len(outside))]
    value = sum(v10, Fraction()) / len(inside)
    s10, s01 = (
        sum(((v - value) ** 2 for v in of), Fraction()) / (len(of) - 1) for of in (v10, v01)
    )
    return value, s10 / len(v10) + s01 / len(v01)


def test_the_p_value_is_that_of_delong_with_two_rows_more_against_it_on_each_side() -> None:
    inside, outside, rest_in, rest_out = [3.0, 4, 4], [1.0, 3], [2.0, 5, 1], [2.0, 0, 4]
    far = 99.0
    value, own = delong([*inside, -far], [*outside, far])
    other, theirs = delong([*rest_in, far], [*rest_out, -far])
    # by hand: in the group 5.5 of 12 pairs, among the rest 12.5 of 16
    assert (value, other) == (Fraction(11, 24), Fraction(25, 32))
    wanted = norm.sf(float(value - other) / math.sqrt(own + theirs))
    sides = [np.array(one) for one in (inside, outside, rest_in, rest_out)]
    assert p_value(*sides) == pytest.approx(wanted, rel=1e-12)
    assert p_value(*sides[2:], *sides[:2]) != pytest.approx(1 - wanted, rel=1e-3)


def test_p_values_are_corrected_by_holm_and_figures_are_those_of_scipy() -> None:
    draw = np.random.default_rng(0)
    groups = np.tile(np.repeat([0, 1, 2], [30, 40, 50]), 2)
    scores = draw.normal(size=240) + (np.arange(240) < 120) * np.array([1.6, 0.8, 0.0])[groups]
    member = np.arange(240) < 120
    alone = {}
    for c in range(3):
        mine = groups == c
        sides = [scores[of & at] for of in (mine, ~mine) for at in (member, ~member)]
        alone[f"class {c}"] = p_value(*sides)
    first, second, third = sorted(alone.values())
    found = of_groups(scores, groups)
    assert [one.name for one in found.tested] == ["class 0", "class 1", "class 2"]
    wanted = [3 * first, max(3 * first, 2 * second), max(3 * first, 2 * second, third)]
    assert [one.p_value for one in found.tested] == pytest.approx(np.minimum(wanted, 1))
    one = found.tested[0]
    assert (one.members, one.nonmembers) == (30, 30)
    inside, outside = scores[(groups == 0) & member], scores[(groups == 0) & ~member]
    assert one.auc.value == pytest.approx(mannwhitneyu(inside, outside).statistic / 900)
    value, variance = delong(list(inside), list(outside))
    half = norm.isf(0.025) * math.sqrt(variance) / float(value * (1 - value))
    odds = float(value / (1 - value)) * np.exp([-half, half])
    assert [one.auc.low, one.auc.high] == pytest.approx(odds / (1 + odds))


# ---- found and not found -------------------------------------------------------------------------


def test_a_planted_group_is_found_alone() -> None:
    """Its AUC is .98, the others' .5, with 60 rows each: it is missed far less than 1e-4 times."""
    draw = np.random.default_rng(1)
    groups = np.tile(np.arange(600) % 10, 2)
    scores = draw.normal(size=1200) + 3.0 * ((np.arange(1200) < 600) & (groups == 7))
    found = of_groups(scores, groups)
    assert [one.name for one in found.more] == ["class 7"]
    assert found.more[0].p_value < 1e-6
    text = str(found)
    assert text.startswith("Leaking more than the rest, by a: class 7 (AUC 0.9")
    assert text.endswith("(10 groups tested).")
    # turned round, the group leaks less, and the rest of it no more than chance
    assert not of_groups(-scores, groups).more


@pytest.mark.parametrize("lead", [0.0, norm.ppf(0.95) * math.sqrt(2)])
def test_where_all_leak_alike_few_audits_report_any_group(lead: float) -> None:
    """At most 5 % of 60 audits with nine groups of 20 + 20; more than 10 in 1e-4 of the runs."""
    draw = np.random.default_rng(2)
    groups = np.tile(np.repeat(np.arange(10), [*[20] * 9, 220]), 2)
    shifted = lead * (np.arange(800) < 400)
    wrong = sum(bool(of_groups(draw.normal(size=800) + shifted, groups).more) for _ in range(TRIES))
    assert wrong <= binom.isf(1e-4, TRIES, 0.05)


def test_ties_are_no_finding() -> None:
    """All members of a group have the score that nearly all rows have."""
    draw = np.random.default_rng(3)
    groups = np.repeat([0, 1, 0, 1], [20, 180, 180, 20])
    rare = (draw.random((TRIES, 400)) > 0.03).astype(np.float64)
    wrong = sum(bool(of_groups(scores, groups).more) for scores in rare)
    assert wrong <= binom.isf(1e-4, TRIES, 0.05)


def test_a_group_below_chance_does_not_leak() -> None:
    """It is far above the rest, which attacks take for nonmembers."""
    groups = np.tile(np.repeat([0, 1], 200), 2)
    draw = np.random.default_rng(4)
    scores = draw.normal(size=800) - 3 * ((np.arange(800) < 400) & (groups == 1)) - 0.2 * (
        (np.arange(800) < 400) & (groups == 0))  # fmt: skip
    found = of_groups(scores, groups)
    assert found.tested[0].p_value < 1e-4
    assert not found.more


def test_a_leak_of_a_group_is_the_headline() -> None:
    """Whatever the average over all rows says."""
    sure, weak = Number(value=1.0, low=0.9, high=1.0), Number(value=0.7, low=0.6, high=0.8)

    def told(*groups: tuple[str, Number], **more: Any) -> str:
        made = tuple(Group(name, 40, 40, one, weak, 1e-6) for name, one in groups)
        best: Any = SimpleNamespace(**{"leaks": False, "perhaps": False, "of": 2, **more})
        return str(words.risk(best, Subgroups("a", made, {})))

    assert told(("class 3", sure)) == "The model leaks who the members of class 3 are."
    assert told(("class 3", sure), ("age < 7", sure), perhaps=True) == (
        "The model leaks who the members of class 3 and age < 7 are."
    )
    assert told(*[(f"class {i}", sure) for i in range(5)]) == (
        "The model leaks who the members of class 0, class 1, class 2 and 2 more groups are."
    )
    assert told(("class 3", weak)) == (
        "The model may leak who the members of class 3 are: give more rows to be sure."
    )
    assert told(("class 3", sure), leaks=True) == "The model leaks who its members are."
    assert told(("class 3", weak), perhaps=True).startswith("The model may leak some of its")
    assert told(("class 3", Number(value=0.55, low=0.4, high=0.7))).startswith("No leak was found")
    assert told().startswith("No leak was found")


# ---- which groups there are ----------------------------------------------------------------------


def test_groups_of_a_table() -> None:
    pd = pytest.importorskip("pandas")
    n = 400
    table = pd.DataFrame({
        "sex": ["f", "m", None, "m"] * (n // 4),
        "<b>age\x1b</b>": [20.5, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, math.nan] * 33
                          + [20.5] * 4,
        "rank": [1, 2] * (n // 2),
        "when": pd.date_range("2020-01-01", periods=n, freq="D"),
        "name": [f"n{i}" for i in range(n)],
        "flat": [1] * n,
        "nulls": pd.array([None if i % 2 else i for i in range(n)], dtype="Int64"),
    })  # fmt: skip
    y = np.arange(n) % 2
    members, others = ({"x": table.iloc[at], "y": y[at]} for at in (slice(200), slice(200, n)))
    rows = read_rows(members, others, attributes={"zone": np.array(["a", "b"] * (n // 2))})
    made = dict(_grouped(rows))
    assert [*made] == ["class", "zone", "sex", "<b>age\\x1b</b>", "rank", "when", "name", "flat",
                       "nulls"]  # fmt: skip
    assert made["name"] == "more than 64 different values"
    sizes = {
        name: int(inside.sum())
        for of in made.values() if not isinstance(of, str) for name, inside in of.items()
    }  # fmt: skip
    assert sizes["class 0"] == sizes["zone = a"] == sizes["rank = 2"] == 200
    assert (sizes["sex = f"], sizes["sex = m"], sizes["sex is missing"]) == (100, 200, 100)
    assert sizes["flat = 1"] == n
    age = {name: size for name, size in sizes.items() if "age" in name}
    assert age["<b>age\\x1b</b> is missing"] == 33
    assert "<b>age\\x1b</b> < 40" in age
    assert sum(age.values()) == n
    dates = [name for name in sizes if "when" in name]
    assert dates[0] == "when < 2020-04-10"
    assert dates[-1].startswith("when >= 2020-10-")
    assert [sizes[name] for name in dates] == pytest.approx([100] * 4, abs=1)
    assert sizes["nulls is missing"] == 200
    scores = np.random.default_rng(0).normal(size=n)
    found = subgroups("a", columns(scores, np.arange(n) < 200, y), range(n), rows)
    assert found.left_out["flat"].startswith("1 of 1 group: fewer than 20 members")
    assert found.left_out["<b>age\\x1b</b>"].startswith("1 of ")
    assert "sex" not in found.left_out


def test_small_groups_are_left_out_with_the_reason() -> None:
    groups = np.tile(np.repeat([0, 1, 2], [19, 20, 61]), 2)
    found = of_groups(np.arange(200.0), groups)
    assert {one.name for one in found.tested} == {"class 1", "class 2"}
    assert found.left_out == {
        "class": "1 of 3 groups: fewer than 20 members or nonmembers, in the group or among the "
        "rest, so luck would decide"
    }
    assert str(of_groups(np.arange(40.0), np.zeros(40))) == (
        "No group of rows could be compared with the rest: that takes 20 members and nonmembers "
        "in both."
    )


def test_scores_in_another_order_find_their_rows_also_equal_ones() -> None:
    """Two members are one row twice; their classes differ, and each counts once."""
    keys = np.array([5, 5, *range(10, 88)])
    y = np.tile(np.repeat([0, 1], 20), 2)
    y[[1, 20]] = y[[20, 1]]
    member = np.arange(80) < 40
    order = np.random.default_rng(0).permutation(80)
    asked = columns(np.where(y == 1, np.arange(80), 0)[order], member[order], y[order], keys[order])
    found = subgroups("a", asked, keys.tolist(), rows_of(y, 40)).tested
    assert [(of.name, of.members, of.nonmembers) for of in found] == [
        ("class 0", 20, 20), ("class 1", 20, 20),
    ]  # fmt: skip
    assert {of.name: of.auc.value for of in found}["class 0"] == 0.5  # all of its scores are 0


# ---- an audit ------------------------------------------------------------------------------------


def test_an_audit_names_the_group_that_leaks_more(tmp_path: Path) -> None:
    """The model knows the members whose city is x, and no others."""
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"city": ["x", "y", "z"] * 100, "age": draw.normal(size=300)})
    y = draw.integers(0, 2, 300)
    known = {(row.city, row.age): int(c) for row, c in zip(
        table[:150].itertuples(), y[:150], strict=True) if row.city == "x"}  # fmt: skip

    def model(x: Any) -> Any:
        told = [known.get((row.city, row.age)) for row in x.itertuples()]
        p = [0.5 if c is None else 0.05 + 0.9 * c for c in told]
        return np.array([[1 - one, one] for one in p])

    out = tmp_path / "out"
    found = privbench.audit(
        model, members={"x": table[:150], "y": y[:150]},
        nonmembers={"x": table[150:], "y": y[150:]}, attacks=["metric-entropy"], out=out,
        fail_above={"auc": 0.8}, junit=tmp_path / "a.xml", sarif=tmp_path / "a.sarif",
    )  # fmt: skip
    assert found.subgroups is not None
    assert [one.name for one in found.subgroups.more] == ["city = x"]
    assert found.gate is not None
    assert (found.gate.outcome, "the rows of city = x with 1.000" in found.gate.words) == (
        "failed", True,
    )  # fmt: skip
    assert "the rows of city = x with 1.000" in (tmp_path / "a.xml").read_text("utf-8")
    assert "the rows of city = x with 1.000" in (tmp_path / "a.sarif").read_text("utf-8")
    (line,) = [one for one in found.summary.splitlines() if one.startswith("Leaking more")]
    assert "metric-entropy(calibration=none): city = x (AUC 1.000" in line
    told = json.loads((out / "audit.json").read_text("utf-8"))
    assert told["subgroups"]["tested"][0]["name"] == "city = x"
    assert told["subgroups"]["tested"][0]["members"] == 50
    old = {name: value for name, value in told.items() if name != "subgroups"}
    assert Document.model_validate_json(json.dumps(old)).subgroups is None
    (out / "audit.json").write_text(json.dumps(old))
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(out), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert told["date"] in page.read_text("utf-8")
