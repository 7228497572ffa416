"""Datasets: what the card promises is what is loaded; attributes mean what they say."""

import hashlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torch import Tensor

from privbench import BadInputError, Dataset, Examples
from privbench.measure.data.protocol import PROTOCOLS
from privbench.measure.data.split import cut
from privbench.testing import Check, checks
from privbench.toolbox import published, views
from privbench_plugins.datasets.digits import Digits, ink, skew, upper_half
from privbench_plugins.datasets.torchvision_images import CIFAR10, CIFAR100, MNIST, FashionMNIST

DOWNLOADED = [CIFAR10(), CIFAR100(), MNIST(), FashionMNIST()]
ALL = [Digits(), *DOWNLOADED]
FOLDERS = {
    "cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "mnist": "MNIST/raw",
    "fashion-mnist": "FashionMNIST/raw",
}  # fmt: skip
#: Part of where each is published, and its licence.
ORIGINS = {
    "cifar10": "~kriz/cifar.html (which names no licence)",
    "cifar100": "~kriz/cifar.html (which names no licence)",
    "mnist": "exdb/mnist/ (which names no licence)",
    "fashion-mnist": "zalandoresearch/fashion-mnist (MIT licence)",
}


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Digits().load(None)


# ---- every dataset ----


def test_importing_and_describing_reads_nothing_heavy() -> None:
    code = """
import sys
for name in (
    "digits", "torchvision_images", "published_tables", "utkface", "adult", "stl10", "celeba",
    "tiny_imagenet",
):
    module = __import__(f"privbench_plugins.datasets.{name}", fromlist=["x"])
    for made in module.privbench_datasets():
        assert made.card(None).name == made.name
        assert "default" in made.protocols
assert not {"torchvision", "sklearn", "PIL"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("data", ALL, ids=lambda data: data.name)
def test_default_protocol_fits(data: Dataset) -> None:
    sizes = data.protocols["default"].sizes(data.card(None))
    assert all(sizes[name] for name in ("members", "nonmembers", "reference", "pool", "test"))


def test_pictures_that_can_be_blurred_may_be() -> None:
    blurs = {side: (views.of_objects(side), views.of_grey(side)) for side in (3, 4, 15, 16, 32)}
    kernels = {side: [(v.blur, v.blur_kernel) for v in of] for side, of in blurs.items()}
    assert kernels == {
        side: [(float(kernel > 1), kernel)] * 2
        for side, kernel in ((3, 1), (4, 3), (15, 3), (16, 5), (32, 9))
    }
    assert views.of_objects(32).jitter == (0.8, 0.8, 0.8, 0.4)  # of SimCLR


def test_a_short_run_tests_on_other_rows_than_it_trains_on() -> None:
    parts = published.short_run(1_000, 4_000).parts()
    assert {name: (of.size, of.source) for name, of in parts.items() if of.size} == {
        "members": (1_000, "train"), "nonmembers": (1_000, "train"), "reference": (500, "train"),
        "pool": (4_000, "train"), "test": (2_000, "test"),
    }  # fmt: skip


@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_downloaded_ones_fit_every_built_in_protocol(data: Dataset) -> None:
    for name, protocol in PROTOCOLS.items():
        if name == "two-sets":
            continue  # its nonmembers are collected elsewhere
        assert sum(protocol.sizes(data.card(None)).values()) <= data.card(None).rows


@pytest.mark.parametrize("name", PROTOCOLS)
def test_digits_fit_a_built_in_protocol_or_name_all_that_does_not(name: str) -> None:
    card, protocol = Digits().card(None), PROTOCOLS[name]
    sourced = [part for part, wanted in protocol.parts().items() if wanted.source]
    if not sourced:
        assert sum(protocol.sizes(card).values()) <= 1797
        return
    with pytest.raises(BadInputError) as refusal:
        protocol.sizes(card)
    for part in sourced:
        assert f"{part} needs source" in str(refusal.value)


@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_default_nonmembers_come_from_where_the_members_do(data: Dataset) -> None:
    parts = data.protocols["default"].parts()
    assert {parts[name].source for name in ("members", "nonmembers", "pool")} == {"train"}
    assert parts["test"].source == "test"


# ---- digits ----


@pytest.mark.parametrize("check", checks(Digits()), ids=str)
def test_conformance(check: Check) -> None:
    check()


def test_digits_are_as_published(digits: Examples) -> None:
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.uint8
    assert int(digits.x.max()) == digits.scale == 16
    assert digits.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.y.dtype == digits.attributes["slant"].dtype == torch.int64
    assert len(set(digits.keys.tolist())) == 1797


def test_digits_allow_no_view_that_changes_an_attribute() -> None:
    limits = Digits().card(None).limits
    assert limits is not None
    assert not limits.flip
    assert not limits.vflip
    assert not limits.grey
    assert not limits.jitter


@pytest.mark.parametrize(("attribute", "measure"), [("slant", skew), ("weight", ink)])
def test_attributes_halve_each_class_at_its_median(
    digits: Examples, attribute: str, measure: Callable[[Tensor], Tensor]
) -> None:
    column, values = digits.attributes[attribute], measure(digits.x[:, 0])
    for k in range(10):
        mine = digits.y == k
        low, high = values[mine & (column == 0)], values[mine & (column == 1)]
        assert 0 <= len(low) - len(high) <= 1
        assert low.max() <= high.min()


def test_skew_is_the_slope_of_the_line_through_the_ink(digits: Examples) -> None:
    height, column = 7 - np.repeat(np.arange(8), 8), np.tile(np.arange(8), 8)
    for image in digits.x[:20, 0]:
        slope = np.polyfit(height, column, 1, w=image.flatten().double().sqrt().numpy())[0]
        assert float(skew(image[None])) == pytest.approx(slope, abs=1e-9)


def test_skew_is_positive_where_a_bar_leans_right() -> None:
    right = torch.zeros(8, 8, dtype=torch.uint8)
    for row in range(8):
        right[row, 5 - row // 2] = 16
    upright = torch.zeros_like(right)
    upright[:, 3] = 16
    lying = upright.T.contiguous()
    leaning, mirrored, *zero = skew(
        torch.stack([right, right.flip(1), upright, lying, torch.zeros_like(right)])
    ).tolist()
    assert leaning > 0.4
    assert mirrored == -leaning
    assert zero == [0, 0, 0]


def test_skew_changes_sign_under_a_flip_and_not_under_a_shift(digits: Examples) -> None:
    x = digits.x[:, 0]
    assert torch.equal(skew(x.flip(2)), -skew(x))
    assert torch.equal(skew(torch.nn.functional.pad(x, (2, 0, 0, 1))), skew(x))


def test_equal_values_are_ranked_by_position() -> None:
    assert upper_half(torch.zeros(5), torch.tensor([0, 1, 0, 1, 0])).tolist() == [0, 0, 0, 1, 1]


# ---- those that torchvision reads ----


def _write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Three rows in six files of the true format, with checksums of their own."""
    import torchvision.datasets

    folder = root / FOLDERS["cifar10"]
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    # One train batch of two rows, four empty ones, and one test row.
    rows = rng.integers(0, 256, (3, 3 * 32 * 32), dtype=np.uint8)
    slices = [slice(0, 2), *[slice(0, 0)] * 4, slice(2, 3)]
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    contents: dict[str, Any] = {
        name: {"data": rows[here], "labels": [7, 8, 9][here]}
        for name, here in zip(names, slices, strict=True)
    }
    contents["batches.meta"] = {"label_names": [str(i) for i in range(10)]}
    sums = {}
    for name, content in contents.items():
        held = pickle.dumps(content)
        (folder / name).write_bytes(held)
        sums[name] = hashlib.md5(held, usedforsecurity=False).hexdigest()
    made = torchvision.datasets.CIFAR10
    monkeypatch.setattr(made, "train_list", [[name, sums[name]] for name in names[:5]])
    monkeypatch.setattr(made, "test_list", [[names[5], sums[names[5]]]])
    monkeypatch.setattr(made, "meta", {**made.meta, "md5": sums["batches.meta"]})
    return torch.from_numpy(rows.reshape(3, 3, 32, 32))


