"""Large sets are memory-mapped: they need much less memory than they have bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from privbench import BadInputError, Card, Examples, Part, Protocol
from privbench.measure.data import examples as module
from privbench.measure.data.examples import adopted, join
from privbench.measure.data.row_random import salt
from privbench.measure.data.split import _drawn, cut
from privbench.measure.data.validation import validated
from privbench.toolbox import mapped_array
from privbench.toolbox.mapped_array import Array, Arrays

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N, CLASSES = 700, 3
PROTOCOL = Protocol(
    members=Part(60, "old"), nonmembers=70, reference=20, pool=200, public=10, test=90
)


def write_npz(file: Path, n: int, shape: tuple[int, ...], dtype: Any) -> None:
    """Write an archive, not compressed, block by block: rows differ, classes take turns."""
    noise = np.random.default_rng(0).integers(0, 256, (64, *shape), dtype=np.uint8)
    head = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, {**head, "shape": (n, *shape)})
            for start in range(0, n, len(noise)):
                block = noise[: n - start].copy()
                flat = block.reshape(len(block), -1)
                flat[:, :4] = np.arange(start, start + len(block), dtype=">u4")[:, None].view(
                    np.uint8
                )
                values = block if dtype == np.uint8 else (block / 255).astype(dtype)
                member.write(values.tobytes())
        with archive.open("y.npy", "w") as member:
            np.lib.format.write_array(member, np.arange(n) % CLASSES)


def card(kind: Any = "image", shape: tuple[int, ...] = (1, 4, 4), scale: float = 255) -> Card:
    return Card(name="set", kind=kind, shape=shape, classes=CLASSES, scale=scale,
                attributes={"a": 2}, sources={"old": 300, "new": N - 300})  # fmt: skip


@pytest.fixture(params=["uint8", "float32"])
def both(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same rows in memory and mapped, and their card; blocks hold a few rows."""
    monkeypatch.setattr(module, "BLOCK", 1 << 18)  # 4 rows of 64 kB, or many in order
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (N, 1, 4, 4), generator=generator, dtype=torch.uint8)
    x[10:20] = x[0]  # equal rows
    scale = 255.0
    if request.param == "float32":
        x, scale = x.float() / 255, 2.0**20
    np.save(tmp_path / "x.npy", x.numpy())
    held = Arrays(tmp_path / "x.npy").read("x")
    assert held.mapped is not None
    y = torch.randint(CLASSES, (N,), generator=generator)
    given: dict[str, Any] = {
        "attributes": {"a": y % 2}, "scale": scale, "source": (torch.arange(N) >= 300).long(),
    }  # fmt: skip
    memory = Examples.of(x, y, **given)
    return memory, Examples.of(held.tensor(), y, **given, mapped=held.mapped), card(scale=scale)


def same(one: Examples, other: Examples) -> bool:
    columns = [(one.x, other.x), (one.y, other.y), (one.index, other.index),
               (one.keys, other.keys), (one.source, other.source),
               (one.attributes["a"], other.attributes["a"])]  # fmt: skip
    return all(torch.equal(a, b) for a, b in columns)


def test_rows_are_the_same_in_memory_and_mapped(both: Any) -> None:
    memory, mapped, _ = both
    assert torch.equal(memory.keys, mapped.keys)
    assert memory.digest(attributes=["a"]) == mapped.digest(attributes=["a"])
    at = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:333]
    for rows in (at, memory.y == 1, slice(3, 40), at[:0]):
        read = mapped.select(rows)
        assert read.mapped is None
        assert same(memory.select(rows), read)
    assert mapped.to("cpu") is mapped
    assert mapped.private().mapped is None


def test_selected_rows_are_no_longer_of_the_file(both: Any) -> None:
    _, mapped, _ = both
    mapped.select(slice(0, 5)).x.zero_()
    assert bool(mapped.x[:5].any())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("inclusion", ["size", "coin"])
