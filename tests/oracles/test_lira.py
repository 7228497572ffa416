"""LiRA against hand-worked cases: signals, Gaussians of a row, shadows; LiRA on an encoder."""

from __future__ import annotations

import math
from statistics import NormalDist
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import polygamma
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from privbench import MembershipQuestion
from privbench.measure.data.augmentation import Augmentation
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.testing import arena, auc_band, memoriser, rate_band, tiny_split
from privbench.toolbox import likelihood, likelihood_ratio
from privbench.toolbox.likelihood import (
    FLOOR,
    Evidence,
    hinge,
    log_confidence,
    mean,
    scaled_logit,
    stand_in,
    threshold,
    weights_of_views,
)
from privbench.toolbox.likelihood_ratio import (
    FEWEST,
    LEAST,
    Kind,
    Location,
    Predictive,
    fit,
    kind,
    log_ratio,
    variance_prior,
    z_score,
)
from privbench.toolbox.traces import similarity
from privbench_plugins.attacks.lira import LiRA, LiRAOffline
from privbench_plugins.attacks.lira_encoder import LiRAEncoder

if TYPE_CHECKING:
    from privbench import AttackContext, Membership

FORMS = [LiRA(), LiRAOffline(), LiRAEncoder(), LiRAEncoder(online=True)]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def signals(by_shadow: list[list[float]]) -> Tensor:
    """(k, n, 1) from a list per shadow."""
    return double(by_shadow).unsqueeze(-1)


def evidence(asked: list[float], known: list[list[float]], inside: list[list[int]]) -> Evidence:
    return Evidence(double(asked)[:, None], signals(known), torch.tensor(inside).bool())


def only(values: Tensor) -> float:
    """The one value that all have."""
    (value,) = set(values.flatten().tolist())
    return float(value)


def normal(
    known: Tensor, held: Tensor, location: Location = "mean", variance: Kind = "pooled"
) -> tuple[Tensor, Tensor]:
    """Location and standard deviation of Gaussians."""
    found = fit(known, held, location, variance)
    assert found.free.isinf().all()
    return found.centre, found.scale


def draws(n: int, seed: int) -> Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- signals -------------------------------------------------------------------------------------


def test_scaled_logit_of_logits_neither_overflows_nor_saturates() -> None:
    logits = double([[1000.0, 0.0, 0.0]] * 2)
    found = scaled_logit(logits, torch.tensor([0, 1]))
    torch.testing.assert_close(found, double([1000 - math.log(2), -1000.0]))
    # log-posteriors are logits up to a constant
    torch.testing.assert_close(scaled_logit(logits.log_softmax(1), torch.tensor([0, 1])), found)


def test_signals_by_hand() -> None:
    p, y = double([[0.7, 0.2, 0.1]] * 2), torch.tensor([0, 2])
    torch.testing.assert_close(
        scaled_logit(p.log(), y), double([0.84729786039, math.log(0.1 / 0.9)])
    )
    torch.testing.assert_close(hinge(p.log(), y), double([math.log(3.5), math.log(1 / 7)]))
    torch.testing.assert_close(log_confidence(p.log(), y).exp(), double([0.7, 0.1]))


def test_views_are_flips_and_shifts_by_up_to_four_pixels() -> None:
    assert (likelihood.VIEWS.flip, likelihood.VIEWS.shift) == (0.5, 4)
    assert Augmentation(flip=0.5, shift=4) == likelihood.VIEWS  # and nothing else


@pytest.mark.parametrize(
    ("views", "flips", "expected"),
    [(0, 1.0, []), (1, 1.0, [(1.0, 0, 1)]), (1, 0.0, []), (3, 0.0, [(0.0, 1, 2)]),
     (3, 1.0, [(1.0, 0, 1), (0.5, 1, 2)])],
)  # fmt: skip
def test_the_first_view_is_the_mirror_image_where_the_data_allow_it(
    views: int, flips: float, expected: list[Any]
) -> None:
    rows = tiny_split().candidates
    limits = Augmentation(flip=flips, shift=1)
    asked: list[Any] = []

    def views_of(rows: Any, augmentation: Augmentation, n: int) -> Any:
        made = augmentation.within(limits)
        asked.append((made.flip, made.shift, n))
        return SimpleNamespace(x=torch.stack([rows.x.flip(-1)] * n, 1))

    ctx: Any = SimpleNamespace(card=SimpleNamespace(kind="image", limits=limits), views=views_of)
    oracle: Any = SimpleNamespace(
        log_posteriors=lambda of: of.x.double().flatten(-3)[..., :10].log_softmax(-1)
    )
    found = likelihood.of_views(ctx, views)(oracle, rows)
    assert asked == expected
    assert found.shape == (len(rows), 1 + sum(n for _, _, n in expected))
    own = scaled_logit(oracle.log_posteriors(rows), rows.y)
    torch.testing.assert_close(found[:, 0], own)
    for view in found[:, 1:].T:
        mirrored = oracle.log_posteriors(SimpleNamespace(x=rows.x.flip(-1)))
        torch.testing.assert_close(view, scaled_logit(mirrored, rows.y))
    ctx.card.kind, ctx.card.limits = "real", None
    torch.testing.assert_close(likelihood.of_views(ctx, views)(oracle, rows), own[:, None])


