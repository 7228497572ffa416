"""What is printed while a grid runs, where no terminal can draw bars."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from tests.unit.test_rows import record

from privbench.api.console import PLAIN, Watcher, tables, terminal_console
from privbench.boards.board import Leaderboard
from privbench.boards.closing import closing
from privbench.results.record import AdversaryRecord, CellRecord, MethodRecord, Number, Record


def test_lines_say_what_trains_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("privbench.api.console.time.monotonic", lambda: now)
    text = io.StringIO()
    with Watcher(Console(file=text), total=3) as watcher:
        watcher.epoch("encoder", 0.0, 4, 50)
        now = 20.0
        watcher.epoch("encoder", 2.0, 4, 50)
        watcher.left(754.0)
        now = 40.0
        watcher.epoch("encoder", 4.0, 4, 50)
    assert text.getvalue().splitlines() == [
        "  [0/3] encoder: epoch 2.0/4, 5 rows/s",
        "  [0/3, about 13 min left] encoder: epoch 4.0/4, 5 rows/s",
    ]


def test_a_reason_that_repeats_is_not_told_again() -> None:
    """A missing dataset fails all its cells with the same long sentence."""
    one = MethodRecord(name="x", label="x", version=1, fields={})
    cell = CellRecord(
        dataset=one, protocol={"name": "default"}, target=one, defenses=[one],
        knows=AdversaryRecord(),
        adversary="adaptive", attack=one, game="membership", sensitive=[], preset="cpu",
        access="LABELS", protects=[],
    )  # fmt: skip
    text = io.StringIO()
    with Watcher(Console(file=text, width=200), total=4) as watcher:
        for seed, reason in enumerate(["no data", "no data", "no disk", "no data"]):
            made = Record(trial=str(seed), cell=cell, seed=seed, status="failed", reason=reason)
            watcher.trial(made, was_there=False)
    told = [line.partition("FAILED (0.0 s): ")[2] for line in text.getvalue().splitlines()]
    assert told == ["no data", "for the same reason", "no disk", "no data"]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("longest", [5, 30, 90])
def test_a_narrow_terminal_breaks_names_and_no_number(width: int, longest: int) -> None:
    names = "a" * longest, "b" * longest
    made = [record(names[0], d, seed) for d in ("none", names[1]) for seed in range(3)]
    text = io.StringIO()
    for table in tables(Leaderboard(made), width):
        Console(file=text, width=width).print(table)
    shown = text.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    assert shown.count("0.700") >= 2  # the main number, of both rows
    assert shown.count("a") - shown.count("adaptive") > 2 * longest  # nothing of a name is lost


def test_marks_and_missing_columns_are_explained() -> None:
    made = [record("loud", d, seed) for d in ("none", "noise") for seed in range(3)]
    (wide,) = tables(Leaderboard(made), 300)
    (narrow,) = tables(Leaderboard(made), 40)
    (one,) = tables(Leaderboard([record("loud")]), 300)
    assert str(wide.caption) == "[low, high]: 95 % interval over seeds"
    assert re.search(r"; [1-9] more columns? on the board$", str(narrow.caption))
    assert str(one.caption) == ""  # no interval, no mark


def test_models_to_train_tell_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("privbench.api.console.time.monotonic", lambda: now)
    text = io.StringIO()
    with Watcher(Console(file=text), total=3) as watcher:
        watcher.models = 4
        now = 20.0
        watcher.epoch("shadow 1", 1.0, 1, 50)
        watcher.left(1000.0)  # what trials tell counts once the models are trained
        for done in range(2, 5):
            now = 20.0 * done
            watcher.epoch(f"shadow {done}", 1.0, 1, 50)
        watcher.left(7.0)
        now = 100.0
        watcher.epoch("encoder", 0.0, 1, 50)
    assert [line.partition("]")[0] for line in text.getvalue().splitlines()] == [
        "  [0/3, about 60 s left", "  [0/3, about 40 s left", "  [0/3, about 20 s left",
        "  [0/3, about 0 s left", "  [0/3, about 7 s left",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_wraps_prose_at_words_and_a_file_gets_whole_lines(width: int) -> None:
    sentence = " ".join(["label-smoothing", "lowers", "the", "AUC", "of", "lira"] * 9)
    drawn, filed = io.StringIO(), io.StringIO()
    terminal_console(file=drawn, force_terminal=True, width=width).print(sentence, **PLAIN)
    terminal_console(file=filed, width=width).print(sentence, **PLAIN)
    lines = drawn.getvalue().splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == sentence  # no word is broken
    assert filed.getvalue() == f"{sentence}\n"


def test_a_line_says_what_a_trial_took_and_what_its_models_took() -> None:
    text = io.StringIO()
    with Watcher(Console(file=text, width=200), total=2) as watcher:
        made = record()  # 1 s, and 2 s of training
        watcher.trial(made, was_there=False)
        watcher.trial(made, was_there=True)
    told = [line.partition("seed 0: ")[2] for line in text.getvalue().splitlines()]
    assert told == ["ok (1.0 s, its models 2.0 s)", "ok (kept)"]


def test_two_seeds_have_no_interval() -> None:
    def shown(seeds: int) -> str:
        made = [record("loud", d, seed) for d in ("none", "noise") for seed in range(seeds)]
        text = io.StringIO()
        for table in tables(Leaderboard(made), 300):
            Console(file=text, width=300).print(table)
        return " ".join(
            [text.getvalue(), *closing(Leaderboard(made)), *closing(Leaderboard(made[:seeds]))]
        )

    assert "[" not in shown(2)
    assert "±" not in shown(2)
    assert "2 (draft, no interval)" in shown(2)
    assert "[" in shown(3)


def _grid(attacks: int, defenses: int, seeds: int = 1) -> Leaderboard:
    names = ["none", *(f"calm-{d}" for d in range(1, defenses))]
    made = []
    for a in range(attacks):
        for d, name in enumerate(names):
            for seed in range(seeds):
                auc = 0.9 - 0.1 * ((a + d) % attacks) + 0.01 * seed
                one = record(f"loud-{a}", name, seed, auc=auc)
                one.metrics["tpr_at_fpr_0.01"] = Number(value=auc / 10)
                made.append(one)
    return Leaderboard(made)


def _shown(board: Leaderboard, width: int) -> list[str]:
    text = io.StringIO()
    for table in tables(board, width):
        Console(file=text, width=width).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_several_attacks_on_several_defenses_are_a_matrix_with_the_strongest_marked() -> None:
    lines = _shown(_grid(3, 2), 100)
    cells = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("loud")}
    assert cells == {
        "loud-0": ["0.900*", "9.0", "0.800", "8.0"],
        "loud-1": ["0.800", "8.0", "0.700", "7.0"],
        "loud-2": ["0.700", "7.0", "0.900*", "9.0"],
    }
    assert "AUC and TPR at 1 % FPR in percent" in " ".join(lines)
    assert "1 seed (draft)" in " ".join(lines)
    assert "*: the strongest attack on the defense" in " ".join(lines)
    assert "±" not in " ".join(lines + _shown(_grid(3, 2, seeds=2), 100))
    assert "0.910 ±0.025*" in " ".join(_shown(_grid(3, 2, seeds=3), 100))


@pytest.mark.parametrize(("attacks", "defenses"), [(3, 12), (12, 3), (9, 9)])
def test_a_matrix_that_is_too_wide_goes_on_below_and_loses_no_number(
    attacks: int, defenses: int
) -> None:
    lines = _shown(_grid(attacks, defenses), 80)
    assert max(map(len, lines)) <= 80
    for number in ("0.900*", "0.800"):
        assert " ".join(lines).count(number) == defenses
    assert "…" not in " ".join(lines)


def test_one_attack_or_one_defense_has_a_row_for_each_cell() -> None:
    for attacks, defenses in ((1, 3), (3, 1)):
        shown = " ".join(_shown(_grid(attacks, defenses), 120))
        assert "null" in shown
        assert "*" not in shown


def test_cells_that_no_matrix_tells_apart_have_a_row_each() -> None:
    made = [record(attack, defense, preset=preset, auc=0.7 if preset == "quick" else 0.6)
            for attack in ("loud", "shy") for defense in ("none", "calm")
            for preset in ("quick", "paper")]  # fmt: skip
    shown = " ".join(_shown(Leaderboard(made), 120))
    assert shown.count("0.700") == shown.count("0.600") == 4
