"""Augmentation of a whole batch in tensor operations, each image with its own random parameters.

torchvision's v2 transforms draw one set of parameters per call, which would give every image of a
batch the same crop and the same colours. Here all randomness comes in as numbers in [0, 1), one
row per image, so that an image's view depends on nothing but itself and its numbers.

Operations and their order: crop and resize, shift, flips, colour jitter, greyscale, blur. Crop,
shift and flips are one linear map per axis, ``Ry @ x @ Rx^T``; so is blur. Each equals its
torchvision counterpart per image; the differences are named at ``Recipe.order`` and ``Recipe.hue``.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ATTEMPTS = 10  # at a crop box, as torchvision makes
_LUMA = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Recipe:
    """What views may vary; ``Recipe()`` varies nothing.

    Attributes:
        crop: range of the cropped area as a share of the image's; None crops nothing.
        ratio: range of the crop's width over height, drawn log-uniformly.
        shift: pixels that the image moves at most along each axis, zeros moving in.
        flip: probability of a horizontal flip.
        vflip: probability of a vertical flip.
        jitter: strengths of brightness, contrast, saturation (each at least 0: factors are
            uniform in max(0, 1 - s)..1 + s) and hue (0..0.5 turns either way); None for none.
        jitter_p: probability of the jitter.
        grey: probability of greyscale.
        blur: probability of Gaussian blur.
        blur_sigma: range of its standard deviation, in pixels.
        blur_kernel: its width in pixels, odd.
        hue: ``hsv`` rotates hue as torchvision does; ``yiq`` rotates chroma in YIQ, which is
            faster and another distribution (mean difference .03 on natural images).
        order: of the four jitters: ``fixed`` as listed above, or ``random``, a permutation per
            image (torchvision draws one per call).
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
        """Check ranges.

        Raises:
            ValueError: saying what must hold and what was given.
        """
        crop, jitter = self.crop or (1.0, 1.0), self.jitter or (0.0, 0.0, 0.0, 0.0)
        chances = (self.flip, self.vflip, self.jitter_p, self.grey, self.blur)
        for holds, rule, given in (
            (0 < crop[0] <= crop[1] <= 1, "crop must be 0 < low <= high <= 1", self.crop),
            (0 < self.ratio[0] <= self.ratio[1], "ratio must be 0 < low <= high", self.ratio),
            (self.shift >= 0, "shift must be at least 0", self.shift),
            (all(0 <= p <= 1 for p in chances), "probabilities must be in 0..1", chances),
            (min(jitter) >= 0, "jitter strengths must be at least 0", self.jitter),
            (jitter[3] <= 0.5, "hue must be at most 0.5 turns", self.jitter),  # noqa: PLR2004
            (0 < self.blur_sigma[0] <= self.blur_sigma[1], "blur_sigma must be 0 < low <= high",
             self.blur_sigma),
            (self.blur_kernel % 2 == 1, "blur_kernel must be odd", self.blur_kernel),
        ):  # fmt: skip
            if not holds:
                raise ValueError(f"{rule}, not {given}")

    @functools.cached_property
    def _columns(self) -> dict[str, slice]:
        """Which columns of u each operation that is on reads."""
        counts = {
            "crop": 2 * _ATTEMPTS + 2 if self.crop else 0,
            "shift": 2 if self.shift else 0,
            "flip": 1 if self.flip else 0,
            "vflip": 1 if self.vflip else 0,
            "jitter": 6 if self.jitter else 0,
            "grey": 1 if self.grey else 0,
            "blur": 2 if self.blur else 0,
        }
        ends = list(itertools.accumulate(counts.values()))
        return {
            name: slice(end - count, end)
            for (name, count), end in zip(counts.items(), ends, strict=True)
            if count
        }

    @property
    def uniforms(self) -> int:
        """Numbers that one view of one image needs."""
        return max((columns.stop for columns in self._columns.values()), default=0)

    def within(self, limits: Recipe) -> Recipe:
        """This recipe, with nothing that ``limits`` does not allow and nothing stronger.

        Operations that the limits leave out are switched off; strengths are capped (a crop's
        smallest area is raised, ranges of ratio and blur are cut); probabilities stay, since how
        often an allowed operation happens is no question of what it does.

        >>> Recipe(crop=(0.2, 1.0), flip=0.5, shift=3).within(Recipe(crop=(0.5, 1.0), shift=1))
        ... # doctest: +ELLIPSIS
        Recipe(crop=(0.5, 1.0), ratio=(0.75, 1.33...), shift=1, flip=0.0, ...)
        """
        crop = jitter = None
        if self.crop and limits.crop:
            low = max(self.crop[0], limits.crop[0])
            crop = (low, max(low, self.crop[1]))
        if self.jitter and limits.jitter:
            a, b, c, d = (min(pair) for pair in zip(self.jitter, limits.jitter, strict=True))
            jitter = (a, b, c, d)
        return replace(
            self,
            crop=crop,
            ratio=_cut(self.ratio, limits.ratio),
            shift=min(self.shift, limits.shift),
            flip=self.flip if limits.flip else 0.0,
            vflip=self.vflip if limits.vflip else 0.0,
            jitter=jitter,
            grey=self.grey if limits.grey else 0.0,
            blur=self.blur if limits.blur else 0.0,
            blur_sigma=_cut(self.blur_sigma, limits.blur_sigma),
            blur_kernel=min(self.blur_kernel, limits.blur_kernel),
        )


