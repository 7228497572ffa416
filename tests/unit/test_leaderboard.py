"""Boards: a pure function of results, the same bytes for the same results."""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privbench.boards.leaderboard import cells, headings, render, summary
from privbench.boards.records import CellRecord, Cost, MethodRecord, Number, Record, read, read_all
from privbench.cli.console import tables
from privbench.errors import BadInputError, PluginError
from privbench.games import audit
from privbench.games.board import Board, Column
from privbench.games.catalog import GAMES
from privbench.games.game import new_game

GOLDEN = Path(__file__).parents[1] / "golden" / "board.md"


def method(name: str, **fields: Any) -> MethodRecord:
    inside = ", ".join(f"{k}={v}" for k, v in fields.items())
    return MethodRecord(
        name=name, label=f"{name}({inside})" if inside else name, version=1, fields=fields
    )


def record(
    attack: str = "loud", defense: str = "none", seed: int = 0, *, auc: float | None = 0.7,
    status: Any = "ok", reason: str = "", game: str = "membership", protects: tuple[str, ...] = (),
    preset: str = "quick", protocol: str = "default", members: int = 80, trial: str = "",
    sensitive: tuple[str, ...] = ("slant",),
) -> Record:  # fmt: skip
    cell = CellRecord(
        dataset=method("digits"), protocol={"name": protocol, "members": members},
        target=method("simclr"), defenses=[method(defense)], adversary="adaptive",
        attack=method(attack), game=game, sensitive=list(sensitive), preset=preset,
        access="LABELS", protects=list(protects),
    )  # fmt: skip
    name = trial or f"{attack}-{defense}-{seed}-{game}-{protocol}-{members}-{'.'.join(sensitive)}"
    made = Record(
        trial=name, cell=cell, board=GAMES[game].board if game in GAMES else None, seed=seed,
        status=status, reason=reason, phase="encoder",
    )  # fmt: skip
    if status == "ok" and game == "membership":
        few = Number(refused="80 nonmembers are too few")
        made.metrics = {"auc": Number(value=auc, low=0.6, high=0.8), "tpr_at_fpr_0.001": few}
        made.controls = {"null": {"auc": Number(value=0.5, low=0.4, high=0.6)}}
    elif status == "ok":
        made.metrics = {"accuracy": Number(value=auc, low=0.6, high=0.8)}
    made.utility = {"test_accuracy": 0.9 + seed / 100, "gap": 0.1}
    made.updates = {"encoder": 300}
    made.cost = Cost(seconds=1.0, seconds_training=2.0, queries_per_sample=10)
    return made


def everything() -> list[Record]:
    made = [record(seed=seed, auc=0.6 + seed / 10) for seed in range(3)]
    made += [record(defense="talos", protects=("attributes",), seed=seed) for seed in range(2)]
    made += [
        record("guess", defense, game="attributes", protects=protects)
        for defense, protects in (("none", ()), ("talos", ("attributes",)))
    ]
    made += [
        record("white", seed=seed, status="skipped", reason="white needs WEIGHTS | more")
        for seed in (1, 0)
    ]
    made.append(record("bad", status="failed", reason="ValueError: first\nsecond"))
    return made


def table(text: str, heading: str) -> list[list[str]]:
    """Rows of the table below a heading, as cells; escaped pipes are no column."""
    lines = text.split(f"## {heading}\n\n")[1].split("\n\n", maxsplit=1)[0].splitlines()
    return [
        [c.strip() for c in line.replace("\\|", "¦").strip("|").split("|")]
        for line in lines
    ]  # fmt: skip


def test_board_is_the_golden_one() -> None:
    assert render(everything(), "Golden") == GOLDEN.read_text(encoding="utf-8")


def test_order_of_results_does_not_matter() -> None:
    want = render(everything())
    for seed in range(5):
        shuffled = everything()
        random.Random(seed).shuffle(shuffled)
        assert render(shuffled) == want


def test_seeds_are_aggregated_by_hand() -> None:
    text = summary([Number(value=v, low=0, high=1) for v in (0.6, 0.7, 0.8)])
    half = 4.302652729911275 * 0.1 / math.sqrt(3)  # t quantile for 2 degrees of freedom
    assert text == f"0.700 [{0.7 - half:.3f}, {0.7 + half:.3f}]" == "0.700 [0.452, 0.948]"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "–"),
        ([None, None], "–"),
        ([Number(value=0.5, low=0.25, high=0.75)], "0.500"),  # one seed has no interval
        ([Number(value=0.5)], "0.500"),
        ([Number(refused="too few")], "refused"),
        ([Number(value=0.5, low=0, high=1), Number(refused="too few")], "refused"),
    ],
)
def test_a_number_that_is_not_there(numbers: list[Number | None], text: str) -> None:
    assert summary(numbers) == text


