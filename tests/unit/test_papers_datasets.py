"""STL-10, CelebA, Tiny-ImageNet, Purchase-100, Texas-100: read from files of the true format."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

import privbench
from privbench import BadInputError, Dataset
from privbench.measure.data.protocol import PROTOCOLS, Protocol
from privbench.measure.data.validation import validated
from privbench.testing import checks
from privbench.toolbox import published
from privbench_plugins.datasets import celeba, published_tables, stl10
from privbench_plugins.datasets.celeba import ATTRIBUTES, CelebA
from privbench_plugins.datasets.published_tables import Location30, Purchase100, Texas100
from privbench_plugins.datasets.stl10 import STL10
from privbench_plugins.datasets.tiny_imagenet import TinyImageNet

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = [Location30(), Purchase100(), Texas100()]
ALL = [STL10(), CelebA(), TinyImageNet(), *TABLES]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let downloads fail at once, and keep the user's own data out."""
    import torchvision.datasets

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)
    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", refuse)
    monkeypatch.setattr(torchvision.datasets.stl10, "download_and_extract_archive", refuse)
    monkeypatch.setattr(published, "user_data_dir", lambda _: str(tmp_path / "of-the-user"))


def _md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()


def _resize_card(monkeypatch: pytest.MonkeyPatch, of: type[Dataset], **fields: Any) -> None:
    """Let a dataset's card promise other sizes than the published ones."""
    published = of.card
    monkeypatch.setattr(of, "card", lambda self, root: replace(published(self, root), **fields))


# ---- all of them ----


def test_sizes_are_the_published_ones() -> None:
    cards = {data.name: data.card(None) for data in ALL}
    assert {name: (card.rows, card.shape, card.classes) for name, card in cards.items()} == {
        "stl10": (113_000, (3, 32, 32), 10),
        "celeba": (202_599, (3, 32, 32), 2),
        "tiny-imagenet": (110_000, (3, 64, 64), 200),
        "location-30": (5_010, (446,), 30),
        "purchase-100": (197_324, (600,), 100),
        "texas-100": (67_330, (6_169,), 100),
    }
    assert STL10().preset("paper").card(None).shape == (3, 96, 96)
    assert CelebA().preset("paper").card(None).shape == (3, 96, 96)


@pytest.mark.parametrize(
    ("data", "protocol"),
    [(data, protocol) for data in ALL for protocol in data.protocols.values()],
    ids=lambda given: given.name,
)
def test_every_protocol_of_its_own_fits(data: Dataset, protocol: Protocol) -> None:
    assert sum(protocol.sizes(data.card(None)).values()) <= data.card(None).rows
    assert data.protocols[protocol.name] is protocol


@pytest.mark.parametrize("data", ALL, ids=lambda data: data.name)
def test_every_built_in_protocol_fits_or_says_why(data: Dataset) -> None:
    card = data.card(None)
    for name, built_in in PROTOCOLS.items():
        protocol = data.protocols.get(name, built_in)
        needs = {part.source for part in protocol.parts().values() if part.source}
        if needs <= set(card.sources):
            assert protocol.sizes(card)
        else:
            with pytest.raises(BadInputError, match="needs source"):
                protocol.sizes(card)


def test_encodermi_s_published_sizes_are_those_of_its_section_5() -> None:
    for data in (STL10(), TinyImageNet()):
        protocol = {**PROTOCOLS, **data.protocols}["encodermi"]
        sizes = protocol.sizes(data.card(None))
        assert (sizes["members"], sizes["nonmembers"], sizes["pool"]) == (10_000, 10_000, 20_000)
    parts = STL10.protocols["encodermi"].parts()
    assert {name: part.source for name, part in parts.items() if part.size} == {
        "members": "unlabelled", "pool": "unlabelled", "nonmembers": "labelled",
        "downstream": "labelled",
    }  # fmt: skip


