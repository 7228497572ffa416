"""Fixtures that several test files share."""

from __future__ import annotations

import functools
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from privbench.plugins.registry import Registry

settings.register_profile("privbench", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("privbench")

if sys.dont_write_bytecode:  # tests start many processes, and each would compile torch again
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def pytest_configure(config: pytest.Config) -> None:
    """Set how torch computes, except in the process that only hands tests to workers."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    import torch

    from privbench.ground.store.machine import make_strict

    make_strict()
    # Small steps on busy cores are ten times slower with two OpenMP threads than with one.
    torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
    if os.environ.get("PRIVBENCH_TEST_ROUNDING"):  # another machine's rounding: see .ci/variants
        _round_losses()


def _round_losses() -> None:
    """Multiply every loss by 1 ± 1e-7; the sign is a function of the loss's own bits."""
    import torch

    backward: Any = torch.Tensor.backward

    def rounded(self: torch.Tensor, *given: Any, **named: Any) -> None:
        odd = self.detach().double().sum().view(torch.int64) >> 31 & 1
        backward(self * (1 + 1e-7 * (2.0 * odd - 1)), *given, **named)

    torch.Tensor.backward = rounded  # type: ignore[method-assign]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long to fuzz, and how much of each suite to run."""
    parser.addoption("--fuzz", type=int, default=25, help="cases of each fuzzer [25]")
    parser.addoption("--every-cell", action="store_true", help="run all cells of all suites")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All cells of all suites take hours, and may."""
    if config.getoption("--every-cell"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0), append=False)


def pytest_collection_finish() -> None:
    """What is imported by now stays: looking through it for garbage takes 4 % of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's store."""
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.delenv("PRIVBENCH_DISABLE_PLUGINS", raising=False)
    monkeypatch.setattr("privbench.plugins.registry.imported", set())
    if origins := sys.modules.get("privbench.grid.origins"):  # those of other tests stay loaded
        monkeypatch.setattr(origins, "loaded_files", tuple)


@pytest.fixture(autouse=True)
def _fast_accounting() -> None:
    """Opacus computes Rényi orders in Python, a second for an epsilon: each once in a process."""
    accounting: Any = sys.modules.get("opacus.accountants.analysis.rdp")
    if accounting and not hasattr(accounting._compute_rdp, "cache_info"):
        accounting._compute_rdp = functools.cache(accounting._compute_rdp)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """All in-tree plugins; tests only read it."""
    from privbench.plugins import registry as plugins

    return plugins.load()


@pytest.fixture(scope="session")
def tiny_registry() -> Registry:
    """All in-tree plugins, and the dataset and target of the kit; tests only read it."""
    from privbench.plugins import registry as plugins
    from privbench.testing.fixtures import TinyImages, TinyTarget

    registry, plugin = plugins.load(), plugins.Plugin("kit", "privbench.testing", "privbench")
    registry.add("dataset", TinyImages(), plugin)
    registry.add("target", TinyTarget(), plugin)
    return registry
