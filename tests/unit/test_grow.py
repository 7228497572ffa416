"""Boards that grow by themselves: what is missing, what is next, and a queue that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.scripts import ROOT, script
from tests.unit.test_rows import record

import privbench
from privbench.cli.main import main as cli
from privbench.ground.errors import BadInputError
from privbench.results.files import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from privbench.results.record import Record


@pytest.fixture(scope="module")
def grow() -> Any:
    return script("grow.py")


def test_a_queue_is_read_in_order(grow: Any) -> None:
    text = "# first\n- {suite: b, seeds: 5, afresh: true}\n- {suite: a, seeds: 1}\n"
    assert [(one.suite, one.seeds, one.afresh) for one in grow.read_queue(text, {"a", "b"})] == [
        ("b", 5, True), ("a", 1, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), [
    ("- {suite: a, seeds: 1}\n- {suite: no, seeds: 1}", "line 2: no suite no in suites/"),
    ("- {suite: a, seeds: 1}\n\n- {suite: a, seeds: 2}", "line 3: a is there twice"),
    ("- {suite: a, seeds: 1}\n- suite: b\n  seeds: 0", "line 2: seeds: input should be greater"),
    ("- {suite: a, seeds: 2.0}", "line 1: seeds: input should be a valid integer"),
    ("- {suite: a, seeds: 2, wanted: 1}", "line 1: wanted: extra inputs are not permitted"),
    ("- a", "line 1: entry: input should be a valid dictionary"),
    ("a: 5", "line 1: write a list of {suite: NAME, seeds: N}"),
    ("", "line 1: write a list of {suite: NAME, seeds: N}"),
    ("- {suite: a, seeds: 1}\n- {suite: a, suite: b}", "line 2: the key 'suite' is there twice"),
    ("- {suite: a,\n", "line 2: "),
])  # fmt: skip
def test_a_bad_queue_is_refused_by_its_line(grow: Any, text: str, told: str) -> None:
    with pytest.raises(BadInputError) as error:
        grow.read_queue(text, {"a", "b"})
    assert str(error.value).startswith(f"leaderboards/queue.yaml, {told}")
    assert "\n" not in str(error.value)


def made(
    seed: int, attack: str = "loud", code: str = "new", source: str = "s", **cost: float
) -> Record:
    one = record(attack, "none", seed, auc=0.7, trial=f"{attack}-{seed}-{code}")
    plugins = {f"attack {attack}": {"source": source}}
    one.provenance = {"code": code, "commit": f"c{seed}", "plugins": plugins}
    one.cost = one.cost.model_copy(update={"seconds": 0.0, "seconds_training": 0.0, **cost})
    return one


@pytest.fixture
def today(grow: Any) -> Any:
    return grow.Code("new", {"attack loud": "s"}, frozenset({"loud"}), frozenset({"none"}))


def test_what_is_missing_follows_from_the_results(grow: Any, today: Any) -> None:
    wanted = grow.Wanted(suite="a", seeds=3)
    assert grow.board(wanted, today, [], [], 1.5) == grow.Board("a", (), (0, 1, 2), 1.5)
    some = grow.board(wanted, today, [made(0), made(2)], [], 1.5)  # of two commits, one code
    assert (some.there, some.missing) == ((0, 2), (1,))
    assert grow.board(wanted, today, [made(s) for s in range(5)], [], 1.5).missing == ()


@pytest.mark.parametrize("old", [
    [made(0), made(1, code="old")], [made(0, source="old")], [made(0, attack="gone")],
], ids=["core", "method", "suite"])  # fmt: skip
def test_results_of_other_code_are_left_alone_unless_asked(
    grow: Any, today: Any, old: list[Record]
) -> None:
    left = grow.board(grow.Wanted(suite="a", seeds=3), today, old, [], None)
    assert left.missing == ()
    assert "afresh: true" in left.left
    asked = grow.Wanted(suite="a", seeds=3, afresh=True)
    again = grow.board(asked, today, old, [made(0)], None)
    assert (again.missing, again.aside, again.enough) == ((1, 2), True, len({r.seed for r in old}))
    stale = grow.board(asked, today, old, [made(0, code="older")], None)
    assert stale.missing == (0, 1, 2)


def test_a_suite_that_runs_more_than_its_results_is_measured_again(grow: Any, today: Any) -> None:
    more = grow.Code("new", today.sources, frozenset({"loud", "quiet"}), today.stacks)
    assert today.made([made(0)])
    assert not more.made([made(0)])


def test_hours_of_a_seed_count_shared_training_once(grow: Any) -> None:
    found = [made(seed, attack, seconds=600.0, seconds_training=train)
             for seed in (0, 1) for attack, train in (("a", 1200.0), ("b", 2400.0))]  # fmt: skip
    assert grow.recorded(found) == pytest.approx(1.0)
    assert grow.recorded([]) is None


def test_costs_are_those_of_the_page(grow: Any) -> None:
    costs = grow.listed((ROOT / "leaderboards" / "costs.md").read_text(encoding="utf-8"))
    page = "| suite | seeds | hours |\n|---|---|---|\n| a | 5 | 2.5e+03 |\n| b | 2 | 1 |\n| x | y |"
    assert grow.listed(page) == {"a": 500.0, "b": 0.5}
    assert grow.listed("") == {}
    assert 0 < costs["digits"] < costs["main"]


def test_the_first_that_ends_in_time_is_next(grow: Any) -> None:
    boards = [
        grow.Board("done", (0,), (), 0.1), grow.Board("unknown", (), (0,), None),
        grow.Board("long", (), (0,), 4.0), grow.Board("short", (), (0,), 1.0),
    ]  # fmt: skip
    chosen = [grow.choose(boards, hours, cores=2) for hours in (3.0, 2.0, 1.9, 0.5, 0.4, 0.0)]
    names = [one and one.name for one in chosen]
    assert names == ["long", "long", "short", "short", "long", None]  # .4: a part of "long"
    assert grow.choose(boards[:2], 3.0, cores=2) is None


def test_a_plan_tells_hours_and_what_each_adds(grow: Any) -> None:
    told = grow.plan([
        grow.Board("long", (0,), (1, 2), 4.0), grow.Board("unknown", (), (0,), None),
        grow.Board("old", (0, 1), (), 1.0, left="left alone"),
        grow.Board("again", (0, 1), (1,), 1.0, aside=True, enough=2), grow.Board("done", (), (), 1),
    ], cores=2)  # fmt: skip
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[1] == "long 1 2.00 seeds 1, 2"
    assert lines[2].startswith("unknown 0 ? seeds 0: left alone, its cost is unknown")
    assert lines[3] == "old 2 0.50 left alone"
    assert lines[4].startswith("again 2 0.50 seeds 1; as soon as there are 2, they replace")
    assert lines[5] == "done 0 0.50 nothing"
    assert lines[6] == "4.5 hours on 2 cores"


def test_the_committed_queue_names_suites(grow: Any) -> None:
    suites = {path.stem for path in ROOT.glob("leaderboards/suites/*.yaml")}
    text = (ROOT / "leaderboards" / "queue.yaml").read_text(encoding="utf-8")
    queue = {one.suite for one in grow.read_queue(text, suites)}
    assert {path.stem for path in ROOT.glob("leaderboards/results/*.jsonl")} <= queue


def test_new_results_replace_old_ones_when_they_are_as_many(
    grow: Any, today: Any, tmp_path: Path
) -> None:
    results = tmp_path / "leaderboards" / "results"
    grower = grow.Grower.__new__(grow.Grower)
    grower.results, grower.codes = results, {"a": today}

    def run(*records: Record) -> Path:
        folder = tmp_path / f"run-{records[0].trial}"
        for one in records:
            one.write(folder)
        return folder

    def seeds(name: str) -> list[tuple[int, str]]:
        path = results / f"{name}.jsonl"
        found = read_all([path]) if path.exists() else []
        return sorted((one.seed, one.provenance["code"]) for one in found)

    first = grow.Board("a", (), (0,), 1.0)
    grower.join(first, run(made(0, code="old"), made(1, code="old")))
    again = grow.Board("a", (0, 1), (0, 1), 1.0, aside=True, enough=2)
    (results.parent / "afresh").mkdir()
    grow.privbench(["merge", str(run(made(7, code="older"))), "--out",
                    str(results.parent / "afresh" / "a.jsonl")], standalone_mode=False)  # fmt: skip
    grower.join(again, run(made(0)))
    assert (seeds("a"), seeds("../afresh/a")) == ([(0, "old"), (1, "old")], [(0, "new")])
    grower.join(again, run(made(1)))
    assert (seeds("a"), seeds("../afresh/a")) == ([(0, "new"), (1, "new")], [])


def test_what_is_kept_goes_only_when_its_seed_is_published_by_todays_code(
    grow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grower = grow.Grower.__new__(grow.Grower)
    grower.results = tmp_path / "results"
    grower.queue = [SimpleNamespace(suite="a")]
    grower.codes = {"a": SimpleNamespace(made=lambda there: {one.code for one in there} == {"new"})}
    files: dict[str, list[Any]] = {}
    monkeypatch.setattr(
        grower, "_read", lambda _, folder="results": files.get(folder, []), raising=False
    )
    (tmp_path / "partial").mkdir()
    kept = tmp_path / "partial" / "a.jsonl"

    def tidied(**there: list[tuple[int, str]]) -> bool:
        kept.touch()
        files.update({folder: [SimpleNamespace(seed=seed, code=code) for seed, code in of]
                      for folder, of in there.items()})  # fmt: skip
        grower.tidy()
        return not kept.exists()

    assert tidied(results=[(0, "new")], partial=[(0, "new")])
    assert not tidied(results=[(0, "new")], partial=[(1, "new")])
    assert not tidied(results=[(0, "old")], partial=[(0, "new")])  # of other code, left alone
    assert tidied(results=[(0, "old")], afresh=[(0, "new")], partial=[(0, "new")])
    assert not tidied(results=[], afresh=[], partial=[])


def test_only_commit_commits_and_only_results_and_pages(
    grow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*args: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def published(*_: Any) -> None:
        for name in ("a.md", "grow.py", "queue.yaml"):
            (tmp_path / "leaderboards" / name).write_text(str(time.monotonic_ns()))

    def lost(*_: Any) -> None:
        raise LookupError("no result of a is b")

    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@b")
    (tmp_path / "leaderboards").mkdir()
    published()
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    monkeypatch.setattr(grow.regenerate, "write", published)
    monkeypatch.setattr(grow.fidelity, "write", lambda _: None)
    grower = grow.Grower.__new__(grow.Grower)
    grower.root, grower.commit, grower.results = tmp_path, False, tmp_path / "results"
    assert grower.publish(["a"], 3) == 0
    assert capsys.readouterr().out == "a, seed 3: published\n"
    (tmp_path / "afresh").mkdir(parents=True)
    (tmp_path / "afresh" / "b.jsonl").touch()
    assert grower.publish(["b"], 3) == 0
    assert capsys.readouterr().out == "b, seed 3: waits in leaderboards/afresh/\n"
    assert git("log", "--format=%s").split("\n") == ["first", ""]
    grower.commit = True
    monkeypatch.setattr(grow.fidelity, "write", lost)
    assert grower.publish(["a"], 3) == 1
    assert "fidelity.md is not written: no result of a is b" in capsys.readouterr().err
    told = git("log", "-1", "--format=%s", "--name-only").split()
    assert told == ["Measure", "seed", "3", "of", "a", "leaderboards/a.md"]
    monkeypatch.setattr(grow.regenerate, "write", lambda *_: None)
    grower.publish()  # nothing has changed
    assert git("rev-list", "--count", "HEAD").strip() == "2"


def test_a_checkout_is_measured_by_one_at_a_time(
    grow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path)
    monkeypatch.setattr(grow, "ROOT", root)
    monkeypatch.setattr(grow.Grower, "grow", lambda *_: 0)
    with grow.alone(root / "leaderboards"):
        refused = CliRunner().invoke(grow.main, ["--hours", "1"])
        assert refused.exit_code == 2
        assert "another grow.py measures in" in refused.output
        assert CliRunner().invoke(grow.main, ["--plan"]).exit_code == 0
    assert CliRunner().invoke(grow.main, ["--hours", "1"]).exit_code == 0


# ---- whole queues, in processes of their own -----------------------------------------------------

SUITE = """\
name: {name}
targets:
  - supervised: {{epochs: {epochs}}}
