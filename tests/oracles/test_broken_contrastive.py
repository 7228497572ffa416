"""White-box audits of Logit-DP and DP-GCL: they refute the claim of what does not clip."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.scripts import script as loaded

from privbench.measure.games import audit

pytest.importorskip("opacus")


@pytest.fixture(scope="module")
def script() -> Any:
    return loaded("experiments/audit_contrastive.py")


@pytest.mark.parametrize("defense", ["logit-dp", "dp-gcl"])
def test_what_is_not_clipped_refutes_the_claim_and_what_is_does_not(
    script: Any, defense: str
) -> None:
    assert script.p_value(defense, 1, clips=False, coins=100) < audit.ERROR
    assert script.p_value(defense, 1, clips=True, coins=100) > 1e-4  # smaller once in 10,000 runs