def _write_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Two train rows and a test row in the true format, with checksums of their own."""
    import torchvision.datasets

    folder = root / FOLDERS["cifar100"]
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, 256, (3, 3 * 32 * 32), dtype=np.uint8)
    contents: dict[str, Any] = {
        name: {
            "filenames": [b"x.png"] * len(rows[here]), "batch_label": name,
            "fine_labels": [7, 8, 9][here], "coarse_labels": [1, 1, 1][here], "data": rows[here],
        }
        for name, here in {"train": slice(0, 2), "test": slice(2, 3)}.items()
    }  # fmt: skip
    contents["meta"] = {"fine_label_names": [str(i) for i in range(100)]}
    made, sums = torchvision.datasets.CIFAR100, {}
    for name, content in contents.items():
        held = pickle.dumps(content)
        (folder / name).write_bytes(held)
        sums[name] = hashlib.md5(held, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(made, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(made, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(made, "meta", {**made.meta, "md5": sums["meta"]})
    return torch.from_numpy(rows.reshape(3, 3, 32, 32))


def _write_mnist(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder_name: str = FOLDERS["mnist"]
) -> Tensor:
    """Two train rows and a test row in the idx format."""
    del monkeypatch
    folder = root / folder_name
    folder.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    for name, here in {"train": slice(0, 2), "t10k": slice(2, 3)}.items():
        images, labels = rows[here], np.array([7, 8, 9][here], dtype=np.uint8)
        for kind, array in {"images-idx3": images, "labels-idx1": labels}.items():
            head = np.array([0x800 + array.ndim, *array.shape], dtype=">i4").tobytes()
            (folder / f"{name}-{kind}-ubyte").write_bytes(head + array.tobytes())
    return torch.from_numpy(rows)[:, None]


WRITERS: dict[str, Callable[[Path, pytest.MonkeyPatch], Tensor]] = {
    "cifar10": _write_cifar10,
    "cifar100": _write_cifar100,
    "mnist": _write_mnist,
    "fashion-mnist": partial(_write_mnist, folder_name=FOLDERS["fashion-mnist"]),
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every download of torchvision fail at once."""
    import torchvision.datasets

    def refuse(*_: Any, **__: Any) -> None:
        raise URLError("no network")

    for module in (torchvision.datasets.cifar, torchvision.datasets.mnist):
        monkeypatch.setattr(module, "download_and_extract_archive", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_files_of_the_true_format_are_read(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = WRITERS[data.name](tmp_path, monkeypatch)
    small = replace(data.card(None), sources={"train": 2, "test": 1})
    monkeypatch.setattr(type(data), "card", lambda *_: small)
    rows = data.load(tmp_path)
    assert torch.equal(rows.x, x)
    assert rows.y.tolist() == [7, 8, 9]
    assert rows.source.tolist() == [0, 0, 1]
    assert rows.x.dtype == torch.uint8
    assert rows.y.dtype == torch.int64
    assert rows.scale == 255


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_a_short_set_is_refused(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[data.name](tmp_path, monkeypatch)
    with pytest.raises(BadInputError, match=r"holds 2 train and 1 test rows where .* published"):
        data.load(tmp_path)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_missing_files_say_what_where_and_what_to_do(data: Dataset, tmp_path: Path) -> None:
    folder = FOLDERS[data.name]
    where = f"{data.name}: {re.escape(folder)} is not in {re.escape(str(tmp_path))} and "
    with pytest.raises(BadInputError, match=where) as refusal:
        data.load(tmp_path)
    assert "no network" in str(refusal.value)
    assert "set --data-root or PRIVBENCH_DATA" in str(refusal.value)
    assert ORIGINS[data.name] in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_damaged_files_are_called_damaged(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[data.name](tmp_path, monkeypatch)
    for file in (tmp_path / FOLDERS[data.name]).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BadInputError, match=f"{data.name}: .* is incomplete or damaged in"):
        data.load(tmp_path)


def test_without_a_root_the_user_s_data_folder_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(home: Path, **_: Any) -> None:
        raise RuntimeError(f"asked {home}")

    monkeypatch.setattr(published, "user_data_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr("torchvision.datasets.MNIST", refuse)
    with pytest.raises(BadInputError, match=re.escape(f"asked {tmp_path / 'privbench'}")):
        MNIST().load(None)


# ---- real data ----


@pytest.mark.realdata
@pytest.mark.parametrize("data", DOWNLOADED, ids=lambda data: data.name)
def test_the_real_data_are_what_the_card_says(data: Dataset) -> None:
    root = Path(os.environ.get("PRIVBENCH_DATA", "/nonexistent"))
    if not (root / FOLDERS[data.name]).is_dir():
        pytest.skip(f"PRIVBENCH_DATA holds no {FOLDERS[data.name]}")
    card, rows = data.card(root), data.load(root)
    assert rows.x.shape == (card.rows, *card.shape)
    assert rows.x.dtype == torch.uint8
    assert rows.source.bincount().tolist() == [*card.sources.values()]
    assert rows.source.diff().min() >= 0
    assert set(rows.y.tolist()) == set(range(card.classes or 0))
    train = rows.x[rows.source == 0].float() / card.scale
    assert train.mean((0, 2, 3)).tolist() == pytest.approx(card.mean, abs=1e-3)
    split = cut(rows, card, data.protocols["default"], 0)
    assert set(split.candidates.source.tolist()) == {0}
    assert set(split.test.source.tolist()) == {1}
