"""The command line as a hostile user meets it: one sentence, the right status, no traceback."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
import torch
from annotated_types import Ge
from click.testing import CliRunner

from privbench import (
    Access,
    Defense,
    Membership,
    MembershipAttack,
    Method,
    Results,
    Strength,
    __version__,
)
from privbench.cli.border import prints_to_stderr
from privbench.cli.glossary import glossary
from privbench.cli.main import _terminable, main
from privbench.measure.games.catalog import GAMES
from privbench.plugins import registry as plugins
from privbench.plugins.registry import Plugin, Registry
from privbench.results.files import read_all
from privbench.testing import TinyImages, TinyTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    Run = Callable[..., Result]


@dataclass(frozen=True)
class Sure(MembershipAttack):
    """Calls a member whatever the victim is sure of."""

    name: ClassVar[str] = "sure"
    needs: ClassVar[Access] = Access.POSTERIORS
    power: Annotated[int, Ge(1)] = 1

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        if os.environ.get("MOOD") == "interrupted":  # no part of the source digest
            raise KeyboardInterrupt
        print("sure of it")
        return Membership(oracle.posteriors(question.examples).amax(1) ** self.power)


@dataclass(frozen=True)
class Greedy(Sure):
    """Asks for what it did not declare."""

    name: ClassVar[str] = "greedy"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        del ctx
        return Membership(oracle.embeddings(question.examples).amax(1))


@dataclass(frozen=True)
class Moody(Sure):
    """Fails until it is mended."""

    name: ClassVar[str] = "moody"

    def answer(self, oracle: Any, question: Any, ctx: Any) -> Membership:
        if os.environ.get("MOOD") != "mended":
            raise ValueError("two\nlines [bold]of[/bold] trouble")
        return super().answer(oracle, question, ctx)


@dataclass(frozen=True)
class White(Sure):
    """Needs weights."""

    name: ClassVar[str] = "white"
    needs: ClassVar[Access] = Access.WEIGHTS | Access.POSTERIORS


@dataclass(frozen=True)
class Nothing(Defense):
    """Does nothing."""

    name: ClassVar[str] = "none"
    protects: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Short(Defense):
    """Trains for fewer epochs."""

    name: ClassVar[str] = "short"
    protects: ClassVar[tuple[str, ...]] = ("membership",)
    strength: ClassVar[Strength | None] = Strength("epochs", stronger="down", sweep=(2, 1))
    epochs: Annotated[int, Ge(1)] = 2

    def on_phases(self, phases: Any, model: Any, world: Any, ctx: Any) -> Any:
        del model, world, ctx
        return [replace(phase, epochs=self.epochs) for phase in phases]


@dataclass(frozen=True)
class Closed(TinyTarget):
    """Grants posteriors only."""

    name: ClassVar[str] = "closed"
    grants: ClassVar[Access] = Access.POSTERIORS


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Invoke privbench in an empty folder, with tiny plugins only."""
    registry = Registry()
    registry.plugins.append(Plugin("tiny", "tiny", "tests"))
    tiny: dict[str, list[Method]] = {
        "dataset": [TinyImages()], "target": [TinyTarget(), Closed()],
        "defense": [Nothing(), Short()],
        "attack": [Sure(), Greedy(), Moody(), White()],
    }  # fmt: skip
    for kind, methods in tiny.items():
        for method in methods:
            registry.add(kind, method, registry.plugins[0])
    real = plugins.load
    monkeypatch.setattr(plugins, "load", lambda off, **_: registry if not off else real(off))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRIVBENCH_DATA", raising=False)
    monkeypatch.delenv("MOOD", raising=False)
    return lambda *args: CliRunner().invoke(main, [str(arg) for arg in args])


GRID = ("run", "--dataset", "tiny-images", "--target", "tiny-target")
SURE = (*GRID, "--attack", "sure")


