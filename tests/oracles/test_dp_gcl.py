"""DP-GCL: the gradient of groups, clipping, sensitivity and noise by hand, and its refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from privbench import BadInputError, Batch, Cell, Outputs
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Optimizer
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, AnyAttack, TinyPairs
from privbench.testing.fixtures import tiny_spec, tiny_split
from privbench_plugins.targets.barlow_twins import BarlowTwins, redundancy
from privbench_plugins.targets.byol import BYOL
from privbench_plugins.targets.dino import DINO
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR, nt_xent
from privbench_plugins.targets.supervised import Supervised

pytest.importorskip("opacus")

from privbench_plugins.defenses.dp_gcl import DPGCL

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from privbench import Target

HUGE = 1e9
MLP = SimCLR(temperature=0.5, hidden=16, projection=8)
CONVNET = SimCLR(temperature=1.0, backbone="convnet", projection=8)
TWINS = BarlowTwins(hidden=256, projection=8)  # group norm needs channels: 8 in a group here


def _training(tmp_path: Path, defense: DPGCL, target: Target = MLP, **phase: Any) -> Training:
    """The encoder's private phase, ready to run, with plain steps of length 1."""
    draft = Builder(Store(tmp_path), CPU).draft(tiny_spec(target, (defense,)))
    first = draft.phases[0]
    plain = dict.fromkeys(first.optimizers, Optimizer("sgd", 1.0))
    first = replace(first, optimizers=plain, **phase)
    return Training(draft.model, first, draft.rows(first), seed=0)


def _grouped(training: Training) -> Any:
    """What makes the phase private."""
    return training.phase.wrap.__self__  # type: ignore[union-attr]


def _trained(training: Training) -> list[nn.Parameter]:
    return [p for part in training.phase.optimizers for p in training.model[part].parameters()]


def _step(training: Training, batch: Batch) -> Tensor:
    """The gradient with which one step on this batch ends."""
    ((_, step),) = training.phase.steps.items()
    ((_, optimizer),) = training.optimizers.items()
    out = training.phase.forward(training.model, batch)
    step.loss(out, batch, None).backward()  # type: ignore[arg-type, no-untyped-call]
    optimizer.step()
    made = torch.cat([p.grad.flatten() for p in _trained(training)])  # type: ignore[union-attr]
    optimizer.zero_grad(set_to_none=True)
    return made


def _views(rows: int, seed: int = 0) -> Batch:
    x = torch.rand(2 * rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    at = torch.arange(rows)
    return Batch(x, torch.zeros_like(at), {}, at, views=2)


def _own_loss(target: Any, training: Training, x: Tensor) -> Tensor:
    """The loss of a group alone, from the papers' functions."""
    model = training.model
    if isinstance(target, BarlowTwins):
        first, second = (model["projector"](model.encode(one)) for one in x.chunk(2))
        return redundancy(first, second, target.redundancy)
    return nt_xent(model["head"](model.encode(x)), target.temperature)


# ---- the gradient --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [MLP, CONVNET, TWINS], ids=["mlp", "convnet", "barlow-twins"])
@pytest.mark.parametrize("clip", [HUGE, 0.05])
def test_groups_are_contrasted_alone_clipped_and_added(
    tmp_path: Path, target: Target, clip: float
) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, clip=clip, batch=9, group=3), target)
    batch, n = _views(9), 9
    with training.phase.wrap(training):  # type: ignore[misc]
        before = {name: t.clone() for name, t in training.model.state_dict().items()}
        made = _step(training, batch)
        of = _grouped(training).of
        training.model.load_state_dict(before)
    assert 1 < of.unique().numel() <= 3
    wanted, lengths = torch.zeros_like(made), []
    for group in of.unique():
        at = (of == group).nonzero().flatten()
        loss = _own_loss(target, training, torch.cat([batch.x[at], batch.x[at + n]]))
        parts = torch.autograd.grad(loss, _trained(training))
        gradient = torch.cat([one.flatten() for one in parts])
        lengths.append(float(gradient.norm()))
        wanted += gradient * min(1.0, clip / max(lengths[-1], 1e-12))
    rounding = 1e-6 * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(made, wanted / 3, rtol=1e-3, atol=rounding)
    assert clip == HUGE or max(lengths) > clip


