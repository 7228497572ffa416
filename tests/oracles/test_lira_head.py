"""LiRA on encoder and head: each trace by hand, and models whose traces are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from tests.oracles import toy_encoders
from tests.oracles.toy_encoders import Close, answered, area, hands, placed
from torch import Tensor

from privbench import Examples, MembershipQuestion
from privbench.measure.games.metrics import auc
from privbench.testing import auc_band
from privbench.toolbox.traces import STRENGTHS, Axes, bands, weights_of_traces
from privbench_plugins.attacks.lira import LiRA
from privbench_plugins.attacks.lira_encoder import LiRAEncoder
from privbench_plugins.attacks.lira_head import LiRAHead

if TYPE_CHECKING:
    from collections.abc import Callable

N, WIDTH, CLASSES, SHADOWS = 200, 48, 4, 16
TABLE = SimpleNamespace(kind="table", classes=CLASSES)


def drawn(seed: int, n: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    """Return embeddings, log-posteriors that are no linear map of them, and directions."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=draw).double() * torch.logspace(-2, 1, 6)
    y = (x @ torch.randn(6, CLASSES, generator=draw).double()).sin().log_softmax(1)
    return x, y, torch.randn(n, CLASSES, generator=draw).double()


def test_bands_are_what_ridge_regressions_leave() -> None:
    x, y, pull = drawn(0)
    logits = (y - y.mean(1, keepdim=True)).numpy()
    unit = x.var(0, unbiased=False).mean().item() * len(x)
    left = [logits - Ridge(part * unit).fit(x, logits).predict(x) for part in STRENGTHS]
    left.append(logits - logits.mean(0))
    along = np.stack([(one * pull.numpy()).sum(1) for one in left], axis=1)
    expected = np.diff(along, axis=1, prepend=0)
    assert bands(Axes.of(x), y, pull).numpy() == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(-5, 5))
def test_bands_know_no_axes_no_unit_and_no_order(seed: int, unit: float, shift: float) -> None:
    x, y, pull = drawn(seed)
    turn, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
    order = torch.randperm(len(x))
    axes, moved = Axes.of(x), Axes.of((unit * x @ turn + shift)[order])
    found = bands(moved, y[order] + shift, pull[order])
    assert found == pytest.approx(bands(axes, y, pull)[order], abs=1e-6)
    assert moved.leverage() == pytest.approx(axes.leverage()[order], abs=1e-6)


@pytest.mark.parametrize("n", [50, 4])  # more rows than numbers, and fewer
def test_leverage_is_the_diagonal_of_the_hat_matrix(n: int) -> None:
    x, y, pull = drawn(3, n)
    centred = (x - x.mean(0)).numpy()
    unit = (centred**2).mean() * n
    for at, part in enumerate(STRENGTHS):
        inverse = np.linalg.inv(centred.T @ centred + part * unit * np.eye(6))
        hat = centred @ inverse @ centred.T
        assert Axes.of(x).leverage()[:, at].sigmoid().numpy() == pytest.approx(hat.diagonal())
        left = (np.eye(n) - hat) @ (y - y.mean(0)).numpy()
        assert Axes.of(x).left(y)[:, at].numpy() == pytest.approx(left, abs=1e-9)
    assert bands(Axes.of(x), y, pull).isfinite().all()


def test_embeddings_that_are_not_finite_or_huge_hide_no_other_row() -> None:
    x, _, _ = drawn(4)
    usual = Axes.of(x).leverage()
    assert Axes.of(1e200 * x).leverage() == pytest.approx(usual, abs=1e-6)
    for odd in (torch.inf, torch.nan, 1e30, -1e5):
        spoilt = x.clone()
        spoilt[0, 0] = odd
        found = Axes.of(spoilt).leverage()
        assert found.isfinite().all()
        assert np.corrcoef(found[1:, 0], usual[1:, 0])[0, 1] > 0.5, odd


def test_rows_of_large_spread_count_no_more_than_others() -> None:
    draw = torch.Generator().manual_seed(9)
    inside = torch.rand(17, 2000, generator=draw) < 0.5
    noise = torch.randn(17, 2000, 2, generator=draw).double()
    clear, weak = noise[..., 0] + inside, noise[..., 1] + 0.3 * inside
    size = (1.5 * torch.randn(2000, generator=draw).double()).exp()
    weights = weights_of_traces(torch.stack([size * clear, weak], dim=2), inside)
    usual = size.median()
    assert weights[0] * usual > 0.5 * weights[1]  # without the unit of each row 0.16