def _cut(given: tuple[float, float], allowed: tuple[float, float]) -> tuple[float, float]:
    """The part of a range that lies in another; its nearest end where they do not meet."""
    low = min(max(given[0], allowed[0]), allowed[1])
    return low, max(low, min(given[1], allowed[1]))


def augment(x: Tensor, recipe: Recipe, u: Tensor) -> Tensor:
    """One view of every image.

    Args:
        x: (n, c, h, w) float in [0, 1], c = 1 or 3; not changed.
        recipe: what varies.
        u: (n, recipe.uniforms) in [0, 1): all the randomness there is.

    Returns:
        (n, c, h, w) float in [0, 1]; row i depends on x[i] and u[i] only.
    """
    if u.shape != (len(x), recipe.uniforms):
        raise ValueError(f"u must be {(len(x), recipe.uniforms)}, not {tuple(u.shape)}")
    part = {name: u[:, columns] for name, columns in recipe._columns.items()}  # noqa: SLF001
    if part.keys() & {"crop", "shift", "flip", "vflip"}:
        x = _geometry(x, recipe, part)
    if "jitter" in part:
        x = torch.where(_lot(part["jitter"][:, 0], recipe.jitter_p),
                        _jitter(x, recipe, part["jitter"]), x)  # fmt: skip
    if "grey" in part and x.shape[1] > 1:
        x = torch.where(_lot(part["grey"][:, 0], recipe.grey), _luma(x).expand_as(x), x)
    if "blur" in part:
        x = _blur(x, recipe, part["blur"])
    return x


# ---- geometry ------------------------------------------------------------------------------------


