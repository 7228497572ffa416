"""The commands and the Python of README.md and docs/ run, on one small run that they share.

``privbench run`` is planned but trains nothing: its options, methods and suites are checked. Those
that name an attack also run once, with short trainings (``end_to_end``); suites run in
``test_pretend_device``. All other commands do their work. What is not run says why.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

import privbench
from privbench.cli.main import main
from privbench.grid.trial_runner import TrialRunner
from privbench.plugins import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result
    from tests.unit.small_run import SmallRun

ROOT = Path(__file__).parents[2]
#: Pages whose commands need files of their own; their tests are below or elsewhere.
ELSEWHERE = {"audit.md"}
OURS = [page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in ELSEWHERE]
PAGES = [ROOT / "README.md", *OURS, ROOT / "leaderboards" / "SUBMIT.md"]
#: How a command begins that is not run -> why.
NOT_RUN = {
    "pip install uv && uv run pytest": "these tests",
    "pip install": "it needs a registry",
    "privbench check my-attack": "it needs the package installed; see test_new_plugins",
    "privbench --plugin my_attack.py": "it needs the file; see test_plugin_files",
    "privbench --plugin mine.py": "it needs the file; see test_challenge",
    "uv run": "for developers; .ci/run runs them",
    "uv tool install": "it needs a registry; see tests/packaging/test_installed.py",
    "privbench audit": "it needs the user's model",
}


def blocks(page: Path, languages: tuple[str, ...]) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def commands(page: Path) -> Iterator[str]:
    """The commands of a page, one line each, without comments."""
    for block in blocks(page, ("", "sh")):
        for line in block.replace("\\\n", " ").splitlines():
            text = line.strip().removeprefix("pip install uv && uv run ")
            if re.match(r"(privbench|python|pip|uv|cd) ", text):
                yield text.partition("  #")[0].strip()


@pytest.fixture
def place(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of somebody who followed the page so far."""
    here = tmp_path / "here"
    shutil.copytree(small_run.folder, here / "results")
    for part in ("part-1", "part-2"):
        shutil.copytree(small_run.folder, here / part)
    (tmp_path / "data").mkdir()
    (here / "leaderboards").symlink_to(ROOT / "leaderboards")
    (plugin,) = blocks(ROOT / "README.md", ("python",))
    (here / "loud.py").write_text(plugin, "utf-8")
    shutil.copytree(small_run.store, tmp_path / "store", symlinks=True)
    monkeypatch.setenv("PRIVBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan grids without loading data."""
    monkeypatch.setattr(TrialRunner, "specs", lambda *_: {})


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def run(command: str, place: Path) -> tuple[int, str]:
    """Run a command of a page; return its status and what it said."""
    if command.startswith("python -c"):
        exec(shlex.split(command)[2], {})  # noqa: S102 - our own page
        return 0, ""
    artifact = next((line for line in invoke("cache", "ls").output.split() if len(line) == 16), "")
    words = shlex.split(command.replace("DIGEST", artifact))[1:]
    words = [word.replace("~", str(place.parent)) for word in words]
    words = [one for word in words for one in (sorted(glob.glob(word)) or [word])]  # noqa: PTH207
    words = [re.sub("TRIAL", min(place.glob("results/*.json")).stem, word) for word in words]
    words = [re.sub("NAME$", "metric-loss", word) for word in words]
    words = [word.replace("/NAME.yaml", "/digits.yaml") for word in words]
    words = [min(place.glob("results/*.json")).stem if word == "4f09c1" else word for word in words]
    if "run" in words and "--dry-run" not in words:
        words.append("--dry-run")
    with pytest.MonkeyPatch.context() as patch:
        if "cuda" in command:  # two GPUs seem to be there
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "device_count", lambda: 2)
        done = invoke(*words)
    told = done.output + (repr(done.exception) if done.exception else "")
    return 3 if "would fail" in told else done.exit_code, told


@pytest.mark.usefixtures("planned")
@pytest.mark.filterwarnings("ignore:y of mine.npz")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.slow
def test_the_commands_of_a_page_run(page: Path, place: Path) -> None:
    failed = []
    for command in commands(page):
        if not any(command.startswith(begin) for begin in (*NOT_RUN, "cd ")):
            status, told = run(command, place)
            if status:
                failed.append(f"{command}\n{status}: {told[-500:]}")
    assert not failed, "\n\n".join(failed)


#: What makes a training short, for commands that train: hyperparameter -> value.
SHORT = {"simclr": "epochs=2", "supervised": "epochs=2", "lira": "k=2"}


