"""Metrics against numbers known beforehand: by hand, from scikit-learn, in closed form."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics as reference

from privbench.measure.games.metrics import (
    Estimate,
    Refused,
    Thresholds,
    accuracy,
    auc,
    balanced_accuracy,
    balanced_class_accuracy,
    best_threshold,
    clopper_pearson,
    precision,
    recall,
    tpr_at_fpr,
)
from privbench.results.statistics import mean_over_seeds
from privbench.testing import rate_band

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from privbench.measure.games.metrics import Bools, Floats

SCORES = [0.9, 0.8, 0.3, 0.7, 0.2, 0.1, 0.05]
MEMBER = [1, 1, 1, 0, 0, 0, 0]
INF, NAN = math.inf, math.nan


def gaussian(d: float, n_in: int, n_out: int, seed: int, levels: int = 0) -> tuple[Floats, Bools]:
    """Members N(d, 1), nonmembers N(0, 1), shuffled; rounded to steps of 1 / levels."""
    rng = np.random.default_rng(seed)
    member = rng.permutation(np.arange(n_in + n_out) < n_in)
    scores = rng.normal(size=member.size) + d * member
    return (np.round(scores * levels) / levels if levels else scores), member


def value(estimate: Estimate | Refused) -> float:
    assert isinstance(estimate, Estimate), estimate
    return estimate.value


# ── D0: exact small numbers ──────────────────────────────────────────────────


def test_the_seven_scores() -> None:
    assert value(tpr_at_fpr(SCORES, MEMBER, 0.25)) == 1
    assert value(tpr_at_fpr(SCORES, MEMBER, 0.49)) == 1
    assert auc(SCORES, MEMBER).value == pytest.approx(11 / 12, rel=1e-15)
    best = best_threshold(SCORES, MEMBER)
    assert best == Thresholds(0.25)  # between the member at .3 and the nonmember at .2
    assert balanced_accuracy(best.decide(SCORES), MEMBER).value == 7 / 8


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(1, 1000, 2.5317e-5, 5.5589e-3), (10, 10000, 4.7964e-4, 1.83826e-3), (0, 1000, 0, 3.6821e-3)],
)
def test_clopper_pearson_triples(successes: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), rel=2e-5)
    mirrored = clopper_pearson(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), rel=1e-7)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.975])
@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (3, 7), (40, 41), (0.5, 3)])
def test_clopper_pearson_is_scipys(successes: float, trials: int, confidence: float) -> None:
    got = clopper_pearson(successes, trials, confidence)
    if isinstance(successes, int):
        exact = stats.binomtest(successes, trials).proportion_ci(confidence, "exact")
        assert got == pytest.approx((exact.low, exact.high), abs=1e-10)
    else:
        tail = (1 - confidence) / 2
        beta = stats.beta(successes, trials - successes + 1).ppf(tail)
        assert got[0] == pytest.approx(beta, rel=1e-8)


def test_gaussian_scores_meet_the_closed_form() -> None:
    scores, member = gaussian(2, 400_000, 400_000, seed=1)
    # tolerances are about four standard errors
    assert value(tpr_at_fpr(scores, member, 0.001)) == pytest.approx(0.13780541, abs=0.012)
    assert value(tpr_at_fpr(scores, member, 0.01)) == pytest.approx(0.37208058, abs=0.008)
    assert value(tpr_at_fpr(scores, member, 0.1)) == pytest.approx(0.76375958, abs=0.005)
    assert auc(scores, member).value == pytest.approx(0.92135040, abs=0.001)
    best = best_threshold(scores, member)
    assert balanced_accuracy(best.decide(scores), member).value == pytest.approx(
        0.84134475, abs=0.002
    )
    assert best.overall == pytest.approx(1, abs=0.1)


def test_constant_scores_tell_nothing() -> None:
    scores, member = np.full(2000, 3.0), np.arange(2000) < 1000
    area = auc(scores, member)
    assert area.value == 0.5
    assert (area.low, area.high) == pytest.approx(clopper_pearson(500, 1000))
    at_fpr = tpr_at_fpr(scores, member, 0.001)
    assert at_fpr == Estimate(0, 0, 1)  # the rule is unknown: a threshold at 3 may be allowed
    best = best_threshold(scores, member)
    assert best.overall == INF
    assert balanced_accuracy(best.decide(scores), member).value == 0.5
    assert precision(best.decide(scores), member) == Refused(
        "Precision needs at least one sample called a member, got none."
    )


# ── against scikit-learn ─────────────────────────────────────────────────────


@pytest.mark.parametrize("levels", [0, 1, 3])
@pytest.mark.parametrize(("n_in", "n_out"), [(60, 60), (17, 301), (200, 5)])
def test_scikit_learn_agrees(n_in: int, n_out: int, levels: int) -> None:
    scores, member = gaussian(0.7, n_in, n_out, seed=n_in, levels=levels)
    fpr, tpr, _ = reference.roc_curve(member, scores, drop_intermediate=False)
    for limit in (0.2, 0.5):
        assert value(tpr_at_fpr(scores, member, limit)) == tpr[fpr <= limit].max()
    assert auc(scores, member).value == pytest.approx(reference.roc_auc_score(member, scores))
    called = scores >= 0.5
    assert balanced_accuracy(called, member).value == pytest.approx(
        reference.balanced_accuracy_score(member, called)
    )
    assert recall(called, member).value == reference.recall_score(member, called)
    weight = np.where(member, n_out, n_in)  # equal priors
    expected_precision = reference.precision_score(member, called, sample_weight=weight)
    assert value(precision(called, member)) == pytest.approx(expected_precision)


def test_precision_on_balanced_sets_is_the_usual_one() -> None:
    scores, member = gaussian(1, 150, 150, seed=3)
    called = scores > 0.2
    expected = reference.precision_score(member, called)
    assert value(precision(called, member)) == pytest.approx(expected)


def test_precision_interval_takes_both_rates_at_their_ends() -> None:
    called = np.r_[np.arange(40) < 12, np.arange(60) < 3]
    got = precision(called, np.arange(100) < 40)
    tpr_low, tpr_high = clopper_pearson(12, 40, 0.975)
    fpr_low, fpr_high = clopper_pearson(3, 60, 0.975)
    assert isinstance(got, Estimate)
    assert got.value == pytest.approx(0.3 / 0.35)
    assert got.low == pytest.approx(tpr_low / (tpr_low + fpr_high))
    assert got.high == pytest.approx(tpr_high / (tpr_high + fpr_low))


def test_class_accuracies_are_scikit_learns() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice([0, 2, 5], 300, p=[0.7, 0.25, 0.05])
    predicted = np.where(rng.random(300) < 0.6, truth, rng.integers(0, 6, 300))
    assert accuracy(predicted, truth).value == reference.accuracy_score(truth, predicted)
    recalls = reference.recall_score(truth, predicted, labels=[0, 2, 5], average="macro")
    assert balanced_class_accuracy(predicted, truth).value == pytest.approx(recalls)


# ── uncertainty ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("levels", [0, 2])
def test_delong_variance_by_pairs(levels: int) -> None:
    """The half width on the logit scale gives the variance back: compare with O(n1 n0)."""
    scores, member = gaussian(0.8, 40, 55, seed=5, levels=levels)
    inside, outside = scores[member][:, None], scores[~member][None]
    kernel = (inside > outside) + 0.5 * (inside == outside)
    centred = kernel - kernel.mean()
    rows, columns = centred.mean(1), centred.mean(0)
    variance = (rows @ rows) / (39 * 40) + (columns @ columns) / (54 * 55)
    got, a = auc(scores, member), kernel.mean()
    half = (special.logit(got.high) - special.logit(got.low)) / 2
    assert got.value == pytest.approx(a)
    assert half == pytest.approx(special.ndtri(0.975) * np.sqrt(variance) / (a * (1 - a)))
    assert special.logit(got.high) + special.logit(got.low) == pytest.approx(2 * special.logit(a))


@pytest.mark.parametrize(("n_in", "n_out"), [(1, 1), (4, 9), (30, 30)])
def test_a_perfect_attack_keeps_an_interval(n_in: int, n_out: int) -> None:
    member = np.arange(n_in + n_out) < n_in
    fewest = min(n_in, n_out)
    perfect, inverted = auc(member, member), auc(~member, member)
    assert (perfect.value, perfect.high) == (1, 1)
    assert perfect.low == pytest.approx(0.025 ** (1 / fewest))
    assert inverted.low == 0
    assert inverted.high == pytest.approx(1 - perfect.low)


def test_one_member_alone_has_no_variance_but_an_interval() -> None:
    assert auc([2, 1, 2, 3], [1, 0, 0, 0]).value == 0.5
    assert auc([2, 1, 2, 3], [1, 0, 0, 0]).high > 0.97


def covered(ask: Callable[[], Estimate | Refused], truth: float, times: int) -> float:
    estimates = [ask() for _ in range(times)]
    return float(np.mean([isinstance(e, Estimate) and e.low <= truth <= e.high for e in estimates]))


@pytest.mark.parametrize(
    ("d", "n", "nominal"), [(0, 30, 0.95), (1, 100, 0.95), (2, 30, 0.95), (3.5, 100, 0.935)]
)
def test_auc_interval_covers(d: float, n: int, nominal: float) -> None:
    rng, member = np.random.default_rng(6), np.arange(2 * n) < n
    truth = float(special.ndtr(d / math.sqrt(2)))
    share = covered(lambda: auc(rng.normal(size=2 * n) + d * member, member), truth, 600)
    assert nominal - rate_band(600, nominal) <= share <= 0.995


@pytest.mark.parametrize("levels", [0, 2])
def test_tpr_interval_covers(levels: int) -> None:
    """n = 1000, FPR 1 %, d' = 1: Clopper-Pearson on the TPR alone covers 62 % (pitfalls, 9)."""
    rng, member = np.random.default_rng(7), np.arange(2000) < 1000

    def draw() -> Floats:
        scores = rng.normal(size=2000) + member
        return np.round(scores * levels) / levels if levels else scores

    steps = np.arange(-20, 20) / levels - 0.5 / levels if levels else special.ndtri([0.99])
    allowed = steps[special.ndtr(-steps) <= 0.01 * (1 + 1e-9)]
    truth = float(special.ndtr(1 - allowed).max())
    estimates = [tpr_at_fpr(draw(), member, 0.01) for _ in range(400)]
    held = [isinstance(e, Estimate) and e.low <= truth <= e.high for e in estimates]
    naive = [
        low <= truth <= high
        for low, high in (clopper_pearson(round(value(e) * 1000), 1000) for e in estimates)
    ]
    assert np.mean(held) >= 0.95 - rate_band(400, 0.95)
    if not levels:
        assert np.mean(naive) < 0.8  # the same data can tell a dishonest interval


