"""RMIA against the worked example and against all pairs by brute force."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.data.augmentation import Augmentation
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox.likelihood import Evidence, of_views, threshold
from privbench_plugins.attacks.informia import InfoRMIA, InfoRMIAOffline
from privbench_plugins.attacks.rmia import (
    RMIA,
    RMIAOffline,
    dominated,
    log_prior,
    log_taylor,
)

FORMS = [RMIA(), RMIAOffline(), RMIA(signal="taylor", gamma=1.0), RMIAOffline(signal="taylor")]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(p: list[float], shadows: list[list[float]], inside: list[list[int]]) -> Evidence:
    return Evidence(
        double(p).log(), double(shadows).reshape(-1, len(p)).log(), torch.tensor(inside).bool()
    )


#: p(x) = .9 under the victim and .5 under a shadow; four z.
X = rows([0.9], [[0.5]], [[0]])
Z = rows([0.6, 0.8, 0.4, 0.9], [[0.6, 0.7, 0.5, 0.95]], [[0] * 4])


def test_the_worked_example() -> None:
    prior = log_prior(X.known, X.inside, 0.3).exp()
    assert prior.item() == pytest.approx(0.675)
    ratio = X.asked.exp() / prior
    assert ratio.item() == pytest.approx(1.33333, abs=1e-5)
    ratios = Z.asked.exp() / log_prior(Z.known, Z.inside, 0.3, outside_only=True).exp()
    torch.testing.assert_close(ratios, double([0.81081081, 0.99378882, 0.59259259, 0.93023256]))
    torch.testing.assert_close(ratio / ratios, double([1.64444444, 1.34166667, 2.25, 1.43333333]))
    for gamma, share in [(1.0, 1.0), (1.4, 0.75), (2.0, 0.25)]:
        assert RMIAOffline(gamma=gamma)._scores(X, Z).tolist() == [share]


@pytest.mark.parametrize("form", [RMIA(), RMIAOffline()], ids=str)
def test_shadows_that_hold_a_z_do_not_count_for_it(form: Any) -> None:
    form = form.replace(gamma=1.4)
    sure = torch.tensor([[0.99] * 4]).double().log()
    more = Evidence(Z.asked, torch.cat([Z.known, sure]), torch.tensor([[0] * 4, [1] * 4]).bool())
    assert form._scores(X, more).tolist() == form._scores(X, Z).tolist() == [0.75]
    all_hold = Evidence(Z.asked, sure, torch.ones(1, 4).bool())
    assert form._scores(X, all_hold).isnan().all()  # no z is left


def test_offline_a_stand_in_is_scored_as_a_victim_whose_rows_no_shadow_holds() -> None:
    attack = RMIAOffline(gamma=1.4)
    sure = torch.tensor([[0.99]]).double().log()
    held = Evidence(X.asked, torch.cat([X.known, sure]), torch.tensor([[0], [1]]).bool())
    assert attack._scores(held, Z).tolist() == attack._scores(X, Z).tolist() == [0.75]
    assert RMIA(gamma=1.4)._scores(held, Z).tolist() != [0.75]  # online they count


def test_a_stand_in_s_threshold_separates_the_victim_s_rows() -> None:
    # answers are unsure, so that p(x) with training on x is far below the ``1 - a`` of the estimate
    generator = torch.Generator().manual_seed(0)
    attack, k, n = RMIAOffline(signal="softmax"), 14, 2000
    member = torch.arange(n) % 2 == 0
    judged = torch.rand(k, n, generator=generator) < 0.5  # judges hold rows of the stand-in
    nobody = torch.zeros(k, n).bool()

    def draw(member: Tensor, held: Tensor) -> Evidence:
        trained = torch.cat([member[None], held]).double()
        level = torch.randn(n, generator=generator) / 2 - 3
        p = (level + trained + 0.3 * torch.randn(1 + k, n, generator=generator)).sigmoid().log()
        return Evidence(p[0], p[1:], held)

    z = draw(member & False, judged)
    limit = threshold(attack._ranks(draw(member, judged), z, n), member)
    decisions = attack._ranks(draw(member, nobody), z, n) >= limit
    assert (decisions == member).double().mean() > 0.75  # .82; .50 if judges that hold a row count


@pytest.mark.parametrize("form", [RMIA(), RMIAOffline(a=1.0)], ids=str)
def test_scaling_all_posteriors_by_a_constant_changes_nothing(form: Any) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> Evidence:
        p = torch.rand(7, n, generator=generator, dtype=torch.float64)
        inside = torch.rand(6, n, generator=generator) < 0.5
        inside[0], inside[1] = False, form.online  # every row has both, so that no 1 - a enters
        return Evidence(p[0].log(), p[1:].log(), inside)

    x, z = draw(50), draw(40)
    form = form.replace(a=1.0)  # p(z) without shadows that hold z has a 1 - a too

    def scaled(e: Evidence) -> Evidence:
        return Evidence(e.asked + math.log(0.37), e.known + math.log(0.37), e.inside)

    torch.testing.assert_close(form._scores(scaled(x), scaled(z)), form._scores(x, z))


def test_limits_of_a() -> None:
    p = double([[0.5, 0.2], [0.3, 0.4]])
    out = torch.zeros(2, 2).bool()
    mean = p.mean(0)
    torch.testing.assert_close(log_prior(p.log(), out, 1.0).exp(), mean)
    torch.testing.assert_close(log_prior(p.log(), out, 0.0).exp(), (mean + 1) / 2)


def test_prior_of_each_kind_of_row() -> None:
    # in both kinds; in none; in all
    p = double([[0.2, 0.2, 0.2], [0.4, 0.4, 0.4], [0.9, 0.9, 0.9]])
    inside = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 0, 1]]).bool()
    found = log_prior(p.log(), inside, 0.3).exp()
    torch.testing.assert_close(found, double([(0.9 + 0.3) / 2, (1.3 * 0.5 + 0.7) / 2, 0.5]))
    # of z, shadows that hold it never count
    masked = log_prior(p.log(), inside, 0.3, outside_only=True)
    torch.testing.assert_close(masked[:2].exp(), double([(1.3 * m + 0.7) / 2 for m in (0.3, 0.5)]))
    assert masked[2].isnan()


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    st.integers(-2, 2),
)
def test_share_is_that_of_all_pairs(x: list[int], z: list[int], power: int) -> None:
    # powers of two, halved exactly: ties with gamma are hit, and count
    a, b = double(x) * math.log(2), double(z) * math.log(2)
    brute = [sum(i - j >= power for j in z) / len(z) for i in x]
    nudge = math.exp(-1e-9)  # logs of powers of two differ in the last bit
    assert dominated(a, b, 2.0**power * nudge).tolist() == pytest.approx(brute)


def test_an_equal_pair_counts_at_gamma_one() -> None:
    assert dominated(double([0.25]), double([0.25, 0.5]), 1.0).tolist() == [0.5]
    assert dominated(double([math.nan]), double([0.0]), 1.0).isnan().all()
    assert dominated(double([1.0]), double([0.0, math.nan]), 1.0).tolist() == [1.0]


def test_taylor_softmax_by_hand() -> None:
    logits = double([[2.0, 0.0, -2.0]])

    def power(x: float) -> float:
        return sum(x**i / math.factorial(i) for i in range(5))

    for y in range(3):
        z = [(value + 2) / 2 for value in logits[0].tolist()]  # the smallest at 0
        mine = power(z[y] - 0.6)
        expected = mine / (mine + sum(power(v) for j, v in enumerate(z) if j != y))
        for shifted in (logits, logits.log_softmax(1), logits + 7):
            found = log_taylor(shifted, torch.tensor([y]), 2.0, 0.6, 4)
            assert found.exp().item() == pytest.approx(expected)
    # many powers and no margin are the softmax
    exact = log_taylor(logits, torch.tensor([1]), 1.0, 0.0, 40)
    assert exact.item() == pytest.approx(logits.log_softmax(1)[0, 1].item())


@pytest.mark.parametrize("classes", [2, 10, 30])
def test_taylor_softmax_rises_with_the_logit_of_the_class(classes: int) -> None:
    others = torch.randn(1, classes, generator=torch.Generator().manual_seed(classes)).double()
    own = torch.linspace(-60, 60, 241).double()
    logits = others.repeat(len(own), 1)
    logits[:, 0] = own
    p = log_taylor(logits.log_softmax(1), torch.zeros(len(own), dtype=torch.int64), 2.0, 0.6, 4)
    assert bool((p.diff() >= -1e-12).all())
    assert float(p[0].exp()) < 0.02
    assert float(p[-1].exp()) > 0.98


def test_taylor_softmax_of_extreme_answers_is_finite() -> None:
    sure = double([[0.0, -math.inf, -math.inf], [0.0, -1e4, -2e4], [-1.0986] * 3])
    assert log_taylor(sure, torch.tensor([0, 1, 2]), 2.0, 0.6, 4).isfinite().all()
    assert log_taylor(sure[:1], torch.tensor([-1]), 2.0, 0.6, 4).isnan().all()


# ---- victims -------------------------------------------------------------------------------------


def play(attack: Any, served: Any, examples: Any = None) -> Any:
    split = tiny_split()
    question, _ = GAMES["membership"].pose(split, served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer = attack.answer(oracle, question, ctx)
    expected = len(question.examples) + int(answer.notes["population"])
    assert oracle.queries == expected
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*FORMS, RMIA(k=3), RMIAOffline(k=1)], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer = play(attack, memoriser(split.victim()))
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.95
    null = play(attack, memoriser(split.null()))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )
    if attack.k == 1:
        assert answer.decisions is None
    elif attack.signal == "taylor":
        assert (answer.decisions == split.member).double().mean() > 0.9


def test_scores_have_steps_of_one_over_the_population_and_order_rows_within_them() -> None:
    served = memoriser(tiny_split().victim())
    for attack, size in [(RMIAOffline(), 400), (RMIAOffline(population=64), 64)]:
        answer = play(attack, served)
        assert answer.notes["population"] == size
        assert 0 <= answer.scores.min() <= answer.scores.max() <= 1
    x, z = (double(values).log() for values in ([0.1, 0.4, 0.3, 0.9], [0.2, 0.2, 0.2, 0.4]))
    none = torch.zeros(1, 4).bool()
    of_x, of_z = (Evidence(of, torch.zeros(1, 4).double(), none) for of in (x, z))
    attack = RMIAOffline(a=1.0)
    shares, ranks = attack._scores(of_x, of_z), attack._ranks(of_x, of_z, 4)
    assert shares.tolist() == [0.0, 0.75, 0.0, 1.0]
    expected = [
        (4 * share + r / (1 + r)) / 5 for share, r in zip(shares.tolist(), x.exp(), strict=True)
    ]
    torch.testing.assert_close(ranks, double(expected))


def flat(online: bool, member: Tensor, z: int, seed: int) -> tuple[Evidence, Evidence]:
    """Flat answers, of which members have slightly larger ones; and those of z other rows."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(member: Tensor, *, held: bool) -> Evidence:
        n = len(member)
        inside = (torch.rand(6, n, generator=generator) < 0.5) & held
        known = torch.cat([member[None], inside]).double()
        answers = known.mul(0.02).add(torch.rand(7, n, generator=generator) * 0.02).add(0.5).log()
        return Evidence(answers[0], answers[1:], inside)

    return drawn(member, held=online), drawn(torch.zeros(z, dtype=torch.bool), held=False)