def said(result: Result) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith("privbench: ")
    return line


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("lisst",), "unknown command 'lisst': did you mean 'list'?"),
        (("--atack",), "No such option '--atack'; see `main --help`"),
        (("list", "atacks"), "unknown kind 'atacks': did you mean 'attacks'?"),
        (
            ("doc", "suer"),
            "unknown name 'suer': did you mean 'sure'?",
        ),
        (("show", "sure"), "a method is explained by `privbench doc NAME`"),
        (("show", "none.json"), "no result at none.json"),
        (("show", "sure.JSON", "x"), "unexpected extra argument"),
        (("-p", "sure", "list"), "-p sure: write -p FILE.py"),
        (("-p", "no:digits", "list"), "did you mean 'dataset_digits'?"),
        (("run",), "nothing to run: give --attack NAME or a SUITE file"),
        (("run", "sure"), "no suite at sure: give a YAML file, or use --attack"),
        (("run", "--atack", "sure"), "'--attack'"),
        ((*GRID, "--attack", "suer"), "unknown attack 'suer': did you mean 'sure'?"),
        ((*SURE, "--defense", "nome"), "unknown defense 'nome': did you mean 'none'?"),
        ((*SURE, "--target", "tiny"), "unknown target 'tiny': did you mean 'tiny-target'?"),
        ((*SURE, "--dataset", "imagenet"), "unknown dataset 'imagenet': did you mean 'tiny-im"),
        ((*SURE, "--preset", "big"), "unknown preset 'big': choose from cpu"),
        ((*SURE, "--protocol", "quarter"), "unknown protocol 'quarter': did you mean 'quarters'?"),
        ((*SURE, "--sensitive", "brigt"), "'brigt': did you mean 'bright'?"),
        ((*SURE, "--adversary", "naif"), "'naif' is not one of 'adaptive', 'naive'"),
        ((*SURE, "--seeds", "0"), "Invalid value for '--seeds'"),
        ((*SURE, "--set", "sure.powr=2"), "hyperparameter of sure 'powr': did you mean 'power'?"),
        ((*SURE, "--set", "sure.power=0"), "sure.power: give 1 or more, not 0"),
        ((*SURE, "--set", "sure.power=x"), "sure.power: give a whole number, not 'x'"),
        ((*SURE, "--set", "sure.power"), "--set sure.power: write METHOD.FIELD=VALUE"),
        ((*SURE, "--set", "suer.power=2"), "unknown method in --set 'suer': did you mean 'sure'?"),
        ((*SURE, "--dry-run", "--json"), "--dry-run prints lines to read: leave out --json"),
        ((*SURE, "--set", "sure.power=["), "'[' is not a YAML value: put it in quotes"),
        ((*SURE, "--data-root", "nowhere"), "nowhere is not a directory: create it"),
        ((*SURE, "--device", "gpu"), "unknown device 'gpu': use cpu, cuda, cuda:1 or auto"),
        ((*SURE, "--device", "meta"), "unknown device 'meta': use cpu, cuda, cuda:1 or auto"),
        (("leaderboard",), "Missing argument 'FOLDERS...'"),
        (("leaderboard", "nowhere"), "no results folder at nowhere: `privbench run"),
        (("leaderboard", "."), "no results in .: `privbench run` and"),
    ],
)
def test_mistakes_are_one_sentence(run: Run, args: tuple[str, ...], sentence: str) -> None:
    assert sentence in said(run(*args))


