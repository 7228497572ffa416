"""What boards say about results: paired differences, doubts, controls, claims, code."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from privbench.boards import verdicts
from privbench.boards.board import Leaderboard
from privbench.boards.checks import refuse_unfit
from privbench.boards.rows import body, headings
from privbench.measure.games.catalog import GAMES
from privbench.results import provenance
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record

if TYPE_CHECKING:
    from pathlib import Path


def method(name: str) -> MethodRecord:
    return MethodRecord(name=name, label=name, version=1, fields={})


def number(value: float, half: float = 0.05) -> Number:
    return Number(value=value, low=value - half, high=value + half)


def result(
    attack: str = "loud", defense: str = "none", seed: int = 0, auc: float = 0.7,
    null: float = 0.5, *, adversary: str = "adaptive", commit: str | None = "abc", **more: Any,
) -> Record:  # fmt: skip
    cell = CellRecord(
        dataset=method("digits"), protocol={"name": "default"}, target=method("simclr"),
        defenses=[method(name) for name in defense.split("+")],
        knows=AdversaryRecord(), adversary=adversary,
        attack=method(attack), game="membership", sensitive=[], preset="cpu", protects=[],
        control=defense == "planted-leak",
        access="LABELS" if defense == "none" else "",
    )  # fmt: skip
    made = Record(
        trial=f"{attack}{defense}{seed}{adversary}", cell=cell, seed=seed, status="ok",
        board=GAMES["membership"].board,
    )  # fmt: skip
    made.metrics = {"auc": number(auc)}
    made.controls = {"null": {"auc": number(null)}}
    made.sizes = {"members": 100, "nonmembers": 400}
    made.utility = {"test_accuracy": 0.9, "test_rows": 300.0}
    made.provenance = {"commit": commit}
    return made.model_copy(update=more)


def shown(records: list[Record], board: list[Record] | None = None) -> list[dict[str, str]]:
    names = headings("membership", Leaderboard(board or records))
    rows = body("membership", Leaderboard(board or records))
    return [dict(zip(names, row, strict=True)) for row in rows]


def seeds(attack: str, defense: str, values: list[float], **more: Any) -> list[Record]:
    return [result(attack, defense, seed, auc, **more) for seed, auc in enumerate(values)]


# ---- differences ---------------------------------------------------------------------------------


def test_differences_to_none_are_paired_by_seed_and_corrected() -> None:
    base = seeds("loud", "none", [0.70, 0.80, 0.75, 0.78, 0.72])
    lower = seeds("loud", "calm", [0.60, 0.70, 0.65, 0.68, 0.63])  # about -.1 on each seed
    noisy = seeds("loud", "vague", [0.60, 0.90, 0.60, 0.80, 0.74])
    none, calm, vague = shown([*base, *lower, *noisy])
    assert none["AUC minus none"] == "–"
    assert calm["AUC minus none"] == "-0.098 [-0.104, -0.092] †"
    assert vague["AUC minus none"].startswith("-0.022 [")
    assert "†" not in vague["AUC minus none"]
    assert calm["AUC minus null"].startswith("+0.152 [")
    assert calm["test accuracy minus none"] == "+0.000 [+0.000, +0.000]"
    assert calm["seeds"] == "5"


def test_many_comparisons_need_more_evidence() -> None:
    base = seeds("loud", "none", [0.70, 0.80, 0.75])
    weak = seeds("loud", "weak", [0.67, 0.78, 0.72])  # p = .015
    alone = Leaderboard([*base, *weak]).certain
    assert len(alone) == 1
    others = [r for i in range(9) for r in seeds("loud", f"d{i}", [0.70, 0.79, 0.76])]
    among = Leaderboard([*base, *weak, *others]).certain
    assert not among


def test_one_seed_shows_a_difference_without_an_interval() -> None:
    (_, row) = shown([result(), result(defense="calm", auc=0.6)])
    assert row["AUC minus none"] == "-0.100"
    assert row["AUC"] == "0.600"
    assert row["seeds"] == "1 (draft, no interval)"
    assert row["test accuracy"] == "0.900 {0.860, 0.932}"


def test_a_naive_adversary_is_compared_with_the_adaptive_one_on_none() -> None:
    records = [result(auc=0.8), result(defense="calm", auc=0.6, adversary="naive")]
    (difference,) = Leaderboard(records).minus_none.values()
    assert difference.mean == pytest.approx(-0.2)
    records.append(result(auc=0.7, adversary="naive"))
    (difference,) = Leaderboard(records).minus_none.values()
    assert difference.mean == pytest.approx(-0.1)


def test_another_protocol_or_attack_is_no_counterpart() -> None:
    calm = result(defense="calm")
    other = calm.cell.model_copy(update={"protocol": {"name": "talos"}})
    records = [result(), result("shy"), calm.model_copy(update={"cell": other})]
    assert Leaderboard(records).minus_none == {}


# ---- doubts --------------------------------------------------------------------------------------


def test_a_null_that_is_not_one_half_is_marked() -> None:
    """The null's deviation is .0323 (100 of 500): .65 on three seeds is 8 of the mean's."""
    told = [
        result(attack, defense, seed, auc, null)
        for seed in range(3)
        for defense in ("none", "calm")
        for attack, auc, null in (("told", 0.95, 0.65), ("loud", 0.7, 0.51), ("shy", 0.6, 0.5))
    ]
    assert len(Leaderboard(told).doubtful) == 2
    assert [row["attack"] for row in shown(told)] == ["loud"] * 2 + ["shy"] * 2 + ["told ‡"] * 2


def test_a_null_is_judged_among_all_cells() -> None:
    odd = [result("odd", null=0.5 + 2.3 * 0.0323)]  # p = .02
    assert len(Leaderboard(odd).doubtful) == 1
    crowd = [result(f"a{i}") for i in range(5)]
    assert Leaderboard([*odd, *crowd]).doubtful == {}


# ---- positive controls ---------------------------------------------------------------------------


def test_planted_leaks_are_one_line_and_never_ranked() -> None:
    grid = [result(a, d) for a in ("loud", "deaf") for d in ("none", "calm")]
    found, missed = (
        result("loud", "planted-leak", auc=0.99),
        result("deaf", "planted-leak", auc=0.52),
    )
    (line,) = verdicts.control_lines(Leaderboard([*grid, found, missed]))
    victim = "digits, simclr, adaptive adversary, membership"
    assert line == f"{victim}: found by loud (0.990); NOT found by deaf (0.520)"
    assert {row["attack"] for row in shown(grid, [*grid, found, missed])} == {"loud", "deaf ¶"}
    assert verdicts.control_lines(Leaderboard(grid)) == []
    from privbench.api.console import tables

    (table,) = tables(Leaderboard([*grid, found, missed]))
    assert table.row_count == 3  # two attacks and the accuracy; two defenses are columns


def test_a_leak_must_be_found_in_every_seed() -> None:
    sure = seeds("loud", "planted-leak", [0.9, 0.8])
    assert verdicts.finds(sure)
    assert verdicts.finds([*sure, result(defense="planted-leak", seed=2, auc=0.54)]) is False
    assert verdicts.finds([]) is None


def test_the_blind_classifier_is_no_guess_to_beat() -> None:
    made = result(defense="planted-leak", auc=0.9)
    made.baselines = {"blind": {"auc": number(0.95)}}
    assert verdicts.finds([made])


def test_other_games_beat_their_guesses() -> None:
    made = result(defense="planted-leak")
    made.cell = made.cell.model_copy(update={"game": "attributes"})
    made.board = GAMES["attributes"].board
    made.metrics = {"accuracy": number(0.6)}
    made.baselines = {
        "majority": {"accuracy": number(0.5)},
        "label_only": {"accuracy": number(0.54)},
    }
    assert verdicts.finds([made])
    made.baselines["label_only"]["accuracy"] = number(0.56)
    assert verdicts.finds([made]) is False
    made.cell = made.cell.model_copy(update={"game": "reconstruction"})
    made.board = GAMES["reconstruction"].board
    made.metrics = {"mse": number(0.02, 0.01)}
    assert verdicts.finds([made]) is None
    made.baselines = {"mean_image": {"mse": number(0.05)}}
    assert verdicts.finds([made])
    made.metrics = {"mse": number(0.045, 0.01)}
    assert verdicts.finds([made]) is False


# ---- claims --------------------------------------------------------------------------------------


def test_an_epsilon_without_a_guarantee_is_nominal() -> None:
    claims = []
    for defense, guarantee in (("dp-sgd", True), ("laplace", False)):
        made = result(defense=defense, claims=[{"epsilon": 8.0, "guarantee": guarantee}])
        made.metrics = {**made.metrics, "claimed_epsilon": number(8.0, 0)}
        claims.append(made)
    real, nominal = shown(claims)
    assert (real["claimed ε"], real["nominal ε"]) == ("8.000", "–")
    assert (nominal["claimed ε"], nominal["nominal ε"]) == ("–", "8.000")


# ---- code ----------------------------------------------------------------------------------------


def test_results_of_equal_code_are_one_code_whatever_their_commits() -> None:
    def of(seed: int, commit: str | None, code: str | None) -> Record:
        return result(seed=seed, provenance={"commit": commit, "code": code})

    same, other = "1" * 32, "2" * 32
    joined = [of(0, "b", same), of(1, "a-dirty", same), of(2, "c", same), of(3, None, same)]
    assert verdicts.code_lines(joined) == [
        "Code: clean checkout of commit b, digest 111111111111 (4 results)."
    ]
    refuse_unfit(joined)
    mixed = [*joined, of(4, "b", other), of(5, "d-dirty", None), of(6, None, None)]
    lines = verdicts.code_lines(mixed)
    assert lines[0] == (
        "Code: clean checkout of commit b, digest 111111111111 (4 results), "
        "b, digest 222222222222 (1 results)."
    )
    assert "on top of commit d (1 results)" in lines[1]
    assert "1 results name no commit" in lines[2]


def test_a_copy_inside_another_checkout_names_no_commit(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args],  # noqa: S607
                       cwd=tmp_path, check=True, capture_output=True)  # fmt: skip

    git("init")
    (tmp_path / "mine.py").write_text("a = 1\n")
    (tmp_path / "leaderboards").mkdir()
    (tmp_path / "leaderboards" / "page.md").write_text("1\n")
    git("add", ".")
    git("commit", "-m", "x")
    copy = tmp_path / "site-packages" / "provenance.py"
    copy.parent.mkdir()
    copy.write_text("a = 1\n")
    assert provenance.commit(copy) is None
    own = provenance.commit(tmp_path / "mine.py")
    assert own is not None
    assert not own.endswith(verdicts.DIRTY)
    (tmp_path / "leaderboards" / "page.md").write_text("2\n")  # a board that grows is no code
    provenance.commit.cache_clear()
    assert provenance.commit(tmp_path / "mine.py") == own
    (tmp_path / "mine.py").write_text("a = 2\n")
    provenance.commit.cache_clear()
    dirty = provenance.commit(tmp_path / "mine.py")
    assert dirty == f"{own}{verdicts.DIRTY}"


def test_statistics_need_no_torch() -> None:
    code = (
        "import sys, privbench.boards.verdicts, privbench.boards.row_exposure, "
        "privbench.results.samples; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_naive_attack_is_as_blind_as_the_adaptive_one_that_missed_the_leak() -> None:
    control = result("deaf", "planted-leak", auc=0.52)
    naive = [result("deaf", adversary="naive"), result("loud", adversary="naive")]
    sure = result("loud", "planted-leak", auc=0.99)
    told = Leaderboard([control, sure, *naive])
    assert [told.mark(one) for one in naive] == ["¶", ""]
    found = result("deaf", "planted-leak", auc=0.99, adversary="naive")
    assert Leaderboard([control, found, *naive]).mark(naive[0]) == ""  # its own control counts
    white = result("deaf", adversary="white-box")
    assert Leaderboard([control, white]).mark(white) == ""


def test_a_naive_adversary_has_a_counterpart_with_the_same_data() -> None:
    bare = seeds("loud", "none", [0.8, 0.7], adversary="adaptive, pool stl10")
    naive = seeds("loud", "talos", [0.6, 0.6], adversary="naive, pool stl10")
    (found,) = Leaderboard([*bare, *naive]).minus_none.values()
    assert found.mean == pytest.approx(-0.15)
    assert not Leaderboard([*seeds("loud", "none", [0.8, 0.7]), *naive]).minus_none
