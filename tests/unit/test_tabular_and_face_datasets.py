"""Location-30 and UTKFace: read from files of the true format; equal rows from every layout."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError

import numpy as np
import pytest
import torch

from privbench import BadInputError, Dataset
from privbench.data.protocol import PROTOCOLS
from privbench_plugins._shared import data_folder
from privbench_plugins.datasets import utkface
from privbench_plugins.datasets.location30 import Location30
from privbench_plugins.datasets.utkface import AGES, UTKFace, faces

if TYPE_CHECKING:
    from collections.abc import Callable

BOTH = [Location30(), UTKFace()]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let downloads fail at once, and keep the user's own data out."""

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)
    monkeypatch.setattr(data_folder, "user_data_dir", lambda _: str(tmp_path / "of-the-user"))


# ---- both ----


def test_importing_and_describing_reads_nothing_heavy() -> None:
    code = """
import sys
for module, name in {"location30": "location-30", "utkface": "utkface"}.items():
    module = __import__(f"privbench_plugins.datasets.{module}", fromlist=["x"])
    [made] = module.privbench_datasets()
    assert made.card(None).name == made.name == name
assert not {"torchvision", "sklearn", "PIL"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("data", BOTH, ids=lambda data: data.name)
def test_protocols_fit_what_is_published(data: Dataset) -> None:
    card = data.card(None)
    assert sum(data.protocols["default"].sizes(card).values()) <= card.rows
    for name in ("quarters", "talos"):
        assert sum(PROTOCOLS[name].sizes(card).values()) <= card.rows


def test_location_s_default_leaves_rows_for_the_null_victim() -> None:
    sizes = Location30.protocols["default"].sizes(Location30().card(None))
    assert sum(sizes.values()) + sizes["members"] == 5_010
    assert sizes["pool"] >= 2 * sizes["members"] + sizes["reference"]


@pytest.mark.parametrize("given", [True, False], ids=["a root", "no root"])
@pytest.mark.parametrize("data", BOTH, ids=lambda data: data.name)
def test_missing_files_say_what_where_and_where_from(
    data: Dataset, tmp_path: Path, given: bool
) -> None:
    root = tmp_path if given else None
    with pytest.raises(BadInputError, match=re.escape(str(root or "of-the-user"))) as refusal:
        data.load(root)
    expected, published = {
        "location-30": ("location.npz nor dataset_location.tgz", "privacytrustlab/datasets"),
        "utkface": ("UTKFace/", "susanqq.github.io/UTKFace"),
    }[data.name]
    for part in (f"{data.name}: ", expected, published, "PRIVBENCH_DATA"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---- Location-30 ----

X = np.random.default_rng(0).integers(0, 2, (3, 446), dtype=np.uint8)
Y = np.array([0, 29, 12], dtype=np.uint8)


def _write_arrays(root: Path, x: np.ndarray = X, y: np.ndarray = Y) -> Path:
    folder = root / "location"
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "location.npz", x=x, y=y)
    return folder / "location.npz"


def _write_archive(root: Path, x: np.ndarray = X, y: np.ndarray = Y) -> Path:
    """As the authors pack it: one text file, the class first, from 1 and in quotes."""
    lines = [",".join([f'"{int(k) + 1}"', *map(str, row)]) for k, row in zip(y, x, strict=True)]
    text = ("\n".join(lines) + "\n").encode()
    folder = root / "location"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "dataset_location.tgz", "w:gz") as packed:
        entry = tarfile.TarInfo("bangkok")
        entry.size = len(text)
        packed.addfile(entry, io.BytesIO(text))
    return folder / "dataset_location.tgz"


WRITERS = [_write_arrays, _write_archive]


@pytest.fixture
def three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(Location30().card(None), sources={"all": 3})
    monkeypatch.setattr(Location30, "card", lambda *_: small)


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("write", WRITERS)
def test_both_layouts_give_the_same_rows(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    write(tmp_path)
    rows = Location30().load(tmp_path)
    assert torch.equal(rows.x, torch.from_numpy(X))
    assert rows.x.dtype == torch.uint8
    assert rows.y.tolist() == [0, 29, 12]
    assert rows.y.dtype == torch.int64
    assert rows.scale == 1


@pytest.mark.usefixtures("three_rows")
def test_what_is_missing_is_downloaded_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(url: str, folder: Path, name: str) -> None:
        asked.append(url)
        assert folder / name == _write_archive(folder.parent)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download)
    for _ in range(2):
        assert Location30().load(tmp_path).y.tolist() == [0, 29, 12]
    (url,) = asked
    assert url.startswith("https://github.com/privacytrustlab/datasets/raw/")
    assert url.endswith("/dataset_location.tgz")


@pytest.mark.parametrize("write", WRITERS)
def test_a_short_set_is_refused(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    file = write(tmp_path)
    with pytest.raises(BadInputError, match=rf"{re.escape(str(file))} is damaged \(it holds \(3,"):
        Location30().load(tmp_path)


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("write", WRITERS)
def test_bytes_cut_off_are_called_damage(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    file = write(tmp_path)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(BadInputError, match=rf"{re.escape(str(file))} is damaged"):
        Location30().load(tmp_path)


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("x", "y"), [(X + 1, Y), (X, Y + 1)])
def test_values_out_of_range_are_refused(
    tmp_path: Path, write: Callable[..., Path], x: np.ndarray, y: np.ndarray
) -> None:
    write(tmp_path, x, y)
    with pytest.raises(BadInputError, match="columns must be 0 or 1, and there are 30 classes"):
        Location30().load(tmp_path)


# ---- UTKFace ----

#: Name -> which picture; a letter stands for equal bytes.
FACES = {
    "10_0_0_20170101000000001.jpg.chip.jpg": "a",
    "9_0_0_20170101000000002.jpg.chip.jpg": "b",
    "25_1_3_20170101000000003.jpg.chip.jpg": "c",
    "61_1_20170101000000004.jpg.chip.jpg": "d",  # lacks its race, as three published ones do
    "55_0_4_20170101000000005jpg.chip.jpg": "e",  # lacks a dot, as one published one does
    "116_1_2_20170101000000006.jpg": "f",
    "30_1_0_20170101000000007.jpg.chip.jpg": "g",  # its copy agrees on everything
    "31_1_0_20170101000000008.jpg.chip.jpg": "g",  # (31 is in the same bin of age)
    "30_1_1_20170101000000009.jpg.chip.jpg": "h",  # copies disagree on race
    "32_1_0_20170101000000010.jpg.chip.jpg": "h",
    "18_0_2_20170101000000011.jpg.chip.jpg": "i",  # three copies, one disagrees on age
    "19_0_2_20170101000000012.jpg.chip.jpg": "i",
    "20_0_2_20170101000000013.jpg.chip.jpg": "i",
    "40_0_2_20170101000000014.jpg.chip.jpg": "j",  # copies disagree on gender: none is kept
    "40_1_2_20170101000000015.jpg.chip.jpg": "j",
}
#: In the order of the rows: name, gender, race, age.
KEPT = [
    ("10_0_0_20170101000000001.jpg.chip.jpg", 0, 0, 0),
    ("116_1_2_20170101000000006.jpg", 1, 2, 4),
    ("18_0_2_20170101000000011.jpg.chip.jpg", 0, 2, -1),
    ("25_1_3_20170101000000003.jpg.chip.jpg", 1, 3, 1),
    ("30_1_0_20170101000000007.jpg.chip.jpg", 1, 0, 2),
    ("30_1_1_20170101000000009.jpg.chip.jpg", 1, -1, 2),
    ("55_0_4_20170101000000005jpg.chip.jpg", 0, 4, 3),
    ("61_1_20170101000000004.jpg.chip.jpg", 1, -1, 4),
    ("9_0_0_20170101000000002.jpg.chip.jpg", 0, 0, 0),
]


def _picture(letter: str) -> bytes:
    from PIL import Image

    rng = np.random.default_rng(ord(letter))
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    made = io.BytesIO()
    coarse.resize((64, 64), Image.Resampling.BICUBIC).save(made, "JPEG", quality=90)
    return made.getvalue()


def _write_faces(root: Path) -> None:
    folder = root / "UTKFace"
    folder.mkdir(parents=True)
    for name, letter in FACES.items():
        (folder / name).write_bytes(_picture(letter))
    (folder / "readme.txt").write_text("no face")


def _write_table(root: Path) -> None:
    """The columns of the published table."""
    lines = ["file,age,gender,race,exact_duplicate_of"]
    first: dict[str, str] = {}
    for name in sorted(FACES):
        labels = name.split("_")
        race = labels[2] if len(labels) == 4 else "-1"
        copy_of = first.setdefault(FACES[name], name)
        lines.append(f"{name},{labels[0]},{labels[1]},{race},{copy_of if copy_of != name else ''}")
    (root / "UTKFace_labels.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(params=["csv", "no csv"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    _write_faces(tmp_path)
    if request.param == "csv":
        _write_table(tmp_path)
    return tmp_path


def test_faces_are_sorted_and_copies_kept_once_if_at_all(root: Path) -> None:
    assert [(name, *mine) for name, mine in faces(root).items()] == KEPT


@pytest.mark.parametrize("size", [32, 64])
def test_faces_are_loaded_as_the_card_says(root: Path, size: int) -> None:
    from PIL import Image

    data = UTKFace(size=size)  # type: ignore[arg-type]
    card, rows = data.card(root), data.load(root)
    assert card.rows == len(rows) == len(KEPT)
    assert rows.x.shape == (len(KEPT), *card.shape) == (len(KEPT), 3, size, size)
    assert rows.x.dtype == torch.uint8
    assert rows.y.tolist() == [gender for _, gender, _, _ in KEPT]
    assert rows.attributes["race"].tolist() == [race for _, _, race, _ in KEPT]
    assert rows.attributes["age"].tolist() == [age for *_, age in KEPT]
    for (name, *_), x in zip(KEPT, rows.x, strict=True):
        image = Image.open(root / "UTKFace" / name).resize((size, size), Image.Resampling.BILINEAR)
        assert np.array_equal(x.permute(1, 2, 0), np.asarray(image))


def test_no_view_changes_the_colour_of_the_skin() -> None:
    limits = UTKFace().card(None).limits
    assert limits is not None
    assert limits.jitter is not None
    assert limits.jitter[3] == limits.grey == 0
    assert max(limits.jitter) <= 0.2


def test_the_card_opens_no_picture(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utkface, "pictures", pytest.fail)
    assert UTKFace().card(root).rows == len(KEPT)


def test_the_card_counts_as_published_where_there_is_nothing(tmp_path: Path) -> None:
    assert UTKFace().card(None).rows == UTKFace().card(tmp_path).rows == 23_277


@pytest.mark.parametrize("age", [*AGES, 1, 116])
def test_a_bin_of_age_begins_at_its_edge(age: int) -> None:
    name = f"{age}_0_0_20170101000000001.jpg"
    assert utkface.labels(name).age == sum(age >= edge for edge in AGES)


@pytest.mark.parametrize("name", ["cat.jpg", "10_2_0_20170101.jpg", "10_0_5_20170101.jpg"])
def test_a_name_without_labels_is_refused(root: Path, name: str) -> None:
    (root / "UTKFace_labels.csv").unlink(missing_ok=True)
    (root / "UTKFace" / name).write_bytes(_picture("z"))
    with pytest.raises(BadInputError, match=f"'{name}' is not named age_gender_race_date"):
        UTKFace().load(root)


def test_a_table_of_other_files_is_refused(tmp_path: Path) -> None:
    _write_faces(tmp_path)
    _write_table(tmp_path)
    (tmp_path / "UTKFace" / KEPT[0][0]).unlink()
    with pytest.raises(BadInputError, match="lists 15 files and UTKFace/ holds 14"):
        UTKFace().load(tmp_path)


def test_a_picture_that_is_none_is_named(root: Path) -> None:
    name = KEPT[3][0]
    (root / "UTKFace" / name).write_bytes(b"no JPEG")
    with pytest.raises(BadInputError, match=f"{re.escape(name)} cannot be decoded"):
        UTKFace().load(root)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "UTKFace").mkdir()
    with pytest.raises(BadInputError, match=r"there is no \*\.jpg in"):
        UTKFace().load(tmp_path)


# ---- real data ----


def _real(name: str) -> Path:
    root = Path(os.environ.get("PRIVBENCH_DATA", "/nonexistent"))
    if not (root / name).exists():
        pytest.skip(f"PRIVBENCH_DATA holds no {name}")
    return root


@pytest.mark.realdata
@pytest.mark.parametrize("file", ["location.npz", "dataset_location.tgz"])
def test_the_real_location_30(file: str, tmp_path: Path) -> None:
    real = _real(f"location/{file}")
    (tmp_path / "location").mkdir()
    (tmp_path / "location" / file).symlink_to(real / "location" / file)
    rows = Location30().load(tmp_path)
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


@pytest.mark.realdata
def test_the_real_utkface() -> None:
    """By names only: the conformance kit decodes it."""
    root = _real("UTKFace")
    found = faces(root)
    assert len(found) == UTKFace().card(root).rows == UTKFace().card(None).rows
    assert list(found) == sorted(found)
    gender, race, age = (Counter(column) for column in zip(*found.values(), strict=True))
    assert gender == {0: 12_154, 1: 11_123}
    assert race == {-1: 67, 0: 9_901, 1: 4_438, 2: 3_378, 3: 3_874, 4: 1_619}
    assert age == {-1: 77, 0: 4_534, 1: 7_132, 2: 4_450, 3: 4_453, 4: 2_631}


@pytest.mark.realdata
def test_bytes_and_table_find_the_same_copies(tmp_path: Path) -> None:
    root = _real("UTKFace_labels.csv")
    (tmp_path / "UTKFace").symlink_to(root / "UTKFace")
    assert list(faces(tmp_path).items()) == list(faces(root).items())
