"""Stacks of defenses: order, stages, what does nothing, and what cannot stand together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from privbench.grid.here import PlannedHere
from privbench.grid.plan import plan
from privbench.grid.run import execute
from privbench.grid.suite import Suite
from privbench.grid.trial_runner import TrialRunner
from privbench.ground.store.store import Store
from privbench.measure.methods.oracle import Oracle
from privbench.measure.victims.build import Builder
from privbench.measure.victims.served import Victim
from privbench.testing import CPU, TinyTarget, tiny_split
from privbench.testing.fixtures import tiny_spec
from privbench.toolbox.undefended import posteriors
from privbench_plugins.targets.simclr import SimCLR

if TYPE_CHECKING:
    from pathlib import Path

    from privbench.measure.methods.defense import Defense
    from privbench.plugins.registry import Registry

FAST: dict[str, dict[str, Any]] = {
    "alm": {"pairs": 3},
    "ars": {"epochs": 1, "updates": 30, "hidden": 16},
    "attriguard": {"epochs": 1, "updates": 50},
    "memguard": {"epochs": 1, "updates": 150, "iterations": 20},
    "olympus": {"epochs": 1, "adversary_steps": 1},
}


def _stack(registry: Registry, names: str) -> tuple[Defense, ...]:
    return tuple(
        registry.get("defense", name).replace(**FAST.get(name, {})) for name in names.split("+")
    )


def _victim(tmp_path: Path, registry: Registry, names: str, target: Any = None) -> Victim:
    job = tiny_spec(target or TinyTarget(), _stack(registry, names))
    return Builder(Store(tmp_path / names), CPU).victim(job)


def _same(first: Victim, second: Victim) -> bool:
    x = tiny_split().candidates.x[:100]
    states = [victim.model.state_dict() for victim in (first, second)]
    return (
        all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        and torch.equal(first.embeddings(x), second.embeddings(x))
        and torch.equal(first.log_posteriors(x), second.log_posteriors(x))
    )


@pytest.mark.parametrize(
    "name",
    [
        "talos",
        "uniform-noise",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("memguard", "ars", "label-smoothing")),
    ],
)
def test_none_in_a_stack_changes_no_bit(tmp_path: Path, registry: Registry, name: str) -> None:
    alone = _victim(tmp_path, registry, name)
    for stack in (f"none+{name}", f"{name}+none"):
        assert _same(alone, _victim(tmp_path, registry, stack))
    assert not _same(alone, _victim(tmp_path, registry, "none"))


@pytest.mark.parametrize(
    "names",
    [
        "ars+memguard", "uniform-noise+attriguard", "label-smoothing+confidence-masking",
        *(
            pytest.param(names, marks=pytest.mark.slow)
            for names in (
                "talos+memguard", "memguard+ars", "attriguard+memguard", "ars+uniform-noise",
                "talos+ars+memguard", "alm+confidence-masking", "memguard+uniform-noise",
            )
        ),
    ],
)  # fmt: skip
def test_stacks_make_victims_that_answer(tmp_path: Path, registry: Registry, names: str) -> None:
    victim = _victim(tmp_path, registry, names, SimCLR(epochs=2))
    x = tiny_split().pool.x[:30]
    assert victim.embeddings(x).isfinite().all()
    p = victim.log_posteriors(x).exp()
    torch.testing.assert_close(p.sum(1), torch.ones(30, dtype=p.dtype), atol=1e-6, rtol=0)
    defenses = _stack(registry, names)
    releasing = sum("release" in d.stages() for d in defenses)
    assert len(victim.releases) <= releasing


@pytest.mark.slow
def test_two_orders_of_a_stack_are_two_victims(tmp_path: Path, registry: Registry) -> None:
    """They draw differently, so they share no artifact and no kept answer."""
    store, orders = Store(tmp_path / "shared"), ("uniform-noise+memguard", "memguard+uniform-noise")
    x, keys = tiny_split().pool.x[:20], set()
    for names in orders:
        alone = _victim(tmp_path, registry, names, SimCLR(epochs=2))
        job = tiny_spec(SimCLR(epochs=2), _stack(registry, names))
        shared = Builder(store, CPU).victim(job)
        assert _same(alone, shared)
        asked = Oracle(shared, shared.grants, asker="attack", store=store)
        assert torch.equal(asked.embeddings(x), alone.embeddings(x))
        keys.add(shared.key)
    assert len(keys) == 2


def test_order_and_stages_stand_in_the_record(tmp_path: Path, registry: Registry) -> None:
    suite = Suite.model_validate({
        "attacks": ["metric-correctness"], "defenses": ["talos+confidence-masking"],
        "targets": [{"simclr": {"epochs": 1}}], "baseline": False,
    })  # fmt: skip
    planned = plan(suite, registry, root=None, device="cpu")
    (record,) = execute(
        PlannedHere(planned, TrialRunner(Store(tmp_path / "s"), CPU)), tmp_path / "out"
    )
    assert record.status == "ok", record.traceback
    assert [d.name for d in record.cell.defenses] == ["talos", "confidence-masking"]
    assert record.notes["stages"] == {
        "talos": ["phases", "weights"], "confidence-masking": ["release"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("dp-sgd+memguard", "would not cover what memguard learns"),
        ("alm+ars", "would not cover what ars learns"),
        ("relaxloss+label-smoothing", "each change training"),
        ("talos+olympus", "each change training"),
        ("olympus+alm", "each change training"),
        ("alm+laplace", "each change training"),
        ("confidence-masking+memguard", "each change posteriors"),
        ("hamp+memguard", "each change posteriors"),
        ("attriguard+uniform-noise", "write them as uniform-noise+attriguard"),
        ("uniform-noise+attriguard", None),
        ("ars+uniform-noise", None),
        ("olympus+ars", "not on those of ars"),
        ("dp-sgd+confidence-masking", None),
        ("talos+memguard", None),
    ],
)
def test_what_cannot_be_stacked_says_why(
    registry: Registry, names: str, reason: str | None
) -> None:
    target = "supervised" if "dp-sgd" in names else "simclr"
    suite = Suite.model_validate(
        {"attacks": ["metric-correctness"], "targets": [target], "defenses": [names]}
    )
    planned = plan(suite, registry, root=None, device="cpu")
    skips = {p.trial.cell.defense: p.skip for p in planned}
    assert (skips[names] is None) == (reason is None)
    assert (reason or "") in (skips[names] or "")


@pytest.mark.parametrize(
    ("part", "names"), [("training", "hamp+memguard"), ("testing", "talos+hamp")]
)
def test_stages_are_those_of_the_hyperparameters(registry: Registry, part: str, names: str) -> None:
    wanted: dict[str, Any] = {"attacks": ["metric-correctness"], "defenses": [names]}
    for settings, fits in (({"part": part}, True), ({}, False)):
        suite = Suite.model_validate({**wanted, "set": {"hamp": settings}})
        planned = plan(suite, registry, root=None, device="cpu")
        (skip,) = (p.skip for p in planned if "hamp" in p.trial.cell.defense)
        assert (skip is None) == fits


def test_a_later_release_learns_from_what_is_served(tmp_path: Path, registry: Registry) -> None:
    """MemGuard's classifier is trained on posteriors behind the noise, whichever is named first."""
    seen: list[torch.Tensor] = []
    guard = registry.get("defense", "memguard")

    def listening(model: Any, rows: Any) -> torch.Tensor:
        seen.append(posteriors(model, rows))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[type(guard).__module__], "posteriors", listening)
        for names in ("uniform-noise+memguard", "memguard+uniform-noise"):
            seen.clear()
            victim = _victim(tmp_path, registry, names, SimCLR(epochs=2))
            members = tiny_split().victim().members
            noise = next(r for r in victim.releases if r.of == "embedding")
            alone = Victim(
                victim.card, victim.model, key="", grants=victim.grants, releases=[noise],
                seed=tiny_split().victim().salt("release"),
            )  # fmt: skip
            served = alone.log_posteriors(members.x).exp()
            torch.testing.assert_close(seen[1], served, atol=1e-6, rtol=0)