def test_intervals_are_cut_at_the_bounds_of_the_metric() -> None:
    decibels = [Number(value=v, low=v, high=v) for v in (12.1, 12.4, 12.9)]
    assert summary(decibels, (0.0, math.inf)) == "12.467 [11.463, 13.471]"
    assert summary([Number(value=v, low=0, high=1) for v in (0.1, 0.9)]) == "0.500 [0.000, 1.000]"


def test_tables_are_well_formed_and_rows_in_order() -> None:
    mine = [record("a|b", "none"), record("a|b", "alpha"), record("a|b", "talos\nx")]
    rows = table(render(mine), "Membership")
    assert {len(row) for row in rows} == {len(headings("membership", everything()))}
    assert [row[headings("membership", everything()).index("defense")] for row in rows[2:]] == [
        "none", "alpha", "talos x",
    ]  # fmt: skip
    assert rows[2][headings("membership", everything()).index("attack")] == "a¦b"


def test_rows_outside_the_claim_are_marked() -> None:
    rows = table(render(everything()), "Membership")
    at = headings("membership", everything()).index("defense")
    assert [row[at] for row in rows[2:]] == ["none", "talos °"]
    rows = table(render(everything()), "Attributes")
    assert [row[headings("attributes", everything()).index("defense")] for row in rows[2:]] == [
        "none",
        "talos",
    ]


def test_utility_cost_and_counts() -> None:
    rows = cells("membership", [record(seed=seed) for seed in (0, 1)])
    got = dict(zip(headings("membership", everything()), rows[0], strict=True))
    half = 12.706204736432095 * 0.01 / 2  # t quantile for 1 degree of freedom
    want = f"0.905 [{0.905 - half:.3f}, {0.905 + half:.3f}]"
    assert (got["seeds"], got["test accuracy"]) == ("2 (draft)", want)
    assert got["encoder updates"] == "300"
    assert (got["queries per sample"], got["seconds"], got["blind AUC"]) == ("10", "3.0", "–")
    assert got["TPR at 0.1 % FPR"] == "refused"


def test_skipped_and_failed_are_listed_once_with_their_reason() -> None:
    text = render(everything())
    cell = "white × none × simclr × digits (adaptive)"
    want = f"- {cell}, seeds 0, 1: white needs WEIGHTS \\| more"
    assert want in text.splitlines()
    assert "(adaptive), seeds 0: ValueError: first second" in text
    assert text.index("## Skipped") < text.index("## Failed")


def test_presets_are_never_mixed() -> None:
    with pytest.raises(BadInputError, match="mix presets paper, quick"):
        render([record(), record(preset="paper", seed=1)])


@pytest.mark.parametrize(
    "other",
    [
        {"protocol": "custom", "members": 40},
        {"protocol": "custom", "sensitive": ("weight",)},
    ],
)
def test_cells_that_read_the_same_are_no_seeds_of_each_other(other: dict[str, Any]) -> None:
    rows = cells("membership", [record(protocol="custom"), record(**other)])
    at = headings("membership", everything()).index("seeds")
    assert [row[at] for row in rows] == ["1 (draft, no interval)"] * 2
    assert rows[0][0] != rows[1][0]
    assert "digits (custom) (" in rows[0][0]


def test_one_seed_of_two_codes_is_no_two_seeds() -> None:
    with pytest.raises(BadInputError, match=r"two results.*remove new\.json or old\.json"):
        render([record(trial="old"), record(trial="new", auc=0.6)])


def test_results_are_written_read_and_merged_in_any_order(tmp_path: Path) -> None:
    good, bad = record(), record(status="failed", reason="out of memory")
    good.write(tmp_path / "a")
    bad.write(tmp_path / "b")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert read_all(folders) == read_all(folders[::-1]) == [good]
    assert list((tmp_path / "a").iterdir()) == [good.path(tmp_path / "a")]
    assert read(good.path(tmp_path / "a")).digest == good.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("\x00\xff", "it is not JSON"),
        ("[]", "the file: "),
        ("{}", "trial: field required"),
        ('{"schema_version": 99, "new": 1}', "has schema 99, but this privbench reads 1"),
    ],
)
def test_a_file_that_is_no_result(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="latin-1")
    with pytest.raises(BadInputError, match=message):
        read_all([tmp_path])


