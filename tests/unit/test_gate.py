"""The gate of an audit: pass, fail or undecided, by intervals that hold together."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_index import SCRIPT
from tests.unit.test_own_model import (  # a fixture and helpers
    MEMBERS,
    NONMEMBERS,
    files,
    run,
)
from tests.unit.test_rows import record

import privbench
from privbench import BadInputError
from privbench.api.own_model import gate
from privbench.cli.main import main
from privbench.measure.games import metrics
from privbench.results.intervals import FIGURES, Answers, rows_that_decide, shown_epsilon
from privbench.results.record import Number
from privbench.testing import rate_band

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

Scores = dict[str, "NDArray[Any]"]


def scored(inside: Any, outside: Any, decisions: Any = None) -> Scores:
    made = {
        "truth.member": np.arange(len(inside) + len(outside)) < len(inside),
        "victim.scores": np.concatenate([inside, outside]).astype(float),
    }
    return made if decisions is None else {**made, "victim.decisions": np.asarray(decisions)}


PERFECT = scored(np.arange(20) + 100, np.arange(20))
EQUAL = scored(np.arange(20) + 0.5, np.arange(20))


def judged(
    attacks: Mapping[str, Scores | str], fail_above: dict[str, float], **more: Any
) -> gate.Gate:
    """The gate over attacks with these scores, or with this status."""
    records = [
        record(name, status=scores if isinstance(scores, str) else "ok", trial=name)
        for name, scores in attacks.items()
    ]
    held: dict[str, Any] = dict(attacks)
    given: Any = {"doubtful": {}, "left_out": {}, "no_verdict": "", **more}
    return gate.judged(records, lambda one: held[one.trial], fail_above, **given)


# ---- one threshold, by hand ----------------------------------------------------------------------


def test_a_perfect_attack_on_twenty_rows_by_hand() -> None:
    """All 20 pairs are right, so the lower end is (error / 2) ** (1 / 20) (Clopper-Pearson)."""
    made = judged({"perfect": PERFECT}, {"auc": 0.83})
    (one,) = made.thresholds
    low = 0.025 ** (1 / 20)  # .8316
    number = one.found[0].number
    assert number.low == pytest.approx(low)
    assert number.value == number.high == 1.0
    assert (made.outcome, one.outcome, one.rows) == ("failed", "failed", None)
    assert (
        one.words
        == "auc=0.83 failed. Above it: the only attack, perfect with 1.000 (0.832 to 1.000)."
    )
    assert made.words.splitlines()[-1] == (
        "1 interval of 95.00%, which hold together with 95% probability (Bonferroni)."
    )
    assert judged({"perfect": PERFECT}, {"auc": 0.84}).outcome == "undecided"


def test_several_attacks_have_wider_intervals_and_more_rows_decide() -> None:
    """Two attacks: .0125 ** (1 / n) is above .83 from 24 rows on; .0125 ** (1 / 20) is .803."""
    made = judged({"perfect": PERFECT, "same": PERFECT}, {"auc": 0.83})
    (one,) = made.thresholds
    assert made.error == 0.025
    assert one.found[1].number.low == pytest.approx(0.0125 ** (1 / 20))
    assert (one.outcome, one.rows) == ("undecided", 24)
    assert math.ceil(math.log(0.0125) / math.log(0.83)) == 24
    assert "Around it: all 2 attacks, the highest perfect with 1.000 (0.803 to 1.000)" in one.words
    assert "; about 24 members and as many nonmembers would decide." in one.words
    two = judged({"perfect": PERFECT}, {"auc": 0.83, "tpr@1%": 0.5})
    assert two.error == 0.025  # two thresholds are two intervals as well


def test_too_few_nonmembers_for_a_rate_are_undecided_and_say_how_many() -> None:
    (one,) = judged({"equal": EQUAL}, {"tpr@1%": 0.02}).thresholds
    assert one.outcome == "undecided"
    assert "(TPR at FPR 0.01 needs at least 100 nonmembers, got 20); about" in one.words
    assert one.rows is not None
    assert one.rows > 100


def test_ties_that_no_number_of_rows_decides() -> None:
    same = scored(np.ones(200), np.ones(200))
    (one,) = judged({"same": same}, {"tpr@1%": 0.02}).thresholds
    assert (one.outcome, one.rows) == ("undecided", None)
    assert "; more rows like these would not decide." in one.words


def test_an_epsilon_is_that_of_the_roc_at_one_percent() -> None:
    draw = np.random.default_rng(0)
    strong = scored(draw.normal(3, 1, 4000), draw.normal(size=4000))
    made = judged({"strong": strong}, {"epsilon": 2.0})
    found = made.thresholds[0].found[0].number
    tpr = metrics.tpr_at_fpr(strong["victim.scores"], strong["truth.member"], 0.01)
    assert isinstance(tpr, metrics.Estimate)
    assert found.low == pytest.approx(math.log((tpr.low - 1e-5) / 0.01))
    assert found.high == pytest.approx(math.log((tpr.high - 1e-5) / 0.01))
    assert made.outcome == "failed"
    assert "epsilon is ln((TPR - 1e-05) / FPR) at 1% false alarms" in made.words


def test_a_perfect_attack_shows_no_more_epsilon_than_the_rate_allows() -> None:
    assert FIGURES["epsilon"].most == shown_epsilon(1.0) == pytest.approx(math.log(100), abs=1e-4)


# ---- the verdict over all ------------------------------------------------------------------------


def test_what_did_not_run_is_no_pass() -> None:
    wide = {"auc": 0.9}
    passed = judged({"equal": EQUAL}, wide, left_out={"lira": "it needs shadows"})
    assert passed.outcome == "passed"
    assert passed.words.endswith("Did not run, so nothing is known of: lira.")
    broken = judged({"equal": EQUAL, "rmia": "failed"}, wide)
    assert broken.outcome == "undecided"
    assert "rmia failed to run, which does not count as passed" in broken.words
    lost: Any = {"equal": EQUAL, "lost": None}
    records = [record(name, trial=name) for name in lost]
    made = gate.judged(records, lambda one: lost[one.trial], wide, doubtful={}, left_out={},
                       no_verdict="")  # fmt: skip
    assert "lost has lost its per-sample scores, which does not count as passed" in made.words
    none = judged({"rmia": "skipped"}, wide)
    assert none.outcome == "undecided"
    assert "No attack on membership ran." in none.words
    strong = judged({"perfect": PERFECT, "rmia": "failed"}, {"auc": 0.6})
    assert strong.outcome == "failed"  # one attack is enough


def test_no_verdict_is_undecided_whatever_was_found() -> None:
    for scores in (PERFECT, EQUAL):
        made = judged({"one": scores}, {"auc": 0.8}, no_verdict="check the files")
        assert made.outcome == "undecided"
        assert "auc=0.8 is undecided. No verdict: check the files." in made.words


def test_a_doubtful_attack_fails_nothing_and_passes_only_below() -> None:
    why = {"perfect": "its null excludes 0.5"}
    made = judged({"equal": EQUAL, "perfect": PERFECT}, {"auc": 0.8}, doubtful=why)
    assert made.outcome == "undecided"
    assert "Above it, but not counted: perfect: its null excludes 0.5." in made.words
    below = judged({"equal": EQUAL}, {"auc": 0.9}, doubtful={"equal": "its null"})
    assert below.outcome == "passed"


def test_a_failed_threshold_is_a_failed_gate() -> None:
    made = judged({"perfect": PERFECT}, {"auc": 0.6, "tpr@1%": 0.5})
    assert [one.outcome for one in made.thresholds] == ["failed", "undecided"]
    assert made.outcome == "failed"
    half = judged({"equal": EQUAL}, {"auc": 0.9, "tpr@1%": 0.5})
    assert [one.outcome for one in half.thresholds] == ["passed", "undecided"]
    assert half.outcome == "undecided"


def test_only_attacks_that_decide_have_a_balanced_accuracy() -> None:
    decides = scored(np.arange(200), np.arange(200), [True] * 100 + [False] * 100 + [False] * 200)
    made = judged({"equal": EQUAL, "decides": decides}, {"balanced_accuracy": 0.6})
    assert [one.attack for one in made.thresholds[0].found] == ["decides"]
    assert made.outcome == "failed"
    none = judged({"equal": EQUAL}, {"balanced_accuracy": 0.6})
    assert none.outcome == "undecided"
    assert "No attack that ran decides; most need shadows for it." in none.words


def test_each_seed_is_an_attack_of_its_own() -> None:
    records = [record("lira", seed=seed, trial=str(seed)) for seed in (0, 1)]
    made = gate.judged(records, lambda _: EQUAL, {"auc": 0.9}, doubtful={}, left_out={},
                       no_verdict="")  # fmt: skip
    assert [one.attack for one in made.thresholds[0].found] == ["lira, seed 0", "lira, seed 1"]
    assert made.error == 0.025


ENDS = st.tuples(*[st.floats(0.4, 1.0)] * 3).map(sorted)
FOUND = st.lists(
    st.builds(
        lambda ends, doubtful: (Number(low=ends[0], value=ends[1], high=ends[2]), doubtful),
        ENDS, st.sampled_from(["", "its null excludes 0.5"]),
    ),
    max_size=5,
)  # fmt: skip


@given(FOUND, st.floats(0.5, 1.0), st.floats(0.0, 0.3), st.booleans())
def test_a_higher_threshold_is_never_harder_to_pass(
    numbers: Any, low: float, more: float, broken: bool
) -> None:
    found = [gate.Found(f"a{i}", one, None, why) for i, (one, why) in enumerate(numbers)]
    lacking = {"b": "failed to run"} if broken else {}
    order = ["failed", "undecided", "passed"]
    first, second = (
        gate.decided("auc", t, found, broken=lacking).outcome for t in (low, low + more)
    )
    assert order.index(first) <= order.index(second)
    if first == "passed":
        assert found
        assert not broken


def test_nothing_passes_with_shadows_that_tell_nothing() -> None:
    made = judged({"equal": EQUAL}, {"auc": 0.9}, unsure="shadows tell nothing")
    assert made.outcome == "undecided"
    assert ", but shadows tell nothing." in made.words
    assert judged({"perfect": PERFECT}, {"auc": 0.6}, unsure="odd").outcome == "failed"


def test_a_group_above_a_threshold_fails_it() -> None:
    """Of 20 + 20 rows that are all right, the lower end is (error / 2) ** (1 / 20)."""
    groups = {"class 3": Answers.of(PERFECT), "class 4": Answers.of(EQUAL)}
    made = judged({"equal": EQUAL}, {"auc": 0.6}, groups=groups)
    low = (gate.ERROR_OF_GROUPS / 2 / 2) ** (1 / 20)
    assert made.outcome == "failed"
    assert made.thresholds[0].words == (
        f"auc=0.6 failed. Above it, by the strongest attack: the rows of class 3 with 1.000 "
        f"({low:.3f} to 1.000, corrected for the number of groups)."
    )
    assert judged({"equal": EQUAL}, {"auc": 0.9}, groups=groups).outcome == "passed"
    unsure = judged({"equal": EQUAL}, {"auc": 0.6}, groups=groups, no_verdict="check")
    assert unsure.outcome == "undecided"
    both = judged({"equal": EQUAL}, {"auc": 0.6}, groups={**groups, "<b>\n": Answers.of(PERFECT)})
    assert both.thresholds[0].words.endswith("number of groups); and 1 more group.")
    assert judged({"equal": EQUAL}, {"tpr@1%": 0.5}, groups=groups).outcome == "undecided"


# ---- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "shift"), [(100, 100, 0.5), (60, 700, 0.0), (900, 300, 2.0)])
def test_intervals_of_95_percent_are_those_of_the_results(m: int, n: int, shift: float) -> None:
    draw = np.random.default_rng(m)
    scores = np.concatenate([draw.normal(shift, 1, m), draw.normal(size=n)]).round(1)  # ties
    member, decisions = np.arange(m + n) < m, scores > 0.4
    of = Answers.of(scored(scores[:m], scores[m:], decisions))
    known: dict[str, Any] = {
        "auc": metrics.auc(scores, member),
        "tpr@1%": metrics.tpr_at_fpr(scores, member, 0.01),
        "tpr@0.1%": metrics.tpr_at_fpr(scores, member, 0.001),
        "balanced_accuracy": metrics.balanced_accuracy(decisions, member),
    }
    for name, wanted in known.items():
        made: Any = FIGURES[name].measure(of, 0.05, (m, n))
        assert type(made) is type(wanted)
        if isinstance(wanted, metrics.Estimate):
            assert (made.value, made.low, made.high) == pytest.approx(
                (wanted.value, wanted.low, wanted.high), abs=1e-9
            )


@pytest.mark.parametrize("name", FIGURES)
def test_three_times_the_rows_are_each_row_three_times(name: str) -> None:
    draw = np.random.default_rng(5)
    inside, outside = np.sort(draw.normal(0.5, 1, 300))[::-1], np.sort(draw.normal(size=500))[::-1]
    more: Any = FIGURES[name].measure(Answers(inside, outside, (200, 190)), 0.01, (900, 1500))
    thrice = Answers(np.repeat(inside, 3), np.repeat(outside, 3), (600, 570))
    made: Any = FIGURES[name].measure(thrice, 0.01, thrice.sizes)
    assert (more.value, more.low, more.high) == pytest.approx(
        (made.value, made.low, made.high), rel=1e-3
    )


def test_one_attack_above_decides_alone_and_those_below_only_together() -> None:
    def rows(*found: tuple[float, int | None]) -> int | None:
        made = [gate.Found(f"a{i}", Number(value=value, low=0.4, high=0.9), n)
                for i, (value, n) in enumerate(found)]  # fmt: skip
        return gate.decided("auc", 0.6, made).rows

    assert rows((0.5, 300), (0.55, 900)) == 900
    assert rows((0.5, 300), (0.55, None)) is None
    assert rows((0.5, 300), (0.65, 700), (0.7, 500), (0.61, None)) == 500


@pytest.mark.parametrize("name", FIGURES)
def test_so_many_rows_decide(name: str) -> None:
    """The number holds for other rows with the same distribution, up to luck of the draw."""
    draw = np.random.default_rng(3)
    inside, outside = (np.sort(draw.normal(size=400))[::-1] for _ in range(2))
    of = Answers(inside, outside, called=(200, 190))
    threshold = {"auc": 0.57, "balanced_accuracy": 0.57, "epsilon": 1.5, "tpr@0.1%": 0.01,
                 "tpr@1%": 0.04}[name]  # fmt: skip
    rows = rows_that_decide(name, of, threshold, 0.01, 20)
    assert rows is not None

    def width(n: int) -> Any:
        return FIGURES[name].measure(of, 0.01, (n, n))

    assert width(rows).high < threshold or width(rows).low > threshold
    fewer = width(int(rows * 0.8))
    assert isinstance(fewer, metrics.Refused) or fewer.low <= threshold <= fewer.high


def test_a_model_at_its_threshold_fails_and_passes_rarely() -> None:
    """Five attacks whose true AUC is .6: at most 2.5 % of 400 gates fail, however many are tried.

    Without the correction about 12 % would. The test fails by luck once in 10,000 runs.
    """
    draw, failed, passed = np.random.default_rng(0), 0, 0
    lead = math.sqrt(2) * 0.2533471031357997  # the standard normal quantile of .6
    for _ in range(400):
        attacks = {
            f"a{i}": scored(draw.normal(lead, 1, 60), draw.normal(size=60)) for i in range(5)
        }
        outcome = judged(attacks, {"auc": 0.6}).outcome
        failed += outcome == "failed"
        passed += outcome == "passed"
    assert failed / 400 <= 0.025 + rate_band(400, 0.025)
    assert passed == 0


def test_the_rows_that_a_model_without_a_leak_needs() -> None:
    """AUC: z * sqrt(1 / (6 n)) on the logit scale; z is 2.576 for the error .05 / 5."""
    made = privbench.Gate.rows_needed({"auc": 0.55}, attacks=5)["auc"]
    z = 2.5758293035489004
    by_hand = (z / (math.log(0.55 / 0.45) * 0.25)) ** 2 / 6
    assert made == pytest.approx(by_hand, rel=0.05)
    with pytest.raises(BadInputError, match="attacks is 0: give"):
        privbench.Gate.rows_needed({"auc": 0.55}, attacks=0)


# ---- the command and the notebook ----------------------------------------------------------------

WRONG = {
    "auc=55": "auc=55: give a number above 0.5, which chance reaches, and below 1, which a perfect",
    "aux=.5": "aux=.5: there is no figure aux: did you mean auc?",
    "zebra=.5": "there is no figure zebra: choose from auc, balanced_accuracy, epsilon, tpr@0.1%",
    "tpr@200%=.1": "there is no figure tpr@200%: choose from tpr@0.1%, tpr@1%",
    "tpr@5%=.1": "there is no figure tpr@5%: choose from tpr@0.1%, tpr@1%",
    "auc=.5_5": "auc=.5_5: give a number above 0.5",
    "auc=\u0660.\u0665": "auc=\u0660.\u0665: give a number above 0.5",
    "epsilon=-1": "epsilon=-1: give a number above 0, which chance reaches, and below 4.605",
    "epsilon=5": "below 4.605, which a perfect attack reaches",
    "auc=nan": "auc=nan: give a number above",
    "auc=x": "auc=x: give a number above",
    "auc": "auc: write FIGURE=NUMBER, such as auc=.55",
    "tpr@1%=.02 tpr@1.0%=.03": "tpr@1.0%=.03: tpr@1% has two thresholds: give one",
}


def test_a_wrong_gate_is_refused_before_torch_is_imported() -> None:
    """All in one process, which ends without torch."""
    begin = "audit --model a:b --members none.npz --nonmembers none.npz"
    lines = [
        " ".join([begin, *(f"--fail-above {one}" for one in wrong.split())]) for wrong in WRONG
    ]
    done = subprocess.run([sys.executable, "-c", SCRIPT], input="\n".join(lines), text=True,
                          capture_output=True, check=True, timeout=120)  # fmt: skip
    statuses = [line for line in done.stdout.splitlines() if line.startswith("status")]
    assert [one.split()[1] for one in statuses] == ["2"] * len(WRONG)
    assert not any("torch" in one for one in statuses)
    told = done.stderr.splitlines()
    assert len(told) == len(WRONG)
    for sentence, wanted in zip(told, WRONG.values(), strict=True):
        assert sentence.startswith("privbench: --fail-above ")
        assert wanted in sentence


@pytest.mark.parametrize("wrong", [{"auc": 55}, {"aux": 0.6}, {"auc": True}, {"auc": None}])
def test_messages_in_python_name_the_argument(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(BadInputError, match=r"^fail_above au") as error:
        run(tmp_path, len, fail_above=wrong)
    assert "--" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_status_of_a_gate(tmp_path: Path) -> None:
    """Without a gate it is 0, or 4 if there is no verdict: see test_own_model."""
    rows = files(tmp_path, members=MEMBERS, nonmembers=NONMEMBERS)
    words = ["audit", "--model", "tests.unit.test_own_model:overfit", *rows, "--attack",
             "metric-confidence", "--out", str(tmp_path / "out"),
             "--fail-above", "tpr@1%=.9999"]  # fmt: skip
    done = CliRunner().invoke(main, [*words, "--fail-above", "auc=.55"])
    assert done.exit_code == 3, done.output
    assert "The gate failed.\ntpr@1%=0.9999 is undecided. Around it: the only" in done.output
    assert "\nauc=0.55 failed. Above it: the only attack, metric-confidence(" in done.output


def test_the_notebook_has_the_gate(tmp_path: Path) -> None:
    def ask(x: np.ndarray) -> np.ndarray:  # it knows nothing
        return np.full((len(x), 2), 0.5)

    assert run(tmp_path, ask).gate is None
    found = run(tmp_path, ask, fail_above={"auc": 0.8, "tpr@1%": 0.5})
    assert isinstance(found.gate, privbench.Gate)
    assert [(one.name, one.outcome) for one in found.gate.thresholds] == [
        ("auc=0.8", "passed"), ("tpr@1%=0.5", "undecided"),
    ]  # fmt: skip
    assert found.gate.outcome == "undecided"
    assert run(tmp_path, ask, fail_above={"auc": 0.8}).gate.outcome == "passed"