@pytest.mark.parametrize("target", [MLP, BYOL(hidden=16, projection=8), TWINS])
def test_gradients_of_linear_layers_are_not_written_out(tmp_path: Path, target: Target) -> None:
    """Whether the views pass together or one after another."""
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, batch=9, group=3), target)
    with training.phase.wrap(training):  # type: ignore[misc]
        out = training.phase.forward(training.model, _views(9))
        training.phase.steps["train"].loss(out, _views(9), None).backward()  # type: ignore[arg-type, no-untyped-call]
        layers: list[Any] = [m for m in training.model["encoder"].modules() if type(m) is nn.Linear]
        assert layers
        assert [len(layer.weight.grad_sample.g) for layer in layers] == [18] * len(layers)


def _halves(model: Any, batch: Batch) -> Outputs:
    """Half of the rows in each pass."""
    return Outputs(z=torch.cat([model["head"](model.encode(x)) for x in batch.x.chunk(4)]))


def _unused(model: Any, batch: Batch) -> Outputs:
    """A second pass, with gradients, that no loss reads."""
    model["head"](model.encode(batch.x.flip(0)))
    return Outputs(z=model["head"](model.encode(batch.x)))


@pytest.mark.parametrize(
    ("forward", "told"),
    [(_halves, "4 of something came from 8 rows with 2 views each"),
     (_unused, "a pass with gradients is not used")],
)  # fmt: skip
def test_passes_whose_groups_are_not_known_are_refused(
    tmp_path: Path, forward: Any, told: str
) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, batch=8), forward=forward)
    with training.phase.wrap(training), pytest.raises(BadInputError, match=told):  # type: ignore[misc]
        _step(training, _views(8))


def test_a_layer_may_take_the_views_several_times(tmp_path: Path) -> None:
    """Once with all views, and once with each half of them: as if it took all of them twice."""

    def twice(model: Any, batch: Batch) -> Outputs:
        z = model["head"](model.encode(batch.x))
        again = [model["head"](model.encode(x)) for x in batch.x.chunk(2)]
        return Outputs(z=z + torch.cat(again))

    made = []
    for forward in (
        twice,
        lambda model, batch: Outputs(z=2 * model["head"](model.encode(batch.x))),
    ):
        training = _training(tmp_path, DPGCL(noise_multiplier=0.0, clip=0.05, batch=9, group=3),
                             forward=forward)  # fmt: skip
        with training.phase.wrap(training):  # type: ignore[misc]
            made.append(_step(training, _views(9)))
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-6)


def test_one_group_is_the_loss_of_the_whole_batch(tmp_path: Path) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, clip=HUGE, batch=5, group=5))
    batch = _views(5)
    with training.phase.wrap(training):  # type: ignore[misc]
        out = training.phase.forward(training.model, batch)
        loss = training.phase.steps["train"].loss(out, batch, None)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(nt_xent(out.z, 0.5).item(), rel=1e-6)


def test_every_row_draws_its_group_by_a_fair_coin(tmp_path: Path) -> None:
    """Of pairs of rows, one in k is in one group; which rows are drawn with them says nothing."""
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, batch=16, group=4))
    grouped, batch = _grouped(training), _views(16)
    counts, together = torch.zeros(4), 0
    with training.phase.wrap(training):  # type: ignore[misc]
        for _ in range(400):
            with torch.no_grad():
                out = training.phase.forward(training.model, batch)
                training.phase.steps["train"].loss(out, batch, None)  # type: ignore[arg-type]
            counts += grouped.of.bincount(minlength=4)
            together += int(grouped.of[0] == grouped.of[1])
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    assert stats.binomtest(together, 400, 0.25).pvalue > 1e-4


