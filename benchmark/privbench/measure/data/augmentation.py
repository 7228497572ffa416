"""Augmentation of a whole batch with tensor operations, each image with its own parameters.

torchvision v2 draws one set of parameters per call, so a batch would share one crop. Here the crop,
shift and flips of an image become one interpolation matrix per axis, ``rows @ x @ columns^T``.
Blur works the same way; colour operations are elementwise. Each operation agrees with torchvision
v2's to float rounding, except under ``hue="yiq"``. All randomness comes from the caller's uniforms,
and nothing synchronises with the device.

Order: resized crop, shift, flips, colour jitter, grey, blur.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

_CHUNK = 2**20  # numbers at a time: few enough for a CPU's caches; images are independent
_ATTEMPTS = 10  # attempts to draw a box that fits the image, as in torchvision's RandomResizedCrop
_LUMA = (0.2989, 0.587, 0.114)  # torchvision's; they sum to 0.9999
_CHROMA = ((0.596, -0.274, -0.322), (0.211, -0.523, 0.312))  # I and Q of YIQ
_PROBABILITIES = ("flip", "vflip", "jitter_p", "grey", "blur")


@dataclass(frozen=True)
class Augmentation:
    """The random changes that create a view of an image; ``Augmentation()`` changes nothing.

    >>> strong = Augmentation(crop=(0.2, 1.0), flip=0.5, grey=0.2)
    >>> strong.within(Augmentation(flip=1.0))  # only what keeps the label
    Augmentation(...flip=0.5...)

    Attributes:
        crop: area of the box over area of the image, uniform in this range within (0, 1]; the box
            is resized back to the whole image, bilinear and antialiased. None for no crop.
        ratio: width over height of the box, log-uniform in this range.
        shift: translation in whole pixels, per axis uniform in -shift..shift; filled with zeros.
        flip: probability of a horizontal flip.
        vflip: probability of a vertical flip.
        jitter: strengths of brightness, contrast, saturation (s: a factor uniform in
            [max(0, 1 - s), 1 + s]) and hue (h at most 0.5: turns uniform in [-h, h]), as
            torchvision's ColorJitter. None for no jitter.
        jitter_p: probability of the jitter.
        grey: probability of greyscale.
        blur: probability of a Gaussian blur.
        blur_sigma: standard deviation of the blur in pixels, uniform in this range.
        blur_kernel: width of the blur in pixels, odd and less than twice the image's smaller side.
        hue: ``hsv`` is exact. ``yiq`` is faster: the whole jitter of an RGB image is one 3x3 matrix
            that scales and rotates its chroma, clamped once. It gives a different distribution of
            colours, in which the order of the operations does not matter.
        order: order of the jitter's operations: ``fixed`` as listed, or ``random``, a permutation
            per image (torchvision draws one per call).

    Raises:
        ValueError: if a value is out of range or a range is not increasing.
    """

    crop: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    shift: int = 0
    flip: float = 0.0
    vflip: float = 0.0
    jitter: tuple[float, float, float, float] | None = None
    jitter_p: float = 0.8
    grey: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: int = 3
    hue: Literal["hsv", "yiq"] = "hsv"
    order: Literal["fixed", "random"] = "fixed"

    def __post_init__(self) -> None:
        """Check the ranges."""
        crop, jitter = self.crop or (1.0, 1.0), self.jitter or (0.0, 0.0, 0.0, 0.0)
        *strengths, hue = jitter
        rules = [
            ("crop", 0 < crop[0] <= crop[1] <= 1, "hold 0 < low <= high <= 1"),
            ("ratio", 0 < self.ratio[0] <= self.ratio[1] < math.inf, "hold 0 < low <= high"),
            ("shift", self.shift >= 0, "be at least 0"),
            *((p, 0 <= getattr(self, p) <= 1, "be within 0..1") for p in _PROBABILITIES),
            ("jitter", len(strengths) == 3, "be four numbers"),  # noqa: PLR2004
            ("jitter", all(0 <= s < math.inf for s in strengths), "be finite and at least 0"),
            ("jitter", 0 <= hue <= 0.5, "end in a hue within 0..0.5 turns"),  # noqa: PLR2004
            ("blur_sigma", 0 < self.blur_sigma[0] <= self.blur_sigma[1] < math.inf,
             "hold 0 < low <= high"),
            ("blur_kernel", self.blur_kernel > 0 and self.blur_kernel % 2 == 1, "be odd"),
            ("hue", self.hue in {"hsv", "yiq"}, "be 'hsv' or 'yiq'"),
            ("order", self.order in {"fixed", "random"}, "be 'fixed' or 'random'"),
        ]  # fmt: skip
        for name, holds, rule in rules:
            if not holds:
                raise ValueError(f"{name} must {rule}, not {getattr(self, name)!r}")

    @property
    def uniforms(self) -> int:
        """Return how many random numbers one view needs; an operation that is off needs none."""
        return sum(_widths(self).values())

    def within(self, limits: Augmentation) -> Augmentation:
        """Return this augmentation, weakened so that it does not exceed ``limits``.

        crop or jitter is None if either side has none. A probability (flip, vflip, jitter_p, grey,
        blur) is 0 if its limit is 0. The rest is capped: the ends of crop rise to the limit's lower
        end (a larger box is weaker); each component of jitter, shift, blur_kernel and the ends of
        blur_sigma (by the limit's upper end) are the smaller of both; the ends of ratio move into
        the limit's range. Other probabilities, hue and order do not change: limits restrict how
        strong an operation is, not how often it happens.

        >>> limits = Augmentation(crop=(0.5, 1.0), shift=1)
        >>> Augmentation(crop=(0.2, 1.0), flip=0.5, shift=3).within(limits)
        ... # doctest: +ELLIPSIS
        Augmentation(crop=(0.5, 1.0), ratio=(0.75, 1.33...), shift=1, flip=0.0, ...)
        """
        crop = jitter = None
        if self.crop and limits.crop:
            low = limits.crop[0]
            crop = (max(self.crop[0], low), max(self.crop[1], low))
        if self.jitter and limits.jitter:
            b, c, s, h = map(min, self.jitter, limits.jitter)
            jitter = (b, c, s, h)
        (low, high), (least, most) = self.ratio, limits.ratio
        sigma = limits.blur_sigma[1]
        forbidden: dict[str, Any] = {p: 0.0 for p in _PROBABILITIES if not getattr(limits, p)}
        return replace(
            self,
            crop=crop,
            ratio=(min(max(low, least), most), min(max(high, least), most)),
            shift=min(self.shift, limits.shift),
            jitter=jitter,
            blur_sigma=(min(self.blur_sigma[0], sigma), min(self.blur_sigma[1], sigma)),
            blur_kernel=min(self.blur_kernel, limits.blur_kernel),
            **forbidden,
        )


@torch.no_grad()
def augment(x: Tensor, augmentation: Augmentation, u: Tensor) -> Tensor:
    """Return one view of every image; no gradients flow.

    Args:
        x: (n, c, h, w) float in [0, 1], c 1 or 3; not modified. With one channel, saturation, hue
            and grey do nothing.
        augmentation: the random changes to apply.
        u: (n, augmentation.uniforms) in [0, 1), the only source of randomness: see
            ``row_random.uniform``.

    Returns:
        A new tensor (n, c, h, w) in [0, 1]; image i depends on x[i] and u[i] only.

    Raises:
        ValueError: if a shape or dtype is wrong.

    >>> x = torch.tensor([[[[0.0, 0.1]]], [[[0.2, 0.3]]]])
    >>> augment(x, Augmentation(flip=0.5), torch.tensor([[0.4], [0.6]])).flatten(1)
    tensor([[0.1000, 0.0000],
            [0.2000, 0.3000]])
    """
    _check(x, augmentation, u)
    images = max(1, _CHUNK // x[0].numel()) if x.device.type == "cpu" and len(x) else len(x)
    if len(x) > images:
        pieces = zip(torch.split(x, images), torch.split(u, images), strict=True)
        return torch.cat([_augment(some, augmentation, of_some) for some, of_some in pieces])
    return _augment(x, augmentation, u)


def _augment(x: Tensor, augmentation: Augmentation, u: Tensor) -> Tensor:
    part = columns(u, augmentation)
    if augmentation.crop or augmentation.shift or augmentation.flip or augmentation.vflip:
        x = _move(x, boxes(u, x.shape[2], x.shape[3], augmentation), part, augmentation)
    if augmentation.jitter and augmentation.jitter_p:
        fold = augmentation.hue == "yiq" and x.shape[1] > 1
        jittered = _turn_chroma(x, u, augmentation) if fold else _jitter(x, u, augmentation)
        x = torch.where(_images(part["jitter"][:, 0] < augmentation.jitter_p), jittered, x)
    if augmentation.grey and x.shape[1] > 1:
        x = torch.where(_images(part["grey"][:, 0] < augmentation.grey), _luma(x), x)
    if augmentation.blur:
        kernel = _gaussian(part["blur"], augmentation).to(x.dtype)
        height, width = x.shape[2:]
        rows = _band(kernel, height)
        x = _sandwich(rows, x, rows if width == height else _band(kernel, width))
    return x.clamp(0, 1)  # weights may sum to 1 + 1e-7


def _check(x: Tensor, augmentation: Augmentation, u: Tensor) -> None:
    if x.dim() != 4 or x.shape[1] not in {1, 3} or not x.is_floating_point():  # noqa: PLR2004
        raise ValueError(f"x must be float (n, 1 or 3, h, w), not {x.dtype} {tuple(x.shape)}")
    if u.shape != (len(x), augmentation.uniforms):
        raise ValueError(f"u must be {(len(x), augmentation.uniforms)}, not {tuple(u.shape)}")
    if augmentation.blur and augmentation.blur_kernel // 2 >= min(x.shape[2:]):
        raise ValueError(
            f"blur_kernel must be less than twice the smaller side of {tuple(x.shape[2:])} images, "
            f"not {augmentation.blur_kernel}"
        )


# ── random parameters ────────────────────────────────────────────────────────


def _widths(augmentation: Augmentation) -> dict[str, int]:
    """Return how many columns of u each operation reads, in order."""
    return {
        "crop": 2 * _ATTEMPTS + 2 if augmentation.crop else 0,
        "shift": 2 if augmentation.shift else 0,
        "flip": 1 if augmentation.flip else 0,
        "vflip": 1 if augmentation.vflip else 0,
        "jitter": 6 if augmentation.jitter else 0,
        "grey": 1 if augmentation.grey else 0,
        "blur": 2 if augmentation.blur else 0,
    }


def columns(u: Tensor, augmentation: Augmentation) -> dict[str, Tensor]:
    """Return the columns of u for each operation.

    crop: ten areas, ten ratios, top, left; shift: down, right; flip, vflip, grey: whether; jitter:
    whether, brightness, contrast, saturation, hue, order; blur: whether, sigma. An operation that
    is off has no columns.
    """
    widths = _widths(augmentation)
    return dict(zip(widths, torch.split(u, list(widths.values()), dim=1), strict=True))


def boxes(u: Tensor, height: int, width: int, augmentation: Augmentation) -> tuple[Tensor, ...]:
    """Return the crop boxes as torchvision's RandomResizedCrop draws them.

    Args:
        u: (n, augmentation.uniforms).
        height: height of the images in pixels.
        width: width of the images in pixels.
        augmentation: provides ``crop`` and ``ratio``; without a crop the box is the whole image.

    Returns:
        top, left, height, width: (n,) int64 each. The first of ten draws that fits the image; if
        none fits, the largest centred box of an allowed ratio.
    """
    if augmentation.crop is None:
        none = torch.zeros(len(u), dtype=torch.int64, device=u.device)
        return none, none, none + height, none + width
    image = _constant((height, width), torch.int64, u.device)
    # float64, so that differences between the devices' exp do not change the rounding of a box
    draw = torch.split(columns(u.double(), augmentation)["crop"], [_ATTEMPTS, _ATTEMPTS, 2], dim=1)
    area = height * width * _between(draw[0], augmentation.crop)
    ratio = _between(
        draw[1], (math.log(augmentation.ratio[0]), math.log(augmentation.ratio[1]))
    ).exp()
    sides = torch.stack([area / ratio, area * ratio], 2).sqrt().round().long()  # (n, 10, 2)
    fits = ((sides > 0) & (sides <= image)).all(2)
    first = fits.int().argmax(1)  # of equals, argmax returns the first
    side = sides.gather(1, first[:, None, None].expand(-1, 1, 2)).squeeze(1)
    shape = width / height
    fallback = (
        round(width / augmentation.ratio[0]) if shape < augmentation.ratio[0] else height,
        round(height * augmentation.ratio[1]) if shape > augmentation.ratio[1] else width,
    )
    fitted = fits.any(1, keepdim=True)
    side = torch.where(fitted, side, _constant(fallback, torch.int64, u.device))
    room = image - side
    corner = torch.where(fitted, (draw[2] * (room + 1)).long(), room // 2)
    return *corner.unbind(1), *side.unbind(1)


def _factors(u: Tensor, augmentation: Augmentation) -> Tensor:
    """Return the factors of brightness, contrast and saturation, and the hue turns: (n, 4)."""
    *strengths, hue = augmentation.jitter or (0.0, 0.0, 0.0, 0.0)
    ranges = [*((max(0.0, 1 - s), 1 + s) for s in strengths), (-hue, hue)]
    low = _constant(tuple(low for low, _ in ranges), u.dtype, u.device)
    span = _constant(tuple(high - low for low, high in ranges), u.dtype, u.device)
    return low + span * columns(u, augmentation)["jitter"][:, 1:5]


def _between(u: Tensor, ends: tuple[float, float]) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * u


# ── geometry ─────────────────────────────────────────────────────────────────


def _move(
    x: Tensor, box: tuple[Tensor, ...], part: dict[str, Tensor], augmentation: Augmentation
) -> Tensor:
    """Return every image cropped to its box and resized, shifted, then flipped."""
    top, left, height, width = box
    at = [_shown(axis, x, part, augmentation) for axis in (0, 1)]
    if x.shape[2] == x.shape[3]:  # both axes at once take half the operators
        both = [torch.cat(pair)[:, None] for pair in ((top, left), (height, width))]
        rows, columns = _resize(torch.cat(at), *both).to(x.dtype).chunk(2)
    else:
        rows = _resize(at[0], top[:, None], height[:, None]).to(x.dtype)
        columns = _resize(at[1], left[:, None], width[:, None]).to(x.dtype)
    return _sandwich(rows, x, columns)


def _shown(axis: int, x: Tensor, part: dict[str, Tensor], augmentation: Augmentation) -> Tensor:
    """Return which pixel of the resized axis each output pixel shows, (n, size) int64."""
    size, mirror = x.shape[2 + axis], ("vflip", "flip")[axis]
    at = _constant(tuple(range(size)), torch.int64, x.device)
    if getattr(augmentation, mirror):
        back = _constant(tuple(range(size - 1, -1, -1)), torch.int64, x.device)
        at = torch.where(part[mirror] < getattr(augmentation, mirror), back, at)
    if augmentation.shift:
        drawn = part["shift"][:, axis, None] * (2 * augmentation.shift + 1)
        at = at - (drawn.long() - augmentation.shift)
    return at.expand(len(x), size)


def _resize(at: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Return the weights that resize pixels start..start + length to the whole axis.

    This is ATen's triangle filter: a weight decreases linearly with the distance from the output
    pixel's centre, to 0 at one input pixel. Antialiasing would widen it, but a box is never shrunk.

    Args:
        at: (n, size) int64, the pixel of the resized axis that each output pixel shows.
        start: (n, 1) int64, first pixel of the box.
        length: (n, 1) int64, length of the box.

    Returns:
        (n, size, size) float32, output pixel by input pixel; rows sum to 1, or 0 where ``at`` is
        outside 0..size - 1.
    """
    size = at.shape[1]
    scale = length.float() / size
    # relative to the box: ATen's arithmetic
    pixel = _constant(tuple(range(size)), torch.int64, at.device) - start
    nearest = at.clamp(0, size - 1)
    centre = scale * (nearest + 0.5)
    inside = (pixel >= 0) & (pixel < length)
    weight = (pixel + 0.5)[:, None, :] - centre[:, :, None]
    weight.abs_().neg_().add_(1).clamp_(min=0)
    weight.mul_(inside[:, None, :])
    return weight.mul_(((nearest == at) / weight.sum(2))[:, :, None])


def _sandwich(rows: Tensor, x: Tensor, columns: Tensor) -> Tensor:
    """Return rows (n, h, h) @ x (n, c, h, w) @ columns (n, w, w)^T."""
    # one product per image instead of one per channel, to avoid copies of the columns
    wide = torch.bmm(x.flatten(1, 2), columns.mT).view_as(x)
    return rows[:, None] @ wide


# ── colour ───────────────────────────────────────────────────────────────────


def _images(value: Tensor) -> Tensor:
    """Return (n,) as (n, 1, 1, 1)."""
    return value[:, None, None, None]


def _luma(x: Tensor) -> Tensor:
    """Return greyscale (n, 1, h, w)."""
    if x.shape[1] == 1:
        return x
    r, g, b = x[:, :1], x[:, 1:2], x[:, 2:]
    return (r * _LUMA[0]).add_(g, alpha=_LUMA[1]).add_(b, alpha=_LUMA[2])


def _jitter(x: Tensor, u: Tensor, augmentation: Augmentation) -> Tensor:
    """Return x after the four operations in the augmentation's order, clamped after each one."""
    factors = _factors(u, augmentation).to(x.dtype)
    brightness, contrast, saturation, hue = (s > 0 for s in augmentation.jitter or (0, 0, 0, 0))
    rgb = x.shape[1] > 1
    if augmentation.order == "random":
        return _jitter_in_any_order(x, u, factors, augmentation)
    if brightness:
        x = (x * _images(factors[:, 0])).clamp_(0, 1)
    if contrast:
        x = _blend(_luma(x).mean((1, 2, 3), keepdim=True), x, factors[:, 1])
    if saturation and rgb:
        x = _blend(_luma(x), x, factors[:, 2])
    return _turn_hue(x, factors[:, 3]) if hue and rgb else x


def _jitter_in_any_order(
    x: Tensor, u: Tensor, factors: Tensor, augmentation: Augmentation
) -> Tensor:
    """Return x after the operations in each image's own order.

    Hue is the most expensive operation, so it runs once for the whole batch: for each image, the
    blends that precede it in the order run before, the others after.
    """
    every = _constant(tuple(itertools.permutations(range(4))), torch.int64, x.device)
    order = every[(columns(u, augmentation)["jitter"][:, 5] * len(every)).long()]
    turn_at = order.argmax(1)  # hue is number 3
    rgb = x.shape[1] > 1

    def blend(x: Tensor, step: int, on: Tensor) -> Tensor:
        which = order[:, step]
        if not rgb:
            on = on & (which != 2)  # noqa: PLR2004
        factor = torch.where(on, factors.gather(1, which[:, None]).squeeze(1), 1.0)
        luma = _luma(x)
        reference = torch.where(_images(which == 1), luma.mean((1, 2, 3), keepdim=True), luma)
        return _blend(reference * _images(which > 0), x, factor)

    for step in range(3):
        x = blend(x, step, step < turn_at)
    if rgb and augmentation.jitter and augmentation.jitter[3]:
        x = _turn_hue(x, factors[:, 3])
    for step in range(1, 4):
        x = blend(x, step, step > turn_at)
    return x


def _blend(reference: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Return reference + factor * (x - reference), clamped; equal to x where (n,) factor is 1."""
    return torch.lerp(reference, x, _images(factor)).clamp_(0, 1)


def _turn_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Return RGB x (n, 3, h, w) with its HSV hue rotated by (n,) turns."""
    r, g, b = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    some = chroma.clamp(min=torch.finfo(x.dtype).tiny)  # for grey pixels every numerator is 0
    # lerp with a weight of 0 or 1 is exact, and several times faster than where
    sixth = torch.lerp((r - g) / some + 4, (b - r) / some + 2, (value == g).to(x.dtype))
    sixth = torch.lerp(sixth, (g - b) / some, (value == r).to(x.dtype))
    hue = sixth / 6 + (turn + 1)[:, None, None]  # at least 1/3
    # turns from the channel's opposite hue: a channel is off within 1/6 and full beyond 1/3
    off = hue[:, None] + _constant((((0.0,),), ((2 / 3,),), ((1 / 3,),)), x.dtype, x.device)
    off.frac_().sub_(0.5).abs_().mul_(-6).add_(2).clamp_(0, 1)
    return torch.addcmul(value[:, None], chroma[:, None], off, value=-1).clamp_(0, 1)


def _turn_chroma(x: Tensor, u: Tensor, augmentation: Augmentation) -> Tensor:
    """Return RGB x after the whole jitter as one matrix per image, clamped once.

    Saturation scales the chroma of YIQ and hue rotates it. Both keep the luma, so they commute with
    brightness and contrast.
    """
    brightness, contrast, saturation, turn = _factors(u, augmentation).to(x.dtype).unbind(1)
    angle = -2 * math.pi * turn  # red to green is clockwise in (I, Q)
    ones = torch.ones_like(turn)
    mix = torch.stack([ones, saturation * angle.cos(), saturation * angle.sin()], 1)
    mix = mix * (brightness * contrast)[:, None]
    matrix = (mix @ _constant(_yiq_basis(), x.dtype, x.device).flatten(1)).view(-1, 3, 3)
    offset = (brightness * (1 - contrast))[:, None] * _luma(x).mean((1, 2, 3))[:, None]
    out = torch.baddbmm(offset[:, None, :].expand(-1, 3, 1), matrix, x.flatten(2))
    return out.view_as(x).clamp_(0, 1)


@cache
def _yiq_basis() -> tuple[Any, ...]:
    """Return three 3x3 matrices: RGB to its luma, to its chroma, to its chroma rotated by 90°."""
    to = torch.tensor([_LUMA, *_CHROMA], dtype=torch.float64)
    back = torch.linalg.inv(to)
    turned = torch.stack([-to[2], to[1]])
    parts = (back[:, :1] @ to[:1], back[:, 1:] @ to[1:], back[:, 1:] @ turned)
    return tuple(tuple(tuple(row) for row in part.tolist()) for part in parts)


@cache
def _constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached tensor on the device, because creating one synchronises with the device."""
    return torch.tensor(values, dtype=dtype, device=device)


# ── blur ─────────────────────────────────────────────────────────────────────


def _gaussian(u: Tensor, augmentation: Augmentation) -> Tensor:
    """Return each image's blur kernel (n, blur_kernel); the identity if it is not blurred."""
    half = augmentation.blur_kernel // 2
    tap = _constant(tuple(range(-half, half + 1)), torch.int64, u.device)
    kernel = (-0.5 * (tap / _between(u[:, 1:], augmentation.blur_sigma)) ** 2).softmax(1)
    none = _constant(tuple(float(i == half) for i in range(len(tap))), kernel.dtype, u.device)
    return torch.where(u[:, :1] < augmentation.blur, kernel, none)


def _band(kernel: Tensor, size: int) -> Tensor:
    """Return (n, size, size) matrices that convolve an axis, reflected at its edges."""
    reads = _reads(kernel.shape[1], size, kernel.dtype, kernel.device)
    return (kernel @ reads).view(-1, size, size)


@cache
def _reads(width: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (width, size * size): which pixel each output pixel reads at each tap of a kernel."""
    half = width // 2
    pixel = torch.arange(size)
    source = (pixel + torch.arange(-half, half + 1)[:, None]).abs()
    source = size - 1 - (size - 1 - source).abs()
    return torch.eye(size, dtype=dtype)[source].flatten(1).to(device)
