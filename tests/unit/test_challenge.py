"""`privbench challenge`: a new attack from one file against the victims of published results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.unit.test_rows import record

from privbench.api.again import Challenge
from privbench.check.challenge import (
    Victim,
    outcome,
    table,
    told,
    victims,
)
from privbench.check.repeat import challengers, suite_against
from privbench.cli.main import main
from privbench.ground.errors import BadInputError
from privbench.results.files import read_all
from privbench.results.record import AdversaryRecord, Record

if TYPE_CHECKING:
    from click.testing import Result

#: As the tutorial of docs/plugins shows: an attack in a file.
ATTACK = '''
from dataclasses import dataclass
from typing import ClassVar

from privbench import Access, Membership, MembershipAttack, hookimpl


@dataclass(frozen=True)
class Mine(MembershipAttack):
    """Calls sure answers members."""

    name: ClassVar[str] = "mine"
    needs: ClassVar[Access] = Access.POSTERIORS
    sign: int = 1

    def answer(self, oracle, question, ctx):
        return Membership(self.sign * oracle.posteriors(question.examples.x).amax(1))


@hookimpl
def privbench_attacks():
    return [Mine()]
'''
SUITE = """
datasets: [digits]
protocols: [{name: few, members: 60, nonmembers: 60, pool: 300, test: 60}]
targets: [{supervised: {epochs: 60}}]
attacks: [metric-correctness]
defenses: [{label-smoothing: {smoothing: 0.5}}]
seeds: 3
"""


def privbench(*args: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in args])


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Published results; the victims are in the store."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "mine.py").write_text(ATTACK)
    done = privbench("run", tmp_path / "suite.yaml", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    file = tmp_path / "board.jsonl"
    assert privbench("merge", tmp_path / "run", "--out", file).exit_code == 0
    return file


@pytest.mark.end_to_end
def test_a_file_challenges_a_board(board: Path, tmp_path: Path) -> None:
    plugin = ("--plugin", tmp_path / "mine.py")
    done = privbench(*plugin, "challenge", board, "--out", tmp_path / "new")
    assert done.exit_code == 0, done.output
    new = read_all([tmp_path / "new"])
    old = read_all([board])
    assert len(new) == len(old) == 6
    assert {one.cell.attack.name for one in new} == {"mine"}
    assert {one.seed: one.split for one in new} == {one.seed: one.split for one in old}
    assert "≠" not in done.output
    lines = [line for line in done.output.splitlines() if "× supervised" in line and "[" in line]
    shown = {line.split(" × ")[0]: re.findall(r"[-+]?\d\.\d{3}", line) for line in lines
             if "new attack" not in line and "seed" not in line}  # fmt: skip
    for defense in ("none", "label-smoothing(smoothing=0.5)"):
        means = [
            sum(one.metrics["auc"].value or 0 for one in some if one.cell.defense == defense) / 3
            for some in (old, new)
        ]
        want = [f"{means[0]:.3f}", f"{means[1]:.3f}", f"{means[1] - means[0]:+.3f}"]
        assert shown[defense][:3] == want
    assert "of 2 victims" in done.output

    few = privbench(*plugin, "challenge", board, "--out", tmp_path / "few", "--seeds", "1",
                    "--defense", "label-smoothing")  # fmt: skip
    assert few.exit_code == 0, few.output
    (only,) = read_all([tmp_path / "few"])
    assert (only.cell.defense, only.seed) == ("label-smoothing(smoothing=0.5)", 0)
    assert "nothing is shown" in few.output

    named = privbench("challenge", board, "--attack", "metric-loss", "--out", tmp_path / "n",
                      "--seeds", "1")  # fmt: skip
    assert {one.cell.attack.name for one in read_all([tmp_path / "n"])} == {"metric-loss"}
    assert named.exit_code == 0, named.output


@pytest.mark.end_to_end
def test_an_attack_that_fails(board: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ATTACK.replace(".amax(1)", ".nope"))
    done = privbench(
        "--plugin", tmp_path / "mine.py", "challenge", board, "--out", tmp_path / "new"
    )
    assert done.exit_code == 1
    assert "failed: AttributeError" in done.output
    assert "6 cells failed" in done.output
    assert "of 0 victims" in done.output


def test_a_victim_that_shows_too_little_is_named_and_the_others_are_attacked(
    tmp_path: Path,
) -> None:
    board = read_all([Path("leaderboards/results/digits-defenses-supervised.jsonl")])
    masked = [one for one in board if "mask" in one.cell.defense or one.cell.defense == "none"]
    options = {"device": "cpu", "data_root": None, "out": tmp_path}
    found = Challenge(masked, ["metric-loss"], 1, {}, [], options)
    (pair,), (why,) = found.unasked, found.unasked.values()
    assert "confidence-masking(mask=label) × supervised" in pair
    assert pair.endswith(", membership, by metric-loss")
    assert "metric-loss needs POSTERIORS" in why
    assert len(found.asked) == 1
    with pytest.raises(BadInputError, match="nothing in this grid can run: metric-loss needs POS"):
        Challenge([one for one in masked if "mask" in one.cell.defense], ["metric-loss"], 1, {},
                  [], options)  # fmt: skip


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((), "no attack to try"),
        (("--attack", "lirra"), "did you mean 'lira'"),
        (("--attack", "lira", "--defense", "talso"), "did you mean 'talos'"),
        (("--attack", "lira", "--defense", "talos"), "no result with numbers"),
        (("--attack", "attribute-inference"), "no result with numbers"),
        (("--attack", "lira", "--jobs", "many"), "--jobs many: give a whole number"),
    ],
)  # fmt: skip
def test_bad_input(args: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    record().write(tmp_path)
    done = privbench("challenge", tmp_path, *args)
    assert done.exit_code == 2
    assert wanted in done.output


def test_two_results_of_one_cell_and_seed_are_refused(tmp_path: Path) -> None:
    record().write(tmp_path)
    record().model_copy(update={"trial": "other"}).write(tmp_path)
    done = privbench("challenge", tmp_path, "--attack", "lira")
    assert done.exit_code == 2
    assert "has two results" in done.output


# ---- by hand -------------------------------------------------------------------------------------


def published(attack: str, *auc: float, defense: str = "none", **more: Any) -> list[Record]:
    made = [record(attack, defense, seed, auc=value, **more) for seed, value in enumerate(auc)]
    for one in made:
        one.utility["test_accuracy"] = 0.9
    return made


def test_the_strongest_published_attack_is_beaten_or_not() -> None:
    victim = Victim("v", [*published("weak", 0.6, 0.6, 0.6), *published("best", 0.7, 0.71, 0.72)])
    up = outcome(victim, published("mine", 0.75, 0.77, 0.76))
    assert (up.best, up.attack, round(up.published, 3), round(up.ours, 3)) == (
        "best", "mine", 0.71, 0.76,
    )  # fmt: skip
    assert up.difference is not None
    assert round(up.difference.mean, 3) == 0.05
    down = outcome(victim, published("mine", 0.5, 0.52, 0.51))
    same = outcome(victim, published("best", 0.7, 0.71, 0.72))
    counts, moved = told([up, down, same])
    of = "1 of 3 pairs of attack and victim."
    assert counts.endswith(f"attack beyond chance (†, Holm): {of}")
    assert moved == "Moved: v (+0.050)."
    assert [line.endswith("†") for line in table([up, down, same]).splitlines()[1:]] == [
        True, False, False,
    ]  # fmt: skip


def test_seeds_that_only_one_has() -> None:
    victim = Victim("v", [*published("whole", 0.6, 0.6, 0.6), *published("part", 0.9, 0.9)])
    found = outcome(victim, published("mine", 0.7, 0.7, 0.8))
    assert found.best == "whole"
    assert outcome(victim, published("mine", 0.7, 0.7)).best == "part"


def test_a_victim_of_other_accuracy_is_marked() -> None:
    victim = Victim("v", published("best", 0.7, 0.71, 0.72))
    ours = published("mine", 0.75, 0.77, 0.76)
    ours[1].utility["test_accuracy"] = 0.89
    found = outcome(victim, ours)
    assert found.other
    assert "v ≠" in table([found])
    assert told([found])[-1].startswith("≠: 1 victim of other accuracy")


def test_what_does_not_count_moves_nothing_and_is_beaten_only_where_nothing_counts() -> None:
    victim = Victim("v", [*published("sound", 0.6, 0.6, 0.6), *published("leaky", 0.9, 0.9, 0.91)])
    mine = published("mine", 0.8, 0.82, 0.81)
    doubtful = {"leaky"}

    def mark(one: Record) -> str:
        return "‡" if one.cell.attack.name in doubtful else ""

    found = outcome(victim, mine, mark)
    assert (found.best, found.best_mark, found.mark) == ("sound", "", "")
    assert told([found])[1].startswith("Moved: v")
    doubtful.add("mine")
    cheat = outcome(victim, mine, mark)
    assert "0.810 ‡" in table([cheat])
    assert "†" not in table([cheat])
    assert told([cheat])[0].endswith("0 of 0 victims.")
    assert told([cheat])[1].startswith("‡, ¶: 1 line with an attack whose numbers do not count")
    doubtful.add("sound")
    alone = outcome(victim, mine, mark)
    assert alone.best == "leaky"
    assert "0.903 ‡" in table([alone])


def test_seeds_that_failed_are_counted_and_change_no_victim() -> None:
    victim = Victim("v", published("best", 0.7, 0.71, 0.72))
    ours = published("mine", 0.75, 0.77, 0.76)
    ours[1] = ours[1].model_copy(update={"status": "failed", "reason": "it broke", "metrics": {},
                                         "utility": {}})  # fmt: skip
    found = outcome(victim, ours)
    assert (found.seeds, found.other) == ((2, 3), False)
    assert "(2 of 3 seeds)" in table([found])
    ours[0] = ours[0].model_copy(update={"status": "skipped", "reason": "why not", "metrics": {}})
    assert outcome(victim, ours[:2]).reason == "failed: it broke"


def test_victims_are_those_of_the_adaptive_adversary() -> None:
    made = [*published("a", 0.6, 0.7), *published("b", 0.6, defense="talos"),
            *published("c", 0.6, game="attributes")]  # fmt: skip
    naive, other, control = published("d", 0.6), published("e", 0.6), published("f", 0.6)
    naive[0].cell = naive[0].cell.model_copy(
        update={"knows": AdversaryRecord(adaptive=False), "adversary": "naive"}
    )
    knows = AdversaryRecord(target=made[0].cell.target)
    other[0].cell = other[0].cell.model_copy(update={"knows": knows})
    control[0].cell = control[0].cell.model_copy(update={"control": True})
    white = published("g", 0.8)
    white[0].cell = white[0].cell.model_copy(
        update={"knows": AdversaryRecord(white_box=True), "adversary": "adaptive, white-box"}
    )
    decides = published("h", 0.9)
    decides[0].cell = decides[0].cell.model_copy(update={"decides_at": "FPR 0.01"})
    found = victims([*made, *naive, *other, *control, *white, *decides], "membership")
    assert [one.name for one in found] == ["none × simclr × digits", "talos × simclr × digits"]
    assert {one.cell.attack.name for one in found[0].records} == {"a", "g", "h"}
    (alone,) = victims(made[:2], "membership", seeds=1)
    assert [one.seed for one in alone.records] == [0]
    assert [one.name for one in victims(made, "attributes")] == ["none × simclr × digits"]


def test_the_grid_of_a_victim(registry: Any) -> None:
    made = record()
    made.cell.protocol.clear()
    made.cell.protocol.update({"name": "few", "members": 5, "nonmembers": 5, "pool": 5})
    victim = Victim("v", [made, made.model_copy(update={"seed": 4})])
    suite = suite_against(victim, registry.get("attack", "lira"), registry)
    assert (suite.attacks, suite.seeds, suite.adversaries) == (["lira"], [0, 4], ["adaptive"])
    white = suite_against(victim, registry.get("attack", "gradient-canary"), registry)
    assert white.adversaries == ["white-box"]
    assert [one.name for one in challengers(registry, ["lira", "rmia"])] == ["lira", "rmia"]
    with pytest.raises(BadInputError, match="no attack to try"):
        challengers(registry, [])
