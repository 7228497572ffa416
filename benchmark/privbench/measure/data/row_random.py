"""Random numbers that depend only on a row's content, not on state, order or device.

Methods that add noise to their answers, or augment their questions, use this module. A permuted
question then gets a permuted answer, a repeated row gets the same noise, and CPU and CUDA give the
same bits.
The generator is splitmix64 (Steele, Lea and Flood 2014, figure 17), counter-based: column j of the
row with key k is output j of a splitmix64 started at state k. Do not use it for cryptography.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
# elements per chunk: on a CPU as many as torch runs on one thread, which fit a cache; else 32 MiB
_CPU_CHUNK, _CHUNK = 1 << 15, 1 << 22
_FAR = 2.0**62  # beyond this, converting a float to int64 depends on the device


def row_keys(x: Tensor, scale: float) -> Tensor:
    """Return a 64-bit hash of each row's content.

    The hash is the first output of splitmix64 from state sum_j w_j x_j, with fixed random odd w_j.
    Two different rows of bytes have the same key with probability at most 2**-56, and never if they
    differ in one value only.

    Args:
        x: (n, ...). Integer or bool values are hashed as they are. Float values are hashed as
            round(x * scale), so that a uint8 image u and u / 255 have the same key at scale 255.
        scale: units per 1.0 of a float x; ignored for integers. Rows closer than about 1 / scale in
            every value may share a key.

    Returns:
        Keys (n,), int64, any value. They depend on a row's flat values, not on its shape.

    >>> image = torch.tensor([[0, 51], [255, 51]], dtype=torch.uint8)
    >>> torch.equal(row_keys(image, 255), row_keys(image / 255, 255))
    True
    """
    n, width = x.shape[0], math.prod(x.shape[1:])
    weights = _outputs(torch.zeros(1, dtype=torch.int64, device=x.device), width)[0] | 1
    sums = torch.empty(n, dtype=torch.int64, device=x.device)
    for rows in _chunks(n, width, x.device):
        values = _integers(x[rows], scale).reshape(sums[rows].shape[0], width)
        sums[rows] = (values * weights).sum(1)
    return _splitmix(sums)


def fold(keys: Tensor, *salts: int) -> Tensor:
    """Return new keys: each sequence of salts gives an independent stream.

    `fold(k, a, b)` equals `fold(fold(k, a), b)` and differs from `fold(k, b, a)`.

    >>> keys = torch.tensor([1, 2])
    >>> torch.equal(fold(keys, 3, 4), fold(fold(keys, 3), 4)), torch.equal(fold(keys, 3), keys)
    (True, False)

    Args:
        keys: (n,) int64.
        salts: integers, taken mod 2**64.

    Returns:
        Keys (n,), int64; unchanged if there are no salts.
    """
    for value in salts:
        word = torch.full((), _signed(value), dtype=torch.int64, device=keys.device)  # not sent
        keys = _splitmix(keys ^ _splitmix(word))
    return keys


def salt(*parts: str | int) -> int:
    """Return an integer in [0, 2**63) that depends on the parts, their types and their order.

    It is the same on every machine and in every process. Use it for `fold` and as the seed of a
    torch.Generator.

    >>> salt("noise", 1) == salt("noise", 1)
    True
    >>> len({salt("noise", 1), salt("noise", "1"), salt("noise1"), salt(1, "noise")})
    4
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def uniform(keys: Tensor, m: int) -> Tensor:
    """Return m uniform numbers per key: the top 24 bits of m outputs of splitmix64.

    Args:
        keys: (n,) int64. Use each key once: `uniform` and `normal` of the same key are correlated,
            so `fold` in a different salt for every purpose.
        m: numbers per key. A smaller m gives a prefix of a larger one.

    Returns:
        (n, m) float32 in [0, 1), multiples of 2**-24.

    >>> uniform(torch.tensor([0]), 2)  # splitmix64 of 0: E220A8397B1DCDAF, 6E789E6AA1B965F4
    tensor([[0.8833, 0.4315]])
    """
    return _fill(keys, m, lambda bits: _shift(bits, 40).float() * 2.0**-24)


