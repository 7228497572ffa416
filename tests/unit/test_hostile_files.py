"""Files that are too large, damaged or endless are refused in one sentence before they are read."""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from privbench import BadInputError
from privbench.cli.main import main
from privbench.toolbox import npz_size
from privbench_plugins.datasets.npz import Npz

DRAW = np.random.default_rng(0)
X, Y = DRAW.random((60, 4), np.float32), np.arange(60) % 2


def refused(folder: Path, *members: str, model: str = "no_module:load") -> str:
    """The sentence of an audit that is refused."""
    np.savez(folder / "others.npz", x=X + 1, y=Y)
    given = ["--model", model, "--nonmembers", str(folder / "others.npz"), "--members", *members]
    done = CliRunner().invoke(main, ["audit", *given, "--out", str(folder / "out")])
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1
    return done.output


def header(*shape: int) -> bytes:
    """The beginning of an array of float64."""
    made = io.BytesIO()
    told = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(made, told)
    return made.getvalue()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small file whose x has 256 MB of zeros."""
    path, size = tmp_path_factory.mktemp("bomb") / "bomb.npz", 2**28
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(header(size // 32, 4))
            for _ in range(size >> 24):
                member.write(bytes(2**24))
        file.writestr("y.npy", header(0))
    return path


def test_a_bomb_is_told_by_its_size(
    tmp_path: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_size, "_DEFAULT", 2**27)
    monkeypatch.setattr(np, "load", None)
    told = refused(tmp_path, str(large))
    assert "bomb.npz holds 268,435,712 bytes when unpacked, more than 134,217,728: " in told
    assert "set PRIVBENCH_MOST_ARRAY_BYTES=268435712" in told
    with pytest.raises(BadInputError, match="it holds 268,435,712 bytes when unpacked"):
        Npz(path=str(large)).card(None)


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "mine.npz", x=X, y=Y)
    mine = tmp_path / "mine.npz"
    for most, problem in (("100", "holds"), ("9999", ""), ("9 KB", "is not read, since")):
        monkeypatch.setenv("PRIVBENCH_MOST_ARRAY_BYTES", most)
        assert npz_size.excess(mine).startswith(problem)
        assert bool(npz_size.excess(mine)) == bool(problem)


def test_an_array_that_stays_in_its_file_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVBENCH_MOST_ARRAY_BYTES", "1000")
    np.savez(tmp_path / "mine.npz", x=X)
    assert npz_size.excess(tmp_path / "mine.npz")
    assert not npz_size.excess(tmp_path / "mine.npz", mapped=X.nbytes)


@pytest.mark.parametrize("rows", [10**15, 10, 14])
def test_a_header_that_names_another_size_is_refused(tmp_path: Path, rows: int) -> None:
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as file:
        file.writestr("x.npy", header(rows, 4) + bytes(12 * 32))
    assert "and its header names" in refused(tmp_path, str(tmp_path / "lie.npz"))


def test_damaged_archives_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Whatever byte is wrong: read as it was, or one sentence."""
    draw, damaged = random.Random(0), tmp_path / "damaged.npz"
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "whole.npz", x=X, y=Y)
        whole = (tmp_path / "whole.npz").read_bytes()
        for i in range(150):
            content = bytearray(whole)
            for _ in range(1 + i % 3):
                content[draw.randrange(len(content))] = draw.randrange(256)
            damaged.write_bytes(content)
            told = refused(tmp_path, str(damaged))
            assert told.startswith("privbench: ")


@pytest.mark.parametrize("sort", ["device", "pipe", "folder"])
def test_what_is_no_regular_file_is_refused(
    tmp_path: Path, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("/dev/zero")
    if sort != "device":
        path = tmp_path / "w.pt"
        os.mkfifo(path) if sort == "pipe" else path.mkdir()
    assert f"{path} is not a regular file: name a .npz file" in refused(tmp_path, str(path))
    (tmp_path / "my_net_of_files.py").write_text(
        "from torch import nn\n\n\ndef load():\n    return nn.Linear(4, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "members.npz", x=X, y=Y)
    told = refused(tmp_path, "members.npz", "--checkpoint", str(path), model="my_net_of_files:load")
    assert f"the checkpoint {path} is not a regular file: name a file of weights" in told
    with pytest.raises(BadInputError, match=r"npz: cannot read \S+ \("):
        Npz(path=str(path))