def test_tpr_interval_ends_are_order_statistics() -> None:
    """n = 1000, FPR 1 %: Binomial(1000, .01) leaves 1.25 % below 4 and 1.25 % from 19 on."""
    outside, inside = np.arange(1000.0), np.arange(0.5, 1000)
    got = tpr_at_fpr(np.r_[inside, outside], np.arange(2000) < 1000, 0.01)
    count = stats.binom(1000, 0.01)
    few = int(count.ppf(0.0125))  # smallest k with P(<= k) >= .0125
    many = int(count.isf(0.0125)) + 1
    assert count.cdf(few - 1) <= 0.0125 < count.cdf(few)
    assert count.sf(many - 1) <= 0.0125 < count.sf(many - 2)
    # beyond the few-th largest nonmember lie `few` members; from the many-th on, `many`
    assert isinstance(got, Estimate)
    assert got.value == 0.011  # above the 11th largest nonmember, 989, lie 989.5 to 999.5
    assert got.low == pytest.approx(clopper_pearson(few, 1000, 0.975)[0])
    assert got.high == pytest.approx(clopper_pearson(many, 1000, 0.975)[1])


@pytest.mark.parametrize(("fpr", "n", "needed"), [(0.01, 99, 100), (0.001, 999, 1000), (0.3, 3, 4)])
def test_too_few_nonmembers_are_refused(fpr: float, n: int, needed: int) -> None:
    scores, member = np.arange(n + 5.0), np.arange(n + 5) < 5
    answer = tpr_at_fpr(scores, member, fpr)
    assert answer == Refused(f"TPR at FPR {fpr} needs at least {needed} nonmembers, got {n}.")
    enough = np.arange(needed + 5) < 5
    assert isinstance(tpr_at_fpr(np.arange(needed + 5.0), enough, fpr), Estimate)