def test_splits_are_the_same_in_memory_and_mapped(both: Any, seed: int, inclusion: Any) -> None:
    memory, mapped, told = both
    protocol = replace(PROTOCOL, inclusion=inclusion) if inclusion == "size" else Protocol(
        members=60, nonmembers=60, pool=200, inclusion="coin"
    )  # fmt: skip
    one, other = (cut(rows, told, protocol, seed) for rows in (memory, mapped))
    for name in ("candidates", "public", "downstream", "reference", "pool", "test"):
        assert same(getattr(one, name), getattr(other, name)), name
        assert getattr(other, name).mapped is None
    assert torch.equal(one.member, other.member)
    assert len(one.spare) == len(other.spare) > 0
    assert same(one.spare.read(), other.spare.read())
    assert one.null_apart
    assert same(one.null().members, other.null().members)
    assert same(one.offline(3)[0].members, other.offline(3)[0].members)
    if not memory.x.is_floating_point():  # of mapped floats only the keys count
        assert one.digest == other.digest


def test_only_parts_go_to_another_device(both: Any) -> None:
    """Device ``meta`` stands for CUDA."""
    _, mapped, told = both
    split = cut(mapped, told, PROTOCOL, 0, device=torch.device("meta"))
    for name in ("candidates", "public", "downstream", "reference", "pool", "test"):
        part = getattr(split, name)
        assert {part.x.device.type, part.keys.device.type, part.y.device.type} == {"meta"}, name
    assert split.member.device.type == split.spare.columns.device.type == "meta"
    assert split.spare.x is mapped.x


def test_the_null_victim_draws_from_spare_and_test_rows(both: Any) -> None:
    """It draws as it would from all of these rows in memory."""
    memory, _, told = both
    split = cut(memory, told, PROTOCOL, 0)
    outside = join([split.spare.read(), split.test])
    members = split.null().members
    assert bool(torch.isin(members.index, outside.index).all())
    assert bool(torch.isin(members.index, split.test.index).any())
    assert bool(torch.isin(members.index, split.spare.columns.index).any())
    (drawn,) = _drawn(outside, [split.size], salt(0, "null", 0))
    assert same(drawn, members)


def test_validation_passes_and_finds_the_same(both: Any) -> None:
    memory, mapped, told = both
    assert validated(mapped, told) is mapped
    if memory.x.is_floating_point():
        with pytest.raises(BadInputError, match="different rows have only"):
            validated(replace(mapped, scale=1.0), replace(told, scale=1.0))
    else:
        low = replace(told, scale=100.0)
        with pytest.raises(BadInputError, match=r"x lies in \[0, 255\], not in \[0, 100\]"):
            validated(replace(mapped, scale=100.0), low)


def test_a_nan_is_found_in_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 640)
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    x = np.random.default_rng(0).random((N, 1, 4, 4), dtype=np.float32)
    x[456, 0, 1, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    held = Arrays(tmp_path / "x.npy").read("x")
    rows = Examples.of(
        held.tensor(), torch.arange(N) % CLASSES, {"a": torch.zeros(N, dtype=torch.int64)},
        scale=2.0**20, mapped=held.mapped, source=(torch.arange(N) >= 300).long(),
    )  # fmt: skip
    with pytest.raises(BadInputError, match="x is NaN, first in row 456"):
        validated(rows, card(scale=2.0**20))


def test_a_file_that_changes_under_a_map_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    np.save(tmp_path / "x.npy", np.arange(N * 16, dtype=np.uint8).reshape(N, 1, 4, 4))
    held = Arrays(tmp_path / "x.npy").read("x")
    rows = Examples.of(held.tensor(), torch.zeros(N).long(), scale=255, mapped=held.mapped)
    assert len(rows.keys) == N
    with (tmp_path / "x.npy").open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"\xff")
    assert len(rows.select(slice(0, N - 1))) == N - 1
    with pytest.raises(BadInputError, match="a data file changed while it was used"):
        rows.select(slice(N - 1, None))


