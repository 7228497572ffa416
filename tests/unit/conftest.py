"""Fixtures that several unit tests share."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.unit.small_run import SUITE, SmallRun

import privbench


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """The results and the store of a small run; tests must not write into them."""
    place = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVBENCH_CACHE", str(place / "store"))
        patch.setattr("privbench.grid.origins.loaded_files", tuple)  # by other tests
        results = privbench.run(SUITE, out=place / "results", device="cpu")
    return SmallRun(results, place / "results", place / "store")


_SHIFTS: dict[Any, Any] = {}


@pytest.fixture(autouse=True)
def _each_pair_of_sets_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forests of ``shift`` take most of an audit, and most tests audit the same rows."""
    telling: Any = sys.modules.get("privbench.api.own_model.telling")
    if telling is None:
        return
    shift = telling.shift

    def remembered(members: Any, nonmembers: Any) -> Any:
        key = (members.shape, members.tobytes(), nonmembers.shape, nonmembers.tobytes())
        if key not in _SHIFTS:
            _SHIFTS[key] = shift(members, nonmembers)
        return _SHIFTS[key]

    monkeypatch.setattr(telling, "shift", remembered)