def test_a_rate_that_is_whole_on_paper_is_whole() -> None:
    """.29 * 100 < 29 in floating point: the 29th false positive is allowed nonetheless."""
    outside = np.arange(100.0)
    inside = np.full(10, 71.0)  # reached together with the 29 nonmembers from 71 on
    scores, member = np.r_[inside, outside], np.arange(110) < 10
    assert value(tpr_at_fpr(scores, member, 0.29)) == 1
    assert value(tpr_at_fpr(scores, member, 0.28)) == 0


@pytest.mark.parametrize(
    ("tpr", "fpr", "n_in", "n_out"),
    [(0.6, 0.5, 100, 100), (0.03, 0.01, 200, 400), (0.99, 0.9, 50, 80)],
)
def test_decision_intervals_cover(tpr: float, fpr: float, n_in: int, n_out: int) -> None:
    rng, member = np.random.default_rng(8), np.arange(n_in + n_out) < n_in
    rate = np.where(member, tpr, fpr)
    mean, share = (tpr + 1 - fpr) / 2, tpr / (tpr + fpr)
    draws = [rng.random(member.size) < rate for _ in range(400)]
    for metric, truth in ((balanced_accuracy, mean), (precision, share), (recall, tpr)):
        answers = [metric(draw, member) for draw in draws]
        held = [e.low <= truth <= e.high for e in answers if isinstance(e, Estimate)]
        assert np.mean(held) >= 0.95 - rate_band(400, 0.95), metric.__name__


