"""Results and their rows: what is aggregated over seeds, as a terminal shows it."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

from privbench.api.console import tables
from privbench.boards.board import Leaderboard
from privbench.boards.rows import body, headings, summary
from privbench.ground.columns import Board, Column
from privbench.ground.errors import BadInputError, PluginError
from privbench.measure.games import audit
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.game import new_game
from privbench.results.files import read, read_all
from privbench.results.record import AdversaryRecord, CellRecord, Cost, MethodRecord, Number, Record
from privbench.results.seeds import series

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
        target=method("simclr"), defenses=[method(defense)],
        knows=AdversaryRecord(), adversary="adaptive",
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


def test_seeds_are_aggregated_by_hand() -> None:
    text = summary(series(enumerate(Number(value=v) for v in (0.6, 0.7, 0.8))))
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
    assert summary(series(enumerate(numbers))) == text


def test_intervals_are_cut_at_the_bounds_of_the_metric() -> None:
    decibels = series(enumerate(Number(value=v) for v in (12.1, 12.4, 12.9)))
    assert summary(decibels, 0.0, None) == "12.467 [11.463, 13.471]"
    shares = series(enumerate(Number(value=v) for v in (0.1, 0.5, 0.9)))
    assert summary(shares) == "0.500 [0.000, 1.000]"


def test_utility_cost_and_counts() -> None:
    rows = body("membership", Leaderboard([record(seed=seed) for seed in range(3)]))
    got = dict(zip(headings("membership", Leaderboard(everything())), rows[0], strict=True))
    half = 4.302652729911275 * 0.01 / math.sqrt(3)  # t quantile for 2 degrees of freedom
    want = f"0.910 [{0.91 - half:.3f}, {0.91 + half:.3f}]"
    assert (got["seeds"], got["test accuracy"]) == ("3 (draft)", want)
    assert got["encoder updates"] == "300"
    assert (got["queries per sample"], got["seconds"], got["blind AUC"]) == ("10", "3.0", "–")
    assert got["TPR at 0.1 % FPR"] == "refused"


def test_columns_of_canaries_are_left_out_where_there_are_none() -> None:
    def told(made: Record) -> list[str]:
        return [head for head in headings("membership", Leaderboard([made])) if "canaries" in head]

    assert told(record()) == []
    made = record()
    made.metrics |= {
        name: Number(value=0.5, low=0.4, high=0.6)
        for name in ("loo_auc", "loo_tpr_at_fpr_0.01", "loo_tpr_at_fpr_0.001")
    }
    assert told(made)[0] == "canaries' AUC"
    assert told(made)[-1] == "canaries' TPR at 0.1 % FPR"


def test_what_is_guessed_stands_behind_the_attack() -> None:
    def attack(game: str) -> str:
        board = Leaderboard([record(game=game, sensitive=("slant", "weight"))])
        (row,) = body(game, board)
        return row[headings(game, board).index("attack")]

    assert attack("attributes") == "loud [slant, weight]"
    assert attack("membership") == "loud"


@pytest.mark.parametrize(
    "other",
    [
        {"protocol": "custom", "members": 40},
        {"protocol": "custom", "sensitive": ("weight",)},
    ],
)
def test_cells_that_read_the_same_are_no_seeds_of_each_other(other: dict[str, Any]) -> None:
    rows = body("membership", Leaderboard([record(protocol="custom"), record(**other)]))
    at = headings("membership", Leaderboard(everything())).index("seeds")
    assert [row[at] for row in rows] == ["1 (draft, no interval)"] * 2
    assert rows[0][0] != rows[1][0]
    assert "digits (custom) (" in rows[0][0]


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
        ('{"schema_version": 99, "new": 1}', "has schema 99, but this privbench reads 3"),
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


def test_every_game_has_headings() -> None:
    for game in GAMES:
        names = headings(game, Leaderboard([record(game=game)]))
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
        assert headings("own", Leaderboard(made))[7:10] == ["error | x", "guess", "more"]


def test_claimed_and_audited_epsilons_have_columns_where_somebody_claims_one() -> None:
    plain = record(defense="none")
    assert "claimed ε" not in headings("membership", Leaderboard([plain]))
    claims = []
    for seed, found in enumerate((1.5, 0.5)):
        made = record(defense="dp-sgd", seed=seed)
        made.metrics |= {
            "claimed_epsilon": Number(value=8.0, low=8.0, high=8.0),
            "audited_epsilon": Number(value=found, low=found, high=found),
            "audit_ceiling": Number(value=3.5, low=3.5, high=3.5),
        }
        claims.append(made)
    names = headings("membership", Leaderboard([plain, *claims]))
    rows = [
        dict(zip(names, row, strict=True))
        for row in body("membership", Leaderboard([plain, *claims]))
    ]
    assert [row["claimed ε"] for row in rows] == ["–", "8.000"]
    # bounds hold one by one; their mean is a bound of nothing
    assert rows[1]["audited ε"] == "0.500"
    assert rows[1]["audit's ceiling"] == "3.500"
    claims[0].metrics["audited_epsilon"] = Number(refused="another adjacency")
    assert "refused" in body("membership", Leaderboard(claims))[0]


def test_the_guesses_of_all_seeds_count_together() -> None:
    made = [record(defense="dp-sgd", seed=seed) for seed in range(3)]
    for seed, one in enumerate(made):
        one.claims = [
            {"epsilon": 1.9 + seed / 10, "delta": 1e-5, "phase": "encoder", "guarantee": True}
        ]
        counts = {"audit_coins": 200, "audit_made": 50, "audit_right": 45,
                  "audit_made_most": 160, "audit_right_most": 120}  # fmt: skip
        alone = audit.assessed(one.claims, [audit.counted(counts)])
        one.metrics |= {name: Number.of(metric) for name, metric in alone.items()}
    row = dict(
        zip(
            headings("membership", Leaderboard(made)),
            body("membership", Leaderboard(made))[0],
            strict=True,
        )
    )
    assert row["claimed ε"] == "2.100"
    found = audit.bound(audit.Guesses(600, 150, 135), 1e-5)
    assert row["audited ε"] == f"{found:.3f}"
    assert float(row["audited ε"]) > max(one.metrics["audited_epsilon"].value or 0 for one in made)
    assert row["audit's ceiling"] == f"{audit.bound(audit.Guesses(600, 150, 150), 1e-5):.3f}"
    assert "claimed μ" not in row  # no claim has a profile
    assert 0 < float(row["p of the claim"]) < 1
    # a claim above what a perfect attack would show
    for one in made:
        one.claims = [{"epsilon": 8.0, "delta": 1e-5, "phase": "encoder", "guarantee": True}]
    row = dict(
        zip(
            headings("membership", Leaderboard(made)),
            body("membership", Leaderboard(made))[0],
            strict=True,
        )
    )
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
        row = dict(
            zip(
                headings("membership", Leaderboard(made)),
                body("membership", Leaderboard(made))[0],
                strict=True,
            )
        )
        assert row["audited ε"] == "refused"
        return row[column]

    assert claimed("encoder+classifier") == "3.000"
    assert claimed("classifier+encoder") == "3.000"
    assert claimed("classifier", "classifier") == "3.000"
    assert claimed("classifier") == "3.000 (classifier only)"
    assert claimed("") == "3.000 (no phase)"


def test_canaries_have_columns_where_there_are_some() -> None:
    plain, planted = record(), record("lira", protocol="canaries")
    assert "canaries' AUC" not in headings("membership", Leaderboard([plain]))
    planted.metrics["loo_auc"] = Number(value=0.9, low=0.8, high=0.95)
    planted.metrics["loo_tpr_at_fpr_0.001"] = Number(refused="120 are too few")
    names = headings("membership", Leaderboard([plain, planted]))
    rows = [
        dict(zip(names, row, strict=True))
        for row in body("membership", Leaderboard([plain, planted]))
    ]
    assert {row["canaries' AUC"] for row in rows} == {"–", "0.900"}
    assert {row["canaries' TPR at 0.1 % FPR"] for row in rows} == {"–", "refused"}
    assert "canaries' TPR at 1 % FPR" not in names
    planted.metrics["loo_tpr_at_fpr_0.01"] = Number(value=0.3, low=0.2, high=0.4)
    names = headings("membership", Leaderboard([planted]))
    (row,) = body("membership", Leaderboard([planted]))
    assert row[names.index("canaries' TPR at 1 % FPR")] == "0.300"


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers() -> None:
    from rich.console import Console

    records = [record(attack="metric-correctness", seed=seed) for seed in range(2)]

    def shown(width: int) -> str:
        console = Console(width=width, record=True, file=io.StringIO())
        for table in tables(Leaderboard(records), width):
            console.print(table)
        return console.export_text()

    wide, narrow = shown(120), shown(60)
    assert "blind" in wide
    assert "blind" not in narrow
    assert "0.700" in narrow
    assert max(map(len, narrow.splitlines())) <= 60
