"""A user's own data: what the files say, keys by content, and one sentence for what is wrong."""

from __future__ import annotations

import csv
import os
import pickle
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from privbench import BadInputError, Dataset
from privbench.cli.main import main
from privbench.ground.store import content
from privbench.measure.data.split import cut
from privbench.measure.data.validation import validated
from privbench.results.files import read_all
from privbench.testing import Check, checks
from privbench.toolbox import mapped_array, tables
from privbench.toolbox.own_data import default_protocol, views
from privbench.toolbox.tables import FEWEST, numbered
from privbench_plugins.datasets import imagefolder
from privbench_plugins.datasets.csv_file import Csv
from privbench_plugins.datasets.imagefolder import ImageFolder
from privbench_plugins.datasets.npz import Npz

if TYPE_CHECKING:
    from collections.abc import Callable

N = 120
KINDS = ("npz", "csv", "imagefolder")
#: The same, where each kind is a run of its own.
RUNS = ["npz", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "imagefolder"))]


@pytest.fixture(autouse=True)
def _says_again() -> None:
    tables._say.cache_clear()


def arrays(**change: Any) -> dict[str, np.ndarray]:
    """Colour images in three classes, with the attribute ``dark``; some of it changed."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
    x[0, 0, 0, 0] = 255
    return {"x": x, "y": np.arange(N) % 3, "dark": np.arange(N) % 2, **change}


def write_npz(folder: Path, **change: Any) -> Path:
    given: dict[str, Any] = dict(arrays(**change))
    np.savez(folder / "mine.npz", **{n: v for n, v in given.items() if v is not None})
    return folder / "mine.npz"


def lines() -> list[list[str]]:
    """A header and N rows: a number, a text, an empty cell now and then, a label."""
    rng = np.random.default_rng(0)
    made = [["age", "town", "sex", "label"]]
    for i in range(N):
        town = "" if i == 7 else ["Rome", "Oslo", "Bonn"][int(rng.integers(3))]
        made.append([str(20 + i / 2), town, "fm"[i % 2], str(i % 4)])
    return made


def write_csv(folder: Path, rows: list[list[str]] | None = None) -> Path:
    with (folder / "mine.csv").open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(lines() if rows is None else rows)
    return folder / "mine.csv"


def write_pictures(folder: Path, classes: tuple[str, ...] = ("cats", "dogs")) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    root = folder / "pictures"
    for name in classes:
        (root / name / "deep").mkdir(parents=True)
        for i in range(N // 2):
            pixels = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            inside = root / name / ("deep" if i % 2 else "")
            Image.fromarray(pixels).save(inside / f"{i:03}.png")
    return root


def write_table(root: Path, change: Callable[[list[list[str]]], Any] = list) -> Path:
    """A line for each picture, with two attributes, in another order than that of the files."""
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.png"))
    rows = [["file", "place", "year"]]
    rows += [[f, ["in", "out"][i % 2], str(2000 + i % 3)] for i, f in enumerate(files)][::-1]
    change(rows)
    table = root.parent / "table.csv"
    with table.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows(rows)
    return table


def own(kind: str, folder: Path) -> Dataset:
    if kind == "npz":
        return Npz(path=str(write_npz(folder)))
    if kind == "csv":
        return Csv(path=str(write_csv(folder)), sensitive=("sex",))
    root = write_pictures(folder)
    return ImageFolder(path=str(root), size=8, table=str(write_table(root)))


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_say", lambda text: text)


# ---- all three ----


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", KINDS)
def test_conformance(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = own(kind, tmp_path)
    found = [check for check in checks(data) if check.name != "says what it is"]
    found += [check for check in checks(type(data)()) if check.name == "says what it is"]
    for check in found:
        assert isinstance(check, Check)
        check()
    if kind == "imagefolder":
        return
    monkeypatch.setattr(mapped_array, "LARGE", 1)  # mapped
    mapped = data.load(None)
    assert (mapped.mapped is not None) is (kind == "npz")
    assert validated(mapped, data.card(None)) is mapped


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", RUNS)
def test_a_two_line_suite_and_two_options_run(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(vars(own(kind, tmp_path))["path"]).name
    (tmp_path / "s.yaml").write_text(
        f"attacks: [metric-loss]\ndatasets: [{{{kind}: {{path: {path}}}}}]\n", encoding="utf-8"
    )
    few = ("--target", "supervised", "--set", "supervised.epochs=2", "--out", "out")
    done = CliRunner().invoke(main, ["run", "s.yaml", *few])
    assert done.exit_code == 0, done.output
    named = ("--attack", "metric-loss", "--dataset", kind, "--set", f"{kind}.path={path}", *few)
    again = CliRunner().invoke(main, ["run", *named])
    assert again.exit_code == 0, again.output
    (record,) = read_all([tmp_path / "out"])  # the same trial
    assert record.status == "ok"
    assert record.cell.dataset.fields["path"] == path
    assert record.cell.dataset.label.startswith(f"{kind}(path={path}, sha256=")
    assert len(record.cell.dataset.label) < 60


def _changed(kind: str, data: Any) -> None:
    """Change one value in a file, which keeps its size and its time of change."""
    path = Path(data.path)
    file = path if kind != "imagefolder" else min(path.rglob("*.png"))
    before = file.stat()
    if kind == "npz":
        x = arrays()["x"]
        x[5, 0, 0, 0] ^= 1
        write_npz(path.parent, x=x)
    else:
        held = file.read_bytes()
        last = bytes([held[-1] ^ 1])  # of a picture, in a checksum that is not read
        file.write_bytes(held.replace(b"20.5", b"20.6") if kind == "csv" else held[:-1] + last)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", KINDS)
def test_the_key_is_of_the_content(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data: Any = own(kind, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b" / "c")
    moved = data.path.replace(str(tmp_path / "a"), str(tmp_path / "b" / "c"))
    there = {"path": moved, "sha256": ""}
    if kind == "imagefolder":
        there["table"] = str(tmp_path / "b" / "c" / "table.csv")
    elsewhere = data.replace(**there)
    assert elsewhere.digest == data.digest
    assert elsewhere != data
    assert str(tmp_path) not in str(data.identity)
    _changed(kind, elsewhere)
    again = data.replace(**there)
    assert again.digest != data.digest
    with pytest.raises(BadInputError, match="its content has the digest"):
        data.replace(**{**there, "sha256": data.sha256})


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_after_planning_is_refused(kind: str, tmp_path: Path) -> None:
    data = own(kind, tmp_path)
    data.card(None)
    _changed(kind, data)
    with pytest.raises(BadInputError, match="changed since the run began: run the command again"):
        data.load(None)
    assert not list((tmp_path / "store").rglob("*.npy"))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", RUNS)
def test_a_changed_file_never_gets_old_results(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data: Any = own(kind, tmp_path)
    named = ("run", "--attack", "metric-loss", "--target", "supervised", "--set",
             "supervised.epochs=1", "--dataset", kind, "--set", f"{kind}.path={data.path}",
             "--out", "out")  # fmt: skip
    for trials, then in ((1, "same"), (1, "changed"), (2, "same")):
        done = CliRunner().invoke(main, named)
        assert done.exit_code == 0, done.output
        assert len(read_all([tmp_path / "out"])) == trials
        if then == "changed":
            _changed(kind, data)


@pytest.mark.usefixtures("quiet")
def test_another_process_finds_the_file_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_npz(tmp_path)
    monkeypatch.chdir(tmp_path)
    data = Npz(path="mine.npz")
    sent = pickle.dumps(data)
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    arrived = pickle.loads(sent)  # noqa: S301 - as to a worker
    assert arrived == data
    assert arrived.digest == data.digest
    assert len(arrived.load(None)) == N


@pytest.mark.parametrize("made", [Npz(), Csv(), ImageFolder()], ids=KINDS)
def test_no_file_is_one_sentence(made: Any) -> None:
    assert "default" in made.protocols
    assert made.label == made.name
    for call in (made.card, made.load):
        with pytest.raises(BadInputError, match=f"no file is named: give --set {made.name}.path"):
            call(None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["no/such", "", "a\0b", "\x1b[31m"])
def test_a_missing_file_ends_with_status_2(kind: str, path: str) -> None:
    given = [] if not path else ["--set", f"{kind}.path={''.join(path)!r}".replace("\\x", "\\x")]
    if path == "a\0b":
        given = ["--set", f'{kind}.path="a\\0b"']
    if path.startswith("\x1b"):
        given = ["--set", f'{kind}.path="\\e[31m"']
    done = CliRunner().invoke(main, ["run", "--attack", "metric-loss", "--dataset", kind, *given])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert "\x1b" not in done.output
    assert done.output.count("\n") == 1


def test_a_digest_is_read_again_only_if_the_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, true = tmp_path / "f", [], content._sha256

    def counted(path: Path) -> str:
        read.append(path)
        return true(path)

    monkeypatch.setattr(content, "_sha256", counted)
    file.write_bytes(b"a")
    assert content.file_digest(file) == content.file_digest(file)
    assert len(read) == 2, "a file that has just changed may change again at the same time"
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 10**10)
    first = content.file_digest(file)
    assert content.file_digest(file) == first
    assert len(read) == 3
    file.write_bytes(b"b")
    assert content.file_digest(file) != first


# ---- what follows from rows and labels ----


@pytest.mark.parametrize("n", [FEWEST, 200, 1_797, 11_499, 11_500, 10**7])
def test_the_default_protocol_fits_any_number_of_rows(n: int) -> None:
    card = replace(_card(), sources={"all": n})
    sizes = default_protocol(n).sizes(card)
    assert sizes["members"] == sizes["nonmembers"] == sizes["test"] == 4 * sizes["reference"]
    assert 20 <= sizes["members"] <= 2_000
    assert sum(sizes.values()) <= n
    assert sizes["reference"] < 100 or sizes["reference"] % 10 == 0
    shares = default_protocol(None).sizes(card)
    assert all(shares[name] >= size for name, size in sizes.items())


def _card() -> Any:
    from privbench import Card

    return Card(name="c", kind="real", shape=(1,), classes=2, scale=1, sources={})


@pytest.mark.parametrize(
    ("texts", "codes", "said"),
    [
        (["1", "0", "2"], [1, 0, 2], ""),
        (["10", "9", "10"], [1, 0, 1], "9 is 0, 10 is 1"),
        (["b", "a", "b"], [1, 0, 1], "a is 0, b is 1"),
        (["0", "00"], [0, 1], "0 is 0, 00 is 1"),
        (["0.5", "0"], [1, 0], "0 is 0, 0.5 is 1"),
        ([str(i) for i in range(5, 20)], list(range(15)), "14 is 9 and 5 more"),
    ],
)
def test_texts_are_numbered_in_sorted_order(texts: Any, codes: Any, said: str) -> None:
    if not said:
        assert numbered(texts, "y")[0].tolist() == codes
        return
    with pytest.warns(UserWarning, match=rf"^y: numbered in sorted order: .*{said}"):
        assert numbered(texts, "y")[0].tolist() == codes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbered(texts, "y")  # said once


@pytest.mark.parametrize("side", [1, 3, 4, 16, 32, 224])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("attributes", [False, True])
def test_views_can_be_drawn_at_every_size(side: int, channels: int, attributes: bool) -> None:
    from privbench import augment

    limits = views(channels, side, side, attributes=attributes)
    made = augment(torch.rand(2, channels, side, side), limits, torch.rand(2, limits.uniforms))
    assert made.shape == (2, channels, side, side)
    assert (limits.flip > 0) is (channels == 3)
    if attributes and channels == 3:
        assert not limits.grey
        assert limits.jitter == (0.2, 0.2, 0.0, 0.0)


# ---- npz ----


def test_an_archive_is_read_as_it_says(tmp_path: Path) -> None:
    given = arrays()
    data = Npz(path=str(write_npz(tmp_path)))
    card, rows = data.card(None), data.load(None)
    assert (card.kind, card.shape, card.classes, card.scale) == ("image", (3, 8, 8), 3, 255)
    assert (dict(card.attributes), card.sensitive) == ({"dark": 2}, ("dark",))
    assert (dict(card.sources), card.rows) == ({"all": N}, N)
    assert torch.equal(rows.x, torch.from_numpy(given["x"]))
    assert rows.y.tolist() == given["y"].tolist()
    assert rows.attributes["dark"].tolist() == given["dark"].tolist()
    assert rows.mapped is None


def test_a_large_archive_is_mapped_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Npz(path=str(write_npz(tmp_path)))
    card, rows = data.card(None), data.load(None)
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    mapped = data.load(None)
    assert mapped.mapped is not None
    assert mapped.digest(attributes=["dark"]) == rows.digest(attributes=["dark"])
    protocol = data.protocols["default"]
    one, other = (cut(validated(each, card), card, protocol, 3) for each in (rows, mapped))
    assert one.digest == other.digest


_X = np.random.default_rng(0).random((N, 5))
SHAPES: dict[str, tuple[np.ndarray, str, tuple[int, ...], float]] = {
    "channels last": (arrays()["x"].transpose(0, 2, 3, 1), "image", (3, 8, 8), 255),
    "grey": (arrays()["x"][:, 0], "image", (1, 8, 8), 255),
    "int64": (arrays()["x"].astype(np.int64), "image", (3, 8, 8), 255),
    "float images": (arrays()["x"] / 255, "image", (3, 8, 8), 2**24),
    "float table": (_X, "real", (5,), 2**24),
    "half": (_X.astype(np.float16), "real", (5,), 2**24),
    "bool": (_X > 0.5, "binary", (5,), 1),
    "zeros and ones": ((_X > 0.5).astype(np.int32), "binary", (5,), 1),
    "counts": ((_X * 9).astype(np.uint8), "real", (5,), 255),
}


@pytest.mark.parametrize("what", SHAPES)
def test_kind_shape_and_scale_follow_from_x(what: str, tmp_path: Path) -> None:
    x, kind, shape, scale = SHAPES[what]
    data = Npz(path=str(write_npz(tmp_path, x=x)))
    card, rows = data.card(None), data.load(None)
    assert (card.kind, card.shape, card.scale) == (kind, shape, scale)
    assert (card.limits is None) is (kind != "image")
    assert validated(rows, card) is rows
    value = np.moveaxis(x, -1, 1) if what == "channels last" else x
    value = value[:, None] if what == "grey" else value
    assert np.allclose(rows.x.numpy(), value, atol=1e-3 if what == "half" else 1e-7)


def test_a_scale_may_be_given(tmp_path: Path) -> None:
    x = (_X * 17).astype(np.uint8)
    assert Npz(path=str(write_npz(tmp_path, x=x)), scale=16).card(None).scale == 16
    with pytest.raises(BadInputError, match="x reaches 16, above the scale 10: give a larger"):
        Npz(path=str(write_npz(tmp_path, x=x)), scale=10).card(None)


def test_texts_become_classes(tmp_path: Path) -> None:
    y = np.array(["dog", "cat", "eel"])[np.arange(N) % 3]
    data = Npz(path=str(write_npz(tmp_path, y=y)))
    with pytest.warns(UserWarning, match=r"y of .*mine.npz: .*: cat is 0, dog is 1, eel is 2"):
        assert data.card(None).classes == 3
    assert data.load(None).y[:3].tolist() == [1, 0, 2]


def test_unknown_labels_and_values_are_minus_one(tmp_path: Path) -> None:
    given = arrays()
    given["y"][5] = given["dark"][6] = -1
    data = Npz(path=str(write_npz(tmp_path, **given)))
    rows = validated(data.load(None), data.card(None))
    assert int(rows.y[5]) == int(rows.attributes["dark"][6]) == -1
    assert data.card(None).classes == 3


def _at(value: float) -> np.ndarray:
    x = _X.astype(np.float32)
    x[33, 2] = value
    return x


WRONG_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no x": ({"x": None}, r"it holds y, dark: give an archive with the arrays x and y"),
    "no y": ({"y": None}, r"it holds x, dark: give an archive with the arrays x and y"),
    "NaN": ({"x": _at(np.nan)}, r"x is NaN, first in row 33: fill in missing values, or drop"),
    "infinite": ({"x": _at(np.inf)}, r"x lies in \[.*inf\]: give floats in \[0, 1\]"),
    "not scaled": ({"x": _X * 9}, r"x lies in .*: give floats in \[0, 1\] or whole numbers"),
    "above a byte": ({"x": (_X * 999).astype(int)}, r"x lies in .*whole numbers from 0 to 255"),
    "negative": ({"x": (_X * -9).astype(int)}, r"x lies in \[-\d, 0\]"),
    "vector": ({"x": _X[:, 0]}, r"x has shape \(120,\): give images of 1 or 3 channels or a"),
    "channels": ({"x": np.zeros((N, 5, 4, 4))}, r"x has shape \(120, 5, 4, 4\): give images"),
    "video": ({"x": np.zeros((N, 2, 3, 4, 4))}, r"x has shape \(120, 2, 3, 4, 4\)"),
    "texts": ({"x": np.array([["a"]] * N)}, r"x holds <U1 of shape \(120, 1\): give numbers"),
    "no columns": ({"x": np.zeros((N, 0))}, r"shape \(120, 0\): give numbers"),
    "objects": ({"y": np.array([print] * N)}, r"no archive of plain arrays .*without objects"),
    "rows": ({"y": np.zeros(7, int)}, r"y has shape \(7,\), but x has 120 rows: give one value"),
    "floats": ({"y": np.arange(N) / 3}, r"y holds float64: give whole numbers from 0, or texts"),
    "from 1": ({"y": np.arange(N) % 3 + 1}, r"y holds 1, 2, 3: number the classes 0 to k - 1"),
    "a gap": ({"y": np.arange(N) % 3 * 2}, r"y holds 0, 2, 4: number the classes 0 to k - 1"),
    "negative label": ({"y": np.arange(N) % 3 - 2}, r"y holds -2, -1, 0: number the classes"),
    "one class": ({"y": np.zeros(N, int)}, r"all rows have one class: give rows of at least two"),
    "attribute": ({"dark": np.full(N, -7)}, r"dark holds -7: number its values from 0"),
    "many values": ({"dark": np.arange(N) + 10**6}, r"dark holds 1000000, .*: number its values"),
    "extra": ({"names": np.zeros(3)}, r"names has shape \(3,\), .* or leave the array out"),
    "few rows": (
        {"x": _X[:9], "y": np.arange(9) % 3, "dark": np.arange(9) % 2},
        r"9 rows are too few: give at least 115",
    ),
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_a_wrong_archive_is_one_sentence(what: str, tmp_path: Path) -> None:
    change, said = WRONG_ARRAYS[what]
    data = Npz(path=str(write_npz(tmp_path, **change)))
    with pytest.raises(BadInputError, match=rf"^npz: {tmp_path}/mine.npz: .*{said}") as refusal:
        data.card(None)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("held", [b"", b"text", b"PK\x03\x04nothing", b"\x93NUMPY\x09\x00"])
def test_a_file_that_is_no_archive(held: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(held)
    with pytest.raises(BadInputError, match=r"it is damaged or no archive of plain arrays"):
        Npz(path=str(tmp_path / "mine.npz")).card(None)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    np.savez(tmp_path / "mine.npz", x=_X, y=np.array([Trap()] * N, dtype=object))
    with pytest.raises(BadInputError, match="without objects"):
        Npz(path=str(tmp_path / "mine.npz")).card(None)
    assert not (tmp_path / "sprung").exists()


# ---- csv ----


def test_a_table_is_encoded(tmp_path: Path) -> None:
    data = Csv(path=str(write_csv(tmp_path)), sensitive=("sex",))
    with pytest.warns(UserWarning, match=r"sex of .*mine.csv: numbered .*: f is 0, m is 1"):
        card = data.card(None)
    rows = validated(data.load(None), card)
    assert (card.kind, card.shape, card.classes, card.scale) == ("real", (7,), 4, 2**20)
    assert card.groups == ((1, 5), (5, 7))  # "", Bonn, Oslo, Rome; f, m
    assert (dict(card.attributes), card.sensitive) == ({"sex": 2}, ("sex",))
    assert rows.x.dtype == torch.float32
    age = torch.arange(N) / (N - 1)
    assert torch.allclose(rows.x[:, 0], age, atol=2**-20)
    assert torch.equal(rows.x[:, 0] * 2**20, (rows.x[:, 0] * 2**20).round())
    towns = [row[1] for row in lines()[1:]]
    assert [["", "Bonn", "Oslo", "Rome"][i] for i in rows.x[:, 1:5].argmax(1)] == towns
    assert bool((rows.x[:, 1:5].sum(1) == 1).all())
    assert rows.attributes["sex"].tolist() == [i % 2 for i in range(N)]
    assert rows.y.tolist() == [i % 4 for i in range(N)]


@pytest.mark.usefixtures("quiet")
def test_a_table_without_numbers_is_binary(tmp_path: Path) -> None:
    data = Csv(
        path=str(write_csv(tmp_path)), class_column="sex", drop=("age",), categorical=("label",)
    )
    card, rows = data.card(None), data.load(None)
    assert (card.kind, card.shape, card.scale) == ("binary", (8,), 1)
    assert rows.x.dtype == torch.uint8
    assert validated(rows, card) is rows


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privbench_plugins.datasets import csv_file

    path = str(write_csv(tmp_path))
    whole = Csv(path=path)
    rows, card = whole.load(None), whole.card(None)
    monkeypatch.setattr(tables, "BLOCK", 7)
    monkeypatch.setattr(csv_file, "LARGE", 1)
    tables._described.cache_clear()
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    again = whole.load(None)
    assert again.mapped is not None
    assert whole.card(None) == card
    assert torch.equal(again.x, rows.x)
    assert again.y.tolist() == rows.y.tolist()


def test_spaces_marks_and_separators(tmp_path: Path) -> None:
    rows = "\n".join("; ".join(row) for row in lines())
    (tmp_path / "mine.csv").write_text("\ufeff" + rows + "\n\n", encoding="utf-8")
    data = Csv(path=str(tmp_path / "mine.csv"), separator=";")
    assert data.card(None).shape == (7,)
    assert data.load(None).y.tolist() == [i % 4 for i in range(N)]


def test_a_constant_column_is_zero_and_an_empty_attribute_unknown(tmp_path: Path) -> None:
    rows = lines()
    for row in rows[1:]:
        row[0] = "5"
    rows[3][2] = ""
    data = Csv(path=str(write_csv(tmp_path, rows)), sensitive=("sex",))
    with pytest.warns(UserWarning, match="sex"):
        loaded = data.load(None)
    assert not loaded.x[:, 0].any()
    assert loaded.attributes["sex"][:4].tolist() == [0, 1, -1, 1]


def _cell(row: int, column: int, text: str) -> Callable[[list[list[str]]], Any]:
    def change(rows: list[list[str]]) -> None:
        rows[row][column] = text

    return change


def _many(rows: list[list[str]]) -> None:
    rows[1:] = [[row[0], f"name {i}", *row[2:]] for i, row in enumerate(rows[1:] * 10)]


def _prices(rows: list[list[str]]) -> None:
    rows[1:] = [[*row[:3], str(i / 7)] for i, row in enumerate(rows[1:] * 10)]


WRONG_TABLES: dict[str, tuple[Callable[[list[list[str]]], Any], dict[str, Any], str]] = {
    "class column": (list, {"class_column": "lable"}, r"no column 'lable', which class_column"),
    "sensitive": (list, {"sensitive": ("race",)}, r"no column 'race', .*choose from age, town"),
    "drop": (list, {"drop": ("id",)}, r"no column 'id'"),
    "twice": (_cell(0, 0, "town"), {}, r"two columns are named 'town': rename one"),
    "NaN": (_cell(9, 0, "nan"), {}, r"'age' holds numbers, but 'nan' in line 10: fill it in"),
    "infinite": (_cell(9, 0, "inf"), {}, r"'age' holds numbers, but 'inf' in line 10"),
    "huge": (_cell(9, 0, "1e305"), {}, r"'age' holds numbers, but '1e305' in line 10"),
    "empty": (_cell(9, 0, ""), {}, r"'age' holds numbers, but '' in line 10"),
    "question": (_cell(9, 0, "?"), {}, r"but '\?' in line 10: .* or name the column in categor"),
    "no label": (_cell(9, 3, ""), {}, r"line 10 has no label: fill it in, or drop such rows"),
    "short row": (lambda r: r[9].pop(), {}, r"line 10 has 3 cells, the header 4: make them agree"),
    "names": (_many, {}, r"'town' has more than 1,000 different texts: name it in drop"),
    "prices": (_prices, {}, r"1,200 different labels are too many: .*ranges of a number"),
    "ages": (_prices, {"class_column": "sex", "sensitive": ("label",)}, r"has 1,200 values"),
    "no columns": (list, {"drop": ("age", "town", "sex")}, r"no columns besides the class"),
    "few rows": (lambda r: r.__delitem__(slice(50, None)), {}, r"49 rows are too few"),
    "no rows": (lambda r: r.__delitem__(slice(1, None)), {}, r"0 rows are too few"),
    "nothing": (lambda r: r.clear(), {}, r"no column 'label'"),
    "no values": (
        lambda r: [row.__setitem__(2, "") for row in r[1:]], {"sensitive": ("sex",)},
        r"column 'sex' is empty: leave it out of sensitive",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("what", WRONG_TABLES)
def test_a_wrong_table_is_one_sentence(what: str, tmp_path: Path) -> None:
    change, fields, said = WRONG_TABLES[what]
    rows = lines()
    change(rows)
    data = Csv(path=str(write_csv(tmp_path, rows)), **fields)
    with pytest.raises(BadInputError, match=rf"^csv: {tmp_path}/mine.csv: .*{said}") as refusal:
        data.card(None)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("held", [b"label\n\xff\n", b'label\n"open\n', b'label\n"a"b\n'])
def test_a_file_that_is_no_table(held: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(held)
    with pytest.raises(BadInputError, match=r"it is not a csv file in UTF-8 .*save it as one"):
        Csv(path=str(tmp_path / "mine.csv")).card(None)


# ---- imagefolder ----


def test_pictures_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    root = write_pictures(tmp_path)
    data = ImageFolder(path=str(root), size=16)
    card, rows = data.card(None), data.load(None)
    assert (card.kind, card.shape, card.classes, card.scale) == ("image", (3, 16, 16), 2, 255)
    assert card.rows == len(rows) == N
    assert rows.y.tolist() == [0] * (N // 2) + [1] * (N // 2)
    assert validated(rows, card) is rows
    with Image.open(root / "dogs" / "000.png") as image:
        wanted = image.resize((16, 16), Image.Resampling.BILINEAR)
    assert torch.equal(rows.x[N // 2], torch.from_numpy(np.array(wanted)).permute(2, 0, 1))
    monkeypatch.setattr(imagefolder, "decoded", None)
    monkeypatch.setattr(mapped_array, "LARGE", 1)
    again = data.load(None)
    assert again.mapped is not None
    assert torch.equal(again.x, rows.x)
    grey = ImageFolder(path=str(root), size=16, grey=True)
    assert grey.digest != data.digest
    assert grey.card(None).shape == (1, 16, 16)


@pytest.mark.usefixtures("quiet")
def test_attributes_come_from_a_table(tmp_path: Path) -> None:
    root = write_pictures(tmp_path)
    table = write_table(root, lambda rows: rows[-1].__setitem__(1, ""))
    data = ImageFolder(path=str(root), size=8, table=str(table))
    card, rows = data.card(None), validated(data.load(None), data.card(None))
    assert dict(card.attributes) == {"place": 2, "year": 3}
    assert card.sensitive == ("place",)
    assert rows.attributes["place"].tolist() == [-1, *(i % 2 for i in range(1, N))]
    assert rows.attributes["year"].tolist() == [i % 3 for i in range(N)]
    assert data.digest != ImageFolder(path=str(root), size=8).digest
    write_table(root)
    assert data.replace(sha256="").digest != data.digest


WRONG_LISTS: dict[str, tuple[Callable[[list[list[str]]], Any], str]] = {
    "a picture less": (lambda r: r.pop(), r"does not list each picture once, such as cats/000"),
    "a picture more": (lambda r: r.append(["x.png", "in", "1"]), r"each picture once, such as x.p"),
    "twice": (lambda r: r.append(r[-1]), r"such as a file that it lists twice"),
    "no columns": (lambda r: [row.pop() + row.pop() for row in r], r"the header of tab"),
    "short": (lambda r: r[5].pop(), r"row 6 of table .* does not fit: give a header"),
    "empty": (lambda r: r.clear(), r"the header of table"),
    "one name": (_cell(0, 1, "year"), r"the header of table .*different names"),
    "no values": (
        lambda r: [row.__setitem__(1, "") for row in r[1:]], r"column 'place' .* has 0 values",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("what", WRONG_LISTS)
def test_a_wrong_list_of_attributes(what: str, tmp_path: Path) -> None:
    change, said = WRONG_LISTS[what]
    root = write_pictures(tmp_path)
    data = ImageFolder(path=str(root), size=8, table=str(write_table(root, change)))
    with pytest.raises(BadInputError, match=rf"^imagefolder: .*{said}") as refusal:
        data.card(None)
    assert "\n" not in str(refusal.value)


def test_wrong_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="holds no pictures in folders: make one folder per"):
        ImageFolder(path=str(tmp_path / "empty"))
    with pytest.raises(BadInputError, match="it is not a folder: give one"):
        ImageFolder(path=str(tmp_path / "file"))
    (tmp_path / "one").mkdir()
    one = write_pictures(tmp_path / "one", ("cats",))
    with pytest.raises(BadInputError, match="60 rows are too few: give at least 115"):
        ImageFolder(path=str(one)).card(None)
    with pytest.raises(BadInputError, match=r"cannot read .*none.csv \(No such file"):
        ImageFolder(path=str(one), table="none.csv")


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    root = write_pictures(tmp_path)
    (root / "cats" / "000.png").write_bytes(b"no picture")
    with pytest.raises(BadInputError, match=r"cats/000.png cannot be decoded .*replace or remove"):
        ImageFolder(path=str(root), size=8).load(None)


@pytest.mark.parametrize("reads", [False, True])
def test_a_grid_with_canaries_from_a_file_is_planned_again(tmp_path: Path, reads: bool) -> None:
    from privbench.api.planning import Planning
    from privbench.grid.suite import suite_from

    np.savez(tmp_path / "c.npz", x=np.zeros((9, 1, 8, 8)), y=np.zeros(9, int))
    kind = {"kind": "file", "path": str(tmp_path / "c.npz")} if reads else {"kind": "noise"}
    protocol = {"members": 50, "nonmembers": 50, "pool": 200, "canaries": {**kind, "count": 8}}
    suite = suite_from(
        {"attacks": ["metric-loss"], "targets": ["supervised"], "protocols": [protocol]}, "it"
    )
    options = {"out": tmp_path / "out", "data_root": None, "device": "cpu", "compiled": False}
    assert Planning(suite, (), options).reads_given_files is reads
