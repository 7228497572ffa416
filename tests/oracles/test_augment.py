"""Every operation against torchvision v2, image by image, with parameters read from u."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privbench import Batch
from privbench.measure.data.augmentation import Augmentation, augment, boxes
from privbench.testing import tiny_split
from privbench.toolbox.phases import Views

N = 40
Box = tuple[int, int, int, int]
ORDERS = list(itertools.permutations(range(4)))


@pytest.fixture(scope="module")
def tv() -> Any:
    """torchvision's functional API; it takes seconds to import."""
    from torchvision.transforms.v2 import functional

    return functional


def images(channels: int = 3, h: int = 32, w: int = 32, n: int = N) -> Tensor:
    """Noise at several brightnesses, then the corners of the colour cube, then flat grey."""
    g = torch.Generator().manual_seed(h * w + channels)
    x = torch.rand(n, channels, h, w, generator=g)
    x[: n // 2] = x[: n // 2] ** 3
    x[-2] = x[-2].round()
    x[-1] = 0.25
    return x


def uniforms(augmentation: Augmentation, n: int = N, seed: int = 1) -> Tensor:
    return torch.rand(n, augmentation.uniforms, generator=torch.Generator().manual_seed(seed))


def worst(got: Tensor, want: list[Tensor]) -> float:
    assert torch.stack(want).shape == got.shape
    return float((got - torch.stack(want)).abs().max())


def between(u: float, low: float, high: float) -> float:
    return low + (high - low) * u


# ── a reference of one image: torchvision with parameters from one row of u ──


def box(row: list[float], h: int, w: int, augmentation: Augmentation) -> Box:
    """torchvision's RandomResizedCrop.make_params, with its draws replaced by u."""
    low, high = augmentation.ratio
    for a, r in zip(row[:10], row[10:20], strict=True):
        area = h * w * between(a, *(augmentation.crop or (1, 1)))
        ratio = math.exp(between(r, math.log(low), math.log(high)))
        bw, bh = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < bw <= w and 0 < bh <= h:
            return int(row[20] * (h - bh + 1)), int(row[21] * (w - bw + 1)), bh, bw
    if w / h < low:
        bw, bh = w, round(w / low)
    elif w / h > high:
        bw, bh = round(h * high), h
    else:
        bw, bh = w, h
    return (h - bh) // 2, (w - bw) // 2, bh, bw


def jittered(x: Tensor, row: list[float], augmentation: Augmentation, tv: Any) -> Tensor:
    assert augmentation.jitter is not None
    if row[0] >= augmentation.jitter_p:
        return x
    b, c, s = (
        between(v, max(0.0, 1 - j), 1 + j)
        for v, j in zip(row[1:4], augmentation.jitter, strict=False)
    )
    hue = between(row[4], -augmentation.jitter[3], augmentation.jitter[3])
    steps = (
        lambda x: tv.adjust_brightness(x, b),
        lambda x: tv.adjust_contrast(x, c),
        lambda x: tv.adjust_saturation(x, s),
        lambda x: tv.adjust_hue(x, hue),
    )
    for step in ORDERS[int(row[5] * 24)] if augmentation.order == "random" else range(4):
        x = steps[step](x)
    return x


def reference(x: Tensor, augmentation: Augmentation, u: Tensor, tv: Any) -> Tensor:
    """One image through torchvision; reads u in the documented order of columns."""
    left = u.tolist()

    def take(count: int) -> list[float]:
        taken, left[:] = left[:count], left[count:]
        return taken

    c, h, w = x.shape
    if augmentation.crop:
        x = tv.resized_crop(x, *box(take(22), h, w, augmentation), [h, w], antialias=True)
    if augmentation.shift:
        dy, dx = (int(v * (2 * augmentation.shift + 1)) - augmentation.shift for v in take(2))
        x = tv.affine(x, angle=0.0, translate=[dx, dy], scale=1.0, shear=[0.0, 0.0])
    if augmentation.flip and take(1)[0] < augmentation.flip:
        x = tv.horizontal_flip(x)
    if augmentation.vflip and take(1)[0] < augmentation.vflip:
        x = tv.vertical_flip(x)
    if augmentation.jitter:
        x = jittered(x, take(6), augmentation, tv)
    if augmentation.grey and take(1)[0] < augmentation.grey:
        x = tv.rgb_to_grayscale(x, num_output_channels=c)
    if augmentation.blur:
        on, sigma = take(2)
        if on < augmentation.blur:
            x = tv.gaussian_blur(
                x, [augmentation.blur_kernel] * 2, [between(sigma, *augmentation.blur_sigma)]
            )
    assert not left
    return x


JITTER = (0.8, 0.7, 0.6, 0.3)
OPERATIONS = {
    "crop": Augmentation(crop=(0.08, 1.0)),
    "crop-extreme": Augmentation(crop=(0.01, 1.0), ratio=(0.2, 5.0)),
    "shift": Augmentation(shift=5),
    "shift-far": Augmentation(shift=40),
    "flip": Augmentation(flip=0.5),
    "vflip": Augmentation(vflip=0.5),
    "shift-flips": Augmentation(shift=4, flip=0.5, vflip=0.5),
    "brightness": Augmentation(jitter=(0.9, 0.0, 0.0, 0.0), jitter_p=1.0),
    "contrast": Augmentation(jitter=(0.0, 1.5, 0.0, 0.0), jitter_p=1.0),
    "saturation": Augmentation(jitter=(0.0, 0.0, 1.5, 0.0), jitter_p=1.0),
    "hue": Augmentation(jitter=(0.0, 0.0, 0.0, 0.5), jitter_p=1.0),
    "jitter": Augmentation(jitter=JITTER),
    "jitter-random": Augmentation(jitter=JITTER, jitter_p=0.9, order="random"),
    "grey": Augmentation(grey=0.5),
    "blur": Augmentation(blur=0.5, blur_sigma=(0.1, 2.0), blur_kernel=9),
    "blur-widest": Augmentation(blur=1.0, blur_sigma=(3.0, 9.0), blur_kernel=15),
}
ALL = Augmentation(
    crop=(0.2, 1.0), shift=2, flip=0.5, vflip=0.3, jitter=JITTER, grey=0.3, blur=0.5, order="random"
)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 12, 20)], ids=str)
@pytest.mark.parametrize("name", [*OPERATIONS, "all"])
def test_operation_equals_torchvision(name: str, shape: tuple[int, int, int], tv: Any) -> None:
    augmentation = (OPERATIONS | {"all": ALL})[name]
    if augmentation.blur_kernel // 2 >= min(shape[1:]):
        augmentation = Augmentation(
            blur=augmentation.blur, blur_sigma=augmentation.blur_sigma, blur_kernel=7
        )
    x, u = images(*shape), uniforms(augmentation)
    want = [reference(one, augmentation, row, tv) for one, row in zip(x, u, strict=True)]
    # hue differs by 2e-6, and the blends that a random order puts after it multiply that
    assert worst(augment(x, augmentation, u), want) < (
        1e-5 if augmentation.order == "random" else 3e-6
    )


