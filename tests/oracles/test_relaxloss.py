"""RelaxLoss: both kinds of epochs, both variants, against losses written out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.phase import Batch, Clock, Outputs
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench_plugins.defenses.relaxloss import RelaxLoss, flattened, relaxed
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def _batch(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(5, (7,), generator=generator)


def _gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def _relaxed(logits: Tensor, y: Tensor, **settings: Any) -> Tensor:
    plain: dict[str, Any] = {"epoch": 0, "level": 1.0, "upper": 1.0, "variant": "image"}
    return relaxed(logits, y, **(plain | settings))


@pytest.mark.parametrize(("level", "sign"), [(0.1, 1), (50.0, -1)])
def test_even_epochs_climb_below_the_level_and_descend_above(level: float, sign: int) -> None:
    logits, y = _batch()
    ours = _gradient(_relaxed(logits, y, level=level), logits)
    assert torch.allclose(ours, sign * _gradient(F.cross_entropy(logits, y), logits))


def test_odd_epochs_descend_above_the_level() -> None:
    logits, y = _batch()
    ours = _gradient(_relaxed(logits, y, epoch=1, level=0.1), logits)
    assert torch.allclose(ours, _gradient(F.cross_entropy(logits, y), logits))


def _by_hand(logits: Tensor, y: Tensor, upper: float) -> tuple[Tensor, Tensor, Tensor]:
    """Plain and soft cross-entropy of each row, and which rows are wrong."""
    plain, soft = [], []
    for row, label in zip(logits, y, strict=True):
        log_p = row - row.logsumexp(0)
        p = torch.minimum(log_p[label].exp(), torch.tensor(upper))
        others = [i for i in range(5) if i != label]
        plain.append(-log_p[label])
        soft.append(-p * log_p[label] - (1 - p) / 4 * log_p[others].sum())
    return torch.stack(plain), torch.stack(soft), logits.argmax(1) != y


@pytest.mark.parametrize("upper", [1.0, 0.3])
def test_odd_epochs_flatten_below_the_level(upper: float) -> None:
    logits, y = _batch()
    plain, soft, wrong = _by_hand(logits, y, upper)
    assert 0 < int(wrong.sum()) < 7
    tabular = _relaxed(logits, y, epoch=1, level=50, upper=upper, variant="tabular")
    image = _relaxed(logits, y, epoch=1, level=50, upper=upper, variant="image")
    assert torch.allclose(tabular, soft.mean())
    assert torch.allclose(image, (wrong * soft - plain).mean())
    for ours, theirs in ((tabular, soft.mean()), (image, (wrong * soft - plain).mean())):
        assert torch.allclose(_gradient(ours, logits), _gradient(theirs, logits))


@given(seed=st.integers(0, 999), upper=st.floats(0, 1))
def test_soft_labels_are_distributions(seed: int, upper: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(6, 4, generator=generator)
    label = torch.randint(4, (6,), generator=generator)
    soft = flattened(logits, label, upper)
    assert torch.allclose(soft.sum(1), torch.ones(6))
    assert float(soft.gather(1, label[:, None]).max()) <= upper + 1e-6
    assert float(soft.min()) >= 0


def test_the_loss_needs_no_branch_on_tensors() -> None:
    logits, y = _batch()
    stack = torch.stack([logits.detach(), 20 * logits.detach()])  # one below the level, one above
    ours = torch.func.vmap(lambda z: _relaxed(z, y, epoch=1, level=3.0))(stack)
    assert torch.allclose(ours, torch.stack([_relaxed(z, y, epoch=1, level=3.0) for z in stack]))


def test_epochs_of_the_clock_count_from_one() -> None:
    logits, y = (tensor.detach() for tensor in _batch())
    phase = _phase(RelaxLoss(target_loss=2.2))
    batch = Batch(torch.zeros(7, 1), y, {}, torch.arange(7))
    (step,) = phase.steps.values()
    losses = [float(step.loss(Outputs(logits=logits), batch, Clock(e, 0, 9, 1))) for e in (1, 2)]
    mean = float(F.cross_entropy(logits.float(), y))
    assert mean < 2.2
    assert losses[0] == pytest.approx(2.2 - mean, abs=1e-5)  # the first epoch is epoch 0, even
    assert losses[1] < 0  # flattening


def _phase(defense: RelaxLoss) -> Any:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as tmp:
        making = Builder(Store(Path(tmp)), CPU).draft(tiny_spec(TinyTarget(), (defense,)))
        return making.phases[0]


def test_training_holds_the_loss_at_the_level(tmp_path: Path) -> None:
    shop, rows = Builder(Store(tmp_path), CPU), tiny_split().victim().members
    target = Supervised(backbone="mlp", epochs=90, lr=5e-3)
    loss = [
        float(F.nll_loss(shop.victim(tiny_spec(target, d)).log_posteriors(rows.x), rows.y))
        for d in ((), (RelaxLoss(target_loss=1.0),))
    ]
    assert loss[0] < 0.1
    assert 0.5 < loss[1] < 1.6


@pytest.mark.parametrize(("level", "words"), [(2.31, "not below log 10"), (2.29, "")])
def test_unfit(level: float, words: str) -> None:
    data, mine = TinyImages(), RelaxLoss(target_loss=level)
    cell = Cell(
        data.card(None), data.protocols["default"], TinyTarget(), (mine,), Adversary(),
        AnyAttack(), (),
    )  # fmt: skip
    assert words in (mine.incompatible(cell) or "")
    assert bool(mine.incompatible(cell)) == bool(words)
