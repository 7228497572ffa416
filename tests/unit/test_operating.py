"""Operating points: chosen on reference rows alone, and shown with the whole curve."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from privbench.boards.board import Leaderboard
from privbench.boards.operating import (
    Setting,
    accuracy,
    choices,
    groups,
    most_lost,
    seen_by,
    shown_within,
    strongest,
)
from privbench.boards.page import page
from privbench.boards.tradeoffs import stored_bound, told
from privbench.cli.index import index
from privbench.cli.main import main
from privbench.ground.errors import BadInputError
from privbench.measure.games.catalog import GAMES
from privbench.measure.victims.play import utility
from privbench.results.files import POINTS, read_all
from privbench.results.record import (
    AdversaryRecord,
    CellRecord,
    MethodRecord,
    Number,
    Record,
    StrengthRecord,
)
from privbench.testing import tiny_split

if TYPE_CHECKING:
    import random
    from pathlib import Path

POWER = StrengthRecord(field="power", stronger="up", sweep=[1.0, 2.0, 3.0])
BUDGET = StrengthRecord(field="budget", stronger="down", sweep=[100.0, 10.0, 1.0])
MASK = StrengthRecord(field="mask", stronger="listed", sweep=["top", "fixed", "label"])


def method(name: str, **fields: Any) -> MethodRecord:
    inside = ", ".join(f"{k}={v}" for k, v in fields.items())
    label = f"{name}({inside})" if inside else name
    return MethodRecord(name=name, label=label, version=1, fields=fields)


def record(
    defense: MethodRecord | None = None, strength: StrengthRecord | None = None, *,
    reference: float | None = 0.9, test: float = 0.9, leak: float = 0.7, seed: int = 0,
    attack: str = "loud", game: str = "membership", adversary: str = "adaptive",
    status: Any = "ok", flags: tuple[str, ...] = (), optimistic: bool = False, n: int = 0,
) -> Record:  # fmt: skip
    defense = defense or method("none")
    cell = CellRecord(
        dataset=method("digits"), protocol={"name": "default", "reference": 100},
        target=method("simclr"), defenses=[defense],
        knows=AdversaryRecord(), adversary=adversary, attack=method(attack),
        game=game, sensitive=["slant"], preset="cpu", access="LABELS", protects=[],
    )  # fmt: skip
    metric = {"membership": "auc", "attributes": "accuracy", "reconstruction": "mse"}[game]
    trial = f"{defense.label} {seed} {attack} {game} {adversary} {n}"
    board = GAMES[cell.game].board if cell.game in GAMES else None
    made = Record(trial=trial, cell=cell, board=board, seed=seed, status=status)
    if status == "ok":
        made.metrics = {metric: Number(value=leak, low=0.0, high=1.0)}
        made.utility = {"test_accuracy": test, "train_accuracy": 1.0, "gap": 1.0 - test}
        made.utility |= {} if reference is None else {"reference_accuracy": reference}
    made.strengths = {defense.name: strength} if strength else {}
    made.flags = list(flags)
    made.notes = {"reference accuracy": "optimistic"} if optimistic else {}
    return made


def shield(power: float, reference: float, **given: Any) -> Record:
    return record(method("shield", power=power), POWER, reference=reference, **given)


def chosen(records: list[Record], bound: float = 0.02) -> dict[int, str | None]:
    """Return the value that is chosen for each seed, for the only defense."""
    (group,) = groups(records)
    (family,) = group.families
    points = choices(group, family, bound)
    return {point.seed: point.value if point.rank is not None else None for point in points}


def test_the_strongest_within_the_bound_by_hand() -> None:
    sweep = [shield(1.0, 0.91), shield(2.0, 0.88), shield(3.0, 0.87)]
    assert chosen([record(), *sweep]) == {0: "2"}  # .9 - .88 is .020000000000000018
    assert chosen([record(), *sweep], 0.03) == {0: "3"}
    assert chosen([record(), *sweep], 0.0) == {0: "1"}
    assert chosen([record(), *sweep[1:]], 0.0) == {0: None}


def test_a_peeking_choice_would_be_another_one() -> None:
    """Test rows and attacks all point to power 1 or 3, reference rows to 2."""
    sweep = [
        shield(1.0, 0.90, test=0.95, leak=0.50),
        shield(2.0, 0.89, test=0.10, leak=0.99),
        shield(3.0, 0.80, test=0.90, leak=0.50),
    ]
    assert chosen([record(test=0.9, leak=0.9), *sweep]) == {0: "2"}


def test_each_seed_and_each_direction() -> None:
    def at(defense: str, strength: StrengthRecord, value: Any, reference: float, seed: int) -> Any:
        made = method(defense, **{strength.field: value})
        return record(made, strength, reference=reference, seed=seed)

    none = [record(seed=0), record(seed=1, reference=0.8)]
    down = [at("dp", BUDGET, b, r, s) for b, r, s in [
        (100.0, 0.9, 0), (10.0, 0.89, 0), (1.0, 0.3, 0),
        (100.0, 0.8, 1), (10.0, 0.7, 1), (1.0, 0.3, 1),
    ]]  # fmt: skip
    assert chosen([*none, *down]) == {0: "10", 1: "100"}
    listed = [at("mask", MASK, m, 0.9, 0) for m in ("label", "top", "fixed")]
    assert chosen([none[0], *listed]) == {0: "label"}


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=3),
    st.floats(0, 0.3),
    st.randoms(use_true_random=False),
)
def test_test_rows_attacks_and_order_have_no_say(
    seen: list[tuple[float, float, float]], bound: float, rng: random.Random
) -> None:
    fixed = [record(), *(shield(float(i + 1), 0.95 - 0.05 * i) for i in range(3))]
    other = [
        record(test=seen[0][0], leak=seen[0][1]),
        *(shield(float(i + 1), 0.95 - 0.05 * i, test=t, leak=leak, flags=("x",) * (f > 0.5))
          for i, (t, leak, f) in enumerate(seen)),
    ]  # fmt: skip
    rng.shuffle(other)
    assert chosen(fixed, bound) == chosen(other, bound)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_choosing_agrees_with_trying_all(scores: list[float], none: float, bound: float) -> None:
    settings = [Setting(float(rank), value) for rank, value in enumerate(scores)]
    got = strongest(settings, none, bound)
    within = [s for s in settings if none - s.accuracy <= bound + 1e-9]
    assert got == (within[-1] if within else None)
    wider = strongest(settings, none, bound + 0.1)
    assert got is None or (wider is not None and wider.rank >= got.rank)


def five(power: float, losses: list[float]) -> list[Record]:
    return [shield(power, 0.9 - loss, seed=seed) for seed, loss in enumerate(losses)]


def test_five_seeds_choose_one_setting_by_its_interval() -> None:
    none = [record(seed=seed) for seed in range(5)]
    close, far = [0.0, 0.01, 0.0, 0.01, 0.0], [0.0, 0.03, 0.0, 0.03, 0.0]
    half = 2.7764451051977987 * statistics.stdev(close) / math.sqrt(5)  # Student, 4 degrees
    assert chosen([*none, *five(1.0, close)], 0.004 + half) == dict.fromkeys(range(5), "1")
    assert chosen([*none, *five(1.0, close)], 0.0039 + half) == dict.fromkeys(range(5))
    # Power 2 lost .012 on average: within .02 as measured, but its interval reaches .032.
    (group,) = groups([*none, *five(1.0, close), *five(2.0, far)])
    points = choices(group, group.families[0], 0.02)
    assert {one.value for one in points} == {"1"}
    assert [one.loss for one in points] == pytest.approx(close)
    assert [one.most for one in points] == pytest.approx([0.004 + half] * 5)
    assert chosen([record(seed=0), *five(1.0, close)[:1], *five(2.0, far)[:1]]) == {0: "2"}  # draft
    text = page(Leaderboard([*none, *five(1.0, far)], 0.02), "t")
    assert "No setting is shown to cost little enough: shield (seeds 0, 1, 2, 3, 4)." in text
    assert "by the upper end of Student's 95 % interval over seeds" in text
    short = five(1.0, close)[:4]
    assert chosen([*none, *short])[0] is None, "four of five seeds show nothing"


def test_after_a_setting_that_costs_too_much_none_is_tried() -> None:
    """Else each further setting is another chance to look harmless by luck."""
    low, high = dict.fromkeys(range(5), 0.0), {0: 0.0, 1: 0.1, 2: 0.0, 3: 0.1, 4: 0.0}
    assert shown_within({1.0: low, 2.0: high, 3.0: low}, 0.02) == (1.0, 0.0)
    assert shown_within({1.0: high, 2.0: low}, 0.02) is None
    assert shown_within({}, 0.02) is None


def test_after_a_setting_with_few_seeds_none_is_tried() -> None:
    low = dict.fromkeys(range(5), 0.0)
    few = dict.fromkeys(range(4), 0.0)
    assert shown_within({1.0: low, 2.0: few, 3.0: low}, 0.02) == (1.0, 0.0)
    assert shown_within({1.0: few, 2.0: low}, 0.02) is None


@pytest.mark.parametrize("settings", [1, 6])
def test_settings_that_cost_more_are_rarely_chosen(settings: int) -> None:
    """Every setting loses 2.01 points; accuracies are shares of 300 rows, of five seeds."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(2000):
        none = rng.binomial(300, 0.9, 5) / 300
        losses = {
            float(rank): dict(enumerate(none - rng.binomial(300, 0.8799, 5) / 300))
            for rank in range(settings)
        }
        false += shown_within(losses, 0.02) is not None
    assert binomtest(false, 2000, 0.025, alternative="greater").pvalue > 1e-4


