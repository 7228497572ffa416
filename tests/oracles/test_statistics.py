"""Statistics of boards against scipy, numbers worked out by hand, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privbench.measure.games.metrics import auc, clopper_pearson
from privbench.results.statistics import (
    accuracy_interval,
    compared,
    holm,
    null_p,
    paired,
    worst_case,
)
from privbench.testing import rate_band

ours = {0: 0.61, 1: 0.58, 2: 0.66, 3: 0.6, 7: 0.9}
theirs = {0: 0.55, 1: 0.57, 2: 0.6, 3: 0.58, 9: 0.1}


def test_paired_differences_are_students() -> None:
    got = paired(ours, theirs)
    a, b = [ours[s] for s in range(4)], [theirs[s] for s in range(4)]
    want = stats.ttest_rel(a, b)
    interval = want.confidence_interval(0.95)
    assert got is not None
    assert got.seeds == 4  # 7 and 9 have no counterpart
    assert got.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert got.p == pytest.approx(want.pvalue)
    assert got.low == pytest.approx(interval.low)
    assert got.high == pytest.approx(interval.high)


def test_pairing_sees_what_means_do_not() -> None:
    """Label smoothing under LiRA: +.016 on every seed, while seeds differ by .04."""
    seeds = {i: 0.7 + 0.04 * i for i in range(5)}
    shifted = {i: v + 0.016 + 0.001 * (i % 2) for i, v in seeds.items()}
    got = paired(shifted, seeds)
    assert got is not None
    assert got.low is not None
    assert got.high is not None
    assert got.high - got.low < 0.003
    assert np.std([*seeds.values()], ddof=1) > 0.05


def test_one_seed_has_no_interval() -> None:
    got = paired({3: 0.7}, {3: 0.5, 4: 0.1})
    assert got is not None
    assert got.mean == pytest.approx(0.2)
    assert (got.low, got.high, got.p, got.seeds) == (None, None, None, 1)
    assert paired({1: 0.5}, {2: 0.5}) is None


def test_two_seeds_are_not_tested() -> None:
    got = paired({0: 0.7, 1: 0.8}, {0: 0.5, 1: 0.59})
    assert got is not None
    assert got.p is None
    assert got.low is not None
    assert got.low < 0.2 < got.mean == pytest.approx(0.205)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_differences_show_no_spread_to_test_with(seeds: int) -> None:
    base = {seed: 0.5 + 0.07 * seed for seed in range(seeds)}
    lower = paired({seed: value - 0.1 for seed, value in base.items()}, base)
    assert lower is not None
    assert lower.mean == pytest.approx(-0.1)
    assert lower.seeds == seeds
    assert (lower.low, lower.high, lower.p) == (None, None, None)
    same = paired(base, base)
    assert same is not None
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1 if seeds > 2 else None)


def test_holm_by_hand() -> None:
    """Holm's step-down: the smallest times 4, the next times 3, and never decreasing."""
    got = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert got == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}
    assert holm({"x": 0.5, "y": 0.6}) == {"x": 1.0, "y": 1.0}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferronis(values: list[float]) -> None:
    got = holm(dict(enumerate(values)))
    for i, p in enumerate(values):
        assert p <= got[i] <= min(1.0, p * len(values)) or math.isclose(got[i], p)
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted = [got[i] for i in order]
    assert adjusted == sorted(adjusted)
    assert min(got.values()) == pytest.approx(min(1.0, min(values) * len(values)))


def test_null_p_is_that_of_mann_whitney() -> None:
    rng = np.random.default_rng(0)
    scores, member = rng.normal(size=500), np.arange(500) < 100
    want = stats.mannwhitneyu(
        scores[member], scores[~member], method="asymptotic", use_continuity=False
    )
    assert null_p([(auc(scores, member).value, 100, 400)]) == pytest.approx(want.pvalue)


def test_null_p_of_several_seeds_is_uniform_without_signal() -> None:
    rng, member = np.random.default_rng(1), np.arange(150) < 50
    found = np.array([
        null_p([(auc(rng.normal(size=150), member).value, 50, 100) for _ in range(3)])
        for _ in range(500)
    ])  # fmt: skip
    assert abs((found < 0.05).mean() - 0.05) <= rate_band(500, 0.05)
    assert abs((found < 0.5).mean() - 0.5) <= rate_band(500, 0.5)


def test_null_p_adds_up_over_seeds() -> None:
    """Three nulls of .54 are stronger evidence than one; opposite ones are none."""
    one, three = null_p([(0.54, 100, 400)]), null_p([(0.54, 100, 400)] * 3)
    deviation = math.sqrt(501 / (12 * 100 * 400))
    assert one == pytest.approx(2 * stats.norm.sf(0.04 / deviation))
    assert three == pytest.approx(2 * stats.norm.sf(0.04 * math.sqrt(3) / deviation))
    assert null_p([(0.6, 100, 400), (0.4, 100, 400)]) == pytest.approx(1)


def test_accuracy_of_one_seed_is_binomial_and_of_several_students() -> None:
    one = accuracy_interval([0.9], 300)
    assert one is not None
    assert (one.low, one.high) == pytest.approx(clopper_pearson(270, 300))
    several = accuracy_interval([0.9, 0.92, 0.91])
    assert several is not None
    want = stats.t(2, 0.91, stats.sem([0.9, 0.92, 0.91])).interval(0.95)
    assert (several.low, several.high) == pytest.approx(want)
    assert accuracy_interval([0.9]) is None  # of how many rows is not known
    assert accuracy_interval([]) is None
    assert accuracy_interval([-1e-9], 300) == accuracy_interval([0.0], 300)
    assert accuracy_interval([1 + 1e-9], 300) == accuracy_interval([1.0], 300)
    wide = accuracy_interval([0.1, 1.0])
    assert wide is not None
    assert (wide.low, wide.high) == (0, 1)


