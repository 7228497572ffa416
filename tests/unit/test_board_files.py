"""What stands beside a page: the csv file with all numbers, and the figure of the front."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from privbench.boards import files
from privbench.boards.board import Leaderboard
from privbench.boards.csv_table import table
from privbench.boards.files import write_board
from privbench.boards.front import best, drawable, front
from privbench.boards.panel import DefenseRow
from privbench.measure.games import audit
from privbench.measure.games.catalog import GAMES
from privbench.results.record import (
    AdversaryRecord,
    CellRecord,
    MethodRecord,
    Number,
    Record,
    StrengthRecord,
)

if TYPE_CHECKING:
    from pathlib import Path


def method(name: str, **fields: Any) -> MethodRecord:
    return MethodRecord(name=name, label=name, version=1, fields=fields)


def number(value: float) -> Number:
    return Number(value=value, low=value - 0.05, high=value + 0.05)


def record(
    attack: str = "loud", defense: str = "none", seed: int = 0, value: float = 0.7, *,
    accuracy: float = 0.9, game: str = "membership", status: Any = "ok", reason: str = "",
    control: bool = False, flags: tuple[str, ...] = (), decides_at: str = "",
    power: float | None = None,
) -> Record:  # fmt: skip
    fields = {} if power is None else {"power": power}
    cell = CellRecord(
        dataset=method("digits"), protocol={"name": "default"}, target=method("simclr"),
        defenses=[method(defense, **fields)],
        knows=AdversaryRecord(), adversary="adaptive", attack=method(attack),
        game=game, sensitive=["slant"], preset="cpu", access="LABELS", protects=["membership"],
        control=control, decides_at=decides_at, needs="POSTERIORS",
    )  # fmt: skip
    made = Record(
        trial=f"{attack} {defense} {seed} {game} {power}", cell=cell, seed=seed, status=status,
        board=GAMES[game].board, reason=reason, flags=list(flags), phase="encoder",
        sizes={"members": 100, "nonmembers": 400}, provenance={"commit": "abc"},
    )  # fmt: skip
    if power is not None:
        sweep = StrengthRecord(field="power", stronger="up", sweep=[1.0, 2.0])
        made.strengths = {defense: sweep}
    if status == "ok":
        main = {"membership": "auc", "reconstruction": "mse"}.get(game, "accuracy")
        made.metrics = {main: number(value)}
        made.utility = {"test_accuracy": accuracy, "reference_accuracy": accuracy}
    return made


def rows(records: list[Record]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table(Leaderboard(records)))))


# ---- csv -----------------------------------------------------------------------------------------


def test_the_csv_file_holds_every_number_of_every_cell() -> None:
    made = [record(seed=seed, value=0.6 + seed / 10) for seed in range(3)]
    made += [record(defense="mask", seed=seed, value=0.55) for seed in range(3)]
    made += [record("copy", game="reconstruction", value=0.02)]
    for one in made:
        one.metrics["extra"] = number(0.25)
        one.metrics["few"] = Number(refused="80 nonmembers are too few")
        one.controls = {"null": {"auc": number(0.5)}}
        one.baselines = {"blind": {"auc": number(0.45)}}
        one.updates = {"encoder": 300}
        one.cost.seconds_victim = 4.0
    got = rows(made)
    assert len(got) == 3
    none, mask, copy = got
    assert (none["attack"], none["defense"], none["game"]) == ("loud", "none", "membership")
    assert (none["dataset"], none["needs"], none["seeds"]) == ("digits", "POSTERIORS", "0 1 2")
    # Student's t of two degrees of freedom: 4.303 x .1 / sqrt(3)
    assert [float(none[f"auc{end}"]) for end in ("", ", low", ", high")] == pytest.approx(
        [0.7, 0.4516, 0.9484], abs=1e-4
    )
    assert (none["extra"], none["few"], none["null auc"], none["blind auc"]) == (
        "0.25", "refused", "0.5", "0.45",
    )  # fmt: skip
    assert (none["updates encoder"], none["cost seconds_victim"]) == ("300", "4")
    assert (none["test_accuracy"], none["reference_accuracy"]) == ("0.9", "0.9")
    assert float(mask["minus none"]) == pytest.approx(-0.15)
    assert mask["differs from none"] == "no"
    assert float(mask["minus null"]) == pytest.approx(0.05)
    assert (copy["mse"], copy["auc"]) == ("0.02", "")
    assert "mse, low" not in copy  # one seed has no interval
    assert float(mask["minus none, p"]) == pytest.approx(0.1217, abs=1e-3)  # t = -2.598


def test_the_csv_file_says_why_and_where() -> None:
    made = [record(), record("bad", status="failed", reason="out of memory"),
            record("odd", flags=("its AUC is 1",)), record("cut", decides_at="FPR 0.01"),
            record("copy", game="reconstruction"), record("deaf"),
            record("deaf", "planted", value=0.5, control=True)]  # fmt: skip
    got = {(one["attack"], one["defense"]): one for one in rows(made)}
    assert got["bad", "none"]["status"] == "failed"
    assert got["bad", "none"]["reason"] == "out of memory"
    assert (got["odd", "none"]["mark"], got["odd", "none"]["why marked"]) == ("‡", "its AUC is 1")
    assert got["deaf", "none"]["mark"] == "¶"
    assert got["deaf", "none"]["why marked"] == "it missed a planted leak"
    assert got["deaf", "planted"]["planted leak"] == "yes"
    assert got["cut", "none"]["decides at"] == "FPR 0.01"  # its balanced accuracy has no peer
    assert got["copy", "none"]["outside the claim"] == "yes"
    assert got["loud", "none"]["outside the claim"] == "no"


def test_audits_pool_the_guesses_of_all_seeds_and_canaries_have_columns() -> None:
    made = [record(defense="dp", seed=seed) for seed in range(3)]
    counts = {"audit_coins": 200, "audit_made": 50, "audit_right": 45,
              "audit_made_most": 160, "audit_right_most": 120}  # fmt: skip
    for one in made:
        one.claims = [{"epsilon": 2.0, "delta": 1e-5, "phase": "encoder", "guarantee": True}]
        alone = audit.assessed(one.claims, [audit.counted(counts)])
        one.metrics |= {name: Number.of(metric) for name, metric in alone.items()}
        one.metrics["loo_auc"] = number(0.9)
        one.metrics["loo_tpr_at_fpr_0.001"] = Number(refused="120 are too few")
    (row,) = rows(made)
    found = audit.bound(audit.Guesses(600, 150, 135), 1e-5)
    assert row["audited_epsilon"] == f"{found:.3f}"
    assert row["audit_ceiling"] == f"{audit.bound(audit.Guesses(600, 150, 150), 1e-5):.3f}"
    assert row["claimed_epsilon"] == "2.000"
    assert 0 < float(row["audit_p"]) < 1
    assert "claimed_mu" not in row  # no claim has a profile
    assert (row["loo_auc"], row["loo_tpr_at_fpr_0.001"]) == ("0.9", "refused")
    for one in made:
        one.claims = [{"epsilon": 2.0, "delta": 1e-5, "phase": "", "guarantee": False}]
    (row,) = rows(made)
    assert "claimed_epsilon" not in row
    assert row["nominal_epsilon"] == "2.000 (no phase)"


def test_bounds_without_counts_are_the_smallest_and_never_a_mean() -> None:
    made = [record(defense="dp", seed=seed) for seed in range(2)]
    for one, found in zip(made, (1.5, 0.5), strict=True):
        one.metrics |= {"claimed_epsilon": number(8.0), "audited_epsilon": number(found)}
    assert rows(made)[0]["audited_epsilon"] == "0.500"
    made[0].metrics["audited_epsilon"] = Number(refused="another adjacency")
    assert rows(made)[0]["audited_epsilon"] == "refused"


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-cmd", "@SUM(A1)", "\t=1", "\r=1", " =1"])
def test_a_formula_is_text_in_a_spreadsheet(text: str) -> None:
    made = record(text, status="failed", reason=text)
    (row,) = rows([made])
    assert not row["attack"].startswith(("=", "+", "-", "@", "\t", "\r", " ="))
    assert text.strip() in row["attack"]
    assert text.strip() in row["reason"]
    made = record()
    made.metrics[text] = number(0.5)
    (row,) = rows([made])
    assert not any(name.startswith(("=", "+", "-", "@", "\t", "\r", " =")) for name in row)


def test_hostile_text_stays_in_its_field() -> None:
    for text in ('a"b', "a,b", "two\nlines", "x\r\ny", "\x00z", "\x1b[2J"):
        (row,) = rows([record(text)])
        assert None not in row
        assert not {"\x00", "\x1b"} & {*table(Leaderboard([record(text)]))}


# ---- front ---------------------------------------------------------------------------------------


def grid() -> list[Record]:
    """Defenses by utility and leak: ``none`` .9 and .8, good .88 and .6, poor .8 and .7, ..."""
    made = []
    for name, accuracy, leak in (
        ("none", 0.9, 0.8), ("good", 0.88, 0.6), ("poor", 0.8, 0.7), ("shut", 0.7, 0.5),
    ):  # fmt: skip
        made += [record(defense=name, seed=seed, value=leak + seed / 100, accuracy=accuracy)
                 for seed in range(2)]  # fmt: skip
    return made


def drawn(records: list[Record], bound: float | None = None) -> ET.Element:
    return ET.fromstring(front(Leaderboard(records, bound).panels))  # noqa: S314 - our own file


def texts(svg: ET.Element) -> list[str]:
    return ["".join(one.itertext()) for one in svg.iter() if one.tag.endswith("}text")]


def test_the_best_are_those_that_no_other_beats_by_hand() -> None:
    places = [(DefenseRow(name), u, v) for name, u, v in (
        ("none", 0.9, 0.8), ("good", 0.88, 0.6), ("poor", 0.8, 0.7), ("shut", 0.7, 0.5),
        ("same", 0.88, 0.6), ("worse", 0.88, 0.61),
    )]  # fmt: skip
    assert best(places, higher=True) == {"none", "good", "shut", "same"}
    assert best(places, higher=False) == {"none"}  # a higher error is less leak
    assert best([], higher=True) == set()


def test_the_front_shows_a_point_for_each_defense_and_names_the_best() -> None:
    svg = drawn(grid())
    names = texts(svg)
    assert {"none", "good", "shut"} <= {*names}
    assert "poor" not in names
    assert "simclr on digits" in names
    assert "membership, adaptive adversary" in names
    # Each point is a marker of its own.
    used = [one for one in svg.iter() if one.tag.endswith("}use") and one.get("y")]
    assert len([one for one in used if one.get("fill") == "#d1603d"]) == 2, "good and shut"
    assert len([one for one in used if one.get("fill") == "#3b76c4"]) == 2


def test_the_front_names_the_defense_that_leaks_most() -> None:
    loud = [record(defense="loud", seed=seed, value=0.95, accuracy=0.85) for seed in range(2)]
    names = texts(drawn([*grid(), *loud]))
    assert "loud" in names
    assert "poor" not in names


def test_curves_join_the_settings_of_a_defense() -> None:
    made = grid()
    for power, leak in ((1.0, 0.75), (2.0, 0.65)):
        made += [record(defense="dial", seed=seed, value=leak, accuracy=0.9 - power / 50,
                        power=power) for seed in range(2)]  # fmt: skip

    def lines(records: list[Record]) -> int:
        look = {"stroke": "#8b929a", "stroke-opacity": "0.6", "stroke-width": "0.8"}
        mine = (one for one in drawn(records, 0.05).iter() if look.items() <= one.attrib.items())
        return sum(one.get("d", "").count("L") for one in mine)

    assert (lines(grid()), lines(made)) == (0, 1)
    assert "dial (power=2)" not in texts(drawn(grid(), 0.05))


def test_without_points_there_is_no_figure() -> None:
    assert front(Leaderboard([record()]).panels) == ""
    assert front([]) == ""
    assert drawable(Leaderboard([record(), record(defense="x", status="failed")]).panels) == []


def test_the_figure_is_plain_and_has_no_date() -> None:
    text = front(Leaderboard(grid()).panels)
    assert text.startswith("<svg")
    assert "<script" not in text
    assert "date" not in text.lower().replace("data", "")
    assert "Matplotlib" not in text
    assert not re.search("#010203|#a0a1a2", text)
    assert not re.search(r"""(href|src)\s*=\s*["'](?!#)""", text)


