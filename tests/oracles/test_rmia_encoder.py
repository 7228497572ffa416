"""RMIA on encoders: ratios by hand, and encoders that place their members elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.oracles.toy_encoders import Close, N, answered, area, hands, placed

from privbench.testing import auc_band
from privbench.toolbox.likelihood import Evidence
from privbench.toolbox.traces import weights_of_traces
from privbench_plugins.attacks.lira_encoder import LiRAEncoder
from privbench_plugins.attacks.rmia_encoder import RMIAEncoder, ratio


def evidence(asked: list[float], known: list[list[float]], inside: list[list[int]]) -> Evidence:
    signals = torch.tensor(asked).double(), torch.tensor(known).double()
    return Evidence(*signals, torch.tensor(inside).bool())


def test_rows_that_lack_shadows_of_a_sort_take_the_usual_difference() -> None:
    # Held by the first; by the second; by none; by both. Members are at 2, 4, 5, 6: 4.25 on average
    # where others are at 0, 0, 1, 2: .75.
    of = evidence([3, 3, 3, 3], [[2, 0, 1, 5], [0, 4, 2, 6]], [[1, 0, 0, 1], [0, 1, 0, 1]])
    assert ratio(of).tolist() == [3 - 1, 3 - 2, 3 - (1.5 + 1.75), 3 - (5.5 - 1.75)]


def test_what_counts_is_halfway_and_not_the_nearer_mean() -> None:
    of = evidence([1.5, 1.5, 0.5], [[0, 2, 0], [2, 0, 2]], [[1, 1, 1], [0, 0, 0]])
    assert ratio(of).tolist() == [0.5, 0.5, -0.5]


def test_an_answer_that_is_no_number_counts_for_nothing() -> None:
    nan = torch.nan
    of = evidence([3, nan, 3], [[2, 2, 2], [nan, 0, 0], [0, 0, 0]], [[1] * 3, [0] * 3, [0] * 3])
    assert ratio(of)[[0, 2]].tolist() == [2, 2]
    assert ratio(of)[1].isnan()


def test_weights_with_one_shadow_of_each_sort_come_from_the_differences_of_rows() -> None:
    draw = torch.Generator().manual_seed(1)
    inside = torch.rand(2, 300, generator=draw) < 0.5
    inside[1] = ~inside[0]
    noise = torch.randn(2, 300, 4, generator=draw).double()
    signals = noise + torch.tensor([0.0, 1.0, -1.0, 0.0]) * inside.unsqueeze(-1)
    unit = torch.tensor([1.0, 1e-3, 1e3, 0.0])
    weights = weights_of_traces(signals * unit, inside)
    # The difference of two has the spread sqrt(2).
    assert (weights * unit)[:3].tolist() == pytest.approx([0.0, 0.35, -0.35], abs=0.1)
    assert weights[3] == 0


def value(attack: Any, k: int = 16, members: int = N // 2, **how: Any) -> float:
    """Return the mean AUC over four seeds."""
    return sum(area(*placed(attack, k, members, seed=seed, **how)) for seed in range(4)) / 4


@pytest.mark.parametrize(("k", "members"), [(2, N // 2), (2, N // 5), (4, N // 5), (16, N // 5)])
def test_members_that_are_placed_elsewhere_are_found(k: int, members: int) -> None:
    leaks: list[dict[str, Any]] = [{"far": 0.7}, {"near": 2.5}]
    for leak in leaks:
        for attack in (RMIAEncoder(k=k), LiRAEncoder(k=k, online=True)):
            assert value(attack, k, members, **leak) > 0.65, (attack.name, leak)
    answer, member = placed(RMIAEncoder(k=k), k, members, far=0.7)
    called = answer.decisions.double()
    assert called[member].mean() > called[~member].mean() + 0.2


def test_labels_help_where_places_say_them() -> None:
    without = value(RMIAEncoder(), near=2.0, labelled=False)
    assert without > 0.52
    assert value(RMIAEncoder(), near=2.0) > without + 0.1


def test_nothing_is_found_where_nothing_leaks() -> None:
    for k in (2, 16):
        assert abs(area(*placed(RMIAEncoder(k=k), k)) - 0.5) < auc_band(N // 2, N // 2)


@pytest.mark.parametrize("lost", [False, True])
def test_views_of_a_row_that_lie_close_give_it_away(lost: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    sets = hands(16, N // 2, draw)
    made = [Close(held, draw, close=0.2) for held in sets]
    if lost:
        made[0].views[7, 3] = torch.nan
    answer = answered(RMIAEncoder(), made, sets, torch.full((N,), -1), images=True)
    assert area(answer, sets[0]) > 0.7
    assert not lost or (answer.scores[7] == 0 and not answer.decisions[7])


def test_shadows_that_hold_no_row_in_question_tell_nothing() -> None:
    assert ratio(evidence([3, 4], [[2, 0], [0, 4]], [[0, 0], [0, 0]])).isnan().all()
