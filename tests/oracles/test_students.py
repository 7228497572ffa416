"""DMP and PATE: what teachers see, what students learn, and the epsilon of noisy votes."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from privbench import Outputs
from privbench.ground.store.store import Store
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench.toolbox import noise
from privbench.toolbox.students import TEACHERS, only
from privbench.toolbox.undefended import posteriors
from privbench_plugins.defenses.dmp import DMP, softened, surest
from privbench_plugins.defenses.memguard import MemGuard
from privbench_plugins.defenses.pate import PATE, shards, spent_epsilon
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

    from privbench import Defense, Examples
    from privbench.measure.victims.stages import Draft

TAUGHT = [DMP(), PATE(teachers=5)]


def _draft(tmp_path: Path, defense: Defense) -> tuple[Builder, Draft]:
    builder, spec = Builder(Store(tmp_path), CPU), tiny_spec(TinyTarget(), (defense,))
    builder.victim(spec)
    return builder, builder.draft(spec)


@pytest.mark.parametrize("defense", TAUGHT, ids=lambda d: d.name)
def test_no_phase_of_the_student_sees_a_member(tmp_path: Path, defense: Defense) -> None:
    split = tiny_split()
    draft = Builder(Store(tmp_path), CPU).draft(tiny_spec(TinyTarget(), (defense,)))
    contrastive = tiny_spec(SimCLR(epochs=1, classifier_epochs=1), (defense,))
    for student in (draft, Builder(Store(tmp_path), CPU).draft(contrastive)):
        for phase in student.phases:
            rows = student.rows(phase)
            assert not torch.isin(rows.index, split.victim().members.index).any()
            assert torch.equal(rows.keys, split.reference.keys)
    members = torch.cat([inner.world.members.index for inner in draft.labels[0].inner])
    assert members.sort().values.tolist() == split.victim().members.index.sort().values.tolist()
    assert all(TEACHERS not in inner.world.parts for inner in draft.labels[0].inner)


def test_the_students_labels_are_the_teachers(tmp_path: Path) -> None:
    builder, draft = _draft(tmp_path, DMP(share=0.5, temperature=2.0))
    (inner,) = draft.labels[0].inner
    reference, given = tiny_split().reference, draft.world.members.y
    sharp = posteriors(builder.victim(inner).model, reference)
    p, entropy = softened(sharp, 2.0), torch.special.entr(sharp).sum(1)
    kept = given.sum(1) > 0
    assert int(kept.sum()) == 20  # half of the reference rows
    assert float(entropy[kept].max()) <= float(entropy[~kept].min())
    torch.testing.assert_close(given[kept].double(), p[kept], atol=1e-6, rtol=0)


def test_the_student_learns_at_the_teachers_temperature(tmp_path: Path) -> None:
    """At equal logits of both, its gradient is 0: at another temperature it would go on."""
    (phase,) = (
        Builder(Store(tmp_path), CPU).draft(tiny_spec(TinyTarget(), (DMP(temperature=4.0),))).phases
    )
    z = torch.randn(5, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
    batch: Any = SimpleNamespace(y=softened(z.detach().softmax(1), 4.0))
    clock: Any = None
    loss = phase.steps["train"].loss(Outputs(logits=z), batch, clock)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.abs().max() < 1e-7
    (plain,) = Builder(Store(tmp_path), CPU).draft(tiny_spec(TinyTarget(), (DMP(),))).phases
    (gradient,) = torch.autograd.grad(plain.steps["train"].loss(Outputs(logits=z), batch, clock), z)
    assert gradient.abs().max() > 1e-2


def test_rows_left_out_add_nothing_to_loss_and_gradient() -> None:
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    kept = torch.tensor([True, False, True, False])
    y = only(torch.full((4, 3), 1 / 3).double(), kept)
    (gradient,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    assert (gradient.abs().sum(1) > 0).tolist() == kept.tolist()
    assert surest(torch.eye(3).double(), 1.0).all()
    assert int(surest(torch.full((9, 2), 0.5).double(), 1e-3).sum()) == 1


@pytest.mark.slow
def test_distillation_hides_what_is_learnt_by_heart(tmp_path: Path) -> None:
    builder, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=60, lr=5e-3)
    split = tiny_split()
    gaps = []
    for defenses in ((), (DMP(),), (PATE(teachers=4, noise=0.1),)):
        p = builder.victim(tiny_spec(target, defenses)).log_posteriors(split.candidates.x).exp()
        own = p.gather(1, split.candidates.y[:, None]).squeeze(1)
        gaps.append(float(own[split.member].mean() - own[~split.member].mean()))
    assert gaps[0] > 0.7  # labels of these pictures are random: members are learnt by heart
    assert abs(gaps[1]) < gaps[0] / 2  # not none: the teacher tells of rows near its own
    assert abs(gaps[2]) < gaps[0] / 2


def test_winners_of_votes_without_noise_are_the_labels(tmp_path: Path) -> None:
    builder, draft = _draft(tmp_path, PATE(teachers=5, noise=1e-6, queries=30))
    reference, given = tiny_split().reference, draft.world.members.y
    inner = draft.labels[0].inner
    votes = torch.stack([
        posteriors(builder.victim(one).model, reference).argmax(1) for one in inner
    ])  # fmt: skip
    counts = F.one_hot(votes, 10).sum(0)
    asked = given.sum(1) > 0
    assert int(asked.sum()) == 30
    assert torch.equal(given[asked].sum(1), torch.ones(30))
    won = counts[asked].gather(1, given[asked].argmax(1, keepdim=True)).squeeze(1)
    assert torch.equal(won, counts[asked].amax(1))
    (claim,) = builder.victim(tiny_spec(TinyTarget(), (PATE(teachers=5, queries=30),))).facts[
        "claims"
    ]
    assert claim["epsilon"] == pytest.approx(8.0, abs=1e-6)
    assert claim["noise"] == pytest.approx(noise.analytic_sigma(math.sqrt(60), 8.0, 1e-5))
    assert (claim["adjacency"], claim["phase"]) == ("add/remove", "encoder+classifier")


def test_a_row_more_changes_one_teacher_only(tmp_path: Path) -> None:
    spec = tiny_spec(TinyTarget(), (PATE(teachers=6),))
    builder = Builder(Store(tmp_path), CPU)

    def teachers(members: Examples) -> list[frozenset[int]]:
        world = spec.world.replace(members=members)
        inner = builder.draft(replace(spec, world=world)).labels[0].inner
        return [frozenset(one.world.members.index.tolist()) for one in inner]

    members = spec.world.members
    whole = teachers(members)
    for left_out in (0, 17, 79):
        fewer = teachers(members.select(torch.arange(80) != left_out))
        changed = [one for one in whole if one not in fewer]
        assert len(changed) == 1
        assert int(members.index[left_out]) in changed[0]
    assert shards(torch.tensor([1 - 1e-9, 0.0]), 3).tolist() == [2, 0]  # 1 - 1e-9 is 1.0 here


@pytest.mark.parametrize(("scale", "queries"), [(8.5, 100), (40.0, 300), (20.0, 1)])
def test_epsilon_of_noisy_votes_against_renyi_and_opacus(scale: float, queries: int) -> None:
    exact = spent_epsilon(scale, queries, 1e-5)
    # the papers' bound: a divergence of order / scale² for each query, and its usual conversion
    orders = torch.linspace(1.001, 500, 200_000).double()
    renyi = float((queries * orders / scale**2 + math.log(1e5) / (orders - 1)).min())
    assert exact < renyi < 1.5 * exact + 0.1
    accountants = pytest.importorskip("opacus.accountants")
    books = accountants.create_accountant("prv")
    books.history = [(scale / math.sqrt(2), 1.0, queries)]  # noise in units of the sensitivity
    with warnings.catch_warnings(), np.errstate(divide="ignore"):  # of log(1 - q) at q = 1
        warnings.filterwarnings("ignore", "Optimal order is")
        assert books.get_epsilon(1e-5) == pytest.approx(exact, rel=0.02, abs=0.02)


def test_epsilon_grows_with_queries_and_falls_with_noise() -> None:
    assert spent_epsilon(10, 50, 1e-5) < spent_epsilon(10, 51, 1e-5) < spent_epsilon(9, 51, 1e-5)
    assert spent_epsilon(1e9, 1, 1e-5) == 0.0


@pytest.mark.parametrize("defense", TAUGHT, ids=lambda d: d.name)
def test_nothing_is_left_that_another_defense_could_hold_out(defense: Defense) -> None:
    split = tiny_split()

    def why(*others: Defense) -> str | None:
        cell = Cell(
            split.card, split.protocol, TinyTarget(), (defense, *others), Adversary(), AnyAttack()
        )
        return defense.incompatible(cell)

    assert why() is None
    assert "held out" in (why(MemGuard()) or "")
