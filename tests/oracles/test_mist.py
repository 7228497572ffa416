"""MIST: disjoint subsets, agreement on rows of the others, and averaged weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench.ground.store.store import Store
from privbench.measure.training.loop import Training
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyTarget, tiny_split
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.mist import MIST, cross_difference, subsets
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@given(models=st.integers(1, 9), rows=st.integers(1, 40), seed=st.integers(0, 99))
def test_subsets_are_disjoint_and_equally_large(models: int, rows: int, seed: int) -> None:
    u = torch.rand(rows, 5, generator=torch.Generator().manual_seed(seed))
    sizes = torch.stack([column.bincount(minlength=models) for column in subsets(u, models).T])
    assert torch.equal(sizes.sum(1), torch.full((5,), rows))
    assert int(sizes.max() - sizes.min()) <= 1


def test_cross_difference_by_hand() -> None:
    p = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]], [[0.0, 1.0]]])
    assert cross_difference(p).flatten().tolist() == [1.5, 1.0, 1.5]
    assert cross_difference(p[:1]).tolist() == [[0.0]]


def test_the_others_are_constants() -> None:
    z = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(cross_difference(z.softmax(2))[0].sum(), z)
    assert float(gradient[0].abs().sum()) > 0
    assert float(gradient[1:].abs().sum()) == 0


def _training(tmp_path: Path, defense: MIST | None) -> Training:
    draft = Builder(Store(tmp_path), CPU).draft(
        tiny_spec(TinyTarget(), (defense,) if defense else ())
    )
    (only,) = draft.phases
    return Training(draft.model, only, draft.rows(only), 3)


def _weights(training: Training, *names: str) -> Tensor:
    return torch.cat([p.flatten() for name in names for p in training.model[name].parameters()])


def test_one_model_that_agrees_with_none_is_plain_training(tmp_path: Path) -> None:
    plain, alone = _training(tmp_path, None), _training(tmp_path, MIST(models=1, cross=0))
    for training in (plain, alone):
        training.run()
    served = ("encoder", "classifier")
    torch.testing.assert_close(_weights(alone, *served), _weights(plain, *served))


def test_sub_models_are_equal_at_the_end_of_each_round(tmp_path: Path) -> None:
    training = _training(tmp_path, MIST(models=3, cross=2))
    assert training.phase.epochs == 9  # three passes as without the defense, and twice as many
    for step, kind in training.phase.steps.items():
        assert set(kind.trains) == set(training.model.parts), step
    training.run()
    own = _weights(training, "encoder", "classifier")
    for i in (1, 2):
        torch.testing.assert_close(_weights(training, f"mist-{i}-encoder", f"mist-{i}-classifier"),
                                   own)  # fmt: skip


def test_a_sub_model_learns_locally_from_its_own_rows_only(tmp_path: Path) -> None:
    training = _training(tmp_path, MIST(models=2, cross=1))
    step, rows = training.phase.steps["local"], training.rows
    captured: dict[str, Any] = {}

    def gradients(change: int) -> list[Tensor]:
        """Gradients of both sub-models, with the label of row ``change`` changed; -1 for none."""
        from privbench.measure.training.phase import Batch, Clock

        y = rows.y.clone()
        if change >= 0:
            y[change] = (y[change] + 1) % 10
        batch = Batch(rows.x, y, {}, torch.arange(len(y)))
        training.model.requires_grad_(True).zero_grad()
        out = training.phase.forward(training.model, batch)
        clock = Clock(1, 0, 6, 2)
        step.loss(out, batch, clock).backward()  # type: ignore[no-untyped-call]
        captured["all"] = out.all
        names = (("encoder", "classifier"), ("mist-1-encoder", "mist-1-classifier"))
        return [
            torch.cat([
                p.grad.flatten()
                for n in pair for p in training.model[n].parameters() if p.grad is not None
            ])
            for pair in names
        ]  # fmt: skip

    before = gradients(-1)
    for row in range(6):
        moved = [
            not torch.allclose(a, b, rtol=1e-4, atol=1e-6)
            for a, b in zip(before, gradients(row), strict=True)
        ]
        assert sorted(moved) == [False, True]
    assert captured["all"].shape == (2, 80, 10)


@pytest.mark.slow
def test_members_are_learnt_less_by_heart(tmp_path: Path) -> None:
    builder, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=60, lr=5e-3)
    split = tiny_split()
    gaps = []
    for defenses in ((), (MIST(),)):
        p = builder.victim(tiny_spec(target, defenses)).log_posteriors(split.candidates.x).exp()
        own = p.gather(1, split.candidates.y[:, None]).squeeze(1)
        gaps.append(float(own[split.member].mean() - own[~split.member].mean()))
    assert gaps[0] > 0.7  # labels of these pictures are random
    assert gaps[1] < gaps[0] - 0.1


def test_steps_of_a_round() -> None:
    kinds = [MIST(cross=2).kind(epoch, end=True) for epoch in range(1, 7)]
    assert kinds == ["local", "cross", "join"] * 2
    assert [MIST(cross=0).kind(1, end=end) for end in (False, True)] == ["local", "join"]


@pytest.mark.parametrize("cross", [0, 1])
def test_every_round_ends_with_one_join(cross: int, tmp_path: Path) -> None:
    phase = _training(tmp_path, MIST(models=2, cross=cross)).phase
    ends = [
        (epoch, i) for epoch in range(1, phase.epochs + 1) for i in range(2)
        if phase.step_at(epoch, i) == "join"
    ]  # fmt: skip
    assert ends == [(round_ * (1 + cross), 1) for round_ in (1, 2, 3)]
