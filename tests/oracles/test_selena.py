"""SELENA: who is withheld from what, and whose posteriors become a member's label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import BadInputError, Model, Protocol, World
from privbench.data.examples import join
from privbench.methods.adversary import Adversary
from privbench.methods.cell import Cell
from privbench.store.store import Store
from privbench.testing import CPU, TinyImages, TinyTarget, tiny_split
from privbench.testing.fixtures import _Anything, _job
from privbench.victims.making import Job
from privbench.victims.workshop import Workshop
from privbench_plugins._shared.undefended import posteriors
from privbench_plugins.defenses.selena import Selena, out_mean, withheld
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Sequence
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


class _Watched(Workshop):
    """Keeps the worlds that sub-models were trained in, and the sub-models."""

    def _defense_context(  # type: ignore[override]
        self, job: Job, defense: object, *, dry: bool = False
    ) -> object:
        ctx = super()._defense_context(job, defense, dry=dry)  # type: ignore[arg-type]
        plain = ctx.fit

        def fit(worlds: Sequence[World]) -> list[Model]:
            self.worlds = list(worlds)
            self.models = plain(worlds)
            return self.models

        ctx.fit = fit  # type: ignore[method-assign]
        return ctx


def test_no_model_labels_a_row_that_it_saw(tmp_path: Path) -> None:
    shop, members = _Watched(Store(tmp_path), CPU), tiny_split().victim().members
    making = shop._begin(_job(TinyTarget(), (FAST,)))
    saw = torch.stack([world.contains(members) for world in shop.worlds], dim=1)
    assert torch.equal((~saw).sum(1), torch.full((80,), 2))
    p = torch.stack([posteriors(model, members) for model in shop.models])
    soft = making.world.members.y
    for row in range(80):
        out = [i for i in range(5) if not saw[row, i]]
        assert torch.allclose(soft[row].double(), p[out, row].mean(0), atol=1e-6)
    assert torch.equal(making.world.members.keys, members.keys)
    assert len({world.members.digest() for world in shop.worlds}) == 5


def test_equal_rows_are_withheld_together(tmp_path: Path) -> None:
    shop, split = _Watched(Store(tmp_path), CPU), tiny_split()
    members = split.victim().members
    twice = join([members, members.renumbered(members.index + 10_000)])
    job = _job(TinyTarget(), (FAST,))
    shop._begin(replace(job, world=job.world.replace(members=twice)))
    saw = torch.stack([world.contains(twice) for world in shop.worlds], dim=1)
    assert torch.equal(saw[:80], saw[80:])


def test_the_victim_learns_the_soft_labels(tmp_path: Path) -> None:
    shop, target = Workshop(Store(tmp_path), CPU), Supervised(backbone="mlp", epochs=60, lr=5e-3)
    split = tiny_split()
    plain, distilled = (shop.victim(_job(target, d)) for d in ((), (FAST,)))
    gaps = []
    for served in (plain, distilled):
        p = served.log_posteriors(split.candidates.x).exp()
        own = p.gather(1, split.candidates.y[:, None]).squeeze(1)
        gaps.append(float(own[split.member].mean() - own[~split.member].mean()))
    assert gaps[0] > 0.7  # labels of these pictures are random: members are learnt by heart
    assert abs(gaps[1]) < 0.1
    assert distilled.facts["notes"]["trainings"] == 6


def test_sub_models_are_taken_from_the_store(tmp_path: Path) -> None:
    shop = Workshop(Store(tmp_path), CPU)
    first = shop.victim(_job(TinyTarget(), (FAST,)))
    assert shop.trained_phases == 6
    again = shop.victim(_job(TinyTarget(), (FAST,)))
    assert shop.trained_phases == 6
    # What they took to train is part of what the victim cost, whenever that was.
    assert first.facts["seconds"] == again.facts["seconds"] > first.facts["phases"][-1]["seconds"]


def test_a_dry_run_trains_no_sub_model(tmp_path: Path) -> None:
    shop, job = Workshop(Store(tmp_path), CPU), _job(TinyTarget(), (FAST,))
    planned = shop.phases(job)
    assert shop.trained_phases == 0
    assert list(planned.values()) == [False] * 6  # five sub-models and a stand-in for the victim's
    shop.phases(_job(TinyTarget()))
    shop.victim(job)
    held = shop.phases(job)
    assert shop.trained_phases == 6
    assert list(held.values()) == [True]  # the victim's own: what follows from sub-models is known


def test_a_classifier_on_a_public_encoder(tmp_path: Path) -> None:
    from privbench.data.split import cut

    data = TinyImages()
    protocol = Protocol(
        members=80, nonmembers=80, pool=300, public=100, encoder=("public",), classifier="members"
    )
    split = cut(data.load(None), data.card(None), protocol, 0)
    shop, target = Workshop(Store(tmp_path), CPU), SimCLR(epochs=2, classifier_epochs=3)
    job = Job(split.card, protocol, split.victim(), target, (FAST,), ())
    assert list(shop.phases(job).values()) == [False] * (1 + 6)
    shop.victim(replace(job, defenses=()))
    assert sorted(shop.phases(job).values()) == [False] * 6 + [True]
    served = shop.victim(job)
    assert shop.trained_phases == 1 + 1 + 6  # one public encoder for all, a classifier each
    assert len(served.facts["spent"]) == 1 + 6  # and it counts once among what was spent
    assert served.facts["seconds"] == pytest.approx(sum(served.facts["spent"].values()))
    assert served.log_posteriors(split.pool.x[:4]).isfinite().all()
    assert FAST.incompatible(_cell(protocol)) is None


def _cell(protocol: Protocol) -> Cell:
    target = SimCLR()
    return Cell(
        TinyImages().card(None), protocol, target, (FAST,), Adversary(), _Anything(), (),
    )  # fmt: skip


def test_a_contrastive_encoder_would_see_members_undistilled() -> None:
    assert "without labels" in (FAST.incompatible(_cell(TinyImages.protocols["default"])) or "")


def test_every_row_must_be_left_to_some_model() -> None:
    with pytest.raises(BadInputError, match="must be below its models"):
        Selena(models=4, held_out=4)