attacks: [metric-correctness, metric-confidence, nn-mia]
seeds: 5
"""


def checkout(at: Path) -> Path:
    """A folder with the scripts, two suites of seconds and a queue, and no results."""
    boards = at / "leaderboards"
    (boards / "suites").mkdir(parents=True)
    for name in ("grow.py", "regenerate.py", "fidelity.py"):
        shutil.copy(ROOT / "leaderboards" / name, boards)
    for name, epochs in (("one", 2), ("two", 3)):
        suite = SUITE.format(name=name, epochs=epochs)
        (boards / "suites" / f"{name}.yaml").write_text(suite, encoding="utf-8")
    (boards / "queue.yaml").write_text("- {suite: one, seeds: 1}\n- {suite: two, seeds: 1}\n")
    (boards / "published.yaml").write_text("{papers: {}, tables: [], quoted: [], findings: []}\n")
    (boards / "costs.md").write_text(
        "| suite | seeds | hours |\n|---|---|---|\n| one | 5 | 0.1 |\n| two | 5 | 0.1 |\n"
    )
    (boards / "README.md").write_text("<!-- boards -->\n<!-- end of boards -->\n")
    return at


def start(root: Path, cache: Path, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PRIVBENCH_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(root / "leaderboards" / "grow.py"), *args]
    return subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def until(
    condition: Callable[[], object], run: subprocess.Popen[str] | None = None, seconds: float = 90
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert run is None or run.poll() is None, run.communicate()[0]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def begun(root: Path, cache: Path) -> subprocess.Popen[str]:
    """A queue that runs and has a result of its first seed."""
    run = start(root, cache, "--hours", "1")
    until(lambda: [*cache.glob("grow/one-0-*/*.json")], run)
    return run


def runs_of(cache: Path) -> list[str]:
    """Processes that write into a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(cache).encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def killed(run: subprocess.Popen[str]) -> str:
    """Kill a queue, and return what it said."""
    run.send_signal(signal.SIGKILL)
    return run.communicate(timeout=60)[0]


