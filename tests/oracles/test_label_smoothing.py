"""Smooth labels against torch's own, and through the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench import Batch, Clock, Outputs, Protocol
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import CPU, TinyImages, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.label_smoothing import LabelSmoothing, smooth
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Target

CLOCK = Clock(1, 0, 1, 1)


def _loss(defense: LabelSmoothing, target: Target, out: Outputs, y: torch.Tensor) -> float:
    """The loss that the phase gets under the defense."""
    making = Builder(Store(_nowhere()), CPU).draft(tiny_spec(target, (defense,)))
    phase = next(p for p in making.phases if p.reads_labels)
    (step,) = phase.steps.values()
    batch = Batch(torch.zeros(len(y), 1), y, {}, torch.arange(len(y)))
    return float(step.loss(out, batch, CLOCK))


def _nowhere() -> Path:
    import tempfile
    from pathlib import Path

    return Path(tempfile.mkdtemp())


def test_three_classes_by_hand() -> None:
    logits = torch.tensor([[0.7, 0.2, 0.1]]).double().log()
    y = smooth(torch.tensor([0]), 3, 0.1).double()
    assert float(F.cross_entropy(logits, y)) == pytest.approx(0.46329738, abs=1e-7)


@given(seed=st.integers(0, 999), smoothing=st.floats(0, 1))
def test_it_is_what_torch_calls_label_smoothing(seed: int, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 10, generator=generator)
    y = torch.randint(10, (6,), generator=generator)
    soft = smooth(y, 10, smoothing)
    assert torch.allclose(soft.sum(1), torch.ones(6))
    theirs = F.cross_entropy(logits, y, label_smoothing=smoothing)
    assert torch.allclose(F.cross_entropy(logits, soft), theirs, atol=1e-6)


@pytest.mark.parametrize("target", [Supervised(epochs=1), SimCLR(epochs=1)], ids=lambda t: t.name)
def test_phases_that_read_labels_see_smooth_ones(target: Target) -> None:
    logits = torch.randn(8, 10, generator=torch.Generator().manual_seed(1))
    y = torch.arange(8)
    ours = _loss(LabelSmoothing(smoothing=0.3), target, Outputs(logits=logits), y)
    assert ours == pytest.approx(float(F.cross_entropy(logits, y, label_smoothing=0.3)), abs=1e-6)


def test_a_contrastive_encoder_is_left_alone(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), SimCLR(epochs=2, classifier_epochs=3)
    plain, smoothed = (shop.victim(tiny_spec(target, d)) for d in ((), (LabelSmoothing(),)))
    x = tiny_split().pool.x[:20]
    assert torch.equal(plain.embeddings(x), smoothed.embeddings(x))
    assert not torch.equal(plain.log_posteriors(x), smoothed.log_posteriors(x))
    assert "classifier only" in smoothed.facts["notes"]["label-smoothing"]
    assert shop.trained_phases == 3  # the encoder's phase is shared


def test_an_encoder_that_reads_labels_is_not_called_left_alone(tmp_path: Path) -> None:
    shop = Builder(Store(tmp_path), CPU)
    smoothed = shop.victim(tiny_spec(Supervised(epochs=1), (LabelSmoothing(),)))
    assert "label-smoothing" not in smoothed.facts["notes"]


def test_confidence_falls(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=90, lr=5e-3)
    rows = tiny_split().victim().members
    top = [
        shop.victim(tiny_spec(target, d)).log_posteriors(rows.x).exp().amax(1).mean()
        for d in ((), (LabelSmoothing(smoothing=0.4),))
    ]
    assert top[0] > 0.9
    assert top[1] < 0.7


def test_it_needs_a_phase_that_reads_members_labels() -> None:
    protocol = Protocol(members=80, nonmembers=80, pool=400, downstream=40, classifier="downstream")
    defense, target = LabelSmoothing(), SimCLR()
    cell = Cell(
        TinyImages().card(None), protocol, target, (defense,), Adversary(), AnyAttack(), (),
    )  # fmt: skip
    assert "reads members' labels" in (reason_to_skip(defense, cell) or "")
