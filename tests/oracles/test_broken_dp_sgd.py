"""The white-box audit of DP-SGD: broken versions are refuted, the sound one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from tests.unit.scripts import script as loaded

from privbench.measure.games import audit
from privbench.testing import rate_band

pytest.importorskip("opacus")

from privbench.toolbox.private_training import profile
from privbench_plugins.defenses.dp_sgd import DPSGD


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("experiments/audit_dp_sgd.py")


def test_noise_without_clipping_is_refuted_and_with_clipping_is_not(script: Any) -> None:
    sound = script.Setting(DPSGD(noise_multiplier=3.75, batch=100_000, accountant="rdp"), 1, 20, 80)
    assert script.p_value(replace(sound, clips=False), 1) < audit.ERROR
    assert script.p_value(sound, 1) > 1e-4  # a sound one has less than that once in 10,000 runs


def test_scores_of_canaries_are_gaussians_at_the_distance_of_clip_over_noise(script: Any) -> None:
    sigma = 0.5
    setting = script.Setting(
        DPSGD(noise_multiplier=sigma, batch=100_000, accountant="rdp"), 1, 20, 120
    )
    scores, member, claim = script.run(setting, 3)
    z = scores * sigma**2 + 0.5  # one step with q = 1: the score is linear in the projection
    assert claim["sample_rate"] == [1.0]
    for side, mean in ((member, 1.0), (~member, 0.0)):
        off = abs(z[side].mean() - mean) / (sigma / np.sqrt(side.sum()))
        assert off < norm.isf(1e-4 / 4) + 0.5  # other canaries are nearly orthogonal
        assert 0.7 * sigma < z[side].std() < 1.4 * sigma


def test_the_claim_has_the_accountants_profile() -> None:
    pairs = profile(1.0, 1e-5, ((1.0, 1),), "prv")  # one Gaussian with mu 1
    from privbench.measure.games.curves import gaussian_delta, summarised

    for epsilon, delta in pairs:
        assert gaussian_delta(epsilon, 1.0) == pytest.approx(delta, rel=0.15)
        assert gaussian_delta(epsilon, 1.0) <= delta * 1.001  # a bound
    assert summarised(pairs) == pytest.approx(1.0, abs=0.02)
    (epsilon,) = (e for e, delta in pairs if delta == 1e-5)
    claim = {"epsilon": epsilon, "delta": 1e-5, "profile": pairs}
    assert audit.contradiction(claim) is None
    assert audit.contradiction({**claim, "delta": 0.0})
    assert profile(0.01, 1e-5, ((1.0, 100),), "rdp") == []  # vacuous
    assert profile(1.0, 1e-5, ((1.0, 1),), "gdp") == []


def test_the_best_guess_about_one_coin(script: Any) -> None:
    """For one full batch of noise 1 the chance is Phi(1/2), and 4 standard errors are added."""
    made = script.honest_chance(1.0, 1.0, 1, draws=100_000)
    assert made == pytest.approx(float(norm.cdf(0.5)) + 2 / np.sqrt(1e5), abs=rate_band(100_000))