# ---- its sensitivity -----------------------------------------------------------------------------


def test_a_third_row_can_turn_the_gradient_of_two_round() -> None:
    """No bound below 2 clip holds: a search comes near it, in the weights of a linear encoder."""

    def gradient(x: Tensor, weights: Tensor) -> Tensor:
        loss = nt_xent(x @ weights.T, 1.0)
        return torch.autograd.grad(loss, weights, create_graph=True)[0].flatten()

    def moved(seed: int) -> float:
        """How far two vectors of length 1 are apart, by a search that ends where that is enough."""
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(2, 3, generator=generator).requires_grad_()
        x = torch.randn(6, 3, generator=generator).requires_grad_()
        optimizer = torch.optim.Adam([x], lr=0.03)
        far = 0.0
        for _ in range(400):
            two = torch.cat([x[:2], x[3:5]])  # without the third row
            turned = -F.cosine_similarity(gradient(x, weights), gradient(two, weights), dim=0)
            far = max(far, math.sqrt(max(0.0, 2 + 2 * turned.item())))
            if far > 1.9:
                break
            optimizer.zero_grad()
            (-turned).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return far

    assert any(moved(seed) > 1.9 for seed in range(3))


@pytest.mark.parametrize("target", [MLP, TWINS], ids=["mlp", "barlow-twins"])
def test_a_row_moves_the_sum_of_a_network_by_the_sensitivity_at_most(
    tmp_path: Path, target: Target
) -> None:
    clip = 1e-3
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, clip=clip, batch=8), target)
    whole, moved = _views(8), []
    fewer = replace(_views(7), x=whole.x[torch.arange(16) % 8 < 7])
    start = {name: t.clone() for name, t in training.model.state_dict().items()}
    for seed in range(20):
        steps = []
        for batch in (whole, fewer):
            training.model.load_state_dict(start)
            with training.phase.wrap(training):  # type: ignore[misc]
                _grouped(training)._coins.manual_seed(seed)
                steps.append(_step(training, batch).double())
        moved.append(2 * float((steps[0] - steps[1]).norm()))  # two groups
    assert max(moved) <= 2 * clip * (1 + 1e-4)
    assert max(moved) > 0.2 * clip  # ordinary networks are far from the worst case


def test_a_row_that_is_not_drawn_moves_no_other_rows_group(tmp_path: Path) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, batch=16, group=4))
    grouped, whole, found = _grouped(training), _views(16), []
    at = torch.tensor([i for i in range(16) if i != 3])
    fewer = replace(whole, x=whole.x[torch.cat([at, at + 16])], y=at * 0, rows=at)
    with training.phase.wrap(training):  # type: ignore[misc]
        for batch in (whole, fewer):
            grouped._coins.manual_seed(5)
            out = training.phase.forward(training.model, batch)
            training.phase.steps["train"].loss(out, batch, None)  # type: ignore[arg-type]
            found.append(grouped.of)
    assert torch.equal(found[0][at], found[1])


@pytest.mark.parametrize("outer", [True, False])
def test_no_gradients_that_an_adversary_chooses_move_more(tmp_path: Path, outer: bool) -> None:
    """The worst case: a row turns its group's gradient round, and the sum moves by 2 clip."""
    from privbench.toolbox.row_gradients import Outer

    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, clip=0.5, batch=16, group=4))
    grouped = _grouped(training)
    grouped.of = torch.tensor([0, 0, 1, 1, 2, 3])
    rows = torch.tensor([1.0, -1e6, 2.0, 2.0, -3.0, 0.1]).repeat(2)[:, None]
    one = torch.ones(12, 1)

    def total(rows: Tensor) -> float:
        return float(grouped.clipped([Outer(rows, one) if outer else rows])[0].squeeze())

    without = rows.clone()
    without[[1, 7]] = 0
    assert total(rows) == pytest.approx(-0.5 + 0.5 - 0.5 + 0.2)
    assert total(without) - total(rows) == pytest.approx(2 * 0.5)