def test_large_images_crop_as_torchvision(tv: Any) -> None:
    augmentation = Augmentation(crop=(0.08, 1.0))
    x, u = images(3, 96, 96, n=6), uniforms(augmentation, n=6)
    want = [reference(one, augmentation, row, tv) for one, row in zip(x, u, strict=True)]
    assert worst(augment(x, augmentation, u), want) < 1e-5


def test_float64_is_kept(tv: Any) -> None:
    augmentation = Augmentation(flip=0.5, jitter=JITTER, blur=0.5)
    x, u = images().double(), uniforms(augmentation).double()
    view = augment(x, augmentation, u)
    assert view.dtype == torch.float64
    want = [reference(one, augmentation, row, tv) for one, row in zip(x, u, strict=True)]
    # torchvision itself computes hue in float32
    assert worst(view, want) < 3e-6


# ── hue in YIQ ───────────────────────────────────────────────────────────────


def test_yiq_turns_hue_the_same_way() -> None:
    exact = Augmentation(jitter=(0.0, 0.0, 0.0, 0.3), jitter_p=1.0)
    quick = Augmentation(jitter=(0.0, 0.0, 0.0, 0.3), jitter_p=1.0, hue="yiq")
    x, u = 0.3 + 0.4 * images(), uniforms(exact)
    want = augment(x, exact, u)
    near = float((augment(x, quick, u) - want).abs().mean())
    backwards = u.clone()
    backwards[:, 4] = 1 - u[:, 4]
    far = float((augment(x, quick, backwards) - want).abs().mean())
    unmoved = float((x - want).abs().mean())
    assert near < 0.8 * unmoved  # 0.048 and 0.068: a likeness, no more
    assert near < far / 2