HOSTILE = (
    "<script>alert(1)</script>", "&amp;<b>", "$x^2$", r"$\frac{", "\x1b[2J\x00", "]]>",
    '"onload="x',
    "\u202eevil", "名前", "a\nb",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_names_are_text_in_the_figure(text: str) -> None:
    made = [record(text, defense, seed, value=leak) for seed in range(2)
            for defense, leak in (("none", 0.8), (f"d{text}", 0.6))]  # fmt: skip
    for one in made:
        one.cell = one.cell.model_copy(update={"target": method(f"t{text}")})
    svg = front(Leaderboard(made).panels)
    found = ET.fromstring(svg)  # noqa: S314 - our own file
    assert not any(one.tag.endswith("}script") for one in found.iter())
    assert not any(name.startswith("on") for one in found.iter() for name in one.attrib)
    if text in ("<script>alert(1)</script>", "$x^2$", "名前"):
        assert f"d{text}" in texts(found)


# ---- files ---------------------------------------------------------------------------------------


def test_a_board_is_a_page_a_csv_file_and_a_figure(tmp_path: Path) -> None:
    write_board(tmp_path / "b.md", Leaderboard(grid()), "b", again=["s.yaml"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.csv", "b.md", "b.svg"]
    text = (tmp_path / "b.md").read_text(encoding="utf-8")
    assert "](b.svg)" in text
    assert "[b.csv](b.csv)" in text
    assert (tmp_path / "b.csv").read_text(encoding="utf-8") == table(Leaderboard(grid()))
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == front(Leaderboard(grid()).panels)
    write_board(tmp_path / "one.md", Leaderboard([record()]), "one")
    assert not (tmp_path / "one.svg").exists()
    assert "svg" not in (tmp_path / "one.md").read_text(encoding="utf-8")


def test_the_figure_is_drawn_only_if_numbers_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counting(found: Any) -> str:
        calls.append(found)
        return front(found)

    monkeypatch.setattr(files, "front", counting)
    target = tmp_path / "b.md"
    write_board(target, Leaderboard(grid()), "b")
    write_board(target, Leaderboard(grid()[::-1]), "b")
    assert len(calls) == 1
    changed = grid()
    changed[0].metrics["auc"] = number(0.82)
    write_board(target, Leaderboard(changed), "b")
    assert len(calls) == 2
    (tmp_path / "b.svg").unlink()
    write_board(target, Leaderboard(changed), "b")
    assert len(calls) == 3
    write_board(target, Leaderboard(changed, 0.03), "b")  # the same numbers, other points
    assert len(calls) == 4
