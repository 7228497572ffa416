"""Attacks share shadows (one pool per origin, as large as its hungriest user wants) and views."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from privbench.grid.plan import plan
from privbench.grid.suite import suite_from
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.data.split import cut
from privbench.measure.methods.oracle import Views
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.testing import CPU, TinyImages, TinyTarget
from privbench_plugins.defenses.ars import Ars, ArsAttributes
from privbench_plugins.defenses.attriguard import AttriGuard
from privbench_plugins.defenses.memguard import MemGuard

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.methods.defense import Defense

TINY = TinyImages()
#: Training of what a release learns, for tests.
SHORT: Any = {"epochs": 1, "updates": 3}

OFFLINE = [
    {"shokri": {"k": 3}}, {"lira-offline": {"k": 5}}, {"rmia-offline": {"k": 4}},
    "metric-correctness", "metric-confidence", "metric-entropy", "metric-modified-entropy",
    "metric-loss", "nn-mia",
]  # fmt: skip
ONLINE = [{"lira": {"k": 6}}, {"rmia": {"k": 4}}]


def _trials(attacks: list[Any], registry: Any) -> list[Any]:
    suite = {"datasets": ["tiny-images"], "targets": ["tiny-target"], "attacks": attacks}
    return [
        planned.trial
        for planned in plan(suite_from(suite, "the test"), registry, root=None, device="cpu")
    ]


def _run(
    attacks: list[Any], registry: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], int]:
    """Result digest of every attack, and how many trainings there were."""
    trained: list[int] = []
    original = Training.run

    def counted(self: Training, *args: Any) -> Any:
        trained.append(1)
        return original(self, *args)

    monkeypatch.setattr(Training, "run", counted)
    lab = TrialRunner(Store(folder), CPU)
    records = [lab.run(trial) for trial in _trials(attacks, registry)]
    monkeypatch.setattr(Training, "run", original)
    assert [r.reason for r in records if r.status != "ok"] == []
    return {record.cell.attack.name: record.digest for record in records}, len(trained)


@pytest.mark.slow
def test_one_offline_and_one_online_pool(
    tmp_path: Path, tiny_registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, few = _run(OFFLINE, tiny_registry, tmp_path / "offline", monkeypatch)
    assert few == 2 + 5  # victim and null, the hungriest offline attack
    both, all_trained = _run(OFFLINE + ONLINE, tiny_registry, tmp_path / "both", monkeypatch)
    assert all_trained == 2 + 5 + 6
    # the online pool does not reach offline attacks, nor does one attack's hunger another's numbers
    assert {name: both[name] for name in alone} == alone
    again, nothing = _run(OFFLINE + ONLINE, tiny_registry, tmp_path / "both", monkeypatch)
    assert again == both
    assert nothing == 0


def test_the_online_pool_is_online_and_the_offline_one_is_not(
    tmp_path: Path, tiny_registry: Any
) -> None:
    lab = TrialRunner(Store(tmp_path), CPU)
    for trial in _trials([*OFFLINE, *ONLINE], tiny_registry):
        parts = lab.materials.split(trial.cell, 0)
        for name, job in lab.specs(trial).items():
            inside = job.world.contains(parts.candidates)
            if name.startswith("shadow"):
                online = trial.cell.attack.name in ("lira", "rmia")
                assert bool(inside.any()) == online
                assert (job.world.origin == "online") == online


@pytest.mark.slow
def test_the_encodermi_attacks_share_their_views(
    tmp_path: Path, tiny_registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    make = Views.make

    def counted(self: Views, start: int, stop: int) -> Any:
        made = make(self, start, stop)
        asked.append(len(made))
        return made

    monkeypatch.setattr(Views, "make", counted)
    few = {"epochs": 1, "steps": 3}
    attacks: list[Any] = [{"encodermi-v": few}, "encodermi-t", {"encodermi-s": few}]
    alone = {}
    for i, trial in enumerate(_trials(attacks, tiny_registry)):
        record = TrialRunner(Store(tmp_path / str(i)), CPU).run(trial)
        alone[record.cell.attack.name] = record.digest
    each = sum(asked) // 3
    assert each == 10 * 3 * 160  # victim and null about the candidates, the shadow about its rows

    asked.clear()
    lab = TrialRunner(Store(tmp_path / "shared"), CPU)
    records = [lab.run(trial) for trial in _trials(attacks, tiny_registry)]
    assert sum(asked) == each
    assert {record.cell.attack.name: record.digest for record in records} == alone
    assert {record.cost.queries_per_sample for record in records} == {10.0}


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (MemGuard(distortion=0.1, **SHORT), MemGuard(distortion=1.0, **SHORT)),
        (Ars(bound=0.1, **SHORT), Ars(bound=1.0, **SHORT)),
        (ArsAttributes(bound=0.1, **SHORT), ArsAttributes(bound=1.0, overlap=0.5, **SHORT)),
        (AttriGuard(distortion=0.1, **SHORT), AttriGuard(distortion=1.0, **SHORT)),
    ],
    ids=lambda d: d.label,
)  # fmt: skip
def test_strengths_of_a_release_share_what_it_trains(
    tmp_path: Path, weak: Defense, strong: Defense
) -> None:
    split = cut(
        TINY.load(None), TINY.card(None), replace(TINY.protocols["default"], reference=40), 0
    )

    def release(folder: str, defense: Defense) -> dict[str, Any]:
        spec = VictimSpec(
            card=split.card, protocol=split.protocol, target=TinyTarget(), defenses=(defense,),
            world=split.victim(), sensitive=("bright",),
        )  # fmt: skip
        (served,) = Builder(Store(tmp_path / folder), CPU).victim(spec).releases
        return served.state_dict()

    def trained(folder: str) -> int:
        return len(list((tmp_path / folder / "once").rglob("*.safetensors")))

    release("both", weak)
    once = trained("both")
    after_the_weak, alone = release("both", strong), release("alone", strong)
    assert trained("both") == once == trained("alone") > 0
    assert all(after_the_weak[name].equal(alone[name]) for name in alone)
    assert after_the_weak.keys() == alone.keys()
