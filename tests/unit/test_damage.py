"""Whatever is read and is damaged is named, set aside and made again; nothing of it is used."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

from privbench.cli.main import main
from privbench.ground.store.store import Key, Store
from privbench.plugins import registry as plugins
from privbench.results.files import read, read_all
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "results" / "digits.jsonl"
KEY = Key("phase", {"target": {"name": "simclr", "epochs": 3}, "seed": 0})
RUN = (
    "run", "--dataset", "tiny-images", "--target", "tiny-target", "--attack", "metric-loss",
    "--device", "cpu",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: plugins.Registry
) -> Callable[..., Result]:
    """Invoke privbench in an empty folder, with a tiny victim and one attack."""
    own, kit = plugins.Registry(), plugins.Plugin("kit", "privbench.testing", "privbench")
    own.add("dataset", TinyImages(), kit)
    own.add("target", TinyTarget(), kit)
    for name in ("none", "metric-loss"):
        ((kind, method),) = registry.find(name)
        own.add(kind, method, kit)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: own)
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])


def said(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


def in_place_of(path: Path, what: str) -> None:
    """Put a folder, or a link that leads nowhere, to itself or to a folder, in a file's place."""
    aside = path.parent / "moved"
    path.rename(aside)
    if what == "folder":
        path.mkdir()
        (path / "inner").write_text("x")
    else:
        path.symlink_to({"nowhere": "gone", "itself": path.name, "a folder": "."}[what])


# ---- artifacts -----------------------------------------------------------------------------------


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def no_tensors(folder: Path) -> None:
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**told, "tensors": None}))


def no_checksum(folder: Path) -> None:
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({name: value for name, value in told.items() if name != "checksum"})
    )


def becomes_a_file(folder: Path) -> None:
    folder.rename(folder.parent / "moved")
    folder.write_text("no folder")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a digit of a fact": (
        lambda at: edit(at / "manifest.json", '"loss": 0.25', '"loss": 0.35'),
        "its manifest.json has changed since it was written",
    ),
    "the date": (
        lambda at: edit(at / "manifest.json", '"created": "2', '"created": "1'),
        "its manifest.json has changed",
    ),
    "no tensors": (no_tensors, "its manifest.json has changed"),
    "no checksum": (no_checksum, "its manifest.json has changed"),
    "nested too deep": (
        lambda at: (at / "manifest.json").write_text("[" * 200_000),
        "its manifest.json cannot be read: RecursionError",
    ),
    "a list": (lambda at: (at / "manifest.json").write_text("[1]"), "its manifest.json cannot"),
    "a number": (lambda at: (at / "manifest.json").write_text("7"), "its manifest.json cannot"),
    "no text": (lambda at: (at / "manifest.json").write_bytes(b"\xff"), "its manifest.json cannot"),
    "manifest: folder": (
        lambda at: in_place_of(at / "manifest.json", "folder"),
        "its manifest.json cannot be read: Is a directory",
    ),
    "manifest: link to itself": (
        lambda at: in_place_of(at / "manifest.json", "itself"),
        "its manifest.json cannot be read: Too many levels of symbolic links",
    ),
    "tensors: folder": (
        lambda at: in_place_of(at / "tensors.safetensors", "folder"),
        "tensors.safetensors has ",
    ),
    "tensors: link to itself": (
        lambda at: in_place_of(at / "tensors.safetensors", "itself"),
        "its tensors.safetensors cannot be read: Too many levels of symbolic links",
    ),
    "a file": (becomes_a_file, "it is not a folder"),
    "link to nowhere": (lambda at: in_place_of(at, "nowhere"), "it is not a folder"),
    "link to itself": (lambda at: in_place_of(at, "itself"), "it is not a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_artifact_is_named_set_aside_and_made_again(
    run: Any, store: Store, name: str
) -> None:
    damage, reason = DAMAGE[name]
    build = lambda: ({"a": torch.ones(3)}, {"loss": 0.25, "seconds": 1})  # noqa: E731
    kept = store.make(KEY, build)
    store.keep(Key("phase", {"another": 1}), {}, {})
    damage(kept.path)
    assert KEY not in store
    listed = run("cache", "ls")
    assert listed.exit_code == 0, listed.output
    assert f"{KEY.digest[:16]}  phase      damaged: {reason}" in listed.stdout
    assert f"{KEY.digest} is damaged ({reason}" in said(run("cache", "why", KEY.digest))
    with pytest.warns(RuntimeWarning, match=rf"{KEY.digest} is damaged \({reason}.*: moved to "):
        again = store.make(KEY, build)
    assert again.tensors["a"].tolist() == [1, 1, 1]
    assert again.facts["loss"] == 0.25
    held = [path for path in kept.path.parent.iterdir() if path.name.startswith(".damaged-")]
    assert len(held) == 1, "what was there is not lost"
    assert f"{KEY.digest} was stored, but damaged" in run("cache", "why", KEY.digest).stdout
    assert run("cache", "gc").exit_code == 0
    assert not os.path.lexists(held[0])
    assert store.find(KEY) is not None


@pytest.mark.parametrize("name", DAMAGE)
def test_gc_removes_what_is_damaged_and_follows_no_link(run: Any, store: Store, name: str) -> None:
    kept = store.keep(KEY, {"a": torch.ones(3)}, {"loss": 0.25})
    outside = store.root.parent / "outside"
    outside.mkdir()
    (outside / "mine").write_text("x")
    DAMAGE[name][0](kept.path)
    (kept.path.parent / ("0" * 32)).symlink_to(outside / "nothing")
    if kept.path.is_dir():
        (kept.path / "mine").symlink_to(outside)
    (store.root / ".locks" / f"{KEY.digest}.lock").unlink()
    (store.root / ".locks" / f"{KEY.digest}.lock").mkdir()
    assert run("cache", "gc").exit_code == 0
    assert not [path for path in kept.path.parent.iterdir() if path.name != "moved"]
    assert (outside / "mine").exists()


