"""Single rows over seeds and agreement of attacks, against small cases worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from privbench.boards.row_exposure import agreement, exposure, found, vulnerability
from privbench.boards.single_rows import single_rows
from privbench.measure.games.metrics import auc


def trial(rows: Any, member: Any, scores: Any) -> dict[str, Any]:
    n = len(rows)
    return {
        "row": np.asarray(rows, np.int64), "label": np.asarray(rows, np.int64) % 10,
        "truth.member": np.asarray(member, bool), "victim.scores": np.asarray(scores, np.float64),
    } | {"null.scores": np.zeros(n)}  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_mean_exposure_of_members_is_the_auc(pairs: list[tuple[bool, int]]) -> None:
    member = np.array([*(m for m, _ in pairs), True, False])
    scores = np.array([*(s for _, s in pairs), 2, 3], np.float64)
    got = exposure(scores, member)
    assert got[member].mean() == pytest.approx(auc(scores, member).value)
    outside = scores[~member]
    if outside.size > 1:  # a nonmember is compared with the others: half of them on average
        assert got[~member].mean() == pytest.approx(0.5)
    assert ((got >= 0) & (got <= 1)).all()


def test_vulnerability_by_hand() -> None:
    """Row 1 is more exposed as a member; row 2 always looks like one."""
    trials = [
        trial([1, 2, 3, 4], [1, 0, 0, 0], [9, 8, 1, 0]),  # 1 beats all; 2 beats both others
        trial([1, 2, 3, 5], [0, 1, 0, 0], [1, 8, 2, 0]),  # 2 beats all; 1 beats 5 alone
        trial([1, 2, 3, 4], [1, 0, 0, 0], [5, 8, 5, 1]),  # 1 beats 4, ties 3, loses to 2
    ]
    of = vulnerability(trials)
    assert of.row.tolist() == of.label.tolist() == [1, 2, 3, 4, 5]
    assert of.times_in.tolist() == [2, 1, 0, 0, 0]
    assert of.times_out.tolist() == [1, 2, 3, 2, 1]
    assert of.mean_in[:2].tolist() == [(1 + 0.5) / 2, 1]
    assert of.mean_out.tolist() == [0.5, 1, (0.5 + 1 + 0.5) / 3, 0, 0]
    assert of.difference[:2].tolist() == [0.25, 0]
    assert np.isnan(of.difference[2:]).all()


def test_equal_rows_count_as_one() -> None:
    of = vulnerability([trial([7, 7, 8], [1, 0, 0], [3, 2, 1])])
    assert of.row.tolist() == [7, 8]
    assert (of.times_in.tolist(), of.times_out.tolist()) == ([1, 0], [1, 1])
    assert of.difference[0] == 0


def test_rows_are_named_by_their_hash_without_a_sign() -> None:
    target, attack = (SimpleNamespace(label=n) for n in ("simclr", "loud"))
    cell = SimpleNamespace(
        data="digits",
        target=target,
        attack=attack,
        game="membership",
        defense="none",
        adversary="adaptive",
    )
    record: Any = SimpleNamespace(cell=cell)
    one = trial([255, -1, 7], [1, 1, 0], [9.0, 5.0, 7.0])
    rows = [line.split(" | ")[0] for line in single_rows(record, [one]) if line.startswith("| ")]
    assert rows == ["| row", "| " + "0" * 14 + "ff", "| " + "f" * 16]
    # row 255 is a nonmember once: only it has a difference, by which rows are listed
    twice = [one, trial([255, -1, 7, 8], [0, 1, 0, 0], [1.0, 9.0, 5.0, 3.0])]
    (_, told) = (line for line in single_rows(record, twice) if line.startswith("| "))
    assert told.startswith(f"| {255:016x} | 5 | 1 | 1 | 1.000 | 0.000 | 1.000")


def test_agreement_by_hand() -> None:
    member = [1] * 4 + [0] * 100
    low = list(range(100))
    one = trial(range(104), member, [500, 400, 50, 10, *low])
    other = trial(range(104), member, [300, 5, 400, 20, *low])
    got = agreement(one, other)
    assert got is not None
    # above the second largest nonmember, 98: rows 0 and 1 of one, rows 0 and 2 of the other
    assert got.overlap == pytest.approx(1 / 3)
    assert got.chance == pytest.approx(1 / (2 + 2 - 1))  # 2 * 2 / 4 in both at random
    want = spearmanr(one["victim.scores"], other["victim.scores"]).statistic
    assert got.rank == pytest.approx(want)
    assert got.rows == 104


def test_an_attack_agrees_with_itself_and_with_its_monotone_image() -> None:
    rng = np.random.default_rng(0)
    member, scores = np.arange(300) < 100, rng.normal(size=300)
    one = trial(range(300), member, scores + member)
    same = trial(range(300), member, np.exp(scores + member))
    got = agreement(one, same)
    assert got is not None
    assert got.rank == pytest.approx(1)
    assert got.overlap == 1


def test_ranks_of_an_attack_that_says_the_same_of_all_are_unknown() -> None:
    one, flat = (trial(range(20), [1, 0] * 10, s) for s in (range(20), [3] * 20))
    for pair in ((one, flat), (flat, one), (flat, flat)):
        got = agreement(*pair)
        assert got is not None
        assert math.isnan(got.rank)


def test_attacks_with_fewer_rows_share_the_first_ones() -> None:
    one = trial(range(20), [1, 0] * 10, range(20))
    few = {name: column[:10] for name, column in one.items()}
    got = agreement(one, few)
    assert got is not None
    assert got.rows == 10
    assert agreement(one, trial(range(1, 21), [1, 0] * 10, range(20))) is None


def test_attribute_attacks_agree_on_what_they_get_right() -> None:
    base = {"row": np.arange(4), "truth.sex": np.array([0, 1, 0, 1])}
    p, q = np.array([0.1, 0.9, 0.6, 0.2]), np.array([0.2, 0.8, 0.1, 0.9])
    one, other = (base | {"victim.sex": np.stack([1 - v, v], 1)} for v in (p, q))
    got = agreement(one, other)
    assert got is not None
    assert got.overlap == 2 / 4  # right: rows 0 and 1; all four
    assert got.chance == pytest.approx(2 / 4)
    assert got.rank == pytest.approx(
        spearmanr([0.9, 0.9, 0.4, 0.2], [0.8, 0.8, 0.9, 0.9]).statistic
    )


def test_constant_answers_have_no_correlation() -> None:
    one = trial(range(6), [1, 0] * 3, np.zeros(6))
    got = agreement(one, one)
    assert got is not None
    assert math.isnan(got.rank)
    assert math.isnan(got.overlap)


def test_found_counts_as_the_metric_does() -> None:
    rng = np.random.default_rng(1)
    member, scores = np.arange(1400) < 400, np.round(rng.normal(size=1400), 1)
    from privbench.measure.games.metrics import Estimate, tpr_at_fpr

    metric = tpr_at_fpr(scores, member, 0.01)
    assert isinstance(metric, Estimate)
    assert found(scores, member)[member].mean() == metric.value
