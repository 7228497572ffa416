"""Logit-DP: gradient, clipping, sensitivity and noise against closed forms, and its refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from privbench import Batch, Cell
from privbench.ground.errors import BadInputError
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.training.loop import Training
from privbench.measure.training.phase import Optimizer, Step
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, AnyAttack, TinyContrastive, TinyPairs
from privbench.testing.fixtures import tiny_spec, tiny_split
from privbench_plugins.targets.byol import BYOL
from privbench_plugins.targets.dino import DINO
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR, nt_xent
from privbench_plugins.targets.supervised import Supervised

pytest.importorskip("opacus")

from privbench_plugins.defenses import logit_dp
from privbench_plugins.defenses.logit_dp import LogitDP, derivatives, sensitivity, temperature

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from privbench import Target

HUGE = 1e9
MLP = SimCLR(temperature=0.5, hidden=16, projection=8)
CONVNET = SimCLR(temperature=1.0, backbone="convnet", projection=8)


def _training(tmp_path: Path, defense: LogitDP, target: Target = MLP, **phase: Any) -> Training:
    """The encoder's private phase, ready to run."""
    draft = Builder(Store(tmp_path), CPU).draft(tiny_spec(target, (defense,)))
    first = replace(draft.phases[0], **phase)
    return Training(draft.model, first, draft.rows(first), seed=0)


def _pairs(training: Training) -> Any:
    """What makes the phase private."""
    return training.phase.wrap.__self__  # type: ignore[union-attr]


def _flat(model: nn.Module, loss: Tensor) -> Tensor:
    made = torch.autograd.grad(loss, _trained(model), retain_graph=True)
    return torch.cat([one.flatten() for one in made])


def _trained(model: Any) -> list[nn.Parameter]:
    return [p for part in ("encoder", "head") for p in model[part].parameters()]


def _views(rows: int, seed: int = 0) -> Batch:
    x = torch.rand(2 * rows, 1, 8, 8, generator=torch.Generator().manual_seed(seed)).double()
    at = torch.arange(rows)
    return Batch(x, torch.zeros_like(at), {}, at, views=2)


# ---- the gradient --------------------------------------------------------------------------------


def test_derivatives_of_two_opposite_rows_by_hand() -> None:
    """Views of a row agree, rows are opposite: the partner has e / (e + 2/e) of each softmax."""
    u = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    p = math.e / (math.e + 2 / math.e)
    other = (1 - p) / 2  # each of the two other views
    a, b = 2 * (p - 1), 2 * other
    wanted = [[0, b, a, b], [b, 0, b, a], [a, b, 0, b], [b, a, b, 0]]
    expected = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(derivatives(u @ u.T, 1.0), expected)
    warm = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    p = math.e**2 / (math.e**2 + 2)
    assert derivatives(warm @ warm.T, 0.5)[0, 2].item() == pytest.approx(2 * 2 * (p - 1))