def test_class_intervals_cover_where_every_recall_is_one() -> None:
    """The delta method would say 1 +- 0 here."""
    truth = np.repeat(np.arange(10), 5)
    got = balanced_class_accuracy(truth, truth)
    assert (got.value, got.high) == (1, 1)
    assert got.low == pytest.approx(1 - (1 - 0.025 ** (1 / 5)) / math.sqrt(10))


def test_class_interval_of_equal_recalls() -> None:
    """Two classes, 30 of 40 right in each: sqrt(2) narrower than one class's interval."""
    truth = np.repeat([0, 1], 40)
    got = balanced_class_accuracy(np.where(np.arange(80) % 4, truth, 7), truth)
    low, high = clopper_pearson(30, 40)
    assert got.value - got.low == pytest.approx((0.75 - low) / math.sqrt(2))
    assert got.high - got.value == pytest.approx((high - 0.75) / math.sqrt(2))
    one = accuracy([3, 3, 1], [3, 3, 3])
    assert (one.low, one.high) == pytest.approx(clopper_pearson(2, 3))


def test_mean_over_seeds_is_students() -> None:
    runs = [0.61, 0.58, 0.66, 0.6]
    low, high = stats.t(3, np.mean(runs), stats.sem(runs)).interval(0.95)
    got = mean_over_seeds(runs)
    assert (got.value, got.low, got.high) == pytest.approx((np.mean(runs), low, high))
    assert mean_over_seeds([0.3] * 5) == Estimate(0.3, 0.3, 0.3)
    assert mean_over_seeds([-4.0, 9.0]).high > 9  # two runs say little, in any unit


