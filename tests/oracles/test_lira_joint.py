"""Joint LiRA against neighbours counted by hand, and against signals whose pull is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor

from privbench import Examples, Membership, MembershipQuestion
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, memoriser, tiny_split
from privbench.toolbox.likelihood import Evidence
from privbench.toolbox.likelihood_ratio import log_ratio
from privbench.toolbox.neighbours import LEAF, TREES, Pulls, bounded, joint, pulls
from privbench_plugins.attacks.lira_joint import LiRAJoint

N, SHADOWS = 400, 16


def rows_of(n: int = 60) -> Examples:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, generator=draw)
    return Examples.of(x, (x[:, 0] > 0.5).long(), scale=1.0)


def evidence(pull: float, sets: np.ndarray, seed: int = 0) -> tuple[Evidence, Tensor, Pulls]:
    """Return signals of rows in a ring: the membership of the row before adds ``pull``."""
    draw = np.random.default_rng(seed)
    other = np.roll(np.arange(N), 1)
    signals = 1.0 * sets + pull * sets[:, other] + 0.5 * draw.normal(size=sets.shape)
    known = torch.from_numpy(signals)[..., None]
    near = Pulls(torch.from_numpy(other)[:, None], torch.ones(N, 1, dtype=torch.float64))
    inside = torch.from_numpy(sets)
    return Evidence(known[0], known[1:], inside[1:]), inside[0], near


def drawn(seed: int = 1) -> np.ndarray:
    """Return which rows the victim and shadows hold; shadows in complementary pairs."""
    draw = np.random.default_rng(seed)
    halves = [draw.permutation(N) < N // 2 for _ in range(SHADOWS // 2)]
    sets = np.array([draw.permutation(N) < N // 2, *(s for h in halves for s in (h, ~h))])
    return np.asarray(sets)


def test_neighbours_are_those_that_share_most_leaves() -> None:
    rows = rows_of()
    found = pulls(rows, 7)
    x, y = rows.x.numpy(), rows.y
    forest = RandomForestClassifier(TREES, min_samples_leaf=LEAF, random_state=0).fit(x, y.numpy())
    leaves = forest.apply(x)
    for i in range(len(rows)):
        shared = (leaves == leaves[i]).mean(1)
        shared[i] = -1
        near = found.rows[i].tolist()
        assert i not in near
        assert shared[near] == pytest.approx(np.sort(shared)[::-1][:7])
        sign = np.where(y[near] == y[i], 1, -1)
        assert found.pull[i].numpy() == pytest.approx(sign * shared[near])
    assert pulls(rows, 1000).rows.shape == (60, 59)


def test_what_members_nearby_add_is_found_and_taken_away() -> None:
    held, member, near = evidence(0.6, drawn())
    scores, weights = joint(held, near, "pooled")
    assert float(weights[0]) == pytest.approx(0.6, abs=0.06)
    told = held.asked - 0.6 * (member[near.rows].double() - 0.5)  # by who knows the neighbours
    pulled = near.felt(held.inside.double()) * 0.6
    ideal = Evidence(told, held.known - pulled, held.inside)
    before, found, best = (
        auc(one.numpy(), member.numpy()).value
        for one in (log_ratio(held), scores, log_ratio(ideal))
    )
    assert before + 0.015 < found < best


def test_without_a_pull_it_is_lira() -> None:
    held, _, near = evidence(0.0, drawn())
    scores, weights = joint(held, near, "bayes")
    assert abs(float(weights[0])) < 0.05
    alone = log_ratio(held, kind="bayes")
    assert np.corrcoef(scores.numpy(), alone.numpy())[0, 1] > 0.99


def test_the_order_of_rows_changes_nothing() -> None:
    held, _, near = evidence(1.0, drawn())
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    place = order.argsort()
    moved = Evidence(held.asked[order], held.known[:, order], held.inside[:, order])
    turned = Pulls(place[near.rows[order]], near.pull[order])
    scores, _ = joint(held, near, "bayes")
    assert torch.allclose(joint(moved, turned, "bayes")[0], scores[order])


def play(attack: Any, served: Any, examples: Examples | None = None) -> Membership:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer: Membership = attack.answer(oracle, question, ctx)
    return answer


def test_rows_without_a_label_score_nothing_and_change_nothing() -> None:
    split, attack = tiny_split(), LiRAJoint(k=4)
    served = memoriser(split.victim())
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer = play(attack, served, some)
    assert (answer.scores[blank] == 0).all()
    assert answer.decisions is not None
    assert not answer.decisions[blank].any()
    kept = play(attack, served, split.candidates.select(~blank))
    assert torch.allclose(answer.scores[~blank], kept.scores)
    assert play(attack, served, some.select(torch.arange(len(some)) < 1)).scores.tolist() == [0.0]


def test_rows_are_believed_members_as_often_as_in_shadows() -> None:
    draw = np.random.default_rng(5)
    sets = np.array([draw.permutation(N) < N // 5 for _ in range(1 + SHADOWS)])
    near = Pulls(
        torch.from_numpy((np.arange(N)[:, None] - np.arange(1, 31)) % N),
        torch.from_numpy(2 * draw.random((N, 30)) * draw.random((N, 1))),
    )
    pulled = near.felt(torch.from_numpy(sets).double()).sum(-1).numpy()
    known = torch.from_numpy(sets + 0.3 * pulled + 0.4 * draw.normal(size=sets.shape))[..., None]
    inside = torch.from_numpy(sets)
    held = Evidence(known[0], known[1:], inside[1:])
    scores, _ = joint(held, near, "pooled")
    found, before = (
        auc(one.numpy(), inside[0].numpy()).value
        for one in (scores, log_ratio(held, kind="pooled"))
    )
    assert found > before + 0.024


def test_posteriors_of_0_and_1_do_not_rule_the_pull() -> None:
    held, _, near = evidence(0.6, drawn())
    known = held.known.clone()
    known[torch.rand(known.shape, generator=torch.Generator().manual_seed(0)) < 0.1] = 103.6
    rough = Evidence(held.asked, known, held.inside)
    assert float(joint(bounded(rough), near, "pooled")[1]) == pytest.approx(0.6, abs=0.15)


def test_a_row_that_is_in_no_shadow_or_in_all_is_no_nan() -> None:
    held, _, near = evidence(0.6, drawn())
    for value in (False, True):
        same = Evidence(held.asked, held.known, torch.full_like(held.inside, value))
        assert joint(same, near, "pooled")[0].isfinite().all()
        some = held.inside.clone()
        some[:, :50] = value
        assert joint(Evidence(held.asked, held.known, some), near, "bayes")[0].isfinite().all()


def test_an_answer_is_about_the_neighbours_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    split, seen = tiny_split(), []

    def watched(held: Evidence, near: Pulls, chosen: Any) -> tuple[Tensor, Tensor]:
        seen.append((near, chosen))
        return joint(held, near, chosen)

    monkeypatch.setattr("privbench_plugins.attacks.lira_joint.joint", watched)
    play(LiRAJoint(k=4, neighbours=7), memoriser(split.victim()))
    rows = split.candidates
    wanted = pulls(rows.select(rows.index.argsort()), 7)
    ((near, chosen),) = seen
    assert near.rows.equal(wanted.rows)
    assert near.pull.equal(wanted.pull)
    assert chosen == "bayes"