def test_what_cannot_be_compared_says_so() -> None:
    def reason(*records: Record) -> str:
        (group,) = groups(records)
        (point,) = choices(group, group.families[0], 0.02)
        assert point.rank is None
        return point.reason

    assert reason(shield(1.0, 0.9)) == "`none` has no accuracy on reference rows"
    assert "`none` has no" in reason(record(reference=None), shield(1.0, 0.9))
    assert "no setting has an" in reason(record(), record(method("shield", power=1.0), POWER,
                                                          status="failed"))  # fmt: skip
    assert reason(record(), shield(1.0, 0.5)) == "no setting qualifies"
    twice = [shield(1.0, 0.9), shield(1.0, 0.8, attack="quiet")]
    assert accuracy(twice, 0, "reference") is None  # one victim cannot have two accuracies


def test_other_hyperparameters_make_other_families() -> None:
    def made(power: float, depth: int) -> Record:
        return record(method("shield", power=power, depth=depth), POWER)

    (group,) = groups([record(), made(1.0, 3), made(2.0, 3), made(1.0, 4), record(method("fog"))])
    found = [(f.name, f.strength_field, sorted(f.values.values())) for f in group.families]
    assert found == [
        ("fog", "", [""]), ("shield(depth=3)", "power", ["1", "2"]),
        ("shield(depth=4)", "power", ["1"]),
    ]  # fmt: skip
    unset = record(method("shield", power=None), POWER)  # derived from something else
    (group,) = groups([record(), unset, shield(1.0, 0.9)])
    assert [(f.name, f.strength_field) for f in group.families] == [
        ("shield", "power"), ("shield(power=None)", ""),
    ]  # fmt: skip


