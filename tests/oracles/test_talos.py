"""Which parameters change in which epoch, and what gradient the encoder gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Batch, Clock
from privbench.testing import tiny_split
from privbench.testing.fixtures import tiny_builder, tiny_spec
from privbench_plugins.defenses.talos import Talos
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

TARGETS = {
    "simclr": SimCLR(backbone="convnet", epochs=2, batch=40),
    "moco": MoCo(backbone="convnet", epochs=2, batch=40, queue=32),
    "supervised": Supervised(backbone="convnet", epochs=2, batch=40),
}


def _training(tmp_path: Any, target: Any, defense: Talos) -> Training:
    making = tiny_builder(str(tmp_path)).draft(tiny_spec(target, (defense,)))
    phase = next(p for p in making.phases if p.name == "encoder")
    return Training(making.model, phase, tiny_split().victim().members, 0)


def _state(model: Any, parts: list[str]) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{name}": tensor.clone()
        for part in parts
        for name, tensor in model[part].state_dict().items()
    }


def _changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("name", TARGETS)
def test_alternating_updates_the_adversary_in_odd_and_the_encoder_in_even_epochs(
    tmp_path: Any, name: str
) -> None:
    run = _training(tmp_path, TARGETS[name], Talos())
    others = [part for part in run.model.parts if part != "adversary-bright"]
    assert run.phase.epochs == 4  # twice as many, for equal encoder updates
    for epoch in range(1, 5):
        theirs = _state(run.model, others)
        mine = _state(run.model, ["adversary-bright"])
        list(run._epoch(epoch))
        moved = _changed(theirs, _state(run.model, others))
        if epoch % 2:
            assert moved == set()  # neither weights nor batch-norm buffers nor queue
            assert len(_changed(mine, _state(run.model, ["adversary-bright"]))) == len(mine)
        else:
            assert any(key.startswith("encoder.") and key.endswith("weight") for key in moved)
            assert any("running_mean" in key for key in moved)
            assert _changed(mine, _state(run.model, ["adversary-bright"])) == set()
    assert run.updates["encoder"] == run.updates["adversary-bright"] == 2 * 2


def test_equal_encoder_updates_with_and_without_the_defense(tmp_path: Any) -> None:
    plain = tiny_builder(str(tmp_path)).draft(tiny_spec(TARGETS["simclr"]))
    bare = Training(plain.model, plain.phases[0], tiny_split().victim().members, 0)
    bare.run()
    for schedule in ("alternating", "simultaneous"):
        run = _training(tmp_path, TARGETS["simclr"], Talos(schedule=schedule))
        run.run()
        assert run.updates["encoder"] == bare.updates["encoder"] == 4
        assert run.updates["head"] == bare.updates["head"]


def _gradients(run: Training, step: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of the step's loss at h, of the base loss at h, and of C's cross-entropy at h."""
    rows = tiny_split().victim().members.select(slice(0, 10))
    batch = Batch(rows.x, rows.y, rows.attributes, torch.arange(10))
    batch = run.phase.prepare(batch, lambda m: torch.full((10, m), 0.3))  # type: ignore[misc]
    out = run.phase.forward(run.model, batch)
    h = out.h
    s = rows.attributes["bright"].repeat(len(h) // 10)  # tiled: view 1 of all, then view 2
    adversary = run.model["adversary-bright"]
    ours = run.phase.steps[step].loss(out, batch, Clock(2, 0, 4, 1))
    (total,) = torch.autograd.grad(ours, h, retain_graph=True)
    (censor,) = torch.autograd.grad(F.cross_entropy(adversary(h), s), h, retain_graph=True)
    base = SimCLR(backbone="convnet")._loss(out, batch, Clock(2, 0, 4, 1))
    (plain,) = torch.autograd.grad(base, h, retain_graph=True)
    return total, plain, censor


@pytest.mark.parametrize(
    ("schedule", "step"), [("alternating", "encode"), ("simultaneous", "train")]
)
def test_encoder_descends_its_loss_and_climbs_the_adversarys(
    tmp_path: Any, schedule: Any, step: str
) -> None:
    run = _training(tmp_path, TARGETS["simclr"], Talos(schedule=schedule, adversarial_factor=2.5))
    total, plain, censor = _gradients(run, step)
    assert torch.allclose(total, plain - 2.5 * censor, atol=1e-6)


def test_the_adversary_itself_descends_and_never_reaches_the_encoder(tmp_path: Any) -> None:
    run = _training(tmp_path, TARGETS["simclr"], Talos(adversarial_factor=2.5))
    rows = tiny_split().victim().members.select(slice(0, 10))
    batch = Batch(rows.x, rows.y, rows.attributes, torch.arange(10))
    out = run.phase.forward(run.model, batch)
    loss = run.phase.steps["censor"].loss(out, batch, Clock(1, 0, 4, 1))
    expected = F.cross_entropy(run.model["adversary-bright"](out.h), rows.attributes["bright"])
    assert torch.allclose(loss, expected)  # not multiplied by the factor, not reversed
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in run.model["encoder"].parameters())
    simultaneous = _training(tmp_path, TARGETS["simclr"], Talos(schedule="simultaneous"))
    out = simultaneous.phase.forward(simultaneous.model, batch)
    adversary = list(simultaneous.model["adversary-bright"].parameters())
    guess = F.cross_entropy(
        simultaneous.model["adversary-bright"](out.h), batch.attributes["bright"]
    )
    ours = torch.autograd.grad(
        simultaneous.phase.steps["train"].loss(out, _two(batch), Clock(1, 0, 4, 1)), adversary,
        retain_graph=True,
    )  # fmt: skip
    theirs = torch.autograd.grad(guess, adversary)
    for mine, direct in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, direct, atol=1e-6)


