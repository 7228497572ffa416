"""Fixtures of the examples in docstrings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No example reads or writes the user's store."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