# ── thresholds ───────────────────────────────────────────────────────────────


def test_ties_between_thresholds_go_to_the_largest() -> None:
    # between 4 and 3 and between 1 and -1 both reach balanced accuracy .75
    assert best_threshold([4, 1, 3, -1], [1, 1, 0, 0]).overall == 3.5
    assert best_threshold([1, 2], [1, 0]).overall == INF  # an inverted score calls nobody


def test_each_group_has_its_own_threshold() -> None:
    scores = [5, 1, 8, 6, 9, 9, 0, 0]
    member = [1, 0, 1, 0, 1, 1, 0, 0]
    groups = [0, 0, 7, 7, 2, 2, -3, -3]
    found = best_threshold(scores, member, groups, fewest=1)
    # overall between 8 and 6; 2 has members only, -3 nonmembers only
    assert found == Thresholds(7, {0: 3, 7: 7})
    asked = found.decide([3, 2.9, 7, 6.9, 7, 6.9], [0, 0, 7, 7, 2, 99])
    assert asked.tolist() == [True, False, True, False, True, False]
    assert found.decide([6.9, 7]).tolist() == [False, True]
    assert found.decide([], []).shape == (0,)


def test_a_group_of_few_rows_shares_the_overall_threshold() -> None:
    rng = np.random.default_rng(4)
    scores, member = rng.normal(size=260) + (np.arange(260) < 130), np.arange(260) < 130
    groups = np.concatenate([np.repeat([0, 1], [30, 100])] * 2)
    found = best_threshold(scores, member, groups)
    assert set(found.by_group) == {0, 1}
    groups[0] = 1  # 29 members are left in group 0
    found = best_threshold(scores, member, groups)
    assert set(found.by_group) == {1}
    assert found.decide([found.overall], [0]).tolist() == [True]
    assert set(best_threshold(scores, member, groups, fewest=29).by_group) == {0, 1}


def test_a_threshold_keeps_its_distance_from_the_weakest_member() -> None:
    """A model that is a little less sure: at the weakest shadow member it would miss a third."""
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(10, 1, 200), rng.normal(0, 1, 200)
    member = np.arange(400) < 200
    best = best_threshold(np.concatenate([inside, outside]), member)
    assert outside.max() < best.overall < inside.min()
    assert best.overall == pytest.approx((outside.max() + inside.min()) / 2)
    other = np.concatenate([inside - 2, outside - 2])
    assert balanced_accuracy(best.decide(other), member).value > 0.99
    assert balanced_accuracy(other >= inside.min(), member).value < 0.9


@pytest.mark.parametrize(
    ("scores", "threshold"),
    [
        ([2.0, -INF], 2.0), ([INF, 0.0], INF), ([1e308, -1e308], 0.0),
        ([1.7e308, 1.6e308], 1.65e308), ([5e-324, 0.0], 5e-324), ([1.0, np.nextafter(1.0, 0)], 1.0),
    ],
)  # fmt: skip
def test_the_middle_of_an_interval_calls_the_same_rows(
    scores: list[float], threshold: float
) -> None:
    found = best_threshold(scores, [1, 0])
    assert found.overall == pytest.approx(threshold, rel=1e-15, abs=0)
    assert found.decide(scores).tolist() == [True, False]


def test_one_group_is_the_overall_threshold() -> None:
    scores, member = gaussian(1, 50, 70, seed=9, levels=2)
    found = best_threshold(scores, member, np.full(120, 4))  # 50 members, 70 nonmembers
    assert found.by_group == {4: found.overall}


