"""The algebra of the metrics: brute force over pairs and thresholds, symmetries, invariances."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from privbench.measure.games.metrics import (
    Estimate,
    Refused,
    auc,
    balanced_accuracy,
    balanced_class_accuracy,
    best_threshold,
    precision,
    recall,
    tpr_at_fpr,
)

Case = tuple[list[float], list[bool]]
unhurried = settings(deadline=None, max_examples=100)  # the first call imports scipy
few_values = st.sampled_from([-math.inf, -2.0, -1.0, 0.0, 0.5, 1.0, 3.0, math.inf])  # many ties
any_value = st.floats(allow_nan=False)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    member = [*draw(st.lists(st.booleans(), max_size=18)), True, False]
    score = draw(st.sampled_from([few_values, any_value]))
    n = len(member)
    return draw(st.lists(score, min_size=n, max_size=n)), draw(st.permutations(member))


def split(case: Case) -> tuple[list[float], list[float]]:
    pairs = list(zip(*case, strict=True))
    return [s for s, m in pairs if m], [s for s, m in pairs if not m]


def reached(side: list[float], threshold: float) -> Fraction:
    return Fraction(sum(s >= threshold for s in side), len(side))


@unhurried
@given(cases())
def test_auc_counts_pairs(case: Case) -> None:
    inside, outside = split(case)
    won = sum(2 * (a > b) + (a == b) for a in inside for b in outside)
    got = auc(*case)
    assert math.isclose(got.value, won / (2 * len(inside) * len(outside)), abs_tol=1e-12)
    assert 0 <= got.low <= got.value <= got.high <= 1
    assert got.low < got.high


@unhurried
@given(cases())
def test_auc_flips_under_negation_and_under_swapped_sides(case: Case) -> None:
    scores, member = np.array(case[0]), np.array(case[1])
    got = auc(scores, member)
    for flipped in (auc(-scores, member), auc(scores, ~member)):
        np.testing.assert_allclose(
            [flipped.value, flipped.low, flipped.high],
            [1 - got.value, 1 - got.high, 1 - got.low],
            atol=1e-9,
        )


@unhurried
@given(cases(), st.sampled_from(["0.1", "0.2", "0.25", "0.29", "0.3", "0.5", "0.7", "0.9"]))
def test_tpr_at_fpr_is_the_best_threshold_allowed(case: Case, text: str) -> None:
    inside, outside = split(case)
    got, limit = tpr_at_fpr(*case, float(text)), Fraction(text)
    if limit * len(outside) < 1:
        assert isinstance(got, Refused)
        return
    assert isinstance(got, Estimate)
    allowed = [t for t in set(case[0]) if reached(outside, t) <= limit]
    expected = max((reached(inside, t) for t in allowed), default=Fraction(0))
    assert got.value == float(expected)
    assert 0 <= got.low <= got.value <= got.high <= 1


@unhurried
@given(cases())
def test_best_threshold_is_brute_force(case: Case) -> None:
    inside, outside = split(case)

    def gain(threshold: float) -> Fraction:
        return reached(inside, threshold) - reached(outside, threshold)

    candidates = {*case[0], math.inf}
    best = max(gain(t) for t in candidates)
    found = best_threshold(*case)
    upper = max(t for t in candidates if gain(t) == best)
    below = [t for t in case[0] if t < upper]
    if upper < math.inf and below and max(below) > -math.inf:
        assert max(below) <= found.overall <= upper
        assert math.isclose(found.overall, max(below) / 2 + upper / 2, abs_tol=1e-300)
    else:
        assert found.overall == upper
    assert gain(found.overall) == best
    achieved = balanced_accuracy(found.decide(case[0]), case[1]).value
    assert math.isclose(achieved, float((1 + best) / 2), abs_tol=1e-12)
    assert achieved >= 0.5


@unhurried
@given(cases(), st.data())
def test_groups_are_separate_questions(case: Case, data: st.DataObject) -> None:
    n = len(case[0])
    groups = data.draw(st.lists(st.integers(-2, 3), min_size=n, max_size=n))
    scores, member, which = np.array(case[0]), np.array(case[1]), np.array(groups)
    found = best_threshold(scores, member, groups, fewest=1)
    assert found.overall == best_threshold(scores, member).overall
    whole = {g for g in groups if 0 < member[which == g].mean() < 1}
    assert set(found.by_group) == whole
    decided = found.decide(scores, groups)
    for g in {*groups}:
        rows = which == g
        alone = best_threshold(scores[rows], member[rows]).overall if g in whole else found.overall
        assert found.by_group.get(g, found.overall) == alone
        np.testing.assert_array_equal(decided[rows], scores[rows] >= alone)


@unhurried
@given(cases())
def test_order_of_the_samples_does_not_matter(case: Case) -> None:
    """Members first must not win the ties."""
    members_first = sorted(zip(*case, strict=True), key=lambda pair: not pair[1])
    last = members_first[::-1]
    answers = []
    for arranged in (members_first, last, list(zip(*case, strict=True))):
        scores, member = [s for s, _ in arranged], [m for _, m in arranged]
        area = auc(scores, member)
        answers.append(
            (
                [round(x, 9) for x in (area.value, area.low, area.high)],
                tpr_at_fpr(scores, member, 0.5),
                best_threshold(scores, member),
            )
        )
    assert answers[0] == answers[1] == answers[2]


@unhurried
@given(cases())
def test_strictly_monotone_maps_change_nothing(case: Case) -> None:
    scores, member = np.array(case[0]), np.array(case[1])
    ranks = np.unique(scores, return_inverse=True)[1]
    mapped = ranks.astype(float) ** 3 - 7
    assert auc(mapped, member) == auc(scores, member)
    assert tpr_at_fpr(mapped, member, 0.3) == tpr_at_fpr(scores, member, 0.3)


@unhurried
@given(cases(), st.floats(-3, 3))
def test_decisions_are_rates(case: Case, threshold: float) -> None:
    inside, outside = split(case)
    called = np.array(case[0]) >= threshold
    tpr, fpr = reached(inside, threshold), reached(outside, threshold)
    assert math.isclose(balanced_accuracy(called, case[1]).value, float((tpr + 1 - fpr) / 2))
    assert math.isclose(recall(called, case[1]).value, float(tpr))
    share = precision(called, case[1])
    if tpr + fpr == 0:
        assert isinstance(share, Refused)
    else:
        assert isinstance(share, Estimate)
        assert math.isclose(share.value, float(tpr / (tpr + fpr)))
        assert 0 <= share.low <= share.value <= share.high <= 1
    # membership is a question of two classes
    assert balanced_class_accuracy(called, case[1]) == balanced_accuracy(
        ~called, ~np.array(case[1])
    )


@unhurried
@given(cases(), st.integers(2, 6))
def test_more_of_the_same_samples_narrow_the_interval(case: Case, times: int) -> None:
    scores, member = case[0] * times * 4, case[1] * times * 4
    once, often = recall(np.array(case[0]) > 0, case[1]), recall(np.array(scores) > 0, member)
    assert once.value == often.value
    assert often.high - often.low < once.high - once.low
