"""Adult: columns and labels of lines in the published format; what is damaged is named."""

from __future__ import annotations

import hashlib
import os
import re
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privbench import BadInputError
from privbench.measure.data.protocol import PROTOCOLS
from privbench.toolbox import published
from privbench_plugins.datasets import adult
from privbench_plugins.datasets.adult import (
    BINS,
    COLUMNS,
    FIELDS,
    FILES,
    VALUES,
    Adult,
    codes_of,
    groups,
    one_hot,
)

TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, \
2174, 0, 40, United-States, <=50K
52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, Black, Female, 99999, 1902, 45, ?, >50K

"""
TEST = """\
|1x3 Cross validator
17, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Other, Male, 0, 0, 99, \
Holand-Netherlands, >50K.

"""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let downloads fail at once, and keep the user's own data out."""

    def refuse(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", refuse)
    monkeypatch.setattr(published, "user_data_dir", lambda _: str(tmp_path / "of-the-user"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two rows of one file and one of the other, where as many are expected."""
    sizes = {"train": 2, "test": 1}
    files = {source: (*FILES[source][:2], rows) for source, rows in sizes.items()}
    monkeypatch.setattr(adult, "FILES", files)
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.data").write_text(TRAIN)
    (folder / "adult.test").write_text(TEST)
    return tmp_path


def _words(row: torch.Tensor) -> dict[str, int]:
    """Field -> the only column that is 1 in its group."""
    found = {}
    for field, (start, stop) in groups().items():
        (at,) = row[start:stop].nonzero().flatten().tolist()
        found[field] = at
    return found


def test_lines_become_columns(small: Path) -> None:
    data = Adult()
    card, rows = data.card(small), data.load(small)
    assert card.shape == (133,)
    assert rows.x.dtype == torch.uint8
    assert rows.x.sum(1).tolist() == [13, 13, 13]
    assert rows.y.tolist() == [0, 1, 1]
    assert rows.source.tolist() == [0, 0, 1]
    assert {name: at.tolist() for name, at in rows.attributes.items()} == {
        "sex": [1, 0, 1], "race": [0, 4, 3],
    }  # fmt: skip
    first, second, third = (_words(row) for row in rows.x)
    assert first == {
        "age": 4, "workclass": 5, "education": 0, "education-num": 3, "marital-status": 2,
        "occupation": 8, "relationship": 3, "race": 0, "sex": 1, "capital-gain": 1,
        "capital-loss": 0, "hours-per-week": 3, "native-country": 0,
    }  # fmt: skip
    assert [second[f] for f in ("age", "capital-gain", "capital-loss", "hours-per-week")] == [
        7, 4, 3, 4,
    ]  # fmt: skip
    missing = [second[f] for f in ("workclass", "occupation", "native-country")]
    assert missing == [8, 14, 41]  # a category of its own, the last
    assert [third[f] for f in ("age", "hours-per-week", "native-country")] == [0, 6, 40]


def test_groups_cover_all_columns_once() -> None:
    spans = Adult().card(None).groups
    assert spans[0][0] == 0
    assert spans[-1][1] == 133
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert len(spans) == 13
    assert set(COLUMNS) == set(FIELDS) - {"fnlwgt"}
    assert sum(len(v) for v in VALUES.values()) == 102
    assert sum(len(edges) + 1 for edges in BINS.values()) == 31


LINE = TRAIN.split("\n", 1)[0].split(", ")[:-1]


@pytest.mark.parametrize("field", BINS)
def test_a_bin_begins_at_its_edge(field: str) -> None:
    at, column = FIELDS.index(field), list(COLUMNS).index(field)
    for value in (0, *BINS[field], 10**6):
        line = [*LINE[:at], str(value), *LINE[at + 1 :]]
        assert codes_of(line)[column] == sum(value >= edge for edge in BINS[field])


@given(st.data())
def test_columns_and_codes_say_the_same(data: st.DataObject) -> None:
    codes = [[data.draw(st.integers(0, size - 1)) for size in COLUMNS.values()] for _ in range(3)]
    x = one_hot(np.array(codes))
    assert [[_words(torch.from_numpy(row))[f] for f in COLUMNS] for row in x] == codes


def test_protocols_fit_what_is_published() -> None:
    card = Adult().card(None)
    assert card.rows == 48_842
    for protocol in (*Adult.protocols.values(), PROTOCOLS["quarters"], PROTOCOLS["talos"]):
        assert sum(protocol.sizes(card).values()) <= card.rows


@pytest.mark.parametrize("given_root", [True, False], ids=["a root", "no root"])
def test_missing_files_say_what_where_and_where_from(tmp_path: Path, given_root: bool) -> None:
    root = tmp_path if given_root else None
    with pytest.raises(BadInputError, match=re.escape(str(root or "of-the-user"))) as refusal:
        Adult().load(root)
    for part in ("adult: ", "adult.data", "archive.ics.uci.edu", "PRIVBENCH_DATA"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("State-gov", "Stategov", "line 1: 'Stategov' is no workclass"),
        ("39", "old", "line 1: invalid literal"),
        ("<=50K", "50K", "line 1: '50K' is no class"),
        (", 40", "", "line 1: 13 fields before the label, not 14"),
        ("39", "39\N{DEGREE SIGN}", "UnicodeDecodeError"),
        (TRAIN[TRAIN.index("52") :], "", "holds 1 rows where 2"),
    ],
)
def test_damage_is_named(small: Path, old: str, new: str, why: str) -> None:
    file = small / "adult" / "adult.data"
    file.write_text(TRAIN.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInputError, match=re.escape(str(file))) as refusal:
        Adult().load(small)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.realdata
def test_the_real_adult() -> None:
    root = Path(os.environ.get("PRIVBENCH_DATA", "/nonexistent"))
    if not (root / "adult").exists():
        pytest.skip("PRIVBENCH_DATA holds no adult")
    for name, md5, _ in FILES.values():
        found = hashlib.md5((root / "adult" / name).read_bytes(), usedforsecurity=False)
        assert found.hexdigest() == md5
    rows = Adult().load(root)
    assert rows.x.shape == (48_842, 133)
    assert rows.y.bincount().tolist() == [37_155, 11_687]
    assert rows.attributes["sex"].bincount().tolist() == [16_192, 32_650]
    assert rows.attributes["race"].bincount().tolist() == [41_762, 1_519, 470, 406, 4_685]
    assert int(rows.x.sum(0).min()) > 0  # no column is idle
    assert 48_842 - len(np.unique(rows.x.numpy(), axis=0)) == 17_786
    content = hashlib.sha256(rows.x.numpy().tobytes() + rows.y.byte().numpy().tobytes())
    assert content.hexdigest() == (
        "ac660ebdb9fbef02c21e8a4af142a45b0db87694fcd1763d0c1e992a2689b071"
    )