def test_weights_of_views_are_those_of_scikit_learn() -> None:
    """With rows alike, Fisher's discriminant is that of all signals in two classes."""
    k, n = 40, 30
    noise = draws(k * n * 3, 7).view(k, n, 3) @ double([[1, 0.3, 0], [0, 2, 0.2], [0, 0, 0.7]])
    inside = (torch.arange(k)[:, None] + torch.arange(n)) % 2 == 0
    known = noise + inside[..., None] * double([1.0, 0.9, 0.4])
    level = 5 * draws(n * 3, 8).view(n, 3)  # of each row, which tells nothing
    found = weights_of_views(known + level, inside)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(
        known.flatten(0, 1).numpy(), inside.flatten().numpy()
    )
    expected = peer.coef_[0] / peer.coef_.sum()
    np.testing.assert_allclose(found.numpy(), expected, atol=0.02)
    blank = known.clone()
    blank[:, 3] = math.nan  # a row without a label
    assert weights_of_views(blank, inside).isfinite().all()
    torch.testing.assert_close(
        weights_of_views(blank, inside), weights_of_views(known[:, torch.arange(n) != 3],
                                                          inside[:, torch.arange(n) != 3])
    )  # fmt: skip


def test_weights_of_views_where_nothing_is_known() -> None:
    third = double([1 / 3] * 3)
    some = draws(4 * 5 * 3, 1).view(4, 5, 3)
    none = torch.zeros(4, 5).bool()
    for held in (none, ~none):  # no row has shadows of both sorts
        assert torch.equal(weights_of_views(some, held), third)
    half = torch.arange(4)[:, None].expand(4, 5) < 2
    alike = torch.ones(4, 5, 3).double()
    assert torch.equal(weights_of_views(alike, half), third)  # shadows agree
    turned = some - 9.0 * half[..., None]  # members are less sure: no view tells them
    assert torch.equal(weights_of_views(turned, half), third)
    equal = some[..., :1].expand(4, 5, 3) + half[..., None]
    torch.testing.assert_close(weights_of_views(equal, half), third, atol=1e-4, rtol=0)
    assert torch.equal(weights_of_views(some[..., :1], half), double([1.0]))


def test_weights_of_views_are_the_best_from_zero_on() -> None:
    """Views that err alike: brute force over a grid finds none that tell members better."""
    k, n = 60, 40
    alike = 0.9 ** (torch.arange(3)[:, None] - torch.arange(3)).abs().double()
    noise = draws(k * n * 3, 3).view(k, n, 3) @ torch.linalg.cholesky(alike).T
    inside = (torch.arange(k)[:, None] + torch.arange(n)) % 2 == 0
    known = noise + inside[..., None] * double([0.2, 0.6, 0.3])
    found = weights_of_views(known, inside)
    assert found.sum() == pytest.approx(1, abs=2e-4)
    assert found.min() == 0  # the first would be negative

    def told(weights: Tensor) -> float:
        gap = double([0.2, 0.6, 0.3]) @ weights
        return float(gap / (weights @ alike @ weights).sqrt())

    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 21).double()] * 3)[1:]
    assert told(found) > max(map(told, grid)) - 0.03
    assert torch.equal(found, found.round(decimals=4))
    assert torch.equal(weights_of_views(known.flip(1), inside.flip(1)), found)


def test_noisy_rows_and_views_that_never_vary_do_not_decide() -> None:
    k, n = 16, 400
    inside = (torch.arange(k)[:, None] + torch.arange(n)) % 2 == 0
    wide = torch.ones(n, 2).double()
    wide[:40, 1] = 8.0  # the mirror images of a tenth of the rows are hard to tell
    known = draws(k * n * 2, 5).view(k, n, 2) * wide + inside[..., None]
    assert 0.3 < weights_of_views(known, inside)[1] < 0.5
    fixed = torch.cat([known, torch.full((k, n, 1), 3.8712).double()], -1)
    found = weights_of_views(fixed, inside)
    assert found[2] == 0
    torch.testing.assert_close(found[:2], weights_of_views(known, inside), atol=0.05, rtol=0)


