"""A pretend accelerator finds what stays on the host, and counts what steps and attacks cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.pretend_device import NAME, pretend_device
from tests.unit.test_suites_run import SUITES, covering, made_small, planned, small

from privbench.grid.trial import Trial
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.games.catalog import GAMES
from privbench.measure.methods.context import seeded
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.served import Victim
from privbench.testing import (
    TinyImages,
    attack_checks,
    defense_checks,
    fixtures,
    tiny_spec,
    tiny_split,
)
from privbench.testing.small import shortened
from privbench.toolbox import hopskipjump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.pretend_device import Counts

    from privbench.measure.data.split import Split

#: Target and backbone -> operators, without views, of a step of its encoder, and of a query of
#: embeddings, posteriors and labels.
BUDGETS: dict[tuple[str, str], tuple[int, ...]] = {
    ("supervised", "mlp"): (27, 9, 12, 13),
    ("simclr", "mlp"): (128, 9, 12, 13),
    ("simclr", "resnet18"): (289, 91, 94, 95),
    ("moco", "mlp"): (139, 9, 12, 13),
    ("byol", "mlp"): (224, 9, 12, 13),
    ("mae", "its own"): (342, 82, 87, 88),
    ("dino", "its own"): (514, 84, 89, 90),
    ("barlow-twins", "mlp"): (230, 9, 12, 13),
    ("autoencoder", "its own"): (47, 11, 16, 17),
}
#: Their steps take long here.
LARGE = {("simclr", "resnet18"), ("mae", "its own"), ("dino", "its own")}
#: What is known to wait for the device in a training step of some suite.
WAITS = {
    "synchronisations in _batches at loop.py",  # how many rows a Poisson batch has
    "synchronisations in __call__ at olympus.py",
    "synchronisations in _loss at dp_gcl.py",  # how many rows each group has
}
BETWEEN = ("to_device", "to_host", "synchronisations")
#: In how many tests the cells of the suites run: one of them takes minutes of a worker.
PARTS = 6
#: Rows of a small and of a larger question.
FEW, MORE = 8, 40
#: Attack of small sizes -> transfers, synchronisations and operators of an answer about ``MORE``
#: rows, without the operators of the models that it asks.
ATTACKS: dict[str, tuple[int, ...]] = {
    "adversarial-mia": (4, 3, 692),
    "adversarial-mia-targeted": (6, 15, 784),
    "attribute-decensoring": (18, 8, 2062),
    "attribute-inference": (22, 36, 321),
    "attribute-inference-paper": (6, 5, 729),
    "cmia": (8, 12, 78),
    "deja-vu": (0, 6, 17),
    "dual-cmia": (4, 1, 622),
    "dual-cmia-encoder": (6, 3, 1649),
    "dual-cmia-head": (4, 3, 2333),
    "dual-encoder": (2, 29, 2092),
    "dual-head": (0, 29, 2772),
    "dual-lira": (0, 28, 957),
    "encoder-feature": (6, 1, 317),
    "encodermi-baseline-a": (10, 19, 457),
    "encodermi-baseline-b": (10, 19, 988),
    "encodermi-baseline-c": (10, 19, 1078),
    "encodermi-s": (10, 1, 1545),
    "encodermi-t": (2, 0, 530),
    "encodermi-v": (6, 1, 834),
    "gradient-canary": (0, 0, 4),
    "imia": (8, 57, 2251),
    "informia": (0, 14, 269),
    "informia-offline": (0, 14, 266),
    "label-cmia": (6, 32, 330),
    "label-lira": (0, 44, 598),
    "label-only-augment": (60, 14, 1013),
    "label-only-boundary": (1, 18, 883),
    "label-only-noise": (1, 3, 41),
    "label-only-transfer": (10, 6, 37),
    "lira": (0, 18, 345),
    "lira-encoder": (0, 12, 647),
    "lira-head": (0, 28, 1429),
    "lira-joint": (6, 1, 72),
    "order-lira": (0, 29, 599),
    "lira-offline": (0, 12, 152),
    "lira-residual": (0, 15, 287),
    "loss-trace": (7, 0, 46),
    "lpla": (0, 4, 123),
    "metric-confidence": (5, 0, 59),
    "metric-correctness": (0, 0, 3),
    "metric-entropy": (5, 0, 62),
    "metric-loss": (0, 3, 40),
    "metric-modified-entropy": (5, 0, 77),
    "nn-mia": (6, 1, 320),
    "partcrop": (8, 1, 775),
    "pmia": (0, 64, 748),
    "posterior-label-mia": (12, 1, 280),
    "property-inference": (1, 26, 175),
    "quantile": (10, 9, 2053),
    "reconstruction": (8, 21, 1909),
    "reconstruction-rmle": (0, 1, 57),
    "rmia": (0, 8, 503),
    "rmia-encoder": (0, 11, 999),
    "rmia-offline": (0, 8, 500),
    "shokri": (2, 12, 129),
    "squared-error": (0, 0, 9),
    "union": (19, 77, 4183),
}

#: Defense of small sizes -> synchronisations and operators of a query of posteriors through its
#: releases. What loops until its rows are done may take a quarter more on another processor.
RELEASES: dict[str, tuple[int, int]] = {
    "ars": (3, 530), "ars-attributes": (3, 562), "attriguard": (154, 1903),
    "confidence-masking": (4, 119), "hamp": (4, 123), "memguard": (1228, 41085),
    "planted-leak": (3, 148), "planted-leak-embeddings": (0, 121), "uniform-noise": (0, 104),
}  # fmt: skip
LOOPS = {"attriguard", "memguard"}


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


@pytest.mark.parametrize(
    ("name", "backbone"),
    [pytest.param(*one, id=" on ".join(one), marks=[pytest.mark.slow] if one in LARGE else [])
     for one in BUDGETS],
)  # fmt: skip
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
        found, place = [most], len(counts.places)
        for ask in (victim.embeddings, victim.log_posteriors, victim.labels):
            ask(rows.x)  # the first makes constants
            before, place = counts.copy(), len(counts.places)
            ask(rows.x)
            asked = counts - before
            assert not [asked[kind] for kind in BETWEEN if asked[kind]], counts.places[place:]
            found.append(asked["operators"])
    allowed = BUDGETS[name, backbone]
    assert all(one <= most for one, most in zip(found, allowed, strict=True)), (
        f"{name} on {backbone}: operators of a step and of queries are {found}, and were {allowed}"
    )


@pytest.mark.slow
def test_a_query_through_a_release_costs_no_more_than_before(registry: Any, tmp_path: Path) -> None:
    """Nothing is transferred; the first query may make constants."""
    wrong, seen = [], set()
    for defense in (one for one in registry.all("defense") if "release" in one.stages()):
        few, rows = shortened(defense), tiny_split().candidates.x[:MORE]
        with pretend_device() as (device, counts):
            spec = tiny_spec(defense_checks._target(defense), (few,))
            victim, x = Builder(Store(tmp_path / few.name), device).victim(spec), rows.to(device)
            victim.log_posteriors(x)
            before, place = counts.copy(), len(counts.places)
            victim.log_posteriors(x)
            asked, places = counts - before, counts.places[place:]
        found = asked["synchronisations"], asked["operators"]
        slack = 1.25 if few.name in LOOPS else 1
        moved = asked["to_device"] + asked["to_host"]
        allowed = RELEASES.get(few.name, (0, 0))
        if moved or any(one > most * slack for one, most in zip(found, allowed, strict=True)):
            often = Counter(one.rpartition(":")[0] for one in places).most_common(3)
            wrong.append(f'"{few.name}": {found}, was {allowed}; {moved} transfers; {often}')
        seen.add(few.name)
    assert not wrong, "\n".join(["synchronisations and operators:", *wrong])
    assert seen == RELEASES.keys()


@pytest.fixture(scope="session")
def small_cells(registry: Any, pytestconfig: pytest.Config) -> list[tuple[str, Any]]:
    """Suite and cell of all that runs, at sizes of seconds: see test_suites_run.py."""
    every = pytestconfig.getoption("--every-cell")
    seen: set[tuple[str, ...]] = set()
    cells: list[tuple[str, Any]] = []
    for path in SUITES:
        mine = made_small(planned(path, registry))
        cells += [(path.stem, cell) for cell in (mine if every else covering(mine, seen))]
    return cells


@pytest.mark.end_to_end
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_suite_runs_on_it(
    small_cells: list[tuple[str, Any]], part: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, steps: list[Any],
) -> None:  # fmt: skip
    """On generated data, in parts that workers share."""
    monkeypatch.setitem(hopskipjump.BLOCK, NAME, hopskipjump.BLOCK["cpu"])
    first, last = (len(small_cells) * one // PARTS for one in (part, part + 1))
    with pretend_device() as (device, _):
        runner = TrialRunner(Store(tmp_path), device)
        for suite, cell in small_cells[first:last]:
            record = runner.run(Trial(cell, 0))
            assert record.status == "ok", f"{suite}: {record.cell.title}\n{record.traceback}"
            assert record.metrics, f"{suite}: {record.cell.title}"
    waits = {place.rpartition(":")[0] for _, _, places in steps for place in places}
    assert waits <= WAITS, f"training steps wait for the device: {waits - WAITS}"


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Split, Counts, list[int]]]:
    """The kit on the device: its split, the counts, and operators of each query of a model."""
    queries: list[int] = []
    data, plain = TinyImages(), Victim._passes
    with pretend_device() as (device, counts):
        split = cut(data.load(None), data.card(None), data.protocols["default"], 0, device=device)

        def there(make: Any) -> Any:
            return lambda given: (made := make(given), getattr(made, "model", made).to(device))[0]

        def counted(self: Victim, *given: Any) -> Any:
            before = counts["operators"]
            answer = plain(self, *given)
            queries.append(counts["operators"] - before)
            return answer

        monkeypatch.setattr(Victim, "_passes", counted)
        monkeypatch.setattr(fixtures, "CPU", device)
        monkeypatch.setitem(hopskipjump.BLOCK, NAME, hopskipjump.BLOCK["cpu"])
        for module in (fixtures, attack_checks):
            monkeypatch.setattr(module, "tiny_split", lambda _=0: split)
            for name in ("memoriser", "_planted", "_untrained"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, there(getattr(module, name)))
        yield split, counts, queries


def _cost(attack: Any, rows: int, kit: Any) -> tuple[tuple[int, ...], list[str]]:
    """Ask an attack; return transfers, synchronisations and operators, and where it waited."""
    split, counts, queries = kit
    served, sensitive = attack_checks._victims(attack)[0], split.card.sensitive
    question, _ = GAMES[attack.game].pose(split, served, max_rows=rows, sensitive=sensitive)
    oracle, ctx = fixtures.arena(attack, served)
    before, place = counts.copy(), len(counts.places)
    queries.clear()
    seeded(lambda: attack.answer(oracle, question, ctx), 0)
    spent = counts - before
    transfers, own = spent["to_device"] + spent["to_host"], spent["operators"] - sum(queries)
    return (transfers, spent["synchronisations"], own), counts.places[place:]


@pytest.mark.slow
def test_an_attack_costs_no_more_than_before_and_takes_all_rows_at_once(
    registry: Any, kit: Any
) -> None:
    wrong = []
    for attack in registry.all("attack"):
        (few, _), (more, places) = (_cost(small(attack), rows, kit) for rows in (FEW, MORE))
        allowed = ATTACKS.get(attack.name, (0, 0, 0))
        # a loop until all rows are done may be a little longer for more rows
        grown = max(two - one for one, two in zip(few, more, strict=True)) > (MORE - FEW) / 2
        if grown or any(two > most for two, most in zip(more, allowed, strict=True)):
            often = Counter(place.rpartition(":")[0] for place in places).most_common(3)
            told = f"was {allowed}; {few} for {FEW} rows; {often}"
            wrong.append(f'"{attack.name}": {more},  # {told}')
    head = "transfers, synchronisations and operators are more than before, or grow with the rows:"
    assert not wrong, "\n".join([head, *wrong])
    assert {attack.name for attack in registry.all("attack")} == ATTACKS.keys()
