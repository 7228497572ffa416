"""SELENA: who is withheld from what, and whose posteriors become a member's label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import BadInputError, Protocol
from privbench.ground.store.store import Store
from privbench.measure.data.examples import join
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.measure.victims.build import Builder
from privbench.measure.victims.spec import VictimSpec
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_spec
from privbench.toolbox.undefended import posteriors
from privbench_plugins.defenses.selena import Selena, out_mean, withheld
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from pathlib import Path

FAST = Selena(models=5, held_out=2)


@given(models=st.integers(2, 30), seed=st.integers(0, 99), data=st.data())
def test_each_row_is_withheld_from_exactly_so_many(
    models: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, models - 1))
    u = torch.rand(40, models, generator=torch.Generator().manual_seed(seed))
    out = withheld(u, count)
    assert torch.equal(out.sum(1), torch.full((40,), count))


def test_mean_share_of_members_per_model() -> None:
    u = torch.rand(4000, 25, generator=torch.Generator().manual_seed(1))
    share = (~withheld(u, 10)).float().mean(0)
    assert float(share.mean()) == pytest.approx(0.6)  # 1 - L/K
    assert float((share - 0.6).abs().max()) < 0.04  # and no model is special


def test_labels_are_means_of_models_that_did_not_see_the_row() -> None:
    p = torch.tensor([[[1.0, 0.0], [0.8, 0.2]], [[0.0, 1.0], [0.4, 0.6]], [[0.5, 0.5]] * 2])
    out = torch.tensor([[True, False, True], [False, True, True]])
    assert torch.allclose(out_mean(p.double(), out), torch.tensor([[0.75, 0.25], [0.45, 0.55]]))


def test_no_model_labels_a_row_that_it_saw(tmp_path: Path) -> None:
    builder, members = Builder(Store(tmp_path), CPU), tiny_split().victim().members
    spec = tiny_spec(TinyTarget(), (FAST,))
    builder.victim(spec)
    draft = builder.draft(spec)
    (stage,) = draft.labels
    saw = torch.stack([one.world.contains(members) for one in stage.inner], dim=1)
    assert torch.equal((~saw).sum(1), torch.full((80,), 2))
    p = torch.stack([posteriors(builder.victim(one).model, members) for one in stage.inner])
    soft = draft.world.members.y
    for row in range(80):
        out = [i for i in range(5) if not saw[row, i]]
        assert torch.allclose(soft[row].double(), p[out, row].mean(0), atol=1e-6)
    assert torch.equal(draft.world.members.keys, members.keys)
    assert len({one.world.members.digest() for one in stage.inner}) == 5


def test_equal_rows_are_withheld_together(tmp_path: Path) -> None:
    builder, members = Builder(Store(tmp_path), CPU), tiny_split().victim().members
    twice = join([members, members.renumbered(members.index + 10_000)])
    spec = tiny_spec(TinyTarget(), (FAST,))
    draft = builder.draft(replace(spec, world=spec.world.replace(members=twice)))
    (stage,) = draft.labels
    saw = torch.stack([one.world.contains(twice) for one in stage.inner], dim=1)
    assert torch.equal(saw[:80], saw[80:])


def test_the_victim_learns_the_soft_labels(tmp_path: Path) -> None:
    shop, target = Builder(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=60, lr=5e-3)
    split = tiny_split()
    plain, distilled = (shop.victim(tiny_spec(target, d)) for d in ((), (FAST,)))
    gaps = []
    for served in (plain, distilled):
        p = served.log_posteriors(split.candidates.x).exp()
        own = p.gather(1, split.candidates.y[:, None]).squeeze(1)
        gaps.append(float(own[split.member].mean() - own[~split.member].mean()))
    assert gaps[0] > 0.7  # labels of these pictures are random: members are learnt by heart
    assert abs(gaps[1]) < 0.1
    assert distilled.facts["notes"]["trainings"] == 6


def test_sub_models_are_taken_from_the_store(tmp_path: Path) -> None:
    shop = Builder(Store(tmp_path), CPU)
    first = shop.victim(tiny_spec(TinyTarget(), (FAST,)))
    assert shop.trained_phases == 6
    again = shop.victim(tiny_spec(TinyTarget(), (FAST,)))
    assert shop.trained_phases == 6
    # What they took to train is part of what the victim cost, whenever that was.
    assert first.facts["seconds"] == again.facts["seconds"] > first.facts["phases"][-1]["seconds"]


def test_keys_are_known_before_sub_models_are_trained(tmp_path: Path) -> None:
    builder, spec = Builder(Store(tmp_path), CPU), tiny_spec(TinyTarget(), (FAST,))
    planned = builder.planned(spec)
    assert builder.trained_phases == 0
    assert list(planned.values()) == [False] * 7  # five sub-models, their labels, the victim
    before = builder.draft(spec).key
    victim = builder.victim(spec)
    assert builder.trained_phases == 6
    assert builder.planned(spec) == dict.fromkeys(planned, True)
    assert victim.key == before == builder.draft(spec).key


def test_a_classifier_on_a_public_encoder(tmp_path: Path) -> None:
    from privbench.measure.data.split import cut

    data = TinyImages()
    protocol = Protocol(
        members=80, nonmembers=80, pool=300, public=100, encoder=("public",), classifier="members"
    )
    split = cut(data.load(None), data.card(None), protocol, 0)
    shop, target = Builder(Store(tmp_path), CPU), SimCLR(epochs=2, classifier_epochs=3)
    job = VictimSpec(split.card, protocol, split.victim(), target, (FAST,), ())
    assert list(shop.planned(job).values()) == [False] * (1 + 5 + 1 + 1)
    shop.victim(replace(job, defenses=()))
    assert sorted(shop.planned(job).values()) == [False] * 7 + [True]
    served = shop.victim(job)
    assert shop.trained_phases == 1 + 1 + 6  # one public encoder for all, a classifier each
    assert len(served.facts["spent"]) == 1 + 6 + 1  # the encoder once, and the labels
    assert served.facts["seconds"] == pytest.approx(sum(served.facts["spent"].values()))
    assert served.log_posteriors(split.pool.x[:4]).isfinite().all()
    assert FAST.incompatible(_cell(protocol)) is None


def _cell(protocol: Protocol) -> Cell:
    target = SimCLR()
    return Cell(
        TinyImages().card(None), protocol, target, (FAST,), Adversary(), AnyAttack(), (),
    )  # fmt: skip


def test_a_contrastive_encoder_would_see_members_undistilled() -> None:
    assert "without labels" in (FAST.incompatible(_cell(TinyImages.protocols["default"])) or "")


def test_every_row_must_be_left_to_some_model() -> None:
    with pytest.raises(BadInputError, match="must be below its models"):
        Selena(models=4, held_out=4)