@pytest.mark.parametrize("target", [MLP, CONVNET], ids=["mlp", "convnet"])
def test_without_clipping_it_is_the_gradient_of_the_loss(tmp_path: Path, target: SimCLR) -> None:
    training = _training(tmp_path, LogitDP(noise_multiplier=0.0, clip=HUGE, batch=10), target)
    model = training.model.double()
    batch = _views(5)
    with training.phase.wrap(training):  # type: ignore[misc]
        made = _flat(model, _pairs(training).recombined(model, batch))
    z = model["head"](model.encode(batch.x))
    scores = F.normalize(z, dim=1) @ F.normalize(z, dim=1).T / target.temperature
    scores = scores.masked_fill(torch.eye(10, dtype=torch.bool), -torch.inf)
    loss = F.cross_entropy(scores, torch.arange(10).roll(5))
    assert loss.item() == pytest.approx(nt_xent(z, target.temperature).item(), rel=1e-6)
    wanted = _flat(model, loss) * 5 / 10  # a mean over the views of 10 expected rows, and 5 came
    torch.testing.assert_close(made, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("target", [MLP, CONVNET], ids=["mlp", "convnet"])
def test_every_pair_is_clipped_and_weighed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: SimCLR
) -> None:
    monkeypatch.setattr(logit_dp, "_PAIRS", 4)  # several parts
    clip = 0.1
    training = _training(tmp_path, LogitDP(noise_multiplier=0.0, clip=clip, batch=3), target)
    model, batch = training.model.double(), _views(3)
    with training.phase.wrap(training):  # type: ignore[misc]
        made = _flat(model, _pairs(training).recombined(model, batch))
        first, second = torch.triu_indices(6, 6, 1)
        norms = _pairs(training).norms(model, batch.x, first, second)
    unit = F.normalize(model["head"](model.encode(batch.x)), dim=1)
    weights = derivatives(unit @ unit.T, target.temperature).detach()
    wanted, lengths = torch.zeros_like(made), []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        gradient = _flat(model, unit[a] @ unit[b])
        lengths.append(float(gradient.norm()))
        wanted += weights[a, b] * gradient * min(1.0, clip / lengths[-1])
    assert norms.tolist() == pytest.approx(lengths, rel=1e-9)
    assert min(lengths) < max(lengths)
    assert max(lengths) > clip
    torch.testing.assert_close(made, wanted / (2 * 3), rtol=1e-6, atol=1e-9)


# ---- its sensitivity -----------------------------------------------------------------------------


def _unit(*shape: int, seed: int) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(drawn, dim=1)


def _moved(u: Tensor, t: float) -> Tensor:
    """How far the recombined sum moves without the last row, if all gradients are aligned.

    The pairs' gradients are then ± clip in one direction, with the signs of the changed weights.
    """
    n = len(u) // 2 - 1
    old = torch.tensor([*range(n), *range(n + 1, 2 * n + 1)])
    change = derivatives(u @ u.T, 1 / t).index_put(
        (old[:, None], old), -derivatives(u[old] @ u[old].T, 1 / t), accumulate=True
    )
    return change.triu(1).abs().sum()


@pytest.mark.parametrize("t", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_no_batch_that_a_search_finds_moves_more(n: int, t: float) -> None:
    worst = 0.0
    for seed in range(30):
        u = _unit(2 * n + 2, 1 + seed % 8, seed=seed)
        worst = max(worst, float(_moved(u, t)))
    z = _unit(2 * n + 2, 2 * n + 4, seed=n).requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.05)
    for _ in range(250):
        moved = _moved(F.normalize(z, dim=1), t)
        worst = max(worst, moved.item())
        optimizer.zero_grad()
        (-moved).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    bound = max(sensitivity(1.0, 1 / t, rows) for rows in range(n + 1))
    assert worst <= bound
    # 7.15, 8.00, 8.28, 8.51 of 7.41, 9.39, 10.29, 10.29 at t = 1
    assert worst >= {1.0: 0.77, 2.0: 0.45, 10.0: 0.8}[t] * bound


def test_the_share_that_one_more_view_can_take() -> None:
    """The lemma: e^(t/4) at most, and nearly reached by views at right angles around x."""
    for t in (0.5, 1.0, 3.0):
        for seed in range(200):
            a, x = _unit(1 + seed % 40, 1 + seed % 7, seed=seed), _unit(1, 1 + seed % 7, seed=-seed)
            share = ((t * a @ x[0]).exp() / (t * a @ a.T).exp().sum(1)).sum()
            assert share <= math.exp(t / 4)
    around = torch.eye(501, dtype=torch.float64)
    x, a = around[0], around[0] / 2 + math.sqrt(3 / 4) * around[1:]
    share = ((a @ x).exp() / (a @ a.T).exp().sum(1)).sum()
    assert 0.99 * math.exp(1 / 4) < share <= math.exp(1 / 4)


