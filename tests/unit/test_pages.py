"""The page of a board: what it says, in at most 150 lines and ten columns."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privbench.boards import matrix
from privbench.boards.board import Leaderboard
from privbench.boards.closing import closing
from privbench.boards.csv_table import table
from privbench.boards.front import front
from privbench.boards.notes import troubles
from privbench.boards.page import LONGEST, page
from privbench.ground.columns import Board, Column
from privbench.ground.errors import BadInputError
from privbench.ground.judges import EVERY, Wanted
from privbench.measure.games import audit
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.curves import gaussian_delta
from privbench.results import audits
from privbench.results.files import read_all
from privbench.results.record import (
    AdversaryRecord,
    CellRecord,
    Cost,
    MethodRecord,
    Number,
    Record,
    StrengthRecord,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "board.md"


def method(name: str, version: int = 1, **fields: Any) -> MethodRecord:
    inside = ", ".join(f"{k}={v}" for k, v in fields.items())
    label = f"{name}({inside})" if inside else name
    return MethodRecord(name=name, label=label, version=version, fields=fields)


def number(value: float, half: float = 0.05) -> Number:
    return Number(value=value, low=value - half, high=value + half)


def record(
    attack: str = "loud", defense: str = "none", seed: int = 0, value: float = 0.7, *,
    game: str = "membership", adversary: str = "adaptive", target: str = "simclr",
    needs: str = "POSTERIORS", protects: tuple[str, ...] = (), protocol: str = "default",
    members: int = 100, sensitive: tuple[str, ...] = ("slant",), preset: str = "cpu",
    status: Any = "ok", reason: str = "", accuracy: float = 0.9, tpr: float | None = None,
    null: float = 0.5, control: bool = False, version: int = 1, commit: str | None = "abc",
    flags: tuple[str, ...] = (), fields: dict[str, Any] | None = None,
) -> Record:  # fmt: skip
    cell = CellRecord(
        dataset=method("digits"), protocol={"name": protocol, "members": members},
        target=method(target), defenses=[method(one) for one in defense.split("+")],
        knows=AdversaryRecord(),
        adversary=adversary, attack=method(attack, version, **(fields or {})), game=game,
        sensitive=list(sensitive), preset=preset, access="LABELS", protects=list(protects),
        control=control, needs=needs,
    )  # fmt: skip
    known = (attack, defense, seed, game, adversary, target, protocol, members, version, preset)
    made = Record(
        trial=" ".join(map(str, (*known, *sensitive))), cell=cell, seed=seed, status=status,
        board=GAMES[game].board if game in GAMES else None, reason=reason, phase="encoder",
        provenance={"commit": commit}, flags=list(flags),
        sizes={"members": 100, "nonmembers": 400, "rows": 500},
    )  # fmt: skip
    if status != "ok":
        return made
    main = {"membership": "auc", "reconstruction": "mse"}.get(game, "accuracy")
    made.metrics = {main: number(value)}
    if game == "membership":
        made.metrics["tpr_at_fpr_0.01"] = Number(refused="few") if tpr is None else number(tpr)
        made.controls = {"null": {"auc": number(null)}}
    made.utility = {"test_accuracy": accuracy, "gap": 0.1}
    made.cost = Cost(seconds_victim=3.0 if defense == "none" else 6.0, seconds_per_query=2e-6)
    return made


def seeds(attack: str, defense: str, values: list[float], **more: Any) -> list[Record]:
    return [record(attack, defense, seed, value, **more) for seed, value in enumerate(values)]


def everything() -> list[Record]:
    """One of each thing that a page shows."""
    made = seeds("loud", "none", [0.6, 0.7, 0.8], accuracy=0.91, tpr=0.2)
    made += seeds("shy", "none", [0.65, 0.6, 0.62], accuracy=0.91, tpr=0.1, needs="LABELS")
    made += seeds("loud", "talos", [0.55, 0.6, 0.7], protects=("attributes",), tpr=0.1)
    made += seeds("shy", "talos", [0.65, 0.6, 0.62], protects=("attributes",), tpr=0.1,
                  needs="LABELS")  # fmt: skip
    for defense, low in (("none", 0.9), ("talos", 0.5)):
        made += seeds("guess", defense, [low, low + 0.01, low - 0.01], game="attributes",
                      protects=("attributes",) * (defense != "none"), needs="EMBEDDINGS",
                      accuracy=0.91 if defense == "none" else 0.9)  # fmt: skip
    made += [record("white", seed=seed, status="skipped", reason="white needs WEIGHTS | more")
             for seed in (1, 0)]  # fmt: skip
    made.append(record("bad", status="failed", reason="ValueError: first\nsecond"))
    made.append(record("loud", "planted", value=0.99, control=True))
    return made


def tables(text: str) -> dict[str, list[list[str]]]:
    """Heading -> rows of the table below it, without the ruler; escaped pipes are no column."""
    made: dict[str, list[list[str]]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("|") and not line.startswith("|---"):
            cells = [c.strip() for c in line.replace("\\|", "¦").strip("|").split("|")]
            made.setdefault(heading, []).append(cells)
    return made


def shown(
    records: list[Record], name: str = "digits, simclr, adaptive adversary"
) -> dict[str, Any]:
    """Defense -> heading -> cell of a matrix."""
    heads, *rows = tables(page(Leaderboard(records), "t"))[name]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


def ranking(records: list[Record], bound: float | None = None) -> dict[str, Any]:
    heads, *rows = tables(page(Leaderboard(records, bound), "t"))[
        "Ranking: digits, simclr, adaptive adversary"
    ]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


# ---- the whole page ------------------------------------------------------------------------------


def test_a_defense_that_its_judges_have_not_met_is_not_ranked() -> None:
    """`best` leaks least and stands last: `sly` has not met it. No sentence calls it the best."""
    made = [record(attack, defense, seed, value + seed / 100)
            for seed in range(5)
            for attack, defense, value in (
                ("loud", "none", 0.8), ("sly", "none", 0.8), ("loud", "best", 0.5),
                ("loud", "good", 0.6), ("sly", "good", 0.6))]  # fmt: skip
    known = {EVERY: [Wanted(name, name, 1, "membership", {}) for name in ("loud", "sly")]}
    board = Leaderboard(made, judging=known)
    text = page(board, "T")
    assert "Not ranked (‖), as an attack that judges it has not met it: sly: best." in text
    assert "Least with good, 0.620" in text
    ranked = [line.split(" | ")[0] for line in text.partition("## Ranking")[2].splitlines()
              if line.startswith("| ")][1:]  # fmt: skip
    assert ranked == ["| none", "| good", "| best ‖"]
    (told,) = closing(board)
    assert told.startswith("best lowers the AUC of loud by 0.300")
    assert "; not met by sly" in told
    # without judges `best` is ranked, but it met one attack of two
    assert "Least with good, 0.620" in page(Leaderboard(made), "T")
    assert any(line.startswith("| best | 0.520 ◊ |") for line in top(made))
    alone = Leaderboard([one for one in made if one.cell.defense != "good"], judging=known)
    told = "No defense has met all attacks that judge it at full strength; least with best, 0.520"
    assert told in page(alone, "T")


@pytest.mark.parametrize("status", ["ok", "skipped"])
def test_an_attack_of_a_plugin_with_the_name_of_a_judge_is_another_attack(status: Any) -> None:
    judge = Wanted("loud", "loud", 1, "membership", {}, origin="privbench")
    for of, left in (("privbench", []), ("mine.py", ["loud"])):
        made = [record("shy", defense, seed) for seed in range(5) for defense in ("none", "fog")]
        made += [record("loud", "fog", seed, status=status, reason="why") for seed in range(5)]
        for one in made:
            one.provenance["plugins"] = {f"attack {one.cell.attack.name}": {"distribution": of}}
        (panel,) = Leaderboard(made, judging={EVERY: [judge]}).panels
        (fog,) = (row for row in panel.rows if row.name == "fog")
        assert [name for names in fog.not_met.values() for name in names] == left


def test_a_cost_that_may_be_none_is_no_cost_and_unjudged_settings_leak_less_here_only() -> None:
    made = [record("loud", defense, seed, value + seed / 500, accuracy=accuracy)
            for defense, value, accuracies in (("none", 0.8, [0.9] * 5),
                                               ("fog", 0.6, [0.91, 0.88, 0.9, 0.87, 0.92]))
            for seed, accuracy in enumerate(accuracies)]  # fmt: skip
    text = page(Leaderboard(made), "t")
    assert (
        "least with fog, 0.604, whose cost in accuracy, +0.004 ± 0.026, may be none" in text.lower()
    )
    judging = {EVERY: [Wanted("shy", "shy", 1, "membership", {})]}
    assert "leak less than none beyond chance, by the attacks of this page" in (
        page(Leaderboard(made, judging=judging), "t")
    )
    assert "by the attacks of this page" not in text


@pytest.mark.parametrize(
    ("untrained", "seeds", "leaks"),
    # Intervals over rows are .05 to both sides; they count where seeds are too few for a test.
    [(0.6, 5, True), (0.699, 5, False), (0.8, 5, False), (0.62, 1, False), (0.59, 1, True)],
)
def test_an_attribute_that_an_untrained_encoder_tells_is_no_leak_by_training(
    untrained: float, seeds: int, leaks: bool
) -> None:
    made = [record("guess", "none", seed, 0.7 + (seed - seeds // 2) / 50, game="attributes")
            for seed in range(seeds)]  # fmt: skip
    for one in made:
        one.controls["untrained"] = {"accuracy": number(untrained)}
    told = "without a defense no leak by training is shown: accuracy 0.700 by guess"
    assert (told in page(Leaderboard(made), "t")) != leaks


def test_a_rate_over_few_nonmembers_is_not_compared_with_one_over_many() -> None:
    made = [record(attack, "none", seed, 0.7, tpr=tpr)
            for seed in range(5) for attack, tpr in (("loud", 0.2), ("shy", 0.3))]  # fmt: skip
    assert Leaderboard(made).panels[0].rows[0].low["membership", ""].attack == "shy"
    for one in made:
        if one.cell.attack.name == "shy":
            one.sizes["nonmembers"] = 150
    assert Leaderboard(made).panels[0].rows[0].low["membership", ""].attack == "loud"


def test_an_attack_that_cannot_run_there_is_not_missed_but_it_is_where_it_can() -> None:
    made = [record("loud", defense, seed, value, target=target)
            for seed in range(5)
            for defense, value in (("none", 0.8), ("fog", 0.6))
            for target in ("simclr", "moco")]  # fmt: skip
    made += [record("shy", "fog", seed, target="simclr", status="skipped", reason="no labels")
             for seed in range(5)]  # fmt: skip
    known = {EVERY: [Wanted(name, name, 1, "membership", {}) for name in ("loud", "shy")]}
    made += [record("deaf", "fog", seed, target="moco", status="skipped", reason="no sound")
             for seed in range(5)]  # fmt: skip
    of = {one.target: one.rows[1] for one in Leaderboard(made, judging=known).panels}
    assert of["simclr"].not_met == {}
    assert of["moco"].not_met == {("membership", ""): ["shy"]}
    for one in made:
        if one.status == "skipped":  # of another adversary
            one.cell = one.cell.model_copy(update={"adversary": "naive"})
    of = {one.target: one.rows[1] for one in Leaderboard(made, judging=known).panels
          if one.adversary == "adaptive"}  # fmt: skip
    assert of["simclr"].not_met == {("membership", ""): ["shy"]}


def test_a_judge_that_met_a_defense_in_another_game_has_not_met_it_in_this() -> None:
    made = [record(attack, defense, seed, 0.6, game=game)
            for seed in range(5)
            for attack, defense, game in (
                ("loud", "none", "membership"), ("loud", "fog", "membership"),
                ("sly", "none", "attributes"), ("sly", "fog", "attributes"))]  # fmt: skip
    known = {EVERY: [Wanted("sly", "sly", 1, "membership", {})]}
    (panel,) = Leaderboard(made, judging=known).panels
    assert panel.rows[1].not_met == {("membership", ""): ["sly"]}


def test_the_smallest_leak_that_could_be_seen_by_hand() -> None:
    """Of 100 and 400, sqrt((m + n + 1) / (12 m n)) is .0323; 2.80 times it over sqrt(4) .0452."""
    made = [record(seed=seed) for seed in range(4)]
    for one in made:
        one.sizes = {"members": 100, "nonmembers": 400}
    told = "the smallest leak that an attack sees on four of five such boards is an AUC of {}."
    assert told.format("0.545") in page(Leaderboard(made), "T")
    assert told.format("0.591") in page(Leaderboard(made[:1]), "T")
    other = [record(seed=seed, target="moco") for seed in range(4)]
    for one in other:
        one.sizes = {"members": 1000, "nonmembers": 1000}
    assert told.format("0.518 to 0.545") in page(Leaderboard([*made, *other]), "T")
    beside = [record("shy", seed=seed) for seed in range(4)]  # on the same victims
    for one in beside:
        one.sizes = {"members": 1000, "nonmembers": 1000}
    assert told.format("0.518 to 0.545") in page(Leaderboard([*made, *beside]), "T")
    for one in made:
        one.sizes = {}
    assert "smallest leak" not in page(Leaderboard(made), "T")


def test_page_is_the_golden_one() -> None:
    text = page(
        Leaderboard(everything()),
        "Golden",
        again=["suites/golden.yaml"],
        figure="g.svg",
        table="g.csv",
    )
    assert text == GOLDEN.read_text(encoding="utf-8")


def top(records: list[Record], **more: Any) -> list[str]:
    """The lines above the first fold."""
    return page(Leaderboard(records, **more), "t").partition("<details>")[0].splitlines()


def test_a_page_begins_with_the_answer_and_ten_rows_of_100_characters() -> None:
    long = "a" * 40
    made = [record(f"attack-{long}" if i < 9 else "other", f"defense-{i:02}-{long}{long}" if i
                   else "none", seed, 0.8 - i / 50 + seed / 100, tpr=0.3)
            for i in range(15) for seed in range(3)]  # fmt: skip
    made += [record("other", seed=seed) for seed in range(3)]
    lines = top(made)
    assert lines[2].startswith("**simclr on digits, membership (adaptive), 3 seeds: a draft**: "
                               "without a defense AUC 0.810")  # fmt: skip
    assert len(lines[2].split(". ")) == 2
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 1 + 10
    assert max(map(len, rows)) <= 100
    assert rows[1] == "| none | 0.810 | attack-aaaaaa…aaaaaaaaaaaa | 0.300 | – |"
    assert rows[2].startswith("| defense-14-aaaaa")
    assert rows[2].endswith("aaa | 0.530 † ◊ | other | 0.300 | +0.000 |")
    assert "5 more below." in "\n".join(lines)


def test_the_answer_is_about_the_largest_leak() -> None:
    """Whatever its name; for an error the smallest is the largest leak."""
    made = [record("loud", d, value=v - 0.1 * (d == "calm"), target=t)
            for t, v in (("a", 0.6), ("b", 0.9), ("c", 0.7)) for d in ("none", "calm")]  # fmt: skip
    assert top(made)[2].startswith("**b on digits, membership (adaptive), 1 seed: a draft**: ")
    assert [line.split(" | ")[:2] for line in top(made)[6:8]] == [
        ["| none", "0.900"], ["| calm", "0.800"]]  # fmt: skip
    text = page(Leaderboard(made), "t")
    assert text.index("## digits, b,") < text.index("## digits, c,") < text.index("## digits, a,")
    made = [record("loud", d, value=v, target=t, game="reconstruction")
            for t, v in (("a", 0.6), ("b", 0.9), ("c", 0.7)) for d in ("none", "calm")]  # fmt: skip
    assert top(made)[2].startswith("**a on digits, reconstruction (adaptive), 1 seed: a draft**: ")


def test_marks_of_the_first_ranking_are_explained_only_where_they_stand() -> None:
    made = seeds("loud", "none", [0.8, 0.81, 0.79, 0.8, 0.8])
    made += seeds("loud", "calm", [0.7, 0.72, 0.69, 0.7, 0.69])
    assert "| calm | 0.700 † | +0.000 |" in top(made)
    assert top(made)[-2] == ("†: beyond chance, the attack that is compared finds less than "
                             "without a defense; † more: it finds more.")  # fmt: skip
    known = {EVERY: [Wanted("sly", "sly", 1, "membership", {})]}
    assert "| calm ‖ | 0.700 † | +0.000 |" in top(made, judging=known)
    made += seeds("loud", "noise", [0.5, 0.9, 0.2, 0.3, 0.9], accuracy=0.1)
    told = top(made)[-2]
    assert told.startswith("Defenses that lose more than 0.1 of accuracy stand below the others")
    assert "‖" not in told
    worse = seeds("loud", "worse", [0.9, 0.92, 0.89, 0.9, 0.91])
    assert "| worse | 0.904 † more | +0.000 |" in top([*made, *worse])


def test_without_a_defense_the_first_ranking_is_of_attacks_or_of_victims() -> None:
    made = [record("loud", value=0.6, tpr=0.1), record("sly", value=0.9, needs="LABELS")]
    assert top(made)[4:8] == [
        "| attack | AUC | reads | TPR at 1 % FPR |", "|---|---|---|---|",
        "| sly | 0.900 | labels | – |", "| loud | 0.600 | posteriors | 0.100 |",
    ]  # fmt: skip
    made = [record("loud", target=t, value=v, tpr=0.2) for t, v in (("a", 0.6), ("b", 0.8))]
    assert top(made)[4:8] == [
        "| target | worst AUC | best TPR at 1 % FPR | test accuracy |", "|---|---|---|---|",
        "| b | 0.800 | 0.200 | 0.900 |", "| a | 0.600 | 0.200 | 0.900 |",
    ]  # fmt: skip
    assert top([record(status="failed", reason="no")])[:2] == ["# t", ""]


def test_rows_of_the_first_ranking_are_told_apart() -> None:
    """Whatever is cut of their names: targets of the same beginning and end."""
    long = "x" * 90
    made = [record("loud", target=f"{long}{i}{long}", value=0.6 + i / 100) for i in range(9)]
    rows = [line for line in top(made) if line.startswith("| ")]
    assert len({row.split(" | ")[0] for row in rows}) == 10
    assert max(map(len, rows)) <= 100
    made = [record("loud", "a*|b" * 30 + f"{i}", value=0.6) for i in range(3)] + [record("loud")]
    assert max(map(len, top(made)[4:9])) <= 100


def test_a_leak_that_could_not_have_been_seen_is_none() -> None:
    told = "without a defense no leak is shown: AUC 0.530 by loud, the only attack asked, where "
    small = [record(seed=seed, value=0.53) for seed in range(4)]
    assert f"{told}chance gives it up to 0.532." in top(small)[2]
    assert "no leak is shown" not in top([record(seed=seed, value=0.54) for seed in range(4)])[2]
    (last,) = closing(
        Leaderboard(small)
    )  # with what the null victim shows, .5, outside its interval
    assert last.startswith("no leak shown: without a defense loud has AUC 0.530 [0.530, 0.530]")
    many = [record(target=t, value=v) for t, v in (("a", 0.53), ("b", 0.55))]
    start = "no leak is shown: loud, the only attack asked, reaches AUC 0.550 (b), where chance"
    assert f"{start} gives the best of 2 up to 0.572. Least" in top(many)[2]


def test_a_leak_of_attributes_stands_beside_what_needs_no_victim() -> None:
    made = record("guess", game="attributes", value=0.88)
    made.baselines = {"majority": {"accuracy": number(0.49)}}
    made.controls = {"pixels": {"accuracy": number(0.87)}, "untrained": {"accuracy": number(0.86)}}
    assert (
        "accuracy 0.880 by guess, the only attack asked (the largest class 0.490; the same attack "
        "on the rows themselves 0.870; on an untrained encoder 0.860)."
    ) in top([made])[2]


def test_the_answer_is_about_what_the_defenses_claim() -> None:
    made = [record(attack, defense, value=0.8, game=game, protects=("attributes",) * bool(i))
            for i, defense in enumerate(("none", "talos"))
            for attack, game in (("loud", "membership"), ("guess", "attributes"))]  # fmt: skip
    assert top(made)[2].startswith("**simclr on digits, attributes of slant (adaptive)")
    alone = [one for one in made if one.cell.game == "membership"]
    assert "| talos | 0.800 ° | +0.000 |" in top(alone)


def test_what_does_not_count_is_not_called_the_answer() -> None:
    """Neither a defense that not all attacks met, nor one that costs much, nor numbers with ‡."""
    made = [record(a, d, value=v) for a, d, v in (
        ("loud", "none", 0.8), ("sly", "none", 0.6), ("sly", "part", 0.5), ("loud", "full", 0.85),
        ("sly", "full", 0.6))]  # fmt: skip
    told = "No defense that met these attacks and costs at most 0.1 of accuracy leaks less; most"
    assert told in top(made)[2]
    alone = [one for one in made if one.cell.defense != "full"]
    assert "0.500, at no cost in accuracy on this seed, which not all of these" in top(alone)[2]
    for one in made:
        one.flags = ["odd"] if one.cell.defense == "none" else []
    told = "no number without a defense counts (‡ or ¶, see Controls); AUC 0.850 with full by loud"
    assert told in top(made)[2]
    for one in made:
        one.flags = ["odd"]
    assert "2 of 2 defenses have no number that counts" in top(made)[2]


def test_games_of_a_group_are_told_by_their_own_numbers() -> None:
    """An error of .03 is below the .53 that chance gives membership attacks."""
    made = []
    for target in ("a", "b"):
        made += [record("loud", seed=seed, target=target, value=0.9) for seed in range(4)]
        made += [record("draw", seed=seed, target=target, game="reconstruction",
                        value=0.03 if target == "a" else 0.02) for seed in range(4)]  # fmt: skip
    text = page(Leaderboard(made), "t")
    told = "draw, the only attack asked, reaches MSE 0.020 (b) (less leaks more). Least is 0.030"
    assert told in text
    below = [record(target=t, value=v) for t, v in (("a", -0.2), ("b", -0.4))]
    assert "| a | -0.200 |" in "\n".join(top(below))
    assert "no leak" not in text


def test_no_defense_is_said_to_leak_least_if_none_leaks_less() -> None:
    made = [record("loud", d, value=v, accuracy=a)
            for d, v, a in (("none", 0.7, 0.9), ("a", 0.71, 0.92), ("b", 0.8, 0.9))]  # fmt: skip
    assert "No defense leaks less; most with b, 0.800;" in top(made)[2]
    made += [record("loud", "c", value=0.6, accuracy=0.92)]
    assert "Least with c, 0.600, whose cost in accuracy on this seed is -0.020" in top(made)[2]


def test_order_of_results_does_not_matter() -> None:
    made = everything()
    want = page(Leaderboard(made), "t"), table(Leaderboard(made)), front(Leaderboard(made).panels)
    assert all(want)
    for seed in range(3):
        random.Random(seed).shuffle(made)
        assert (
            page(Leaderboard(made), "t"),
            table(Leaderboard(made)),
            front(Leaderboard(made).panels),
        ) == want


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([(40, 40, 1), (40, 3, 6), (3, 40, 6), (10, 10, 6)])
    | st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3)),
    st.integers(1, 3), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_a_page_is_short_and_narrow(
    grid: tuple[int, int, int], count: int, claims: bool, seed: int
) -> None:
    attacks, defenses, targets = grid
    chance = random.Random(seed)
    games = ["membership", "attributes", "reconstruction"]
    made = []
    for target in range(targets):
        for attack in range(attacks):
            for defense in range(defenses):
                for one in range(1 if attacks * defenses > 100 else count):
                    made.append(record(
                        f"attack{attack}", f"defense{defense}" if defense else "none", one,
                        chance.random(), target=f"target{target}", game=games[attack % 3],
                        status=chance.choice(["ok", "ok", "ok", "skipped", "failed"]),
                        reason=f"reason {chance.randrange(40)}", tpr=chance.random(),
                        commit=chance.choice(["a", None, "a-dirty"]),
                    ))  # fmt: skip
                    if claims and made[-1].status == "ok":
                        made[-1].metrics["claimed_epsilon"] = number(8.0, 0)
    text = page(Leaderboard(made), "t", figure="x.svg", table="x.csv", again=["s.yaml"])
    assert len(text.splitlines()) <= LONGEST == 150
    assert all(len(row) <= 10 for rows in tables(text).values() for row in rows)
    for rows in tables(text).values():
        assert len({len(row) for row in rows}) == 1
    random.Random(seed + 1).shuffle(made)
    assert page(Leaderboard(made), "t", figure="x.svg", table="x.csv", again=["s.yaml"]) == text


def test_what_there_is_no_room_for_is_counted() -> None:
    made = [record(f"a{i:02}", f"d{j:02}" if j else "none", value=0.5 + i / 100)
            for i in range(5) for j in range(90)]  # fmt: skip
    text = page(Leaderboard(made), "t", table="t.csv")
    assert len(text.splitlines()) <= LONGEST
    rows = tables(text)["digits, simclr, adaptive adversary"]
    assert f"{90 - (len(rows) - 1)} more defenses are in the csv file." in text
    many = [record(f"a{i}", d, target=f"t{t:02}")
            for i in range(3) for d in ("none", "x") for t in range(30)]  # fmt: skip
    text = page(Leaderboard(many), "t")
    assert "In the csv file only: digits, t" in text
    assert len(text.splitlines()) <= LONGEST


@pytest.mark.parametrize(("attacks", "titles"), [(8, 1), (9, 2)])
def test_games_share_a_table_while_it_is_ten_columns_wide(attacks: int, titles: int) -> None:
    made = [record(f"a{i}", d, game="attributes" if i % 2 else "membership")
            for i in range(attacks) for d in ("none", "x")]  # fmt: skip
    found = matrix.tables(Leaderboard(made).panels[0])
    assert len(found) == titles
    assert all(len(one.heads) <= matrix.WIDEST for one in found)
    assert sum(len(one.heads) - 2 for one in found) == attacks


def test_of_a_table_that_is_not_cut_nothing_is_left_out() -> None:
    table = matrix.Table("t", ["defense"], [["none"], ["x"]], "defenses")
    assert table.lines(2) == table.lines(3) == ["| defense |", "|---|", "| none |", "| x |"]
    assert table.lines(1)[3:] == ["", "1 more defenses are in the csv file."]


def test_a_page_needs_neither_torch_nor_games_nor_matplotlib() -> None:
    code = (
        "import sys, privbench.boards.page, privbench.boards.rows, privbench.boards.files; "
        "bad = {'torch', 'matplotlib', 'privbench.measure.games.catalog'}; "
        "assert not bad & {*sys.modules}, bad & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- matrix --------------------------------------------------------------------------------------


def test_a_matrix_has_defenses_down_and_attacks_across() -> None:
    made = [*seeds("loud", "none", [0.6, 0.7, 0.8]), record("shy", value=0.75, needs="LABELS")]
    made += [record("loud", "mask", status="skipped", reason="no"), record("shy", "mask", 0, 0.55,
             needs="LABELS")]  # fmt: skip
    made += [record("guess", d, 0, 0.4, game="attributes") for d in ("none", "mask")]
    rows = shown(made)
    assert list(rows) == ["none", "mask"]
    assert list(rows["none"]) == [
        "defense", "shy (AUC) [labels]", "loud (AUC) [posteriors]",
        "guess (accuracy) [posteriors]", "test accuracy",
    ]  # fmt: skip
    # Student's t of two degrees of freedom: 4.303 x .1 / sqrt(3)
    assert rows["none"]["loud (AUC) [posteriors]"] == "**0.700 ±0.248**"
    assert rows["none"]["shy (AUC) [labels]"] == "**0.750** (1 of 3 seeds)"
    assert rows["mask"]["loud (AUC) [posteriors]"] == "skipped"
    assert rows["mask"]["guess (accuracy) [posteriors]"] == "**=** (1 of 3 seeds)"


def test_the_strongest_of_each_access_is_marked() -> None:
    made = [
        record("a", value=0.6, needs="LABELS"), record("b", value=0.7, needs="LABELS"),
        record("c", value=0.8), record("d", value=0.75),
        record("blur", value=0.3, game="reconstruction"),
        record("copy", value=0.2, game="reconstruction"), record("a", "talos", needs="LABELS"),
    ]  # fmt: skip
    row = shown(made)["none"]
    bold = {name.split()[0] for name, text in row.items() if text.startswith("**")}
    assert bold == {"b", "c", "copy"}


def test_equal_means_equal_on_every_seed_and_in_every_number() -> None:
    def same(defended: list[Record]) -> bool:
        bare = seeds("loud", "none", [0.6, 0.7, 0.8], tpr=0.1)
        return "=" in shown([*bare, *defended])["mask"]["loud (AUC) [posteriors]"]

    assert same(seeds("loud", "mask", [0.6, 0.7, 0.8], tpr=0.1))
    assert not same(seeds("loud", "mask", [0.6, 0.8, 0.7], tpr=0.1))  # the same mean
    assert not same(seeds("loud", "mask", [0.6, 0.7], tpr=0.1))
    assert not same(seeds("loud", "mask", [0.6, 0.7, 0.8], tpr=0.2))


def test_rows_outside_the_claim_are_marked() -> None:
    rows = shown(everything())
    assert rows["talos"]["loud (AUC) [posteriors]"].endswith(" °")
    assert rows["talos"]["shy (AUC) [labels]"] == "**=** °"
    assert "°" not in rows["talos"]["guess (accuracy) [embeddings]"]
    assert "°" not in "".join(rows["none"].values())


def test_a_null_that_is_not_one_half_is_marked_and_never_bold_nor_ranked() -> None:
    """The null's deviation is .0323 (100 of 500): .65 on three seeds is 8 of the mean's."""
    made = [
        record(attack, defense, seed, auc, null=null)
        for seed in range(3)
        for defense in ("none", "calm")
        for attack, auc, null in (("told", 0.95, 0.65), ("loud", 0.7, 0.51))
    ]
    row = shown(made)["none"]
    assert row["told (AUC) [posteriors]"] == "0.950 ±0.000 ‡"
    assert row["loud (AUC) [posteriors]"] == "**0.700 ±0.000**"
    assert ranking(made)["none"]["membership: worst AUC"] == "0.700 [0.700, 0.700] loud"
    assert "‡ 2 cells: the AUC on its null victims is not 0.5" in page(Leaderboard(made), "t")
    (panel,) = Leaderboard(made).panels
    assert all(line.leak(("membership", "")) == pytest.approx(0.7) for line in panel.rows)


def test_a_flag_of_a_record_marks_its_cell_and_gives_the_reason() -> None:
    flag = ("its encoder is not shown to tell more than an untrained one",)
    made = [record("told", value=0.9, flags=flag), record(), record("told", "calm"),
            record(defense="calm")]  # fmt: skip
    assert shown(made)["none"]["told (AUC) [posteriors]"] == "0.900 ‡"
    assert f"‡ 1 cells: {flag[0]}" in page(Leaderboard(made), "t")


def test_equal_doubts_are_one_with_the_smallest_p_and_a_flag_may_look_like_one() -> None:
    flags = ("odd (p = 0.2 over 5 seeds)", "odd (p = 0.051)", "odd (p = 1.2.3.)", "odd (p = x)")
    made = [record(f"a{i}", flags=(flag,)) for i, flag in enumerate(flags)]
    text = page(Leaderboard(made), "t")
    assert "‡ 3 cells: odd (p from 0.051)" in text
    assert "‡ 1 cells: odd (p = x)" in text


def test_attacks_that_missed_a_planted_leak_are_marked() -> None:
    grid = [record(a, d) for a in ("loud", "deaf") for d in ("none", "calm")]
    planted = [record("loud", "planted-leak", 0, 0.99, control=True),
               record("deaf", "planted-leak", 0, 0.52, control=True)]  # fmt: skip
    text = page(Leaderboard([*grid, *planted]), "t")
    assert "planted leaks found in 1 of 2 cells, NOT by deaf (digits, simclr, adaptive, mem" in text
    assert "planted-leak" not in text
    assert shown([*grid, *planted])["none"]["deaf (AUC) [posteriors]"] == "0.700 ¶"
    assert shown([*grid, *planted])["none"]["loud (AUC) [posteriors]"] == "**0.700**"
    assert "planted leaks" not in page(Leaderboard(grid), "t")


def test_many_attacks_are_rows_the_strongest_of_each_access_first() -> None:
    made = [record(f"a{i}", d, value=0.5 + i / 100, needs="LABELS" if i < 10 else "POSTERIORS")
            for i in range(12) for d in ("none", "x")]  # fmt: skip
    rows = tables(page(Leaderboard(made), "t"))["digits, simclr, adaptive adversary"]
    assert rows[0] == ["attack (AUC)", "none", "x"]
    assert [row[0].split()[0] for row in rows[1:]] == [
        *(f"a{i}" for i in (11, 9, 10, 8, 7, 6, 5, 4, 3, 2, 1, 0)), "test",
    ]  # fmt: skip


def test_settings_and_versions_are_told_apart_only_where_they_must() -> None:
    made = []
    for seed, bound in enumerate((1, 2)):
        one = record("loud", "ars", seed, fields={"k": 8})
        one.cell = one.cell.model_copy(update={"defenses": [method("ars", bound=bound)]})
        made.append(one)
    rows = shown([record(fields={"k": 8}), *made])
    assert list(rows) == ["none", "ars(bound=1)", "ars(bound=2)"]
    assert "loud (AUC) [posteriors]" in rows["none"]
    rows = shown([record(), record(fields={"k": 9}, seed=1)])
    assert {*rows} == {"loud [posteriors]", "loud(k=9) [posteriors]", "test accuracy"}
    rows = shown([record(fields={"k": 8, "n": n}, seed=n) for n in (1, 2)])
    assert {*rows} == {"loud(n=1) [posteriors]", "loud(n=2) [posteriors]", "test accuracy"}
    rows = shown([record(version=1), record(version=2, seed=1)])
    assert {*rows} == {"loud v1 [posteriors]", "loud v2 [posteriors]", "test accuracy"}


def test_splits_of_one_name_are_no_seeds_of_each_other() -> None:
    made = [record(protocol="own"), record(protocol="own", members=40, seed=1)]
    names = [name for name in tables(page(Leaderboard(made), "t")) if name.startswith("digits")]
    assert names == [
        "digits (own) (protocol.members 100), simclr, adaptive adversary",
        "digits (own) (protocol.members 40), simclr, adaptive adversary",
    ]  # fmt: skip


def test_a_naive_adversary_is_shown_where_nothing_else_is_there() -> None:
    none, calm = record(), record(defense="calm", value=0.6, adversary="naive")
    text = page(Leaderboard([none, calm]), "t")
    assert "The naive adversary does not know of the defense." in text
    rows = shown([none, calm], "digits, simclr, naive adversary")
    assert [row["loud (AUC) [posteriors]"] for row in rows.values()] == ["**0.700**", "**0.600**"]
    assert not any("adaptive adversary" in name for name in tables(text))
    both = [none, calm, record(defense="calm", value=0.65)]
    assert not any("naive" in name for name in tables(page(Leaderboard(both), "t")))
    assert "Numbers against the naive adversary are in the csv file." in page(
        Leaderboard(both), "t"
    )
    assert "0.6," in table(Leaderboard(both))


def test_a_white_box_adversary_shows_what_only_it_can_do() -> None:
    made = [record("loud", d) for d in ("none", "calm")]
    made += [record("white", d, 0, 0.9, adversary="adaptive, white-box", needs="GRADIENTS")
             for d in ("none", "calm")]  # fmt: skip
    text = page(Leaderboard(made), "t")
    name = "digits, simclr, adaptive, white-box adversary"
    assert tables(text)[name][0] == ["defense", "white (AUC) [gradients]", "test accuracy"]
    assert "Attacks that do the same for the adaptive adversary are in its table" in text
    assert "also has gradients and weights" in text


def test_what_an_undefended_adversary_knows_is_one_table() -> None:
    knows = ("adaptive", "adaptive, pool mnist", "adaptive, shadows moco")
    made = []
    for name, value in zip(knows, (0.8, 0.6, 0.7), strict=True):
        made += seeds("loud", "none", [value, value], adversary=name, tpr=value / 2)
    found = shown(made, "digits, simclr, no defense")
    assert list(found) == list(knows)
    assert [row["loud (AUC) [posteriors]"] for row in found.values()] == [
        "**0.800 ±0.000**", "**0.600 ±0.000**", "**0.700 ±0.000**",
    ]  # fmt: skip
    assert found["adaptive"]["loud: TPR at 1 % FPR"] == "0.400 ±0.000"
    assert "The threshold at 1 % FPR" in page(Leaderboard(made), "t")
    assert (
        "**digits, simclr, no defense, membership, 2 seeds: a draft**: loud, the only attack "
        "asked, reaches AUC 0.800 (adaptive). Least is 0.600 (adaptive, pool mnist)."
    ) in page(Leaderboard(made), "t")
    assert [told.partition(": ")[0] for told in closing(Leaderboard(made))] == [
        f"simclr on digits, membership ({knows[i]})"
        for i in (0, 2, 1)  # the largest leak first
    ]
    more = [*made, record("shy")]  # only the first adversary has this attack: its panel is alone
    assert {"digits, simclr, adaptive adversary", "digits, simclr, no defense"} <= {
        *tables(page(Leaderboard(more), "t"))
    }
    defended = [*made, *(record(defense="talos", adversary=name) for name in knows)]
    assert "digits, simclr, no defense" not in tables(page(Leaderboard(defended), "t"))


def test_a_missing_seed_is_not_borrowed_from_another_adversary() -> None:
    knows = ("adaptive", "adaptive, pool mnist")
    made = [*seeds("loud", "none", [0.8, 0.8, 0.8], adversary=knows[0])]
    made += seeds("loud", "none", [0.6, 0.6], adversary=knows[1])
    found = shown(made, "digits, simclr, no defense")
    assert found[knows[1]]["loud (AUC) [posteriors]"].startswith("**0.600 ±0.000**")
    assert "adaptive, pool mnist: Draft: 2 seeds where a board needs 5." in page(
        Leaderboard(made), "t"
    )


def test_equal_leaks_name_nobody() -> None:
    knows = ("adaptive", "adaptive, pool mnist", "adaptive, shadows moco")
    made = [record("loud", adversary=name, value=value)
            for name, value in zip(knows, (0.7, 0.7, 0.8), strict=True)]  # fmt: skip
    assert "reaches AUC 0.800 (adaptive, shadows moco). Least is 0.700 (2 of 3 rows)." in page(
        Leaderboard(made), "t"
    )
    assert "Test accuracy: 0.900." in page(Leaderboard(made), "t")


def test_two_settings_of_an_attack_are_two_tables() -> None:
    made = [record("lira", target="simclr", fields={"k": 2}),
            record("lira", target="supervised", fields={"k": 8})]  # fmt: skip
    assert {"digits, simclr, adaptive adversary", "digits, supervised, adaptive adversary"} <= {
        *tables(page(Leaderboard(made), "t"))
    }


def test_undefended_victims_are_one_table() -> None:
    names = ("simclr", "simclr(epochs=9)", "simclr(epochs=10)")
    made = [record("loud", target=name, value=0.6 + i / 10) for i, name in enumerate(names)]
    found = shown(made, "digits, adaptive adversary, no defense")
    assert list(found) == list(names)
    assert [row["test accuracy"] for row in found.values()] == ["0.900"] * 3
    assert "reaches AUC 0.800 (simclr(epochs=10)). Least is 0.600 (simclr)." in page(
        Leaderboard(made), "t"
    )


def test_a_board_that_lacks_undefended_victims_has_a_finding() -> None:
    made = [record("loud", "none", status="skipped", reason="no")]
    made += [record("loud", "weak", value=0.8), record("loud", "strong", value=0.6)]
    told = ("nothing ran without a defense; AUC 0.800 with weak by loud at an accuracy of 0.900, "
            "0.600 with strong by loud at an accuracy of 0.900.")  # fmt: skip
    assert told in page(Leaderboard(made), "t")
    assert "simclr on digits, membership" not in page(Leaderboard(made[:1]), "t")


def test_a_game_that_this_version_does_not_know_is_shown_as_its_results_say(tmp_path: Path) -> None:
    board = Board((Column("error | x", "metrics", "error", high=None),), higher=False, place=1)
    made = everything()
    for defense, errors in (("none", (3.0, 5.0, 4.0)), ("talos", (8.0, 9.0, 8.0))):
        for seed, error in enumerate(errors):
            one = record("own", defense, seed, game="own",
                         accuracy=0.91 if defense == "none" else 0.9)  # fmt: skip
            one.board, one.metrics = board, {"error": number(error)}
            made.append(one)
    for one in made:
        one.write(tmp_path)
    read = read_all([tmp_path])
    assert shown(read)["none"]["own (error ¦ x) [posteriors]"].startswith("**4.000 ±")
    assert "Least with talos, 8.333" in page(Leaderboard(read), "t")


# ---- ranking -------------------------------------------------------------------------------------


def test_the_worst_case_is_that_of_the_best_mean_by_hand() -> None:
    made = seeds("a", "none", [0.9, 0.5, 0.5]) + seeds("b", "none", [0.6, 0.6, 0.6])
    made += seeds("a", "mask", [0.5, 0.5, 0.5]) + seeds("b", "mask", [0.4, 0.4, 0.4])
    rows = ranking(made)
    # .633 - 6.205 × .133, by Student's quantile of .9875, and .633 + 4.303 × .133, cut to [0, 1]
    assert rows["none"]["membership: worst AUC"] == "0.633 [0.000, 1.000] a"
    assert rows["mask"]["membership: worst AUC"] == "0.500 [0.500, 0.500] a"
    # A lower error is a stronger attack.
    errors = seeds("a", "none", [0.1, 0.5, 0.5], game="reconstruction")
    errors += seeds("b", "none", [0.4, 0.4, 0.4], game="reconstruction")
    errors += seeds("a", "mask", [0.6, 0.6, 0.6], game="reconstruction")
    (panel,) = Leaderboard(errors).panels
    assert panel.rows[0].leak(("reconstruction", "")) == pytest.approx(1.1 / 3)


def test_a_defense_that_costs_much_accuracy_is_not_ranked_first() -> None:
    made = seeds("loud", "none", [0.8, 0.8, 0.8], accuracy=0.9)
    made += seeds("loud", "noise", [0.5, 0.5, 0.5], accuracy=0.2)
    made += seeds("loud", "calm", [0.7, 0.7, 0.7], accuracy=0.85)
    assert list(ranking(made)) == ["none", "calm", "noise"]
    assert "Least with calm, 0.700, which costs 0.050" in page(Leaderboard(made), "t")
    alone = [one for one in made if one.cell.defense != "calm"]
    assert "least with" not in page(Leaderboard(alone), "t").lower()
    assert ". Every defense costs more than 0.1 of accuracy;" in page(Leaderboard(alone), "t")
    assert closing(Leaderboard(made))[0].startswith("calm lowers")
    told = "; every defense costs more than 10 points of accuracy; 3 seeds: draft."
    assert closing(Leaderboard(alone))[0].endswith(told)


def test_a_finding_names_the_defenses_without_a_valid_number() -> None:
    made = [*seeds("loud", "none", [0.8, 0.8, 0.8]), *seeds("loud", "calm", [0.7, 0.71, 0.7])]
    for one in (idle := seeds("loud", "idle", [0.5, 0.5, 0.5])):
        one.flags = ["its encoder is not shown to tell more than an untrained one"]
    text = page(Leaderboard([*made, *idle]), "t")
    assert (
        "less than none beyond chance; 1 of 2 defenses has no number that "
        "counts (‡ or ¶, see Controls): idle." in text
    )
    assert "(‡ or ¶, see Controls): idle." in text
    assert "number that counts" not in page(Leaderboard(made), "t")
    assert "; 1 of 2 defenses have no valid number;" in closing(Leaderboard([*made, *idle]))[0]


def test_the_last_lines_allow_for_all_that_a_run_compares() -> None:
    """A defense that would differ alone does not among those of four targets."""

    def of(target: str, *lowered: float) -> list[Record]:
        made = []
        for seed, by in enumerate(lowered):
            made += [record("loud", "none", seed, 0.7 + seed / 50, target=target),
                     record("loud", "calm", seed, 0.7 + seed / 50 - by, target=target)]  # fmt: skip
        return made

    alone = of("simclr", 0.03, 0.01, 0.05, 0.02, 0.04)
    assert closing(Leaderboard(alone))[0].startswith("calm lowers the AUC of loud by 0.030 ± 0.020")
    more = [one for name in ("moco", "byol", "clip") for one in of(name, 0, 0.01, -0.01, 0, 0.01)]
    told = next(one for one in closing(Leaderboard([*alone, *more])) if one.startswith("simclr"))
    assert "no difference shown: calm changes the AUC of loud by -0.030" in told


def test_one_seed_shows_its_strongest_attack() -> None:
    rows = ranking([record("a", d, 0, v) for d in ("none", "mask") for v in (0.6,)]
                   + [record("b", d, 0, v) for d, v in (("none", 0.8), ("mask", 0.5))])  # fmt: skip
    assert [row["membership: worst AUC"] for row in rows.values()] == ["0.800 b", "0.600 a"]


def test_defenses_are_ranked_with_utility_and_cost() -> None:
    made = seeds("loud", "none", [0.8, 0.8, 0.8], accuracy=0.9)
    made += seeds("loud", "worse", [0.75, 0.75, 0.75], accuracy=0.88)
    made += seeds("loud", "better", [0.6, 0.6, 0.6], accuracy=0.8)
    rows = ranking(made)
    assert list(rows) == ["none", "better", "worse"]
    assert rows["better"]["accuracy lost"] == "+0.100"
    assert rows["none"]["accuracy lost"] == "–"
    assert [row["training"] for row in rows.values()] == ["1.0×", "2.0×", "2.0×"]
    assert rows["better"]["a query"] == "0.002 ms"
    text = page(Leaderboard(made), "t")
    assert (
        "0.800 by loud, the only attack asked. Least with better, 0.600, which costs 0.100" in text
    )
    assert "most with" not in text  # none leaks more than without a defense
    louder = [*made, *seeds("loud", "louder", [0.9, 0.9, 0.9], accuracy=0.9)]
    assert "; most with louder, 0.900; 0 of 3 defenses" in page(Leaderboard(louder), "t")
    first = page(Leaderboard([one for one in made if one.seed == 0]), "t")
    assert "; too few seeds to tell a difference from chance." in first


def test_lost_accuracy_has_its_interval_and_training_its_share() -> None:
    made = [record("loud", "none", seed, accuracy=0.90 + seed / 100) for seed in range(3)]
    made += [record("loud", "mask", seed, accuracy=0.80) for seed in range(3)]
    for one in made[3:]:
        one.cost = Cost(seconds_victim=4.5)
    assert ranking(made)["mask"]["training"] == "1.5×"
    # Student's t of two degrees of freedom: 4.303 x .01 / sqrt(3)
    assert ranking(made)["mask"]["accuracy lost"] == "+0.110 ±0.025"


def test_a_defense_that_only_changes_which_attack_is_strongest_is_not_counted() -> None:
    """Without it one attack has .89 and the other .78, with it .82 and .89."""
    noise = [0.004, -0.003, 0.001, -0.004, 0.002]
    made = []
    for defense, loud, sly in (("none", 0.89, 0.78), ("turn", 0.82, 0.892)):
        made += seeds("loud", defense, [loud + one for one in noise])
        made += seeds("sly", defense, [sly - one / 2 for one in noise])
        noise.reverse()
    (panel,) = Leaderboard(made).panels
    (aim,) = panel.aims
    assert ("turn", aim) in panel.certain
    assert panel.worst_moves(panel.rows[1], aim) == 0
    told = "0 of 1 defenses leak less than none beyond chance; 1 has a †, which its worst case does"
    assert f"{told} not bear out." in page(Leaderboard(made), "t")


def test_a_defense_that_met_fewer_attacks_says_so() -> None:
    made = [*seeds("loud", "none", [0.8, 0.8]), *seeds("shy", "none", [0.6, 0.6])]
    made += [*seeds("shy", "noise", [0.55, 0.55])]
    column = "membership: worst AUC"
    assert ranking(made)["noise"][column] == "0.550 [0.550, 0.550] (met 1 of 2 attacks)"
    skipped = [record("loud", "noise", seed, status="skipped", reason="no") for seed in range(2)]
    assert "met" not in ranking([*made, *skipped])["noise"][column]


def test_differences_to_none_are_marked_after_holm() -> None:
    base = seeds("loud", "none", [0.70, 0.80, 0.75, 0.78, 0.72])
    made = [*base, *seeds("loud", "calm", [0.60, 0.70, 0.65, 0.68, 0.63]),
            *seeds("loud", "vague", [0.60, 0.90, 0.60, 0.80, 0.74])]  # fmt: skip
    rows = ranking(made)
    assert rows["calm"]["membership: worst AUC"].endswith(" †")
    assert "†" not in rows["vague"]["membership: worst AUC"]
    assert "1 of 2 defenses leaks less than none beyond chance." in page(Leaderboard(made), "t")
    loud = [*made, *seeds("loud", "loud", [0.80, 0.91, 0.85, 0.88, 0.83])]
    assert (
        "1 of 3 defenses leaks less than none beyond chance; 1 leaks more than none beyond chance, "
        "by the attack that is compared (†)." in page(Leaderboard(loud), "t")
    )
    assert ranking(loud)["loud"]["membership: worst AUC"].endswith(" † more")
    weak = [*seeds("loud", "none", [0.70, 0.80, 0.75]), *seeds("loud", "weak", [0.67, 0.78, 0.72])]
    assert "†" in ranking(weak)["weak"]["membership: worst AUC"]  # p = .015
    crowd = [r for i in range(9) for r in seeds("loud", f"d{i}", [0.70, 0.79, 0.76])]
    assert "†" not in ranking([*weak, *crowd])["weak"]["membership: worst AUC"]
    # a doubtful attack, although the strongest without a defense, tells of no difference
    mad = [one for one in made if one.cell.defense != "vague"]
    for one in mad:
        one.flags = ["mad"]
    mild = [r for d in ("none", "calm") for r in seeds("mild", d, [0.6, 0.62, 0.61, 0.6, 0.6])]
    assert "†" not in str(ranking([*mad, *mild]))


def test_rates_are_marked_by_their_own_differences() -> None:
    """An AUC that nothing changes, and one that changes while the rates do not."""
    rates = {"none": [0.20, 0.22, 0.18, 0.21, 0.19], "few": [0.10, 0.12, 0.09, 0.10, 0.09],
             "other": [0.21, 0.20, 0.19, 0.22, 0.18]}  # fmt: skip
    aucs = {"none": 0.7, "few": 0.7, "other": 0.6}
    noise = [0.01, -0.01, 0.0, 0.005, -0.005]
    made = [
        record("loud", name, seed, aucs[name] + noise[(seed + len(name)) % 5], tpr=rate)
        for name, of in rates.items()
        for seed, rate in enumerate(of)
    ]
    rows, columns = ranking(made), [f"membership: worst {one}" for one in ("AUC", "TPR at 1 % FPR")]
    marks = {name: [rows[name][one].endswith(" †") for one in columns] for name in rates}
    assert marks == {"none": [False, False], "few": [False, True], "other": [True, False]}


def test_settings_of_attacks_that_are_not_the_defaults_stand_on_the_page() -> None:
    start = "Attacks with settings that are not their defaults: "
    made = seeds("loud", "none", [0.70, 0.80, 0.75])
    assert start not in page(Leaderboard(made), "t")
    for one in made:
        one.cell = one.cell.model_copy(update={"attack": method("loud", k=64)})
    assert f"{start}loud(k=64)." in page(Leaderboard(made), "t")


def test_settings_of_one_defense_are_not_called_defenses() -> None:
    made = seeds("loud", "none", [0.70, 0.80, 0.75, 0.78, 0.72])
    for weight, values in (
        (1.0, [0.71, 0.79, 0.75, 0.77, 0.73]),
        (3.0, [0.60, 0.70, 0.65, 0.68, 0.63]),
    ):
        some = seeds("loud", "mask", values)
        for one in some:
            one.cell = one.cell.model_copy(update={"defenses": [method("mask", weight=weight)]})
            one.trial += f" {weight}"
            one.strengths = {
                "mask": StrengthRecord(field="weight", stronger="up", sweep=[1.0, 3.0])
            }
        made += some
    assert "1 of 2 settings of mask leaks less than none beyond chance" in page(
        Leaderboard(made), "t"
    )


def test_a_rate_of_0_that_tells_nothing_says_so() -> None:
    made = [r for name in ("a", "b") for r in seeds(name, "none", [0.7, 0.71, 0.72], tpr=0.0)]
    assert "| 0.000 ±0.000 |" in page(Leaderboard(made), "T")
    for one in made:
        one.metrics["tpr_at_fpr_0.01"] = Number(value=0.0, low=0.0, high=0.8)
    assert "| 0 (at most 0.80) |" in page(Leaderboard(made), "T")


def test_only_the_strongest_attack_without_a_defense_is_tested() -> None:
    made = seeds("a", "none", [0.9, 0.8, 0.85]) + seeds("a", "x", [0.9, 0.79, 0.86])
    made += seeds("b", "none", [0.6, 0.7, 0.65]) + seeds("b", "x", [0.50, 0.61, 0.55])
    (panel,) = Leaderboard(made).panels
    found = panel.rows[1].changes["membership", ""].difference
    assert found.mean == pytest.approx(0.0)  # that of b is -.097
    for defense, value in (("none", 0.99), ("x", 0.95)):
        made += seeds("guess", defense, [value] * 3, game="attributes")
    (panel,) = Leaderboard(made).panels
    assert panel.rows[1].changes["membership", ""].difference == found


def test_rates_at_one_percent_stand_where_all_have_them() -> None:
    made = seeds("a", "none", [0.8, 0.8], tpr=0.3) + seeds("b", "none", [0.7, 0.7], tpr=0.4)
    made += seeds("a", "mask", [0.6, 0.6], tpr=0.1) + seeds("b", "mask", [0.5, 0.5], tpr=0.05)
    rows = ranking(made)
    name = "membership: worst TPR at 1 % FPR"
    assert rows["none"][name] == "0.400 [0.400, 0.400] b"  # not the attack of the highest AUC
    assert rows["mask"][name] == "0.100 [0.100, 0.100] a"
    assert "its true FPR is 1.25 % ± 0.55 % with 400 nonmembers." in page(Leaderboard(made), "t")
    some = [*made, *seeds("a", "fog", [0.6, 0.6])]
    assert name not in ranking(some)["none"]
    assert "true FPR" not in page(Leaderboard(some), "t")


def test_worst_rates_have_the_interval_of_their_seeds_within_its_range() -> None:
    def low(rates: list[float]) -> str:
        made = [record("a", d, seed, 0.8, tpr=rate)
                for d in ("none", "mask") for seed, rate in enumerate(rates)]  # fmt: skip
        told: str = ranking(made)["none"]["membership: worst TPR at 1 % FPR"]
        return told

    # Student's t of two degrees of freedom: 4.303 x .02 / sqrt(3) and 4.303 x .2 / sqrt(3)
    assert low([0.28, 0.30, 0.32]) == "0.300 [0.250, 0.350]"
    assert low([0.1, 0.3, 0.5]) == "0.300 [0.000, 0.797]"


def test_three_aims_rates_and_epsilons_are_ten_columns() -> None:
    made = []
    for game in ("membership", "attributes", "reconstruction"):
        made += [record(game, d, s, 0.5, game=game, tpr=0.1) for d in ("none", "x")
                 for s in range(2)]  # fmt: skip
    for one in made:
        if one.cell.game == "membership" and one.cell.defense == "x":
            one.claims = [{"epsilon": 8.0, "phase": "encoder", "guarantee": True}]
            one.metrics["claimed_epsilon"] = number(8.0, 0)
            one.metrics["audited_epsilon"] = Number(refused="another adjacency")
    rows = ranking(made)
    assert len(rows["none"]) == matrix.WIDEST == 10
    assert rows["x"]["ε claimed / nominal / audited"] == "8.000 / – / refused"
    assert rows["none"]["ε claimed / nominal / audited"] == "– / – / –"
    for one in made:
        if one.claims:
            one.claims = [{"epsilon": 8.0, "phase": "classifier", "guarantee": False}]
    told = ranking(made)["x"]["ε claimed / nominal / audited"]
    assert told == "– / 8.000 (no phase) / refused"
    assert "can refute a claim but never prove one" in page(Leaderboard(made), "t")


def test_a_ranking_of_many_games_is_ten_columns() -> None:
    made = []
    for i in range(8):
        for defense in ("none", "x"):
            one = record(f"a{i}", defense, game=f"game{i}")
            one.board = Board((Column("error", "metrics", "error"),), place=i)
            one.metrics = {"error": number(0.5), "claimed_epsilon": number(8.0)}
            made.append(one)
    assert len(ranking(made)["none"]) == 10
    assert "4 more of what attacks are after are in the csv file." in page(Leaderboard(made), "t")


def test_the_guesses_of_all_seeds_count_together() -> None:
    made = [record(defense=d, seed=seed) for d in ("none", "dp") for seed in range(3)]
    for one in made[3:]:
        one.claims = [{"epsilon": 8.0, "delta": 1e-5, "phase": "encoder", "guarantee": True}]
        counts = {"audit_coins": 200, "audit_made": 50, "audit_right": 45,
                  "audit_made_most": 160, "audit_right_most": 120}  # fmt: skip
        alone = audit.assessed(one.claims, [audit.counted(counts)])
        one.metrics |= {name: Number.of(metric) for name, metric in alone.items()}
    found = audit.bound(audit.Guesses(600, 150, 135), 1e-5)
    told = ranking(made)["dp"]["ε claimed / nominal / audited"]
    assert told == f"8.000 / – / {found:.3f}, not testable (ceiling below claim)"


# ---- what else a page says -----------------------------------------------------------------------


def test_a_bound_is_the_number_that_is_shown_and_none_without_an_end() -> None:
    assert audits.bound(8.12345) == audits.Bound("8.123", 8.123)
    assert audits.bound(math.inf) == audits.Bound("inf", None)


def test_what_a_claim_of_a_part_covers_stands_behind_epsilon_and_mu() -> None:
    one = record(defense="dp")
    one.phase = "encoder+classifier"
    profile = [(e, gaussian_delta(e, 1.0)) for e in (1.0, 4.377178)]
    one.claims = [{"epsilon": 4.377178, "delta": 1e-5, "profile": profile, "phase": "classifier",
                   "guarantee": True}]  # fmt: skip
    counts = {"audit_coins": 200, "audit_made": 50, "audit_right": 45,
              "audit_made_most": 160, "audit_right_most": 120}  # fmt: skip
    alone = audit.assessed(one.claims, [audit.counted(counts)])
    one.metrics |= {name: Number.of(metric) for name, metric in alone.items()}
    told = audits.bounds([one])
    assert told["claimed_epsilon"].text == "4.377 (classifier only)"
    assert told["claimed_mu"].text.startswith("1.000 (regret 0.0")
    assert told["claimed_mu"].text.endswith(") (classifier only)")


def test_every_page_names_its_code() -> None:
    clean = page(Leaderboard([record()]), "t")
    assert "Code: clean checkout of commit abc (1 results)." in clean
    assert "WARNING" not in clean
    mixed = page(
        Leaderboard([record(), record(seed=1, commit="abc-dirty"), record(seed=2, commit=None)]),
        "t",
    )
    assert "**WARNING: code that was never committed, on top of commit abc (1 results).**" in mixed
    assert (
        "**WARNING: unknown code: 1 results name no commit; runs from a git checkout name theirs.**"
        in mixed
    )
    assert "Cite as: privbench, commit abc, abc-dirty, unknown, preset cpu, this page." in mixed


def test_a_page_says_what_it_lacks() -> None:
    assert "Draft: 4 seeds where a board needs 5." in page(
        Leaderboard(seeds("a", "none", [0.7] * 4)), "t"
    )
    assert "Draft" not in page(Leaderboard(seeds("a", "none", [0.7] * 5)), "t")


def test_a_page_names_the_methods_that_its_suite_asks_for_and_no_result_is_about() -> None:
    made = [record("a"), record("a", "talos"), record("b", "talos"), record("a", "olympus")]
    made += [record(name, "memguard", status="skipped") for name in "ab"]  # of all attacks
    made.append(record("a", "hamp", status="skipped"))
    told = "Not measured yet, though the suite asks for it: ars, c, hamp, mist."
    defenses = "talos", "mist", "memguard", "ars", "hamp", "olympus"
    asked = [("defense", name) for name in defenses] + [("attack", name) for name in "abc"]
    asked.append(("target", "supervised"))
    assert told in page(Leaderboard(made, asked=asked), "t").splitlines()
    assert "Not measured" not in page(Leaderboard(made, asked=asked[:1]), "t")
    assert "Not measured" not in page(Leaderboard(made), "t")


def test_cells_without_a_number_are_counted_by_reason() -> None:
    lines = page(Leaderboard(everything()), "t").splitlines()
    assert "- skipped 1: white needs WEIGHTS \\| more" in lines
    assert "- failed 1: ValueError: first second" in lines
    many = [record(f"a{i}", status="failed", reason=f"r{i:02}") for i in range(20)]
    text = page(Leaderboard([record(), *many]), "t")
    assert "- failed 1: r07" in text
    assert "r08" not in text
    assert "- 12 more, see the csv file" in text


def test_controls_are_one_line() -> None:
    made = [record(seed=seed, null=null) for seed, null in enumerate((0.48, 0.5, 0.55))]
    for one in made:
        one.baselines = {"blind": {"auc": number(0.52)}}
    (line,) = [x for x in page(Leaderboard(made), "t").splitlines() if x.startswith("**Controls**")]
    assert "AUC on null victims 0.510 on average (0.480 to 0.550 over 3 trials of 3 seeds)" in line
    assert "AUC of a classifier of inputs alone 0.520 on average" in line


def test_the_mean_image_stands_beside_reconstructions() -> None:
    made = []
    for attack, error, asked in (("decode", 0.02, 500), ("search", 0.03, 200)):
        one = record(attack, value=error, game="reconstruction")
        one.baselines = {"mean_image": {"mse": number(0.07 if asked == 500 else 0.09)}}
        one.sizes = {"rows": asked}
        made.append(one)
    assert "by decode, the strongest of 2 attacks (less leaks more; the mean image 0.070)" in page(
        Leaderboard(made), "t"
    )


def test_a_page_says_what_a_probe_reads_from_undefended_encoders() -> None:
    assert "linear probe" not in page(Leaderboard([record()]), "t")
    made = [record(attack, "none", seed) for attack in ("loud", "quiet") for seed in range(2)]
    made.append(record("loud", "fog"))
    for one in made:
        one.utility |= {"probe_accuracy": 0.8 + one.seed / 10, "untrained_accuracy": 0.6}
    made[-1].utility["probe_accuracy"] = 0.1  # defended: its test accuracy says what it costs
    assert "mean over seeds: simclr on digits 0.850 (untrained 0.600)." in page(
        Leaderboard(made), "t"
    )


def test_utility_is_that_of_the_victim_of_the_first_game() -> None:
    made = [record("loud", d, accuracy=0.9) for d in ("none", "x")]
    made += [record("share", d, game="property", accuracy=0.6) for d in ("none", "x")]
    assert {row["test accuracy"] for row in shown(made).values()} == {"0.900"}


def test_how_to_reproduce_is_one_command() -> None:
    text = page(Leaderboard([record()]), "t", again=["my suites/a.yaml"], table="a b.csv")
    assert "uv run privbench run 'my suites/a.yaml' --jobs auto" in text.splitlines()
    assert "[a b.csv](a%20b.csv)" in text
    assert "privbench run" not in page(Leaderboard([record()]), "t")


# ---- what cannot stand on one board --------------------------------------------------------------


def test_presets_are_never_mixed() -> None:
    with pytest.raises(BadInputError, match="mix presets cpu, paper"):
        page(Leaderboard([record(), record(preset="paper", seed=1)]), "t")


def test_one_seed_of_two_codes_is_no_two_seeds() -> None:
    old, new = record(), record(value=0.6)
    old.trial, new.trial = "old", "new"
    with pytest.raises(BadInputError, match=r"two results.*remove new\.json or old\.json"):
        page(Leaderboard([old, new]), "t")


def test_results_of_an_unknown_game_are_refused() -> None:
    with pytest.raises(BadInputError, match="plays 'odd', and its result does not say"):
        page(Leaderboard([record(game="odd")]), "t")
    skipped = record(game="odd", status="skipped", reason="no")
    assert "- skipped 1: no" in page(Leaderboard([record(), skipped]), "t")


# ---- one defense --------------------------------------------------------------------------------


def test_attacks_on_one_defense_show_rates_beside_the_headline() -> None:
    made = seeds("loud", "none", [0.6, 0.7, 0.8], tpr=0.2, needs="POSTERIORS")
    made += seeds("shy", "none", [0.65, 0.6, 0.61], needs="LABELS")
    made += seeds("guess", "none", [0.9, 0.8, 0.85], game="attributes", needs="EMBEDDINGS")
    text = page(Leaderboard(made), "T")
    found = tables(text)
    name = "digits, simclr, adaptive adversary"
    heads, *rows = found[f"{name} (membership)"]
    assert heads == ["attack (AUC)", "none", "none: TPR at 1 % FPR"]
    assert [row[0] for row in rows] == ["loud [posteriors]", "shy [labels]", "test accuracy"]
    assert [row[2][:5] for row in rows] == ["0.200", "–", ""]
    heads, *rows = found[f"{name} (attributes of slant)"]
    assert heads == ["attack (accuracy)", "none"]
    assert "its true FPR is" in text
    two = made + seeds("loud", "talos", [0.5, 0.6, 0.6], tpr=0.1)
    assert "TPR at 1 % FPR" not in tables(page(Leaderboard(two), "T"))[name][0]


# ---- the closing lines of a run -----------------------------------------------------------------


def test_a_defense_is_told_with_what_it_lowers_and_costs() -> None:
    made = seeds("loud", "none", [0.8, 0.81, 0.8, 0.79, 0.8], accuracy=0.9)
    made += seeds("shy", "none", [0.6, 0.61, 0.6, 0.59, 0.6], accuracy=0.9)
    made += seeds("loud", "talos", [0.7, 0.7, 0.71, 0.69, 0.7], accuracy=0.88)
    made += seeds("loud", "olympus", [0.79, 0.8, 0.8, 0.79, 0.8], accuracy=0.7)
    [told] = closing(Leaderboard(made))
    assert told == (
        "talos lowers the AUC of loud by 0.100 ± 0.011 and costs 2.0 points of accuracy."
    )


@pytest.mark.parametrize("game", ["membership", "reconstruction"])
def test_the_defense_that_changes_a_leak_most_is_told_and_not_the_first_by_name(game: str) -> None:
    sign = -1 if game == "membership" else 1
    lowered = {"none": 0.0, "a": 0.1, "b": 0.3, "c": 0.2}
    made = [record("loud", defense, seed, 0.5 + sign * by + seed / 100, game=game)
            for seed in range(5) for defense, by in lowered.items()]  # fmt: skip
    (told,) = closing(Leaderboard(made))
    assert told.startswith("b ")


def test_another_attack_that_is_stronger_against_the_defense_is_told() -> None:
    made = seeds("loud", "none", [0.8] * 5) + seeds("shy", "none", [0.6] * 5)
    made += seeds("loud", "talos", [0.6] * 5) + seeds("shy", "talos", [0.75] * 5)
    [told] = closing(Leaderboard(made))
    assert told.startswith("talos lowers the AUC of loud by 0.200")
    assert told.endswith("; strongest against it is shy, 0.750.")


def test_small_changes_are_not_shown_as_zeros() -> None:
    made = seeds("loud", "none", [0.8] * 5, accuracy=0.9)
    made += seeds("loud", "talos", [0.8003] * 5, accuracy=0.9002)
    [told] = closing(Leaderboard(made))
    assert told == (
        "talos changes the AUC of loud by less than 0.001 and changes accuracy by less than 0.1 "
        "points."
    )


@pytest.mark.parametrize("count", [1, 5])
def test_a_defense_that_changes_nothing_raises_nothing(count: int) -> None:
    made = seeds("loud", "none", [0.8] * count) + seeds("loud", "mask", [0.8] * count)
    [told] = closing(Leaderboard(made))
    assert told.startswith("mask leaves the AUC of loud as it is")


def test_what_an_interval_does_not_bear_is_not_said() -> None:
    made = seeds("loud", "none", [0.8, 0.7, 0.75], accuracy=0.9)
    made += seeds("loud", "talos", [0.7, 0.75, 0.7], accuracy=0.9)
    [told] = closing(Leaderboard(made))
    assert told.startswith("no difference shown: talos changes the AUC of loud by -0.033 ± ")
    assert told.endswith("; 3 seeds: draft.")
    costs = seeds("loud", "none", [0.8, 0.81, 0.8]) + [
        record("loud", "talos", seed, 0.6, accuracy=accuracy)
        for seed, accuracy in enumerate((0.8, 0.95, 0.9))
    ]
    [told] = closing(Leaderboard(costs))
    assert "talos lowers the AUC of loud by 0.203" in told
    assert "; its cost, 1.7 ± " in told
    assert "may be none" in told


def test_one_seed_is_a_draft_without_an_interval() -> None:
    [told] = closing(
        Leaderboard([record(value=0.8), record(defense="talos", value=0.7, accuracy=0.92)])
    )
    assert told == (
        "talos lowers the AUC of loud by 0.100 on this seed and gains 2.0 points of accuracy; "
        "1 seed: draft, nothing is shown yet."
    )


def test_every_defense_that_moves_a_leak_is_named_in_either_direction_with_its_cost() -> None:
    changes = {"calm": (-0.1, 0.9), "smooth": (-0.05, 0.7), "loose": (0.08, 0.92), "idle": (0, 0.9)}
    made = []
    for seed, by in enumerate((0.01, -0.01, 0, 0.005, -0.005)):
        made.append(record("loud", "none", seed, 0.7))
        made += [record("loud", name, seed, 0.7 + change + by, accuracy=accuracy)
                 for name, (change, accuracy) in changes.items()]  # fmt: skip
    first, also = closing(Leaderboard(made))
    assert first.startswith("calm lowers the AUC of loud by 0.100")
    half = re.search(r"smooth by 0.050 ± (0.01\d)", also)
    assert half is not None
    assert also == (
        f"the AUC is raised by loose by 0.080 ± {half[1]} (loud; accuracy +2.0 points), "
        f"lowered by smooth by 0.050 ± {half[1]} (loud; accuracy -20.0 points)."
    )
    for few in (1, 2):
        assert len(closing(Leaderboard([one for one in made if one.seed < few]))) == 1
    many = [record("loud", f"some-long-defense-{i}", seed, 0.7 - 0.02 * i + seed / 900)
            for i in range(1, 15) for seed in range(5)]  # fmt: skip
    cut = closing(Leaderboard([*made, *many]))[1]
    assert cut.startswith("the AUC is raised by loose by")
    assert re.search(r", and by \d+ more, see the board\.$", cut)
    assert "lowered by some-long-defense-13 by 0.258" in cut  # the first sentence tells of 14


def test_without_a_defense_the_strongest_attack_is_told() -> None:
    [told] = closing(Leaderboard([record("loud", value=0.7), record("shy", value=0.6)]))
    assert told == (
        "without a defense loud reaches AUC 0.700 [0.650, 0.750], 0.500 on the null victim; "
        "1 seed: draft, nothing is shown yet."
    )
    [told] = closing(Leaderboard([record("loud", value=0.52)]))
    assert told.startswith("no leak shown: without a defense loud has AUC 0.520 [0.470, 0.570]")
    [told] = closing(Leaderboard([record("loud", value=0.4)]))
    assert "has AUC 0.400 [0.350, 0.450], 0.500 on the null victim, below chance: are its" in told


def test_several_questions_are_told_apart_and_failures_tell_nothing() -> None:
    made = [record("loud"), record("guess", game="attributes", value=0.9)]
    made += [record("loud", target="moco", value=0.6)]
    assert [told.partition(": ")[0] for told in closing(Leaderboard(made))] == [
        "simclr on digits, membership", "simclr on digits, attributes of slant",
        "moco on digits, membership",
    ]  # fmt: skip
    many = [record("loud", target=f"t{i}") for i in range(6)]
    assert closing(Leaderboard(many))[-1] == "2 more findings are on the board."
    assert closing(Leaderboard([record(status="failed", reason="no")])) == []


def test_a_lower_number_may_be_the_stronger_attack() -> None:
    made = [record("draw", game="reconstruction", value=0.01),
            record("draw", "ars", game="reconstruction", value=0.05, accuracy=0.8)]  # fmt: skip
    [told] = closing(Leaderboard(made))
    assert told == (
        "ars raises the MSE of draw by 0.040 on this seed and costs 10.0 points of accuracy; "
        "1 seed: draft, nothing is shown yet."
    )


def test_methods_with_the_same_reason_share_a_line() -> None:
    def skipped(attack: str, reason: str, **more: Any) -> Record:
        return record(attack, status="skipped", reason=reason, **more)

    told = troubles(Leaderboard([
        record(), skipped("shy", "shy needs WEIGHTS"), skipped("bold", "bold needs WEIGHTS"),
        skipped("bold", "bold needs WEIGHTS", seed=1), skipped("odd", "odd needs rows"),
        skipped("x", "talos needs a view", defense="none+talos"),
        skipped("y", "talos needs a view", defense="talos"), skipped("z", "zebra needs grass"),
    ]))  # fmt: skip
    assert [line for line in told if line.startswith("-")] == [
        "- skipped 2: needs WEIGHTS: bold, shy",
        "- skipped 2: talos needs a view",
        "- skipped 1: zebra needs grass",
        "- skipped 1: odd needs rows",
    ]
