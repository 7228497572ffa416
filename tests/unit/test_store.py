"""Artifacts: whole or absent, built once, never stale, explained."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from privbench.ground.errors import BadInputError
from privbench.ground.store.machine import machine
from privbench.ground.store.store import Key, Store, default_root

KEY = Key("phase", {"target": {"name": "simclr", "epochs": 3}, "seed": 0})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def key(**fields: Any) -> Key:
    return Key("phase", {"target": {"name": "simclr", "epochs": 3}, "seed": 0, **fields})


def in_process(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start Python on the code, with `store`, KEY and os at hand."""
    head = "import os, sys, time, pathlib\nfrom privbench.ground.store.store import Key, Store\n"
    head += f"KEY = Key('phase', {dict(KEY.fields)!r})\nstore = Store(pathlib.Path(sys.argv[1]))\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# ---- keys ----------------------------------------------------------------------------------------


def test_a_key_is_its_kind_and_fields_and_cannot_change() -> None:
    fields = {"rows": [1, 2], "seed": 0}
    one = Key("phase", fields)
    before = one.digest
    fields["rows"].append(3)  # type: ignore[attr-defined]
    assert one.digest == before == Key("phase", {"seed": 0, "rows": (1, 2)}).digest
    assert one == Key("phase", {"seed": 0, "rows": [1, 2]})
    assert one not in {Key("phase", {"seed": 0.0, "rows": [1, 2]}), Key("phase", {"seed": False})}
    assert Key("outputs", fields).digest != Key("phase", fields).digest


@pytest.mark.parametrize("kind", ["", "../x", "A", "a/b", ".locks"])
def test_a_kind_is_a_folder_name(kind: str) -> None:
    with pytest.raises(ValueError, match="not a valid folder name"):
        Key(kind, {})


# ---- round trip ----------------------------------------------------------------------------------


def test_tensors_of_every_sort_come_back(store: Store) -> None:
    import torch

    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "float": base,
        "row": base[1],  # shares storage with the one above
        "transposed": base.T,
        "brain": base.bfloat16(),
        "int": torch.tensor([2**62]),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(0.5, requires_grad=True),
        "empty": torch.zeros(0, 3),
    }
    kept = store.keep(KEY, tensors, {"epsilon": float("inf"), "seconds": 1})
    found = Store(store.root).find(KEY)
    assert found is not None
    for artifact in (kept, found):
        assert artifact.facts == {"epsilon": float("inf"), "seconds": 1}
        assert artifact.tensors.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert artifact.tensors[name].dtype == tensor.dtype
            assert torch.equal(artifact.tensors[name], tensor)
            assert artifact.tensors[name].shape == tensor.shape

    found.tensors["float"].zero_()  # a caller's slip does not reach the disk
    again = store.find(KEY)
    assert again is not None
    assert torch.equal(again.tensors["float"], base)


def test_no_tensors(store: Store) -> None:
    kept = store.keep(KEY, {}, {"notes": [1, None]})
    found = store.find(KEY)
    assert found == kept
    assert kept.tensors == {}
    assert [path.name for path in kept.path.iterdir()] == ["manifest.json"]


def test_another_key_is_a_miss(store: Store) -> None:
    store.keep(KEY, {}, {})
    assert store.find(key(seed=1)) is None
    assert key(seed=1) not in store
    assert KEY in store
    assert Store(store.root / "nowhere").find(KEY) is None


def test_an_artifact_in_the_place_of_another_is_not_taken_for_it(store: Store) -> None:
    mine, other = KEY, key(seed=1)
    place = store.keep(other, {}, {"whose": "other"}).path
    place.rename(place.with_name("away"))
    store.keep(mine, {}, {"whose": "mine"}).path.rename(place)
    assert store.facts(other) is None
    assert other not in store


def test_an_artifact_never_changes(store: Store) -> None:
    store.keep(KEY, {}, {"n": 1})
    assert store.keep(KEY, {}, {"n": 2}).facts == {"n": 1}


def test_make_builds_once_and_times(store: Store) -> None:
    calls = []

    def build() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        calls.append(1)
        return {}, {"n": 1}

    first, second = store.make(KEY, build), store.make(KEY, build)
    assert len(calls) == 1
    assert first == second
    assert first.facts["n"] == 1
    assert 0 <= first.facts["seconds"] < 60
    assert store.make(key(seed=1), lambda: ({}, {"seconds": 7})).facts["seconds"] == 7
    assert first.facts["made_on"] == machine()


