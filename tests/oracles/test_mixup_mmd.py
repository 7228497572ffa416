"""Mixup and MMD: the discrepancy, what is mixed and what is not, and when it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench import Protocol
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Clock
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.mixup_mmd import MixupMMD, mix, mmd
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

WIDE = {"members.accuracy": 0.9, "reference.accuracy": 0.5}


def test_discrepancy_by_hand() -> None:
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    assert float(mmd(zero, one)) == pytest.approx(0.78693868, abs=1e-8)
    rows = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)).double()
    assert float(mmd(rows, rows)) == pytest.approx(0, abs=1e-12)


@given(seed=st.integers(0, 999))
def test_discrepancy_counts_pairs(seed: int) -> None:
    p, q = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(seed)).double()

    def mean(a: Tensor, b: Tensor) -> float:
        pairs = [float((-((r - s) ** 2).sum() / 2).exp()) for r in a for s in b]
        return sum(pairs) / len(pairs)

    assert float(mmd(p, q)) == pytest.approx(mean(p, p) + mean(q, q) - 2 * mean(p, q), abs=1e-12)
    assert float(mmd(p, q)) >= -1e-12


def test_mixing_by_hand() -> None:
    x, partner = torch.tensor([[0.0, 8.0], [4.0, 0.0]]), torch.tensor([1, 0])
    assert torch.equal(mix(x, partner, torch.tensor(1.0)), x)
    assert torch.equal(mix(x, partner, torch.tensor(0.25)), torch.tensor([[3.0, 2.0], [1.0, 6.0]]))


def _training(tmp_path: Path, defense: MixupMMD) -> Training:
    making = Builder(Store(tmp_path), CPU).draft(tiny_spec(TinyTarget(), (defense,)))
    return Training(making.model, making.phases[0], tiny_split().victim().members, 0)


def _step(run: Training, metrics: Any, epoch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of one step, its plain part, and its discrepancy; made from the batch by hand."""
    step = run.phase.steps["train"]
    rows = torch.arange(40)
    batch = run._batch(rows, step)
    run._focus("train", step)
    out = run._forward(batch)
    loss = step.loss(out, batch, Clock(epoch, 0, 3, 2, metrics))
    members, model = tiny_split().victim().members, run.model
    mixed, plain = batch.x.chunk(2)
    assert torch.equal(plain, members.x[:40].float() / 255)
    assert not torch.equal(mixed, plain)
    base = F.cross_entropy(model.logits(model.encode(mixed)), batch.y)
    theirs = batch.streams["reference"]
    assert theirs.y.ndim == 1  # hard, and its rows are unmixed
    known = torch.isin(members.y[:40], tiny_split().victim().reference.y)
    assert torch.equal(theirs.y[known], members.y[:40][known])  # class for class
    assert torch.equal(theirs.x, tiny_split().victim().reference.x[theirs.rows])
    with torch.no_grad():
        q = model.logits(model.encode(theirs.x)).softmax(1)
    return loss, base, mmd(model.logits(model.encode(plain)).softmax(1), q)


def test_the_loss_of_a_step(tmp_path: Path) -> None:
    run = _training(tmp_path, MixupMMD(weight=3))
    loss, base, distance = _step(run, WIDE)
    assert torch.allclose(loss, base + 3 * distance, atol=1e-6)
    parameters = [p for part in ("encoder", "classifier") for p in run.model[part].parameters()]
    ours = torch.autograd.grad(loss, parameters, retain_graph=True)
    theirs = torch.autograd.grad(base + 3 * distance, parameters)
    for mine, by_hand in zip(ours, theirs, strict=True):  # nothing flows through reference rows
        assert torch.allclose(mine, by_hand, atol=1e-6)


@pytest.mark.parametrize(
    ("metrics", "epoch"),
    [
        ({}, 1),
        ({"members.accuracy": 0.9, "reference.accuracy": 0.88}, 2),
        (WIDE, 3),  # the last epoch
    ],
)
def test_when_it_does_not_count(tmp_path: Path, metrics: Any, epoch: int) -> None:
    loss, base, distance = _step(_training(tmp_path, MixupMMD()), metrics, epoch)
    assert torch.allclose(loss, base, atol=1e-6)
    assert float(distance.detach()) > 0


def test_labels_are_mixed_with_the_rows(tmp_path: Path) -> None:
    run = _training(tmp_path, MixupMMD())
    batch = run._batch(torch.arange(40), run.phase.steps["train"])
    assert batch.y.shape == (40, 10)
    assert torch.allclose(batch.y.sum(1), torch.ones(40))
    two = batch.y.topk(2, dim=1).values
    share = two[two[:, 1] > 0]
    assert len(share) > 20
    assert torch.allclose(share, share[:1].expand_as(share), atol=1e-6)  # one λ for the batch
    shares = []
    for _ in range(200):
        y = run._batch(torch.arange(40), run.phase.steps["train"]).y
        shares.append(float(y[torch.arange(40), tiny_split().victim().members.y[:40]].min()))
    assert 0.4 < sum(shares) / 200 < 0.6  # uniform
    assert min(shares) < 0.05
    assert max(shares) > 0.95


def test_the_loop_measures_and_matches(tmp_path: Path) -> None:
    shop, rows = Builder(Store(tmp_path), CPU), tiny_split()
    target = Supervised(backbone="mlp", epochs=60, lr=5e-3)
    gaps = []
    for defenses in ((), (MixupMMD(weight=0),), (MixupMMD(weight=30),)):
        p = shop.victim(tiny_spec(target, defenses)).log_posteriors(rows.candidates.x).exp()
        own = p.gather(1, rows.candidates.y[:, None]).squeeze(1)
        gaps.append(float(own[rows.member].mean() - own[~rows.member].mean()))
    assert gaps[0] - gaps[1] > 0.2
    assert gaps[1] - gaps[2] > 0.1


def test_embeddings_are_mixed_where_the_encoder_is_frozen(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), SimCLR(epochs=2, classifier_epochs=5)
    served = shop.victim(tiny_spec(target, (MixupMMD(),)))
    x = tiny_split().pool.x[:20]
    assert torch.equal(served.embeddings(x), shop.victim(tiny_spec(target)).embeddings(x))
    assert "classifier only" in served.facts["notes"]["mixup-mmd"]


def test_it_needs_reference_rows() -> None:
    protocol = Protocol(members=80, nonmembers=80, pool=400)
    cell = Cell(
        TinyImages().card(None), protocol, TinyTarget(), (MixupMMD(),), Adversary(), AnyAttack(),
        (),
    )  # fmt: skip
    assert "reference rows" in (reason_to_skip(MixupMMD(), cell) or "")