def test_yiq_without_clamps_equals_torchvision_where_hue_stays(tv: Any) -> None:
    augmentation = Augmentation(jitter=(0.3, 0.3, 0.3, 0.0), hue="yiq")
    x, u = 0.4 + 0.2 * images(), uniforms(augmentation)
    want = [reference(one, augmentation, row, tv) for one, row in zip(x, u, strict=True)]
    assert worst(augment(x, augmentation, u), want) < 2e-4  # luma's weights sum to 0.9999


# ── boxes ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("h", "w", "augmentation"),
    [
        (32, 32, Augmentation(crop=(0.08, 1.0))),
        (8, 8, Augmentation(crop=(0.01, 1.0), ratio=(0.1, 10.0))),
        (17, 40, Augmentation(crop=(0.9, 1.0))),
        (40, 17, Augmentation(crop=(0.9, 1.0))),
        (9, 9, Augmentation(crop=(1.0, 1.0), ratio=(2.0, 3.0))),
    ],
)
def test_boxes_are_torchvisions_for_the_same_draws(
    h: int, w: int, augmentation: Augmentation
) -> None:
    u = uniforms(augmentation, n=500)
    u[0], u[1] = 0.0, 1 - 2**-24
    got = torch.stack([side.long() for side in boxes(u, h, w, augmentation)], 1).tolist()
    want = [box(row, h, w, augmentation) for row in u.tolist()]
    wrong = [pair for pair in zip(got, want, strict=True) if tuple(pair[0]) != pair[1]]
    assert len(wrong) <= 1, wrong  # a float32 product may fall across a rounding


def test_boxes_are_distributed_as_torchvisions() -> None:
    from scipy.stats import ks_2samp
    from torchvision.transforms import RandomResizedCrop

    augmentation, n = Augmentation(crop=(0.08, 1.0)), 4000
    ours = torch.stack(
        [side.double() for side in boxes(uniforms(augmentation, n), 224, 200, augmentation)], 1
    )
    blank = torch.empty(1, 224, 200)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        theirs = torch.tensor(
            [RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)],
            dtype=torch.float64,
        )
    for mine, yours in zip(_features(ours), _features(theirs), strict=True):
        assert ks_2samp(mine, yours).pvalue > 1e-4


def _features(box: Tensor) -> list[Any]:
    """Return top, left, area and ratio of boxes (n, 4), as arrays."""
    top, left, h, w = box.unbind(1)
    return [each.numpy() for each in (top, left, h * w, w / h)]


@pytest.mark.parametrize("shape", [(12, 12), (12, 20)])
def test_views_of_a_batch_are_those_of_one_after_the_other(shape: tuple[int, int]) -> None:
    strong = Augmentation(crop=(0.2, 1.0), shift=2, flip=0.5, vflip=0.5, blur=0.5)
    x, drawn = images(1, *shape), [uniforms(strong, seed=seed) for seed in (1, 2, 3)]
    card = replace(tiny_split().card, limits=strong, shape=(1, *shape))
    left = iter(drawn)
    batch = Batch(x, torch.zeros(N, dtype=torch.long), {}, torch.arange(N))
    made = Views(strong, card, 3)(batch, lambda _: next(left))
    expected = torch.cat([augment(x, strong, one) for one in drawn])
    torch.testing.assert_close(made.x, expected, atol=1e-6, rtol=0)
