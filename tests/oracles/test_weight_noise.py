"""Noise on weights: laws, calibrations and the sensitivity sampler against closed forms."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from privbench import BadInputError
from privbench.ground.store.store import Store
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, tiny_split
from privbench.testing.fixtures import tiny_spec
from privbench.toolbox import noise
from privbench_plugins.defenses.weight_noise import (
    AdditiveLogistic,
    GaussianNoise,
    LaplaceNoise,
    draw,
    sample,
)
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

FAST = SimCLR(epochs=2)
SCALE = 0.7


def _uniform(n: int = 20_000) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("made", "law", "variance"),
    [
        (noise.logistic, stats.logistic(0, SCALE), math.pi**2 * SCALE**2 / 3),
        (noise.laplace, stats.laplace(0, SCALE), 2 * SCALE**2),
        (noise.normal, stats.norm(0, SCALE), SCALE**2),
    ],
)
def test_noise_has_its_law(
    made: Callable[[Tensor, float], Tensor], law: Any, variance: float
) -> None:
    drawn = made(_uniform(), SCALE).numpy()
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-4
    assert drawn.var() == pytest.approx(variance, rel=0.05)
    assert made(torch.tensor([0.0, 1.0]), SCALE).isfinite().all()
    u = torch.tensor([0.1, 0.5, 0.9])
    np.testing.assert_allclose(made(u, SCALE).numpy(), law.ppf(u.double().numpy()), atol=1e-12)


@pytest.mark.parametrize("defense", [AdditiveLogistic(epsilon=1.3 / 0.7), LaplaceNoise(epsilon=2)])
def test_epsilon_is_sensitivity_over_scale(defense: Any) -> None:
    """The log density of the noise falls by epsilon over the sensitivity at most, and by that."""
    scale = defense.scale(1.3)
    assert scale == pytest.approx(1.3 / defense.epsilon)
    u = torch.logspace(-12, -0.31, 4001, dtype=torch.float64).requires_grad_()
    v = defense.noise(u, scale)
    (slope,) = torch.autograd.grad(v.sum(), u, create_graph=True)  # one over the density
    (bend,) = torch.autograd.grad(-slope.log().sum(), u)
    steepest = (bend / slope.detach()).abs().max()  # of the log density, along v
    assert float(steepest) * 1.3 == pytest.approx(defense.epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "analytic", "classical"),
    [
        (0.1, 30.749566, 48.448053), (0.5, 7.0318267, 9.6896105), (1, 3.7306316, 4.8448053),
        (2, 1.9938125, 2.4224026), (5, 0.8918683, 0.9689611), (8, 0.6002291, 0.6056007),
        (10, 0.4998886, 0.4844805), (20, 0.2900414, 0.2422401),
    ],
)  # fmt: skip
def test_gaussian_calibrations(epsilon: float, analytic: float, classical: float) -> None:
    sigma = noise.analytic_sigma(1.0, epsilon, 1e-5)
    assert sigma == pytest.approx(analytic, rel=1e-6)
    assert noise.classical_sigma(1.0, epsilon, 1e-5) == pytest.approx(classical, rel=1e-6)
    assert noise.gaussian_delta(1.0, epsilon, sigma) == pytest.approx(1e-5, rel=1e-6)
    assert noise.analytic_sigma(0.0, epsilon, 1e-5) == 0.0


def test_classical_is_refused_beyond_its_range() -> None:
    with pytest.raises(BadInputError, match="analytic"):
        GaussianNoise(epsilon=2.0, calibration="classical")
    assert GaussianNoise(epsilon=1.0, calibration="classical").mechanism == "gaussian, classical"
    published = GaussianNoise(epsilon=10.0, variant="as-published")
    assert "beyond its range" in published.mechanism
    assert published.scale(1.0) == pytest.approx(0.4844805, rel=1e-6)


def test_sampler_of_a_mean() -> None:
    x = torch.tensor([0.0, 3.0, 4.0, 10.0]).double()

    def refit(dropped: Tensor, exchanged: Tensor) -> dict[str, Tensor]:
        out = torch.where(exchanged < 0, dropped, exchanged)
        return {"w": ((x.sum() - x[out]) / 3)[:, None]}

    found = sample(refit, 4, 200, torch.Generator().manual_seed(0))
    whole = sample(refit, 4, 200, torch.Generator().manual_seed(0), whole=True)
    assert all(torch.equal(found[name], whole[name]) for name in found)
    i, j = found["pairs"].T
    assert not (i == j).any()
    torch.testing.assert_close(found["l1"], (x[i] - x[j]).abs() / 3)
    torch.testing.assert_close(found["l2"], found["l1"])
    # 200 draws of 6 pairs see them all: the sampled maximum is the exhaustive one, range / (n - 1)
    assert float(found["l1"].max()) == pytest.approx(10 / 3)
    few = sample(refit, 4, 1, torch.Generator().manual_seed(1))
    assert float(few["l1"].max()) <= 10 / 3


def test_flattened_norms_are_not_matrix_norms() -> None:
    # numpy's matrix 1-norm of [[1, 2], [3, 4]] is 6: here stored as torch does, outputs first
    w = torch.stack([torch.zeros(2, 2), torch.tensor([[1.0, 3.0], [2.0, 4.0]])])

    def refit(dropped: Tensor, exchanged: Tensor) -> dict[str, Tensor]:
        return {"w": w[torch.where(exchanged < 0, dropped, exchanged)]}

    found = sample(refit, 2, 1, torch.Generator().manual_seed(0))
    got = {name: float(found[name]) for name in ("l1", "l2", "matrix-1", "matrix-2")}
    expected = {"l1": 10.0, "l2": 5.4772256, "matrix-1": 6.0, "matrix-2": 5.4649857}
    assert got == pytest.approx(expected)


def test_pairs_are_uniform_over_ordered_pairs() -> None:
    drawn = draw(4, 12_000, torch.Generator().manual_seed(2))
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(drawn.T.numpy()), 1)
    off = [counts[i, j] for i, j in itertools.permutations(range(4), 2)]
    assert stats.chisquare(off).pvalue > 1e-4
    assert np.trace(counts) == 0


def _made(tmp_path: Path, *defenses: Any) -> Any:
    return Builder(Store(tmp_path), CPU).victim(tiny_spec(FAST, defenses))


def test_noise_is_what_the_record_says(tmp_path: Path) -> None:
    plain, noisy = _made(tmp_path), _made(tmp_path, AdditiveLogistic(pairs=10, epsilon=50.0))
    claim = noisy.facts["claims"][0]
    assert claim["scale"] == pytest.approx(claim["sensitivity"] / 50)
    assert claim["guarantee"] is False
    assert claim["phase"] == "classifier"
    apart = torch.cat([
        (noisy.model["classifier"].get_parameter(name) - tensor).flatten()
        for name, tensor in plain.model["classifier"].named_parameters()
    ])  # fmt: skip
    assert stats.kstest(apart.double().numpy(), stats.logistic(0, claim["scale"]).cdf).pvalue > 1e-4
    x = tiny_split().pool.x[:20]
    assert torch.equal(plain.embeddings(x), noisy.embeddings(x))


def test_no_two_tensors_share_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    made = AdditiveLogistic.noise

    def spy(self: AdditiveLogistic, u: Tensor, scale: float) -> Tensor:
        drawn.append(u)
        return made(self, u, scale)

    monkeypatch.setattr(AdditiveLogistic, "noise", spy)
    _made(tmp_path, AdditiveLogistic(pairs=10))
    bias, weight = drawn
    assert not torch.isin(bias, weight).any()


def test_one_sampler_run_serves_all_epsilons_and_mechanisms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privbench_plugins.defenses import weight_noise

    runs = []

    def counted(*given: Any, **named: Any) -> Any:
        runs.append(1)
        return sample(*given, **named)

    monkeypatch.setattr(weight_noise, "sample", counted)
    defenses = (
        AdditiveLogistic(pairs=10, epsilon=1.0),
        AdditiveLogistic(pairs=10, epsilon=2.0),
        LaplaceNoise(pairs=10),
        GaussianNoise(pairs=10),
        GaussianNoise(pairs=10, variant="as-published"),
    )
    victims = [_made(tmp_path, d) for d in defenses]
    deltas = [victim.facts["claims"][0]["sensitivity"] for victim in victims]
    assert len(runs) == 1
    spent = [set(victim.facts["spent"].items()) for victim in victims]
    assert all(len(one & spent[0]) == 3 for one in spent[1:])  # encoder, classifier, sampler
    assert spent[0] == set(_made(tmp_path, defenses[0]).facts["spent"].items())
    assert deltas[0] == deltas[1] == deltas[2]  # L1
    assert deltas[3] <= deltas[0]
    assert deltas[4] <= deltas[3]  # a spectral norm is no larger than the norm of all weights


def test_more_noise_for_smaller_epsilon_and_worse_accuracy(tmp_path: Path) -> None:
    x = tiny_split().victim().members
    agree = {}
    reference = _made(tmp_path).log_posteriors(x.x).argmax(1)
    for epsilon in (1e6, 1e-3):
        noisy = _made(tmp_path, AdditiveLogistic(pairs=10, epsilon=epsilon))
        agree[epsilon] = float((noisy.log_posteriors(x.x).argmax(1) == reference).double().mean())
    assert agree[1e6] > 0.95
    assert agree[1e-3] < 0.5


def test_there_must_be_a_classifier_trained_apart() -> None:
    from privbench.measure.methods.adversary import Adversary
    from privbench.measure.methods.cell import Cell
    from privbench.testing.fixtures import AnyAttack

    split = tiny_split()
    both = Supervised()
    card = Cell(split.card, split.protocol, both, (), Adversary(), AnyAttack())
    assert "both at once" in (AdditiveLogistic().incompatible(card) or "")
    import dataclasses

    apart = dataclasses.replace(card, target=FAST)
    assert AdditiveLogistic().incompatible(apart) is None


def test_a_classifier_that_keeps_means_of_members_is_refused(tmp_path: Path) -> None:
    """Batch norm: noise on the weights would leave its means as they are."""
    with pytest.raises(BadInputError, match="also keeps means of members' embeddings"):
        Builder(Store(tmp_path), CPU).victim(
            tiny_spec(_Normed(epochs=1, updates=0), (AdditiveLogistic(pairs=1),))
        )


@dataclass(frozen=True)
class _Normed(SimCLR):
    name: ClassVar[str] = "normed"

    def build(self, card: Any, ctx: Any) -> Any:
        model = super().build(card, ctx)
        layer = model.parts["classifier"]
        assert isinstance(layer, nn.Linear)
        model.parts["classifier"] = nn.Sequential(nn.BatchNorm1d(layer.in_features), layer)
        return model
