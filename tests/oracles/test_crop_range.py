"""The crop range: which views training draws, and where the defense says no."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import Augmentation, Protocol
from privbench.measure.methods.adversary import Adversary
from privbench.measure.methods.cell import Cell
from privbench.plugins.requirements import reason_to_skip
from privbench.testing import TinyImages, tiny_split
from privbench.testing.fixtures import AnyAttack, tiny_builder, tiny_spec
from privbench.toolbox.phases import Views
from privbench_plugins.defenses.crop_range import CropRange, narrowed
from privbench_plugins.targets.autoencoder import Autoencoder
from privbench_plugins.targets.byol import BYOL
from privbench_plugins.targets.moco import MoCo
from privbench_plugins.targets.simclr import SimCLR
from privbench_plugins.targets.supervised import Supervised


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_range_keeps_its_share_and_stays_inside(
    a: float, b: float, shrink: float, towards: float
) -> None:
    low, high = sorted((a, b))
    bottom, top = narrowed((low, high), shrink, towards)
    assert low <= bottom <= top <= high
    assert top - bottom == pytest.approx((1 - shrink) * (high - low), abs=1e-9)
    assert narrowed((low, high), shrink, 0.0)[0] == low
    assert narrowed((low, high), shrink, 1.0)[1] == pytest.approx(high)


@pytest.mark.parametrize("target", [SimCLR(), MoCo(), BYOL()], ids=lambda t: t.name)
def test_training_draws_crops_of_the_narrow_range(tmp_path: Any, target: Any) -> None:
    """The kit allows crops of .8 to 1; half of that, from below, is .8 to .9."""
    draft = tiny_builder(str(tmp_path)).draft(tiny_spec(target, (CropRange(shrink=0.5),)))
    encoder, classifier = draft.phases
    assert isinstance(encoder.prepare, Views)
    assert encoder.prepare.augmentation.crop == pytest.approx((0.8, 0.9))
    assert draft.notes["crop-range"] == "crops 0.8 to 0.9 of the area"
    plain = tiny_builder(str(tmp_path)).draft(tiny_spec(target)).phases[0]
    assert isinstance(plain.prepare, Views)
    allowed = plain.prepare.augmentation.within(tiny_split().card.limits or Augmentation())
    assert replace(encoder.prepare.augmentation, crop=allowed.crop) == allowed  # nothing else
    assert classifier.prepare is None


def test_nothing_taken_away_is_the_undefended_encoder(tmp_path: Any) -> None:
    builder, x = tiny_builder(str(tmp_path)), tiny_split().pool.x[:20]
    target = SimCLR(epochs=3, classifier_epochs=1)
    plain = builder.victim(tiny_spec(target)).embeddings(x)
    same = builder.victim(tiny_spec(target, (CropRange(shrink=0.0),))).embeddings(x)
    other = builder.victim(tiny_spec(target, (CropRange(shrink=1.0),))).embeddings(x)
    assert torch.equal(plain, same)
    assert not torch.equal(plain, other)


@pytest.mark.parametrize(
    ("target", "protocol", "words"),
    [
        (SimCLR(), {}, ""),
        (Supervised(), {}, "has none"),
        (Autoencoder(), {}, "has none"),
        (Supervised(augmentation=Augmentation(flip=0.5)), {}, "allows none"),
        (SimCLR(augmentation=Augmentation(crop=(0.9, 0.9))), {}, "allows none"),
        (SimCLR(), {"public": 40, "encoder": ("public",)}, "shows the encoder none"),
    ],
)
def test_unfit(target: Any, protocol: Any, words: str) -> None:
    defense = CropRange()
    parts = Protocol(members=80, nonmembers=80, pool=400, **protocol)
    cell = Cell(
        TinyImages().card(None), parts, target, (defense,), Adversary(), AnyAttack(), (),
    )  # fmt: skip
    assert words in (reason_to_skip(defense, cell) or "")
    assert bool(reason_to_skip(defense, cell)) == bool(words)