@pytest.mark.end_to_end
@pytest.mark.filterwarnings("ignore:y of mine.npz")
def test_the_runs_of_the_pages_run(place: Path) -> None:
    """With one seed and short trainings; the rest of each command is as it stands."""
    todo = dict.fromkeys(one for page in PAGES for one in commands(page) if " run --attack" in one)
    todo = {one: None for one in todo if not one.startswith("privbench --plugin")}
    assert len(todo) >= 7
    (made,) = (one for one in commands(ROOT / "README.md") if one.startswith("python -c"))
    run(made, place)  # the file mine.npz of the next command
    for i, command in enumerate(todo):
        words = shlex.split(re.sub(r"--seeds \d+", "", command))[1:]
        named = {*words, "simclr"} if "--target" not in words else {*words}
        for method in sorted(named & {*SHORT}):
            words += ["--set", f"{method}.{SHORT[method]}"]
        done = invoke(*words, "--out", f"out-{i}")
        assert done.exit_code == 0, (command, done.output)
        assert ", 0 failed" in done.output


def test_the_example_of_the_rules_is_a_plugin(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "plugins" / "rules.md", ("python",))
    (file := tmp_path / "loud.py").write_text(text, "utf-8")
    done = invoke("check", str(file))
    assert done.exit_code == 0, done.output
    assert "0 failed" in done.output


def test_there_are_commands_to_run() -> None:
    found = {page.name: list(commands(page)) for page in PAGES}
    assert len(found["README.md"]) == 6
    assert len(found["usage.md"]) > 15
    assert found["SUBMIT.md"][-1] == "privbench reproduce NAME.jsonl --trial 4f09c1"
    assert found["scale.md"][0].endswith("--jobs 2 --timeout 3600")
    assert any(one.startswith("python -c") and "np.savez" in one for one in found["README.md"])
    assert sum(map(len, found.values())) > 40


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_python_of_the_page_runs() -> None:
    known: dict[str, Any] = {}
    for text in blocks(ROOT / "docs/python.md", ("python",)):
        exec(text, known)  # noqa: S102 - our own page
    assert len(known["frame"]) == 8
    assert Path("front.png").stat().st_size > 1000
    assert len(known["losses"]) == len(known["members"]) == len(known["embeddings"])
    assert bool((known["losses"] >= 0).all())


@pytest.mark.end_to_end
def test_the_slurm_script_runs_its_parts(tmp_path: Path) -> None:
    """As Slurm starts it, with a `uv` that is this Python; a part without a store is refused."""
    (tmp_path / "bin").mkdir()
    (uv := tmp_path / "bin" / "uv").write_text(
        f'#!/bin/sh\nshift 2\nexec "{sys.executable}" -m privbench "$@"\n'
    )
    uv.chmod(0o755)
    (tmp_path / "suite.yaml").write_text(
        "{attacks: [metric-loss], targets: [{supervised: {epochs: 1}}], seeds: 2}"
    )
    script = ["bash", str(ROOT / "leaderboards" / "slurm.sbatch"), "suite.yaml"]
    own = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
           "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}  # fmt: skip
    own.pop("PRIVBENCH_CACHE", None)
    parts = [{**own, "SLURM_ARRAY_TASK_ID": part} for part in ("1", "2")]
    refused = subprocess.run(script, cwd=tmp_path, env=parts[0], capture_output=True, check=False)
    assert refused.returncode
    assert b"name a folder that all tasks share" in refused.stderr
    for part in parts:
        shared = {**part, "PRIVBENCH_CACHE": str(tmp_path / "store")}
        subprocess.run(script, cwd=tmp_path, env=shared, check=True, timeout=300)
    done = invoke("merge", *map(str, tmp_path.glob("results-part-*")), "--out",
                  str(tmp_path / "joined.jsonl"))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert [one.status for one in privbench.Results.read(tmp_path / "joined.jsonl")] == ["ok", "ok"]


def test_the_plugin_of_the_readme_has_twelve_lines() -> None:
    (text,) = blocks(ROOT / "README.md", ("python",))
    assert len([line for line in text.splitlines() if line]) == 12