def test_cuda_without_cuda(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no CUDA device: use cpu or auto" in said(run(*SURE, "--device", "cuda"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("attacks: [sure\nseeds: 2", "suite s.yaml, line 2, column 6: "),
        ("attaks: [sure]", "unknown key in suite s.yaml 'attaks': did you mean 'attacks'?"),
        ("- sure", "suite s.yaml is a list: write keys"),
        ("attacks: sure", "suite s.yaml: attacks must be a list of names"),
    ],
)
def test_suites_that_do_not_fit(run: Run, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    assert sentence in said(run("run", "s.yaml"))


def test_files_in_the_way(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}", encoding="utf-8")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "x.json").write_text("{}", encoding="utf-8")
    assert "--out file is a file: choose a directory" in said(run(*SURE, "--out", "file"))
    assert "--out file/below cannot be written" in said(run(*SURE, "--out", "file/below"))
    held = {one.name for one in tmp_path.glob("store/*")}
    assert held <= {"methods"}, "it trained before it looked"
    assert "x.json is not a privbench result: trial: field req" in said(run("leaderboard", "r"))
    assert "x.json is not a privbench result" in said(run("show", "r/x.json"))


def test_a_grid_end_to_end(run: Run, tmp_path: Path) -> None:
    done = run(*SURE, "--seeds", "2")
    assert done.exit_code == 0, done.output
    assert "2 trials, 0 failed" in done.stdout
    records = read_all([tmp_path / "results"])
    assert [r.status for r in records] == ["ok", "ok"]
    board = (tmp_path / "results" / "leaderboard.md").read_text(encoding="utf-8")
    assert "[leaderboard.csv](leaderboard.csv)" in board
    again = run("leaderboard", "results", "--title", "run", "-o", "deep/leaderboard.md")
    assert again.exit_code == 0, again.output
    for end in ("md", "csv"):
        made = [tmp_path / folder / f"leaderboard.{end}" for folder in ("results", "deep")]
        assert made[0].read_bytes() == made[1].read_bytes()
    alone = run("leaderboard", "results", "--title", "run")
    assert alone.stdout.split("Cite as")[0].rstrip() in board
    assert "WARNING" in alone.stdout or "Code: clean checkout" in alone.stdout
    wrong = said(run("leaderboard", "results", "-o", "board.txt"))
    assert "-o board.txt: the name of a page ends in .md" in wrong
    card = run("show", records[0].path(tmp_path / "results"))
    assert card.exit_code == 0
    assert "auc = " in card.stdout

    again = run(*SURE, "--seeds", "2")
    assert again.stdout.count("ok (kept)") == 2
    assert "0 phases trained" in again.stdout


def test_a_sweep_end_to_end(run: Run, tmp_path: Path) -> None:
    sweep = (*SURE, "--sweep", "short", "--seeds", "2", "--match-utility", "1")
    done = run(*sweep)
    assert done.exit_code == 0, done.output
    told = "tiny-images, tiny-target: operating point of short: epochs=1 (seeds 0, 1)"
    assert told in done.stdout.splitlines()
    board = (tmp_path / "results" / "leaderboard.md").read_text(encoding="utf-8")
    points = json.loads((tmp_path / "results" / "operating-points.json").read_bytes())
    assert points == {"match_utility": 1.0}
    assert Results.read(tmp_path / "results").match_utility == 1
    same = run("leaderboard", "results", "--title", "run", "-o", "same/leaderboard.md")
    assert same.exit_code == 0
    assert (tmp_path / "same" / "leaderboard.md").read_text(encoding="utf-8") == board
    assert "loses at most 1 of accuracy" in board
    again = run(*sweep)
    assert told in again.stdout.splitlines()
    assert "0 phases trained" in again.stdout
    parts = [f"part{i}" for i in (1, 2)]
    for i, part in enumerate(parts):
        for _ in ("first", "again"):
            of_part = run(*sweep, "--shard", f"{i + 1}/2", "--out", part)
            assert of_part.exit_code == 0
            assert f"part {i + 1}/2 of the grid: `privbench merge` joins" in of_part.stdout
            assert "Found:" not in of_part.stdout
            assert not [*(tmp_path / part).glob("leaderboard.*")]
    empty = run(*sweep, "--shard", "99/99", "--out", "part-99")
    assert "0 trials, 0 failed" in empty.stdout
    assert run("merge", *parts, "part-99", "--out", "run").exit_code == 0
    merged = (tmp_path / "run" / "leaderboard.md").read_text(encoding="utf-8")
    assert merged.split("## Ranking")[0] == board.split("## Ranking")[0]


def test_json_is_all_that_a_machine_reads(run: Run, tmp_path: Path) -> None:
    args = (*SURE, "--attack", "moody", "--seeds", 2, "--json")
    told: dict[str, Any] = {}
    for first in (True, False):
        done = run(*args)
        assert done.exit_code == 1, done.output
        told = json.loads(done.stdout)
        assert "4 trials, 2 failed" in done.stderr
        assert ("sure of it" in done.stderr) == first
        assert (told["format"], told["trials"], told["failed"]) == (1, 4, 2)
        [sure] = [cell for cell in told["cells"] if cell["attack"] == "sure"]
        records = [r for r in read_all([tmp_path / "results"]) if r.cell.attack.name == "sure"]
        values = [r.metrics["auc"].value or 0.0 for r in records]
        assert sure["auc"] == pytest.approx(sum(values) / 2, rel=1e-5)
        assert sure["seeds"] == "0 1"
        assert told["found"][0].endswith("2 seeds: draft.")
        assert f"Found: {told['found'][0]}" in " ".join(done.stderr.split())
    board = run("leaderboard", "results", "--json")
    assert json.loads(board.stdout) == told
    assert "leave out -o" in said(run("leaderboard", "results", "--json", "-o", "x.md"))


def test_what_plugins_print_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with prints_to_stderr():
        print("here")
        ctypes.CDLL(None).printf(b"from C\n")
        subprocess.run([sys.executable, "-c", "print('there')"], check=True)
    print("the document")
    ctypes.CDLL(None).fflush(None)
    told = capfd.readouterr()
    assert told.out == "the document\n"
    assert sorted(told.err.split("\n")) == ["", "from C", "here", "there"]


def test_a_closed_output_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with prints_to_stderr():
        inside = os.fstat(1)
    assert inside == os.fstat(1)  # it stays what it is


def test_a_failing_cell_is_a_result_and_the_others_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*GRID, *(f"--attack={name}" for name in ("greedy", "moody", "sure", "white")))
    done = run(*args, "--target", "closed")
    assert done.exit_code == 1, done.output
    results = {
        (r.cell.attack.name, r.cell.target.name): r for r in read_all([tmp_path / "results"])
    }
    assert results["sure", "closed"].status == results["sure", "tiny-target"].status == "ok"
    greedy = results["greedy", "tiny-target"]
    assert greedy.status == "failed"
    assert "add Access.EMBEDDINGS to its `needs`" in greedy.reason
    assert greedy.traceback
    skipped = results["white", "closed"]
    assert skipped.status == "skipped"
    assert skipped.reason == "white needs WEIGHTS, which target closed does not grant"
    lines = [line for line in done.stdout.splitlines() if "moody" in line]
    assert len(lines) == 2
    assert lines[0].endswith("ValueError: two lines [bold]of[/bold] trouble")

    monkeypatch.setenv("MOOD", "mended")
    again = run(*args, "--target", "closed")
    ran = [
        line
        for line in again.stdout.splitlines()
        if line.startswith("[") and "kept" not in line and ": skipped: " not in line
    ]
    assert {line.split()[1] for line in ran} == {"greedy", "moody"}
    assert sum("moody" in line and "ok" in line for line in ran) == 2


