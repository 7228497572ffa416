"""DP-SGD: clipping, noise and books against closed forms, and what it refuses."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from scipy import stats
from torch import nn

from privbench import Augmentation, BatchSpec, Optimizer, Outputs, backbone
from privbench.ground.errors import BadInputError
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Monitor, Stream
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyPairs, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench.toolbox.phases import Views
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

pytest.importorskip("opacus")

from privbench.toolbox.noise import gaussian
from privbench.toolbox.private_training import draws, least_noise, spent_epsilon
from privbench_plugins.defenses.dp_gcl import DPGCL
from privbench_plugins.defenses.dp_sgd import DPSGD
from privbench_plugins.defenses.logit_dp import LogitDP

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Batch, Clock, Model, Phase, TargetContext, World
    from privbench.measure.data.protocol import Protocol

HUGE = 1e9


def _training(tmp_path: Path, defense: DPSGD | None, epochs: int = 1, **phase: Any) -> Training:
    workshop = Builder(Store(tmp_path), CPU)
    making = workshop.draft(tiny_spec(TinyTarget(), (defense,) if defense else ()))
    (only,) = making.phases
    sgd = dict.fromkeys(only.optimizers, Optimizer("sgd", 0.5))
    only = replace(only, optimizers=sgd, epochs=epochs, **phase)
    return Training(making.model, only, making.rows(only), 3)


def _weights(training: Training) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in training.model.parameters()])


def test_without_clipping_and_noise_it_is_plain_descent(tmp_path: Path) -> None:
    private = _training(
        tmp_path, DPSGD(noise_multiplier=0.0, clip=HUGE, batch=80, accountant="rdp")
    )
    plain = _training(tmp_path, None, batch=BatchSpec(80, "poisson"))
    start = _weights(plain).clone()
    assert torch.equal(_weights(private), start)
    private.run()
    plain.run()
    # one step over all rows; the mean is over the expected batch, here all of them
    torch.testing.assert_close(_weights(private), _weights(plain), atol=1e-6, rtol=1e-5)
    assert not torch.equal(_weights(plain), start)


def test_gradients_of_convolutions_add_up_to_those_of_the_loss() -> None:
    """Of all layers: inputs with channels last, which conv layers make, are no exception."""
    from opacus.validators import ModuleValidator

    from privbench.toolbox.row_gradients import RowGradients

    net = ModuleValidator.fix(backbone("convnet", (1, 8, 8))).train()
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    hooks = RowGradients(net, loss_reduction="sum")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        net(x).square().sum().backward()
    assert len({p.dim() for p in net.parameters()}) > 1
    for p in net.parameters():
        torch.testing.assert_close(p.grad_sample.sum(0), p.grad, rtol=1e-4, atol=1e-5)
    hooks.cleanup()


def test_each_rows_gradient_is_clipped(tmp_path: Path) -> None:
    clip = 1e-3
    training = _training(
        tmp_path, DPSGD(noise_multiplier=0.0, clip=clip, batch=80, accountant="rdp")
    )
    start = _weights(training).clone()
    model, rows = training.model, training.rows
    per_row = []
    for i in range(len(rows)):
        model.requires_grad_(True)
        loss = nn.functional.cross_entropy(model.logits(model.encode(rows.x[[i]])), rows.y[[i]])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        flat = torch.cat([g.flatten() for g in grads])
        per_row.append(flat * min(1.0, clip / float(flat.norm())))
    model.requires_grad_(False)
    training.run()
    expected = start - 0.5 * torch.stack(per_row).sum(0) / 80
    torch.testing.assert_close(_weights(training), expected, atol=1e-7, rtol=0)
    assert float((_weights(training) - start).norm()) <= 0.5 * clip + 1e-9


def test_noise_has_its_standard_deviation(tmp_path: Path) -> None:
    clip, sigma = 1e-6, 3e4
    training = _training(
        tmp_path, DPSGD(noise_multiplier=sigma, clip=clip, batch=80, accountant="rdp")
    )
    start = _weights(training).clone()
    training.run()
    step = (_weights(training) - start) / -0.5
    law = stats.norm(0, sigma * clip / 80)
    assert stats.kstest(step.double().numpy(), law.cdf).pvalue > 1e-4


def test_an_empty_batch_still_takes_its_noisy_step(tmp_path: Path) -> None:
    training = _training(tmp_path, DPSGD(noise_multiplier=1.0, batch=1, accountant="rdp"), epochs=2)
    start = _weights(training).clone()
    facts = training.run()  # 160 steps of one expected row: a third of them are empty
    assert facts["updates"]["encoder"] == 160
    assert _weights(training).isfinite().all()
    assert not torch.equal(_weights(training), start)


def test_nothing_of_opacus_is_left_behind(tmp_path: Path) -> None:
    training = _training(tmp_path, DPSGD(accountant="rdp"))
    training.run()
    for parameter in training.model.parameters():
        assert not hasattr(parameter, "grad_sample")
    for module in training.model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert all("_module" not in name for name in training.model.state_dict())


def test_books_of_a_gaussian_known_exactly() -> None:
    # q = 1: a hundred steps at sigma 10 are one Gaussian at sigma 1
    exact = 4.377178
    assert spent_epsilon(10.0, 1e-5, ((1.0, 100),), "prv") == pytest.approx(exact, abs=0.02)
    assert spent_epsilon(10.0, 1e-5, ((1.0, 100),), "rdp") >= exact
    twice = spent_epsilon(10.0, 1e-5, ((1.0, 50), (1.0, 50)), "prv")
    assert twice == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("accountant", ["rdp", "prv", "gdp"])
def test_an_epsilon_that_no_noise_reaches_is_refused(accountant: str) -> None:
    with pytest.raises(BadInputError, match="give a larger one"):
        least_noise(1e-9, 1e-5, ((0.1, 10),), accountant)


def test_an_epsilon_that_promises_nothing_needs_no_grid() -> None:
    runs = ((0.64, 200),)
    for sigma in (0.05, 0.1):  # the PRV accountant alone does not end within a minute
        got = spent_epsilon(sigma, 1e-5, runs, "prv")
        assert got == spent_epsilon(sigma, 1e-5, runs, "rdp") > 500
    assert spent_epsilon(2.0, 1e-5, runs, "prv") < spent_epsilon(2.0, 1e-5, runs, "rdp")


def test_noise_follows_from_the_target_epsilon() -> None:
    runs = ((0.5, 30), (0.2, 10))
    sigma = least_noise(4.0, 1e-5, runs, "rdp")
    assert spent_epsilon(sigma, 1e-5, runs, "rdp") <= 4.0
    assert spent_epsilon(sigma / 1.02, 1e-5, runs, "rdp") > 4.0


def test_the_record_has_the_claim(tmp_path: Path) -> None:
    victim = Builder(Store(tmp_path), CPU).victim(
        tiny_spec(TinyTarget(), (DPSGD(accountant="rdp"),))
    )
    (claim,) = victim.facts["claims"]
    assert claim["epsilon"] <= 8.0
    assert claim["adjacency"] == "add/remove"
    assert claim["phase"] == "encoder+classifier"
    assert claim["sample_rate"] == [0.5]
    assert claim["steps"] == [6]
    noiseless = tiny_spec(TinyTarget(), (DPSGD(noise_multiplier=0.0),))
    assert Builder(Store(tmp_path), CPU).victim(noiseless).facts["claims"] == []


def _card(target: Any, *defenses: Any, **protocol: Any) -> Cell:
    split = tiny_split()
    cut: Protocol = replace(split.protocol, **protocol) if protocol else split.protocol
    return Cell(
        split.card,
        cut,
        target,
        defenses,
        Adversary(),
        AnyAttack(),
        (),
    )


def test_contrastive_losses_are_refused_unless_the_encoder_is_public() -> None:
    dp = DPSGD()
    assert "not a sum over examples" in (dp.incompatible(_card(SimCLR(), dp)) or "")
    assert dp.incompatible(_card(SimCLR(), dp, public=100, encoder=("public",))) is None
    assert dp.incompatible(_card(Supervised(), dp)) is None


def test_phases_whose_clipping_bounds_nobody_are_refused(tmp_path: Path) -> None:
    workshop = Builder(Store(tmp_path), CPU)
    making = workshop.draft(tiny_spec(TinyTarget()))
    (phase,) = making.phases
    ctx = workshop._context(tiny_spec(TinyTarget()), DPSGD())

    def refused(changed: Any) -> str:
        with pytest.raises(BadInputError) as error:
            DPSGD(noise_multiplier=1.0).on_phases([changed], making.model, making.world, ctx)
        return str(error.value)

    assert "not a sum over examples" in refused(replace(phase, per_example=False))
    step = phase.steps["train"]
    streamed = replace(step, streams={"reference": Stream(making.world.reference)})
    assert "further rows" in refused(replace(phase, steps={"train": streamed}))
    queued = replace(step, after=lambda *_: None)
    assert "keeps outputs" in refused(replace(phase, steps={"train": queued}))
    uneven = {**phase.optimizers, "classifier": Optimizer("sgd", 0.1)}
    assert "optimizers" in refused(replace(phase, optimizers=uneven))


@dataclass(frozen=True)
class _Viewed(TinyTarget):
    """Trains on two views of each row; its loss is still a mean over rows."""

    name: ClassVar[str] = "viewed"

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        (phase,) = super().phases(model, world, ctx)

        def loss(out: Outputs, batch: Batch, clock: Clock) -> torch.Tensor:
            del clock
            return nn.functional.cross_entropy(out.logits, batch.y.repeat(batch.views))

        step = replace(phase.steps["train"], loss=loss)
        views = Views(Augmentation(), ctx.card, 2)
        return [replace(phase, steps={"train": step}, prepare=views)]


def test_views_of_a_row_that_are_clipped_one_by_one_are_refused(tmp_path: Path) -> None:
    workshop = Builder(Store(tmp_path), CPU)
    workshop.victim(tiny_spec(_Viewed()))
    with pytest.raises(BadInputError, match="phase 'encoder' private: its loss reads several view"):
        workshop.victim(tiny_spec(_Viewed(), (DPSGD(noise_multiplier=1.0),)))


@dataclass(frozen=True)
class _Turns(TinyTarget):
    """Makes two views of each row in its forward pass, where no `prepare` is asked."""

    name: ClassVar[str] = "turns"

    def phases(self, model: Model, world: World, ctx: TargetContext) -> list[Phase]:
        (phase,) = super().phases(model, world, ctx)

        def forward(model: Model, batch: Batch) -> Outputs:
            both = model.logits(model.encode(torch.cat([batch.x, batch.x.flip(-1)])))
            return Outputs(logits=torch.stack(both.chunk(2)).mean(0))

        return [replace(phase, forward=forward)]


def test_views_that_the_model_makes_itself_are_refused(tmp_path: Path) -> None:
    """Each would be clipped alone, so that a row moved the sum by up to twice the clip."""
    workshop = Builder(Store(tmp_path), CPU)
    workshop.victim(tiny_spec(_Turns()))
    with pytest.raises(BadInputError, match="and clipping bounds a row only if it has one"):
        workshop.victim(tiny_spec(_Turns(), (DPSGD(noise_multiplier=1.0),)))


def test_a_phase_of_other_rows_must_not_read_members(tmp_path: Path) -> None:
    workshop = Builder(Store(tmp_path), CPU)
    making = workshop.draft(tiny_spec(TinyTarget()))
    (phase,) = making.phases
    world = making.world
    step = replace(phase.steps["train"], streams={"more": Stream(world.members)})
    monitored = Monitor({"watched": world.members.select(slice(0, 1))})
    public = replace(phase, rows="public")
    assert len(draws([public, phase], world, None)) == 1
    for read in (replace(public, steps={"train": step}), replace(public, monitor=monitored)):
        with pytest.raises(BadInputError, match="reads members beside them"):
            draws([read, phase], world, None)
    others = replace(public, monitor=Monitor({"watched": world.reference}))
    assert len(draws([others, phase], world, None)) == 1


def test_noise_is_drawn_in_double_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision torch has no normal number beyond 5.77 on a CPU."""
    drawn: list[torch.dtype] = []
    randn = torch.randn

    def watched(*size: Any, **given: Any) -> torch.Tensor:
        drawn.append(given["dtype"])
        return randn(*size, **given)

    monkeypatch.setattr(torch, "normal", None)  # nobody else draws noise
    for defense in (DPSGD(noise_multiplier=1.0), LogitDP(noise_multiplier=1.0, batch=8),
                    DPGCL(noise_multiplier=1.0, batch=8)):  # fmt: skip
        target = TinyTarget() if isinstance(defense, DPSGD) else TinyPairs()
        draft = Builder(Store(tmp_path), CPU).draft(tiny_spec(target, (defense,)))
        phase = replace(draft.phases[0], epochs=1)
        training = Training(draft.model, phase, draft.rows(phase), 3)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "randn", watched)
            training.run()
        assert set(drawn) == {torch.float64}, defense.name
        drawn.clear()
    like = torch.zeros(3, 5)
    assert gaussian(like, torch.Generator().manual_seed(0)).dtype == like.dtype


def test_batch_norm_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = Supervised(backbone="convnet", epochs=1)
    victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(target, (DPSGD(accountant="rdp"),)))
    plain = Builder(Store(tmp_path), CPU).victim(tiny_spec(target))
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    assert any(isinstance(module, norms) for module in plain.model.modules())
    assert not any(isinstance(module, norms) for module in victim.model.modules())
    assert "group norm" in victim.facts["notes"]["dp-sgd"]
    assert "group norm" in caplog.text
    assert victim.embeddings(tiny_split().pool.x[:3]).isfinite().all()


def test_less_noise_fits_better(tmp_path: Path) -> None:
    members = tiny_split().victim().members
    loss = {}
    for sigma in (0.0, 50.0):
        defense = DPSGD(noise_multiplier=sigma, clip=5.0, accountant="rdp")
        victim = Builder(Store(tmp_path), CPU).victim(tiny_spec(Supervised(epochs=15), (defense,)))
        loss[sigma] = float(nn.functional.nll_loss(victim.log_posteriors(members.x), members.y))
    assert loss[0.0] < math.log(10) < loss[50.0]