def test_the_worst_case_by_hand() -> None:
    """The best mean; the ends of the interval hold for whichever attack is truly the strongest."""
    attacks = {"a": {0: 0.9, 1: 0.5, 2: 0.55}, "b": {0: 0.6, 1: 0.6, 2: 0.6}}
    got = worst_case(attacks)
    assert got is not None
    assert (got.attack, got.seeds) == ("a", 3)
    assert got.estimate.value == pytest.approx(0.65)
    student = stats.t(2, 0.65, stats.sem([0.9, 0.5, 0.55]))
    assert got.estimate.high == pytest.approx(student.ppf(0.975))
    assert got.estimate.low == pytest.approx(student.ppf(0.025 / 2))
    noisy = worst_case({**attacks, "c": {0: 0.2, 1: 0.9, 2: 0.5}})
    assert noisy is not None
    assert (noisy.attack, noisy.estimate.value) == ("a", got.estimate.value)
    wide = stats.t(2, np.mean([0.2, 0.9, 0.5]), stats.sem([0.2, 0.9, 0.5])).ppf(0.975)
    assert noisy.estimate.high == pytest.approx(wide)
    # an attack with fewer seeds is an attack of the page, too
    more = worst_case({**attacks, "c": {1: 0.7}})
    assert more is not None
    assert (more.attack, more.estimate.value, more.seeds) == ("c", 0.7, 1)
    errors = {"a": {0: 0.1, 1: 0.3}, "b": {0: 0.2, 1: 0.25}}
    error = worst_case(errors, higher=False)
    assert error is not None
    assert error.attack == "a"
    assert error.estimate.value == pytest.approx(0.2)
    student = stats.t(1, 0.2, 0.1)
    assert error.estimate.high == pytest.approx(student.ppf(1 - 0.025 / 2))
    assert error.estimate.low == pytest.approx(student.ppf(0.025))
    assert worst_case({}) is None
    assert worst_case({"a": {}}) is None


def test_the_best_of_ten_attacks_without_signal() -> None:
    """Its mean is biased upward; the lower end of its interval makes up for that."""
    rng = np.random.default_rng(2)
    means, above = [], 0
    for _ in range(1000):
        values = 0.5 + 0.03 * rng.normal(size=(10, 5))
        made = worst_case({str(i): dict(enumerate(row)) for i, row in enumerate(values)})
        assert made is not None
        means.append(made.estimate.value - 0.5)
        above += made.estimate.low > 0.5
    assert np.mean(means) > 0.015
    assert above / 1000 <= 0.025 + rate_band(1000, 0.025)


def test_the_compared_attack_is_chosen_on_other_seeds_by_hand() -> None:
    none = {"a": {0: 0.9, 1: 0.5, 2: 0.5}, "b": {0: 0.6, 1: 0.6, 2: 0.6}}
    mask = {"a": {0: 0.7, 1: 0.4, 2: 0.3}, "b": {0: 0.5, 1: 0.6, 2: 0.6}}
    got = compared(mask, none)
    assert got is not None
    # sums: a 1.6 .9 .8, b 1.1 1.2 1.2; without seed 0, b is stronger: -.1; without 1 or 2, a is:
    # 2.4 > 2.3 and 2.5 > 2.3, so -.1 and -.2
    assert got[0].mean == pytest.approx(-0.4 / 3)
    assert got[1] == ["a", "b"]
    lower = compared(mask, none, higher=False)
    assert lower is not None
    # a lower number is stronger: a (1.7) without seed 0, b (2.3) without 1 or 2
    assert lower[0].mean == pytest.approx((-0.2 + 0 + 0) / 3)
    alone = compared({"a": {0: 0.7}, "b": {0: 0.5}}, {"a": {0: 0.9}, "b": {0: 0.6}})
    assert alone is not None
    assert alone[0].mean == pytest.approx(-0.2)
    assert (alone[0].p, alone[1]) == (None, ["a"])
    assert compared({"a": {0: 0.7}}, {"b": {0: 0.7}}) is None
    assert compared({"a": {0: 0.7}}, {"a": {1: 0.7}}) is None


@pytest.mark.parametrize("k", [2, 4, 16])
def test_the_best_of_k_has_an_interval_that_holds_for_all_k(k: int) -> None:
    found = paired(dict(enumerate([0.6, 0.7, 0.9, 0.5, 0.6])), dict.fromkeys(range(5), 0.5))
    assert found is not None
    values = [0.1, 0.2, 0.4, 0.0, 0.1]
    wide = stats.t(4, np.mean(values), stats.sem(values)).interval(1 - 0.05 / k)
    assert (found.best_of(k).low, found.best_of(k).high) == pytest.approx(wide)
    assert found.p is not None
    assert found.best_of(k).p == pytest.approx(min(1, k * found.p))
    alone = paired({0: 0.6}, {0: 0.5})
    assert alone is not None
    assert alone.best_of(k) == alone


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.floats(0, 1), min_size=3, max_size=3),
        min_size=1,
    )
)
def test_no_mean_of_the_page_is_above_the_worst_case(values: dict[str, list[float]]) -> None:
    """Nor is what attacks reach that are chosen on other seeds than they are reported on."""
    got = worst_case({name: dict(enumerate(row)) for name, row in values.items()})
    assert got is not None
    assert got.estimate.value == pytest.approx(max(np.mean(row) for row in values.values()))
    chosen = [
        max(sorted(values), key=lambda name: sum(values[name]) - values[name][seed])
        for seed in range(3)
    ]
    held_out = np.mean([values[name][seed] for seed, name in enumerate(chosen)])
    assert held_out <= got.estimate.value + 1e-9
