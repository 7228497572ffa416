"""The white-box audit of Logit-DP: without clipping the claim is refuted, with it it is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scripts import script as loaded

from privbench.measure.games import audit

pytest.importorskip("opacus")


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("experiments/audit_logit_dp.py")


def test_pairs_that_are_not_clipped_refute_the_claim_and_clipped_ones_do_not(script: Any) -> None:
    assert script.p_value(1, clips=False, coins=100) < audit.ERROR
    assert script.p_value(1, clips=True, coins=100) > 1e-4  # smaller once in 10,000 sound runs
