"""Confidence masking: labels stay, embeddings stay, and nothing else is told than the mask says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privbench import Access
from privbench.ground.store.store import Store
from privbench.measure.victims.build import Builder
from privbench.testing import CPU, TinyTarget
from privbench.testing.fixtures import tiny_spec
from privbench_plugins.defenses.confidence_masking import (
    ConfidenceMasking,
    Masked,
    rounded,
    top,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MASKS = [("top", 1, 1), ("top", 3, 1), ("rounding", 1, 1), ("rounding", 1, 0), ("label", 1, 1),
         ("fixed", 1, 1)]  # fmt: skip
logits = arrays("float64", (6, 5), elements=st.floats(-30, 30))


def _masked(p: Tensor, mask: tuple[str, int, int]) -> Tensor:
    release = Masked(*mask)  # type: ignore[arg-type]
    made: Tensor = release(torch.zeros(len(p), 1), p, torch.zeros(len(p), 0))
    return made


@pytest.mark.parametrize("mask", MASKS, ids=str)
@settings(deadline=None)
@given(z=logits)
def test_it_is_a_distribution_with_the_same_label(mask: tuple[str, int, int], z: object) -> None:
    p = torch.as_tensor(z).softmax(1)
    made = _masked(p, mask)
    assert torch.equal(made.argmax(1), p.argmax(1))
    assert bool((made >= 0).all())
    assert torch.allclose(made.sum(1), torch.ones(len(p), dtype=p.dtype))


def test_label_and_fixed_depend_on_the_label_alone() -> None:
    p = torch.tensor([[0.9, 0.06, 0.04], [0.4, 0.3, 0.3]]).double()
    for mask in (("label", 1, 1), ("fixed", 1, 1)):
        made = _masked(p, mask)
        assert torch.equal(made[0], made[1])
    fixed = _masked(p, ("fixed", 1, 1))[0]
    assert fixed.tolist() == pytest.approx([1 / 3 + 1e-3, 1 / 3 - 5e-4, 1 / 3 - 5e-4])


def test_the_default_hides_the_confidence_and_the_preset_of_the_paper_does_not() -> None:
    p = torch.tensor([[0.9, 0.06, 0.04], [0.4, 0.3, 0.3]]).double()
    hidden, shown = (
        _masked(p, (one.mask, one.k, one.decimals))
        for one in (ConfidenceMasking(), ConfidenceMasking().preset("paper"))
    )
    assert torch.equal(hidden[0], hidden[1])
    assert shown.amax(1).tolist() == pytest.approx([0.9, 0.4])


def test_top_tells_the_largest_and_hides_how_the_rest_is_split() -> None:
    p = torch.tensor([[0.1, 0.6, 0.25, 0.05]]).double()
    assert top(p, 2)[0].tolist() == pytest.approx([0.075, 0.6, 0.25, 0.075])
    assert torch.equal(top(p, 4), p)
    assert torch.equal(top(p, 9), p)


@pytest.mark.parametrize("classes", [29, 34, 47, 56])
def test_top_keeps_the_label_of_ties(classes: int) -> None:
    """Where all posteriors are equal, the sum of what is hidden over its number rounds upwards."""
    p = torch.zeros(1, classes).double().softmax(1)
    for k in (1, 2, 3):
        assert int(top(p, k).argmax()) == int(p.argmax()) == 0
    lower = p.repeat(classes, 1) - torch.diag(torch.full((classes,), 1e-17)).double()
    lower[0, 0] = torch.nextafter(p[0, 0], torch.tensor(0.0).double())  # one bit below the others
    assert int(lower[0].argmax()) == 1
    for k in (1, 2, 3):
        assert torch.equal(top(lower, k).argmax(1), lower.argmax(1))


def test_rounding_breaks_ties_for_the_label() -> None:
    p = torch.tensor([[0.26, 0.25, 0.25, 0.24]]).double()
    assert rounded(p, 0)[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert rounded(p, 1)[0].tolist() == pytest.approx([3 / 9, 2 / 9, 2 / 9, 2 / 9])
    assert int(rounded(p.flip(1), 1).argmax()) == 3


def test_labels_and_embeddings_are_bit_identical(tmp_path: Path) -> None:
    shop = Builder(Store(tmp_path), CPU)
    plain = shop.victim(tiny_spec(TinyTarget()))
    for mask in ("top", "rounding", "label", "fixed"):
        defended = shop.victim(tiny_spec(TinyTarget(), (ConfidenceMasking(mask=mask),)))
        x = torch.rand(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        assert torch.equal(defended.embeddings(x), plain.embeddings(x))
        before, after = plain.log_posteriors(x), defended.log_posteriors(x)
        assert torch.equal(after.argmax(1), before.argmax(1))
        assert not torch.allclose(after, before)
        hidden = Access.GRADIENTS | Access.WEIGHTS
        assert defended.grants & hidden == Access.NONE
        assert (Access.POSTERIORS in defended.grants) == (mask != "label")
