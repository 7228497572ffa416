"""The algebra of views: identity, equivariance, range, independence, narrowing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privbench.measure.data.augmentation import Augmentation, augment

unhurried = settings(deadline=None, max_examples=60)
probability = st.sampled_from([0.0, 0.3, 1.0])


def ends(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    one = st.floats(low, high)
    return st.tuples(one, one).map(lambda pair: (min(pair), max(pair)))


def strength(top: float) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, top / 2, top])


augmentations = st.builds(
    Augmentation,
    crop=st.none() | ends(0.05, 1.0),
    ratio=ends(0.5, 2.0),
    shift=st.integers(0, 3),
    flip=probability,
    vflip=probability,
    jitter=st.none() | st.tuples(strength(0.8), strength(1.2), strength(0.8), strength(0.5)),
    jitter_p=probability,
    grey=probability,
    blur=probability,
    blur_sigma=ends(0.1, 3.0),
    blur_kernel=st.sampled_from([1, 3, 5]),
    hue=st.sampled_from(["hsv", "yiq"]),
    order=st.sampled_from(["fixed", "random"]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Augmentation, Tensor]:
    augmentation, n = draw(augmentations), draw(st.integers(0, 5))
    shape = draw(st.sampled_from([(3, 8, 8), (1, 8, 8), (3, 5, 7)]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.rand(n, *shape, generator=g)
    if draw(st.booleans()):
        x = x.round()  # black and white touch every clamp
    return x, augmentation, torch.rand(n, augmentation.uniforms, generator=g)


# ── views ────────────────────────────────────────────────────────────────────


@unhurried
@given(cases())
def test_a_view_is_an_image_and_x_stays(case: tuple[Tensor, Augmentation, Tensor]) -> None:
    x, augmentation, u = case
    before = x.clone(), u.clone()
    view = augment(x, augmentation, u)
    assert view.shape == x.shape
    assert view.dtype == x.dtype
    assert bool(((view >= 0) & (view <= 1)).all())  # NaN fails too
    assert torch.equal(x, before[0])
    assert torch.equal(u, before[1])
    assert torch.equal(augment(x, augmentation, u), view)


@unhurried
@given(cases(), st.randoms(use_true_random=False))
def test_views_permute_with_their_images(
    case: tuple[Tensor, Augmentation, Tensor], random: Any
) -> None:
    x, augmentation, u = case
    order = list(range(len(x)))
    random.shuffle(order)
    got = augment(x[order], augmentation, u[order])
    assert torch.allclose(got, augment(x, augmentation, u)[order], atol=1e-6)


@unhurried
@given(cases())
def test_a_view_depends_on_its_own_image_only(case: tuple[Tensor, Augmentation, Tensor]) -> None:
    x, augmentation, u = case
    view = augment(x, augmentation, u)
    for i in range(len(x)):
        alone = augment(x[i : i + 1], augmentation, u[i : i + 1])
        assert torch.allclose(alone[0], view[i], atol=1e-6)


def test_white_stays_white_under_weights_that_round() -> None:
    augmentation = Augmentation(crop=(0.1, 1.0), blur=0.5, blur_kernel=9)
    u = torch.rand(64, augmentation.uniforms, generator=torch.Generator().manual_seed(0))
    view = augment(torch.ones(64, 3, 32, 32), augmentation, u)
    assert float(view.max()) <= 1
    assert float(view.min()) > 1 - 1e-6


def test_the_identity_returns_x() -> None:
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert Augmentation().uniforms == 0
    view = augment(x, Augmentation(), torch.empty(4, 0))
    assert torch.equal(view, x)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(jitter=(0.8, 0.8, 0.8, 0.5), jitter_p=1e-9),
        Augmentation(jitter=(0.8, 0.8, 0.8, 0.5), jitter_p=1e-9, order="random"),
        Augmentation(jitter=(0.8, 0.8, 0.8, 0.5), jitter_p=1e-9, hue="yiq"),
        Augmentation(grey=1e-9, flip=1e-9, vflip=1e-9, blur=1e-9),
        Augmentation(crop=(1.0, 1.0), ratio=(1.0, 1.0)),
        Augmentation(jitter=(0.0, 0.0, 0.0, 0.0), jitter_p=1.0),
    ],
)
def test_what_is_not_drawn_leaves_x_to_the_bit(augmentation: Augmentation) -> None:
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    u = torch.full((4, augmentation.uniforms), 0.5)
    assert torch.equal(augment(x, augmentation, u), x)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(crop=(0.1, 1.0)),
        Augmentation(shift=3),
        Augmentation(flip=0.5),
        Augmentation(vflip=0.5),
        Augmentation(grey=0.5),
        Augmentation(blur=1.0),
        Augmentation(jitter=(0.8, 0.0, 0.0, 0.0)),
        Augmentation(jitter=(0.0, 0.8, 0.0, 0.0)),
        Augmentation(jitter=(0.0, 0.0, 0.8, 0.0)),
        Augmentation(jitter=(0.0, 0.0, 0.0, 0.5)),
        Augmentation(jitter=(0.8, 0.8, 0.8, 0.5), hue="yiq"),
    ],
)
def test_every_image_draws_its_own_parameters(augmentation: Augmentation) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(1, 3, 8, 8, generator=g).expand(32, -1, -1, -1)
    views = augment(x, augmentation, torch.rand(32, augmentation.uniforms, generator=g))
    distinct = len(torch.unique(views.flatten(1), dim=0))
    assert (
        distinct == 2
        if augmentation.flip or augmentation.vflip or augmentation.grey
        else distinct > 16
    )


@pytest.mark.parametrize(("p", "name"), [(0.25, "flip"), (0.75, "vflip"), (0.25, "grey")])
def test_a_probability_is_one(p: float, name: str) -> None:
    x = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0)).expand(8, -1, -1, -1)
    u = torch.arange(8)[:, None] / 8
    changed = (augment(x, Augmentation(**{name: p}), u) != x).flatten(1).any(1)  # type: ignore[arg-type]
    assert changed.tolist() == (u[:, 0] < p).tolist()


def test_one_channel_has_no_colour() -> None:
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    augmentation = Augmentation(jitter=(0.0, 0.0, 0.9, 0.5), jitter_p=1.0, grey=1.0)
    for each in (
        augmentation,
        replace(augmentation, hue="yiq"),
        replace(augmentation, order="random"),
    ):
        u = torch.rand(6, each.uniforms, generator=torch.Generator().manual_seed(1))
        assert torch.equal(augment(x, each, u), x)


# ── within ───────────────────────────────────────────────────────────────────


@given(augmentations)
def test_an_augmentation_is_within_itself(augmentation: Augmentation) -> None:
    assert augmentation.within(augmentation) == augmentation


@given(augmentations, augmentations)
def test_within_is_idempotent(augmentation: Augmentation, limits: Augmentation) -> None:
    narrowed = augmentation.within(limits)
    assert narrowed.within(limits) == narrowed


@given(augmentations, augmentations)
def test_within_is_nowhere_stronger_than_recipe_or_limits(
    augmentation: Augmentation, limits: Augmentation
) -> None:
    narrowed = augmentation.within(limits)
    for bound in (augmentation, limits):
        if narrowed.crop:
            assert bound.crop is not None
            assert narrowed.crop[0] >= bound.crop[0]
        if narrowed.jitter:
            assert bound.jitter is not None
            assert all(a <= b for a, b in zip(narrowed.jitter, bound.jitter, strict=True))
        assert narrowed.shift <= bound.shift
        assert narrowed.blur_kernel <= bound.blur_kernel
        assert narrowed.blur_sigma[1] <= bound.blur_sigma[1]
        for name in ("flip", "vflip", "jitter_p", "grey", "blur"):
            assert getattr(narrowed, name) == 0 or getattr(bound, name) > 0
    assert limits.ratio[0] <= narrowed.ratio[0] <= narrowed.ratio[1] <= limits.ratio[1]
    assert (narrowed.hue, narrowed.order) == (augmentation.hue, augmentation.order)


@given(augmentations)
def test_nothing_is_within_nothing(augmentation: Augmentation) -> None:
    narrowed = augmentation.within(Augmentation())
    assert narrowed.uniforms == 0
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(x, narrowed, torch.empty(2, 0)), x)


# ── errors ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop": (0.0, 1.0)}, "crop must"),
        ({"crop": (0.5, 0.4)}, "crop must"),
        ({"crop": (0.5, 1.1)}, "crop must"),
        ({"ratio": (2.0, 1.0)}, "ratio must"),
        ({"ratio": (1.0, math.inf)}, "ratio must"),
        ({"shift": -1}, "shift must"),
        ({"flip": 1.5}, "flip must"),
        ({"grey": -0.1}, "grey must"),
        ({"blur": math.nan}, "blur must"),
        ({"jitter": (0.1, 0.1, 0.1)}, "jitter must"),
        ({"jitter": (-0.1, 0.1, 0.1, 0.1)}, "jitter must"),
        ({"jitter": (0.1, 0.1, 0.1, 0.6)}, "jitter must"),
        ({"blur_sigma": (0.0, 1.0)}, "blur_sigma must"),
        ({"blur_kernel": 4}, "blur_kernel must be odd"),
        ({"blur_kernel": -3}, "blur_kernel must be odd"),
        ({"hue": "rgb"}, "hue must"),
        ({"order": "any"}, "order must"),
    ],
)
def test_a_wrong_range_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**wrong)


@pytest.mark.parametrize(
    ("shape", "augmentation", "width", "message"),
    [
        ((2, 2, 4, 4), Augmentation(flip=0.5), 1, r"x must be float \(n, 1 or 3, h, w\)"),
        ((3, 4, 4), Augmentation(flip=0.5), 1, "x must be"),
        ((2, 3, 4, 4), Augmentation(flip=0.5), 2, r"u must be \(2, 1\), not \(2, 2\)"),
        ((2, 3, 4, 4), Augmentation(blur=0.5, blur_kernel=9), 2, "blur_kernel must be less than"),
    ],
)
def test_a_wrong_shape_is_refused(
    shape: tuple[int, ...], augmentation: Augmentation, width: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        augment(torch.zeros(shape), augmentation, torch.zeros(2, width))


def test_integers_are_refused() -> None:
    with pytest.raises(ValueError, match="x must be float"):
        augment(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), Augmentation(), torch.zeros(1, 0))