def boxes(
    u: Tensor, height: int, width: int, recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Crop boxes as torchvision's RandomResizedCrop draws them.

    Args:
        u: (n, 22): ten draws of area and of ratio, then top and left.
        height: of the image.
        width: of the image.
        recipe: its ``crop`` and ``ratio``.

    Returns:
        top, left, height, width: each (n,) float holding whole pixels. The first draw that fits;
        where none does, the largest centred box of an allowed ratio.
    """
    low, high = recipe.crop or (1.0, 1.0)
    narrow, wide = recipe.ratio
    area = (low + (high - low) * u[:, :_ATTEMPTS]) * (height * width)
    spread = math.log(wide) - math.log(narrow)
    ratio = (math.log(narrow) + spread * u[:, _ATTEMPTS : 2 * _ATTEMPTS]).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    any_fits = fits.any(1)
    whole = width / height
    fall_w = round(height * wide) if whole > wide else width
    fall_h = round(width / narrow) if whole < narrow else height
    w = w.gather(1, first).squeeze(1).where(any_fits, w.new_tensor(float(fall_w)))
    h = h.gather(1, first).squeeze(1).where(any_fits, h.new_tensor(float(fall_h)))
    top = (u[:, -2] * (height - h + 1)).floor()
    left = (u[:, -1] * (width - w + 1)).floor()
    top = top.where(any_fits, ((height - h) / 2).floor())
    left = left.where(any_fits, ((width - w) / 2).floor())
    return top, left, h, w


def _geometry(x: Tensor, recipe: Recipe, part: dict[str, Tensor]) -> Tensor:
    n, _, height, width = x.shape
    if "crop" in part:
        top, left, h, w = boxes(part["crop"], height, width, recipe)
        rows, columns = _resize(top, h, height), _resize(left, w, width)
    else:
        rows = torch.eye(height, device=x.device).expand(n, -1, -1)
        columns = torch.eye(width, device=x.device).expand(n, -1, -1)
    moved = part.get("shift")
    for axis, flip in ((0, "vflip"), (1, "flip")):
        matrix = rows if axis == 0 else columns
        by = None if moved is None else moved[:, axis]
        matrix = _moved(matrix, recipe.shift, by, part.get(flip), getattr(recipe, flip))
        rows, columns = (matrix, columns) if axis == 0 else (rows, matrix)
    return _sandwich(rows, x, columns)


def _resize(start: Tensor, length: Tensor, size: int) -> Tensor:
    """(n, size, size) weights that resize pixels start..start + length to ``size`` pixels.

    The antialiased triangle filter: a pixel's weight falls linearly with its distance from the
    centre of the output pixel, in units of max(scale, 1) pixels.
    """
    at = torch.arange(size, device=start.device, dtype=torch.float32)
    scale = (length / size)[:, None, None]
    centre = start[:, None, None] + scale * (at + 0.5)[None, :, None]
    pixel = (at + 0.5)[None, None, :]
    weight = (1 - (pixel - centre).abs() / scale.clamp_min(1)).clamp_min_(0)
    inside = (pixel > start[:, None, None]) & (pixel < (start + length)[:, None, None])
    weight = weight * inside
    return weight / weight.sum(2, keepdim=True)


def _moved(
    matrix: Tensor, shift: int, by: Tensor | None, flip: Tensor | None, chance: float
) -> Tensor:
    """The (n, out, in) matrix with its output pixels shifted and then mirrored."""
    n, size, _ = matrix.shape
    at = torch.arange(size, device=matrix.device).expand(n, -1)
    if flip is not None:
        at = torch.where(flip < chance, size - 1 - at, at)
    if by is None:
        return matrix if flip is None else matrix.gather(1, at[..., None].expand_as(matrix))
    at = at - ((by * (2 * shift + 1)).floor().long() - shift)[:, None]
    kept = (at >= 0) & (at < size)
    rows = matrix.gather(1, at.clamp(0, size - 1)[..., None].expand_as(matrix))
    return rows * kept[..., None]


def _sandwich(rows: Tensor, x: Tensor, columns: Tensor) -> Tensor:
    """rows (n, h, h) @ x (n, c, h, w) @ columns (n, w, w) transposed."""
    n, c, h, w = x.shape
    wide = torch.bmm(x.reshape(n, c * h, w), columns.transpose(1, 2)).view(n, c, h, w)
    return torch.matmul(rows[:, None], wide)


# ---- colour --------------------------------------------------------------------------------------


def _lot(u: Tensor, chance: float) -> Tensor:
    return (u < chance)[:, None, None, None]


def _luma(x: Tensor) -> Tensor:
    """(n, 1, h, w) greyscale."""
    r, g, b = _LUMA
    return (r * x[:, 0] + g * x[:, 1] + b * x[:, 2])[:, None] if x.shape[1] > 1 else x


def _jitter(x: Tensor, recipe: Recipe, u: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue; clamped after each, as torchvision does."""
    strengths = recipe.jitter or (0.0, 0.0, 0.0, 0.0)
    factor = [_factor(u[:, 1 + i], strengths[i]) for i in range(3)]
    turn = ((2 * u[:, 4] - 1) * strengths[3])[:, None, None]
    rotate = _rotate_hsv if recipe.hue == "hsv" else _rotate_yiq

    def contrast(x: Tensor) -> Tensor:
        mean = _luma(x).mean((1, 2, 3), keepdim=True)
        return (mean + factor[1] * (x - mean)).clamp_(0, 1)

    def saturation(x: Tensor) -> Tensor:
        grey = _luma(x)
        return (grey + factor[2] * (x - grey)).clamp_(0, 1)

    steps: list[Callable[[Tensor], Tensor] | None] = [
        (lambda x: (factor[0] * x).clamp_(0, 1)) if strengths[0] else None,
        contrast if strengths[1] else None,
        saturation if strengths[2] and x.shape[1] > 1 else None,
        (lambda x: rotate(x, turn)) if strengths[3] and x.shape[1] > 1 else None,
    ]
    if recipe.order == "fixed":
        for step in steps:
            x = step(x) if step else x
        return x
    orders = torch.tensor(list(itertools.permutations(range(4))), device=x.device)
    chosen = orders[(u[:, 5] * len(orders)).long()]
    for slot in range(4):
        turned = [(i, step(x)) for i, step in enumerate(steps) if step]
        for i, value in turned:
            x = torch.where((chosen[:, slot] == i)[:, None, None, None], value, x)
    return x


def _factor(u: Tensor, strength: float) -> Tensor:
    low = max(0.0, 1 - strength)
    return (low + (1 + strength - low) * u)[:, None, None, None]


def _rotate_hsv(x: Tensor, turn: Tensor) -> Tensor:
    """Hue of (n, 3, h, w) moved by ``turn`` (n, 1, 1) turns."""
    r, g, b = x.unbind(1)
    value, least = x.amax(1), x.amin(1)
    chroma = value - least
    safe = chroma.where(chroma > 0, torch.ones_like(chroma))
    sixth = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )
    sixth = torch.where(chroma > 0, sixth, torch.zeros_like(sixth)) + 6 * turn
    channels = []
    for offset in (5, 3, 1):
        k = (offset + sixth) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, 1)


