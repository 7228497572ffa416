"""What CUDA must give, where a GPU is at hand; elsewhere these are skipped.

``uv run pytest -m "" tests/unit/test_cuda.py tests/oracles/test_keyed.py`` runs them. With
``PRIVBENCH_TEST_CUDA=pretend`` those that can run on the pretend accelerator.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.conformance import test_plugins as conformance
from tests.pretend_device import pretend_device
from tests.unit.test_pretend_device import WAITS
from tests.unit.test_suites_run import SUITES, covering, made_small, planned

import privbench
from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.training.loop import Training
from privbench.measure.training.numerics import Numerics
from privbench.plugins import registry as plugins
from privbench.testing import attack_checks, fixtures, target_checks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from privbench import Method
    from privbench.measure.methods.cell import Cell

PRETEND = os.environ.get("PRIVBENCH_TEST_CUDA") == "pretend"
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (PRETEND or torch.cuda.is_available()), reason="no GPU"),
]
real = pytest.mark.skipif(PRETEND, reason="needs a GPU")
#: The cells of all suites are shared out to so many tests, and the kit's methods too.
PARTS = 16
#: Words in the names of the kit's checks that can differ on another device: trainings and answers
#: that are the same again, trainings that are interrupted and resumed, planted leaks.
CHECKS = ("deterministic", "chance")


@pytest.fixture
def device() -> Iterator[torch.device]:
    with pretend_device() if PRETEND else nullcontext((torch.device("cuda"), None)) as (found, _):
        yield found


@cache
def _cells() -> list[tuple[str, Cell]]:
    registry = plugins.load()
    seen: set[tuple[str, ...]] = set()
    return [
        (path.stem, cell)
        for path in SUITES
        for cell in covering(made_small(planned(path, registry)), seen)
    ]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Where a training step waited for the device."""
    found: set[str] = set()
    plain: Any = Training._epoch

    def epoch(self: Training, number: int) -> Iterator[int]:
        steps = plain(self, number)
        while True:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    step = next(steps)
                except StopIteration:
                    return
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            if number > 1 or step > 1:  # the first makes the optimizer's state and constants
                found.update(
                    f"{one.filename.rpartition('/')[2]}:{one.lineno}"
                    for one in told
                    if "synchronizing" in str(one.message)
                )
            yield step

    if not PRETEND:
        monkeypatch.setattr(Training, "_epoch", epoch)
    return found


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("part", range(PARTS))
def test_every_suite_runs_and_runs_again_the_same(
    part: int, precision: Any, device: torch.device, tmp_path: Path, waits: set[str]
) -> None:
    """At sizes of seconds; no training step waits for the device, but for those that must."""
    wrong = []
    for suite, cell in _cells()[part::PARTS]:
        first, again = (
            TrialRunner(Store(tmp_path / name), device, numerics=Numerics(precision=precision)).run(
                Trial(cell, 0)
            )
            for name in ("first", "again")
        )
        wrong += [
            f"{suite}: {record.cell.title}\n{record.traceback}"
            for record in (first, again)
            if record.status != "ok"
        ]
        if first.metrics != again.metrics:
            wrong.append(f"{suite}: {first.cell.title}: {first.metrics} and then {again.metrics}")
    assert not wrong, "\n".join(wrong)
    known = {place.rpartition(" ")[2] for place in WAITS}
    assert {place.partition(":")[0] for place in waits} <= known, waits


@pytest.mark.parametrize("part", range(PARTS))
def test_methods_pass_the_kit(
    part: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every target and defense resumes with equal bits, every attack beats chance, and more."""

    def split(seed: int, data: Any) -> Any:
        """As the kit's, on the device."""
        return cut(data.load(None), data.card(None), data.protocols["default"], seed, device=device)

    def there(make: Any) -> Any:
        return lambda *given: (made := make(*given), getattr(made, "model", made).to(device))[0]

    monkeypatch.setattr(fixtures, "_split", cache(split))
    for module in (fixtures, attack_checks, target_checks):
        for name in ("memoriser", "_planted", "_untrained"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, there(getattr(module, name)))
        if hasattr(module, "CPU"):
            monkeypatch.setattr(module, "CPU", device)
    wrong = []
    for method in conformance._all()[part::PARTS]:
        wrong += [f"{method.name}: {one}" for one in _failed(method)]
    assert not wrong, "\n".join(wrong)


def _failed(method: Method) -> Iterator[str]:
    for check in conformance._checks(method):
        if not any(word in check.name for word in CHECKS):
            continue
        try:
            check()
        except Exception as error:  # noqa: BLE001 - the test tells of all
            yield f"{check}: {type(error).__name__}: {str(error)[:400]}"


GRID: dict[str, Any] = {
    "attacks": ["lira", "rmia", "label-lira", "encodermi-t", "lira-encoder", "metric-loss"],
    "targets": ["supervised", "simclr"],
    "defenses": ["label-smoothing", "dp-sgd", "memguard", "uniform-noise", "talos"],
    "controls": False,
}


@real
@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}, {"compiled": True}])
def test_numbers_are_those_of_the_cpu(how: dict[str, Any], tmp_path: Path) -> None:
    """Every AUC lies within the interval of the same trial on the CPU."""
    here = privbench.run(GRID, out=tmp_path / "cpu", device="cpu", jobs=8)
    there = privbench.run(
        GRID, out=tmp_path / "cuda", device="cuda", jobs=4, **({"precision": "float32"} | how)
    )
    told = []
    for one, other in zip(here, there, strict=True):
        assert (one.cell.title, one.status) == (other.cell.title, other.status)
        if one.status == "ok":
            auc: Any = one.metrics["auc"]
            found: Any = other.metrics["auc"].value
            half = max((auc.high - auc.low) / 2, 1e-3)
            told.append((abs(found - auc.value) / half, one.cell.title, auc.value, found))
    assert told
    far = [one for one in told if one[0] > 1]
    print("\n".join(f"{by:.2f} half widths: {t}: {a:.3f}, {b:.3f}" for by, t, a, b in sorted(told)))
    assert not far, f"{len(far)} of {len(told)}: {far}"


@real
def test_jobs_that_share_a_gpu_give_the_same_numbers(tmp_path: Path) -> None:
    """Four workers on one device, and one."""
    few = GRID | {"defenses": ["label-smoothing"], "seeds": 2}
    one, four = (
        privbench.run(few, out=tmp_path / f"jobs{jobs}", device="cuda", jobs=jobs)
        for jobs in (1, 4)
    )
    assert [record.metrics for record in one] == [record.metrics for record in four]