def test_facts_that_changed_are_not_told(store: Store) -> None:
    kept = store.keep(KEY, {}, {"loss": 0.25})
    edit(kept.path / "manifest.json", "0.25", "0.35")
    with pytest.warns(RuntimeWarning, match="manifest.json has changed"):
        assert store.facts(KEY) is None


def test_tensors_that_vanish_are_an_error_and_not_an_untrained_model(store: Store) -> None:
    store.keep(KEY, {"a": torch.ones(3)}, {})
    found = store.find(KEY)
    assert found is not None
    (found.path / "tensors.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"tensors\.safetensors"):
        len(found.tensors)


def test_too_many_open_files_are_no_damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.keep(KEY, {}, {})

    def refuse(path: Path, *_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            store.find(KEY)
    assert store.find(KEY) is not None


@pytest.mark.parametrize("kind", ["baselines", "utility", "answer", "phase"])
def test_an_edited_digit_in_the_store_moves_no_result(run: Any, store: Store, kind: str) -> None:
    assert run(*RUN, "--out", "one").exit_code == 0
    (first,) = read_all([Path("one")])
    for folder in store.root.glob(f"{kind}/??/*"):
        text = (folder / "manifest.json").read_text()
        # The last number's first digit: a last digit can be beyond a float's precision.
        at = list(re.finditer(r": (\d)", text[: text.index('"created"')]))[-1].start(1)
        changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        (folder / "manifest.json").write_text(changed)
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert run(*RUN, "--out", "two").exit_code == 0
    (second,) = read_all([Path("two")])
    assert second.digest == first.digest


# ---- results -------------------------------------------------------------------------------------


def a_digit(path: Path) -> None:
    edit(path, '"test_accuracy": 0.', '"test_accuracy": 0.0')


def of_another_trial(path: Path) -> None:
    told = read(path)
    told.trial = "0" * 32
    told.write(path.parent)
    (path.parent / f"{'0' * 32}.json").rename(path)


def without(path: Path, **changes: Any) -> None:
    """Write it without a checksum."""
    told = {**json.loads(path.read_text()), **changes}
    told.pop("checksum", None)
    path.write_text(json.dumps(told))


#: How a result is damaged, and what is said of it; what is said only where a run keeps results.
RESULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a digit": (a_digit, "it has changed since it was written"),
    "no checksum": (without, "it has changed since it was written"),
    "another schema": (
        lambda at: without(at, schema_version=1),
        "it has schema 1, but this privbench reads 3",
    ),
    "nested too deep": (lambda at: at.write_text("[" * 200_000), "it is not JSON"),
    "half of it": (lambda at: at.write_text(at.read_text()[:400]), "it is not JSON"),
    "a list": (lambda at: at.write_text("[1]"), "the file: input should be a valid dict"),
    "no number": (
        lambda at: edit(at, '"test_accuracy": 0.', '"test_accuracy": NaN, "x": 0.'),
        "it is not JSON",
    ),
    "no text": (lambda at: at.write_bytes(b"\xff\x00"), "it is not JSON"),
    "folder": (lambda at: in_place_of(at, "folder"), "it cannot be read .Is a directory"),
    "link to a folder": (lambda at: in_place_of(at, "a folder"), "it cannot be read .Is a dir"),
    "link to nowhere": (lambda at: in_place_of(at, "nowhere"), "it cannot be read .No such file"),
    "link to itself": (lambda at: in_place_of(at, "itself"), "it cannot be read .Too many levels"),
}
KEPT = {
    **RESULTS,
    "of another trial": (of_another_trial, "it is of trial 00000000000000000000000000000000"),
}  # fmt: skip
#: The message of each is tested below, and what is set aside by one of each kind.
FAST = ("a digit", "half of it", "folder", "of another trial")
SOME_ARE_SLOW = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in KEPT]


@pytest.mark.parametrize("name", SOME_ARE_SLOW)
def test_a_damaged_result_is_named_set_aside_and_made_again(run: Any, name: str) -> None:
    damage, reason = KEPT[name]
    assert run(*RUN).exit_code == 0
    (first,) = read_all([Path("results")])
    path = first.path(Path("results"))
    damage(path)
    before = sorted(Path("results").iterdir())
    assert ": would run" in run(*RUN, "--dry-run").stdout
    assert sorted(Path("results").iterdir()) == before, "a dry run moves nothing"
    with pytest.warns(RuntimeWarning, match=rf"{path.name} is damaged \({reason}.*: moved to "):
        again = run(*RUN)
    assert again.exit_code == 0, again.output
    assert read(path).digest == first.digest
    (aside,) = set(Path("results").iterdir()) - {path, Path("results/leaderboard.md"), *before}
    assert aside.name.startswith(f"{path.name}.damaged-")
    assert "ok (kept)" in run(*RUN).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_lone_reader_says_which_result_is_damaged(run: Any, name: str) -> None:
    damage, reason = RESULTS[name]
    assert run(*RUN).exit_code == 0
    (first,) = read_all([Path("results")])
    path = first.path(Path("results"))
    damage(path)
    for args in (("leaderboard", "results"), ("merge", "results", "--out", "all")):
        line = said(run(*args))
        assert re.search(f"{path} is not a privbench result: {reason}", line)
        assert line.endswith("run the trial again, or move the file away")
    line = said(run("show", path))
    if name in {"link to nowhere", "link to itself"}:
        assert f"no result at {path}: " in line
    else:
        assert re.search(f"{path} is not a privbench result: {reason}", line)