def normal(keys: Tensor, m: int) -> Tensor:
    """Return m standard normal numbers per key, by inverting the distribution function.

    Computed in float64, with operations that IEEE 754 rounds exactly, because the log or ndtri of
    different devices may differ in the last bit.

    Args:
        keys: (n,) int64; use each key once, see `uniform`.
        m: numbers per key.

    Returns:
        (n, m) float32, within +-6.4: probabilities are (i + 1/2) / 2**32 with i the top 32 bits.

    >>> normal(torch.tensor([0]), 2)  # probabilities 0.8833 and 0.4315
    tensor([[ 1.1917, -0.1725]])
    """
    return _fill(keys, m, lambda bits: _ndtri((_shift(bits, 32).double() + 0.5) * 2.0**-32))


def _integers(x: Tensor, scale: float) -> Tensor:
    """Return x as int64; a float x is converted by round(x * scale)."""
    if not x.is_floating_point():
        return x.long()
    scaled = (x.double() * scale).nan_to_num(_FAR, _FAR, -_FAR)
    return scaled.clamp(-_FAR, _FAR).round().long()


def _chunks(n: int, width: int, device: torch.device) -> Iterator[slice]:
    """Return slices that cover n rows of `width` elements, one chunk of elements each."""
    size = _CPU_CHUNK if device.type == "cpu" else _CHUNK
    step = max(1, size // max(1, width))
    return (slice(start, start + step) for start in range(0, n, step))


def _fill(keys: Tensor, m: int, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Transform m splitmix64 outputs per key, in chunks of rows; return (n, m) float32."""
    out = torch.empty(keys.shape[0], m, dtype=torch.float32, device=keys.device)
    for rows in _chunks(keys.shape[0], m, keys.device):
        out[rows] = transform(_outputs(keys[rows], m))
    return out


def _outputs(keys: Tensor, m: int) -> Tensor:
    """Return the first m outputs, (n, m) int64, of the splitmix64 started at each key."""
    counters = torch.arange(m, device=keys.device)
    return _splitmix(keys[:, None] + counters * _signed(_GAMMA))


def _splitmix(state: Tensor) -> Tensor:
    """Return the first output of splitmix64 from each int64 state."""
    z = state + _signed(_GAMMA)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Return z >> bits with zeros shifted in, since int64's own shift would repeat the sign."""
    return (z >> bits) & (_MASK >> bits)


def _signed(word: int) -> int:
    """Return the int64 with the same 64 bits as `word` mod 2**64."""
    return ((word + (1 << 63)) & _MASK) - (1 << 63)


# Wichura (1988), algorithm AS 241, PPND16: numerators and denominators, highest power first.
_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_ATANH = tuple(1 / (2 * i + 1) for i in reversed(range(10)))  # in powers of the square


def _ndtri(p: Tensor) -> Tensor:
    """Return the normal quantile of p, float64 in [2**-33, 1 - 2**-33], by AS 241.

    Its third branch, for p below exp(-25), is never needed.
    """
    q = p - 0.5
    r = 0.180625 - q * q
    centre = q * (_polynomial(_CENTRE[0], r) / _polynomial(_CENTRE[1], r))
    r = (-_log(torch.minimum(p, 1 - p))).sqrt() - 1.6
    tail = _polynomial(_TAIL[0], r) / _polynomial(_TAIL[1], r)
    return torch.where(q.abs() <= 0.425, centre, torch.where(q < 0, -tail, tail))  # noqa: PLR2004


def _log(p: Tensor) -> Tensor:
    """Return log p to about 1e-13, by arithmetic only: log m = 2 atanh((m - 1) / (m + 1))."""
    mantissa, exponent = torch.frexp(p)
    low = mantissa < math.sqrt(0.5)
    m = torch.where(low, 2 * mantissa, mantissa)
    s = (m - 1) / (m + 1)
    return (exponent - low.int()).double() * math.log(2) + 2 * s * _polynomial(_ATANH, s * s)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Return the polynomial at x by Horner's rule, without fused multiply-add."""
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