@pytest.mark.parametrize(("gap", "gain"), [(0.5, 0.015), (4.0, -0.001)])
def test_gaps_are_shrunk_where_they_are_mostly_noise(gap: float, gain: float) -> None:
    n, k = 4000, 16
    member = torch.arange(n) % 2 == 0
    inside = (torch.arange(k)[:, None] + torch.arange(n) // 2) % 2 == 0
    level = 10 * draws(n, 0)
    known = level + gap * inside + draws(k * n, 1).view(k, n)
    asked = level + gap * member + draws(n, 2)
    at = Evidence(asked[:, None], known.unsqueeze(-1), inside)
    found = auc(log_ratio(at, kind="bayes").numpy(), member.numpy()).value
    with mock.patch.object(likelihood_ratio, "shrunk", lambda one, other, *_: (one, other)):
        raw = auc(log_ratio(at, kind="bayes").numpy(), member.numpy()).value
    assert found - raw > gain
    best = NormalDist().cdf(gap / math.sqrt(2))
    assert found == pytest.approx(best, abs=0.03)


def test_a_shrunk_gap_by_hand() -> None:
    """Gaps of 1 and 3, each of variance 1, differ no more than by chance: both become 2."""
    known = signals([[0.0, 0.0], [0.0, 0.0], [1.0, 3.0], [1.0, 3.0]])
    held = torch.tensor([False, False, True, True])[:, None].expand(4, 2)
    one = torch.ones(2, 1).double()
    scale = one * math.sqrt(1.5)  # of variance 1, with that of a mean of two
    centres = (mean(known, side.unsqueeze(-1), (0,)) for side in (held, ~held))
    member, other = (Predictive(centre, scale, 9 * one) for centre in centres)
    member, other = likelihood_ratio.shrunk(member, other, 2 * one, 2 * one)
    torch.testing.assert_close(member.centre - other.centre, 2 * one)
    torch.testing.assert_close(member.centre + other.centre, double([[1.0], [3.0]]))
    torch.testing.assert_close(member.scale, one * math.sqrt(1.25))
    unknown = Predictive(one * math.nan, scale, 9 * one)
    assert likelihood_ratio.shrunk(unknown, other, 0 * one, 2 * one) == (unknown, other)


def test_a_mirror_image_helps_where_shadows_know_it() -> None:
    """Two independent signals of d' = 1: AUC Φ(1/√2) = .760 of one, Φ(1) = .841 of both."""
    n, k = 2000, 32
    member = torch.arange(n) % 2 == 0
    inside = (torch.arange(k)[:, None] + torch.arange(n) // 2) % 2 == 0
    level = 10 * draws(n * 2, 0).view(n, 2)
    for told, reached in (([1.0, 1.0], 0.841), ([1.0, 0.0], 0.760)):
        shift = double(told)
        known = level + shift * inside[..., None] + draws(k * n * 2, 1).view(k, n, 2)
        asked = level + shift * member[:, None] + draws(n * 2, 2).view(n, 2)
        weights = weights_of_views(known, inside)
        at = Evidence(asked, known, inside).joined(weights[:, None])
        found = auc(log_ratio(at, kind="bayes").numpy(), member.numpy()).value
        assert found == pytest.approx(reached, abs=0.02)


def test_signals_of_views_are_those_of_each_view() -> None:
    log_p = draws(5 * 4 * 3, 0).view(5, 4, 3).log_softmax(-1)
    y = torch.tensor([0, 1, 2, 0, 1])
    for signal in (scaled_logit, hinge, log_confidence):
        each = torch.stack([signal(log_p[:, v], y) for v in range(4)], 1)
        torch.testing.assert_close(signal(log_p, y), each)


def test_a_released_zero_is_finite_and_no_label_is_nan() -> None:
    y = torch.tensor([0, 1, -1])
    shop = double([[1.0, 0.0, 0.0]]).clamp_min(torch.finfo(torch.float64).tiny).log()
    for zero in (-math.inf, shop[0, 1].item()):  # the latter is what a served victim says of a 0
        log_p = double([[0.0, zero, zero]] * 3)
        for signal in (scaled_logit, hinge):
            first, second, third = signal(log_p, y).tolist()
            assert (first, second) == (pytest.approx(-FLOOR), pytest.approx(FLOOR))
            assert math.isnan(third)


# ---- Gaussians -----------------------------------------------------------------------------------


def test_log_ratio_and_z_score_by_hand() -> None:
    # two members at 2 ± 1/√2 have sd 1, two nonmembers at 0 ± √2 have sd 2
    half, two = math.sqrt(0.5), math.sqrt(2)
    known = [[2 + half], [2 - half], [two], [-two]]
    at = evidence([1.2], known, [[1], [1], [0], [0]])
    for variance in ("pooled", "per-example"):
        assert log_ratio(at, "mean", variance).item() == pytest.approx(0.55314718056)
        assert z_score(at, "mean", variance).item() == pytest.approx(0.6)
    assert NormalDist().cdf(z_score(at).item()) == pytest.approx(0.72574688)


def test_equal_variances_give_a_line() -> None:
    known = [[3.0 + 1], [3.0 - 1], [1.0 + 1], [1.0 - 1]]  # variances 2 with one degree of freedom
    phi = [-5.0, 0.0, 2.0, 7.0]
    at = evidence(phi, [row * 4 for row in known], [[1] * 4, [1] * 4, [0] * 4, [0] * 4])
    torch.testing.assert_close(log_ratio(at), (3 - 1) * (double(phi) - 2) / 2)


def test_far_below_the_nonmembers_is_no_member() -> None:
    at = evidence([-50.0, 0.0, 50.0], [[1.0] * 3, [-1.0] * 3], [[0] * 3] * 2)
    low, middle, high = z_score(at).tolist()
    assert (low < -30, middle, high > 30) == (True, 0, True)
    assert NormalDist().cdf(low) < 1e-12
    # no saturation either: Φ(z) is 1 from z = 8.3 on
    more = evidence([60.0, 50.0], [[1.0] * 2, [-1.0] * 2], [[0] * 2] * 2)
    assert z_score(more)[0] > z_score(more)[1]


def test_pooled_deviations_are_of_the_residuals_of_their_own_side() -> None:
    rows = 2000
    level = 100 * draws(rows, 0)  # the spread between rows must not be in it
    noise = draws(8 * rows, 1).view(8, rows)
    inside = torch.arange(8)[:, None].expand(8, rows) < 4
    known = (level + torch.where(inside, noise, 3 * noise)).unsqueeze(-1)  # variances 1 and 9
    assert only(normal(known, inside)[1]) == pytest.approx(1, rel=0.02)
    assert only(normal(known, ~inside)[1]) == pytest.approx(3, rel=0.02)
    # and they reach the score where they belong: 3 below a nonmember's mean is one deviation
    at = Evidence(level[:, None] - 3, known, inside)
    assert z_score(at).mean().item() == pytest.approx(-1, abs=0.05)
    # three deviations from the members' mean, one from the nonmembers'
    assert log_ratio(at).median().item() == pytest.approx(0.5 * (1 - 9) + math.log(3), abs=0.3)


def test_statistics_are_those_of_numpy() -> None:
    generator = torch.Generator().manual_seed(3)
    known = torch.randn(9, 20, 2, generator=generator, dtype=torch.float64)
    held = torch.rand(9, 20, generator=generator) < 0.5
    held[:, 0] = torch.arange(9) < 1
    held[:, 1] = False
    mean, each = normal(known, held, variance="per-example")
    median, pooled = normal(known, held, "median")
    assert mean[1].isnan().all()
    assert median[1].isnan().all()
    residuals, free = 0.0, 0
    for row in (0, *range(2, 20)):
        mine = known[held[:, row], row].numpy()
        assert mean[row].numpy() == pytest.approx(mine.mean(0))
        assert median[row].numpy() == pytest.approx(np.median(mine, 0))
        residuals += ((mine - np.median(mine, 0)) ** 2).sum()
        free += 2 * (len(mine) - 1)
        if len(mine) > 1:
            assert each[row].numpy() == pytest.approx(mine.std(0, ddof=1))
    assert only(pooled) == pytest.approx(math.sqrt(residuals / free))
    # a row seen once has no deviation of its own
    assert only(each[0]) == only(normal(known, held)[1])


def test_rows_that_no_shadow_holds_move_by_the_mean_difference() -> None:
    # members are 3 above nonmembers; row 2 is never a member, row 3 always
    known = [[4.0, 5.0, 3.0, 8.0], [1.0, 2.0, 1.0, 8.0]]
    inside = [[1, 1, 0, 1], [0, 0, 0, 1]]
    at = evidence([0.0] * 4, known, inside)
    members, others = (4 + 5 + 8 + 8) / 4, (3 + 1 + 2 + 1) / 4
    shift = members - others
    spread_in, spread_out = (normal(at.known, mask)[1][0, 0] for mask in (at.inside, ~at.inside))
    for row, (mean_in, mean_out) in {2: (2 + shift, 2), 3: (8, 8 - shift)}.items():
        expected = (
            NormalDist(mean_in, float(spread_in)).pdf(0.0),
            NormalDist(mean_out, float(spread_out)).pdf(0.0),
        )
        assert log_ratio(at)[row].exp().item() == pytest.approx(expected[0] / expected[1])


def test_where_no_row_has_two_shadows_of_a_sort_the_other_sort_has_the_variances() -> None:
    known = torch.tensor([[9.0, 0, 5], [1, 7, 7], [3, 4, 30]]).double().unsqueeze(-1)
    inside = torch.eye(3).bool()  # without: 1 and 3, 0 and 4, 5 and 7
    for variance in get_args(likelihood_ratio.Kind):
        held = fit(known, inside, "mean", variance, ~inside)
        rest = fit(known, ~inside, "mean", variance)
        grown = math.sqrt(2 / 1.5) if variance == "bayes" else 1.0  # the means of one and of two
        assert held.centre.flatten().tolist() == [9, 7, 30]
        assert held.scale.flatten().tolist() == pytest.approx((rest.scale * grown).flatten())
        assert held.free.equal(rest.free)
        assert fit(known, ~inside, "mean", variance, inside).scale.equal(rest.scale)  # has its own
    assert fit(known, inside, "mean", "pooled").scale.min() > 8  # rows differ


@pytest.mark.parametrize("mirrored", [False, True])
def test_few_shadows_tell_rows_that_differ(mirrored: bool) -> None:
    draw = torch.Generator().manual_seed(4)
    n, shadows = 1000, 4
    inside = (torch.randperm(n, generator=draw) % 5) == torch.arange(shadows)[:, None]
    member = torch.rand(n, generator=draw) < 0.5
    level = 5 * torch.randn(n, generator=draw).double()
    noise = torch.randn(shadows + 1, n, generator=draw).double()
    asked, known = level + noise[0] + 2 * member, level + noise[1:] + 2 * inside
    if mirrored:  # all but one shadow hold a row, and it is the members that are low
        asked, known, inside, member = -asked, -known, ~inside, ~member
    of = Evidence(asked[:, None], known.unsqueeze(-1), inside)
    scores = likelihood_ratio.log_ratio(of, kind="bayes").numpy()
    assert (auc(scores, member.numpy()).value or 0) > 0.85


def test_one_shadow_and_agreeing_shadows_are_finite() -> None:
    one = evidence([1.0, 2.0, 3.0], [[1.0, 5.0, 6.0]], [[0, 1, 1]])
    assert log_ratio(one).isfinite().all()
    alike = evidence([1.0, 2.0], [[1.0, 1.0]] * 4, [[0, 0], [0, 1], [1, 0], [1, 1]])
    assert only(normal(alike.known, alike.inside)[1]) == LEAST
    assert log_ratio(alike).isfinite().all()


def test_views_count_by_the_mean_of_their_ratios() -> None:
    generator = torch.Generator().manual_seed(5)
    known = torch.randn(8, 6, 3, generator=generator, dtype=torch.float64)
    asked = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    inside = (torch.arange(8)[:, None] + torch.arange(6)) % 2 == 0
    own: Kind = "per-example"
    for score in (log_ratio, z_score):
        each = [
            score(Evidence(asked[:, v : v + 1], known[..., v : v + 1], inside), "mean", own)
            for v in range(3)
        ]
        whole = score(Evidence(asked, known, inside), "mean", own)
        torch.testing.assert_close(whole, torch.stack(each).mean(0))


def test_gaussian_signals_reach_the_gaussian_auc() -> None:
    # d' = 2: AUC Φ(√2) = .9214; with 64 shadows nearly reached
    n, k = 3000, 64
    member = torch.arange(n) % 2 == 0
    inside = (torch.arange(k)[:, None] // 2 + torch.arange(n) // 2) % 2 == 0
    level = 10 * draws(n, 0)
    known = level + 2.0 * inside + draws(k * n, 1).view(k, n)
    asked = level + 2.0 * member + draws(n, 2)
    at = Evidence(asked[:, None], known.unsqueeze(-1), inside)
    for score in (log_ratio, z_score):
        assert auc(score(at).numpy(), member.numpy()).value == pytest.approx(0.92135, abs=0.012)
    assert auc(asked.numpy(), member.numpy()).value < 0.6  # one threshold for all rows


# ---- shadows -------------------------------------------------------------------------------------


def play(attack: Any, served: Any) -> tuple[Membership, AttackContext]:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    oracle, ctx = arena(attack, served)
    return attack.answer(oracle, question, ctx), ctx


def value(answer: Membership) -> float:
    return auc(answer.scores.numpy(), tiny_split().member.numpy()).value


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*FORMS, LiRA(views=3), LiRAOffline(views=3)], ids=str)
def test_planted_and_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer, _ = play(attack, memoriser(split.victim()))
    assert value(answer) > 0.98
    assert answer.decisions is not None
    assert (answer.decisions == split.member).double().mean() >= 0.95
    null, _ = play(attack, memoriser(split.null()))
    assert value(null) == pytest.approx(0.5, abs=auc_band(80, 80))


def test_the_origin_of_worlds_is_the_form_s_own() -> None:
    split = tiny_split()
    for attack, origin in [(LiRA(), "online"), (LiRAOffline(), "offline")]:
        assert attack.shadows.origin == origin
        _, ctx = arena(attack, memoriser(split.victim()))
        assert {s.world.origin for s in ctx.shadows} == {origin}
        held = torch.stack([s.world.contains(split.candidates) for s in ctx.shadows]).sum(0)
        assert sorted(set(held.tolist())) == ([8] if origin == "online" else [0])
    assert LiRAEncoder().shadows.origin == "offline"
    assert LiRAEncoder(online=True).shadows.origin == "online"


@pytest.mark.parametrize("origin", ["offline", "online"])
def test_a_stand_in_is_not_judged_by_itself_or_by_its_complement(origin: str) -> None:
    split = tiny_split()
    _, ctx = arena(LiRA(k=6) if origin == "online" else LiRAOffline(k=6), memoriser(split.null()))
    rows = split.candidates if origin == "online" else None
    known = stand_in(ctx.shadows, rows)
    assert known is not None
    assert [s.world.index for s in known.judges] == [2, 3, 4, 5]
    (asked,) = known.parts if rows is not None else (known.parts[0],)
    inside = ctx.shadows[0].world.contains(asked)
    assert torch.equal(known.member[: len(asked)], inside)
    assert int(known.member.sum()) * 2 == len(known.member)
    if rows is not None:  # who is in how many of the judges' worlds says nothing
        count = torch.stack([s.world.contains(asked) for s in known.judges]).sum(0)
        assert set(count.tolist()) == {2}
    assert stand_in(ctx.shadows[:2], rows) is None
    members = ctx.shadows[0].world.contains(split.candidates)
    for side in (members, ~members):
        assert stand_in(ctx.shadows, split.candidates.select(side)) is None


def test_no_threshold_where_nobody_can_judge() -> None:
    split = tiny_split()
    for k in (2, 3):  # of three shadows one may judge the first, which gives no deviation
        answer, _ = play(LiRAOffline(k=k), memoriser(split.victim()))
        assert answer.decisions is None
        assert value(answer) > 0.98
    assert play(LiRAOffline(k=4), memoriser(split.victim()))[0].decisions is not None
    nobody = threshold(double([1.0, math.nan]), torch.tensor([True, False]))
    assert nobody == math.inf
    assert threshold(double([1.0, 3.0, math.nan]), torch.tensor([False, True, True])) == 2


@pytest.mark.parametrize("attack", [LiRA(), LiRAOffline()], ids=str)
def test_rows_without_a_label_get_a_neutral_score(attack: Any) -> None:
    split = tiny_split()
    served = memoriser(split.victim())
    blank = torch.arange(len(split.candidates)) % 3 == 0
    rows = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    oracle, ctx = arena(attack, served)
    answer = attack.answer(oracle, MembershipQuestion(rows, "encoder"), ctx)
    assert (answer.scores[blank] == 0).all()
    assert not answer.decisions[blank].any()
    assert auc(answer.scores[~blank].numpy(), split.member[~blank].numpy()).value > 0.98
    none = attack.answer(
        oracle, MembershipQuestion(rows.with_y(torch.full_like(rows.y, -1)), "encoder"), ctx
    )
    assert (none.scores == 0).all()


def test_queries_per_row() -> None:
    split = tiny_split()
    question = MembershipQuestion(split.candidates, "encoder")
    for attack, cost in [(LiRA(), 1), (LiRAOffline(views=4), 4), (LiRAEncoder(n=3), 3)]:
        oracle, ctx = arena(attack, memoriser(split.victim()))
        attack.answer(oracle, question, ctx)
        assert oracle.queries == cost * len(split.candidates)


def test_variance_is_the_row_s_own_from_64_shadows_on() -> None:
    split = tiny_split()
    for attack, variance in [
        (LiRA(k=62), "bayes"), (LiRA(k=64), "per-example"),
        (LiRAOffline(k=31), "bayes"), (LiRAOffline(k=32), "per-example"),
    ]:  # fmt: skip
        answer, _ = play(attack, memoriser(split.victim()))
        assert answer.notes["variance"] == variance
    assert LiRA().preset("paper").k == 256


def test_the_row_with_the_fewest_shadows_of_a_sort_decides_whether_variances_are_its_own() -> None:
    k = 3 * FEWEST  # with a fifth of the rows in each world, most rows are in fewer than 32
    inside = torch.zeros(k, 3).bool()
    inside[:FEWEST] = True
    at = Evidence(torch.zeros(3, 1), torch.zeros(k, 3, 1), inside)
    assert kind("auto", at, online=True) == "per-example"
    inside[0, 1] = False
    assert kind("auto", at, online=True) == "bayes"
    assert kind("auto", at, online=False) == "per-example"  # without the row there are 64
    at.asked[1] = math.nan  # a row without a label decides nothing
    assert kind("auto", at, online=True) == "per-example"
    assert kind("auto", Evidence(at.asked * math.nan, at.known, inside), online=True) == "bayes"
    for chosen in ("pooled", "per-example", "bayes"):
        assert kind(chosen, at, online=True) == chosen


# ---- Bayesian variances --------------------------------------------------------------------------


def test_densities_are_those_of_scipy() -> None:
    centre, scale, free = double([1.0, -2.0, 0.5]), double([0.5, 3.0, 1.0]), [4.0, 30.0, math.inf]
    found = Predictive(centre, scale, double(free))
    for signal in (-3.0, 0.7, 40.0):
        expected = [
            stats.norm.logpdf(signal, c, s) if math.isinf(f) else stats.t.logpdf(signal, f, c, s)
            for c, s, f in zip(centre.tolist(), scale.tolist(), free, strict=True)
        ]
        at = torch.full((3,), signal, dtype=torch.float64)
        assert found.log_density(at).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("free", "error"), [(4.0, 0.035), (8.0, 0.015), (50.0, 0.001)])
