"""A full disk costs the cells that cannot be written, and no more; files follow the umask."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from privbench.api.session import run as from_python
from privbench.cli.main import main
from privbench.ground.store.store import INDEX, Key, Store
from privbench.plugins import registry as plugins
from privbench.results.files import read_all
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

#: privbench with the kit's plugins, where no file may be larger than the first argument.
LIMITED = """
import resource, sys
from privbench.plugins import registry as plugins
from privbench.testing import TinyImages, TinyTarget
registry = plugins.load()
kit = plugins.Plugin("kit", "privbench.testing", "privbench")
registry.add("dataset", TinyImages(), kit)
registry.add("target", TinyTarget(), kit)
plugins.load = lambda *_, **__: registry
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from privbench.cli.main import main
main()
"""
GRID = {"datasets": ["tiny-images"], "targets": ["tiny-target"]}
RUN = (
    "run", "--dataset", "tiny-images", "--target", "tiny-target", "--device", "cpu",
    "--attack", "metric-loss", "--attack", "metric-entropy",
)  # fmt: skip


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: plugins.Registry
) -> Callable[..., Result]:
    """Invoke privbench in an empty folder, with a tiny victim and two attacks."""
    own, kit = plugins.Registry(), plugins.Plugin("kit", "privbench.testing", "privbench")
    own.add("dataset", TinyImages(), kit)
    own.add("target", TinyTarget(), kit)
    for name in ("none", "metric-loss", "metric-entropy"):
        ((kind, method),) = registry.find(name)
        own.add(kind, method, kit)
    monkeypatch.setattr(plugins, "load", lambda *_, **__: own)
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])


def leftovers(folder: str) -> list[str]:
    """Temporary files and drafts below a folder."""
    found = [path.name for path in Path(folder).rglob(".*")]
    return [name for name in found if name.startswith((".draft", ".tmp")) or ".tmp" in name]


def refuse(monkeypatch: pytest.MonkeyPatch, into: str, call: str, *, times: int) -> None:
    """Let the disk be full for files below a folder, as often as given.

    The index of methods does not count: a run does without it.
    """
    real, left = getattr(os, call), [times]

    def full(given: Any, *more: Any) -> Any:
        path = Path(f"/proc/self/fd/{given}").readlink() if call == "fsync" else Path(more[0])
        if f"/{into}/" in str(path.absolute()) and INDEX not in path.parts and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(given, *more)

    monkeypatch.setattr(os, call, full)


CALLS = [
    "replace",
    pytest.param(
        "fsync", marks=pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
    ),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_full_disk_at_out_fails_that_cell_alone(
    run: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, "results", call, times=1)
        done = run(*RUN)
    assert done.exit_code == 1, done.output
    assert "2 trials, 1 failed" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "FAILED" in line]
    (record,) = read_all([Path("results")])  # the other one
    assert record.status == "ok"
    assert ": cannot write " in line
    assert "/results/" in line
    assert (
        ".safetensors (No space left on device): once it can be written, the same command" in line
    )
    assert record.trial not in line
    assert not leftovers("results")

    again = run(*RUN)
    assert again.exit_code == 0, again.output
    assert again.stdout.count("ok (kept)") == 1
    assert "2 trials, 0 failed; 0 phases trained" in again.stdout


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("times", [2, 1000])
def test_a_full_disk_in_the_store_fails_what_needs_it(
    run: Any, monkeypatch: pytest.MonkeyPatch, call: str, times: int
) -> None:
    with monkeypatch.context() as patch:
        refuse(patch, "store", call, times=times)
        done = run(*RUN)
    assert done.exit_code == 1, done.output
    records = read_all([Path("results")])
    assert [r.status for r in records].count("failed") == (2 if times > 2 or call == "fsync" else 1)
    reason = next(r.reason for r in records if r.status == "failed")
    assert reason.startswith(f"cannot write {Path('store').resolve()}/")
    assert "(No space left on device): once it can be written, " in reason
    assert not leftovers("store")
    again = run(*RUN)
    assert again.exit_code == 0, again.output
    assert {r.status for r in read_all([Path("results")])} == {"ok"}


def test_a_board_that_cannot_be_written_leaves_the_old_one(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*RUN).exit_code == 0
    board = Path("results/leaderboard.md")
    board.write_text("old")
    with monkeypatch.context() as patch:
        refuse(patch, "results", "replace", times=1000)
        done = run(*RUN)
    assert done.exit_code == 1, done.output
    assert "2 trials, 0 failed" in done.stdout
    said = "/results/leaderboard.md (No space left on device)"
    assert said in done.stdout
    assert board.read_text() == "old"
    assert not leftovers("results")
    board.unlink()
    board.mkdir()
    done = run(*RUN)
    assert done.exit_code == 1
    assert "/results/leaderboard.md (Is a directory)" in done.stdout
    with pytest.warns(RuntimeWarning, match=r"cannot write .*/results/leaderboard\.md"):
        from_python({**GRID, "attacks": ["metric-loss"]}, device="cpu")


def _limited(limit: int, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(limit), *args]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # it would be cut off, for all that follow
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env=env
    )


@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform == "win32", reason="a file's size cannot be limited")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_files_that_really_cannot_be_written_fail_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    full = _limited(100, *RUN, "--jobs", jobs)  # neither store nor results
    assert full.returncode == 1, full.stderr
    assert "2 trials, 2 failed" in full.stdout
    assert full.stdout.count("(File too large)") == 3  # and the board
    assert "/results/leaderboard.md (File too large)" in full.stdout
    assert "Traceback" not in full.stderr
    assert not leftovers("results") + leftovers("store")
    assert not list(Path("results").iterdir())


@pytest.mark.end_to_end
@pytest.mark.skipif(sys.platform == "win32", reason="a file's size cannot be limited")
def test_once_there_is_room_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = _limited(0, *RUN, "--out", "first")
    assert first.returncode == 0, first.stderr
    kept = sorted(Path("first").glob("*.json"))
    Path("results").mkdir()
    there = [kept[0], kept[0].with_suffix(".safetensors")]
    for path in there:
        Path("results", path.name).write_bytes(path.read_bytes())
    half = _limited(1000, *RUN, "--jobs", "2")  # the store has all, and one result is there
    assert half.returncode == 1, half.stderr
    assert "2 trials, 1 failed; 0 phases trained" in half.stdout
    assert half.stdout.count("ok (kept)") == 1
    assert f"/results/{kept[1].stem}.safetensors (File too large)" in half.stdout
    assert {path.name for path in Path("results").iterdir()} == {path.name for path in there}

    again = _limited(0, *RUN)
    assert again.returncode == 0, again.stderr
    assert "2 trials, 0 failed; 0 phases trained" in again.stdout
    digests = [[r.digest for r in read_all([Path(at)])] for at in ("results", "first")]
    assert digests[0] == digests[1]


@pytest.fixture(params=[0o027, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the umask while a test runs."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_results_and_artifacts_follow_the_umask(run: Any, umask: int) -> None:
    assert run(*RUN).exit_code == 0
    assert run("merge", "results", "--out", "all").exit_code == 0
    assert run("leaderboard", "results", "-o", "deep/board.md").exit_code == 0
    checked = 0
    for top in ("results", "all", "deep", "store"):
        for path in [Path(top), *Path(top).rglob("*")]:
            full = 0o777 if path.is_dir() else 0o666
            assert path.stat().st_mode & 0o777 == full & ~umask, path
            checked += 1
    assert checked > 20


# ---- the store's folder --------------------------------------------------------------------------


def test_a_file_in_place_of_the_store_is_named(run: Any) -> None:
    Path("store").write_text("x")
    for args in (("cache", "ls"), ("cache", "gc"), ("cache", "why", "ab"), RUN):
        done = run(*args)
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.splitlines()
        assert f"the store {Path('store').resolve()} is not a folder: " in line
        assert line.endswith("set PRIVBENCH_CACHE to a folder")


def test_a_store_that_is_not_there_is_named(run: Any) -> None:
    nothing = f"the store {Path('store').resolve()} does not exist"
    assert run("cache", "ls").stdout == f"0 bytes in total: {nothing}\n"
    assert run("cache", "gc").stdout == f"0 bytes freed: {nothing}\n"
    assert nothing in run("cache", "why", "ab").stderr
    assert not Path("store").exists()


def test_a_failed_write_names_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = Store(tmp_path / "store"), Key("once", {"a": 1})
    with monkeypatch.context() as patch:
        refuse(patch, "store", "replace", times=1000)
        with pytest.raises(OSError, match="No space left") as caught:
            store.keep(key, {}, {})
    assert caught.value.filename == str(store.root / "once" / key.digest[:2] / key.digest)
    assert not leftovers(str(store.root))
    assert json.loads((store.keep(key, {}, {}).path / "manifest.json").read_text())