def test_a_stack_is_no_setting_of_its_first_defense() -> None:
    stacked = shield(2.0, 0.9)
    both = [*stacked.cell.defenses, method("fog")]
    stacked.cell = stacked.cell.model_copy(update={"defenses": both})
    (group,) = groups([record(), shield(1.0, 0.9), stacked])
    found = {f.name: (f.strength_field, list(f.values.values())) for f in group.families}
    assert found == {"shield": ("power", ["1"]), "shield(power=2.0)+fog": ("", [""])}


def test_the_worst_leak_by_hand() -> None:
    both = [
        record(attack="loud", leak=0.6, seed=0), record(attack="loud", leak=0.8, seed=1),
        record(attack="odd", leak=0.99, seed=0), record(attack="odd", leak=0.2, seed=1),
        record(attack="mad", leak=1.0, flags=("tells apart what the victim never saw",)),
        record(attack="copy", game="reconstruction", leak=0.2),
        record(attack="blur", game="reconstruction", leak=0.3),
        record(attack="guess", game="attributes", leak=0.5),
    ]  # fmt: skip
    (panel,) = Leaderboard(both).panels
    found = {aim: (one.attack, one.estimate.value) for aim, one in panel.rows[0].worst.items()}
    assert found == {
        ("membership", ""): ("loud", pytest.approx(0.7)),
        ("attributes", "slant"): ("guess", 0.5), ("reconstruction", ""): ("copy", 0.2),
    }  # fmt: skip