@pytest.mark.parametrize("given", [True, False], ids=["a root", "no root"])
@pytest.mark.parametrize("data", ALL, ids=lambda data: data.name)
def test_missing_files_say_what_where_and_under_which_licence(
    data: Dataset, tmp_path: Path, given: bool
) -> None:
    root = tmp_path if given else None
    with pytest.raises(BadInputError, match=re.escape(str(root or "of-the-user"))) as refusal:
        data.load(root)
    expected = {
        "stl10": ("stl10_binary is not in", "~acoates/stl10/", "non-commercial"),
        "celeba": ("celeba/ in", "img_align_celeba/", "list_attr_celeba.txt", "CelebA.html",
                   "non-commercial"),
        "tiny-imagenet": ("tiny-imagenet-200 is not in", "cs231n.stanford.edu", "non-commercial"),
        "location-30": ("dataset_location.tgz is not in", "privacytrustlab/datasets", "no licence",
                        "location/"),
        "purchase-100": ("dataset_purchase.tgz is not in", "privacytrustlab/datasets",
                         "no licence", "purchase/"),
        "texas-100": ("dataset_texas.tgz is not in", "privacytrustlab/datasets", "no licence",
                      "texas/"),
    }[data.name]  # fmt: skip
    for part in (f"{data.name}: ", *expected, "get ", "set --data-root or PRIVBENCH_DATA"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- STL-10 ----

#: Rows of the three files, and the labels of the first two, numbered from 1 as published.
STL_ROWS = {"train": 12, "test": 8, "unlabeled": 10}
STL_LABELS = {"train": [*range(1, 11), 1, 2], "test": [3, 4, 5, 6, 7, 8, 9, 10]}


def _write_stl10(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write the five files; return the pictures, (30, 3, 96, 96)."""
    import torchvision.datasets

    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    # Broad horizontal bands, so that resizing keeps the colours within them.
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (sum(STL_ROWS.values()), 3, 3, 1), dtype=np.uint8)
    x = x.repeat(32, axis=2).repeat(96, axis=3)
    start, sums = 0, {}
    for name, rows in STL_ROWS.items():
        # Published: "the values are stored in column-major order, one channel at a time".
        columns = x[start : start + rows].transpose(0, 1, 3, 2)
        (folder / f"{name}_X.bin").write_bytes(np.ascontiguousarray(columns).tobytes())
        if name in STL_LABELS:
            (folder / f"{name}_y.bin").write_bytes(bytes(STL_LABELS[name]))
        start += rows
    sums = {file.name: _md5(file) for file in folder.iterdir()}
    made = torchvision.datasets.STL10
    for listed in ("train_list", "test_list"):
        named = [[name, sums[name]] for name, _ in getattr(made, listed)]
        monkeypatch.setattr(made, listed, named)
    monkeypatch.setattr(stl10, "SOURCES", {"labelled": 20, "unlabelled": 10})
    return x


def test_stl10_is_read_from_its_binary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = _write_stl10(tmp_path, monkeypatch)
    data = STL10(size=96)
    rows = validated(data.load(tmp_path), data.card(tmp_path))
    assert torch.equal(rows.x, torch.from_numpy(x))
    assert rows.y.tolist() == [*(k - 1 for y in STL_LABELS.values() for k in y), *[-1] * 10]
    assert rows.source.tolist() == [0] * 20 + [1] * 10


@pytest.mark.parametrize("size", [32, 64])
def test_stl10_is_resized(size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _write_stl10(tmp_path, monkeypatch)
    rows = STL10(size=size).load(tmp_path)
    assert rows.x.shape == (30, 3, size, size)
    middle = [size // 6, size // 2, size - 1 - size // 6]
    for across in (0, size // 2, size - 1):
        assert torch.equal(rows.x[:, :, middle, across], torch.from_numpy(x[:, :, [16, 48, 80], 0]))


@pytest.mark.parametrize(("part", "here"), [("labelled", slice(20)), ("unlabelled", slice(20, 30))])
def test_stl10_loads_one_source(
    part: Any, here: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_stl10(tmp_path, monkeypatch)
    whole = STL10().load(tmp_path)
    monkeypatch.setattr(stl10, "_images", None)  # the pictures are there already
    data = STL10(rows=part)
    card = data.card(tmp_path)
    rows = validated(data.load(tmp_path), card)
    assert torch.equal(rows.x, whole.x[here])
    assert torch.equal(rows.y, whole.y[here])
    assert (card.classes, dict(card.sources)) == (
        {"labelled": 10, "unlabelled": None}[part], {part: len(rows)},
    )  # fmt: skip


def test_stl10_that_is_damaged_or_lacks_a_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_stl10(tmp_path, monkeypatch)
    file = tmp_path / "stl10_binary" / "unlabeled_X.bin"
    held = file.read_bytes()
    for content in (held[:-1], held[:-1] + b"\0", None):
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(BadInputError, match="stl10: stl10_binary is incomplete or damaged in"):
            STL10().load(tmp_path)


def test_stl10_of_other_sizes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_stl10(tmp_path, monkeypatch)
    monkeypatch.setattr(stl10, "SOURCES", {"labelled": 20, "unlabelled": 11})
    with pytest.raises(BadInputError, match="stl10: the files hold 30 rows where 31 were"):
        STL10().load(tmp_path)


def test_stl10_s_protocols_pre_train_on_unlabelled_rows_alone() -> None:
    for name in ("public-encoder", "public-encoder-pairs", "talos", "alm"):
        protocol = STL10.protocols[name]
        sources = {part: given.source for part, given in protocol.parts().items() if given.size}
        assert sources.pop("public") == "unlabelled"
        assert set(sources.values()) == {"labelled"}
        assert protocol.encoder[0] == "public"
        assert protocol.classifier == "members"


def test_stl10_trains_on_public_rows_and_its_null_victim_on_labelled_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: unlabelled rows train the encoder, and no classifier meets a row without y."""
    _write_stl10(tmp_path, monkeypatch)
    part = {"size": 4, "source": "labelled"}
    protocol = {
        "name": "tiny", "members": part, "nonmembers": part,
        "pool": {"size": 8, "source": "labelled"}, "public": {"size": 6, "source": "unlabelled"},
        "encoder": ["public"], "classifier": "members",
    }  # fmt: skip
    few = {"epochs": 1, "classifier_epochs": 1, "batch": 4, "backbone": "convnet"}
    [record] = privbench.run(
        {
            "datasets": ["stl10"], "protocols": [protocol], "attacks": ["metric-loss"],
            "targets": [{"simclr": few}], "seeds": 1,
        },
        data_root=tmp_path, out=tmp_path / "results", device="cpu",
    )  # fmt: skip
    assert record.status == "ok", record.reason


def test_unlabelled_rows_of_stl10_are_another_distribution_for_shadows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EncoderMI's adversary without the victim's data: no classes, and none are needed."""
    _write_stl10(tmp_path, monkeypatch)
    protocol = {
        "name": "tiny", "members": 3, "nonmembers": 3, "pool": 600, "downstream": 3,
        "classifier": "downstream", "shadow": 3,
    }  # fmt: skip
    few = {"epochs": 1, "classifier_epochs": 1, "batch": 3, "backbone": "mlp"}
    [record] = privbench.run(
        {
            "datasets": ["digits"], "protocols": [protocol], "attacks": ["encodermi-t"],
            "targets": [{"simclr": few}], "seeds": 1,
            "adversaries": [{"dataset": {"stl10": {"rows": "unlabelled"}}}],
        },
        data_root=tmp_path, out=tmp_path / "results", device="cpu",
    )  # fmt: skip
    assert record.status == "ok", record.reason


# ---- CelebA ----

#: Files -> partition.
CELEBA = {f"{i:06d}.jpg": part for i, part in enumerate([0, 0, 0, 0, 1, 2], start=1)}


def _write_celeba(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write tables and pictures of one colour each; return the attributes, (6, 40) of 0 and 1."""
    import torchvision.datasets

    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    values = np.random.default_rng(0).integers(0, 2, (6, 40))
    values[:, ATTRIBUTES.index("Male")] = [0, 1, 1, 0, 1, 0]
    signs = ["  1" if value else " -1" for value in values.flatten()]
    lines = [
        name + "".join(signs[40 * i : 40 * (i + 1)]) for i, name in enumerate(CELEBA)
    ]  # as published: two blanks before 1, one before -1
    tables = {
        "list_attr_celeba.txt": [str(len(CELEBA)), " ".join(ATTRIBUTES) + " ", *lines],
        "list_eval_partition.txt": [f"{name} {part}" for name, part in CELEBA.items()],
        "identity_CelebA.txt": [f"{name} {2880 + i}" for i, name in enumerate(CELEBA)],
        "list_bbox_celeba.txt": [
            str(len(CELEBA)), "image_id x_1 y_1 width height",
            *(f"{name}    95  71 226 313" for name in CELEBA),
        ],
        "list_landmarks_align_celeba.txt": [
            str(len(CELEBA)),
            " ".join(f"{of}_{axis}" for of in ("lefteye", "righteye", "nose", "leftmouth",
                                               "rightmouth") for axis in "xy"),
            *(f"{name}  69 109 106 113  77 142  73 152 108 154" for name in CELEBA),
        ],
    }  # fmt: skip
    for name, text in tables.items():
        (folder / name).write_text("\n".join(text) + "\n", encoding="ascii")
    for i, name in enumerate(CELEBA):
        made = Image.new("RGB", (178, 218), (40 * i, 100, 250 - 40 * i))
        made.save(folder / "img_align_celeba" / name, quality=95)
    published = torchvision.datasets.CelebA.file_list
    monkeypatch.setattr(
        torchvision.datasets.CelebA, "file_list",
        [(at, _md5(folder / name) if name in tables else sum_, name)
         for at, sum_, name in published],
    )  # fmt: skip
    _resize_card(monkeypatch, CelebA, sources={"train": 4, "valid": 1, "test": 1})
    return values


@pytest.mark.parametrize("size", [32, 64, 96])
def test_celeba_is_read_from_pictures_and_tables(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = _write_celeba(tmp_path, monkeypatch)
    data = CelebA(size=size)
    rows = validated(data.load(tmp_path), data.card(tmp_path))
    colours = torch.tensor([[40 * i, 100, 250 - 40 * i] for i in range(6)])
    assert rows.x.shape == (6, 3, size, size)
    assert (rows.x.long() - colours[:, :, None, None]).abs().max() <= 4  # JPEG
    assert rows.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert rows.source.tolist() == [0, 0, 0, 0, 1, 2]
    assert len(rows.attributes) == 40
    for i, name in enumerate(ATTRIBUTES):
        assert rows.attributes[name].tolist() == values[:, i].tolist()


def test_another_task_of_celeba_decodes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = _write_celeba(tmp_path, monkeypatch)
    first = CelebA().load(tmp_path)
    monkeypatch.setattr(celeba, "decoded", None)
    data = CelebA(task="High_Cheekbones")
    rows = data.load(tmp_path)
    assert torch.equal(rows.x, first.x)
    assert rows.y.tolist() == values[:, ATTRIBUTES.index("High_Cheekbones")].tolist()
    assert data.card(None).sensitive == CelebA().card(None).sensitive == ("Smiling",)
    assert CelebA(task="Smiling").card(None).sensitive == ("Male",)


def test_celeba_s_class_and_attribute_share_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_celeba(tmp_path, monkeypatch)
    rows = CelebA().load(tmp_path)
    rows.y.zero_()
    assert rows.attributes["Male"].tolist() == [0, 1, 1, 0, 1, 0]


def test_celeba_says_what_is_missing_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_celeba(tmp_path, monkeypatch)
    folder = tmp_path / "celeba"
    picture, table = folder / "img_align_celeba" / "000004.jpg", folder / "list_attr_celeba.txt"
    whole = picture.read_bytes()
    for content in (whole[: len(whole) // 2], b"no JPEG"):
        picture.write_bytes(content)
        with pytest.raises(BadInputError, match=r"celeba: .*000004\.jpg cannot be decoded"):
            CelebA().load(tmp_path)
    picture.unlink()
    with pytest.raises(BadInputError, match=r"1 of 6 pictures are missing, 000004\.jpg first"):
        CelebA().load(tmp_path)
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(BadInputError, match=r"celeba: a table in .* is damaged"):
        CelebA().load(tmp_path)
    table.unlink()
    with pytest.raises(BadInputError, match=r"celeba/ in .* lacks list_attr_celeba\.txt; get"):
        CelebA().load(tmp_path)


def test_celeba_with_too_few_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_celeba(tmp_path, monkeypatch)
    _resize_card(monkeypatch, CelebA, sources={"train": 5, "valid": 1, "test": 1})
    with pytest.raises(BadInputError, match="list 6 pictures where 7 were published"):
        CelebA().load(tmp_path)


# ---- Tiny-ImageNet ----

#: Classes as in wnids.txt, in no order; their train files; the val files with their classes.
WNIDS = ("n02124075", "n01443537", "n09428293")
VAL = {"val_0.JPEG": "n09428293", "val_1.JPEG": "n01443537", "val_10.JPEG": "n02124075"}


def _write_tiny_imagenet(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Write two train pictures of each class and the val ones; return greys, in their order."""
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n", encoding="ascii")
    greys = []
    for c, name in enumerate(sorted(WNIDS)):
        (folder / "train" / name / "images").mkdir(parents=True)
        boxes = folder / "train" / name / f"{name}_boxes.txt"
        boxes.write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n", encoding="ascii")
        for i in range(2):
            grey = 40 * c + 10 * i
            # Some of the published pictures have one channel.
            made = Image.new("L", (64, 64), grey) if i else Image.new("RGB", (64, 64), (grey,) * 3)
            made.save(folder / "train" / name / "images" / f"{name}_{i}.JPEG", quality=95)
            greys.append(grey)
    for i, name in enumerate(VAL):
        Image.new("RGB", (64, 64), (200 + 10 * i,) * 3).save(folder / "val" / "images" / name)
        greys.append(200 + 10 * i)
    lines = [f"{file}\t{name}\t0\t32\t44\t62" for file, name in VAL.items()]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
    _resize_card(monkeypatch, TinyImageNet, classes=3, sources={"train": 6, "test": 3})
    return greys


@pytest.mark.parametrize("size", [32, 64])
def test_tiny_imagenet_is_read_from_its_folders(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greys = torch.tensor(_write_tiny_imagenet(tmp_path, monkeypatch))
    data = TinyImageNet(size=size)
    rows = validated(data.load(tmp_path), data.card(tmp_path))
    assert rows.x.shape == (9, 3, size, size)
    assert (rows.x.long() - greys[:, None, None, None]).abs().max() <= 2  # JPEG
    assert rows.y.tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 1]
    assert rows.source.tolist() == [0] * 6 + [1] * 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda root: (root / "wnids.txt").unlink(), "FileNotFoundError: .*wnids.txt"),
        (
            lambda root: (root / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_0.JPEG").unlink(),
            "holds 5 train and 3 val pictures where 6 and 3 were published",
        ),
        (
            lambda root: (root / "val" / "images" / "val_1.JPEG").unlink(),
            "FileNotFoundError: .*val_1.JPEG",
        ),
        (
            lambda root: (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn0\t0\n"),
            "KeyError: 'n0'",
        ),
        (lambda root: (root / "val" / "val_annotations.txt").write_text("x\n"), "ValueError: "),
    ],
    ids=["no classes", "a train picture", "a val picture", "an unknown class", "no tabs"],
)
def test_tiny_imagenet_that_is_incomplete_says_so(
    damage: Callable[[Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_tiny_imagenet(tmp_path, monkeypatch)
    damage(tmp_path / "tiny-imagenet-200")
    wanted = rf"tiny-imagenet: .*tiny-imagenet-200 is damaged or incomplete \(.*{said}"
    with pytest.raises(BadInputError, match=wanted) as refusal:
        TinyImageNet().load(tmp_path)
    assert "remove it to download it again" in str(refusal.value)


def test_a_picture_of_tiny_imagenet_that_is_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_tiny_imagenet(tmp_path, monkeypatch)
    (tmp_path / "tiny-imagenet-200" / "val" / "images" / "val_10.JPEG").write_bytes(b"\xff\xd8")
    with pytest.raises(BadInputError, match=r"val_10\.JPEG cannot be decoded"):
        TinyImageNet().load(tmp_path)


# ---- Location-30, Purchase-100 and Texas-100 ----

X = np.random.default_rng(1).integers(0, 2, (6, 5), dtype=np.uint8)
Y = [2, 0, 1, 2, 1, 0]
ARCHIVES = {
    "location-30": ("location", "dataset_location.tgz"),
    "purchase-100": ("purchase", "dataset_purchase.tgz"),
    "texas-100": ("texas", "dataset_texas.tgz"),
}


def _texts(name: str, x: np.ndarray = X, y: list[int] = Y) -> dict[str, str]:
    """Return the text files of an archive."""
    columns = [",".join(map(str, row)) for row in x.tolist()]
    if name == "location-30":
        lines = [f'"{1 + k}",{row}' for k, row in zip(y, columns, strict=True)]
        return {"bangkok": "\n".join(lines) + "\n"}
    classes = [str(1 + k) for k in y]
    if name == "purchase-100":
        lines = [f"{k},{row}" for k, row in zip(classes, columns, strict=True)]
        return {"dataset_purchase": "\n".join(lines) + "\n"}
    return {
        "texas/100/feats": "\n".join(columns) + "\n",
        "texas/100/labels": "\n".join(classes) + "\n",
    }


def _pack(root: Path, name: str, texts: dict[str, str]) -> Path:
    folder, archive = ARCHIVES[name]
    (root / folder).mkdir(exist_ok=True)
    with tarfile.open(root / folder / archive, "w:gz") as packed:
        for member, text in texts.items():
            held = tarfile.TarInfo(member)
            held.size = len(text)
            packed.addfile(held, io.BytesIO(text.encode()))
    return root / folder / archive


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of six rows, five columns and three classes; text is read two lines at a time."""
    for made in (Location30, Purchase100, Texas100):
        _resize_card(monkeypatch, made, shape=(5,), classes=3, sources={"all": 6})
    monkeypatch.setattr(published_tables, "LINES", 2)


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("data", TABLES, ids=lambda data: data.name)
def test_tables_are_read_from_the_published_archive(
    data: Dataset, prefix: str, tmp_path: Path
) -> None:
    _pack(tmp_path, data.name, {prefix + name: t for name, t in _texts(data.name).items()})
    rows = validated(data.load(tmp_path), data.card(tmp_path))
    assert rows.x.tolist() == X.tolist()
    assert rows.x.dtype == torch.uint8
    assert rows.y.tolist() == Y
    assert rows.scale == 1


def _cases(name: str) -> dict[str, tuple[dict[str, str], str]]:
    two, nine = X.copy(), [9, *Y[1:]]
    two[3, 1] = 2
    lacking = dict(list(_texts(name).items())[1:])
    return {
        "a two": (_texts(name, two), "columns must be 0 or 1, and classes 1 to 3"),
        "class 10": (_texts(name, y=nine), "columns must be 0 or 1, and classes 1 to 3"),
        "class 0": (_texts(name, y=[-1, *Y[1:]]), "columns must be 0 or 1, and classes 1 to 3"),
        "columns": (_texts(name, X[:, 1:]), "a line has 4 columns, not 5"),
        "no number": ({n: "a" + t for n, t in _texts(name).items()}, "ValueError"),
        "no file": (lacking, "it has no file "),
    }


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("case", _cases("texas-100"))
@pytest.mark.parametrize("data", TABLES, ids=lambda data: data.name)
def test_a_table_of_other_content_is_damaged(data: Dataset, case: str, tmp_path: Path) -> None:
    texts, said = _cases(data.name)[case]
    file = _pack(tmp_path, data.name, texts)
    wanted = rf"{data.name}: {re.escape(str(file))} is damaged \(.*{said}"
    with pytest.raises(BadInputError, match=wanted) as refusal:
        data.load(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("data", TABLES, ids=lambda data: data.name)
def test_a_truncated_or_short_archive_is_refused(data: Dataset, tmp_path: Path) -> None:
    file = _pack(tmp_path, data.name, _texts(data.name))
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(BadInputError, match=f"{data.name}: .* is damaged"):
        data.load(tmp_path)
    _pack(tmp_path, data.name, _texts(data.name, X[:5], Y[:5]))
    with pytest.raises(BadInputError, match=f"{data.name}: the files hold 5 rows where 6 were"):
        data.load(tmp_path)


def test_location_s_default_leaves_rows_for_the_null_victim() -> None:
    sizes = Location30.protocols["default"].sizes(Location30().card(None))
    assert sum(sizes.values()) + sizes["members"] == 5_010
    assert sizes["pool"] >= 2 * sizes["members"] + sizes["reference"]


@pytest.mark.realdata
def test_the_real_location_30() -> None:
    root = Path(os.environ.get("PRIVBENCH_DATA", "/nonexistent"))
    if not (root / "location/dataset_location.tgz").exists():
        pytest.skip("PRIVBENCH_DATA holds no location/dataset_location.tgz")
    assert published.git_blob(root / "location/dataset_location.tgz") == Location30.blob
    rows = Location30().load(root)
    assert rows.x.shape == (5_010, 446)
    assert len(np.unique(rows.x.numpy(), axis=0)) == 5_010
    assert rows.y.bincount().tolist() == [
        169, 178, 147, 155, 97, 182, 120, 308, 145, 210, 189, 184, 141, 122, 229, 110, 176, 128,
        180, 254, 228, 117, 158, 170, 139, 139, 155, 152, 149, 179,
    ]  # fmt: skip
    content = hashlib.sha256(rows.x.numpy().tobytes() + rows.y.byte().numpy().tobytes())
    assert content.hexdigest() == (
        "76e54a08f6bf9e2d4441a3c3a8e2169c4455445db163250c9e5fe0a1956acd3a"
    )


@pytest.mark.usefixtures("small_tables")
def test_texas_needs_as_many_classes_as_rows(tmp_path: Path) -> None:
    texts = _texts("texas-100")
    for classes in ("3\n1\n2\n3\n2\n", "3\n1\n2\n3\n2\n1\n1\n"):
        _pack(tmp_path, "texas-100", texts | {published_tables.CLASSES: classes})
        with pytest.raises(BadInputError, match=r"texas-100: .* is damaged \(ValueError: "):
            Texas100().load(tmp_path)


def test_what_is_downloaded_must_be_the_published_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def deliver(url: str, folder: str, name: str, _: object) -> None:
        asked.append(url)
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as torchvision does
        (tmp_path / "purchase" / name).write_bytes(b"<html>no such page</html>")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", deliver)
    with pytest.raises(BadInputError, match="what arrived is not the published file"):
        Purchase100().load(tmp_path)
    assert [*(tmp_path / "purchase").iterdir()] == []
    [url] = asked
    assert url.startswith("https://github.com/privacytrustlab/datasets/raw/169de9de00de049dd2e57")
    assert url.endswith("/dataset_purchase.tgz")


@pytest.mark.usefixtures("small_tables")
def test_a_download_with_the_published_checksum_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _pack(tmp_path, "purchase-100", _texts("purchase-100")).read_bytes()
    (tmp_path / "purchase" / "dataset_purchase.tgz").unlink()

    def deliver(_: str, folder: str, name: str, __: object) -> None:
        (tmp_path / folder / name).write_bytes(held)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", deliver)
    blob = hashlib.sha1(b"blob %d\0" % len(held) + held, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(Purchase100, "blob", blob)
    assert Purchase100().load(tmp_path).x.tolist() == X.tolist()


def test_git_s_id_of_a_file(tmp_path: Path) -> None:
    """Ids that `git hash-object` gives."""
    (tmp_path / "file").touch()
    assert published.git_blob(tmp_path / "file") == ("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
    (tmp_path / "file").write_bytes(b"hello\n")
    assert published.git_blob(tmp_path / "file") == ("ce013625030ba8dba906f756967f9e9ca394464a")


# ---- the conformance kit on generated files ----


@pytest.mark.usefixtures("small_tables")
@pytest.mark.parametrize("data", ALL, ids=lambda data: data.name)
def test_conformance_on_small_files(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checks but that of the default protocol, whose sizes the small files do not have."""
    write: dict[str, Callable[[], object]] = {
        "stl10": lambda: _write_stl10(tmp_path, monkeypatch),
        "celeba": lambda: _write_celeba(tmp_path, monkeypatch),
        "tiny-imagenet": lambda: _write_tiny_imagenet(tmp_path, monkeypatch),
    }
    write.get(data.name, lambda: _pack(tmp_path, data.name, _texts(data.name)))()
    for check in checks(data, root=tmp_path):
        if check.name != "default protocol fits":
            check()