def _two(batch: Batch) -> Batch:
    """The same rows as one view: h has as many rows as y."""
    return batch


def test_factor_zero_leaves_the_encoder_as_without_the_defense(tmp_path: Any) -> None:
    """But for rounding, which training magnifies: far less than a factor above zero changes."""
    x = tiny_split().pool.x[:20]
    bare = tiny_builder(str(tmp_path / "a")).victim(tiny_spec(TARGETS["simclr"])).embeddings(x)
    moved = []
    for factor in (0, 3):
        talos = Talos(adversarial_factor=factor, schedule="simultaneous")
        builder = tiny_builder(str(tmp_path / f"b{factor}"))
        censored = builder.victim(tiny_spec(TARGETS["simclr"], (talos,))).embeddings(x)
        moved.append(float((censored - bare).abs().max()))
    assert moved[0] < moved[1] / 20


def test_missing_attributes_do_not_count(tmp_path: Any) -> None:
    run = _training(tmp_path, TARGETS["simclr"], Talos())
    rows = tiny_split().victim().members.select(slice(0, 6))
    missing = torch.tensor([1, 0, -1, -1, 1, 0])
    batch = Batch(rows.x, rows.y, {"bright": missing}, torch.arange(6))
    out = run.phase.forward(run.model, batch)
    loss = run.phase.steps["censor"].loss(out, batch, Clock(1, 0, 4, 1))
    known = missing >= 0
    expected = F.cross_entropy(run.model["adversary-bright"](out.h[known]), missing[known])
    assert torch.allclose(loss, expected)
    none = Batch(rows.x, rows.y, {"bright": torch.full((6,), -1)}, torch.arange(6))
    assert run.phase.steps["censor"].loss(out, none, Clock(1, 0, 4, 1)).item() == 0


@pytest.mark.parametrize("schedule", ["alternating", "simultaneous"])
@pytest.mark.parametrize("name", TARGETS)
def test_the_adversary_learns_at_the_encoders_rate(tmp_path: Any, name: str, schedule: Any) -> None:
    """The authors have one rate for both: it was 3e-4 beside the encoder's 1e-3."""
    target = TARGETS[name].replace(lr=0.02)
    phase = _training(tmp_path / "a", target, Talos(schedule=schedule)).phase
    mine, theirs = phase.optimizers["adversary-bright"], phase.optimizers["encoder"]
    assert (mine.kind, mine.lr, mine.schedule) == (theirs.kind, 0.02, theirs.schedule)
    assert mine.weight_decay == 1e-4
    own = _training(tmp_path / "b", target, Talos(lr=5e-4)).phase.optimizers["adversary-bright"]
    assert (own.kind, own.lr) == ("adam", 5e-4)


def test_the_adversarys_accuracy_is_noted_on_rows_it_saw_and_on_held_out_ones(
    tmp_path: Any,
) -> None:
    served = tiny_builder(str(tmp_path)).victim(tiny_spec(TARGETS["simclr"], (Talos(),)))
    told = served.facts["notes"]["accuracy of C for bright"]
    world = tiny_split().victim()
    for where, rows in (("members", world.members), ("held out", world.reference)):
        guess = served.model["adversary-bright"](served.model.encode(rows.x)).argmax(1)
        s = rows.attributes["bright"]
        assert told[where] == pytest.approx(float((guess == s).double().mean()))
        most = max(float((s == v).double().mean()) for v in (0, 1))
        assert told[f"{where}, most frequent"] == pytest.approx(most)
