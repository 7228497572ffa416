"""UTKFace: read from files of the true format; equal rows with and without the table."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

from privbench import BadInputError
from privbench.measure.data.protocol import PROTOCOLS
from privbench.toolbox import published
from privbench_plugins.datasets import utkface
from privbench_plugins.datasets.utkface import AGES, UTKFace, faces


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let downloads fail at once, and keep the user's own data out."""

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)
    monkeypatch.setattr(published, "user_data_dir", lambda _: str(tmp_path / "of-the-user"))


def test_protocols_fit_what_is_published() -> None:
    data = UTKFace()
    card = data.card(None)
    for protocol in (data.protocols["default"], PROTOCOLS["quarters"], PROTOCOLS["talos"]):
        assert sum(protocol.sizes(card).values()) <= card.rows


@pytest.mark.parametrize("given", [True, False], ids=["a root", "no root"])
def test_missing_files_say_what_where_and_where_from(tmp_path: Path, given: bool) -> None:
    root = tmp_path if given else None
    with pytest.raises(BadInputError, match=re.escape(str(root or "of-the-user"))) as refusal:
        UTKFace().load(root)
    for part in ("utkface: ", "UTKFace/", "susanqq.github.io/UTKFace", "PRIVBENCH_DATA"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


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
    monkeypatch.setattr(utkface, "decoded", pytest.fail)
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