def test_wide_embeddings_are_averaged() -> None:
    x = torch.randn(30, 4096, generator=torch.Generator().manual_seed(7))
    halves = x.view(30, 2048, 2).mean(2)
    assert Axes.of(x).leverage() == pytest.approx(Axes.of(halves).leverage(), abs=1e-6)


def test_weights_take_any_unit_and_any_sign() -> None:
    draw = torch.Generator().manual_seed(6)
    inside = torch.rand(16, 300, generator=draw) < 0.5
    noise = torch.randn(16, 300, 4, generator=draw).double()
    signals = noise + torch.tensor([0.0, 1.0, -1.0, 0.0]) * inside.unsqueeze(-1)
    signals *= torch.tensor([1.0, 1e-3, 1e3, 0.0])
    weights = weights_of_traces(signals, inside) * torch.tensor([1.0, 1e-3, 1e3, 1.0])
    assert weights.tolist() == pytest.approx([0.0, 0.5, -0.5, 0.0], abs=0.05)
    assert weights[3] == 0
    rows = torch.randn(300, 4, generator=draw).double()  # rows differ, and that tells nothing
    moved = weights_of_traces(signals + rows * torch.tensor([1.0, 1e-3, 1e3, 0.0]), inside)
    assert moved == pytest.approx(weights_of_traces(signals, inside), abs=1e-3)
    gone = signals.clone()
    gone[3, 7, 1] = torch.nan  # one answer, and then all of one shadow
    units = torch.tensor([1.0, 1e-3, 1e3, 1.0])
    assert weights_of_traces(gone, inside) * units == pytest.approx(weights, abs=0.01)
    gone[5] = torch.nan
    assert weights_of_traces(gone, inside)[1] > 0
    alike = [0.25] * 4
    assert weights_of_traces(signals, torch.ones_like(inside)).tolist() == alike
    assert weights_of_traces(torch.zeros_like(signals), inside).tolist() == alike