def test_a_pool_from_a_mapped_set_is_as_large_as_the_victims(both: Any) -> None:
    memory, mapped, told = both
    split = cut(memory, told, PROTOCOL, 0)
    rows, taken = adopted(mapped, told, told)
    assert rows.mapped is not None
    foreign = split.foreign(rows, taken)
    assert len(foreign.pool) == len(split.pool)
    assert foreign.pool.mapped is None
    small, _ = adopted(mapped, told, card(shape=(3, 2, 2)))
    if memory.scale == 255:
        assert torch.equal(small.x, adopted(memory, told, card(shape=(3, 2, 2)))[0].x)


# ---- arrays in files ----


def _saved(file: Path, save: Callable[..., None], **arrays: np.ndarray) -> Arrays:
    save(file, **arrays)
    return Arrays(file)


def test_stored_members_are_mapped_and_compressed_ones_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "LARGE", 100)
    x = np.random.default_rng(0).random((50, 3), dtype=np.float32)
    small = np.arange(5)
    stored = _saved(tmp_path / "a.npz", np.savez, first=small, x=x)
    packed = _saved(tmp_path / "b.npz", np.savez_compressed, first=small, x=x)
    assert stored.names == packed.names == ["first", "x"]
    for arrays, mapped in ((stored, True), (packed, False)):
        held = arrays.read("x")
        assert (held.mapped is not None) is mapped
        assert np.array_equal(held.values, x)
        assert np.array_equal(arrays.read("first").values, small)
        assert torch.equal(held.tensor(), torch.from_numpy(x))
        assert np.array_equal(np.concatenate(list(held.blocks())), x)
    stored.read("x").tensor().zero_()
    assert np.array_equal(stored.read("x").values, x)  # the file has not changed


def test_columns_first_and_other_byte_orders_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    x = np.asfortranarray(np.random.default_rng(0).random((50, 3)))
    assert np.array_equal(_saved(tmp_path / "a.npz", np.savez, x=x).read("x").values, x)


def test_objects_and_short_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    np.save(tmp_path / "o.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        Arrays(tmp_path / "o.npy").read("x")
    np.save(tmp_path / "x.npy", np.zeros(1000))
    held = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(held[:-1])
    with pytest.raises(ValueError, match="ends too early"):
        Arrays(tmp_path / "x.npy").read("x")


# ---- memory ----

_MEASURED = """
import json, resource, sys
import torch
from privbench import Protocol
from privbench.measure.data.split import cut
from privbench.measure.data.validation import validated
from privbench_plugins.datasets.npz import Npz

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

begun = peak()
data = Npz(path=sys.argv[1])
card = data.card(None)
rows = validated(data.load(None), card)
protocol = Protocol(members=20, nonmembers=20, reference=5, pool=50, test=20)
split = cut(rows, card, protocol, 0)
split.digest, split.null(), split.offline(0)
print(json.dumps({"begun": begun, "peak": peak(), "members": split.size, "rows": len(rows)}))
"""


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.slow
def test_a_large_set_needs_less_memory_than_it_has_bytes(tmp_path: Path, dtype: Any) -> None:
    """256 MB: digest, card, load, validation, split and worlds take at most 100 MB."""
    file, width, size = tmp_path / "large.npz", 12_288, np.dtype(dtype).itemsize
    n = 256_000_000 // (width * size)
    write_npz(file, n, (width,), dtype)
    assert file.stat().st_size > 255_000_000
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(file)], check=True, capture_output=True, text=True
    )
    told = json.loads(done.stdout)
    assert told["rows"] == n
    assert told["peak"] - told["begun"] < 100_000_000, told


def test_an_array_in_memory_is_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "BLOCK", 10)
    assert [len(block) for block in Array(np.zeros((7, 4), np.uint8)).blocks()] == [2, 2, 2, 1]