@pytest.mark.parametrize("attack", [RMIA(), RMIAOffline()], ids=str)
def test_flat_answers_still_order_rows(attack: Any) -> None:
    """As under ``hamp``: nothing is favoured by gamma, and the share of all rows is 0."""
    member = torch.arange(200) % 2 == 0
    x, z = flat(attack.online, member, 200, 0)
    assert attack._scores(x, z).unique().numel() == 1
    scores = attack._ranks(x, z, 200)
    assert auc(scores.numpy(), member.numpy()).value > 0.9
    # the limit of a stand-in, which shares some of z, is one for the victim
    known, shared = flat(attack.online, member, 120, 1)
    limit = threshold(attack._ranks(known, shared, 200), member)
    assert ((scores >= limit) == member).double().mean() > 0.85


def test_a_shadow_that_holds_z_does_not_count_for_z() -> None:
    # own worlds hold rows of the pool, and are sure of them: with those, p(z) would be too high
    split = tiny_split()
    attack = RMIAOffline(signal="softmax", k=2)  # complementary halves: half the pool is in one
    oracle, ctx = arena(attack, memoriser(split.victim()))
    z = attack._population(ctx)
    held = torch.stack([s.world.contains(z) for s in ctx.shadows])
    assert held.sum().item() == 160
    found = torch.stack([attack._signal(s.oracle.log_posteriors(z), z.y) for s in ctx.shadows])
    prior = log_prior(found, held, attack.a, outside_only=True).exp()
    only = held[0] & ~held[1]
    torch.testing.assert_close(prior[only], (1.3 * found[1, only].exp() + 0.7) / 2)
    assert (prior[only] < log_prior(found, held & False, attack.a).exp()[only]).all()
    del oracle