def test_a_failed_build_leaves_nothing_and_frees_the_lock(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        store.make(KEY, lambda: ({}, {"n": 1 / 0}))
    with pytest.raises(TypeError, match=r"'facts\.n' is a object"):
        store.keep(KEY, {}, {"n": object()})
    assert list(store.list()) == []
    assert not list(store.root.glob("phase/??/*"))
    assert store.make(KEY, lambda: ({}, {})).facts.keys() == {"seconds", "made_on"}


# ---- damage --------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    (path / "tensors.safetensors").write_bytes(b"x")


def flip(path: Path) -> None:
    content = bytearray((path / "tensors.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "tensors.safetensors").write_bytes(content)


def drop(path: Path) -> None:
    (path / "tensors.safetensors").unlink()


def half_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])


def no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def other_key(path: Path) -> None:
    other = Store(path.parents[2]).keep(key(seed=1), {}, {})
    (other.path / "manifest.json").rename(path / "manifest.json")
    other.path.rmdir()


def other_schema(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"schema": 2', '"schema": 0'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "tensors.safetensors has 1 bytes, not"),
        (flip, "tensors.safetensors has changed"),
        (drop, "it has no tensors.safetensors"),
        (half_manifest, "its manifest.json cannot be read"),
        (no_manifest, "it has no manifest.json"),
        (other_key, "its manifest belongs to another key"),
        (other_schema, "its schema is 0, not 2"),
    ],
)
def test_a_damaged_artifact_is_set_aside_and_made_again(
    store: Store, damage: Any, reason: str
) -> None:
    import torch

    kept = store.keep(KEY, {"a": torch.ones(3)}, {})
    damage(kept.path)
    with pytest.warns(RuntimeWarning, match=rf"{KEY.digest} is damaged \({reason}.*moved to"):
        assert store.find(KEY) is None
    assert store.find(KEY) is None  # and now without a warning
    again = store.make(KEY, lambda: ({"a": torch.ones(3)}, {}))
    assert again.tensors["a"].tolist() == [1, 1, 1]
    assert f"{KEY.digest} was stored, but damaged" in str(store.why(KEY.digest))

    assert store.gc() > 0
    assert [path.name for path in store.root.glob("phase/??/*")] == [KEY.digest]


DIE = {
    # the tensors are bytes here, so that torch is not needed
    "between the files": """
import privbench.ground.store.artifacts as artifacts
artifacts._serialise = lambda tensors: b"x" * 1000
write = artifacts._write
def die(path, content):
    if path.name == "manifest.json": os.kill(os.getpid(), 9)
    write(path, content)
artifacts._write = die
store.keep(KEY, {"a": 1}, {"n": 1})
""",
    "before the rename": """
os.replace = lambda a, b: os.kill(os.getpid(), 9)
store.keep(KEY, {}, {"n": 1})
""",
    "after the rename": """
replace = os.replace
os.replace = lambda a, b: (replace(a, b), os.kill(os.getpid(), 9))
store.keep(KEY, {}, {"n": 1})
""",
}


@pytest.mark.parametrize("moment", DIE)
def test_kill_in_the_middle_leaves_all_or_nothing(store: Store, moment: str) -> None:
    process = in_process(DIE[moment], store.root)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL

    found = store.find(KEY)
    assert (found is not None) is (moment == "after the rename")
    junk = list(store.root.glob("phase/??/.draft-*"))
    assert len(junk) == (moment != "after the rename")
    assert store.make(KEY, lambda: ({}, {"n": 1})).facts["n"] == 1  # the lock is free
    freed = store.gc()
    assert not list(store.root.glob("phase/??/.draft-*"))
    assert (freed >= 1000) is (moment == "between the files")
    assert store.find(KEY) is not None


