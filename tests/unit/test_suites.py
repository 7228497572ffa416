"""Every published suite names methods that exist and cells that can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privbench.grid.plan import plan
from privbench.grid.suite import read_suite

SUITES = sorted(Path(__file__).parents[2].glob("leaderboards/suites/*.yaml"))

#: What stands in a suite to be skipped, and says why on its board.
EXPECTED = (
    "reconstruction-rmle needs GRADIENTS, which only a white-box adversary has",
    "dp-sgd clips gradients of single examples, and the contrastive loss of simclr is not a sum",
    "selena protects by soft labels, and the encoder of simclr sees members without labels",
)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_suite_can_be_planned(path: Path, registry: Any) -> None:
    planned = plan(read_suite(path), registry, root=None, device="cpu")
    assert planned
    skips = {item.skip for item in planned if item.skip}
    assert {skip for skip in skips if not skip.startswith(EXPECTED)} == set()