def test_the_stand_in_is_asked_about_other_rows_than_the_population() -> None:
    split = tiny_split()
    attack = RMIAOffline(k=6)
    _, ctx = arena(attack, memoriser(split.victim()))
    first = ctx.shadows[0]
    of_it = torch.cat([first.world.members.index, first.nonmembers.index])
    given = (ctx, lambda oracle, rows: of_views(ctx, 0, attack._signal)(oracle, rows)[:, 0])
    assert attack._threshold(split.candidates, split.pool, *given) is not None
    only = split.pool.select(torch.isin(split.pool.index, of_it))
    assert attack._threshold(split.candidates, only, *given) is None


@pytest.mark.parametrize("attack", [RMIA(), RMIAOffline()], ids=str)
def test_a_row_at_the_threshold_is_called_a_member(
    attack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench_plugins.attacks import rmia

    served = memoriser(tiny_split().victim())
    limit = float(play(attack, served).scores.median())
    monkeypatch.setattr(rmia, "threshold", lambda *_: limit)
    answer = play(attack, served)
    assert (answer.scores == limit).any()
    assert answer.decisions[answer.scores == limit].all()


@pytest.mark.parametrize("attack", [RMIA(), RMIAOffline()], ids=str)
def test_rows_without_a_label_get_a_neutral_score(attack: Any) -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer = play(attack, memoriser(split.victim()), some)
    assert (answer.scores[blank] == 0.5).all()
    assert not answer.decisions[blank].any()
    assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("attack", [RMIA(), RMIAOffline(), InfoRMIA(), InfoRMIAOffline()], ids=str)
def test_a_mirror_image_that_tells_nothing_changes_nothing(attack: Any) -> None:
    """The memoriser knows rows as they are only, so shadows say that mirror images are noise."""
    split = tiny_split()
    question, _ = GAMES["membership"].pose(
        split, memoriser(split.victim()), max_rows=None, sensitive=()
    )
    answers, queries = [], []
    for flip in (0.0, 0.5):
        oracle, ctx = arena(attack, memoriser(split.victim()))
        ctx.card = replace(ctx.card, limits=Augmentation(flip=flip))
        answers.append(attack.answer(oracle, question, ctx))
        queries.append(oracle.queries)
    rows = len(question.examples)
    assert queries == [queries[0], 2 * queries[0]]
    assert queries[0] >= rows
    plain, mirrored = (answer.scores for answer in answers)
    assert (plain - mirrored).abs().mean() < 0.02 * plain.std()
    assert auc(plain.numpy(), split.member.numpy()).value > 0.9
