"""Additive noise (logistic, Laplace, normal) and its scale for a given epsilon.

Each distribution is a function of uniform numbers (its quantile function), so that equal draws
give comparable noise; `gaussian` draws by itself, for the steps of a training. Epsilon is that of
releasing one vector once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: What the noise of a run is, beside its claim.
SIMULATED = (
    "drawn from the run's seed, to be repeatable, while the claim holds for secret noise only: do "
    "not release this model, nor two of one seed"
)
#: Minimum distance of uniform numbers from 0 and 1, where quantiles are infinite.
_EDGE = 2.0**-53


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal noise of the shape and type of a tensor.

    It is drawn in double precision. In single precision torch makes a normal number on a CPU from
    24 random bits, and none lies beyond 5.77: what a claim's delta calls unlikely would be
    impossible, and by far more than that delta.
    """
    drawn = torch.randn(like.shape, generator=generator, device=like.device, dtype=torch.float64)
    return drawn.to(like.dtype)


def logistic(u: Tensor, scale: float) -> Tensor:
    """Return Logistic(0, scale) float64 from uniform u; variance pi² scale² / 3.

    >>> logistic(torch.tensor([0.5, 0.75]), 1.0).exp().round(decimals=6).tolist()
    [1.0, 3.0]
    """
    u = _open(u)
    return scale * (u.log() - (-u).log1p())


def laplace(u: Tensor, scale: float) -> Tensor:
    """Return Laplace(0, scale) float64 from uniform u; variance 2 scale².

    >>> laplace(torch.tensor([0.5, 0.75]), 1.0).exp().round(decimals=6).tolist()
    [1.0, 2.0]
    """
    u = _open(u)
    return scale * torch.where(u < 0.5, (2 * u).log(), -(2 * (1 - u)).log())  # noqa: PLR2004


def normal(u: Tensor, scale: float) -> Tensor:
    """Return N(0, scale²) float64 from uniform u.

    >>> round(float(normal(torch.tensor(0.975), 2.0)), 2)
    3.92
    """
    quantile: Tensor = torch.special.ndtri(_open(u))
    return scale * quantile


def _open(u: Tensor) -> Tensor:
    return u.double().clamp(_EDGE, 1 - _EDGE)


def classical_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the textbook Gaussian mechanism's standard deviation; its proof ends at epsilon 1.

    >>> round(classical_sigma(1.0, 1.0, 1e-5), 7)
    4.8448053
    """
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_delta(sensitivity: float, epsilon: float, sigma: float) -> float:
    """Return the exact delta of N(0, sigma²) noise at this L2 sensitivity.

    Balle & Wang, ICML 2018, thm. 8.

    >>> round(gaussian_delta(1.0, 4.377178, 1.0) / 1e-5, 4)
    1.0
    """
    from scipy.special import log_ndtr

    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(math.exp(log_ndtr(a - b)) - math.exp(epsilon + log_ndtr(-a - b)))


def analytic_sigma(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the smallest standard deviation that is (epsilon, delta)-private, for any epsilon.

    >>> round(analytic_sigma(1.0, 1.0, 1e-5), 6), round(analytic_sigma(2.0, 8.0, 1e-5), 6)
    (3.730632, 1.200458)
    """
    from scipy.optimize import brentq

    if sensitivity == 0:
        return 0.0

    def excess(log_sigma: float) -> float:
        return gaussian_delta(1.0, epsilon, math.exp(log_sigma)) - delta

    return sensitivity * math.exp(brentq(excess, -15.0, 25.0, xtol=1e-13))
