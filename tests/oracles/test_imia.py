"""IMIA: its pieces by hand, its imitations, and an overfitted victim of the same architecture."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from privbench import Batch, BatchSpec, MembershipQuestion, Optimizer, Outputs, Phase, Step
from privbench.measure.games.catalog import GAMES
from privbench.measure.games.metrics import auc
from privbench.measure.methods.access import Access
from privbench.measure.training.loop import Training
from privbench.measure.victims.served import Victim
from privbench.testing import arena, auc_band, memoriser, tiny_split
from privbench.toolbox.likelihood import hinge
from privbench.toolbox.undefended import log_posteriors, posteriors
from privbench_plugins.attacks import imia
from privbench_plugins.attacks.imia import (
    IMIA,
    best_fitted,
    by_class,
    imitation_loss,
    nearer,
)

if TYPE_CHECKING:
    from privbench import AttackContext, Clock, Membership, Model

QUICK = IMIA(models=3, epochs=20, warm_up=10, in_updates=200, lr=3e-3)


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---- pieces --------------------------------------------------------------------------------------


def test_imitation_loss_by_hand() -> None:
    log_p = double([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).log()
    log_q = double([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]).log()
    square = (log_q - log_p).square()
    y = torch.tensor([0, 1])
    plain = imitation_loss(log_q, log_p, y, 1.0)
    torch.testing.assert_close(plain, square.mean())
    weight = double([[3, 3, 1], [1, 3, 3]])  # the class and the victim's strongest other
    torch.testing.assert_close(
        imitation_loss(log_q, log_p, y, 3.0), ((weight * square).sum(1) / 7).mean()
    )
    assert imitation_loss(log_p, log_p, y, 3.0) == 0
    zero = double([[0.0, -torch.inf, -torch.inf]])  # a release that keeps one class
    assert imitation_loss(log_q[:1], zero, y[:1], 1.0).isfinite()


def test_score_is_the_log_ratio_of_gaussians_of_variance_one_half() -> None:
    signal, member, other = (5 * torch.randn(3, 50, dtype=torch.float64)).unbind()
    member = other + (member - other).abs()
    ratio = (signal - other).square() - (signal - member).square()
    torch.testing.assert_close(nearer(signal, member, other), ratio)
    assert (nearer(signal, other - 1, other) == 0).all()


def test_pivots_are_the_best_fitted_half_of_each_class() -> None:
    signal = torch.tensor([0.0, 5.0, 1.0, 4.0, 9.0, 8.0, 7.0])
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    assert best_fitted(signal, y, 0.5).tolist() == [1, 3, 4]
    assert best_fitted(signal, y, 1.0).tolist() == list(range(7))


def test_a_class_without_pivots_takes_all() -> None:
    signals, classes = double([[1.0, 2.0, 6.0], [1.0, 4.0, 8.0]]), torch.tensor([0, 0, 2])
    assert by_class(signals, classes, torch.tensor([2, 0, 1, -1])).tolist() == [7.0, 1.5, 3.0, 3.0]


def test_posteriors_of_a_model_and_their_logs_agree() -> None:
    model, rows = memoriser(tiny_split().victim()).model, tiny_split().test
    torch.testing.assert_close(log_posteriors(model, rows).exp(), posteriors(model, rows))


# ---- imitations ----------------------------------------------------------------------------------


def cross_entropy(out: Outputs, batch: Batch, clock: Clock) -> Tensor:
    del clock
    return F.cross_entropy(out.logits, batch.y)


@cache
def overfitted(*, null: bool = False) -> Victim:
    """A network of the kit, trained until it knows its members by heart."""
    split = tiny_split()
    world = split.null() if null else split.victim()
    _, ctx = arena(QUICK, memoriser(split.null()))
    model = ctx.untrained("victim")
    phase = Phase(
        name="victim", rows="members",
        forward=lambda model, batch: Outputs(logits=model.logits(model.encode(batch.x))),
        steps={"train": Step(cross_entropy, trains=("encoder", "classifier"))}, epochs=200,
        batch=BatchSpec(80), optimizers=dict.fromkeys(
            ("encoder", "classifier"), Optimizer("adam", 1e-2)
        ),
    )  # fmt: skip
    Training(model, phase, world.members, 0).run()
    return Victim(split.card, model, key=f"overfitted {null}", grants=Access.POSTERIORS)


def play(attack: IMIA, served: Any, examples: Any = None) -> tuple[Membership, AttackContext]:
    question, _ = GAMES["membership"].pose(tiny_split(), served, max_rows=None, sensitive=())
    if examples is not None:
        question = MembershipQuestion(examples, question.phase)
    oracle, ctx = arena(attack, served)
    answer = attack.answer(oracle, question, ctx)
    assert oracle.queries == len(question.examples)
    assert ctx.auxiliary_oracle.queries == len(ctx.auxiliary)
    return answer, ctx


def test_an_out_model_imitates_the_victim_and_an_in_model_fits_its_pivots() -> None:
    split = tiny_split()
    _, ctx = arena(QUICK, memoriser(split.victim()))
    rows, pivots = split.pool.select(slice(0, 100)), split.pool.select(slice(100, 150))
    taught = ctx.auxiliary_oracle.log_posteriors(rows)
    longer = replace(QUICK, epochs=110, in_updates=400)
    out, within = longer._imitate(ctx, 0, rows, taught, pivots)
    with mock.patch.object(imia, "imitation_loss", return_value=0.0):
        plain, _ = longer._imitate(ctx, 0, rows, taught, pivots)

    def off(model: Model) -> float:
        return float((log_posteriors(model, rows) - taught).square().mean())

    def right(model: Model) -> float:
        guess = log_posteriors(model, pivots).argmax(1)
        return float((guess == pivots.y).double().mean())

    assert off(out) < 0.5 * off(plain)
    assert right(within) > 0.8
    assert right(out) < 0.4


def test_each_row_trains_half_of_the_models() -> None:
    seen: list[Tensor] = []

    class Watched(IMIA):
        def _imitate(self, ctx: Any, i: int, half: Any, victim: Any, pivots: Any) -> Any:
            del pivots
            seen.append(half.index)
            model = ctx.untrained(i)
            assert len(half) == len(victim)
            return model, model

    play(Watched(models=4), memoriser(tiny_split().null()))
    rows, count = torch.cat(seen).unique(return_counts=True)  # type: ignore[no-untyped-call]
    assert len(rows) == len(tiny_split().pool)
    assert set(count.tolist()) == {2}


def test_initial_weights_depend_on_the_purpose_only() -> None:
    _, ctx = arena(QUICK, memoriser(tiny_split().null()))
    first, again, other = (
        ctx.untrained(name)["classifier"].state_dict()["weight"] for name in ("a", "a", "b")
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.slow
def test_planted_and_null_victim() -> None:
    split = tiny_split()
    answer, _ = play(QUICK, overfitted())
    assert auc(answer.scores.numpy(), split.member.numpy()).value > 0.9
    assert answer.decisions is not None
    assert (answer.decisions == split.member).double().mean() > 0.8
    null, _ = play(QUICK, overfitted(null=True))
    assert auc(null.scores.numpy(), split.member.numpy()).value == pytest.approx(
        0.5, abs=auc_band(80, 80)
    )


def test_rows_without_a_label_get_a_neutral_score() -> None:
    split = tiny_split()
    blank = torch.arange(len(split.candidates)) % 3 == 0
    some = split.candidates.with_y(split.candidates.y.masked_fill(blank, -1))
    answer, _ = play(QUICK, overfitted(), some)
    assert (answer.scores[blank] == 0).all()
    assert answer.decisions is not None
    assert not answer.decisions[blank].any()
    assert answer.scores.isfinite().all()


def test_a_nonmembers_signal_is_the_median_of_the_out_models() -> None:
    """Of four models one is very sure; the mean of their signals would follow it."""
    split = tiny_split()
    sure = [0.0, 0.0, 0.0, 50.0]

    class Four(IMIA):
        def _imitate(self, ctx: Any, i: int, half: Any, victim: Any, pivots: Any) -> Any:
            del half, victim, pivots
            model = ctx.untrained("one")
            with torch.no_grad():
                layer = model["classifier"]
                layer.weight.zero_()
                layer.bias.zero_()
                layer.bias[0] = sure[i]
            return model, ctx.untrained("one")

    asked = split.candidates.without_attributes()
    zeros = asked.with_y(torch.zeros_like(asked.y))
    answer, _ = play(Four(models=4), memoriser(split.null()), zeros)
    chance = float(hinge(torch.full((1, 10), 0.1).double().log(), torch.tensor([0])))
    assert answer.notes["mean signal of out models"] == pytest.approx(chance, abs=1e-6)