def test_deviations_have_the_tail_of_a_gaussian(free: float, error: float) -> None:
    z = np.linspace(-6, 6, 121)
    t = stats.t.isf(stats.norm.sf(np.abs(z)), free) * np.sign(z)
    zero = torch.zeros(len(z), dtype=torch.float64)
    found = Predictive(zero + 1, zero + 2, zero + free).deviations(1 + 2 * torch.from_numpy(t))
    assert found.numpy() == pytest.approx(z, rel=error)
    far = Predictive(zero[:2], zero[:2] + 1, zero[:2] + free).deviations(double([1e6, 2e6]))
    assert far[0] < far[1] < math.inf


def test_posterior_of_a_variance_by_hand() -> None:
    # prior: 6 deviations of variance 2 seen before; then two signals ± 1 around 3
    strength, usual = 6.0, 2.0
    with mock.patch.object(likelihood_ratio, "variance_prior", return_value=(strength, usual)):
        known = signals([[4.0, 9.0, 5.0], [2.0, math.nan, 5.0]])
        found = fit(known, torch.ones(2, 3).bool(), "mean", "bayes")
    assert found.centre.flatten().tolist() == [3.0, 9.0, 5.0]
    assert found.free.flatten().tolist() == [7.0, 6.0, 7.0]
    variances = [(6 * 2 + 2) / 7 * 1.5, 2 * 2.0, 6 * 2 / 7 * 1.5]
    assert found.scale.square().flatten().tolist() == pytest.approx(variances)