def test_sensitivity_by_hand() -> None:
    e = math.e
    one = 4 * (1 - 1 / (1 + 2 * e**2))
    most, least = 2 * e**0.25, 1 / (1 + e**2)
    assert sensitivity(0.3, 1.0, 1) == pytest.approx(
        0.3 * (one + 2 * 2 * most / (most + 2 * least))
    )
    assert sensitivity(0.3, 1.0, 0) == 0
    many = [sensitivity(1.0, 1.0, n) for n in (1, 4, 1000, 100_000)]
    assert many == sorted(many)
    assert sensitivity(1.0, 0.001, 100) == pytest.approx(1000 * (4 + 2 * 200))  # every share


@pytest.mark.parametrize("target", [MLP, CONVNET], ids=["mlp", "convnet"])
def test_a_row_moves_the_sum_of_a_network_by_the_sensitivity_at_most(
    tmp_path: Path, target: SimCLR
) -> None:
    clip, rows = 1e-3, 4
    training = _training(tmp_path, LogitDP(noise_multiplier=0.0, clip=clip, batch=2), target)
    model, bound = training.model.double(), sensitivity(clip, target.temperature, rows)
    moved = []
    with training.phase.wrap(training):  # type: ignore[misc]
        for seed in range(8):
            whole = _views(rows + 1, seed)
            kept = torch.arange(2 * rows + 2) % (rows + 1) < rows
            fewer = replace(_views(rows), x=whole.x[kept])
            a, b = (_flat(model, _pairs(training).recombined(model, v)) for v in (whole, fewer))
            moved.append(4 * float((a - b).norm()) / bound)
    assert max(moved) <= 1
    assert max(moved) > 0.02  # views of noise: their gradients point anywhere


# ---- noise, steps and books ----------------------------------------------------------------------


def test_noise_has_its_standard_deviation(tmp_path: Path) -> None:
    sigma, clip = 1e4, 1e-9
    training = _training(
        tmp_path, LogitDP(noise_multiplier=sigma, clip=clip, batch=16, accountant="rdp"),
        epochs=1, optimizers=dict.fromkeys(("encoder", "head"), Optimizer("sgd", 1.0)),
    )  # fmt: skip
    start = _weights(training)
    training.run()
    moved = (start - _weights(training)).double().numpy()
    # five steps; without noise each moves by 4e-9 at most
    law = stats.norm(0, math.sqrt(5) * sigma * sensitivity(clip, 0.5, 80) / (2 * 16))
    assert stats.kstest(moved, law.cdf).pvalue > 1e-4


def _weights(training: Training) -> Tensor:
    return torch.cat([p.detach().flatten() for p in _trained(training.model)]).clone()


def test_an_empty_batch_still_takes_its_noisy_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = _training(tmp_path, LogitDP(noise_multiplier=1.0, accountant="rdp"), epochs=1)
    steps = training.steps
    nothing = torch.empty(0, dtype=torch.long)
    monkeypatch.setattr(Training, "_batches", lambda _: ((i, nothing) for i in range(steps)))
    start = _weights(training)
    assert training.run()["updates"] == {"encoder": steps, "head": steps}
    assert not (start == _weights(training)).all()


def test_dropout_and_other_numbers_of_views_are_refused(tmp_path: Path) -> None:
    training = _training(tmp_path, LogitDP(noise_multiplier=0.0))
    wrap: Any = training.phase.wrap
    with wrap(training), pytest.raises(BadInputError, match="not 3: use a target"):
        _pairs(training).recombined(training.model, replace(_views(3), views=3))
    head: Any = training.model["head"]
    head.append(nn.Dropout(0.1))
    with pytest.raises(BadInputError, match="dropout makes them differ"), wrap(training):
        pass


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    training = _training(tmp_path, LogitDP(accountant="rdp"), epochs=1)
    training.run()
    for parameter in training.model.parameters():
        assert getattr(parameter, "grad_sample", None) is None
    for module in training.model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks


def test_the_record_has_the_claim_of_both_phases(tmp_path: Path) -> None:
    builder = Builder(Store(tmp_path), CPU)
    defense = LogitDP(accountant="rdp", batch=20, clip=0.25, row_clip=0.5)
    victim = builder.victim(tiny_spec(TinyPairs(), (defense,)))
    (claim,) = victim.facts["claims"]
    assert claim["epsilon"] <= 8.0
    assert claim["adjacency"] == "add/remove"
    assert claim["phase"] == "encoder+classifier"
    assert claim["sample_rate"] == [0.25, 0.25]
    assert claim["steps"] == [12, 12]
    assert claim["sensitivity"] == [sensitivity(0.25, 1.0, 80), 0.5]
    noiseless = tiny_spec(TinyPairs(), (LogitDP(noise_multiplier=0.0),))
    assert builder.victim(noiseless).facts["claims"] == []


@pytest.mark.parametrize(("heat", "noted"), [(0.1, True), (0.5, False)])
def test_a_low_temperature_is_noted(tmp_path: Path, heat: float, noted: bool) -> None:
    target = TinyPairs(temperature=heat)
    victim = Builder(Store(tmp_path), CPU).victim(
        tiny_spec(target, (LogitDP(accountant="rdp", batch=20),))
    )
    told = victim.facts["notes"].get("logit-dp", "")
    times = sensitivity(0.1, heat, 80) / sensitivity(0.1, 1.0, 80)
    assert (f" {times:,.0f} times as far as at temperature 1" in told) is noted


def test_batch_norm_is_replaced(tmp_path: Path) -> None:
    model = _training(tmp_path, LogitDP(noise_multiplier=0.0), CONVNET).model
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


# ---- what it refuses -----------------------------------------------------------------------------


def _refused(target: Any) -> str | None:
    split = tiny_split()
    defense = LogitDP()
    cell = Cell(split.card, split.protocol, target, (defense,), Adversary(), AnyAttack(), ())
    return defense.incompatible(cell)


def test_other_targets_are_refused() -> None:
    assert _refused(SimCLR()) is None
    assert _refused(Supervised()) == "logit-dp is for contrastive losses: use dp-sgd for supervised"
    for target in (MoCo(), BYOL(), DINO(), TinyContrastive()):
        assert f"the loss of {target.name} is another one" in (_refused(target) or "")


@pytest.mark.parametrize("heat", [0.02, 0.1, 0.5, 1.0, 3.0])
def test_the_temperature_is_that_of_the_loss(tmp_path: Path, heat: float) -> None:
    phase = Builder(Store(tmp_path), CPU).draft(tiny_spec(SimCLR(temperature=heat))).phases[0]
    assert temperature(phase) == pytest.approx(heat, rel=1e-4)


def test_phases_with_another_loss_are_refused(tmp_path: Path) -> None:
    phase = Builder(Store(tmp_path), CPU).draft(tiny_spec(MLP)).phases[0]
    (step,) = phase.steps.values()

    def refused(changed: Step, **fields: Any) -> str:
        with pytest.raises(BadInputError) as error:
            temperature(replace(phase, steps={"train": changed}, **fields))
        return str(error.value)

    other = "its loss is not NT-Xent over two views of each row of a batch"
    assert other in refused(replace(step, loss=lambda out, *_: 2 * nt_xent(out.z, 0.5)))
    assert other in refused(replace(step, loss=lambda out, *_: out.z.square().mean()))
    assert other in refused(replace(step, loss=lambda out, *_: out.h.mean()))
    assert other in refused(replace(step, before=lambda *_: None))
    assert other in refused(step, reads_labels=True)
    assert "keeps outputs" in refused(replace(step, after=lambda *_: None))
    assert "another defense" in refused(step, wrap=lambda _: None)