def test_the_readme_names_what_is_included() -> None:
    """Every built-in method stands in the table, and the numbers are those of the methods."""
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| ?([\w -]*?) ?\| ?(\d*) ?\| (.+) \|$", text, re.MULTILINE)
    shown: dict[str, set[str]] = {}
    numbers: dict[str, int] = {}
    last = ""
    for kind, number, names in rows:
        if kind:
            last = kind
            numbers[kind] = int(number)
        shown.setdefault(last, set()).update(re.findall(r"`([\w-]+)`", names))
    boards = list((ROOT / "leaderboards" / "results").glob("*.jsonl"))
    assert numbers.pop("boards") == len(boards)
    shown.pop("boards")
    known = registry.load()
    expected: dict[str, set[str]] = {}
    for attack in known.all("attack"):
        game = {"attributes": "attribute"}.get(attack.game, attack.game)
        expected.setdefault(f"{game} attacks", set()).add(attack.name)
    defenses = known.all("defense")
    expected["positive controls"] = {one.name for one in defenses if one.control}
    expected["defenses"] = {one.name for one in defenses} - expected["positive controls"] - {"none"}
    for kind in ("target", "dataset"):
        expected[f"{kind}s"] = {one.name for one in known.all(kind)}
    assert shown == expected
    assert numbers == {kind: len(names) for kind, names in expected.items()}


@pytest.mark.end_to_end
def test_the_quick_start_gives_the_numbers_that_are_shown(tmp_path: Path) -> None:
    """Another kind of CPU gives slightly other numbers."""
    start = (ROOT / "docs/index.md").read_text("utf-8")
    command = next(commands(ROOT / "README.md"))
    assert command == "privbench run --attack encodermi-t --defense talos"
    assert f"uv run {command}\n" in start
    done = invoke(*command.split()[1:], "--out", str(tmp_path / "results"))
    assert done.exit_code == 0, done.output
    made = {one.cell.defenses[0].name: one for one in privbench.Results.read(tmp_path / "results")}
    rows = re.findall(r"^│ encodermi-t │ (\w+) [° ]*│(.*)│$", start, re.MULTILINE)
    assert {name for name, _ in rows} == set(made) == {"none", "talos"}
    for name, cells in rows:
        shown = [float(cell) for cell in re.findall(r"│? *(-?\d\.\d{3}) *(?=│|$)", cells)]
        auc, accuracy = made[name].metrics["auc"].value, made[name].utility["test_accuracy"]
        assert auc == pytest.approx(shown[0], abs=0.1)
        assert accuracy == pytest.approx(shown[-1], abs=0.06)
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    (words,) = re.findall(r"`{3}text (Found: .+?) `{3}", readme)
    assert words in " ".join(start.split())
    (points,) = re.findall(r"costs ([\d.]+) points", words)
    lost = made["none"].utility["test_accuracy"] - made["talos"].utility["test_accuracy"]
    assert 100 * lost == pytest.approx(float(points), abs=6)


@pytest.mark.end_to_end
def test_the_page_of_audits_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "audit.md"
    module, recipe, tables, regression, answers, _, notebook = blocks(page, ("python",))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("my_model.py").write_text(module, "utf-8")
    Path("my_recipe.py").write_text(recipe, "utf-8")
    script, *shown_commands = commands(page)
    assert len(shown_commands) == 9
    subprocess.run([sys.executable, *script.split()[1:]], check=True, timeout=300)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    exec(answers, {})  # noqa: S102 - our own page
    for command in shown_commands:
        done = invoke(*command.split()[1:])
        assert done.exit_code == (3 if "--fail-above" in command else 0), (command, done.output)
        if "--fail-above" in command:
            begins = (
                r"The gate failed\.\nauc=0\.55 failed\. Above it: \d of 8 attacks, .*\n"
                r"tpr@1%=0\.02 is undecided\. Around it: .*; about \d+ members and"
            )
            assert re.search(begins, done.output)
            assert "kept" in done.output
    assert Path("junit.xml").stat().st_size > 1000
    assert Path("audit.sarif").stat().st_size > 1000
    known: dict[str, Any] = {}
    exec(notebook, known)  # noqa: S102 - our own page
    table: dict[str, Any] = {}
    exec(tables, table)  # noqa: S102 - our own page
    assert table["found"][0].metrics["auc"].value > 0.75
    told = " ".join(page.read_text("utf-8").split())
    numbers: dict[str, Any] = {}
    exec(regression, numbers)  # noqa: S102 - our own page
    (row,) = re.findall(r"\(above\) \| .*? AUC (\.\d+) \| .*? AUC (\.\d+) \|", told)
    made = {one.cell.attack.name: one.metrics["auc"].value for one in numbers["found"]}
    assert made["squared-error"] == pytest.approx(float(row[0]), abs=0.03)
    assert made["lira-residual"] == pytest.approx(float(row[1]), abs=0.03)
    number = r"finds ([\d.]+)% .*? its AUC is ([\d.]+) "
    alone, shadowed = re.findall(number, told)
    first, clones, coded = (
        Path(folder, "audit.txt").read_text("utf-8")
        for folder in ("audit", "with-clones", "with-recipe")
    )
    answered = Path("answers", "audit.txt").read_text("utf-8")
    cases = [(alone, 5, [first, answered, known["found"].summary]), (shadowed, 20, [clones, coded])]
    for shown, wide, texts in cases:
        for words in texts:
            said = re.search(number, " ".join(words.split()))
            assert said is not None
            assert float(said[1]) == pytest.approx(float(shown[0]), abs=wide)
            assert float(said[2]) == pytest.approx(float(shown[1]), abs=0.03)
    assert Path("audit/report.html").stat().st_size > 10_000