def test_a_cell_with_one_flagged_seed_does_not_count_at_all() -> None:
    flag = ("tells apart what the victim never saw",)
    both = [record(seed=s, leak=0.6) for s in range(5)]
    both += [record(attack="mad", seed=s, leak=1.0, flags=flag * (s == 0)) for s in range(5)]
    (panel,) = Leaderboard(both).panels
    assert panel.rows[0].worst["membership", ""].attack == "loud"


def test_few_reference_rows_leave_a_larger_loss_possible() -> None:
    """Newcombe, Statistics in Medicine 1998, method 10: Wilson's intervals, combined."""
    first, second = (binomtest(right, 70).proportion_ci(method="wilson") for right in (56, 48))
    want = 8 / 70 + math.hypot(first.high - 56 / 70, 48 / 70 - second.low)
    assert most_lost(56 / 70, 48 / 70, 70) == pytest.approx(want)
    assert most_lost(0.9, 0.88, 100) > most_lost(0.9, 0.88, 1000) > 0.02
    assert most_lost(0.9, 0.88, 10**9) == pytest.approx(0.02, abs=1e-4)
    assert most_lost(1.0, 1.0, 100) > 0
    (group,) = groups([record(), shield(1.0, 0.89)])
    (point,) = choices(group, group.families[0], 0.02)
    assert point.most == most_lost(0.9, 0.89, 100)
    text = page(Leaderboard([record(), shield(1.0, 0.89)], 0.02), "t")
    told = f"the loss may be up to {most_lost(0.9, 0.89, 100):.2f} (upper end of"
    assert told in text
    assert "the loss may be" not in page(Leaderboard([record(), shield(1.0, 0.89)]), "t")


def refused_null(attack: str, seed: int) -> Record:
    """A result without a flag, whose cell is refused because all its nulls together leak."""
    made = record(attack=attack, seed=seed, leak=1.0)
    made.controls = {"null": {"auc": Number(value=0.57)}}
    made.sizes = {"members": 100, "nonmembers": 400}
    return made


def test_refused_nulls_and_blind_attacks_win_neither_curves_nor_points() -> None:
    made = [one for s in range(5) for one in (
        record(seed=s, leak=0.6), shield(1.0, 0.9, seed=s, leak=0.6),
        shield(2.0, 0.9, seed=s, leak=0.55), refused_null("mad", s),
        shield(1.0, 0.9, seed=s, leak=0.99, attack="blind"),
        shield(2.0, 0.9, seed=s, leak=0.99, attack="blind"), planted("blind", s, 0.5),
    )]  # fmt: skip
    for bound in (0.02, None):
        (panel,) = Leaderboard(made, bound).panels
        for line in (*panel.rows, *panel.curves):
            assert line.worst["membership", ""].attack == "loud"