def test_infinite_scores_are_scores() -> None:
    scores, member = [INF, INF, -INF, 0.0, INF, -INF], [1, 1, 1, 0, 0, 0]
    assert [value(tpr_at_fpr(scores, member, limit)) for limit in (0.4, 0.7)] == [2 / 3, 2 / 3]
    assert auc(scores, member).value == pytest.approx((2 * (2 + 0.5) + 0.5) / 9)
    found = best_threshold(scores, member)
    assert found.overall == INF
    assert found.decide(scores).tolist() == [True, True, False, False, True, False]


def test_an_infinite_threshold_is_no_way_to_say_nobody_to_infinite_scores() -> None:
    found = best_threshold([-INF, INF], [1, 0])
    assert found == Thresholds(-INF)  # everybody, .5; `inf` would call the nonmember alone: 0


# ── what is refused loudly ───────────────────────────────────────────────────

BAD: list[tuple[str, Callable[[], object]]] = [
    ("scores must not be NaN", lambda: auc([1, NAN], [1, 0])),
    ("scores must not be NaN", lambda: Thresholds(0).decide([NAN])),
    (r"member must have shape \(2,\), got \(3,\)", lambda: auc([1, 2], [1, 0, 0])),
    (r"member must have shape \(3,\)", lambda: tpr_at_fpr([1, 2, 3], [1, 0], 0.5)),
    (r"scores must have shape \(4,\), got \(2, 2\)", lambda: auc(np.eye(2), [1, 0, 1, 0])),
    ("at least one member and one nonmember", lambda: auc([1, 2], [1, 1])),
    ("at least one member and one nonmember", lambda: tpr_at_fpr([1, 2], [0, 0], 0.5)),
    ("at least one member and one nonmember", lambda: best_threshold([], [])),
    ("at least one member and one nonmember", lambda: recall([1, 1], [1, 1])),
    ("member must hold booleans or 0 and 1", lambda: auc([1, 2], [1, -1])),
    ("decisions must hold booleans", lambda: precision([0.3, 0.6], [1, 0])),
    (r"groups must have shape \(2,\)", lambda: best_threshold([1, 2], [1, 0], [3])),
    ("groups must hold integers", lambda: best_threshold([1, 2], [1, 0], [0.5, 1])),
    ("predicted must hold integers, got float64", lambda: accuracy([0.2], [0])),
    (r"truth must have shape \(1,\), got \(2,\)", lambda: accuracy([1], [0, 1])),
    ("at least one sample", lambda: balanced_class_accuracy([], [])),
    ("fpr must be strictly between 0 and 1, got 0", lambda: tpr_at_fpr([1, 2], [1, 0], 0)),
    ("at least two finite values", lambda: mean_over_seeds([0.5])),
    ("at least two finite values", lambda: mean_over_seeds([0.5, NAN])),
    ("0 <= successes <= trials", lambda: clopper_pearson(3, 2)),
    ("0 <= successes <= trials", lambda: clopper_pearson(0, 0)),
    ("low <= value <= high", lambda: Estimate(0.5, 0.6, 0.7)),
    ("low <= value <= high", lambda: Estimate(NAN, 0, 1)),
]


@pytest.mark.parametrize(("sentence", "call"), BAD)
def test_bad_input_is_named(sentence: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_lists_arrays_and_float32_are_the_same_question() -> None:
    scores: NDArray[np.float32] = np.array(SCORES, np.float32)
    assert auc(SCORES, MEMBER) == auc(scores, np.array(MEMBER, bool))
    assert tpr_at_fpr(SCORES, MEMBER, 0.25) == tpr_at_fpr(scores, MEMBER, 0.25)


def test_importing_metrics_imports_nothing_heavy() -> None:
    code = (
        "import sys, privbench.measure.games.metrics;"
        "print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