def test_digest_forgets_cost_and_provenance() -> None:
    made, other = record(), record()
    other.cost = Cost(seconds=99)
    other.provenance = {"commit": "x"}
    assert made.digest == other.digest
    assert record(auc=0.71).digest != made.digest


def test_a_board_needs_neither_torch_nor_games() -> None:
    code = (
        "import sys, privbench.boards.leaderboard; "
        "assert not {'torch', 'privbench.games.catalog', 'privbench.games.game'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_game_has_headings() -> None:
    for game in GAMES:
        names = headings(game, [record(game=game)])
        assert len(set(names)) == len(names)


OWN = Board(
    (
        Column("error | x", "metrics", "error", high=None),
        Column("guess", "baselines.guess", "error", high=None),
        Column("bound", "metrics", "bound", high=None, seeds="smallest", optional=True),
    ),
    higher=False, tells=("phase",), place=1,
)  # fmt: skip


def own(attack: str, defense: str, errors: list[float]) -> list[Record]:
    """Results of a third party's game, one per seed."""
    made = []
    for seed, error in enumerate(errors):
        one = record(attack, defense, seed, game="own")
        one.board = OWN
        one.metrics = {"error": Number(value=error)}
        one.baselines = {"guess": {"error": Number(value=7.0)}}
        made.append(one)
    return made


def test_a_game_that_this_version_does_not_know_is_shown_as_its_results_say(tmp_path: Path) -> None:
    made = own("a", "none", [3.0, 5.0]) + own("b", "none", [1.0, 2.0])
    made += own("a", "mask", [8.0, 9.0]) + own("b", "mask", [8.5, 9.0]) + everything()
    for one in made:
        one.write(tmp_path)
    text = render(read_all([tmp_path]))
    rows = table(text, "Own")
    assert rows[0][3] == "phase"
    assert rows[0][7:9] == ["error ¦ x", "guess"]  # no result has a bound
    assert [row[7].split()[0] for row in rows[2:]] == ["4.000", "8.500", "1.500", "8.750"]
    assert "## Own" in text
    assert text.index("## Membership") < text.index("## Attributes") < text.index("## Own")
    (grid,) = overviews(text.replace("\\|", "¦")).values()
    row = dict(zip(grid[0], grid[2], strict=True))  # a lower error is a stronger attack
    assert row["a (error ¦ x)"] == "4.000 (2 of 3 seeds)"
    assert row["b (error ¦ x)"] == "**1.500 (2 of 3 seeds)**"
    for one in made:
        if one.cell.game == "own":
            one.metrics["bound"] = Number(value=float(one.seed + 2))
    assert table(render(made), "Own")[2][9] == "2.000"


def test_a_game_of_a_taken_name_is_refused() -> None:
    class Mine(type(GAMES["membership"])):  # type: ignore[misc]
        name = "membership"

    with pytest.raises(PluginError, match="has the name of the game of"):
        new_game(Mine)


def test_columns_of_two_versions_of_a_game_stand_side_by_side() -> None:
    old, new = own("a", "none", [3.0])[0], own("b", "none", [4.0])[0]
    new.board = Board((*OWN.columns[:2], Column("more", "metrics", "more")), place=1)
    new.metrics["more"] = Number(value=0.5)
    for made in ([old, new], [new, old]):
        assert headings("own", made)[7:10] == ["error | x", "guess", "more"]


def test_claimed_and_audited_epsilons_have_columns_where_somebody_claims_one() -> None:
    plain = record(defense="none")
    assert "claimed ε" not in headings("membership", [plain])
    assert "claimed ε" not in render([plain])
    claims = []
    for seed, found in enumerate((1.5, 0.5)):
        made = record(defense="dp-sgd", seed=seed)
        made.metrics |= {
            "claimed_epsilon": Number(value=8.0, low=8.0, high=8.0),
            "audited_epsilon": Number(value=found, low=found, high=found),
            "audit_ceiling": Number(value=3.5, low=3.5, high=3.5),
        }
        claims.append(made)
    names = headings("membership", [plain, *claims])
    rows = [dict(zip(names, row, strict=True)) for row in cells("membership", [plain, *claims])]
    assert [row["claimed ε"] for row in rows] == ["–", "8.000"]
    # bounds hold one by one; their mean is a bound of nothing
    assert rows[1]["audited ε"] == "0.500"
    assert rows[1]["audit's ceiling"] == "3.500"
    assert "never prove one" in render(claims)
    claims[0].metrics["audited_epsilon"] = Number(refused="another adjacency")
    assert "refused" in cells("membership", claims)[0]


def test_the_guesses_of_all_seeds_count_together() -> None:
    made = [record(defense="dp-sgd", seed=seed) for seed in range(3)]
    for seed, one in enumerate(made):
        one.claims = [{"epsilon": 1.9 + seed / 10, "delta": 1e-5, "phase": "encoder"}]
        counts = {"audit_coins": 200, "audit_made": 50, "audit_right": 45,
                  "audit_made_most": 160, "audit_right_most": 120}  # fmt: skip
        alone = audit.assessed(one.claims, [audit.counted(counts)])
        one.metrics |= {name: Number.of(metric) for name, metric in alone.items()}
    row = dict(zip(headings("membership", made), cells("membership", made)[0], strict=True))
    assert row["claimed ε"] == "2.100"
    found = audit.bound(audit.Guesses(600, 150, 135), 1e-5)
    assert row["audited ε"] == f"{found:.3f}"
    assert float(row["audited ε"]) > max(one.metrics["audited_epsilon"].value or 0 for one in made)
    assert row["audit's ceiling"] == f"{audit.bound(audit.Guesses(600, 150, 150), 1e-5):.3f}"
    assert "claimed μ" not in row  # no claim has a profile
    assert 0 < float(row["p of the claim"]) < 1
    # a claim above what a perfect attack would show
    for one in made:
        one.claims = [{"epsilon": 8.0, "delta": 1e-5, "phase": "encoder"}]
    row = dict(zip(headings("membership", made), cells("membership", made)[0], strict=True))
    assert row["audited ε"] == f"{found:.3f}, not testable (ceiling below claim)"


@pytest.mark.parametrize(("guarantee", "column"), [(True, "claimed ε"), (False, "nominal ε")])
def test_a_claim_of_a_refused_audit_is_the_largest_and_names_what_it_covers(
    guarantee: bool, column: str
) -> None:
    def claimed(covered: str, trained: str = "encoder+classifier") -> str:
        made = [record(defense="dp", seed=seed) for seed in range(2)]
        for one, epsilon in zip(made, (1.0, 3.0), strict=True):
            one.phase = trained
            one.claims = [{"epsilon": epsilon, "phase": covered, "guarantee": guarantee}]
            one.metrics["claimed_epsilon"] = Number(value=epsilon, low=epsilon, high=epsilon)
            one.metrics["audited_epsilon"] = Number(refused="members also train the encoder")
        row = dict(zip(headings("membership", made), cells("membership", made)[0], strict=True))
        assert row["audited ε"] == "refused"
        return row[column]

    assert claimed("encoder+classifier") == "3.000"
    assert claimed("classifier+encoder") == "3.000"
    assert claimed("classifier", "classifier") == "3.000"
    assert claimed("classifier") == "3.000 (classifier only)"
    assert claimed("") == "3.000 (no phase)"


def test_canaries_have_columns_where_there_are_some() -> None:
    plain, planted = record(), record("lira", protocol="canaries")
    assert "canaries' AUC" not in headings("membership", [plain])
    planted.metrics["loo_auc"] = Number(value=0.9, low=0.8, high=0.95)
    planted.metrics["loo_tpr_at_fpr_0.001"] = Number(refused="120 are too few")
    names = headings("membership", [plain, planted])
    rows = [dict(zip(names, row, strict=True)) for row in cells("membership", [plain, planted])]
    assert {row["canaries' AUC"] for row in rows} == {"–", "0.900"}
    assert {row["canaries' TPR at 0.1 % FPR"] for row in rows} == {"–", "refused"}
    assert "canaries' TPR at 1 % FPR" not in names
    planted.metrics["loo_tpr_at_fpr_0.01"] = Number(value=0.3, low=0.2, high=0.4)
    names = headings("membership", [planted])
    (row,) = cells("membership", [planted])
    assert row[names.index("canaries' TPR at 1 % FPR")] == "0.300"
    assert "leave-one-out" in render([planted])


def test_a_board_says_what_a_probe_reads_from_undefended_encoders() -> None:
    assert "linear probe" not in render([record()])
    made = [record(attack, "none", seed) for attack in ("loud", "quiet") for seed in range(2)]
    made.append(record("loud", "fog"))
    for one in made:
        one.utility |= {"probe_accuracy": 0.8 + one.seed / 10, "untrained_accuracy": 0.6}
    made[-1].utility["probe_accuracy"] = 0.1  # defended: its test accuracy says what it costs
    line = "mean over seeds: simclr on digits 0.850 (untrained 0.600)."
    text = render(made)
    assert line in text
    random.Random(0).shuffle(made)
    assert render(made) == text


def recast(made: Record, **fields: Any) -> Record:
    """The same result of a cell with these fields."""
    return made.model_copy(update={"cell": made.cell.model_copy(update=fields)})


def overviews(text: str) -> dict[str, list[list[str]]]:
    """Heading -> rows of its table, the heading row first and without the ruler."""
    part = text.split("## Overview\n\n### ")[1].split("\n\nThe overview shows", maxsplit=1)[0]
    tables = [one.split("\n\n") for one in part.split("\n\n### ")]
    return {
        name: [[c.strip() for c in line.strip("|").split("|")] for line in body.splitlines()]
        for name, body in tables
    }


def test_the_overview_has_defenses_down_and_attacks_across() -> None:
    made = [record("loud", seed=seed, auc=0.6 + seed / 10) for seed in range(3)]
    made += [record("shy", auc=0.75), record("shy", "mask", auc=0.55)]
    made += [record("loud", "mask", status="skipped", reason="no")]
    made += [record("guess", d, game="attributes", auc=0.4) for d in ("none", "mask")]
    (name, rows), *others = overviews(render(made)).items()
    assert (name, others) == ("digits, simclr, adaptive adversary, draft (3 of 5 seeds)", [])
    assert rows[0] == [
        "defense", "loud (AUC)", "shy (AUC)", "guess [slant] (accuracy)",
        "strongest, held out (AUC)", "test accuracy",
    ]  # fmt: skip
    # Utility is a seed's, not an attack's: .90, .91 and .92, however many attacks seed 0 had.
    assert rows[2] == [
        "none", "0.700", "**0.750 (1 of 3 seeds)**", "0.400 (1 of 3 seeds)",
        "0.700 [0.452, 0.948] loud", "0.910 [0.885, 0.935]",
    ]  # fmt: skip
    assert rows[3] == [
        "mask", "skipped", "**0.550 (1 of 3 seeds)**", "0.400 (1 of 3 seeds)", "–", "0.900",
    ]  # fmt: skip
    assert len(rows) == 4


def test_one_unmarked_attack_is_its_own_choice() -> None:
    made = [record(attack, defense, seed) for attack in ("loud", "quiet")
            for defense in ("none", "fog") for seed in range(3)]  # fmt: skip
    for one in made:
        one.flags = ["mad"] * (one.cell.attack.name == "loud")
    (rows,) = overviews(render(made)).values()
    place = [i for i, text in enumerate(rows[0]) if text.startswith("strongest, held out")]
    assert [[row[i] for i in place] for row in rows[2:]] == [["0.700 [0.700, 0.700] quiet"]] * 2
    # a game with one attack has nothing to choose from: its column says the same
    alone = [*made, *(record("guess", d, s, game="attributes") for d in ("none", "fog")
                      for s in range(3))]  # fmt: skip
    (rows,) = overviews(render(alone)).values()
    assert sum(text.startswith("strongest, held out") for text in rows[0]) == 1


def test_a_positive_control_is_no_defense_and_never_ranked() -> None:
    made = [record(a, d) for a in ("loud", "shy") for d in ("none", "mask")]
    for attack, control, auc in (("loud", "leak-a", 0.99), ("shy", "leak-b", 0.98)):
        made.append(recast(record(attack, control, auc=auc), control=True))
    text = render(made)
    (rows,) = overviews(text).values()
    assert [row[0] for row in rows[2:]] == ["none", "mask"]
    assert "loud (0.990), shy (0.980)" in text.split("## Positive controls")[1]
    assert not any("leak" in cell for row in table(text, "Membership") for cell in row)
    assert "ositive control" not in render(everything())


def test_the_overview_tells_settings_apart_only_where_it_must() -> None:
    made = []
    for seed, bound in enumerate((1, 2)):
        for attack in ("loud", "shy"):
            fields = {"defenses": [method("ars", bound=bound)], "attack": method(attack, k=8)}
            made.append(recast(record(attack, seed=seed), **fields))
    (rows,) = overviews(render(made)).values()
    assert [row[0] for row in rows[2:]] == ["ars(bound=1)", "ars(bound=2)"]
    assert rows[0][1] == "loud (AUC)"
    other = recast(made[0], protocol={"name": "default", "members": 3})
    (rows,) = overviews(render([*made, other])).values()
    assert rows[2][1] == "several"  # another split under the same name is no seed of this one


def test_a_naive_overview_repeats_what_is_undefended() -> None:
    made = [record(a, d) for a in ("loud", "shy") for d in ("none", "mask")]
    for attack, auc in (("loud", 0.9), ("shy", 0.8)):
        made.append(recast(record(attack, "mask", auc=auc), adversary="naive"))
    rows = overviews(render(made))["digits, simclr, naive adversary, draft (1 of 5 seeds)"]
    assert [row[:3] for row in rows[2:]] == [
        ["none", "**0.700**", "**0.700**"], ["mask", "**0.900**", "0.800"],
    ]  # fmt: skip


def test_the_overview_compares_attacks_on_one_attribute_only() -> None:
    made = [
        record(attack, game="attributes", auc=auc, defense=d, sensitive=(attribute,))
        for d in ("none", "mask")
        for attack, attribute, auc in (
            ("guess", "race", 0.4), ("ask", "race", 0.45), ("guess", "gender", 0.6),
        )
    ]  # fmt: skip
    for seed, accuracy in ((0, 0.9), (1, 0.5)):  # another attribute may make another victim
        made[seed].utility["test_accuracy"] = accuracy
    (rows,) = overviews(render(made)).values()
    assert rows[0][1:4] == [
        "ask [race] (accuracy)", "guess [gender] (accuracy)", "guess [race] (accuracy)",
    ]  # fmt: skip
    assert rows[2] == ["none", "**0.450**", "0.600", "0.400", "several"]
    assert rows[3] == ["mask", "**0.450**", "0.600", "0.400", "0.900"]


def test_the_overview_shows_the_mean_image_beside_reconstructions() -> None:
    made = []
    for defense, errors in (("none", (0.02, 0.03)), ("mask", (0.15, 0.12))):
        for seed in range(2):
            for attack, error, asked in zip(("decode", "search"), errors, (500, 200), strict=True):
                one = record(attack, defense, seed, game="reconstruction")
                one.metrics = {"mse": Number(value=error)}
                one.baselines = {
                    "mean_image": {"mse": Number(value=0.07 if asked == 500 else 0.09)}
                }
                one.sizes = {"rows": asked}
                made.append(one)
    (rows,) = overviews(render(made)).values()
    assert rows[0][1:4] == ["decode (MSE)", "search (MSE)", "mean image (MSE)"]
    assert rows[2][1:4] == ["**0.020**", "0.030", "0.070"]
    assert rows[3][1:4] == ["0.150", "0.120", "**0.070**"]
    one_attack = [r for r in made if r.cell.attack.name == "decode"]
    others = [record("loud", d, seed) for d in ("none", "mask") for seed in range(2)]
    (rows,) = overviews(render(one_attack + others)).values()
    assert rows[3][1:4] == ["0.700", "0.150", "**0.070**"]


def test_a_list_gets_no_overview() -> None:
    assert "Overview" not in render([record("loud"), record("loud", "mask")])
    assert "Overview" not in render([record("loud"), record("shy")])


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers() -> None:
    from rich.console import Console

    records = [record(attack="metric-correctness", seed=seed) for seed in range(2)]

    def shown(width: int) -> str:
        console = Console(width=width, record=True, file=io.StringIO())
        for table in tables(records, width):
            console.print(table)
        return console.export_text()

    wide, narrow = shown(120), shown(60)
    assert "blind" in wide
    assert "blind" not in narrow
    assert "0.700" in narrow
    assert max(map(len, narrow.splitlines())) <= 60


def test_an_attack_that_decides_elsewhere_is_marked() -> None:
    rows = [record("at-1-percent"), record("balanced")]
    for row in rows:
        row.metrics["balanced_accuracy"] = Number(value=0.6, low=0.5, high=0.7)
    cell = rows[0].cell.model_copy(update={"decides_at": "FPR 0.01"})
    rows[0] = rows[0].model_copy(update={"cell": cell})
    first, second = table(render(rows), "Membership")[2:]
    place = headings("membership", rows).index("balanced accuracy")
    assert (first[place], second[place]) == ("0.600 ◊", "0.600")
    assert "◊" not in "".join(first[:place] + first[place + 1 :])
    assert "marked ◊ is not comparable" in render(rows)
    assert "◊" not in render(rows[1:])
    del rows[0].metrics["balanced_accuracy"]
    assert "◊" not in render(rows)
