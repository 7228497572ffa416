"""Fixtures that several unit tests share."""

from __future__ import annotations

import pytest
from tests.unit.small_run import SUITE, SmallRun

import privbench


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """The results and the store of a small run; tests must not write into them."""
    place = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(place / "store"))
        results = privbench.run(SUITE, out=place / "results", device="cpu")
    return SmallRun(results, place / "results", place / "store")