def test_the_classifier_trains_on_the_draws_that_are_served(
    tmp_path: Path, registry: Registry
) -> None:
    members = tiny_split().victim().members
    for names in ("uniform-noise+memguard", "memguard+uniform-noise"):
        workshop = Builder(Store(tmp_path / names), CPU)
        job = tiny_spec(SimCLR(epochs=2), _stack(registry, names))
        making = workshop.draft(job)
        for stage in making.stages:
            if stage.name == "classifier":
                break
            workshop.make(making, stage)
        _, rows = workshop._embedded(making, making.phases[-1], members)
        served = workshop.victim(job).embeddings(members.x)
        assert torch.equal(rows.x, served)


def test_fresh_draws_differ_for_training_and_for_every_asker(
    tmp_path: Path, registry: Registry
) -> None:
    fresh = registry.get("defense", "uniform-noise").replace(fresh=True)
    job = tiny_spec(SimCLR(epochs=1), (fresh,))
    victim = Builder(Store(tmp_path), CPU).victim(job)
    x = tiny_split().pool.x[:20]
    first, second = victim.session("a"), victim.session("b")
    answers = [first.embeddings(x), first.embeddings(x), second.embeddings(x)]
    training = victim.session("training").embeddings(x)
    assert all(not torch.equal(one, training) for one in answers)
    assert not torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    assert torch.equal(victim.session("a").embeddings(x), answers[0])


@pytest.mark.parametrize("name", ["none", "memguard", "hamp", "confidence-masking", "ars"])
def test_labels_are_those_of_released_posteriors(
    tmp_path: Path, registry: Registry, name: str
) -> None:
    victim = _victim(tmp_path, registry, name, SimCLR(epochs=2))
    x = tiny_split().pool.x[:100]
    assert torch.equal(victim.labels(x), victim.log_posteriors(x).argmax(1))