def test_the_rows_of_the_page_of_audits_are_those_of_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ROOT / "docs" / "audit.md"
    (text,) = (one for one in blocks(page, ("python",)) if "rows_needed" in one)
    exec(text, {})  # noqa: S102 - our own page
    made = re.findall(r"^(\d+) .*: (\d+)\}$", capsys.readouterr().out, re.MULTILINE)
    shown = [
        (attacks, number.replace(",", ""))
        for attacks, cells in re.findall(r"^\| (\d+) attacks? \| (.*) \|$", page.read_text("utf-8"),
                                         re.MULTILINE)
        for number in cells.split(" | ")
    ]  # fmt: skip
    assert len(made) == 15
    assert made == shown


# ---- exit statuses -------------------------------------------------------------------------------

BAD = {
    "audit": ["--model", "absent:load", "--members", "absent.npz", "--nonmembers", "absent.npz"],
    "cache": ["why", "no-such-artifact"], "check": ["no-such-method"],
    "check-submission": ["absent.jsonl"],
    "coins": ["absent.npz", "--count", "9", "--seed-file", "secret"],
    "compare": ["absent", "absent"], "doc": ["lirra"],
    "leaderboard": ["absent"], "list": ["planets"],
    "merge": ["absent", "--out", "joined"], "new": ["attack", "Bad Name"], "report": ["absent"],
    "reproduce": ["absent.json"], "run": ["--attack", "lirra"], "score": ["absent"],
    "show": ["lirra"], "verify": ["absent"],
}  # fmt: skip


def table() -> dict[str, tuple[str, str]]:
    """Command -> what statuses 0 and 1 mean, as docs/exit-status.md says."""
    text = (ROOT / "docs/exit-status.md").read_text("utf-8")
    return {
        name: (good, bad) for name, good, bad in re.findall(r"\| `(\S+)` \| (.+) \| (.+) \|", text)
    }


def test_every_command_has_a_line_of_exit_statuses() -> None:
    assert sorted(table()) == sorted(main.commands)


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_input_is_status_2_and_one_sentence(name: str, place: Path) -> None:
    done = CliRunner().invoke(main, [name, *BAD[name]])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("privbench: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (place / "joined").exists()


def test_an_answer_of_no_is_status_1(
    small_run: SmallRun, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise AssertionError("it must not")

    fails.name = "a check"  # type: ignore[attr-defined]
    monkeypatch.setattr("privbench.testing.checks", lambda *_, **__: [fails])
    record = small_run.results[0].model_copy(deep=True)
    record.metrics["auc"] = record.metrics["auc"].model_copy(
        update={"value": 0.01, "low": 0.0, "high": 0.02}
    )
    record.write(place / "other")
    wrong = str(place / "other" / f"{record.trial}.json")
    shutil.copy(small_run.folder / f"{record.trial}.safetensors", place / "other")
    invoke("merge", "other", "--scores", "--out", "wrong.jsonl")
    asked = {
        "check": ["check", "metric-loss"],
        "check-submission": ["check-submission", "wrong.jsonl"],
        "reproduce": ["reproduce", wrong],
        "run": ["run", "--attack", "metric-loss", "--target", "supervised", "--dataset", "mnist",
                "--data-root", str(place / "results"), "--out", "failed"],
    }  # fmt: skip
    told = {name for name, (_, bad) in table().items() if bad != "–"}
    # of these, see test_own_model, test_challenge and test_verify
    assert {*asked, "audit", "challenge", "verify"} == told
    for name, words in asked.items():
        done = invoke(*words)
        assert done.exit_code == 1, f"{name}: {done.output}"


def test_an_interruption_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privbench.results.files.read_all", interrupted)
    assert invoke("leaderboard", "results").exit_code == 130