@pytest.mark.parametrize("free", [1, 3, 15])
def test_the_prior_of_variances_is_recovered(free: int) -> None:
    rng = np.random.default_rng(free)
    strength, usual, m = 8.0, 2.5, 1_000_000
    true = usual * strength / rng.chisquare(strength, m)
    seen = torch.from_numpy(true * rng.chisquare(free, m) / free)
    degrees = torch.full((m,), free)
    assert variance_prior(seen, degrees) == pytest.approx((strength, usual), rel=0.1)
    alike = torch.from_numpy(usual * rng.chisquare(free, m) / free)
    assert variance_prior(alike, degrees)[0] > 100
    assert variance_prior(seen[:1], degrees[:1]) == (math.inf, seen[0].item())


def test_two_variances_already_tell_how_far_they_differ() -> None:
    assert variance_prior(double([2.0, 2.1]), double([50.0, 50.0]))[0] == math.inf  # by chance
    strength, _ = variance_prior(double([1.0, 100.0]), double([50.0, 50.0]))
    # Smyth: trigamma(strength / 2) is the variance of log 1 and log 100, less trigamma(25)
    excess = math.log(100) ** 2 / 2 - float(polygamma(1, 25))
    assert float(polygamma(1, strength / 2)) == pytest.approx(excess, rel=1e-6)


