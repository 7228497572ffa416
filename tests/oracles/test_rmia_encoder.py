"""RMIA on encoders: ratios by hand, and encoders that place their members elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from privbench import Augmentation, Examples, MembershipQuestion
from privbench.measure.games.metrics import auc
from privbench.testing import auc_band
from privbench.toolbox.likelihood import Evidence
from privbench.toolbox.traces import weights_of_traces
from privbench_plugins.attacks.lira_encoder import LiRAEncoder
from privbench_plugins.attacks.rmia_encoder import RMIAEncoder, ratio

N, WIDTH, CLASSES = 400, 32, 4
CARD = SimpleNamespace(kind="table", classes=CLASSES)


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


class _Placed:
    """An encoder of a table that moves members by chance, or along an axis of their label."""

    def __init__(
        self, held: Tensor, y: Tensor, draw: torch.Generator, *, far: float = 0.0, near: float = 0.0
    ) -> None:
        away = torch.randn(N, WIDTH, generator=draw).double()
        axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draw).double())[0][y]
        self.x: Tensor = torch.randn(N, WIDTH, generator=draw).double()
        self.x += held.double().unsqueeze(1) * (far * away + near * axes)

    def embeddings(self, rows: Examples) -> Tensor:
        return self.x[rows.index]


def hands(k: int, members: int, draw: torch.Generator) -> list[Tensor]:
    """Return who is a member of the victim and of k shadows, dealt as rounds of cards."""
    sets = [torch.randperm(N, generator=draw) < members]
    while len(sets) <= k and not members:
        sets.append(torch.zeros(N, dtype=torch.bool))
    while len(sets) <= k:
        hand = torch.randperm(N, generator=draw) // members
        sets += [hand == player for player in range(N // members)]
    return sets[: k + 1]


def shadow(model: Any, held: Tensor) -> Any:
    return SimpleNamespace(oracle=model, world=SimpleNamespace(contains=lambda _: held))


def found(
    attack: Any, k: int, members: int = N // 2, *, labels: bool = True, seed: int = 8,
    lost: int | None = None, **leak: float,
) -> tuple[Any, Tensor]:  # fmt: skip
    """Return the answer of an attack with k shadows, and which rows are members."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (N,), generator=draw)
    sets = hands(k, members, draw)
    made = [_Placed(held, y, draw, **leak) for held in sets]
    shadows = [shadow(*one) for one in zip(made[1:], sets[1:], strict=True)]
    rows = Examples.of(torch.zeros(N, 1), y if labels else torch.full_like(y, -1), scale=1.0)
    if lost is not None:
        made[0].x[lost] = torch.nan
    ctx: Any = SimpleNamespace(shadows=shadows, card=CARD)
    return attack.answer(made[0], MembershipQuestion(rows, "encoder"), ctx), sets[0]


def value(attack: Any, k: int, *args: Any, seeds: int = 4, **named: Any) -> float:
    """Return the mean AUC."""
    total = 0.0
    for seed in range(seeds):
        answer, member = found(attack, k, *args, seed=seed, **named)
        one = auc(answer.scores.numpy(), member.numpy()).value
        assert one is not None
        total += one
    return total / seeds


@pytest.mark.parametrize(("k", "members"), [(2, N // 2), (2, N // 5), (4, N // 5), (16, N // 5)])
def test_members_that_are_placed_elsewhere_are_found(k: int, members: int) -> None:
    leaks: list[dict[str, Any]] = [{"far": 0.7}, {"near": 2.5}]
    for leak in leaks:
        for attack in (RMIAEncoder(k=k), LiRAEncoder(k=k, online=True)):
            assert value(attack, k, members, **leak) > 0.65, (attack.name, leak)
    answer, member = found(RMIAEncoder(k=k), k, members, far=0.7)
    called = answer.decisions.double()
    assert called[member].mean() > called[~member].mean() + 0.2


def test_labels_help_where_places_say_them() -> None:
    with_them = value(RMIAEncoder(), 16, near=2.0)
    without = value(RMIAEncoder(), 16, near=2.0, labels=False)
    assert without > 0.52
    assert with_them > without + 0.1


def test_nothing_is_found_where_nothing_leaks() -> None:
    for k in (2, 16):
        assert abs(value(RMIAEncoder(k=k), k, seeds=1) - 0.5) < auc_band(N // 2, N // 2)


@pytest.mark.parametrize("lost", [False, True])
def test_views_of_a_row_that_lie_close_give_it_away(lost: bool) -> None:
    draw = torch.Generator().manual_seed(5)
    sets = [torch.rand(N, generator=draw) < 0.5 for _ in range(9)]

    class Close:
        def __init__(self, held: Tensor) -> None:
            self.plain = torch.randn(N, 2, generator=draw).double()
            spread = (1.0 - 0.3 * held.double()) * 0.1
            self.seen = self.plain[:, None] + spread[:, None, None] * torch.randn(
                N, 10, 2, generator=draw
            )

        def embeddings(self, rows: Any) -> Tensor:
            return self.seen if rows == "views" else self.plain

    made: list[Any] = [Close(held) for held in sets]
    if lost:
        made[0].seen[7, 3] = torch.nan
    ctx: Any = SimpleNamespace(
        shadows=[shadow(*one) for one in zip(made[1:], sets[1:], strict=True)],
        card=SimpleNamespace(kind="image", limits=Augmentation(), classes=None),
        views=lambda *_: "views",
    )
    rows = Examples.of(torch.zeros(N, 1), torch.full((N,), -1), scale=1.0)
    answer = RMIAEncoder(k=8).answer(made[0], MembershipQuestion(rows, "encoder"), ctx)
    assert (auc(answer.scores.numpy(), sets[0].numpy()).value or 0) > 0.7
    assert answer.decisions is not None
    assert not lost or (answer.scores[7] == 0 and not answer.decisions[7])


def test_shadows_that_hold_no_row_in_question_tell_nothing() -> None:
    answer, _ = found(RMIAEncoder(), 16, members=0, far=0.8)
    assert answer.scores.eq(0).all()
    assert not answer.decisions.any()


def test_a_row_without_an_answer_hides_no_other() -> None:
    answer, member = found(RMIAEncoder(), 16, far=0.8, lost=7)
    assert answer.scores.isfinite().all()
    assert (auc(answer.scores.numpy(), member.numpy()).value or 0) > 0.7
