"""Fixtures that several test files share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.plugins import Registry

settings.register_profile("privbench", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("privbench")

# Small steps on busy cores are ten times slower with two OpenMP threads than with one.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's store."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("PRIVBENCH_DISABLE_PLUGINS", raising=False)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """All in-tree plugins."""
    from privbench import plugins

    return plugins.load()
