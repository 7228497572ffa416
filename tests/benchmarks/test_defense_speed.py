"""What a defense costs: time per defended answer, and time to make a defended victim.

``uv run pytest -n0 --benchmark-only tests/benchmarks/test_defense_speed.py`` prints both beside
``none``, as ratios of one run. Members are 100 of the embedded digits. What is timed is checked:
answers are distributions and equal when asked again, and a victim made again is the same one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.ground.store.store import Store
from privbench.measure.data.split import Split, cut
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins import registry as plugins
from privbench.testing import CPU
from privbench_plugins.datasets.digits import Digits
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from privbench.measure.methods.defense import Defense
    from privbench.measure.methods.target import Target
    from privbench.measure.victims.served import Victim

RELEASES = (
    "none", "confidence-masking", "memguard", "hamp", "attriguard", "ars", "ars-attributes",
    "uniform-noise",
)  # fmt: skip
TRAININGS = (
    "none", "dp-sgd", "adversarial-regularization", "label-smoothing", "relaxloss", "mixup-mmd",
    "hamp", "selena", "early-stopping",
)  # fmt: skip
CONTRASTIVE = ("none", "talos", "olympus", "alm", "laplace", "gaussian", "memguard", "ars")


@cache
def _digits() -> Split:
    data = Digits()
    return cut(data.load(None), data.card(None), data.protocols["default"], 0)


def _made(target: Target, name: str, folder: str) -> Victim:
    split = _digits()
    defense: Defense = plugins.load().get("defense", name)
    job = VictimSpec(split.card, split.protocol, split.victim(), target, (defense,), ("slant",))
    return Builder(Store(Path(folder)), CPU).victim(job)


@pytest.mark.benchmark(group="posteriors of 256 rows")
@pytest.mark.parametrize("name", RELEASES)
def test_answers(benchmark: Any, tmp_path: Any, name: str) -> None:
    served = _made(Supervised(), name, str(tmp_path))
    x = _digits().pool.x[:256]
    first = served.log_posteriors(x)
    again = benchmark.pedantic(served.log_posteriors, (x,), rounds=5)
    assert first.shape == (256, 10)
    torch.testing.assert_close(first.exp().sum(1), torch.ones(256).double())
    assert served.fresh or torch.equal(first, again)
    assert torch.equal(served.labels(x), first.argmax(1)) or served.fresh


@pytest.mark.benchmark(group="a supervised victim, 100 members")
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(benchmark: Any, name: str) -> None:
    _time(benchmark, Supervised(), name, rounds=3)


@pytest.mark.benchmark(group="a contrastive victim, 100 members, 100 epochs")
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_contrastive_trainings(benchmark: Any, name: str) -> None:
    _time(benchmark, SimCLR(epochs=100), name, rounds=1)


def _time(benchmark: Any, target: Target, name: str, rounds: int) -> None:
    folders: list[TemporaryDirectory[str]] = []

    def fresh() -> tuple[tuple[Target, str, str], dict[str, Any]]:
        folders.append(TemporaryDirectory())
        return (target, name, folders[-1].name), {}

    # Also loads what the first of a process needs: optimizers, Opacus.
    first = _made(*fresh()[0])
    again: Victim = benchmark.pedantic(_made, setup=fresh, rounds=rounds)
    for folder in folders:
        folder.cleanup()
    assert any(phase.get("updates") for phase in again.facts["phases"])
    assert again.key == first.key
    weights = again.weights()
    assert all(torch.equal(weights[name], tensor) for name, tensor in first.weights().items())
    x = _digits().pool.x[:256]
    assert torch.equal(again.labels(x), first.labels(x)) or first.fresh