def test_two_processes_build_once(store: Store, tmp_path: Path) -> None:
    code = """
def build():
    with open(sys.argv[2], "a") as log: log.write("built\\n")
    time.sleep(1)
    return {}, {"by": os.getpid()}
go = pathlib.Path(sys.argv[3])
print("ready", flush=True)
while not go.exists(): time.sleep(0.01)
print(store.make(KEY, build).facts["by"])
"""
    log, go = tmp_path / "log", tmp_path / "go"
    processes = [in_process(code, store.root, log, go) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    seen = [process.communicate(timeout=60)[0] for process in processes]
    assert log.read_text() == "built\n"
    assert seen[0] == seen[1]
    assert seen[0].strip() in {str(process.pid) for process in processes}


def test_a_draft_that_is_being_written_outlives_gc(store: Store, tmp_path: Path) -> None:
    code = """
import privbench.ground.store.artifacts as artifacts
write = artifacts._write
def slow(path, content):
    write(path, content)
    print("written", flush=True)
    while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)
artifacts._write = slow
store.keep(KEY, {}, {"n": 1})
"""
    go = tmp_path / "go"
    process = in_process(code, store.root, go)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    assert store.gc(older_than_days=0) == 0
    go.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert store.find(KEY) is not None


# ---- explaining ----------------------------------------------------------------------------------


def test_why_names_exactly_the_differing_fields(store: Store) -> None:
    far = store.keep(Key("phase", {"target": "moco"}), {}, {})
    near = store.keep(KEY, {}, {"seconds": 2})
    store.keep(Key("outputs", dict(key(seed=5).fields)), {}, {})  # nearer, but of another kind
    asked = Key("phase", {"target": {"name": "simclr", "epochs": 5}, "seed": 0, "torch": "2.10"})
    store.make(asked, lambda: ({}, {"seconds": 3}))
    store.keep(Key("phase", {**asked.fields, "seed": 1}), {}, {})  # nearer, but built later

    explained = store.why(asked.digest[:12])
    assert explained.seconds == 3
    assert explained.key == asked
    assert explained.nearest == near.key.digest
    assert {tuple(one) for one in explained.differs} == {
        ("target.epochs", "3", "5"),
        ("torch", None, '"2.10"'),
    }
    text = str(explained)
    assert "target.epochs: 3 -> 5" in text
    assert 'torch: (absent) -> "2.10"' in text
    assert 'target.name = "simclr"' in text

    first = store.why(far.key.digest)
    assert first.nearest is None
    assert "no earlier artifact of kind 'phase'" in str(first)


def test_unknown_and_ambiguous_digests(store: Store) -> None:
    with pytest.raises(BadInputError, match="no artifact begins with 'ab': the store"):
        store.why("ab")
    digests = [store.keep(key(seed=i), {}, {}).key.digest for i in range(3)]
    typo = digests[0][:10] + "zz"
    with pytest.raises(BadInputError, match=f"'{typo}': nearest is {digests[0]}"):
        store.why(typo)
    with pytest.raises(BadInputError, match="3 artifacts begin with ''"):
        store.why("")


def test_the_nearest_of_hundreds_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fields(i: int) -> dict[str, Any]:
        more = {f"field{j}": f"{i * j:032x}" for j in range(30)}
        return {"target": {"name": "simclr", "epochs": i}, "seed": i, **more}

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr("importlib.metadata.version", lambda _: "0")
        for i in range(300):
            store._write(Key("phase", fields(i)), {}, {})
    asked = store.keep(Key("phase", fields(77) | {"seed": 5000}), {}, {}).key
    explained = Store(store.root).why(asked.digest)
    assert explained.nearest == Key("phase", fields(77)).digest
    assert [one.path for one in explained.differs] == ["seed"]


# ---- housekeeping --------------------------------------------------------------------------------


def test_list_and_gc(store: Store) -> None:
    import torch

    assert list(store.list()) == []
    assert store.gc() == 0
    store.keep(KEY, {"a": torch.zeros(1000)}, {"seconds": 2})
    old = store.keep(key(seed=1), {}, {})
    rows = {row.digest: row for row in store.list()}
    assert rows.keys() == {KEY.digest, old.key.digest}
    assert rows[KEY.digest].kind == "phase"
    assert rows[KEY.digest].bytes >= 4000
    assert rows[KEY.digest].seconds == 2
    assert rows[old.key.digest].seconds is None

    for row in rows.values():
        manifest = store.root / row.kind / row.digest[:2] / row.digest / "manifest.json"
        os.utime(manifest, (time.time() - 10 * 86400,) * 2)
    assert store.find(KEY) is not None  # is used now
    assert store.gc() == 0
    assert store.gc(older_than_days=20) == 0
    assert store.gc(older_than_days=5) > 0
    assert [row.digest for row in store.list()] == [KEY.digest]
    assert store.gc(older_than_days=0) >= 4000
    assert list(store.list()) == []
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_manifest_is_strict_json(store: Store) -> None:
    kept = store.keep(Key("once", {"c": float("inf")}), {}, {"loss": float("nan")})

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    told = json.loads((kept.path / "manifest.json").read_text(), parse_constant=refuse)
    assert told["digest"] == kept.key.digest
    assert told["fields"] == {"c": {"$float": "inf"}}
    assert store.find(kept.key) is not None


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.setenv("PRIVBENCH_CACHE", "")
    assert "privbench" in default_root().parts


def test_the_whole_of_it_without_tensors_needs_no_torch(tmp_path: Path) -> None:
    code = """
made = store.make(KEY, lambda: ({}, {}))
assert made.tensors == {} and store.find(KEY)
str(store.why(KEY.digest)), list(store.list()), store.gc(0)
import privbench.ground.store.source
print(sorted({"torch", "safetensors", "numpy", "pydantic"} & set(sys.modules)))
"""
    process = in_process(code, tmp_path)
    assert process.communicate(timeout=60)[0] == "[]\n"
    assert process.returncode == 0


# ---- code of others ------------------------------------------------------------------------------


def test_what_code_of_others_makes_is_for_its_like(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(code: str, of: Key, value: int) -> object:
        monkeypatch.setattr(Store, "code", code)
        return store.make(of, lambda: ({}, {"value": value})).facts["value"]

    assert made("one", KEY, 1) == 1
    monkeypatch.setattr(Store, "code", "")
    assert (KEY in store, store.find(KEY), store.facts(KEY)) == (False, None, None)
    assert made("two", KEY, 2) == 2
    assert made("", KEY, 0) == 0, "no process without that code reads it"
    assert made("one", key(more=1), 3) == 3
    assert made("one", KEY, 9) == 0, "it reads what processes without such code made"
    assert key(more=1) in store
    store.remove(KEY)  # of its own, if there is one
    monkeypatch.setattr(Store, "code", "")
    assert store.facts(KEY) is not None
    assert key(more=1) not in store