def planted(attack: str, seed: int, leak: float) -> Record:
    """A positive control: the attack finds the leak if it is .7, not if it is .5."""
    made = record(method("planted-leak"), attack=attack, seed=seed, leak=leak)
    made.cell = made.cell.model_copy(update={"control": True})
    made.metrics = {"auc": Number(value=leak, low=leak - 0.1, high=leak + 0.1)}
    return made


def test_a_positive_control_is_no_defense_with_an_operating_point() -> None:
    made = [record(), shield(1.0, 0.9), shield(2.0, 0.9), planted("loud", 0, 0.7)]
    assert [family.name for group in groups(made) for family in group.families] == ["shield"]
    assert "planted-leak" not in " ".join(told(Leaderboard(made, 0.02)))


def test_cells_that_run_once_count_for_every_adversary() -> None:
    naive = shield(1.0, 0.9, adversary="naive", leak=0.6)
    adaptive = shield(1.0, 0.9, leak=0.8)
    once = shield(1.0, 0.9, attack="shadowless", leak=0.55)
    (group,) = groups([record(), naive, adaptive, once])
    seen = {r.trial for r in seen_by(group, "naive")}
    assert seen == {record().trial, naive.trial, once.trial}
    assert adaptive.trial in {r.trial for r in seen_by(group, "adaptive")}


def grid() -> list[Record]:
    made = [record(seed=s, reference=0.9, test=0.9, leak=0.8) for s in range(3)]
    for seed, (one, two) in enumerate([(0.9, 0.89), (0.9, 0.8), (0.5, 0.4)]):
        made += [shield(1.0, one, seed=seed, test=0.88, leak=0.7, optimistic=True),
                 shield(2.0, two, seed=seed, test=0.85, leak=0.6, optimistic=True)]  # fmt: skip
    return made


def test_the_page_says_which_and_the_panel_has_the_curve() -> None:
    text = page(Leaderboard(grid(), 0.02), "Mine")
    assert "strongest setting that loses at most 0.02 of accuracy on reference rows" in text
    assert "No setting costs little enough: shield (seed 2)." in text
    (panel,) = Leaderboard(grid(), 0.02).panels
    none, shield_ = panel.rows
    assert shield_.title == "shield (power=1 or 2)"
    assert shield_.optimistic
    assert f"| {shield_.title} § |" in text
    assert not none.optimistic
    assert shield_.accuracies == {0: 0.85, 1: 0.88}  # power 2 of seed 0 and 1 of seed 1
    (spot,) = shield_.spots.values()
    assert spot.values == {0: 0.6, 1: 0.7}
    assert "(2 of 3 seeds)" in text
    assert shield_.loss is not None
    assert shield_.loss.mean == pytest.approx(0.035)
    assert [line.title for line in panel.curves] == ["shield (power=1)", "shield (power=2)"]
    assert [line.accuracy.value for line in panel.curves if line.accuracy] == pytest.approx(
        [0.88, 0.85]
    )


def test_the_terminal_says_which_seed_has_which_setting() -> None:
    (of_shield,) = told(Leaderboard(grid(), 0.02))
    assert of_shield == (
        "digits, simclr: operating point of shield: power=2 (seed 0); power=1 (seed 1); "
        "no setting qualifies (seed 2, the best loses 0.400 or more)"
    )
    fog = [record(method("fog"), reference=0.89, seed=seed) for seed in range(2)]
    (of_fog,) = told(Leaderboard([*(record(seed=seed) for seed in range(2)), *fog], 0.02))
    assert of_fog.endswith("operating point of fog: its only setting (seeds 0, 1)")


def test_a_page_whose_defenses_all_cost_too_much_says_so() -> None:
    text = page(
        Leaderboard([record(), shield(1.0, 0.5), record(method("fog"), reference=None)], 0.02), "t"
    )
    assert "No setting costs little enough: shield (seed 0)." in text
    told = "No operating point, as no setting has an accuracy on reference rows: fog (seed 0)."
    assert told in text
    assert "## Ranking" not in text


