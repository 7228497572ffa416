"""A private head on frozen features: its sensitivity on worst neighbours, its noise, its claim."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.testing import CPU, TinyImages
from privbench.testing.fixtures import AnyAttack
from privbench.toolbox import noise
from privbench.toolbox.undefended import embeddings
from privbench_plugins.defenses.dp_features import (
    LIPSCHITZ,
    DPFeatures,
    UnitLinear,
    gamma_noise,
    minimum,
    sensitivity,
)
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from privbench import Target

PROTOCOL = Protocol(
    name="public", members=80, nonmembers=80, pool=300, public=100, encoder=("public",),
    classifier="members",
)  # fmt: skip


def _rows(generator: torch.Generator, n: int, d: int, k: int) -> tuple[Tensor, Tensor]:
    x = F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)
    return x, F.one_hot(torch.randint(k, (n,), generator=generator), k).double()


def test_minimum_of_one_row_is_known() -> None:
    # lambda w = (e_y - p) x: with two classes w = ±a x, and a solves lambda a = 1 / (1 + e^2a)
    x, y = torch.tensor([[0.6, 0.8]]).double(), torch.tensor([[0.0, 1.0]]).double()
    w = minimum(x, y, 0.25)
    a = float(w[1] @ x[0])
    assert 0.25 * a == pytest.approx(1 / (1 + math.exp(2 * a)), abs=5e-3)
    torch.testing.assert_close(w, torch.stack([-a * x[0], a * x[0]]), atol=1e-6, rtol=0)


def test_minimum_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = _rows(torch.Generator().manual_seed(0), 60, 5, 4)
    w = minimum(x, y, 0.01)
    theirs = LogisticRegression(C=1 / (60 * 0.01), fit_intercept=False, tol=1e-10, max_iter=9_999)
    theirs.fit(x.numpy(), y.argmax(1).numpy())
    np.testing.assert_allclose(w.numpy(), theirs.coef_, atol=1e-2)  # within SLACK √2 / (n lambda)


@pytest.mark.parametrize("penalty", [1e-3, 1e-2, 0.1, 1.0])
def test_no_neighbour_moves_the_minimum_further_than_the_sensitivity(penalty: float) -> None:
    furthest = 0.0
    for seed in range(15):
        generator = torch.Generator().manual_seed(seed)
        n, d, k = (3, 10, 25)[seed % 3], (1, 2, 6)[seed // 3 % 3], (2, 3, 10)[seed // 5]
        x, y = _rows(generator, n, d, k)
        w = minimum(x, y, penalty)
        # the row that is predicted worst, and one that the rest would predict worst
        for at in (int((x @ w.T).softmax(1).mul(y).sum(1).argmin()), 0):
            others = (
                torch.cat([x[:at], x[at + 1 :], -x[[at]]]),
                torch.cat([y[:at], y[at + 1 :], y[[at]]]),
            )
            flipped = torch.cat([y[:at], y[at + 1 :], y[[at]].roll(1, 1)])
            for theirs in (others, (others[0], flipped)):
                moved = float((minimum(*theirs, penalty) - w).norm())
                furthest = max(furthest, moved / sensitivity(n, penalty))
    assert furthest <= 1
    if penalty >= 0.1:  # and the bound is not far above what neighbours reach
        assert furthest > 0.4


def test_a_single_row_nearly_reaches_the_sensitivity() -> None:
    # x against -x with one label: w = ±(e_y - p) x / lambda, and p is nearly 1/k if lambda is large
    k, penalty = 50, 1e3
    x, y = torch.eye(1, 3).double(), torch.eye(1, k).double()
    moved = float((minimum(x, y, penalty) - minimum(-x, y, penalty)).norm())
    assert moved == pytest.approx(2 * math.sqrt(1 - 1 / k) / penalty, rel=2e-3)
    assert 0.69 < moved / sensitivity(1, penalty) < 0.71  # √(1 - 1/k) / √2


def test_gradient_of_a_row_is_root_two_at_most_and_nearly_that() -> None:
    w = torch.tensor([[9.0, 0.0], [0.0, 0.0], [-9.0, 0.0]]).double().requires_grad_()
    x, y = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([2])  # certain of class 0, and wrong
    (gradient,) = torch.autograd.grad(F.cross_entropy(x @ w.T, y), w)
    assert LIPSCHITZ - 1e-3 < float(gradient.norm()) < LIPSCHITZ


def test_gamma_noise_has_the_papers_density() -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.stack([gamma_noise((3, 4), 0.7, generator).flatten() for _ in range(4000)])
    norms = drawn.norm(dim=1)
    assert stats.kstest(norms.numpy(), stats.gamma(12, scale=0.7).cdf).pvalue > 1e-4
    share = (drawn[:, 0] / norms).numpy()  # of a uniform direction in 12 dimensions
    assert stats.kstest((share + 1) / 2, stats.beta(5.5, 5.5).cdf).pvalue > 1e-4


def test_features_are_never_longer_than_one() -> None:
    head = UnitLinear(3, 2)
    head.centre.copy_(torch.tensor([1.0, 2.0, 3.0]))
    h = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 5.0], [-9e3, 0.0, 1.0]]).double()
    lengths = head.features(h).norm(dim=1)
    assert lengths.tolist() == pytest.approx([0.0, 1.0, 1.0])
    assert float(head(h.float())[0].detach().abs().max()) == 0.0


FAST = SimCLR(epochs=2, classifier_epochs=3)


def _made(
    tmp_path: Path, defense: DPFeatures, protocol: Protocol = PROTOCOL, target: Target = FAST
) -> Any:
    data = TinyImages()
    split = cut(data.load(None), data.card(None), protocol, 0)
    spec = VictimSpec(split.card, protocol, split.victim(), target, (defense,), ())
    return Builder(Store(tmp_path), CPU).victim(spec), split


def test_the_public_training_of_a_supervised_encoder_stays_as_it_is(tmp_path: Path) -> None:
    victim, split = _made(tmp_path, DPFeatures(), target=Supervised(epochs=2))
    assert [phase["epochs"] for phase in victim.facts["phases"]] == [2, 1]
    assert len(victim.facts["claims"]) == 1
    assert victim.log_posteriors(split.pool.x[:4]).isfinite().all()


@pytest.mark.parametrize("mechanism", ["gaussian", "gamma"])
def test_noise_is_what_the_claim_says(tmp_path: Path, mechanism: Any) -> None:
    defense = DPFeatures(epsilon=2.0, mechanism=mechanism)
    victim, split = _made(tmp_path, defense)
    head, members = victim.model["classifier"], split.victim().members
    centre = embeddings(victim.model, split.public).mean(0)
    torch.testing.assert_close(head.centre, centre.float())
    x = F.normalize(embeddings(victim.model, members) - head.centre, dim=1)
    exact = minimum(x, F.one_hot(members.y, 10).double(), 0.1)
    apart = (head.linear.weight.double() - exact).flatten()
    (claim,) = victim.facts["claims"]
    assert claim["guarantee"] is True
    assert (claim["phase"], claim["adjacency"]) == ("classifier", "replace-one")
    assert claim["sensitivity"] == pytest.approx(2 * math.sqrt(2) / (80 * 0.1), rel=2e-3)
    if mechanism == "gaussian":
        sigma = noise.analytic_sigma(claim["sensitivity"], 2.0, claim["delta"])
        assert claim["delta"] == 1e-5
        assert stats.kstest(apart.numpy(), stats.norm(0, sigma).cdf).pvalue > 1e-4
    else:
        law = stats.gamma(len(apart), scale=claim["sensitivity"] / 2.0)
        assert claim["delta"] == 0.0
        assert 1e-4 < law.cdf(float(apart.norm())) < 1 - 1e-4


def test_members_are_no_part_of_the_centre(tmp_path: Path) -> None:
    victim, split = _made(tmp_path, DPFeatures(), TinyImages.protocols["default"])
    centre = embeddings(victim.model, split.reference).mean(0)  # there are no public rows
    torch.testing.assert_close(victim.model["classifier"].centre, centre.float())
    assert victim.facts["claims"][0]["phase"] == "classifier"  # the encoder saw the members


def test_there_must_be_a_classifier_trained_apart() -> None:
    def why(target: Any, protocol: Protocol) -> str | None:
        cell = Cell(TinyImages().card(None), protocol, target, (), Adversary(), AnyAttack())
        return DPFeatures().incompatible(cell)

    assert "both at once" in (why(Supervised(), TinyImages.protocols["default"]) or "")
    assert why(Supervised(), PROTOCOL) is None