def test_bayes_is_close_to_pooled_with_few_shadows_and_to_per_example_with_many() -> None:
    rows, rng = 500, np.random.default_rng(1)
    spread = torch.from_numpy(np.sqrt(12 / rng.chisquare(12, rows)))
    for k, close, other in [(3, "pooled", "per-example"), (400, "per-example", "pooled")]:
        known = (draws(k * rows, k).view(k, rows) * spread).unsqueeze(-1)
        held = torch.ones(k, rows).bool()
        log = {n: fit(known, held, "mean", n).scale.log().flatten() for n in get_args(Kind)}
        bayes = log["bayes"] - 0.5 * math.log1p(1 / k)  # that of the mean apart
        off = {n: float((bayes - log[n]).abs().median()) for n in (close, other)}
        assert off[close] < 0.7 * off[other]


@pytest.mark.parametrize("k", [3, 8])
def test_bayes_knows_how_little_few_shadows_tell(k: int) -> None:
    # nonmembers of variance that differs by row: a share of 5 % has one in twenty as its tail
    rows, generator = 20_000, np.random.default_rng(0)
    spread = torch.from_numpy(np.sqrt(6 / generator.chisquare(6, rows)))
    known = (draws(k * rows, 0).view(k, rows) * spread).unsqueeze(-1)
    at = Evidence((draws(rows, 1) * spread)[:, None], known, torch.zeros(k, rows).bool())
    share = (z_score(at, "mean", "bayes") > NormalDist().inv_cdf(0.95)).double().mean().item()
    assert share == pytest.approx(0.05, abs=rate_band(rows, 0.05) + 0.002)
    plain = (z_score(at, "mean", "per-example") > NormalDist().inv_cdf(0.95)).double().mean()
    assert plain > 0.07


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [a.replace(variance="bayes") for a in FORMS] + [LiRA(k=4, variance="bayes")], ids=str
)
def test_bayes_on_a_planted_and_a_null_victim(attack: Any) -> None:
    split = tiny_split()
    answer, _ = play(attack, memoriser(split.victim()))
    assert value(answer) > 0.98
    assert answer.notes["variance"] == "bayes"
    null, _ = play(attack, memoriser(split.null()))
    assert value(null) == pytest.approx(0.5, abs=auc_band(80, 80))