def test_what_cannot_be_told_apart_by_rows_is_refused(tmp_path: Path) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=0.0, batch=6))
    batch = _views(6)
    step = training.phase.steps["train"]
    with training.phase.wrap(training):  # type: ignore[misc]
        with pytest.raises(BadInputError, match="24 of something came from 6 rows with 2 views"):
            step.loss(Outputs(z=torch.zeros(24, 3)), batch, None)  # type: ignore[arg-type]
        head = training.model["head"]
        bare = replace(training.phase, forward=lambda model, batch: Outputs(
            z=F.linear(model.encode(batch.x), next(iter(head.parameters())))
        ))  # fmt: skip
        training.phase = bare
        with pytest.raises(BadInputError, match="cannot clip 1 parameters of phase 'encoder'"):
            _step(training, batch)


# ---- noise, steps and books ----------------------------------------------------------------------


def test_noise_has_its_standard_deviation(tmp_path: Path) -> None:
    sigma, clip = 1e4, 1e-9
    defense = DPGCL(noise_multiplier=sigma, clip=clip, batch=16, group=4, accountant="rdp")
    training = _training(tmp_path, defense, epochs=1)
    start = torch.cat([p.detach().flatten() for p in _trained(training)]).clone()
    training.run()
    moved = (start - torch.cat([p.detach().flatten() for p in _trained(training)])).double()
    law = stats.norm(0, math.sqrt(5) * sigma * 2 * clip / 4)  # five steps of four groups
    assert stats.kstest(moved.numpy(), law.cdf).pvalue > 1e-4


def test_an_empty_batch_still_takes_its_noisy_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = _training(tmp_path, DPGCL(noise_multiplier=1.0, accountant="rdp"), epochs=1)
    steps, nothing = training.steps, torch.empty(0, dtype=torch.long)
    monkeypatch.setattr(Training, "_batches", lambda _: ((i, nothing) for i in range(steps)))
    start = torch.cat([p.detach().flatten() for p in _trained(training)]).clone()
    assert training.run()["updates"] == {"encoder": steps, "head": steps}
    assert not (start == torch.cat([p.detach().flatten() for p in _trained(training)])).all()


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    training = _training(tmp_path, DPGCL(accountant="rdp"), epochs=1)
    training.run()
    for parameter in training.model.parameters():
        assert getattr(parameter, "grad_sample", None) is None
    for module in training.model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks


def test_the_record_has_the_claim_of_both_phases(tmp_path: Path) -> None:
    builder = Builder(Store(tmp_path), CPU)
    defense = DPGCL(accountant="rdp", batch=20, clip=0.25, row_clip=0.5)
    (claim,) = builder.victim(tiny_spec(TinyPairs(), (defense,))).facts["claims"]
    assert claim["epsilon"] <= 8.0
    assert claim["adjacency"] == "add/remove"
    assert claim["phase"] == "encoder+classifier"
    assert claim["sample_rate"] == [0.25, 0.25]
    assert claim["steps"] == [12, 12]
    assert claim["sensitivity"] == [0.5, 0.5]
    noiseless = tiny_spec(TinyPairs(), (DPGCL(noise_multiplier=0.0),))
    assert builder.victim(noiseless).facts["claims"] == []


# ---- what it refuses -----------------------------------------------------------------------------


def test_other_targets_are_refused() -> None:
    def refused(target: Any) -> str | None:
        split = tiny_split()
        cell = Cell(split.card, split.protocol, target, (DPGCL(),), Adversary(), AnyAttack(), ())
        return DPGCL().incompatible(cell)

    assert refused(SimCLR()) is refused(BarlowTwins()) is refused(BYOL()) is None
    assert (
        refused(Supervised()) == "dp-gcl is for losses that compare rows: use dp-sgd for supervised"
    )
    for target in (MoCo(), DINO()):
        assert f"{target.name} keeps outputs of earlier ones" in (refused(target) or "")
