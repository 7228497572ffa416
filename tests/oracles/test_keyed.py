"""Keyed random numbers against a pure-Python splitmix64, scipy's distributions and each other."""

import pytest
import torch
from scipy import special, stats

from privbench.measure.data.row_random import fold, normal, row_keys, salt, uniform

MASK = 0xFFFFFFFFFFFFFFFF
GAMMA = 0x9E3779B97F4A7C15
KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 1234567, -987654321]
N = 20_000


def splitmix64(state: int) -> int:
    z = (state + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def words(keys: torch.Tensor) -> list[int]:
    return [int(key) & MASK for key in keys]


def distinct(keys: torch.Tensor) -> int:
    return len(set(keys.tolist()))


def test_published_first_outputs() -> None:
    # the reference stream of splitmix64 from state 1234567
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [splitmix64(1234567 + i * GAMMA) for i in range(4)] == want


def test_uniform_is_splitmix64() -> None:
    got = uniform(torch.tensor(KEYS), 5)
    want = [[(splitmix64(k + j * GAMMA) >> 40) / 2**24 for j in range(5)] for k in KEYS]
    assert got.dtype == torch.float32
    assert got.tolist() == want


def test_normal_is_the_quantile_of_the_top_32_bits() -> None:
    got = normal(torch.tensor(KEYS), 400).double()
    want = [
        [special.ndtri(((splitmix64(k + j * GAMMA) >> 32) + 0.5) / 2**32) for j in range(400)]
        for k in KEYS
    ]
    torch.testing.assert_close(got, torch.tensor(want).double(), rtol=1e-7, atol=0)


def test_quantiles_in_both_tails() -> None:
    from privbench.measure.data.row_random import _ndtri

    low = torch.logspace(-33, -1.01, 2000, base=2, dtype=torch.float64)
    p = torch.cat([low, 1 - low, torch.linspace(0.01, 0.99, 2000, dtype=torch.float64)])
    torch.testing.assert_close(_ndtri(p), torch.special.ndtri(p), rtol=1e-11, atol=1e-12)


def test_row_keys_are_the_hash_of_the_docstring() -> None:
    x = torch.tensor([[3, -7, 0], [0, 0, 0]])
    weights = [splitmix64(j * GAMMA) | 1 for j in range(3)]
    want = [splitmix64(sum(w * v for w, v in zip(weights, r, strict=True))) for r in x.tolist()]
    assert words(row_keys(x, 1.0)) == want


def test_fold_is_the_hash_of_the_docstring() -> None:
    keys = torch.tensor(KEYS)
    want = [splitmix64((k & MASK) ^ splitmix64(-5 & MASK)) for k in KEYS]
    assert words(fold(keys, -5)) == want
    assert torch.equal(fold(keys, 3, 4), fold(fold(keys, 3), 4))
    assert not torch.isin(fold(keys, 3, 4), fold(keys, 4, 3)).any()
    assert torch.equal(fold(keys), keys)


def test_salt_is_stable_and_injective_on_parts() -> None:
    assert salt("mia", -3, "x") == 3760406680999891178  # sha256, not Python's per-process hash
    parts: list[tuple[str | int, ...]] = [("a", "b"), ("b", "a"), ("ab",), ("a,b",), (1,), ("1",)]
    values = {salt(*p) for p in parts}
    assert len(values) == len(parts)
    assert all(0 <= value < 2**63 for value in values)
    torch.Generator().manual_seed(max(values))


@pytest.mark.parametrize("keys", ["rows", "consecutive"])
def test_equidistribution_and_independence(keys: str) -> None:
    index = torch.arange(N)
    k = row_keys(index, 1.0) if keys == "rows" else index
    u, z = uniform(k, 4), normal(k, 4)
    assert 0 <= u.min() <= u.max() < 1
    for j in range(4):
        assert stats.kstest(u[:, j].numpy(), "uniform").pvalue > 1e-4
        assert stats.kstest(z[:, j].numpy(), "norm").pvalue > 1e-4
    streams = torch.cat([z, normal(fold(k, 1), 4), normal(fold(k, 2), 4)], 1)
    off_diagonal = torch.corrcoef(streams.T) - torch.eye(12)
    assert off_diagonal.abs().max() < 4.5 / N**0.5
    squares = torch.corrcoef(streams.square().T) - torch.eye(12)
    assert squares.abs().max() < 4.5 / N**0.5
    for lag in (1, 2, 3):  # neighbours among the keys
        pair = torch.corrcoef(torch.stack([z[:-lag, 0], z[lag:, 0]]))[0, 1]
        assert abs(pair) < 4.5 / N**0.5


def test_every_bit_of_a_key_changes_half_of_the_outputs_bits() -> None:
    base = row_keys(torch.arange(500), 1.0)
    for bit in range(64):
        flip = (1 << bit) - (1 << 64 if bit == 63 else 0)
        changed = fold(base, 0) ^ fold(base ^ flip, 0)
        ones = sum(word.bit_count() for word in words(changed)) / (64 * 500)
        assert abs(ones - 0.5) < 0.02


def test_no_collisions_among_one_pixel_changes() -> None:
    pixels, values = 800, 250
    x = torch.full((pixels * values, pixels), 255, dtype=torch.uint8)
    row = torch.arange(len(x))
    x[row, row // values] = (row % values).to(torch.uint8)
    assert distinct(row_keys(x, 255)) == len(x)


def test_no_collisions_among_consecutive_rows() -> None:
    i = torch.arange(200_000)
    x = torch.stack([i // 500, i % 500], 1)
    keys = torch.cat([row_keys(x, 1.0), row_keys(x.flip(1) + 1000, 1.0)])
    assert distinct(keys) == 400_000


def test_permutation_equivariance() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (3000, 3, 16, 16), generator=generator, dtype=torch.uint8)  # 3 chunks
    order = torch.randperm(len(x), generator=generator)
    keys = row_keys(x, 255)
    assert torch.equal(row_keys(x[order], 255), keys[order])
    assert torch.equal(normal(keys[order], 700), normal(keys, 700)[order])
    assert torch.equal(row_keys(x[7:8], 255), keys[7:8])
    assert torch.equal(normal(keys, 3), normal(keys, 700)[:, :3])


def test_layout_and_dtype_do_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (50, 3, 8, 8), generator=generator, dtype=torch.uint8)
    keys = row_keys(x, 255)
    assert keys.shape == (50,)
    assert keys.dtype == torch.int64
    variants = [
        x.float() / 255,
        x.double() / 255,
        x.half() / 255,
        x.long(),
        x.flatten(1),
        x.to(memory_format=torch.channels_last),
    ]
    for variant in variants:
        assert torch.equal(row_keys(variant, 255), keys)


def test_degenerate_shapes() -> None:
    assert row_keys(torch.empty(0, 3), 1.0).shape == (0,)
    assert distinct(row_keys(torch.empty(2, 0), 1.0)) == 1
    assert distinct(row_keys(torch.tensor([True, False]), 1.0)) == 2
    keys = torch.arange(3)
    assert uniform(keys, 0).shape == (3, 0)
    assert normal(keys[:0], 2).shape == (0, 2)
    far = torch.tensor([torch.nan, -torch.inf, 1.0, 1e30])
    assert distinct(row_keys(far, 1.0)) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with a GPU")
def test_cuda_gives_the_same_bits() -> None:
    x = torch.rand(5000, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    keys = row_keys(x, 255)
    assert torch.equal(row_keys(x.cuda(), 255).cpu(), keys)
    assert torch.equal(fold(keys.cuda(), 5, -6).cpu(), fold(keys, 5, -6))
    assert torch.equal(uniform(keys.cuda(), 300).cpu(), uniform(keys, 300))
    assert torch.equal(normal(keys.cuda(), 2000).cpu(), normal(keys, 2000))