def test_bayes_of_one_shadow_and_of_agreeing_shadows_is_finite() -> None:
    one = evidence([1.0, 2.0, 3.0], [[1.0, 5.0, 6.0]], [[0, 1, 1]])
    alike = evidence([1.0, 2.0], [[1.0, 1.0]] * 4, [[0, 0], [0, 1], [1, 0], [1, 1]])
    for at in (one, alike):
        assert log_ratio(at, "mean", "bayes").isfinite().all()


# ---- on an encoder -------------------------------------------------------------------------------


def test_similarity_by_hand() -> None:
    # cosines 0.6, 0 and 0.8 of three views, whatever their length
    views = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, 7.0]]])
    expected = (math.log(1.6 / 0.4) + 0 + math.log(1.8 / 0.2)) / 3
    assert similarity(views).item() == pytest.approx(expected, rel=1e-6)
    assert similarity(-views).item() == pytest.approx(expected, rel=1e-6)


def test_equal_and_opposite_views_are_finite() -> None:
    h = draws(5, 0).float().expand(1, 4, 5)
    largest = similarity(h).item()
    assert 28 < largest < 28.4
    opposite = torch.stack([h[0, 0], -h[0, 0]])[None]
    assert similarity(opposite).item() == pytest.approx(-largest, rel=1e-6)


