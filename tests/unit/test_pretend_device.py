"""On a pretend accelerator: what stays on the host is found, and what a step costs is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.pretend_device import NAME, pretend_device
from tests.unit.test_suites_run import SUITES, covering, made_small, planned

from privbench.grid.cell import Trial
from privbench.grid.trial import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.testing import tiny_spec, tiny_split
from privbench.toolbox import hopskipjump

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Target and backbone -> operators, without views, of a step of its encoder and of a query.
BUDGETS = {
    ("supervised", "mlp"): (27, 9),
    ("simclr", "mlp"): (128, 9),
    ("simclr", "resnet18"): (289, 91),
    ("moco", "mlp"): (135, 9),
    ("byol", "mlp"): (224, 9),
    ("autoencoder", "its own"): (47, 11),
}
#: What is known to wait for the device in a training step of some suite.
WAITS = {
    "synchronisations in _batches at loop.py",  # how many rows a Poisson batch has
    "synchronisations in __call__ at olympus.py",
}
BETWEEN = ("to_device", "to_host", "synchronisations")


def _refused(error: type[Exception], words: str, *calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(error, match=words):
            call()


def test_it_refuses_what_a_gpu_refuses() -> None:
    with pretend_device() as (device, _):
        x = torch.arange(6.0, device=device).view(2, 3)
        _refused(
            RuntimeError, "expected all tensors on pretend", lambda: x + torch.ones(3),
            lambda: torch.stack([x[0, 0], torch.tensor(1.0)]),
            lambda: torch.ones(2, 3)[torch.tensor([0], device=device)],
        )  # fmt: skip
        _refused(TypeError, "numpy", x.numpy, lambda: np.asarray(x))
        here, there = torch.Generator(device), torch.Generator()
        assert (here.device, there.device.type) == (device, "cpu")
        _refused(
            RuntimeError, "generator", lambda: torch.rand(3, generator=here),
            lambda: torch.rand(3, generator=there, device=device),
        )  # fmt: skip
        assert torch.rand(3, generator=here, device=device).device == device
        assert (x + torch.tensor(1.0))[torch.tensor([1])].device == device
    assert torch.Generator.__module__ == "torch._C"


def test_it_counts() -> None:
    with pretend_device() as (device, counts):
        x = torch.tensor([1.0, -2.0]).to(device)
        assert dict(counts) == {"to_device": 1}
        assert counts.places[0].startswith("to_device in test_it_counts at test_pretend_device.py:")
        (x.view(2, 1) * 2).sum()
        assert dict(counts) == {"to_device": 1, "operators": 2}
        assert x.cpu().tolist() == [1, -2]
        assert counts["to_host"] == 1
        several: list[Callable[[], Any]] = [
            x.tolist, x.nonzero, x.sum().item, lambda: x[x > 0], lambda: float(x[0]),
            lambda: torch.equal(x, x),
        ]  # fmt: skip
        for waits in several:
            before = counts["synchronisations"]
            waits()
            assert counts["synchronisations"] == before + 1


def test_it_computes_as_the_host() -> None:
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    x = torch.rand(5, 3, generator=generator)
    expected = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
    with pretend_device() as (device, _):
        there = net.to(device)
        found = torch.autograd.grad(there(x.to(device)).square().sum(), [*there.parameters()])
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other.cpu())
        assert x.to(device).nanquantile(0.5, 0).shape == (3,)  # squeezes in place


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Counter[str], list[str]]]:
    """Phase, counts and places of every training step after the first of its phase."""
    from tests import pretend_device as module

    seen: list[tuple[str, Counter[str], list[str]]] = []
    plain: Any = Training._epoch

    def epoch(self: Training, number: int) -> Iterator[int]:
        counts = module._counts
        before, place = counts.copy(), len(counts.places)
        for step in plain(self, number):
            if number > 1 or step > 1:  # the first makes the optimizer's state and constants
                seen.append((self.phase.name, counts - before, counts.places[place:]))
            yield step
            before, place = counts.copy(), len(counts.places)

    monkeypatch.setattr(Training, "_epoch", epoch)
    return seen


@pytest.mark.parametrize(("name", "backbone"), BUDGETS, ids=[" on ".join(one) for one in BUDGETS])
def test_a_step_and_a_query_cost_no_more_than_before(
    name: str, backbone: str, registry: Any, tmp_path: Path, steps: list[Any]
) -> None:
    target = registry.get("target", name)
    few = {"epochs": 2, "backbone": backbone, "classifier_epochs": 2}
    target = target.replace(**{k: v for k, v in few.items() if k in target.hyperparameters()})
    with pretend_device() as (device, counts):
        victim = Builder(Store(tmp_path), device).victim(tiny_spec(target))
        for phase, spent, places in steps:
            assert not [spent[kind] for kind in BETWEEN if spent[kind]], f"{phase}: {places}"
        most = max(spent["operators"] for phase, spent, _ in steps if phase == "encoder")
        rows = tiny_split().candidates.to(device)
        victim.embeddings(rows.x)
        before, place = counts.copy(), len(counts.places)
        victim.embeddings(rows.x)
        asked = counts - before
    assert not [asked[kind] for kind in BETWEEN if asked[kind]], counts.places[place:]
    found = most, asked["operators"]
    allowed = BUDGETS[name, backbone]
    assert all(one <= most for one, most in zip(found, allowed, strict=True)), (
        f"{name} on {backbone}: operators of a step and of a query are {found}, and were {allowed}"
    )


@pytest.mark.end_to_end
@pytest.mark.timeout(1800)
def test_every_suite_runs_on_it(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> None:
    monkeypatch.setitem(hopskipjump.BLOCK, NAME, hopskipjump.BLOCK["cpu"])
    seen: set[tuple[str, ...]] = set()
    cells = [
        (path.stem, cell)
        for path in SUITES
        for cell in covering(made_small(planned(path, registry)), seen)
    ]
    with pretend_device() as (device, _):
        runner = TrialRunner(Store(tmp_path), device)
        for suite, cell in cells:
            record = runner.run(Trial(cell, 0))
            assert record.status == "ok", f"{suite}: {record.cell.title}\n{record.traceback}"
    waits = {place.rpartition(":")[0] for _, _, places in steps for place in places}
    assert waits <= WAITS, f"training steps wait for the device: {waits - WAITS}"