def test_ctrl_c(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*SURE).exit_code == 0
    monkeypatch.setenv("MOOD", "interrupted")
    stopped = run(*SURE, "--seeds", "2")
    assert stopped.exit_code == 130
    assert "finished work is saved: run the same command to resume" in stopped.stderr
    assert len(read_all([tmp_path / "results"])) == 1
    monkeypatch.delenv("MOOD")
    assert run(*SURE, "--seeds", "2").stdout.count("(kept)") == 1


def test_dry_run_trains_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privbench.measure.training.loop import Training

    def never(*_: Any) -> None:
        raise AssertionError("a dry run trained")

    assert run(*SURE).exit_code == 0
    monkeypatch.setattr(Training, "run", never)
    before = sorted((tmp_path / "results").iterdir())
    plan = run(*SURE, "--attack", "white", "--target", "closed", "--seeds", "2", "--dry-run")
    assert plan.exit_code == 0, plan.output
    assert sorted((tmp_path / "results").iterdir()) == before
    assert "sure × none × tiny-target × tiny-images, adaptive, seed 0: kept" in plan.stdout
    assert "white × none × closed × tiny-images, adaptive, seed 1: skipped: white n" in plan.stdout
    assert "seed 1: would run; 2 training phases, 0 in the store" in plan.stdout
    assert plan.stdout.splitlines()[-1].startswith("8 trials; ")


