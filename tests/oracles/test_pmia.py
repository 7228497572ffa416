"""PMIA against densities worked out with scipy, and on victims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench_plugins.attacks.pmia import PMIA, alike, nearest, pooled

if TYPE_CHECKING:
    from privbench import Membership

FORMS = [PMIA(proxy="class"), PMIA(proxy="global"), PMIA(proxy="instance"), PMIA(views=2)]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


#: Signals of four rows by three shadows, which of them were members, and their classes.
KNOWN = double([[5.0, 1.0, 9.0, 4.0], [2.0, 7.0, 8.0, 5.0], [3.0, 0.0, 1.0, 0.0]])
INSIDE = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
CLASSES = torch.tensor([0, 0, 1, 1])


def test_proxies_of_each_kind_by_hand() -> None:
    # in shadows that hold them: row 0: 5; row 1: 7; row 2: 9, 8; row 3: 5
    known = KNOWN.unsqueeze(-1)
    centre, y = double([[2.0], [0.2], [2.6]]), torch.tensor([0, 1, 2])
    found = {
        kind: PMIA(proxy=kind, neighbours=1)._within(centre, y, known, INSIDE, CLASSES)
        for kind in ("global", "class", "instance")
    }
    spread = math.sqrt((4 + 0 + 4 + 1 + 4) / 4)  # about the median of 5, 7, 9, 8, 5
    assert found["global"].centre.flatten().tolist() == [7.0] * 3
    assert found["global"].scale.flatten().tolist() == pytest.approx([spread] * 3)
    # class 0: 5, 7; class 1: 9, 8, 5; class 2 has no proxies and takes all
    assert found["class"].centre.flatten().tolist() == [6.0, 8.0, 7.0]
    assert found["class"].scale.flatten().tolist() == pytest.approx(
        [math.sqrt(2), math.sqrt((1 + 0 + 9) / 2), spread]
    )
    # without them: row 0: median of 2, 3; row 1: of 1, 0; row 2: 1; row 3: of 4, 0
    assert found["instance"].centre.flatten().tolist() == [5.0, 8.5, 7.0]


def test_score_by_hand() -> None:
    ones = double([[[4.0]], [[6.0]]])  # proxies: 5 ± √2
    within = pooled(ones, torch.ones(2, 1).bool(), "median", 1)
    score = within.log_density(double([[5.5]])) - double(stats.norm.logpdf(5.5, 1, 2))
    expected = stats.norm.logpdf(5.5, 5, math.sqrt(2)) - stats.norm.logpdf(5.5, 1, 2)
    assert score.item() == pytest.approx(expected)


def test_alike_is_the_fit_of_each_row_s_own_proxies() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.randn(6, 9, 2, generator=generator, dtype=torch.float64)
    inside = torch.rand(6, 9, generator=generator) < 0.6
    near = torch.tensor([[0, 3, 4], [8, 1, 2]])
    found = alike(known, inside, near, "mean")
    for row, proxies in enumerate(near.tolist()):
        signals = torch.cat([known[inside[:, j], j] for j in proxies]).numpy()
        assert found.centre[row].numpy() == pytest.approx(signals.mean(0))
        assert found.scale[row].numpy() == pytest.approx(signals.std(0, ddof=1))


def test_a_proxy_without_a_signal_is_the_last_to_be_near() -> None:
    at = double([[math.nan], [100.0], [3.0]])
    assert nearest(double([[3.0], [math.nan]]), at, 3).tolist() == [[2, 1, 0], [2, 1, 0]]


def play(attack: Any, served: Any, examples: Any = None) -> Membership:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer: Membership = attack.answer(oracle, question, ctx)
    views = max(1, attack.views)  # the first would be the mirror image, which these data forbid
    assert oracle.queries == views * len(question.examples)
    assert ctx.auxiliary_oracle.queries == 0
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*FORMS, PMIA(k=4), PMIA(variance="bayes")], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    assert answer.decisions is not None
    assert (answer.decisions == split.member).double().mean() > 0.9
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


def test_rows_without_a_label_get_a_neutral_score() -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    for attack in FORMS:
        answer = play(attack, memoriser(split.victim()), some)
        assert (answer.scores[blank] == 0).all()
        assert answer.decisions is not None
        assert not answer.decisions[blank].any()
        assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.95
