"""Artifacts of a suite are carried from one store into another, whole or not at all."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner, Result

import privbench
from privbench.cli.main import main
from privbench.ground.errors import BadInputError
from privbench.ground.store import bundle
from privbench.ground.store.canonical import checksum
from privbench.ground.store.store import Artifact, Key, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["cache", *map(str, args)])


@pytest.mark.slow
def test_a_suite_runs_elsewhere_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, file = tmp_path / "suite.yaml", tmp_path / "artifacts.zip"
    suite.write_text("targets: [{supervised: {epochs: 1}}]\nattacks: [nn-mia, {lira: {k: 2}}]\n")
    empty = ran("export", suite, file)
    assert empty.exit_code == 2
    assert "run it first" in empty.output
    first = privbench.run(suite, out=tmp_path / "first")
    large = ran("export", suite, file, "--max-mib", "0.001")
    assert large.exit_code == 2
    assert " MiB, more than 0.001: give --max-mib " in large.output
    assert not file.exists()
    done = ran("export", suite, file)
    assert done.exit_code == 0, done.output
    assert f"in {file}\n" in done.output  # nothing is missing
    other = ran("export", suite, file, "--threads", "2")
    assert other.exit_code == 2
    assert "or give the --device, --threads, --precision and --compile of its run" in other.output

    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "elsewhere"))
    taken = ran("import", file)
    assert taken.exit_code == 0, taken.output
    assert taken.output.endswith(" artifacts added, 0 were there\n")
    assert ran("import", file).output.startswith("0 artifacts added, ")
    told = CliRunner().invoke(main, ["run", str(suite), "--out", str(tmp_path / "x"), "--dry-run"])
    assert "; 0 distinct phases to train" in told.output
    second = privbench.run(suite, out=tmp_path / "second")
    assert [one.digest for one in second] == [one.digest for one in first]


def kept(root: Path, *names: str) -> tuple[Store, list[Artifact]]:
    store = Store(root)
    made = [store.keep(Key("phase", {"name": name}), {"w": torch.ones(3)}, {"seconds": 1.0})
            for name in names]  # fmt: skip
    return store, made


def rewritten(file: Path, change: Callable[[str, bytes], bytes], *more: tuple[str, bytes]) -> None:
    with zipfile.ZipFile(file) as old:
        entries = [(name, old.read(name)) for name in old.namelist()]
    with zipfile.ZipFile(file, "w") as new:
        for name, content in [*((name, change(name, text)) for name, text in entries), *more]:
            new.writestr(name, content)


def manifest(change: Callable[[dict[str, object]], object]) -> Callable[[str, bytes], bytes]:
    """Change a manifest, and its checksum too."""

    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith("manifest.json"):
            return content
        told = json.loads(content)
        del told["checksum"]
        change(told)
        return json.dumps(told | {"checksum": checksum(told)}).encode()

    return changed


def same(_: str, content: bytes) -> bytes:
    return content


AT = f"phase/{'0' * 32}/manifest.json"


@pytest.mark.parametrize(("change", "more", "told"), [
    (lambda n, c: c[:-1] + b"\xff" if n.endswith("safetensors") else c, (), "has changed since"),
    (lambda _, c: c.replace(b'"name"', b'"fame"'), (), "manifest.json has changed since"),
    (manifest(lambda told: told.update(fields={"name": "other"})), (), "belongs to another one"),
    (manifest(lambda told: told.update(schema=1)), (), "its schema is 1, not"),
    (manifest(lambda told: told.update(facts=[])), (), "has no facts"),
    (manifest(lambda told: told.update(tensors=None)), (), "does not name"),
    (manifest(lambda told: told.update(tensors={"bytes": 80})), (), ""),
    (manifest(lambda told: told.update(kind="../x")), (), "artifact "),
    (same, [(AT, pickle.dumps(print))], "cannot be read"),
    (same, [(AT, b"[" * 100_000)], "cannot be read"),
    (same, [("../../evil", b"x")], "'../../evil' is not a file of an artifact"),
    (same, [("phase/model.pkl", b"x")], "'phase/model.pkl' is not a file of an artifact"),
    (same, [(f"phase/{'0' * 32}/tensors.safetensors", b"x")], "it has no manifest.json"),
])  # fmt: skip
def test_what_is_damaged_or_foreign_is_refused_whole(
    tmp_path: Path, change: Callable[[str, bytes], bytes], more: list[tuple[str, bytes]], told: str
) -> None:
    _, made = kept(tmp_path / "store", "a", "b")
    file, there = tmp_path / "file.zip", Store(tmp_path / "there")
    bundle.pack(made, file)
    rewritten(file, change, *more)
    with pytest.raises(BadInputError) as error:
        bundle.unpack(file, there)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert [*there.list()] == []
    assert [path for path in there.root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), pickle.dumps([print])])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    done = ran("import", file)
    assert done.exit_code == 2
    assert done.output.startswith(f"privbench: {file} cannot be imported: ")
    assert done.output.count("\n") == 1
    missing = ran("import", tmp_path / "none")
    assert (missing.exit_code, missing.output.count("\n")) == (2, 1)


def test_a_compressed_or_cut_file_is_refused(tmp_path: Path) -> None:
    _, made = kept(tmp_path / "store", "a")
    file, packed = tmp_path / "file.zip", tmp_path / "packed.zip"
    bundle.pack(made, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    file.write_bytes(file.read_bytes()[:-40])
    for one in (file, packed):
        with pytest.raises(BadInputError, match="cannot be imported"):
            bundle.unpack(one, Store(tmp_path / "there"))


def test_gc_does_not_delete_what_is_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = kept(tmp_path / "store", "a", "b")
    file, there = tmp_path / "file.zip", Store(tmp_path / "there")
    bundle.pack(made, file)
    checked = bundle._checked

    def collected(*given: Any) -> Any:
        there.gc(0)
        return checked(*given)

    monkeypatch.setattr(bundle, "_checked", collected)
    assert bundle.unpack(file, there) == (2, 0)
    left = there.root / ".import-0"
    left.mkdir()
    there.gc()
    assert left.exists()
    os.utime(left, (0, 0))
    there.gc()
    assert not left.exists()
    assert {path.name for path in there.root.iterdir()} == {".locks", "phase"}


def test_a_name_in_no_encoding_is_a_sentence(tmp_path: Path) -> None:
    _, made = kept(tmp_path / "store", "a")
    file = tmp_path / "file.zip"
    bundle.pack(made, file)
    rewritten(file, lambda _, content: content, ("phase/ä", b"x"))
    whole = file.read_bytes()
    file.write_bytes(whole.replace("ä".encode(), b"\xff\xff"))
    with pytest.raises(BadInputError, match="cannot be imported"):
        bundle.unpack(file, Store(tmp_path / "there"))


def test_what_a_file_manager_or_an_old_clock_left_is_no_obstacle(tmp_path: Path) -> None:
    _, made = kept(tmp_path / "store", "a")
    (made[0].path / ".DS_Store").write_bytes(bytes(100))
    os.utime(made[0].path / "tensors.safetensors", (0, 0))
    file = tmp_path / "file.zip"
    bundle.pack(made, file)
    assert bundle.size(made) < file.stat().st_size
    assert bundle.unpack(file, Store(tmp_path / "there")) == (1, 0)


def test_what_is_there_stays(tmp_path: Path) -> None:
    _, made = kept(tmp_path / "store", "a", "b")
    file, there = tmp_path / "file.zip", tmp_path / "there"
    bundle.pack(made, file)
    store, (own,) = kept(there, "a")
    before = (own.path / "manifest.json").stat().st_ino
    assert bundle.unpack(file, store) == (1, 1)
    assert (own.path / "manifest.json").stat().st_ino == before
    assert len([*store.list()]) == 2
    found = store.find(Key("phase", {"name": "b"}))
    assert found is not None
    assert torch.equal(found.tensors["w"], torch.ones(3))