def test_a_suite_with_options_on_top(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "datasets: [tiny-images]\ntargets: [tiny-target]\nattacks: [white]\n"
        "set: {sure: {power: 3}}\n",
        encoding="utf-8",
    )  # fmt: skip
    done = run("run", "s.yaml", "--attack", "sure", "--set", "sure.power=2", "--out", "here")
    assert done.exit_code == 0, done.output
    (record,) = read_all([tmp_path / "here"])
    assert record.cell.attack.fields == {"power": 2}
    board = (tmp_path / "here" / "leaderboard.md").read_text(encoding="utf-8")
    assert board.startswith("# s\n")


def test_list_and_doc(run: Run) -> None:
    listed = run("list")
    assert listed.exit_code == 0
    assert [line for line in listed.stdout.splitlines() if line.endswith(":")] == [
        "attacks:", "defenses:", "targets:", "datasets:", "games:", "protocols:", "plugins:",
    ]  # fmt: skip
    heads, *attacks = run("list", "attacks").stdout.splitlines()[1:]
    assert heads.split() == ["NAME", "GAME", "ACCESS", "SHADOWS", "WHAT", "IT", "DOES"]
    (sure,) = (line for line in attacks if line.split()[0] == "sure")
    assert re.split(r"\s{2,}", sure.strip())[:4] == ["sure", "membership", "posteriors", "–"]
    assert sure[heads.index("WHAT") :].startswith("Calls a member whatever")
    for name in ("sure", "none", "tiny-target", "tiny-images"):
        assert run("doc", name).stdout.startswith(f"{name}: ")
    assert "power = 1" in run("doc", "sure").stdout
    games = run("list", "games").stdout.splitlines()
    assert "  membership                 Membership inference: members against nonmembers of" in (
        "\n".join(games)
    )
    assert len(games) == 1 + len(GAMES)
    protocols = run("list", "protocols").stdout.splitlines()
    assert any(one.split() == ["quarters", "of", "every", "dataset"] for one in protocols)
    assert any(one.split() == ["default", "of", "tiny-images"] for one in protocols), protocols


@pytest.mark.parametrize(
    ("word", "first"),
    [("tpr", "TPR at 1 % FPR, TPR, FPR"), ("Null AUC", "Null AUC, null victim"),
     ("shadow", "Shadow"), ("part", "Part")],
)  # fmt: skip
def test_doc_explains_the_words_of_the_glossary(run: Run, word: str, first: str) -> None:
    head, empty, *told = run("doc", word).stdout.splitlines()
    assert (head, empty) == (first, "")
    assert told
    assert not any(mark in " ".join(told) for mark in ("**", "](", "`"))


def test_every_paragraph_of_the_glossary_explains_something() -> None:
    text = (files("privbench.cli") / "glossary.md").read_text("utf-8")
    _, *paragraphs = text.split("\n\n")
    assert len({id(lines) for lines in glossary().values()}) == len(paragraphs)


def test_help_and_version(run: Run) -> None:
    assert run("--version").stdout.strip().endswith(__version__)
    for args in ((), ("run",), ("list",), ("show",), ("leaderboard",), ("cache",)):
        shown = run(*args, "--help")
        assert shown.exit_code == 0
        assert shown.stdout.startswith("Usage: ")


def test_cache(run: Run) -> None:
    assert "0 bytes in total" in run("cache", "ls").stdout
    assert run(*SURE).exit_code == 0
    rows = run("cache", "ls").stdout.splitlines()
    phase = next(row for row in rows if " phase " in row).split()[0]
    why = run("cache", "why", phase)
    assert why.exit_code == 0
    assert why.stdout.startswith(f"phase {phase}")
    assert said(run("cache", "why", "zz"))


def test_results_are_plain_json(run: Run, tmp_path: Path) -> None:
    assert run(*SURE).exit_code == 0
    (path,) = (tmp_path / "results").glob("*.json")
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == 3


def test_only_this_process_ends_cleanly_on_sigterm() -> None:
    """A pool of a user's recipe ends its workers by SIGTERM, and would wait for them for ever."""
    before = signal.getsignal(signal.SIGTERM)
    with _terminable():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        if (child := os.fork()) == 0:
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        assert os.waitpid(child, 0)[1] == 0
    assert signal.getsignal(signal.SIGTERM) is before