@pytest.mark.end_to_end
def test_a_queue_that_is_stopped_and_killed_ends_as_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "checkout")
    results, partial = root / "leaderboards" / "results", root / "leaderboards" / "partial"
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    killed(begun(root, first))  # in the middle of a seed
    if sys.platform == "linux":
        until(lambda: runs_of(first) == [])
    assert not results.exists()

    run = begun(root, second)  # elsewhere: only the checkout is there
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert "interrupted: what is published stays" in said
    assert "Traceback" not in said
    assert runs_of(second) == []
    kept = {one.trial: one for one in read_all([partial / "one.jsonl"])}
    assert f"one, seed 0: {len(kept)} results kept in" in said
    assert kept
    assert not (results / "one.jsonl").exists()
    shutil.copy(partial / "one.jsonl", tmp_path)

    run = start(root, third, "--hours", "0.001")  # too short for any seed
    said = run.communicate(timeout=120)[0]
    assert run.returncode == 0, said
    assert "the time is over" in said
    run = start(root, third, "--hours", "1")
    until((results / "one.jsonl").exists, run)
    killed(run)  # before the pages of that seed are written, and before what was kept is removed
    shutil.copy(tmp_path / "one.jsonl", partial)
    run = start(root, third, "--hours", "1")
    said = run.communicate(timeout=300)[0]
    assert run.returncode == 0, said
    assert "one, seed 0" not in said
    assert "two, seed 0: published" in said
    assert "no seed is missing" in said
    assert not (partial / "one.jsonl").exists()

    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "straight"))
    for name in ("one", "two"):
        suite = yaml.safe_load((root / "leaderboards/suites" / f"{name}.yaml").read_text("utf-8"))
        privbench.run({**suite, "seeds": 1}, device="cpu", out=tmp_path / name)
        whole, grown = tmp_path / f"{name}.jsonl", results / f"{name}.jsonl"
        merge = ["merge", str(tmp_path / name), "--out", str(whole)]
        assert CliRunner().invoke(cli, merge).exit_code == 0
        assert [r.digest for r in read_all([grown])] == [r.digest for r in read_all([whole])]
    again = {one.trial: one for one in read_all([results / "one.jsonl"])}
    for trial, one in kept.items():  # not measured twice
        assert again[trial].provenance["finished"] == one.provenance["finished"]
    assert script("regenerate.py").stale(root) == []
    assert (root / "leaderboards" / "fidelity.md").exists()