class _Head:
    """A linear classifier on embeddings that are the rows."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def embeddings(self, rows: Examples) -> Tensor:
        return rows.x

    def log_posteriors(self, rows: Examples) -> Tensor:
        return (rows.x.double() @ self.weights).log_softmax(1)

    def posteriors(self, rows: Examples) -> Tensor:
        return self.log_posteriors(rows).exp()


class _Shadow:
    """A head, and which rows it holds."""

    def __init__(self, weights: Tensor, held: Tensor) -> None:
        self.oracle, self.world, self.held = _Head(weights), self, held

    def contains(self, rows: Examples) -> Tensor:
        return self.held[rows.index]


def trained(x: Tensor, y: Tensor, held: Tensor) -> Tensor:
    """Return the weights (m, WIDTH, CLASSES) of m logistic regressions on rows ``held`` (m, n)."""
    weights = torch.zeros(len(held), WIDTH, CLASSES, dtype=torch.float64)
    truth = torch.nn.functional.one_hot(y, CLASSES).double()
    for _ in range(1000):
        off = (x @ weights).softmax(-1) - truth
        weights -= 0.1 * (x.T @ (off * held.unsqueeze(-1))) / held.sum(1)[:, None, None]
    return weights


@pytest.fixture(scope="module")
def heads() -> Callable[[float], dict[str, Any]]:
    """Return what answers rows: victim and shadows whose weights carry Gaussian noise."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(N, WIDTH, generator=draw).double() * torch.logspace(1, -1, WIDTH)
    rows = Examples.of(x, torch.randint(CLASSES, (N,), generator=draw), scale=1.0)
    halves = [torch.randperm(N, generator=draw) < N // 2 for _ in range(SHADOWS // 2)]
    sets = [torch.randperm(N, generator=draw) < N // 2, *(s for h in halves for s in (h, ~h))]
    weights = trained(x, rows.y, torch.stack(sets))

    def made(noise: float) -> dict[str, Any]:
        noisy = weights + noise * torch.randn(weights.shape, generator=draw).double()
        shadows = [_Shadow(w, held) for w, held in zip(noisy[1:], sets[1:], strict=True)]
        return {"rows": rows, "victim": _Head(noisy[0]), "shadows": shadows, "member": sets[0]}

    return made


def score(attack: Any, of: dict[str, Any]) -> float:
    ctx: Any = SimpleNamespace(
        shadows=of["shadows"], card=SimpleNamespace(kind="table", classes=CLASSES)
    )
    found = attack.answer(of["victim"], MembershipQuestion(of["rows"], "classifier"), ctx)
    value = auc(found.scores.numpy(), of["member"].numpy()).value
    assert value is not None
    return value


def test_noise_on_a_head_hides_less_than_a_row_s_own_answer_shows(
    heads: Callable[[float], dict[str, Any]],
) -> None:
    of = [heads(0.6) for _ in range(3)]
    assert np.mean([score(LiRAHead(), one) for one in of]) > (
        np.mean([score(LiRA(), one) for one in of]) + 0.1
    )


def test_embeddings_that_do_not_vary_leave_the_logits() -> None:
    x, y, pull = drawn(1)
    logits = y - y.mean(1, keepdim=True)
    plain = ((logits - logits.mean(0)) * pull).sum(1)
    for same in (torch.zeros_like(x), torch.full_like(x, 0.1)):
        found = bands(Axes.of(same), y, pull)
        assert found[:, 0] == pytest.approx(plain, abs=1e-6)
        assert found[:, 1:] == pytest.approx(torch.zeros(len(x), 5), abs=1e-6)
    assert bands(Axes.of(x[:1]), y[:1], pull[:1]).tolist() == [[0.0] * 6]


def test_a_posterior_of_zero_rules_no_other_row() -> None:
    x, y, pull = drawn(2)
    masked = y.clone()
    masked[0, 0] = -torch.inf
    assert bands(Axes.of(x), masked, pull)[1:] == pytest.approx(
        bands(Axes.of(x), y, pull)[1:], abs=1.0
    )
    assert bands(Axes.of(x), masked, pull).isfinite().all()


def test_a_row_without_a_label_scores_nothing(
    heads: Callable[[float], dict[str, Any]],
) -> None:
    of = heads(0.0)
    rows: Examples = of["rows"]
    ctx: Any = SimpleNamespace(
        shadows=of["shadows"], card=SimpleNamespace(kind="table", classes=CLASSES)
    )
    labels = rows.y.clone()
    labels[0] = -1
    unlabelled = Examples.of(rows.x, labels, scale=1.0)
    found = LiRAHead().answer(of["victim"], MembershipQuestion(unlabelled, "classifier"), ctx)
    assert found.scores[0] == 0
    assert found.decisions is not None
    assert not found.decisions[0]
    assert found.scores[1:].isfinite().all()


# ---- views ---------------------------------------------------------------------------------------


def of_two_traces(attack: Any, *, close: float, sure: float, images: bool = True) -> float:
    """Return the AUC of an attack on rows that leave two traces."""
    draw = torch.Generator().manual_seed(5)
    sets = hands(16, toy_encoders.N // 2, draw)
    made = [Close(held, draw, close=close, sure=sure) for held in sets]
    y = torch.zeros(toy_encoders.N, dtype=torch.int64)
    return area(answered(attack, made, sets, y, images=images), sets[0])


def test_close_views_and_logits_together_find_more_than_each() -> None:
    close = of_two_traces(LiRAEncoder(online=True), close=0.1, sure=0.0)
    sure = of_two_traces(LiRAHead(), close=0.0, sure=1.0)
    assert 0.6 < close < 0.9
    assert 0.6 < sure < 0.9
    assert of_two_traces(LiRAHead(), close=0.1, sure=0.0) > close - 0.02
    assert of_two_traces(LiRAHead(), close=0.1, sure=1.0) > max(close, sure) + 0.03
    chance = auc_band(toy_encoders.N // 2, toy_encoders.N // 2)
    assert abs(of_two_traces(LiRAHead(), close=0.1, sure=0.0, images=False) - 0.5) < chance


# ---- places --------------------------------------------------------------------------------------


def of_places(attack: Any, **how: Any) -> float:
    """Return the AUC of an attack on a table's encoder."""
    return area(*placed(attack, **how))


def test_an_encoder_tells_members_by_where_it_puts_them() -> None:
    attack = LiRAEncoder(online=True)
    assert 0.4 < of_places(attack) < 0.6
    assert of_places(attack, far=0.7, labelled=False) > 0.7
    assert of_places(attack, near=2.0) > 0.8
    assert of_places(attack, near=2.0) > of_places(attack, near=2.0, labelled=False) + 0.05


def test_views_alone_are_the_papers_attack_and_need_pictures() -> None:
    table: Any = SimpleNamespace(card=SimpleNamespace(kind="real", limits=None, name="adult"))
    assert LiRAEncoder(online=True).incompatible(table) is None
    for views in (LiRAEncoder(), LiRAEncoder(online=True, signals="views")):
        assert "set online=true and signals=all" in str(views.incompatible(table))
    assert LiRAEncoder.presets["paper"]["signals"] == "views"