def _rotate_yiq(x: Tensor, turn: Tensor) -> Tensor:
    """Chroma of (n, 3, h, w) rotated by ``turn`` (n, 1, 1) turns in YIQ."""
    to = x.new_tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
    angle = 2 * math.pi * turn.flatten()
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    spin = torch.stack([zero + 1, zero, zero, zero, cos, -sin, zero, sin, cos], 1).view(-1, 3, 3)
    matrix = torch.linalg.inv(to) @ spin @ to
    return torch.bmm(matrix, x.flatten(2)).view_as(x).clamp_(0, 1)


# ---- blur ----------------------------------------------------------------------------------------


def _blur(x: Tensor, recipe: Recipe, u: Tensor) -> Tensor:
    """Gaussian blur with reflected edges, as a banded matrix per axis; identity where not drawn."""
    low, high = recipe.blur_sigma
    sigma = low + (high - low) * u[:, 1:2]
    half = recipe.blur_kernel // 2
    if half >= min(x.shape[2:]):
        raise ValueError(f"blur_kernel {recipe.blur_kernel} is too wide for {tuple(x.shape[2:])}")
    taps = torch.arange(-half, half + 1, device=x.device, dtype=torch.float32)
    kernel = (-0.5 * (taps / sigma) ** 2).exp()
    kernel = kernel / kernel.sum(1, keepdim=True)
    kernel = torch.where(u[:, :1] < recipe.blur, kernel, (taps == 0).float())
    rows, columns = (
        torch.einsum("nk,koi->noi", kernel, _bands(size, half, str(x.device)))
        for size in x.shape[2:]
    )
    return _sandwich(rows, x, columns)


@functools.cache
def _bands(size: int, half: int, device: str) -> Tensor:
    """(taps, size, size): which input pixel each tap of each output pixel reads."""
    at = torch.arange(size)[None] + torch.arange(-half, half + 1)[:, None]
    at = at.abs()
    at = torch.where(at >= size, 2 * (size - 1) - at, at)
    return torch.nn.functional.one_hot(at, size).float().to(device)