def test_intervals_are_cut_at_the_range_of_the_number() -> None:
    none = [record(reference=0.9), record(reference=0.1, test=0.1, seed=1)]
    (panel,) = Leaderboard(
        [*none, shield(1.0, 0.1, test=0.1), shield(1.0, 0.9, seed=1)], 1.0
    ).panels
    found = [line.accuracy for line in panel.rows]
    assert [(one.value, one.low, one.high) for one in found if one] == [(0.5, 0.0, 1.0)] * 2


def test_without_a_bound_every_setting_is_a_line() -> None:
    text = page(Leaderboard(grid()), "t")
    assert "loses at most" not in text
    assert "| shield (power=1) § |" in text
    assert "| shield (power=2) § |" in text
    assert told(Leaderboard(grid())) == []


def test_a_board_and_a_merge_remember_the_bound(tmp_path: Path) -> None:
    for i, part in enumerate((grid()[:4], grid()[4:])):
        for one in part:
            one.write(tmp_path / f"part{i}")
    (tmp_path / "part0" / POINTS).write_text(json.dumps({"match_utility": 0.02}))
    parts = [str(tmp_path / f"part{i}") for i in range(2)]
    run = CliRunner().invoke
    assert run(main, ["merge", *parts, "--out", str(tmp_path / "all")]).exit_code == 0
    assert len(read_all([tmp_path / "all"])) == len(grid())
    assert stored_bound([tmp_path / "all"]) == 0.02
    assert stored_bound([tmp_path]) == 0.02  # results are found in folders of folders, too
    shown = run(main, ["leaderboard", str(tmp_path / "all")]).output
    judging = index([]).judging

    def told(bound: float) -> str:
        return page(
            Leaderboard(read_all([tmp_path / "all"]), bound, judging), "privbench leaderboard"
        )

    assert shown == told(0.02)
    wide = run(main, ["leaderboard", str(tmp_path / "all"), "--match-utility", "0.5"]).output
    assert wide == told(0.5) != shown


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", *(f'{{"match_utility": {one}}}' for one in ('"x"', 7, -0.01, 1.01, "true"))],
)
def test_a_file_that_holds_no_points(tmp_path: Path, text: str) -> None:
    (tmp_path / POINTS).write_text(text)
    with pytest.raises(BadInputError, match="holds no operating points: remove it"):
        stored_bound([tmp_path])


def test_two_bounds_are_refused(tmp_path: Path) -> None:
    for name, bound in (("a", 0.02), ("b", 0.1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / POINTS).write_text(json.dumps({"match_utility": bound}))
    with pytest.raises(BadInputError, match=r"within 0\.02, 0\.1: give --match-utility"):
        stored_bound([tmp_path / "a", tmp_path / "b"])
    assert stored_bound([tmp_path / "no bound", tmp_path / "a"]) == 0.02
    assert stored_bound([tmp_path / "no bound"]) is None


class Knows:
    """Labels some rows right and all others wrong."""

    def __init__(self, *known: Any) -> None:
        self.known = {x.numpy().tobytes(): int(y) for rows in known
                      for x, y in zip(rows.x, rows.y, strict=True)}  # fmt: skip

    def session(self, asker: str) -> Any:
        del asker
        return self

    def labels(self, x: Any) -> Any:
        return torch.tensor([self.known.get(one.numpy().tobytes(), -7) for one in x])


def test_accuracy_on_reference_rows_is_of_these_rows_alone() -> None:
    split = tiny_split()
    members = split.victim().members
    quarter = split.reference.select(slice(0, len(split.reference) // 4))
    parts = {"reference": quarter, "test": split.test, "members": members}
    for names in itertools.product([0, 1], repeat=3):
        known = [rows for rows, on in zip(parts.values(), names, strict=True) if on]
        got = utility(Knows(*known), split, split.victim())  # type: ignore[arg-type]
        assert got["reference_accuracy"] == 0.25 * names[0]
        assert (got["test_accuracy"], got["train_accuracy"]) == (names[1], names[2])
