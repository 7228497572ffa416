"""Rows are decoded once, kept in a file, and decoded again if anything changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from privbench import BadInputError
from privbench.toolbox import mapped_array
from privbench.toolbox.kept_rows import kept, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor


def _decoding(rows: np.ndarray, calls: list[int]) -> Callable[[], Iterator[np.ndarray]]:
    def decode() -> Iterator[np.ndarray]:
        calls.append(1)
        yield rows[:2]
        yield rows[2:]

    return decode


def _kept(
    shape: tuple[int, ...], made_from: list[object], decode: Callable[[], Iterator[np.ndarray]]
) -> Tensor:
    return kept("a", made_from, shape, np.uint8, decode).tensor()


ROWS = np.random.default_rng(0).integers(0, 256, (5, 3, 4), dtype=np.uint8)


def test_rows_are_decoded_once_and_again_if_a_source_changes(tmp_path: Path) -> None:
    source, calls = tmp_path / "source", list[int]()
    source.write_bytes(b"1")
    for content, made in ((b"1", 1), (b"1", 1), (b"22", 2), (b"22", 2)):
        if content != source.read_bytes():
            source.write_bytes(content)
        x = _kept((5, 3, 4), [stamp(source)], _decoding(ROWS, calls))
        assert x.dtype == torch.uint8
        assert torch.equal(x, torch.from_numpy(ROWS))
        assert len(calls) == made
    _kept((5, 3, 4), ["other", stamp(source)], _decoding(ROWS, calls))
    assert len(calls) == 3


def test_many_rows_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    for _ in range(2):
        held = kept("a", [1], (5, 3, 4), np.uint8, _decoding(ROWS, []))
        assert held.mapped is not None
        assert np.array_equal(held.values, ROWS)
    [file] = (tmp_path / "store" / "decoded").glob("a-*.npy")
    assert np.array_equal(np.load(file), ROWS)


def test_another_type_is_another_file(tmp_path: Path) -> None:
    for dtype in (np.uint8, np.float32):
        held = kept("a", [1], (5, 3, 4), dtype, _decoding(ROWS.astype(dtype), []))
        assert held.values.dtype == dtype
    assert len([*(tmp_path / "store" / "decoded").glob("a-*.npy")]) == 2


def test_rows_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    def decode() -> Iterator[np.ndarray]:
        yield ROWS[:1]
        raise BadInputError("no")

    with pytest.raises(BadInputError, match="no"):
        _kept((5, 3, 4), [1], decode)
    assert {file.suffix for file in (tmp_path / "store" / "decoded").iterdir()} <= {".lock"}


@pytest.mark.parametrize("damage", [b"", b"no numpy", None], ids=["empty", "other", "truncated"])
def test_a_damaged_file_is_decoded_again(tmp_path: Path, damage: bytes | None) -> None:
    calls: list[int] = []
    _kept((5, 3, 4), [1], _decoding(ROWS, calls))
    [file] = (tmp_path / "store" / "decoded").glob("a-*.npy")
    file.write_bytes(file.read_bytes()[:-1] if damage is None else damage)
    x = _kept((5, 3, 4), [1], _decoding(ROWS, calls))
    assert torch.equal(x, torch.from_numpy(ROWS))
    assert len(calls) == 2


@pytest.mark.parametrize(("promised", "said"), [(4, "hold 5 rows where 4"), (6, "hold 5 rows")])
def test_too_few_or_too_many_rows_are_refused_and_leave_nothing(
    tmp_path: Path, promised: int, said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        _kept((promised, 3, 4), [1], _decoding(ROWS, []))
    with pytest.raises(BadInputError, match=r"row 0 of the files has shape \(3, 4\), not \(3, 5\)"):
        _kept((5, 3, 5), [1], _decoding(ROWS, []))
    left = [f.suffix for f in (tmp_path / "store" / "decoded").iterdir()]
    assert set(left) <= {".lock"}


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInputError, match=r"a: decoded rows cannot be kept in .*PRIVBENCH_CACHE"):
        _kept((5, 3, 4), [1], _decoding(ROWS, []))
