"""Olympus: what each step trains, its losses, and what is served."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench import Batch, Clock, Protocol
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_builder, tiny_spec
from privbench_plugins.defenses.olympus import (
    ADVERSARY,
    OBFUSCATOR,
    Olympus,
    uniform_cross_entropy,
)
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

FAST = Olympus(epochs=2, adversary_steps=1)
TARGET = SimCLR(backbone="mlp", epochs=2, batch=40, classifier_epochs=2)
CONVOLUTIONAL = Supervised(backbone="convnet", epochs=1, batch=40)


def _training(tmp_path: Path, defense: Olympus, target: Any = TARGET) -> Training:
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target, (defense,)))
    phase = making.phases[-1]
    assert phase.name == "olympus"
    return Training(making.model, phase, tiny_split().victim().members, 0)


def _state(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _changed(before: dict[str, torch.Tensor], model: Any) -> set[str]:
    after = model.state_dict()
    return {n.split(".")[1] for n in before if not torch.equal(before[n], after[n])}


def _forward(run: Training, n: int = 10) -> tuple[Any, Batch]:
    rows = tiny_split().victim().members.select(slice(0, n))
    batch = Batch(rows.x, rows.y, rows.attributes, torch.arange(n))
    return run.phase.forward(run.model, batch), batch


# ---- losses --------------------------------------------------------------------------------------


@given(values=st.integers(2, 6), level=st.floats(-5, 5), seed=st.integers(0, 1000))
def test_uniform_cross_entropy_is_least_at_uniform_logits(
    values: int, level: float, seed: int
) -> None:
    z = torch.full((3, values), level, requires_grad=True)
    loss = uniform_cross_entropy(z)
    assert loss.item() == pytest.approx(math.log(values), abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, z)
    assert float(gradient.abs().max()) < 1e-6
    other = torch.randn(3, values, generator=torch.Generator().manual_seed(seed))
    assert uniform_cross_entropy(other).item() > math.log(values)
    direct = F.cross_entropy(other, torch.full((3, values), 1 / values))
    assert torch.allclose(uniform_cross_entropy(other), direct)


def test_losses_of_both_steps(tmp_path: Path) -> None:
    run = _training(tmp_path, Olympus(weight=2.5, rho=0.7))
    out, batch = _forward(run)
    model = run.model
    h = model[OBFUSCATOR].layers(model["encoder"].forward(model.inputs(batch.x)))  # type: ignore[operator]
    original = model["encoder"].forward(model.inputs(batch.x))
    s, clock = batch.attributes["bright"], Clock(1, 0, 1, 1)
    guess = model[ADVERSARY](h)
    attack = run.phase.steps["attack"].loss(out, batch, clock)
    assert torch.allclose(attack, F.cross_entropy(guess, s))
    expected = (
        F.cross_entropy(model["classifier"](h), batch.y)
        - 2.5 * guess.log_softmax(1).mean()
        + 0.7 * (h - original).square().mean()
    )
    assert torch.allclose(run.phase.steps["obfuscate"].loss(out, batch, clock), expected)


def test_missing_attributes_do_not_train_the_adversary(tmp_path: Path) -> None:
    run = _training(tmp_path, FAST)
    out, batch = _forward(run, 4)
    s = torch.tensor([1, -1, 0, -1])
    step = run.phase.steps["attack"]
    known = Batch(batch.x, batch.y, {"bright": s}, batch.rows)
    expected = F.cross_entropy(out.guess[s >= 0], s[s >= 0])
    assert torch.allclose(step.loss(out, known, Clock(1, 0, 1, 1)), expected)
    none = Batch(batch.x, batch.y, {"bright": torch.full((4,), -1)}, batch.rows)
    assert step.loss(out, none, Clock(1, 0, 1, 1)).item() == 0


# ---- who learns when -----------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", [False, True])
def test_the_adversary_stands_still_while_the_rest_learns_and_vice_versa(
    tmp_path: Path, freeze: bool
) -> None:
    run = _training(tmp_path, FAST.replace(freeze_encoder=freeze), CONVOLUTIONAL)
    rest = {OBFUSCATOR, "classifier"} | (set() if freeze else {"encoder"})
    for name, moved in (("attack", {ADVERSARY}), ("obfuscate", rest)) * 2:
        before = _state(run.model)  # weights and buffers, those of batch norm too
        run._update(name, torch.arange(40), Clock(1, 0, 1, 1), dict(run.updates))
        assert _changed(before, run.model) == moved


@pytest.mark.parametrize(("steps", "batch"), [(1, 32), (4, 32), (5, 80)])
def test_turns_and_equal_updates(tmp_path: Path, steps: int, batch: int) -> None:
    run = _training(tmp_path, Olympus(epochs=3, adversary_steps=steps, batch=batch))
    per = math.ceil(80 / batch)
    names = [
        run.phase.step_at(epoch, i) for epoch in range(1, run.phase.epochs + 1) for i in range(per)
    ]
    cycle = math.lcm(steps + 1, per)
    assert names[:cycle] == (["attack"] * steps + ["obfuscate"]) * (cycle // (steps + 1))
    run.run()
    assert run.updates["encoder"] == run.updates[OBFUSCATOR] == run.updates["classifier"] == 3 * per
    assert run.updates[ADVERSARY] == steps * 3 * per


@pytest.mark.parametrize("members", [80, 60, 33, 64])
def test_each_batch_of_an_epoch_has_its_turn(tmp_path: Path, members: int) -> None:
    """With 80 rows and 6 steps a turn, the encoder once saw nothing but the last 16 of a pass."""
    split = tiny_split()
    protocol = Protocol(members=members, nonmembers=80, pool=400)
    world = split.victim().replace(members=split.victim().members.select(slice(0, members)))
    defense = Olympus(epochs=4, batch=32)
    job = VictimSpec(split.card, protocol, world, TARGET, (defense,), split.card.sensitive)
    phase = tiny_builder(str(tmp_path)).draft(job).phases[-1]
    per = phase.batch.steps(members)
    chosen = [i for epoch in range(1, phase.epochs + 1) for i in range(per)
              if phase.step_at(epoch, i) == "obfuscate"]  # fmt: skip
    assert sorted(chosen) == [i for i in range(per) for _ in range(4)]


def test_without_weights_it_is_plain_tuning(tmp_path: Path) -> None:
    run = _training(tmp_path, FAST.replace(weight=0, rho=0))
    plain = copy.deepcopy(run.model)
    parts = ("encoder", OBFUSCATOR, "classifier")
    descent = torch.optim.Adam(
        [p for name in run.phase.optimizers if name in parts for p in plain[name].parameters()],
        lr=1e-3, fused=True,
    )  # fmt: skip
    members = tiny_split().victim().members
    for i in range(4):
        run._update("attack", torch.arange(40), Clock(1, 0, 1, 1), dict(run.updates))
        run._update("obfuscate", torch.arange(10 * i, 10 * i + 40), Clock(1, 0, 1, 1),
                    dict(run.updates))  # fmt: skip
        rows = members.select(slice(10 * i, 10 * i + 40))
        for part in plain.parts.values():
            part.requires_grad_(requires_grad=True)
        plain[OBFUSCATOR].inserted.fill_(True)  # type: ignore[operator]
        loss = F.cross_entropy(plain.logits(plain.encode(rows.x)), rows.y)
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
    for name in parts:
        for key, tensor in plain[name].named_parameters():
            assert torch.equal(tensor, run.model[name].get_parameter(key)), name


def test_weight_drives_the_adversary_to_guess_uniformly(tmp_path: Path) -> None:
    unsure = []
    for weight in (0.0, 5.0):
        run = _training(tmp_path, Olympus(epochs=20, adversary_steps=2, weight=weight))
        run.run()
        out, _ = _forward(run, 80)
        unsure.append(float(uniform_cross_entropy(out.guess)) - math.log(2))
    assert unsure[1] < 0.5 * unsure[0]


# ---- what is served ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [TARGET, CONVOLUTIONAL], ids=["simclr", "supervised"])
def test_earlier_phases_are_those_of_none_and_the_served_embedding_is_obfuscated(
    tmp_path: Path, target: Any
) -> None:
    shop = Builder(Store(tmp_path), CPU)
    shop.victim(tiny_spec(target))
    trained = shop.trained_phases
    keys = list(shop.planned(tiny_spec(target)))
    assert list(shop.planned(tiny_spec(target, (FAST,))))[: len(keys)] == keys
    victim = shop.victim(tiny_spec(target, (FAST,)))
    assert shop.trained_phases == trained + 1  # Olympus' own
    again = Builder(Store(tmp_path), CPU).victim(tiny_spec(target, (FAST,)))  # from the store
    x = tiny_split().pool.x[:20]
    model = victim.model
    h = model["encoder"].forward(model.inputs(x))
    assert torch.allclose(victim.embeddings(x), model[OBFUSCATOR].layers(h), atol=1e-5)  # type: ignore[operator]
    assert not torch.allclose(victim.embeddings(x), h, atol=1e-2)
    assert torch.equal(again.embeddings(x), victim.embeddings(x))
    read = model["classifier"](victim.embeddings(x)).log_softmax(1).double()
    assert torch.allclose(victim.log_posteriors(x), read, atol=1e-5)
    assert victim.grants == target.grants  # nothing stands outside the model
    assert "network" in victim.facts["notes"]["olympus"]


def test_a_frozen_encoder_is_the_encoder_of_none(tmp_path: Path) -> None:
    # in stores of their own: the encoder must train as if there were no autoencoder behind it
    shops = [Builder(Store(tmp_path / name), CPU) for name in ("a", "b")]
    plain = shops[0].victim(tiny_spec(TARGET)).weights()
    made = shops[1].victim(tiny_spec(TARGET, (FAST.replace(freeze_encoder=True),))).weights()
    for name in plain:
        assert torch.equal(plain[name], made[name]) == ("classifier" not in name)


def test_gradients_flow_through_the_autoencoder(tmp_path: Path) -> None:
    victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(TARGET, (FAST,)))
    x = tiny_split().pool.x[:3]
    given = victim.gradients(x, lambda served, x: served.embeddings(x).square().sum(1))
    model = victim.model
    inside = (x.float() / 255).requires_grad_()
    h = model[OBFUSCATOR].layers(model["encoder"].forward(model.inputs(inside)))  # type: ignore[operator]
    (expected,) = torch.autograd.grad(h.square().sum(), inside)
    assert torch.allclose(given, expected, atol=1e-6)


def test_a_copied_model_has_its_own_autoencoder(tmp_path: Path) -> None:
    model = Builder(Store(tmp_path), CPU).victim(tiny_spec(TARGET, (FAST,))).model
    x = tiny_split().pool.x[:5]
    before = model.encode(x)
    twin = copy.deepcopy(model)
    for parameter in twin[OBFUSCATOR].parameters():
        parameter.data.zero_()
    assert not twin.encode(x).any()
    assert torch.equal(model.encode(x), before)


def test_it_tunes_on_the_rows_of_the_classifier(tmp_path: Path) -> None:
    split = tiny_split()
    protocol = Protocol(members=80, nonmembers=80, pool=400, downstream=60, classifier="downstream")
    world = split.victim().replace(downstream=split.pool.select(slice(0, 60)))
    job = VictimSpec(split.card, protocol, world, TARGET, (FAST,), split.card.sensitive)
    making = tiny_builder(str(tmp_path)).draft(job)
    assert making.phases[-1].rows == "downstream"
    assert making.phases[-1].step_at(1, 0) == "attack"
    # 60 rows are one update per epoch, so that turns go by epochs
    assert [making.phases[-1].step_at(epoch, 0) for epoch in (2, 3)] == ["obfuscate", "attack"]


def test_it_needs_one_attribute_and_a_task() -> None:
    card = TinyImages().card(None)

    def why(*sensitive: str, task: bool = True) -> str:
        from dataclasses import replace

        cell = Cell(
            card if task else replace(card, classes=None), TinyImages.protocols["default"],
            TinyTarget(), (FAST,), Adversary(), AnyAttack(), sensitive,
        )  # fmt: skip
        return reason_to_skip(FAST, cell) or ""

    assert not why("bright")
    assert "one sensitive attribute" in why()
    assert "one sensitive attribute" in why("bright", "dark")
    assert "two classes" in why("bright", task=False)