def test_similarity_resolves_cosines_near_one() -> None:
    angle = double([1e-3, 1e-4, 1e-5])
    views = torch.stack([torch.stack([angle.cos(), angle.sin()], 1), double([[1.0, 0.0]] * 3)], 1)
    # (1 + c) / (1 - c) = cot²(angle / 2)
    torch.testing.assert_close(similarity(views), -2 * (angle / 2).tan().log(), rtol=1e-6, atol=0)


def test_encoder_attack_needs_no_labels() -> None:
    split = tiny_split()
    oracle, ctx = arena(LiRAEncoder(), memoriser(split.victim()))
    rows = split.candidates
    plain = LiRAEncoder().answer(oracle, MembershipQuestion(rows, "encoder"), ctx)
    blank = rows.with_y(torch.full_like(rows.y, -1))
    assert torch.equal(
        plain.scores, LiRAEncoder().answer(oracle, MembershipQuestion(blank, "encoder"), ctx).scores
    )


def test_a_row_on_one_side_only_is_shifted_to_the_other_by_hand() -> None:
    """Rows 0 and 1 show that members' signals lie 2 higher. Row 2 was never a member, row 3 always.

    Row 2 is around 5 without, so around 7 with it; row 3 is around 5 with, so around 3 without.
    """
    inside = [[1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1]]
    known = [[3.1, 0.9, 5.1, 5.1], [2.9, 1.1, 4.9, 4.9], [1.1, 3.1, 5.1, 5.1], [0.9, 2.9, 4.9, 4.9]]
    # Means of all members and all nonmembers: (3 + 3 + 5 + 5) / 4 and (1 + 1 + 5 + 5) / 4, weighed
    # by how many shadows there are: members 2 + 2 + 4, nonmembers 2 + 2 + 4.
    shift = (3 + 3 + 2 * 5) / 4 - (1 + 1 + 2 * 5) / 4
    for row, centre in ((2, 5.0), (3, 5.0)):
        ends = (centre, centre + shift) if row == 2 else (centre - shift, centre)
        low, high = ([end if i == row else 0.0 for i in range(4)] for end in ends)
        scores = [float(log_ratio(evidence(asked, known, inside))[row]) for asked in (low, high)]
        assert scores[0] < 0 < scores[1]
        assert scores[0] == pytest.approx(-scores[1])
